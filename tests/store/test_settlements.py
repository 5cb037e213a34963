"""Settlements on their way to disk and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kvitto.format.settlement import ACKED, IN_DOUBT, REDELIVERED, REJECTED
from kvitto.store.segment import HEADER
from kvitto.store.settlements import Replay, Settlements, block, clear_runs, set_bits
from kvitto.wire.buf import Buf
from tests.store.logs import DIRECTORY, LogHarness
from tests.support.older import without_inventory
from tests.support.simdisk import PowerCut, SimDisk

ACKS = f"{DIRECTORY}/{0:020d}.ack"
SPAN = 60

entries = st.lists(
    st.tuples(st.integers(0, SPAN - 1), st.integers(1, 12), st.sampled_from([ACKED, REJECTED, REDELIVERED])),
    max_size=12,
)


def fill(contents: list[tuple[int, int, int]]) -> tuple[Settlements, set[int], dict[int, int]]:
    """Settlements as a queue makes them: no offset is settled twice. And what they mean."""
    pending, settled, redelivered = Settlements(), set(), {}
    for start, count, outcome in contents:
        offsets = [o for o in range(start, min(start + count, SPAN)) if o not in settled]
        for o in offsets:
            if outcome == REDELIVERED:
                redelivered[o] = start + 2
                pending.add(o, 1, outcome, start + 2)
            else:
                settled.add(o)
                pending.add(o, 1, outcome, 0)
    return pending, settled, redelivered


@given(entries, st.integers(0, SPAN), st.integers(0, SPAN))
def test_entries_are_taken_by_segment(contents: list[tuple[int, int, int]], a: int, b: int) -> None:
    """Clipped to the segment's offsets; the number that is settled is exact."""
    start, end = min(a, b), max(a, b)
    pending, settled, redelivered = fill(contents)
    out = Buf(0)
    assert pending.take(start, end, out) == len([o for o in settled if start <= o < end])
    replay = Replay(start, end - start)
    replay.run(b"".join(bytes(p) for p in block(out, 1, 7, 0)), 0)
    assert {o for o in range(start, end) if replay.bitmap[(o - start) >> 3] >> ((o - start) & 7) & 1} == {
        o for o in settled if start <= o < end
    }
    assert replay.redeliveries == {o: n for o, n in redelivered.items() if start <= o < end}
    assert replay.settled == len([o for o in settled if start <= o < end])


@given(entries, st.integers(0, SPAN))
def test_what_is_never_written_is_cut_off(contents: list[tuple[int, int, int]], end: int) -> None:
    pending, settled, _ = fill(contents)
    pending.cut(end)
    out = Buf(0)
    assert pending.take(0, SPAN, out) == len([o for o in settled if o < end])
    assert pending.highest < max(end, 1)


def test_a_long_run_is_split_into_what_24_bits_hold() -> None:
    pending, out = Settlements(), Buf(0)
    pending.add(5, (1 << 25) + 3, ACKED, 0)
    assert pending.take(0, 1 << 40, out) == (1 << 25) + 3
    assert out.n > 16


@given(st.lists(st.tuples(st.integers(-5, 70), st.integers(0, 30)), max_size=8), st.integers(0, SPAN))
def test_bits_and_runs(ranges: list[tuple[int, int]], span: int) -> None:
    bitmap, model = bytearray((span + 7) // 8), set[int]()
    for start, count in ranges:
        fresh = {o for o in range(start, start + count) if 0 <= o < span} - model
        assert set_bits(bitmap, span, start, count) == len(fresh)
        model |= fresh
    clear = [o for start, count in clear_runs(bitmap, span) for o in range(start, start + count)]
    assert clear == [o for o in range(span) if o not in model]


def harness() -> LogHarness:
    """Ten messages; three blocks of settlements."""
    made = LogHarness()
    made.write(*[f"m{i}".encode() for i in range(10)])
    made.settle(0, 2, mark=5)
    made.settle(4, 3, mark=6)
    made.settle(5, mark=8)
    return made


def test_a_settlement_log_torn_at_any_byte_keeps_its_whole_blocks() -> None:
    """A11: the last ones may come again, no others; nothing is an alarm."""
    made = harness()
    made.settle_down()
    without_inventory(made.disk)
    whole = made.disk.files()[ACKS]
    blocks = [HEADER, HEADER + 40 + 32, HEADER + 40 + 32 + 40 + 32, len(whole)]
    for length in range(len(whole) + 1):
        disk = made.disk.copy()
        disk._names[ACKS].live[:] = whole[:length]
        torn = LogHarness(disk)
        settled = set().union(*[s for s, end in zip(({0, 2}, {3, 4}, {5}), blocks[1:], strict=True) if end <= length])
        assert torn.served() == {o: b for o, b in made.written.items() if o not in settled}
        assert not torn.store.alarms
        torn.settle(9, mark=10)
        torn.kill()
        assert 9 not in torn.served()


def test_a_flipped_bit_in_a_settlement_log_only_brings_messages_back() -> None:
    """D3, A11: with an alarm where a later block says that it had been durable."""
    made = LogHarness()
    made.write(*[f"m{i}".encode() for i in range(10)])
    for i in range(3):
        made.settle(i, mark=6)
        made.settle_down()
    bodies = made.written
    size = len(made.disk.files()[ACKS])
    for position in range(size):
        disk = made.disk.copy()
        disk.flip(ACKS, position, position % 8)
        damaged = LogHarness(disk)
        served = damaged.served()
        assert all(bodies[o] == body for o, body in served.items())
        assert set(range(3, 10)) <= set(served)
        back = set(served) & {0, 1, 2}
        assert len(back) <= 1
        assert not back & {0, 1} or any("settlements are damaged" in alarm for alarm in damaged.store.alarms)


def test_a_settlement_log_with_a_hole_after_a_power_cut_is_torn_and_no_alarm() -> None:
    """Of unsynced blocks the later one may survive alone: that was an alarm at each start from then on."""
    made = harness()
    made.disk._names[ACKS].live[HEADER : HEADER + 40] = bytes(40)
    disk = made.disk.kill()
    disk._boot += 1
    torn = LogHarness(disk)
    assert torn.served() == made.written
    assert not torn.store.alarms
    assert not LogHarness(torn.disk.kill()).store.alarms


def test_delivered_marks_and_counts_survive() -> None:
    """A9: below the mark messages come again, flagged; the number of deliveries is kept."""
    made = LogHarness()
    made.write(*[f"m{i}".encode() for i in range(6)])
    made.settle(0, mark=4)
    made.redeliver(2, 2)
    made.redeliver(2, 3)
    made.redeliver(3, 2)
    made.settle(3)
    for _ in range(2):
        found = made.kill()
        assert found.requeued == [(1, 2)]
        assert found.cursor == 4
        assert found.redeliveries == {2: 3}
        assert found.ready == 4


def test_doubt_is_remembered() -> None:
    """A11: after a power cut all that was there may have been delivered, also for the starts that follow."""
    made = LogHarness()
    made.write(b"a", b"b")
    made.settle_down()
    assert made.cut(Random(1)).flagged_below == 2
    made.write(b"c")
    made.settle_down()
    assert made.kill().flagged_below == 2
    made.settle_down()
    made.store.shut()
    assert made.kill().flagged_below == 2


def test_in_doubt_settles_nothing() -> None:
    replay = Replay(0, 8)
    pending = Settlements()
    pending.add(5, 1, IN_DOUBT, 0)
    replay.run(b"".join(bytes(p) for p in block(pending.entries, 1, 0, 0)), 0)
    assert (replay.settled, replay.flagged_below, replay.highest) == (0, 6, 5)


def test_a_power_cut_in_the_start_after_one_that_was_killed_is_no_damage() -> None:
    """D3: a killed start leaves blocks that no sync has covered; the next one must not write behind them that they are durable."""
    made = LogHarness()
    made.write(b"a", b"b")
    made.settle(0)
    made.settle_down()
    found = made.disk.crash(Random(1))
    for killed in starts(found):
        for cut in starts(killed.kill()):
            inode = cut._names[ACKS]
            assert inode is not None
            for seed in range(40 if len(inode.pending) > 1 else 1):
                last = LogHarness(cut.survivor(Random(seed)))
                assert last.served() == {1: b"b"} and not last.store.alarms


def starts(disk: SimDisk) -> Iterator[SimDisk]:
    """What starts from this disk leave behind if each gets one operation further."""
    whole = disk.copy()
    LogHarness(whole)
    for cut_at in range(1, whole.operations + 1):
        cut = disk.copy()
        cut.cut_at = cut_at
        with suppress(PowerCut):
            LogHarness(cut)
        yield cut
