"""The definitions log: what was put comes back, a torn tail is cut, damage is refused."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitto.base.errors import StoreError
from kvitto.store import definitions, line, paths
from kvitto.store.definitions import Definitions
from kvitto.store.disk import RealDisk
from kvitto.store.line import Key
from tests.support.simdisk import PowerCut, SimDisk

Change = tuple[str, str, Key, Any]
State = dict[tuple[str, Key], Any]

KEYS = st.tuples(st.sampled_from(["/", "v"]), st.sampled_from(["a", "\n", "é\udc80", ""]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["put", "put", "delete", "compact"]), st.sampled_from(["queue", "user"]), KEYS, JSON),
    max_size=12,
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RealDisk]:
    disk = RealDisk(str(tmp_path))
    yield disk
    disk.close()  # each load that is refused leaves a file open


def opened(disk: RealDisk) -> Definitions:
    definitions = Definitions(disk)
    definitions.load()
    return definitions


def raw(disk: RealDisk) -> bytes:
    return disk.read_file(paths.DEFINITIONS)


def overwrite(disk: RealDisk, data: bytes) -> None:
    Path(disk.root, paths.DEFINITIONS).write_bytes(data)


def apply(definitions: Definitions, change: Change) -> None:
    op, kind, key, value = change
    if op == "put":
        definitions.put(kind, key, value)
    elif op == "delete":
        definitions.delete(kind, key)
    else:
        definitions.compact()


def after(state: State, change: Change) -> State:
    op, kind, key, value = change
    others = {entry: v for entry, v in state.items() if op != "delete" or entry != (kind, key)}
    return {**others, (kind, key): value} if op == "put" else others


@settings(deadline=None, max_examples=60)
@given(changes=CHANGES)
def test_d2_what_was_defined_comes_back(tmp_path_factory: pytest.TempPathFactory, changes: list[Change]) -> None:
    disk = RealDisk(str(tmp_path_factory.mktemp("data")))
    definitions = opened(disk)
    model: State = {}
    for change in changes:
        apply(definitions, change)
        model = after(model, change)
    definitions.close()
    for _ in range(2):
        again = Definitions(disk)
        assert again.load() == [(kind, key, value) for (kind, key), value in model.items()]
        again.compact()
        again.close()


def test_a_line_is_as_documented(disk: RealDisk) -> None:
    definitions = opened(disk)
    definitions.put("queue", ("/", "a\nb"), {"durable": True})
    definitions.delete("queue", ("/", "a\nb"))
    definitions.delete("queue", ("/", "never there"))
    first, second = raw(disk).splitlines()
    assert first[16:] == (
        b' {"durable":           0, "op": "put", "kind": "queue", "key": ["/", "a\\nb"], "value": {"durable": true}}'
    )
    assert second[16:] == b' {"durable":           0, "op": "delete", "kind": "queue", "key": ["/", "a\\nb"]}'
    definitions.close()


def test_dirty_until_the_file_is_synced(disk: RealDisk) -> None:
    definitions = Definitions(disk)
    seen = [definitions.dirty]
    definitions.load()
    seen.append(definitions.dirty)
    definitions.put("vhost", ("/",), {})
    seen.append(definitions.dirty)
    definitions.sync()
    seen.append(definitions.dirty)
    definitions.put("vhost", ("v",), {})
    definitions.compact()
    seen.append(definitions.dirty)
    assert seen == [False, False, True, False, False]
    definitions.close()


def test_a_compact_log_has_one_line_per_entry(disk: RealDisk) -> None:
    definitions = opened(disk)
    for i in range(10):
        definitions.put("queue", ("/", "a"), i)
        definitions.put("queue", ("/", "b"), i)
    definitions.delete("queue", ("/", "b"))
    Path(disk.root, paths.DEFINITIONS + ".new").write_bytes(b"left by a crash " * 100)
    definitions.compact()
    assert raw(disk).count(b"\n") == 1
    assert disk.listdir("") == [paths.DEFINITIONS]
    definitions.close()


def test_a_start_rewrites_a_log_if_that_brings_something(disk: RealDisk) -> None:
    definitions = opened(disk)
    for name in "ab":
        definitions.put("queue", ("/", name), 1)
    assert definitions.stale, "it is not durable"
    definitions.sync()
    assert not definitions.stale
    for count in range(3):
        definitions.put("queue", ("/", "a"), count)
    definitions.sync()
    assert definitions.stale, "most of it is obsolete"
    definitions.compact()
    assert not definitions.stale
    Path(disk.root, paths.DEFINITIONS + ".new").write_bytes(b"left by a crash")
    assert definitions.stale
    definitions.close()


def three_synced_two_not(disk: RealDisk) -> tuple[bytes, int]:
    """(the log, how much of it is known in it to be durable)"""
    definitions = opened(disk)
    for name in "ab":
        definitions.put("queue", ("/", name), 1)
    definitions.sync()
    durable = len(raw(disk))
    for name in "cde":
        definitions.put("queue", ("/", name), 1)
    definitions.close()
    return raw(disk), durable


def test_d3_every_torn_tail_is_cut(disk: RealDisk) -> None:
    data, durable = three_synced_two_not(disk)
    for end in range(durable, len(data)):
        for tail in (b"", bytes(40), b"x\n\n{}\n"):
            overwrite(disk, data[:end] + tail)
            definitions = Definitions(disk)
            whole = data[:end].rfind(b"\n") + 1
            assert len(definitions.load()) == data[:end].count(b"\n")
            assert raw(disk) == data[:whole]
            definitions.close()


def test_d3_unsynced_lines_behind_a_lost_one_are_a_torn_tail(disk: RealDisk) -> None:
    data, durable = three_synced_two_not(disk)
    lost = data.find(b"\n", durable) + 1
    overwrite(disk, data[:durable] + bytes(lost - durable) + data[lost:])
    definitions = Definitions(disk)
    assert [key for _, key, _ in definitions.load()] == [("/", "a"), ("/", "b")]
    definitions.put("queue", ("/", "f"), 1)
    definitions.close()
    assert [key for _, key, _ in Definitions(disk).load()] == [("/", "a"), ("/", "b"), ("/", "f")]


def test_d3_damage_in_what_was_synced_is_refused(disk: RealDisk) -> None:
    data, durable = three_synced_two_not(disk)
    for position in range(durable):
        overwrite(disk, data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        with pytest.raises(
            StoreError, match=r"definitions.log is damaged at byte \d+, although .* backup, or have `kvitto salvage`"
        ):
            Definitions(disk).load()


def test_d3_damage_in_a_compact_log_is_refused(disk: RealDisk) -> None:
    three_synced_two_not(disk)
    definitions = opened(disk)
    definitions.compact()
    definitions.close()
    data = raw(disk)
    damaged = [data[:p] + bytes([data[p] ^ 1]) + data[p + 1 :] for p in range(0, len(data), 7)]
    for case in [*damaged, data[:-1], data[: data.rfind(b"\n", 0, -1) + 1]]:
        overwrite(disk, case)
        with pytest.raises(StoreError, match="is damaged at byte"):
            Definitions(disk).load()
    overwrite(disk, data)
    Definitions(disk).load()


def test_d5_a_line_of_a_later_version_is_refused(disk: RealDisk) -> None:
    for text in (b'{"durable": 0, "op": "rename", "kind": "queue", "key": []}', b"[1]", b"no json"):
        overwrite(disk, xxhash.xxh3_64_hexdigest(text).encode() + b" " + text + b"\n")
        with pytest.raises(StoreError, match="does not understand"):
            Definitions(disk).load()


def test_a_failed_write_leaves_no_trace(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    definitions = opened(disk)
    definitions.put("queue", ("/", "a"), 1)
    real = definitions.file.write_at

    def half(pos: int, buffers: list[bytes]) -> int:
        real(pos, [b"".join(buffers)[:-9]])
        raise StoreError("no room")

    monkeypatch.setattr(definitions.file, "write_at", half)
    with pytest.raises(StoreError):
        definitions.put("queue", ("/", "b"), "x" * 500)
    with pytest.raises(StoreError):
        definitions.delete("queue", ("/", "a"))
    monkeypatch.undo()
    definitions.put("queue", ("/", "c"), 2)
    definitions.close()
    assert Definitions(disk).load() == [("queue", ("/", "a"), 1), ("queue", ("/", "c"), 2)]


@settings(deadline=None, max_examples=100)
@given(changes=CHANGES, syncs=st.sets(st.integers(0, 12)), seed=st.integers(0, 1 << 30), hostile=st.booleans())
def test_p2_a_power_cut_at_any_operation_leaves_what_was_synced(
    changes: list[Change], syncs: set[int], seed: int, hostile: bool
) -> None:
    """What comes back is the state at some point between the last sync and the power cut."""
    rng = Random(seed)
    disk = SimDisk()
    disk.cut_at = rng.randint(1, 40)
    legal: list[State] = [{}]
    try:
        definitions = Definitions(disk)
        definitions.load()
        for i, change in enumerate(changes):
            legal.append(after(legal[-1], change))
            apply(definitions, change)
            if i in syncs:
                definitions.sync()
            if not definitions.dirty:
                legal = legal[-1:]
    except PowerCut:
        pass
    for _ in range(3):  # and again: what a recovery has shown once is not lost any more
        disk = disk.crash(rng, hostile=hostile)
        definitions = Definitions(disk)
        found = {(kind, key): value for kind, key, value in definitions.load()}
        assert found in legal
        legal = [found]


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=60), st.integers(0, 40))
def test_a_compaction_encodes_few_lines_in_a_step_however_many_changes_come(came: list[int], entries: int) -> None:
    """A step encoded twice as many as had come since the one before: 50 clients that bind and unbind made one of 33 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definitions, "COMPACT_LINES", 3)
        patch.setattr(definitions, "WRITTEN_LINES", 5)
        patch.setattr(definitions, "WRITTEN_BYTES", 300)
        disk = SimDisk()
        log = Definitions(disk)
        log.load()
        for i in range(entries):
            log.put("user", (f"old{i}",), {})
        compaction = log.begin_compaction()
        encoded, encode = [0], line.encode
        patch.setattr(line, "encode", lambda *args: encoded.append(encoded.pop() + 1) or encode(*args))
        for step in range(10_000):
            for i in range(came[step] if step < len(came) else 1):
                log.put("user", (f"new{i % 7}",), {"step": step, "i": i})
                log.delete("user", (f"old{i * step % 50}",))
            before = encoded[0]
            compaction.step()
            assert encoded[0] - before <= 3
            if compaction.complete:
                break
        assert compaction.complete
        log.put("user", ("last",), {})
        log.replace(compaction.file.end)
        expected = log._list()
        log.close()
        again = Definitions(disk)
        assert sorted(again.load(in_order=True)) == sorted(expected)
