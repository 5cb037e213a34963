"""A queue's log: segments roll, fill and go; offsets are never used twice (P4, D3)."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from kvitto.base.errors import StoreFull
from kvitto.format.settlement import ACKED
from kvitto.store import log as logs
from kvitto.store import reading
from kvitto.store.reading import Window
from kvitto.store.settlements import Settlements
from tests.store.logs import DIRECTORY, LogHarness
from tests.support.older import without_inventory
from tests.support.simdisk import PowerCut


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SEGMENT_BYTES", 700)
    monkeypatch.setattr(logs, "ROLL_WHEN_SETTLED_BYTES", 300)


def fill(harness: LogHarness, count: int, size: int = 100) -> None:
    for _ in range(count):
        harness.write(f"{harness.log.next}".ljust(size, ".").encode())


def test_segments_roll_and_everything_is_found_by_its_offset() -> None:
    """P4."""
    harness = LogHarness()
    fill(harness, 20)
    harness.settle_down()
    assert len(harness.names(".log")) > 3
    assert {o: harness.body(o) for o in range(20)} == harness.written
    harness.kill()
    assert harness.served() == harness.written


def test_a_settled_segment_goes_and_its_settlement_log_after_it() -> None:
    harness = LogHarness()
    fill(harness, 12)
    harness.settle_down()
    first = harness.names(".log")[0]
    harness.settle(*range(harness.log.segments[1].base))
    harness.settle_down()
    assert first not in harness.names(".log")
    assert not harness.names(".ack") or harness.names(".ack")[0] != first.replace(".log", ".ack")
    harness.kill()
    assert harness.served() == harness.expected


def test_a_segment_that_goes_while_it_is_dirty_is_not_synced_any_more() -> None:
    """A sync of its closed file ended the process."""
    harness = LogHarness()
    fill(harness, 6)
    harness.settle(*range(harness.log.next))
    harness.settle_down()
    assert harness.log.segments[-1].base == harness.log.next


def test_offsets_are_not_used_again_after_the_last_segment_has_gone() -> None:
    """An old journal record, or a reader's checkpoint, would have meant the new messages."""
    harness = LogHarness()
    fill(harness, 6)
    harness.settle(*range(harness.log.next))
    for _ in range(3):
        harness.settle_down()
        harness.kill()
        assert harness.log.next == 6
    assert len(harness.names(".log")) == 1


def test_offsets_are_not_used_again_wherever_the_power_goes() -> None:
    for seed in range(60):
        harness = LogHarness()
        fill(harness, 6)
        harness.sync()
        harness.settle(*range(harness.log.next))
        for _ in range(seed % 5):
            if harness.store.commits.dirty:
                harness.sync()
        harness.cut(Random(seed), hostile=True)
        assert harness.log.next == 6
        assert not harness.store.alarms


def test_an_orphaned_settlement_log_counts_and_goes() -> None:
    """A segment's name may be gone and its settlement log's not."""
    harness = LogHarness()
    fill(harness, 3)
    harness.settle(0, mark=2)
    harness.settle_down()
    disk = harness.disk.kill()
    without_inventory(disk)
    disk.unlink(f"{DIRECTORY}/{0:020d}.log")
    left = LogHarness(disk)
    assert left.log.next == 2
    assert left.names(".ack") == []
    left.write(b"new")
    assert left.kill() and left.served() == {2: b"new"}


def test_the_delivered_mark_outlives_the_settlement_log_that_had_it() -> None:
    """A9: messages that were delivered from a later segment came back unflagged when the earlier one went."""
    harness = LogHarness()
    fill(harness, 7)
    first_end = harness.log.segments[1].base
    harness.settle(0, mark=first_end + 2)
    harness.settle(*range(1, first_end), mark=first_end + 2)
    harness.settle_down()
    assert harness.log.segments[0].base == first_end
    found = harness.kill()
    assert found.requeued == [(first_end, 2)]
    assert found.cursor == first_end + 2


def test_a_settlement_is_counted_once_when_a_full_disk_ends_its_turn_half_way() -> None:
    """Counted twice, a segment went with unsettled messages in it."""
    harness = LogHarness()
    fill(harness, 16)
    harness.settle_down()
    bases = [part.base for part in harness.log.segments]
    for at in range(8):
        disk = harness.disk.copy()
        other = LogHarness(disk)
        other.written = harness.written
        some = [base for base in bases if base < 16]
        disk.fail_at[disk.operations + 1 + at] = StoreFull("no room")
        pending = Settlements()
        for base in some:
            pending.add(base, 1, ACKED, 0)
        for _ in range(2):
            try:
                other.log.settle(pending, 16)
            except StoreFull:
                continue
            break
        other.settled = set(some)
        assert [part.settled for part in other.log.segments if part.count] == [1] * len(some)
        disk.fail_at.clear()
        other.settle_down()
        other.kill()
        assert other.served() == other.expected
        assert not other.store.alarms


def test_a_settlement_log_whose_header_had_no_room_gets_it_later() -> None:
    """Without it the next start wrote one over the first block: what was acked and synced came back."""
    harness = LogHarness()
    fill(harness, 2)
    harness.settle_down()
    for at in (1, 2, 3):
        disk = harness.disk.copy()
        other = LogHarness(disk)
        other.written = harness.written
        disk.fail_at[disk.operations + at] = StoreFull("no room")
        for _ in range(2):
            try:
                other.settle(0)
            except StoreFull:
                continue
            break
        other.settle_down()
        other.kill()
        assert 0 not in other.served()


def test_a_footer_that_finds_no_room_does_not_end_the_sync() -> None:
    """D4: StoreFull came out of the end of the sync, and nothing it covered was confirmed."""
    harness = LogHarness()
    fill(harness, 5)
    told: list[bool] = []
    harness.store.commits.when_announced(lambda: told.append(True))
    job = harness.store.begin_sync(everything=True)
    job.run()
    harness.disk.full = True
    harness.store.end_sync(job)
    harness.sync()  # of the inventory
    assert told == [True]
    harness.disk.full = False
    harness.kill()
    assert harness.served() == harness.written


def test_a_killed_process_has_synced_neither_bytes_nor_names() -> None:
    """P2: what the next one finds, and adds to, must survive a power cut."""
    for seed in range(40):
        harness = LogHarness()
        fill(harness, 4)
        harness.store.disk.sync_dir("queues")
        harness.kill()
        fill(harness, 1)
        harness.sync()
        harness.cut(Random(seed), hostile=True)
        assert harness.served() == harness.written
        assert not harness.store.alarms


def test_a_segment_is_not_left_while_a_journaled_batch_in_it_is_not_durable() -> None:
    """T4: a later segment would have said that the record had been applied, and the batch was lost."""
    harness = LogHarness()
    fill(harness, 2)
    harness.write(b"from the journal", journal=1)
    fill(harness, 6)
    assert len(harness.log.segments) == 1
    harness.sync()
    fill(harness, 1)
    assert len(harness.log.segments) == 2


def test_damage_is_read_around_from_either_side() -> None:
    """D3: the messages before and behind a damaged batch are found by their offsets, whichever is asked for first."""
    harness = LogHarness()
    harness.write(b"a", b"b")
    start = harness.log.segments[0].size
    harness.write(b"c", b"d")
    harness.write(b"e", b"f")
    harness.settle_down()
    for position in range(start, start + 64):
        for order in ((0, 2, 4), (4, 2, 0), (3, 5, 1)):
            disk = harness.disk.copy()
            disk.flip(f"{DIRECTORY}/{0:020d}.log", position, 1)
            bodies = [harness.written[o] if o not in (2, 3) else None for o in order]
            other = LogHarness(disk)
            assert [other.body(o) for o in order] == bodies, (position, order)
            assert other.store.alarms


def test_what_nobody_has_checked_leads_nowhere_outside_of_a_large_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: sizes and priorities of a large batch are read unchecked; a damaged index had memory read that is not the batch's."""
    monkeypatch.setattr(reading, "STREAMED_BYTES", 100)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 90)
    harness = LogHarness()
    harness.write(b"a")
    start = harness.log.segments[0].size
    harness.write(*[b"%d" % n * 30 for n in range(1, 7)])
    harness.write(b"h")
    harness.settle_down()
    for position in range(start, start + 64 + 6 * 24):
        for bit in range(8):
            other, window = LogHarness(harness.disk.copy()), Window(outline=True)
            other.disk.flip(f"{DIRECTORY}/{0:020d}.log", position, bit)
            for offset in (1, 3, 6):
                found = other.log.reader.load(window, offset)
                if not window.holds(offset):
                    assert other.store.alarms, (position, bit, offset)
                elif found:
                    size = window.batch.body_bytes(0, window.batch.count)
                    assert size == 30 * window.batch.count or size <= window.chunk.n, (position, bit, offset)
            assert other.body(0) == b"a" and other.body(7) == b"h"


def test_a_segment_that_is_cut_while_it_is_in_use_is_read_up_to_the_cut() -> None:
    """D3: the read asked for the rest of the batch again and again, and the broker did nothing else any more."""
    harness = LogHarness()
    for name in (b"a", b"b", b"c"):
        harness.write(name * 100)
    harness.settle_down()
    end = harness.log.segments[0].size
    for cut in range(1, 300, 7):
        other = LogHarness(harness.disk.copy())
        assert other.body(0) == b"a" * 100
        other.disk.open(f"{DIRECTORY}/{0:020d}.log").truncate(end - cut)
        bodies = [other.body(offset) for offset in range(3)]
        assert bodies[0] == b"a" * 100 and bodies[2] is None
        assert other.store.alarms


def test_a_window_holds_nothing_after_a_read_that_found_damage() -> None:
    """D3: it went on to say that it held the batch before, and gave bytes of the damaged one as that one's bodies."""
    harness = LogHarness()
    fill(harness, 7)
    harness.settle_down()
    last = harness.log.segments[-1]
    harness.disk.flip(f"{DIRECTORY}/{last.base:020d}.log", last.size - 1)
    window = Window()
    assert harness.log.reader.load(window, 0) and window.batch.first == 0
    assert not harness.log.reader.load(window, 6)
    assert window.batch.count == 0
    assert harness.log.reader.load(window, 0) and window.batch.message(0)[2] == harness.written[0]


def test_nobody_is_told_of_offsets_that_a_start_would_use_again() -> None:
    """P2: a reader by range settled what it had never seen: what was skipped when it was told the end had left nothing on the disk."""
    for end in ("again", "cut"):
        harness = LogHarness()
        told = []
        for step in range(6):
            if step in (1, 4):
                harness.write(b"x" * 200, b"y")
            else:
                harness.log.skip(harness.log.next, 5)
            told.append(harness.log.announced_end)
            if step % 2:
                harness.sync()
                told.append(harness.log.announced_end)
        harness.settle_down()
        told.append(harness.log.announced_end)
        assert told == sorted(told) and told[0] == 0
        assert told[-1] < harness.log.next
        if end == "again":
            harness.kill()
        else:
            harness.cut(Random(1), hostile=True)
        assert harness.log.next >= harness.log.announced_end >= told[-1]


def test_what_only_an_orphaned_settlement_log_says_of_offsets_is_written_elsewhere_before_it_goes() -> None:
    """P2: the second start after that one used the offsets again."""
    for cut_at in range(12):
        harness = LogHarness()
        fill(harness, 3)
        harness.settle(0, mark=2)
        harness.settle_down()
        disk = harness.disk.copy().kill()
        without_inventory(disk)
        disk.unlink(f"{DIRECTORY}/{0:020d}.log")
        disk.sync_dir(DIRECTORY)
        disk.cut_at = disk.operations + 1 + cut_at
        with suppress(PowerCut):
            LogHarness(disk).settle_down()
        left = LogHarness(disk.crash(Random(cut_at), hostile=True))
        assert left.log.next == left.log.announced_end == 2


def test_a_start_takes_no_memory_for_what_was_never_written() -> None:
    """Messages that are consumed at once are in no file (adr/0004); a start filled a bit for each that had passed in between."""
    harness = LogHarness()
    harness.write(b"a", b"b", b"c")
    for n in range(1, 4):
        harness.log.skip(harness.log.next, 1 << 37)
        harness.write(b"%d" % n, b"x", b"y")
    first = 3 + (1 << 37)
    harness.settle(1, first + 1, mark=first + 3)
    harness.redeliver(first, 2)
    harness.settle_down()
    found = harness.kill()
    assert harness.served() == harness.expected
    assert found.ready == len(harness.expected) == 10
    assert found.redeliveries == {first: 2}
    assert harness.log.segments[0].settled == 3 * (1 << 37) + 2
