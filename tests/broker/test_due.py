"""The index by due time, and the set of messages that wait, against a sorted list."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitto.base.errors import StoreError, StoreFull
from kvitto.broker.queues import due
from kvitto.broker.queues.delays import Delays
from kvitto.broker.queues.due import DueIndex
from kvitto.store.scratch import Scratch
from tests.support.simdisk import SimDisk


class Memory:
    """Files that are bytes in memory, and may be full."""

    def __init__(self) -> None:
        self.files: list[Memory.File] = []
        self.full = False

    class File:
        def __init__(self, place: Memory) -> None:
            self.place, self.data, self.removed = place, b"", False

        def append(self, data: bytes) -> int:
            if self.place.full:
                raise StoreFull("full")
            at = len(self.data)
            self.data += data
            return at

        def read_at(self, pos: int, n: int) -> bytes:
            assert not self.removed
            return self.data[pos : pos + n]

        def remove(self) -> None:
            assert not self.removed
            self.removed = True

    def make(self) -> Memory.File:
        if self.full:
            raise StoreFull("full")
        self.files.append(self.File(self))
        return self.files[-1]

    @property
    def left(self) -> int:
        return sum(not file.removed for file in self.files)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few entries, so that a few hundred messages make many of them."""
    for name, value in (
        ("MEMORY_MAX", 12),
        ("SPILLED", 8),
        ("SPILLED_SOON", 2),
        ("READ_ENTRIES", 3),
        ("FILE_BYTES", 500),
    ):
        monkeypatch.setattr(due, name, value)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 50)),
        st.tuples(st.just("take"), st.integers(0, 60)),
        st.tuples(st.just("remove"), st.integers(0, 400)),
        st.tuples(st.just("full"), st.booleans()),
        st.tuples(st.just("all"), st.none()),
        st.tuples(st.just("clear"), st.just(None)),
    ),
    max_size=400,
)


@settings(deadline=None)
@given(STEPS)
def test_messages_come_back_when_they_are_due_and_in_order(steps: list[tuple[str, Any]]) -> None:
    files = Memory()
    delays = Delays(files)
    model: dict[int, int] = {}
    offset, cleared = 0, 0
    for what, value in steps:
        if what == "add":
            delays.add(value, offset, offset + 1)
            model[offset] = value
            offset += 1
        elif what == "take":
            expected = sorted((at, o) for o, at in model.items() if at <= value)
            got = []
            while found := delays.take(value, 3):
                got += found
            assert got == [(o, o + 1) for _, o in expected]
            for _, o in expected:
                del model[o]
        elif what == "remove":
            assert delays.remove(value, value + 1) == (value in model)
            model.pop(value, None)
        elif what == "full":
            files.full = value
        elif what == "all":
            assert list(delays.in_order()) == sorted((at, o) for o, at in model.items())
        elif cleared < 2:
            cleared += 1
            offsets, free = delays.take_all()
            assert sorted(o for start, n in offsets for o in range(start, start + n)) == sorted(model)
            list(free)
            model.clear()
        assert len(delays) == len(model) and delays.bytes == sum(o + 1 for o in model)
        first = delays.next_ms
        assert (first is None) == (not model) and (first is None or first <= min(model.values()))
    delays.take_all()
    assert files.left == 0, "each file is removed with its last run"


def test_a_file_is_removed_when_its_runs_have_been_taken() -> None:
    files, index = Memory(), None
    index = DueIndex(files)
    times = list(range(500))
    random.Random(1).shuffle(times)
    for offset, at in enumerate(times):
        index.add(at, offset, 0)
    assert files.left > 3
    taken = []
    while (packed := index.take(1000)) is not None:
        taken.append(due.due_of(packed))
    assert taken == list(range(500)) and files.left <= 1 and index.next_ms is None


def test_a_reader_of_the_order_may_pause_while_messages_are_taken() -> None:
    index = DueIndex(Memory())
    for offset in range(200):
        index.add(offset, offset, 0)
    reader = index.in_order()
    seen = [due.due_of(next(reader)) for _ in range(20)]
    for _ in range(100):
        index.take(1000)
    seen += [due.due_of(packed) for packed in reader]
    assert seen == sorted(set(seen)) and set(range(100, 200)) <= set(seen)


def test_scratch_files_of_a_queue_are_gone_with_it() -> None:
    disk = SimDisk()
    index = DueIndex(Scratch(disk, "0" * 32))
    for offset in range(100):
        index.add(offset, offset, 0)
    assert disk.listdir("transient/" + "0" * 32 + ".scratch")
    list(index.clear())
    assert not disk.listdir("transient/" + "0" * 32 + ".scratch")


@pytest.mark.parametrize("error", [StoreFull("full"), StoreError("too many open files")])
def test_an_index_that_cannot_be_written_stays_in_memory_and_leaves_no_files(
    error: StoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try left an empty file open, and an error that was not about room took the queue out of service."""
    files, broken = Memory(), True
    append = Memory.File.append

    def failing(file: Memory.File, data: bytes) -> int:
        if broken:
            raise error
        return append(file, data)

    monkeypatch.setattr(Memory.File, "append", failing)
    index = DueIndex(files)
    for i in range(500):
        index.add(1000 - i, i, 0)
        assert files.left == 0
    broken = False
    before = len(index._heap)
    for i in range(500, 1000):
        index.add(1000 - i, i, 0)
        assert len(index._heap) <= before + 12
        before = len(index._heap)
    assert before <= 12 and files.left
    assert [due.offset_of(packed) for packed in iter(lambda: index.take(2000), None)] == list(range(999, -1, -1))


def test_removed_messages_leave_nothing_behind_when_none_waits_any_more() -> None:
    """Whoever delays messages for years and cancels them filled the disk with entries, 24 bytes for each, until the next start."""
    files = Memory()
    delays = Delays(files)
    for offset in range(100):
        delays.add(10_000, offset, 1)
    assert files.left
    for offset in range(100):
        assert delays.remove(offset, 1)
    assert not files.left and not delays.index._heap and delays.next_ms is None
    delays.add(5, 100, 1)
    assert delays.take(5, 10) == [(100, 1)]
