"""The tap is told each change of the directory, in order, and nothing else; the tree has what the disk has."""

from __future__ import annotations

import pytest

from kvitto.base.errors import StoreError, StoreFull
from kvitto.cluster.records import Kind, sync_parts
from kvitto.cluster.ring import Ring
from kvitto.cluster.tapping import TapDisk
from kvitto.store import paths
from tests.cluster.pairs import Leading, plain
from tests.support.simdisk import SimDisk


class Tapped:
    def __init__(self) -> None:
        self.inner = SimDisk()
        self.ring = Ring()
        self.disk = TapDisk(self.inner, self.ring)
        self.disk.lock(paths.LOCK)

    def told(self) -> list[tuple[str, object]]:
        found: list[tuple[str, object]] = []
        for place in range(self.ring.next):
            record = plain(self.ring.at(place))
            payload: object = record.payload
            if record.kind == Kind.SYNC:
                numbers, names = sync_parts(record.payload)
                payload = [*numbers, *names]
            found.append((Kind(record.kind).name, payload))
        return found


def test_changes_are_told_in_order() -> None:
    tapped = Tapped()
    disk = tapped.disk
    disk.makedirs("queues/a")
    file = disk.open("queues/a/1.log", create=True)
    file.write_at(0, [b"ab", memoryview(b"cd")])
    file.truncate(3)
    file.sync()
    disk.sync_dir("queues/a")
    assert disk.link("queues/a/1.log", "queues/a/2.log")
    disk.rename("queues/a/2.log", "queues/a/3.log")
    disk.unlink("queues/a/1.log")
    disk.rmtree("queues/a")
    assert tapped.told() == [
        ("MKDIR", b"queues/a"),
        ("OPEN", b"queues/a/1.log"),
        ("WRITE", b"abcd"),
        ("TRUNCATE", b""),
        ("SYNC", [1]),
        ("SYNC", ["queues/a"]),
        ("LINK", b"queues/a/1.log\0queues/a/2.log"),
        ("RENAME", b"queues/a/2.log\0queues/a/3.log"),
        ("UNLINK", b"queues/a/1.log"),
        ("RMTREE", b"queues/a"),
    ]


def test_room_that_is_cut_off_is_nobody_elses_matter() -> None:
    tapped = Tapped()
    file = tapped.disk.open("format", create=True)
    file.write_at(0, [b"abcd"])
    file.sync()
    before = tapped.told()
    file.reserve(4, 1000)
    file.truncate(4)
    file.sync()
    tapped.disk.sync_point([file], [])
    assert tapped.told() == before and tapped.inner.files()["format"] == b"abcd"
    file.truncate(3)
    tapped.disk.sync_point([file], [])
    assert tapped.told()[len(before) :] == [("TRUNCATE", b""), ("SYNC", [1])]


def test_files_of_one_machine_are_not_told_of() -> None:
    tapped = Tapped()
    disk = tapped.disk
    for path in (paths.BOOT, paths.BOOT + ".new", paths.SPARE, paths.FOLLOWS, paths.HISTORY):
        file = disk.open(path, create=True)
        file.write_at(0, [b"x"])
        file.sync()
    disk.rename(paths.BOOT + ".new", paths.BOOT)
    disk.makedirs("transient/a")
    disk.rmtree("transient/a")
    disk.makedirs("backup/b")
    disk.sync_dir("backup")
    assert tapped.told() == []


def test_a_file_that_is_damaged_leaves_the_others_names() -> None:
    tapped = Tapped()
    disk = tapped.disk
    disk.makedirs("queues/a")
    file = disk.open("queues/a/1.log", create=True)
    disk.rename("queues/a/1.log", "queues/a/1.bad")
    file.write_at(0, [b"not for others"])
    assert tapped.told()[2:] == [("RENAME", b"queues/a/1.log\0queues/a/1.bad")]
    assert disk.tree.get("queues/a/1.bad") is None


def test_what_has_failed_is_not_told() -> None:
    tapped = Tapped()
    file = tapped.disk.open("format", create=True)
    tapped.inner.full = True
    with pytest.raises(StoreFull):
        file.write_at(0, [b"x"])
    with pytest.raises(StoreError):
        tapped.disk.rename("no", "yes")
    assert tapped.told() == [("OPEN", b"format")]


def test_a_link_that_the_file_system_refuses_is_no_operation() -> None:
    tapped = Tapped()
    tapped.inner.linking = False
    tapped.disk.open("format", create=True)
    assert not tapped.disk.link("format", "again")
    assert tapped.told() == [("OPEN", b"format")]


def test_a_file_is_the_same_after_it_was_renamed_while_it_was_open() -> None:
    tapped = Tapped()
    disk = tapped.disk
    file = disk.open("definitions.log.new", create=True)
    other = disk.open("definitions.log", create=True)
    disk.rename("definitions.log.new", "definitions.log")
    file.write_at(0, [b"new"])
    other.write_at(0, [b"nobody's"])
    disk.open("definitions.log").write_at(3, [b"er"])
    records = [plain(tapped.ring.at(place)) for place in range(3, tapped.ring.next)]
    assert [(r.kind, r.file, r.payload) for r in records] == [(Kind.WRITE, 1, b"new"), (Kind.WRITE, 1, b"er")]


def test_a_commit_is_one_sync_point_and_its_sync_is_none() -> None:
    leading = Leading()
    leading.declare("q")
    leading.settle_down()
    first = leading.ring.next
    leading.publish("q", b"message")
    leading.turn()
    leading.sync()
    kinds = [plain(leading.ring.at(place)).kind for place in range(first, leading.ring.next)]
    points = kinds.count(Kind.SYNC)
    assert 1 <= points <= leading.store.commits.syncs
    before = leading.ring.next
    leading.store.commits.when_synced(lambda: None)
    leading.sync()
    assert [plain(leading.ring.at(place)).kind for place in range(before, leading.ring.next)].count(Kind.SYNC) <= 1


def test_a_file_from_elsewhere_is_refused() -> None:
    tapped = Tapped()
    tapped.inner.open("stranger", create=True)
    with pytest.raises(StoreError, match="come into the data directory from elsewhere"):
        tapped.disk.open("stranger")


def test_a_broker_without_followers_has_no_tap() -> None:
    from kvitto.base.config import Config
    from kvitto.server.server import Server
    from kvitto.store.commit import nobody
    from kvitto.store.disk import RealDisk

    server = Server(Config())
    assert type(server.store.disk) is RealDisk and server.followers is None and server.store.commits.begun is nobody
