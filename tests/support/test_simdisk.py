"""The simulated disk: alive it is like the real one, and what it forgets is legal."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvitto.base.errors import StoreError, StoreFull
from kvitto.store.disk import Disk, RealDisk
from tests.support.simdisk import PowerCut, SimDisk

SEEDS = range(400)

PATHS = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a"])
SMALL = st.integers(0, 12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PATHS, SMALL, st.binary(max_size=8)),
        st.tuples(st.just("truncate"), PATHS, SMALL),
        st.tuples(st.just("create"), PATHS),
        st.tuples(st.just("sync"), PATHS),
        st.tuples(st.sampled_from(["makedirs", "unlink", "rmtree", "sync_dir"]), PATHS),
        st.tuples(st.sampled_from(["listdir", "read_file", "exists"]), PATHS),
        st.tuples(st.just("rename"), PATHS, PATHS),
        st.tuples(st.just("link"), PATHS, PATHS),
    ),
    max_size=25,
)  # fmt: skip


def step(disk: Disk, name: str, path: str, *rest: Any) -> object:
    """Do it; gives what it said, StoreError (the class) if it was refused."""
    try:
        if name == "create":
            disk.open(path, create=True).close()
            return None
        if name in ("write", "truncate", "sync"):
            file = disk.open(path)
            try:
                return {
                    "write": lambda: file.write_at(rest[0], [rest[1]]),
                    "truncate": lambda: file.truncate(rest[0]),
                    "sync": file.sync,
                }[name]()
            finally:
                file.close()
        if name in ("rename", "link"):  # of files only: Kvitto renames nothing else
            disk.open(path).close()
        return getattr(disk, name)(path, *rest)
    except StoreError:
        return StoreError


def tree(root: str) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(Path(root).rglob("*")) if p.is_file()}


@settings(deadline=None, max_examples=300)
@given(steps=STEPS)
@example(steps=[("create", "a"), ("link", "a", "b"), ("rename", "a", "b")])
def test_alive_it_is_like_the_real_disk(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]) -> None:
    real, simulated = RealDisk(str(tmp_path_factory.mktemp("data"))), SimDisk()
    for name, path, *rest in steps:
        assert step(simulated, name, path, *rest) == step(real, name, path, *rest)
    assert simulated.files() == tree(real.root)
    assert simulated.kill().files() == tree(real.root)


@settings(deadline=None, max_examples=150)
@given(steps=STEPS, seed=st.integers(0, 1 << 30), hostile=st.booleans())
def test_the_same_seed_makes_the_same_disk(steps: list[tuple[Any, ...]], seed: int, hostile: bool) -> None:
    def crashed() -> dict[str, bytes]:
        disk = SimDisk()
        for name, path, *rest in steps:
            step(disk, name, path, *rest)
        return disk.crash(Random(seed), hostile=hostile).files()

    assert crashed() == crashed()


@settings(deadline=None, max_examples=150)
@given(steps=STEPS, seed=st.integers(0, 1 << 30), hostile=st.booleans())
def test_what_was_synced_with_its_name_survives(steps: list[tuple[Any, ...]], seed: int, hostile: bool) -> None:
    disk = SimDisk()
    for name, path, *rest in steps:
        step(disk, name, path, *rest)
    for path in disk.files():
        step(disk, "sync", path)
    for directory in ("", "d", "d/e"):
        step(disk, "sync_dir", directory)
    assert disk.certain
    before = disk.files()
    found = disk.crash(Random(seed), hostile=hostile)
    assert found.files() == before and found.certain and found.boot_id() != disk.boot_id()


def synced_file(path: str = "a", content: bytes = b"....") -> tuple[SimDisk, Any]:
    disk = SimDisk()
    file = disk.open(path, create=True)
    file.write_at(0, [content])
    file.sync()
    disk.sync_dir("")
    return disk, file


def outcomes(prepare: Callable[[], SimDisk], hostile: bool = False) -> set[tuple[tuple[str, bytes], ...]]:
    """Every content of the disk that some seed finds."""
    return {tuple(prepare().crash(Random(seed), hostile=hostile).files().items()) for seed in SEEDS}


def test_any_subset_of_unsynced_writes_survives_also_torn() -> None:
    def prepare() -> SimDisk:
        disk, file = synced_file()
        file.write_at(0, [b"AA"])
        file.write_at(2, [b"BB"])
        return disk

    found = {content for ((_, content),) in outcomes(prepare)}
    assert {b"....", b"AABB", b"AA..", b"..BB"} <= found
    assert {content[:2] for content in found} >= {b"A.", b".A", b"A\0", b"\0\0"}
    for content in found:
        assert set(content[:2]) <= set(b".A\0") and set(content[2:]) <= set(b".B\0") and len(content) == 4


def test_a_lost_write_leaves_a_gap_before_a_later_one() -> None:
    def prepare() -> SimDisk:
        disk, file = synced_file(content=b"")
        file.write_at(0, [b"AA"])
        file.write_at(2, [b"BB"])
        return disk

    found = {content for ((_, content),) in outcomes(prepare)}
    assert {b"", b"AA", b"AABB", b"\0\0BB", b"\0\0"} <= found


def test_an_unsynced_cut_may_be_undone() -> None:
    def prepare() -> SimDisk:
        disk, file = synced_file()
        file.truncate(1)
        return disk

    assert {content for ((_, content),) in outcomes(prepare)} == {b".", b"...."}


def renames() -> SimDisk:
    disk, _ = synced_file("log", b"old")
    fresh = disk.open("new", create=True)
    fresh.write_at(0, [b"new"])
    fresh.sync()
    disk.rename("new", "log")
    disk.open("x", create=True)
    return disk


def test_names_survive_as_a_prefix_in_order() -> None:
    assert outcomes(renames) == {
        (("log", b"old"),),
        (("log", b"old"), ("new", b"new")),
        (("log", b"new"),),
        (("log", b"new"), ("x", b"")),
    }


def test_hostile_names_survive_in_any_subset() -> None:
    assert outcomes(renames, hostile=True) >= {
        (("log", b"old"), ("x", b"")),
        (("log", b"new"), ("x", b"")),
        (("log", b"old"), ("new", b"new"), ("x", b"")),
        (("log", b"old"),),
    }


def test_syncing_a_file_says_nothing_about_its_name() -> None:
    def prepare() -> SimDisk:
        disk = SimDisk()
        disk.makedirs("d")
        file = disk.open("d/a", create=True)
        file.write_at(0, [b"A"])
        file.sync()
        disk.sync_dir("d")
        return disk

    assert outcomes(prepare) == {(), (("d/a", b"A"),)}


def test_a_removed_file_may_come_back() -> None:
    def prepare() -> SimDisk:
        disk = SimDisk()
        disk.makedirs("d/e")
        disk.open("d/e/a", create=True)
        for directory in ("", "d", "d/e"):
            disk.sync_dir(directory)
        disk.rmtree("d")
        return disk

    assert outcomes(prepare) == {(), (("d/e/a", b""),)}


def work(disk: SimDisk) -> None:
    """Seven operations."""
    disk.makedirs("d")
    file = disk.open("d/a", create=True)
    file.write_at(0, [b"AB"])
    file.sync()
    disk.sync_dir("d")
    disk.sync_dir("")
    disk.unlink("d/a")


def test_the_power_can_go_at_every_operation() -> None:
    for k in range(1, 8):
        disk = SimDisk()
        disk.cut_at = k
        with pytest.raises(PowerCut):
            work(disk)
        assert disk.operations == k
        with pytest.raises(PowerCut):
            disk.listdir("")
        found = disk.crash(Random(k))
        assert k <= 6 or found.files() in ({}, {"d/a": b"AB"})
        work(found)
    disk = SimDisk()
    disk.cut_at = 8
    work(disk)
    assert disk.operations == 7 and not issubclass(PowerCut, Exception)


def test_a_write_can_fail_half_done() -> None:
    disk, file = synced_file()
    disk.fail_at = {disk.operations + 1: StoreFull("no room")}
    with pytest.raises(StoreFull):
        file.write_at(0, [b"ABCD"])
    assert file.read_at(0, 9) == b"AB.."
    file.write_at(0, [b"ABCD"])
    assert file.read_at(0, 9) == b"ABCD"


def test_a_full_disk_takes_only_what_fits_in_the_files() -> None:
    disk, file = synced_file()
    disk.full = True
    with pytest.raises(StoreFull):
        file.write_at(4, [b"x"])
    assert file.write_at(0, [b"ABCD"]) == 4 and disk.free_bytes() == 0
    disk.full = False
    assert file.write_at(4, [b"x"]) == 1 and disk.free_bytes() > 0


def test_c8_after_a_failed_sync_a_later_one_proves_nothing() -> None:
    def prepare() -> SimDisk:
        disk, file = synced_file()
        file.write_at(0, [b"AB"])
        disk.fail_at = {disk.operations + 1: StoreError("the device failed")}
        with pytest.raises(StoreError):
            file.sync()
        file.write_at(2, [b"CD"])
        file.sync()
        return disk

    assert not prepare().certain
    found = {content for ((_, content),) in outcomes(prepare)}
    assert {b"..CD", b"ABCD"} <= found and all(content.endswith(b"CD") for content in found)


def test_flipped_bits_are_on_the_disk_too() -> None:
    disk, file = synced_file(content=b"\0\0")
    disk.flip("a", 1, bit=7)
    assert file.read_at(0, 2) == b"\0\x80"
    found = disk.crash(Random(1))
    assert found.files() == {"a": b"\0\x80"}
    path, position = found.flip_random(Random(2))
    assert path == "a" and found.files()["a"] != b"\0\x80" and position in (0, 1)


def test_d5_the_lock_is_freed_by_the_end_of_the_process() -> None:
    disk = SimDisk()
    lock = disk.lock("lock")
    with pytest.raises(StoreError, match="in use by process"):
        disk.lock("lock")
    assert disk.read_file("lock").split()[1].decode() == disk.boot_id()
    lock.close()
    disk.lock("lock")
    killed = disk.kill()
    assert killed.boot_id() == disk.boot_id()
    killed.lock("lock")
    killed.crash(Random(0)).lock("lock")


def test_closed_files_and_unknown_paths_are_refused() -> None:
    _, file = synced_file()
    buf = bytearray(9)
    assert file.read_into(1, memoryview(buf)) == 3 and buf == b"...\0\0\0\0\0\0"
    file.close()
    for call in (lambda: file.read_at(0, 1), lambda: file.write_at(0, [b""]), file.size, file.sync):
        with pytest.raises(StoreError):
            call()


def test_a_file_that_is_moved_out_of_an_unsynced_directory_is_not_in_both() -> None:
    disk = SimDisk()
    disk.makedirs("d")
    disk.open("d/a", create=True)
    disk.rename("d/a", "a")
    disk.sync_dir("")
    disk.sync_dir("d")
    assert disk.certain and set(disk.crash(Random(0)).files()) == {"a"}
