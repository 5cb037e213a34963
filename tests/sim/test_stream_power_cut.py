"""The power goes at every write, sync, unlink and create of a stream's day: it is filled, read, acked, cut by retention."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from kvitto.broker.queues import stream as streams
from kvitto.broker.queues.stream import Stream
from kvitto.store import stream as stream_store
from kvitto.store.batch import Batch
from kvitto.store.record import Append, Record
from tests.support import stored
from tests.support.harness import NO_PROPERTIES, BrokerHarness, Taker, address
from tests.support.simdisk import PowerCut, SimDisk

SEEDS = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 4


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_store, "SEGMENT_BYTES_MIN", 1)


@dataclass
class Told:
    """What clients know."""

    sent: list[bytes] = field(default_factory=list)
    confirmed: int = 0
    delivered: int = 0
    acked: int = 0
    saved: int = 0
    """Acks that were written and synced."""
    declared: bool = False
    length: int = 12
    """x-max-length."""
    segment: int = 900


class Reader(Taker):
    """It knows what it has got from that moment on."""

    def __init__(self, queue: Stream, told: Told) -> None:
        super().__init__(queue, room=5)
        self.told = told
        self.progress = queue.start_reading("mine", True, {})
        queue.add_consumer(self)

    def deliver(self, batch: Batch, i: int, n: int, redelivered: int) -> int:
        self.told.delivered = batch.first + i + n
        return super().deliver(batch, i, n, redelivered)

    def ack(self) -> None:
        for delivery in self.got:
            assert delivery.body == self.told.sent[delivery.offset]
            self.unacked -= 1
            self.queue.ack(delivery.offset, 1, self)
            self.told.acked = delivery.offset + 1
        self.got.clear()
        self.queue.mark_dirty()


def day(harness: BrokerHarness, told: Told) -> None:
    arguments: dict[str, Any] = {"x_max_length": told.length, "x_stream_max_segment_size_bytes": told.segment}
    queue = harness.declare("s", x_queue_type="stream", **arguments)
    assert isinstance(queue, Stream)
    harness.declare("beside")
    harness.settle_down()
    told.declared = True
    reader = Reader(queue, told)
    for hour in range(12):
        for _ in range(1 + hour % 4):
            told.sent.append(f"m{len(told.sent)}".ljust(20 + 40 * (hour % 3), ".").encode())
            harness.publish("s", told.sent[-1])
        harness.turn()
        queue.mark_dirty()
        harness.turn()  # what has been written is not durable yet: nobody may get it
        now = len(told.sent)
        harness.store.commits.when_announced(lambda now=now: setattr(told, "confirmed", now))  # type: ignore[misc]
        harness.sync(everything=hour % 2 == 0)
        reader.ack()
        harness.clock.advance(streams.SAVE_MS / 1000)
        harness.broker.tick()
        acked = told.acked
        harness.sync()
        told.saved = acked
        if hour % 3 == 2:
            transact(harness, queue, told)
    harness.settle_down()
    reader.ack()


def transact(harness: BrokerHarness, queue: Stream, told: Told) -> None:
    """T4: to the stream and to a queue beside it, at once."""
    told.sent.append(f"t{len(told.sent)}".encode())
    record = Record()
    for to in (queue, harness.queue("beside")):
        record.appends.append(Append(to.log.queue_id, address(to.name), NO_PROPERTIES, told.sent[-1], -1))

    def done() -> None:
        harness.broker.apply(record)
        told.confirmed = len(told.sent)

    harness.broker.records.write(record, done, lambda: None)
    while told.confirmed < len(told.sent):  # a journal file that is new waits for the inventory, too
        harness.sync(everything=False)


def run(cut_at: int | None, *retention: int) -> tuple[SimDisk, Told]:
    """The day up to operation `cut_at`."""
    disk, told = SimDisk(), Told()
    told.length, told.segment = retention
    disk.cut_at = cut_at
    try:
        day(BrokerHarness(disk), told)
    except PowerCut:
        pass
    else:
        assert cut_at is None
    return disk, told


def check(harness: BrokerHarness, told: Told) -> None:
    assert not harness.store.alarms
    queue = harness.broker.vhosts["/"].queues.get("s")
    if queue is None:
        assert not told.declared
        return
    assert isinstance(queue, Stream)
    assert max(told.confirmed, told.delivered) <= queue.next <= len(told.sent), "an offset would be used again"
    kept = max(0, len(told.sent) - told.length)
    for offset in range(max(queue.cursor, kept), queue.next):
        message = stored.read(queue, offset)
        assert message is not None or offset >= told.confirmed, f"{offset} was confirmed, and is lost"
        assert message is None or message[2] == told.sent[offset]
    for offset in range(min(kept, told.confirmed), told.confirmed):
        assert offset >= queue.cursor, f"{offset} was confirmed, and is gone"
    beside = harness.peek("beside") if told.declared else []
    assert len(set(beside)) == len(beside), "a record was applied twice"
    for offset in range(queue.cursor, queue.next):
        message = stored.read(queue, offset)
        assert message is None or not message[2].startswith(b"t") or message[2] in beside, "half a transaction"
    place = queue.log.offsets.get("mine")
    assert (place or 0) >= told.saved and (place or 0) <= told.acked


def operations(*retention: int) -> int:
    disk, told = run(None, *retention)
    assert told.confirmed == len(told.sent) == told.acked == 34
    harness = BrokerHarness(disk.kill())
    check(harness, told)
    assert harness.queue("s").cursor > 10, "retention has done something"
    return disk.operations


@pytest.mark.parametrize("retention", [(12, 900), (1, 100)], ids=["some", "as little as can be"])
def test_nothing_confirmed_or_read_is_lost_wherever_the_power_goes(retention: tuple[int, int]) -> None:
    """C2, P2, D3, T4: what was confirmed or delivered is there, no offset is used twice, acks of the last second may be missing."""
    for cut_at in range(1, operations(*retention) + 1):
        disk, told = run(cut_at, *retention)
        for seed in range(SEEDS):
            found = copy.deepcopy(disk).crash(Random(1000 * cut_at + seed), hostile=seed % 2 == 1)
            try:
                harness = BrokerHarness(found)
                check(harness, told)
                harness.kill()
                check(harness, told)
            except BaseException as error:
                raise AssertionError(f"cut at {cut_at}, seed {seed}") from error
