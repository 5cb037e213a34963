"""One segment file: torn tails, bit flips, footers (D3)."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
import xxhash

from kvitto.format.layouts import FOOTER_MAGIC
from kvitto.store import log as logs
from kvitto.store import segment as segments
from kvitto.store.batch import verify
from kvitto.store.repair.salvage import Salvage
from kvitto.store.repair.survey import Survey
from kvitto.store.segment import HEADER
from tests.store.logs import DIRECTORY, LogHarness, forged
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness, Taker
from tests.support.older import replace, without_inventory
from tests.support.simdisk import PowerCut, SimDisk

SEGMENT = f"{DIRECTORY}/{0:020d}.log"


def shelf_of_three() -> tuple[LogHarness, int]:
    """Two synced batches and a third that is not; and where that begins."""
    harness = LogHarness()
    harness.write(b"one", b"two")
    harness.write(b"three")
    harness.settle_down()
    start = harness.log.segments[0].size
    harness.write(b"four" * 10, b"five", b"six")
    return harness, start


def test_a_tail_torn_at_any_byte_is_cut_back_to_the_last_whole_batch() -> None:
    """D3: 100 % of what came before the torn batch is there, nothing of the torn one, and no alarm."""
    harness, start = shelf_of_three()
    whole = harness.disk.files()[SEGMENT]
    for length in range(start, len(whole) + 1):
        for rest in (b"", bytes(len(whole) - length)):
            disk = harness.disk.copy()
            disk._names[SEGMENT].live[:] = whole[:length] + rest
            torn = LogHarness(disk)
            lost = set() if length == len(whole) else {3, 4, 5}
            assert torn.served() == {o: b for o, b in harness.written.items() if o not in lost}
            assert not torn.store.alarms
            torn.write(b"after")
            assert torn.kill() and torn.body(torn.log.next - 1) == b"after"


def test_a_flipped_bit_in_a_sealed_segment_is_never_a_wrong_body() -> None:
    """D3: at every byte: what is served is right; what is missing was in the damaged batch, an alarm and a copy tell of it."""
    harness = sealed()
    bodies = dict(harness.written)
    size = len(harness.disk.files()[SEGMENT])
    for position in range(size):
        disk = harness.disk.copy()
        disk.flip(SEGMENT, position, position % 8)
        damaged = LogHarness(disk)
        served = damaged.served()
        assert all(bodies[o] == body for o, body in served.items()), position
        missing = set(bodies) - set(served)
        assert len(missing) <= 2, f"more than one batch is gone: {position}"
        if missing:
            assert any("cannot be read" in alarm for alarm in damaged.store.alarms)
            assert damaged.names(".bad") == [f"{0:020d}.bad"]
            assert len(damaged.disk.read_file(f"{DIRECTORY}/{0:020d}.bad")) >= size - 200


def sealed() -> LogHarness:
    """Batches of two, a gap of two never-written offsets, and a second segment behind it all."""
    harness = LogHarness()
    for i in range(3):
        harness.write(f"a{i}".encode(), f"b{i}".encode())
    harness.log.skip(harness.log.next, 2)
    for i in range(3, 6):
        harness.write(f"a{i}".encode(), f"b{i}".encode())
    part = harness.log.segments[0]
    harness.log.fill(part)
    harness.write(b"next")
    harness.settle_down()
    assert part.sealed and FOOTER_MAGIC in harness.disk.files()[SEGMENT]
    return harness


def test_damage_in_the_middle_of_an_open_segment_is_quarantined_and_the_rest_served() -> None:
    """D3: the batches behind the hole were lost when it was taken for offsets that were never written."""
    harness = LogHarness()
    starts = []
    for i in range(4):
        starts.append(harness.log.segments[0].size if harness.log.segments else HEADER)
        harness.write(f"a{i}".encode(), f"b{i}".encode())
        harness.settle_down()
    for position in range(starts[1], starts[2]):
        disk = harness.disk.copy()
        disk.flip(SEGMENT, position)
        damaged = LogHarness(disk)
        assert damaged.found.ready == 8, "what is lost is found out when it is read"
        assert damaged.served() == {o: b for o, b in harness.written.items() if o not in (2, 3)}
        assert damaged.log.reader.lost[0] == (2, 2)
        assert damaged.names(".bad")
        damaged.write(b"more")
        assert damaged.kill() and damaged.body(8) == b"more"


def test_offsets_that_were_never_written_are_gaps_after_a_start() -> None:
    """A batch that is settled before it is written leaves a gap, which is neither served nor an alarm."""
    harness = sealed()
    for _ in range(2):
        harness.kill()
        assert harness.served() == harness.expected
        assert harness.found.ready == len(harness.expected)
        assert not harness.store.alarms


def test_a_reader_by_offset_is_not_held_up_by_a_gap_between_segments() -> None:
    """`synced_end` stayed for ever at the end of a segment whose last offsets were never written."""
    harness = LogHarness()
    harness.write(b"x")
    harness.settle_down()
    harness.log.fill(harness.log.segments[0])
    harness.settle_down()
    harness.log.skip(harness.log.next, 3)
    harness.write(b"y")
    assert harness.log.announced_end < harness.log.next
    harness.settle_down()
    assert harness.log.announced_end == harness.log.next
    harness.kill()
    assert harness.log.announced_end == harness.log.next


def test_a_footer_is_written_only_over_synced_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """formats.md: a footer means that everything before it is durable; so whatever a power cut leaves, a footer does not lie."""
    monkeypatch.setattr(logs, "SEGMENT_BYTES", 600)
    for cut_at in range(1, 60):
        for seed in range(6):
            disk = SimDisk(reserving=False)
            harness = LogHarness(disk)
            disk.cut_at = disk.operations + cut_at
            durable: set[int] = set()
            with suppress(PowerCut):
                for i in range(12):
                    harness.write(f"{i}".encode() * 40)
                    if i % 3 == 2:
                        harness.sync()
                        durable = set(harness.written)
            bodies = harness.written
            harness.cut(Random(seed), hostile=True)
            served = harness.served()
            assert durable <= set(served)
            assert all(bodies.get(o, b) == b for o, b in served.items())
            assert not harness.store.alarms


def test_a_body_that_ends_like_a_footer_is_a_body() -> None:
    """W8: a publisher who knew the position could make a start believe in a footer, and lose or invent messages."""
    harness = LogHarness()
    harness.write(b"first")
    position = harness.log.segments[0].size + 64 + 24 + 3 + 2
    footer = FOOTER_MAGIC + (72).to_bytes(4, "little") + bytes(4)
    footer += b"".join(value.to_bytes(8, "little") for value in (0, 10, 0, 0, 0))
    footer += xxhash.xxh3_64_intdigest(footer).to_bytes(8, "little") + position.to_bytes(8, "little")
    harness.write(footer)
    harness.settle_down()
    harness.kill()
    assert harness.served() == harness.written
    assert harness.log.next == 2


@pytest.mark.parametrize("first", [1, 1 << 40, (1 << 64) - 2])
@pytest.mark.parametrize("salt", [0, 12345])
def test_a_body_that_is_a_batch_is_a_body(first: int, salt: int) -> None:
    """P2, D3, W8: whatever tears or damages the batch around it, a start served what the body held, or never ended."""
    fake = forged(first, b"forged", durable=1 << 60, salt=salt) + b"z" * 100
    harness = LogHarness()
    harness.write(b"good")
    harness.settle_down()
    start = harness.log.segments[0].size
    harness.write(fake)
    whole = harness.disk.files()[SEGMENT]

    def check(found: LogHarness, alarms: bool) -> None:
        assert set(found.served().values()) <= {b"good", fake}
        assert found.log.next <= 2
        assert alarms or not found.store.alarms

    for length in range(start, len(whole), 7):  # killed within the write
        disk = harness.disk.copy()
        disk._names[SEGMENT].live[:] = whole[:length]
        check(LogHarness(disk), alarms=False)
    for seed in range(60):
        check(LogHarness(harness.disk.copy().crash(Random(seed), hostile=True)), alarms=False)
    harness.settle_down()
    for is_sealed in (False, True):  # damaged, found by the next start, or by whoever reads
        if is_sealed:
            harness.log.fill(harness.log.segments[0])
            harness.settle_down()
        for position in range(start, start + 64 + 24):
            disk = harness.disk.copy()
            disk.flip(SEGMENT, position)
            check(LogHarness(disk), alarms=True)


def followed(power_cut: bool, has_inventory: bool) -> SimDisk:
    """Batches 0, 1..2 and 3 in a segment without its footer, and a later segment that says that it had been synced.

    The inventory, if there is one, is from before the second batch: a power cut may take what it said of the sizes later.
    """
    harness = LogHarness()
    harness.write(b"one")
    harness.settle_down()
    inventory = harness.disk.files()["inventory"]
    harness.write(b"two", b"three")
    harness.write(b"four")
    size = harness.log.segments[0].size
    harness.log.fill(harness.log.segments[0])
    harness.write(b"next")
    harness.settle_down()
    harness.write(b"later")
    harness.settle_down()
    disk = harness.disk.survivor(Random(0)) if power_cut else harness.disk.kill()
    replace(disk, SEGMENT, disk.files()[SEGMENT][:size])
    replace(disk, "inventory", inventory)
    if not has_inventory:
        without_inventory(disk)
    return disk


@pytest.mark.parametrize("has_inventory", [True, False], ids=["old inventory", "no inventory"])
@pytest.mark.parametrize("power_cut", [True, False], ids=["power cut", "killed"])
def test_a_torn_batch_before_a_segment_that_had_been_synced_is_damage(power_cut: bool, has_inventory: bool) -> None:
    """D3: `kvitto check` told of it, and a start cut it off like a torn tail, without an alarm."""
    whole = followed(power_cut, has_inventory)
    content = whole.files()[SEGMENT]
    last = content.rindex(b"KVB1")
    middle = content.rindex(b"KVB1", 0, last)
    everything = {0: b"one", 1: b"two", 2: b"three", 3: b"four", 4: b"next", 5: b"later"}
    for at, lost in ((last + 70, {3}), (middle + 70, {1, 2})):
        disk = whole.copy()
        disk.flip(SEGMENT, at)
        findings = Survey(disk.seen()).findings
        assert [(finding.path, finding.offsets) for finding in findings] == [(SEGMENT, (min(lost), max(lost) + 1))]
        saved = SimDisk()
        Salvage(Survey(disk.seen()), saved, ManualClock()).run()
        started = LogHarness(disk)
        rest = {offset: body for offset, body in everything.items() if offset not in lost}
        assert started.served() == rest == LogHarness(saved).served()
        assert started.store.alarms and started.names(".bad")
        assert started.kill() and started.served() == rest


@pytest.mark.parametrize("has_inventory", [True, False], ids=["old inventory", "no inventory"])
@pytest.mark.parametrize("power_cut", [True, False], ids=["power cut", "killed"])
def test_a_torn_footer_before_a_segment_that_had_been_synced_is_none(power_cut: bool, has_inventory: bool) -> None:
    """D3: it is written behind the sync of the batches."""
    for torn in (b"", FOOTER_MAGIC, FOOTER_MAGIC + bytes([60, 0, 0, 0, 7])):
        disk = followed(power_cut, has_inventory)
        replace(disk, SEGMENT, disk.files()[SEGMENT] + torn)
        assert not Survey(disk.seen()).findings
        started = LogHarness(disk)
        assert len(started.served()) == 6 and not started.store.alarms


def test_a_batch_of_another_segment_is_a_body() -> None:
    """D3: somebody ships segments as messages."""
    harness = LogHarness()
    harness.write(b"inner")
    harness.write(b"from elsewhere")
    harness.settle_down()
    other = LogHarness()
    other.write(b"good")
    other.write(harness.disk.files()[SEGMENT] + b"z" * 20)
    other.disk._names[SEGMENT].live[-10:] = b""
    other.kill()
    assert other.served() == {0: b"good"}


def test_a_damaged_header_costs_nothing_if_one_copy_of_the_salt_is_left() -> None:
    """D3: and an alarm says so."""
    for is_sealed in (False, True):
        harness = sealed() if is_sealed else LogHarness()
        if not is_sealed:
            harness.write(b"a", b"b")
            harness.write(b"c")
            harness.settle_down()
        for position in range(HEADER - 8):  # what is behind is the copy of the salt
            disk = harness.disk.copy()
            disk.flip(SEGMENT, position, position % 8)
            damaged = LogHarness(disk)
            assert damaged.served() == harness.expected, position
            assert any("header is damaged" in alarm for alarm in damaged.store.alarms)
            assert damaged.names(".bad")
            assert damaged.kill() and damaged.served() == harness.expected
            assert not damaged.store.alarms


def test_a_damaged_copy_of_the_salt_is_written_again() -> None:
    """D3: a power cut may tear it, and from the next start on it would be damage; without it a damaged header costs the segment."""
    harness = LogHarness()
    harness.write(b"a")
    harness.settle_down()
    whole = harness.disk.files()[SEGMENT]
    disk = harness.disk.copy()
    disk.flip(SEGMENT, 70, 3)
    damaged = LogHarness(disk)
    assert not damaged.store.alarms and damaged.served() == {0: b"a"}
    assert damaged.disk.files()[SEGMENT] == whole
    damaged.disk.flip(SEGMENT, 50)
    assert damaged.kill() and damaged.served() == {0: b"a"}


def test_a_segment_without_its_salt_is_set_aside_and_its_offsets_are_not_used_again() -> None:
    """D3: nothing in it can be told from what a body holds."""
    harness = LogHarness()
    for i in range(4):
        harness.write(f"{i}".encode())
        harness.settle_down()
    whole = harness.disk.files()[SEGMENT]
    for power_cut in (False, True):
        disk = harness.disk.copy()
        for position in (50, 70):
            disk.flip(SEGMENT, position)
        damaged = LogHarness(disk.crash(Random(1)) if power_cut else disk)
        assert damaged.served() == {}
        assert "offsets 0 to 3 cannot be read" in damaged.store.alarms[0]
        (name,) = damaged.names(".bad")
        assert len(damaged.disk.read_file(f"{DIRECTORY}/{name}")) == len(whole)
        for _ in range(2):
            assert damaged.log.next == damaged.log.announced_end == 4
            damaged.kill()
            assert not damaged.store.alarms


def test_the_books_of_a_queue_that_has_lost_a_segment_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets that nobody can read lay in front of the cursor and were counted as ready by some."""
    monkeypatch.setattr(logs, "SEGMENT_BYTES", 600)
    for lost in range(4):
        for taken in (0, 2, 5):
            for power_cut in (False, True):
                harness = BrokerHarness()
                harness.declare("q")
                for i in range(8):
                    harness.publish("q", f"{i}".encode() * 200)
                    harness.turn()
                harness.settle_down()
                taker = Taker(harness.queue("q"))
                for _ in range(taken):
                    harness.queue("q").get(taker)
                harness.settle_down()
                parts = [(p.base, p.end) for p in harness.queue("q").log.segments]
                first, end = parts[lost]
                path = f"{harness.queue('q').log.directory}/{first:020d}.log"
                for position in (50, 70):
                    harness.disk.flip(path, position)
                if power_cut:
                    harness.cut(Random(lost), hostile=True)
                else:
                    harness.kill()
                for _ in range(2):
                    queue = harness.queue("q")
                    assert queue.ready == queue.next - queue.cursor + len(queue.backlog.requeued) == 8 - (end - first)
                    assert queue.next == 8
                    harness.kill()
                queue = harness.queue("q")
                queue.settle_until(3)
                left = [i for i in range(3, 8) if not first <= i < end]
                assert queue.ready == len(left)
                assert [body[:1] for body in harness.drain("q")] == [f"{i}".encode() for i in left]


def test_a_body_full_of_beginnings_does_not_hold_up_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: each was verified as far as it said, which is the square of the body's length."""
    monkeypatch.setattr(segments, "RESYNC_BYTES", 1 << 20)
    verified = []
    monkeypatch.setattr(segments, "verify", lambda *a: verified.append(a[2].length) or verify(*a))
    count = 2000
    beginnings = [b"KVB1" + _claim(64 * (count - i)) for i in range(count)]
    harness = LogHarness()
    harness.write(b"good")
    harness.settle_down()
    harness.write(b"".join(beginnings) + b"z")
    harness.disk._names[SEGMENT].live[-1:] = b""
    harness.kill()
    assert harness.served() == {0: b"good"}
    assert sum(verified) < 3 << 20
    assert harness.store.alarms and harness.names(".bad"), "what was not looked at is not thrown away"


def _claim(length: int) -> bytes:
    """The rest of a header of a batch that long: one message, the rest of it body."""
    head = length.to_bytes(4, "little") + bytes(24) + (1).to_bytes(4, "little") + bytes(4)
    return (head + (length - 64 - 24).to_bytes(4, "little", signed=True)).ljust(60, b"\0")
