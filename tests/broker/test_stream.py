"""Streams: positions, retention, what is remembered of a consumer, restarts (Q, C2, P2-P4, D3)."""

from __future__ import annotations

import logging
import os
import secrets
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError, ConnectionError_, StoreError
from kvitto.broker.queues import stream as streams
from kvitto.broker.queues.stream import Stream
from kvitto.store import offsets, paths
from kvitto.store import stream as stream_store
from kvitto.store.batch import HEADER as BATCH_HEADER
from kvitto.store.batch import BatchHeader
from kvitto.store.segment import HEADER
from kvitto.store.slot import SLOT
from kvitto.wire.tables import Timestamp
from tests.support import stored
from tests.support.harness import BrokerHarness, Taker

SEGMENT = 1500
"""Some ten messages of the tests."""


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_store, "SEGMENT_BYTES_MIN", 1)


class Follower(Taker):
    """A consumer of a stream; `named` if its tag is its own, so that it is remembered."""

    def __init__(self, queue: Stream, *, tag: str = "", room: int = 1 << 30, **arguments: Any) -> None:
        super().__init__(queue, room=room)
        self.progress = queue.start_reading(
            tag or "made-up", bool(tag), {k.replace("_", "-"): v for k, v in arguments.items()}
        )
        queue.add_consumer(self)

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.got]

    @property
    def offsets(self) -> list[int]:
        return [delivery.offset for delivery in self.got]

    def ack(self, offset: int, n: int = 1) -> None:
        self.unacked -= n
        self.queue.ack(offset, n, self)
        self.queue.mark_dirty()

    def leave(self) -> None:
        self.queue.remove_consumer(self)


def stream(harness: BrokerHarness, name: str = "s", **arguments: Any) -> Stream:
    made = harness.declare(name, x_queue_type="stream", **arguments)
    assert isinstance(made, Stream)
    return made


def fill(harness: BrokerHarness, first: int, end: int, name: str = "s", size: int = 60) -> None:
    """One batch per message, all of them durable."""
    for i in range(first, end):
        assert harness.publish(name, body(i, size))
        harness.turn()
    harness.settle_down()


def body(i: int, size: int = 60) -> bytes:
    return f"m{i}".ljust(size, ".").encode()


def on_disk(harness: BrokerHarness, queue: Stream) -> list[int]:
    """The segments' base offsets."""
    return sorted(int(name[:20]) for name in harness.disk.listdir(queue.log.directory) if name.endswith(".log"))


# -- reading -------------------------------------------------------------------------------------------------


def test_every_consumer_gets_every_message_and_an_ack_takes_nothing_away() -> None:
    """Q: a stream is read, not consumed."""
    harness = BrokerHarness()
    queue = stream(harness)
    one, two = Follower(queue, x_stream_offset="first"), Follower(queue, x_stream_offset="first")
    fill(harness, 0, 5)
    one.ack(0, 5)
    harness.settle_down()
    assert one.offsets == two.offsets == [0, 1, 2, 3, 4]
    assert one.bodies == two.bodies == [body(i) for i in range(5)]
    assert not any(delivery.redelivered for delivery in one.got)
    assert (queue.ready, queue.unacked, queue.messages) == (5, 0, 5)
    harness.restart()
    assert Follower(stream(harness), x_stream_offset="first") and harness.queue("s").ready == 5


def test_only_what_is_durable_is_delivered() -> None:
    """C2, P2: what a consumer has seen is there after a power cut."""
    harness = BrokerHarness()
    queue = stream(harness)
    follower = Follower(queue, x_stream_offset="first")
    harness.settle_down()
    harness.publish("s", b"a")
    harness.turn()
    assert not follower.got
    assert harness.store.commits.waiting, "a consumer at the tail waits for a sync of its own"
    harness.sync(everything=False)
    harness.sync(everything=False)  # of the inventory, to which the segment was new
    assert follower.bodies == [b"a"]


def test_credit_is_prefetch_and_an_ack_gives_it_back() -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    follower = Follower(queue, room=3, x_stream_offset="first")
    fill(harness, 0, 10)
    assert follower.offsets == [0, 1, 2]
    follower.ack(0, 2)
    harness.turn()
    assert follower.offsets == [0, 1, 2, 3, 4]


def test_a_requeued_or_rejected_message_does_not_come_again() -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    follower = Follower(queue, room=2, x_stream_offset="first")
    fill(harness, 0, 4)
    queue.requeue(0, 1, 60)
    queue.reject(1, 1, follower)
    follower.unacked = 0
    queue.mark_dirty()
    harness.settle_down()
    assert follower.offsets == [0, 1, 2, 3]
    assert queue.ready == 4


def test_consumers_at_the_tail_read_nothing_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    follower = Follower(queue)
    harness.settle_down()
    monkeypatch.setattr(queue.log.reader, "load", lambda *_: pytest.fail("it read back what it had just written"))
    fill(harness, 0, 20)
    assert follower.offsets == list(range(20))
    assert not queue._recent


def test_batches_wait_in_memory_for_the_tail_only_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: a consumer without credit does not keep everything that comes in memory."""
    monkeypatch.setattr(streams, "RECENT_BYTES", 3000)
    harness = BrokerHarness()
    queue = stream(harness)
    slow = Follower(queue, room=1, tag="")
    fill(harness, 0, 100)
    assert slow.offsets == [0]
    assert queue._recent_bytes <= 3000 and sum(size for _, size in queue._recent) == queue._recent_bytes
    slow.room = 1000
    queue.mark_dirty()
    harness.settle_down()
    assert slow.offsets == list(range(100))
    assert not queue._recent and not queue._recent_bytes


def test_few_batches_wait_in_memory_however_small_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: nobody looks through tens of thousands of them."""
    monkeypatch.setattr(streams, "RECENT_BATCHES", 10)
    harness = BrokerHarness()
    queue = stream(harness)
    slow = Follower(queue, room=1)
    kept = []
    for i in range(50):
        fill(harness, i, i + 1)
        kept.append(len(queue._recent))
        others = [Follower(queue, x_stream_offset=max(i - back, 0)) for back in (0, 3, 9, 15)]
        harness.settle_down()
        assert [other.offsets for other in others] == [list(range(max(i - back, 0), i + 1)) for back in (0, 3, 9, 15)]
        for other in others:
            other.leave()
    assert max(kept) == 10
    slow.room = 1000
    queue.mark_dirty()
    harness.settle_down()
    assert slow.offsets == list(range(50))


def test_what_is_kept_for_consumers_without_credit_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: each of them has read from the log, few keep what they read."""
    monkeypatch.setattr(streams, "WINDOWS_BYTES", 1 << 20)
    harness = BrokerHarness()
    queue = stream(harness)
    fill(harness, 0, 100)
    followers = [Follower(queue, room=1, x_stream_offset="first") for _ in range(20)]
    for round_ in range(100):
        harness.turn()
        held = [f.progress.window.chunk.cap for f in followers if f.progress.window.segment is not None]
        assert sum(held) <= 1 << 20 and (held or round_ == 99)
        for follower in followers:
            follower.unacked = 0
        queue.mark_dirty()
    harness.settle_down()
    assert all(follower.bodies == [body(i) for i in range(100)] for follower in followers)
    assert not queue._windows
    stuck = Follower(queue, room=1, x_stream_offset="first")
    harness.turn()
    assert list(queue._windows) == [stuck.progress.window]
    stuck.leave()
    assert not queue._windows


def test_without_syncs_a_message_is_delivered_at_once() -> None:
    harness = BrokerHarness()
    harness.store.commits.syncing = False
    queue = stream(harness)
    follower = Follower(queue)
    harness.publish("s", b"a")
    harness.turn()
    assert follower.bodies == [b"a"]


def test_expiration_means_nothing_in_a_stream() -> None:
    """As with RabbitMQ."""
    harness = BrokerHarness()
    queue = stream(harness)
    harness.publish("s", b"a", ttl_ms=10)
    harness.settle_down()
    harness.clock.advance(10)
    queue.expire()
    follower = Follower(queue, x_stream_offset="first")
    harness.settle_down()
    assert follower.bodies == [b"a"]


# -- where a consumer begins -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "begins"),
    [("first", 0), ("last", 9), ("next", 10), (None, 10), (0, 0), (7, 7), (10, 10), (11, 11), (1 << 40, 12)],
)
def test_a_consumer_begins_where_it_says(given: Any, begins: int) -> None:
    """Q: x-stream-offset. One that is not there yet is waited for, as with RabbitMQ."""
    harness = BrokerHarness()
    queue = stream(harness)
    fill(harness, 0, 10)
    arguments: dict[str, Any] = {} if given is None else {"x_stream_offset": given}
    follower = Follower(queue, **arguments)
    fill(harness, 10, 12)
    assert follower.offsets == list(range(begins, 12))


@pytest.mark.parametrize("segment", [SEGMENT, 1 << 20], ids=["many segments", "one"])
def test_a_consumer_begins_at_a_time(segment: int) -> None:
    """Q: timestamp and interval: nothing that was published at that time or later is missing, nothing earlier comes."""
    harness = BrokerHarness()
    queue = stream(harness, x_stream_max_segment_size_bytes=segment)
    start = harness.clock.now_ms() // 1000
    for hour in range(48):
        fill(harness, 3 * hour, 3 * hour + 3, size=60)
        harness.clock.advance(3600)
    harness.turn()
    for hour in (-1, 0, 1, 20, 47, 48, 50):
        begins = min(max(3 * hour, 0), 144)
        follower = Follower(queue, x_stream_offset=Timestamp(start + 3600 * hour))
        harness.settle_down()
        assert follower.offsets == list(range(begins, 144)), hour
        follower.leave()
    for interval, begins in (("90m", 141), ("30m", 144), ("1h", 141), ("1D", 72), ("1Y", 0)):
        follower = Follower(queue, x_stream_offset=interval)
        harness.settle_down()
        assert follower.offsets == list(range(begins, 144)), interval
        follower.leave()


def test_a_message_that_came_in_after_a_time_is_in_a_batch_of_that_time() -> None:
    """A batch is begun before its last message comes in: its time is that of its write."""
    harness = BrokerHarness()
    queue = stream(harness)
    harness.publish("s", b"early")
    harness.clock.advance(5)
    asked = harness.clock.now_ms() // 1000
    harness.publish("s", b"late")
    harness.settle_down()
    follower = Follower(queue, x_stream_offset=Timestamp(asked))
    harness.settle_down()
    assert b"late" in follower.bodies


@pytest.mark.parametrize("given", ["", "second", "1x", "-1h", -1, 1.5, True, [1], {"a": 1}, b"first"])
def test_a_wrong_offset_is_refused(given: Any) -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    with pytest.raises(ChannelError, match="invalid arg 'x-stream-offset'") as refused:
        queue.start_reading("t", True, {"x-stream-offset": given})
    assert refused.value.code == PRECONDITION_FAILED


# -- retention -------------------------------------------------------------------------------------------------


def test_the_newest_messages_of_a_length_are_kept() -> None:
    """Q: x-max-length: a segment goes once so many messages lie behind it."""
    harness = BrokerHarness()
    queue = stream(harness, x_max_length=20, x_stream_max_segment_size_bytes=SEGMENT)
    fill(harness, 0, 200)
    first = queue.cursor
    assert 200 - 20 - 30 < first <= 200 - 20
    assert on_disk(harness, queue)[0] == first
    assert (queue.ready, queue.ready_bytes) == (200 - first, 60 * (200 - first))
    follower = Follower(queue, x_stream_offset="first")
    harness.settle_down()
    assert follower.offsets == list(range(first, 200))


def test_the_oldest_segments_go_while_there_are_more_bytes() -> None:
    """Q: x-max-length-bytes: as with RabbitMQ, all segments together, but the one that is written stays."""
    harness = BrokerHarness()
    queue = stream(harness, x_max_length_bytes=4 * SEGMENT, x_stream_max_segment_size_bytes=SEGMENT)
    fill(harness, 0, 300)
    assert sum(part.size for part in queue.log.segments) <= 5 * SEGMENT
    assert len(queue.log.segments) >= 3
    small = stream(harness, "small", x_max_length_bytes=0, x_stream_max_segment_size_bytes=SEGMENT)
    fill(harness, 0, 100, "small")
    assert len(small.log.segments) == 1 and 0 < small.ready < 20


def test_the_smallest_segments_are_large_enough_for_retention_to_keep_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q: x-stream-max-segment-size-bytes has a least value, not refused and not told."""
    monkeypatch.undo()
    harness = BrokerHarness()
    arguments: dict[str, Any] = {"x_max_length_bytes": 2000, "x_stream_max_segment_size_bytes": 1}
    queue = stream(harness, **arguments)
    for _ in range(30):
        for i in range(50):
            harness.publish("s", body(i))
            harness.turn()
        harness.sync()
    assert len(queue.log.segments) <= 2 and queue.cursor > 0
    assert stream(harness, **arguments) is queue


def test_segments_go_by_age_without_anybody_publishing() -> None:
    """Q: x-max-age: by the time of the segment's last message."""
    harness = BrokerHarness()
    queue = stream(harness, x_max_age="1D", x_stream_max_segment_size_bytes=SEGMENT)
    fill(harness, 0, 50)
    harness.clock.advance(12 * 3600)
    fill(harness, 50, 100)
    assert queue.cursor == 0
    harness.clock.advance(13 * 3600)
    for _ in range(20):
        harness.broker.tick()
        harness.settle_down()
        harness.clock.advance(1)
    assert 35 < queue.cursor <= 50
    harness.clock.advance(13 * 3600)
    for _ in range(20):
        harness.broker.tick()
        harness.settle_down()
        harness.clock.advance(1)
    assert len(queue.log.segments) == 1, "only the one that is written is left"
    assert queue.cursor > 80
    assert harness.broker.timers.next_ms is None


@pytest.mark.parametrize("restart", [False, True])
def test_a_damaged_segment_goes_by_age_too(restart: bool) -> None:
    """Q: what cannot be read is as old as the segment behind it, and holds nothing up."""
    harness = BrokerHarness()
    arguments: dict[str, Any] = {"x_max_age": "1h", "x_stream_max_segment_size_bytes": SEGMENT}
    queue = stream(harness, **arguments)
    fill(harness, 0, 60)
    path = paths.segment(queue.log.directory, 0)
    file = harness.disk.open(path)
    file.write_at(72, [b"\xff" * (file.size() - 72)])
    file.close()
    if restart:
        harness.kill()
        queue = stream(harness, **arguments)
    fill(harness, 60, 61)
    harness.clock.advance(3500)
    harness.broker.tick()
    harness.settle_down()
    assert queue.cursor == 0
    for _ in range(20):
        harness.clock.advance(200)
        harness.broker.tick()
        harness.settle_down()
    assert len(queue.log.segments) == 1


@pytest.mark.parametrize("end", ["restart", "kill", "cut"])
def test_what_retention_took_stays_gone_and_offsets_go_on(end: str) -> None:
    """P4: no offset is used twice."""
    harness = BrokerHarness()
    queue = stream(harness, x_max_length=20, x_stream_max_segment_size_bytes=SEGMENT)
    fill(harness, 0, 100)
    first = queue.cursor
    harness.cut(Random(1)) if end == "cut" else getattr(harness, end)()
    queue = stream(harness, x_max_length=20, x_stream_max_segment_size_bytes=SEGMENT)
    assert (queue.cursor, queue.next, queue.ready) == (first, 100, 100 - first)
    fill(harness, 100, 110)
    follower = Follower(queue, x_stream_offset="first")
    harness.settle_down()
    assert follower.offsets[-1] == 109 and follower.bodies == [body(i) for i in follower.offsets]
    assert not any(name.endswith(".ack") for name in harness.disk.listdir(queue.log.directory))


def test_a_consumer_whose_segment_has_gone_goes_on_with_what_is_there() -> None:
    harness = BrokerHarness()
    queue = stream(harness, x_max_length=20, x_stream_max_segment_size_bytes=SEGMENT)
    follower = Follower(queue, room=2, tag="t", x_stream_offset="first", **{"x-stream-automatic-offset-tracking": True})
    fill(harness, 0, 5)
    follower.ack(0, 1)
    fill(harness, 5, 200)
    follower.room = 1000
    queue.mark_dirty()
    harness.settle_down()
    assert follower.offsets == sorted(set(follower.offsets)) and follower.offsets[-1] == 199
    assert set(range(queue.cursor, 200)) <= set(follower.offsets)


def test_many_segments_go_one_by_one_each_durably() -> None:
    """What a power cut brings back has no hole: the next one is unlinked only once the one before is durably gone."""
    harness = BrokerHarness()
    queue = stream(harness, x_max_age="1s", x_stream_max_segment_size_bytes=SEGMENT)
    fill(harness, 0, 100)
    harness.clock.advance(10)
    before = len(on_disk(harness, queue))
    assert before >= 6
    harness.broker.tick()
    harness.turn()
    assert len(on_disk(harness, queue)) == before, "the inventory would miss it"
    harness.sync()
    assert len(on_disk(harness, queue)) == before - 1
    harness.cut(Random(3), hostile=True)
    queue = stream(harness, x_max_age="1s", x_stream_max_segment_size_bytes=SEGMENT)
    bases = [part.base for part in queue.log.segments]
    ends = [part.end for part in queue.log.segments]
    assert bases[1:] == ends[:-1]


def test_few_files_are_open_however_many_segments_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that keeps a year must not take the files from the connections."""
    monkeypatch.setattr(stream_store, "OPEN_MAX", 5)
    harness = BrokerHarness()

    def open_files() -> int:
        return sum(part.file is not None for part in stream(harness, **arguments).log.segments)

    arguments: dict[str, Any] = {"x_stream_max_segment_size_bytes": SEGMENT}
    queue = stream(harness, **arguments)
    fill(harness, 0, 300)
    assert len(queue.log.segments) > 30 and open_files() <= 7
    for end in (harness.restart, harness.kill):
        followers = [Follower(stream(harness, **arguments), x_stream_offset=at, room=50) for at in (0, 100, 200, 7)]
        for _ in range(20):
            for follower in followers:
                follower.unacked = 0
            stream(harness, **arguments).mark_dirty()
            harness.settle_down()
        assert [follower.offsets for follower in followers] == [list(range(at, 300)) for at in (0, 100, 200, 7)]
        assert open_files() <= 7
        end()
        assert open_files() <= 7


# -- tracking ----------------------------------------------------------------------------------------------------


def test_a_consumer_with_a_tag_of_its_own_goes_on_where_it_had_acked() -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    fill(harness, 0, 3)
    follower = Follower(queue, tag="t")
    fill(harness, 3, 10)
    follower.ack(3, 2)
    follower.leave()
    assert Follower(queue, tag="t").progress.next == 5
    assert Follower(queue, tag="other").progress.next == 10
    assert Follower(queue).progress.next == 10
    assert Follower(queue, tag="t", x_stream_offset=1).progress.next == 1, "it has said where"


def test_a_consumer_that_never_acked_goes_on_where_it_began() -> None:
    """P2: what came while it was away is not passed over."""
    harness = BrokerHarness()
    queue = stream(harness)
    Follower(queue, tag="t").leave()
    fill(harness, 0, 5)
    assert Follower(queue, tag="t").progress.next == 0


def test_what_is_acked_out_of_order_counts_once_all_before_it_is() -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    follower = Follower(queue, tag="t")
    fill(harness, 0, 10)
    for offset, n, acked in ((4, 2, 0), (1, 1, 0), (0, 1, 2), (8, 1, 2), (2, 2, 6), (7, 1, 6), (6, 1, 9)):
        follower.ack(offset, n)
        assert queue.log.offsets.get("t") == acked
    assert not follower.progress.beyond.count


def test_with_tracking_the_offset_is_only_where_it_begins_first() -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    fill(harness, 0, 10)
    arguments: dict[str, Any] = {"x-stream-offset": "first", "x-stream-automatic-offset-tracking": True}
    follower = Follower(queue, tag="t", **arguments)
    harness.settle_down()
    assert follower.offsets == list(range(10))
    follower.ack(0, 4)
    follower.leave()
    assert Follower(queue, tag="t", **arguments).progress.next == 4


@pytest.mark.parametrize("end", ["restart", "kill", "cut"])
def test_what_is_remembered_survives(end: str) -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    follower = Follower(queue, tag="t")
    fill(harness, 0, 10)
    follower.ack(0, 6)
    harness.clock.advance(streams.SAVE_MS / 1000)
    harness.broker.tick()
    harness.settle_down()
    follower.ack(6, 2)  # less than a second ago
    harness.cut(Random(1)) if end == "cut" else getattr(harness, end)()
    assert Follower(stream(harness), tag="t").progress.next == (8 if end == "restart" else 6)


def test_what_is_remembered_of_an_empty_stream_survives_and_goes_with_it() -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    Follower(queue, tag="t")
    directory = queue.log.directory
    harness.restart()
    assert harness.disk.exists(f"{directory}/offsets")
    harness.delete("s")
    harness.settle_down()
    assert not harness.disk.exists(f"{directory}/offsets")
    harness.cut(Random(2))
    assert "s" not in harness.broker.vhosts["/"].queues


def test_a_torn_entry_leaves_the_one_before_it(caplog: pytest.LogCaptureFixture) -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    follower = Follower(queue, tag="t")
    fill(harness, 0, 10)
    for n in (3, 2):
        follower.ack(queue.log.offsets.get("t") or 0, n)
        queue.log.offsets.write()
    path = f"{queue.log.directory}/offsets"
    file = harness.disk.open(path)
    whole = file.read_at(0, 2 * SLOT)
    at = next(i for i in (0, SLOT) if int.from_bytes(whole[i + 16 : i + 24], "little") == 5)
    file.write_at(at + 100, [b"torn"])
    harness.kill()
    assert stream(harness).log.offsets.get("t") == 3
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    file = harness.disk.open(path)
    file.write_at(0, [b"?" * 2 * SLOT])
    harness.kill()
    assert stream(harness).log.offsets.get("t") is None
    assert "cannot be read: it starts over" in caplog.text


def test_an_entry_for_which_the_disk_had_no_room_is_no_damage() -> None:
    """D4: the first half of it was in the file, and the start after a kill raised an alarm."""
    harness = BrokerHarness()
    queue = stream(harness)
    queue.log.offsets.put("first", 1)
    queue.log.offsets.write()
    harness.settle_down()
    queue.log.offsets.put("second", 2)
    harness.disk.full = True
    queue.log.offsets.write()
    harness.sync()
    harness.disk.full = False
    harness.kill()
    assert not harness.store.alarms
    kept = stream(harness).log.offsets
    assert (kept.get("first"), kept.get("second")) == (1, None)


@pytest.mark.parametrize("synced", [False, True])
def test_a_second_entry_whose_first_write_failed_is_no_damage(synced: bool) -> None:
    """C8, D3: the disk took half of a slot that was new; the start raised an alarm, because the tag's other slot had been synced."""
    harness = BrokerHarness()
    kept = stream(harness).log.offsets
    for offset in (1, 2)[: 1 + synced]:
        kept.put("t", offset)
        kept.write()
        harness.settle_down()
    kept.put("t", 3)
    harness.disk.fail_at[harness.disk.operations + 1] = StoreError("the write fails")
    with pytest.raises(StoreError, match="the write fails"):
        kept.write()
    file = harness.disk.open(f"{stream(harness).log.directory}/offsets")
    if (
        synced
    ):  # the same bytes in a slot that had been synced are damage: nothing but bit rot leaves them there after a kill
        file.write_at(100, [b"rot"])
    else:
        assert SLOT < file.size() < 2 * SLOT
    harness.kill()
    assert len(harness.store.alarms) == synced
    assert stream(harness).log.offsets.get("t") == 1 + synced
    harness.kill()
    assert len(harness.store.alarms) == synced
    stream(harness).log.offsets.put("t", 4)
    harness.restart()
    assert stream(harness).log.offsets.get("t") == 4


def test_so_many_tags_are_remembered_those_that_moved_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: a client that makes up a tag each time fills nothing."""
    monkeypatch.setattr(offsets, "TAGS_MAX", 3)
    harness = BrokerHarness()
    queue = stream(harness)
    for tag in ("a", "b", "c", "a", "d"):
        harness.clock.advance(1)
        queue.log.offsets.put(tag, ord(tag))
        queue.log.offsets.write()
    harness.restart()
    found = stream(harness).log.offsets
    assert [found.get(tag) for tag in "abcd"] == [97, None, 99, 100]
    size = harness.disk.open(f"{stream(harness).log.directory}/offsets").size()
    assert size <= 3 * 2 * SLOT


# -- what a stream is not ------------------------------------------------------------------------------------------


def test_there_is_no_get_and_no_purge() -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    fill(harness, 0, 1)
    for action in (lambda: queue.get(Taker(queue)), queue.purge):
        with pytest.raises(ConnectionError_, match="not supported by stream queues queue 's' in vhost '/'"):
            action()


@pytest.mark.parametrize(
    "arguments",
    [
        {"x_message_ttl": 1},
        {"x_expires": 1},
        {"x_max_priority": 1},
        {"x_overflow": "drop-head"},
        {"x_dead_letter_exchange": ""},
        {"x_delivery_limit": 1},
        {"x_single_active_consumer": True},
        {"x_max_age": "7"},
        {"x_max_age": 7},
        {"x_max_age": "7d"},
        {"x_stream_max_segment_size_bytes": 0},
        {"x_stream_max_segment_size_bytes": "1"},
        {"x_stream_max_segment_size_bytes": 3_000_000_001},
        {"x_max_length": -1},
        {"x_max_length_bytes": "a"},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    name = next(iter(arguments)).replace("_", "-")
    with pytest.raises(ChannelError, match=f"invalid arg '{name}' for queue 's' in vhost '/'") as refused:
        stream(BrokerHarness(), **arguments)
    assert refused.value.code == PRECONDITION_FAILED


@pytest.mark.parametrize(
    ("flags", "property_"),
    [
        ((False, False, False), "non-durable"),
        ((True, True, False), "exclusive-owner"),
        ((True, False, True), "auto-delete"),
    ],
)
def test_a_stream_is_durable_and_for_all(flags: tuple[bool, bool, bool], property_: str) -> None:
    vhost = BrokerHarness().broker.vhosts["/"]
    with pytest.raises(ChannelError, match=f"invalid property '{property_}' for queue 's' in vhost '/'") as refused:
        vhost.declare_queue("s", *flags, {"x-queue-type": "stream"}, None)
    assert refused.value.code == PRECONDITION_FAILED
    assert "s" not in vhost.queues


# -- a model -------------------------------------------------------------------------------------------------------


class StreamModel(RuleBasedStateMachine):
    """`sent` is what the stream has taken, by offset (None: a power cut took it before it was confirmed); all else follows from that."""

    was_full = False

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        ids = count(1)
        self.patch.setattr(secrets, "token_hex", lambda n: f"{next(ids):0{2 * n}x}")
        self.patch.setattr(streams, "RECENT_BYTES", 600)
        self.patch.setattr(stream_store, "OPEN_MAX", 2)
        self.harness = BrokerHarness()
        self.sent: list[bytes | None] = []
        self.safe = 0
        self.first = 0
        self.followers: list[Follower] = []
        self.expected: dict[Follower, int] = {}
        self.acked: dict[str, int] = {}
        self.held: dict[Follower, list[int]] = {}
        self.number = 0
        self.floor = 0

    def teardown(self) -> None:
        self.patch.undo()

    @property
    def may_go(self) -> int:
        """The end of what x-max-length lets go."""
        return max(len(self.sent) - self.length, 0) if self.length >= 0 else 0

    @initialize(
        length=st.sampled_from([-1, 0, 5, 30]), size=st.sampled_from([-1, 1000, 4000]), age=st.sampled_from(["", "10s"])
    )
    def declare(self, length: int, size: int, age: str) -> None:
        self.arguments: dict[str, Any] = {"x_stream_max_segment_size_bytes": 700}
        self.length = length
        if length >= 0:
            self.arguments["x_max_length"] = length
        if size >= 0:
            self.arguments["x_max_length_bytes"] = size
        if age:
            self.arguments["x_max_age"] = age
        self.only_length = size < 0 and not age
        stream(self.harness, **self.arguments)
        self.harness.settle_down()

    @property
    def q(self) -> Stream:
        found = self.harness.queue("s")
        assert isinstance(found, Stream)
        return found

    def watch(self) -> None:
        """Every consumer gets the stream from its place on, without a hole but for what retention took, and only what is durable."""
        assert self.q.cursor >= self.first, "what was gone is back"
        self.first = self.q.cursor
        for f in self.followers:
            for delivery in f.got:
                at = self.expected[f]
                while at < delivery.offset and self.sent[at] is None:
                    at += 1
                assert delivery.offset == at or at < delivery.offset <= self.first, f"{delivery} instead of {at}"
                assert delivery.body == self.sent[delivery.offset] and not delivery.redelivered
                assert delivery.offset < self.q.log.announced_end
                self.expected[f] = delivery.offset + 1
                self.held[f].append(delivery.offset)
            f.got.clear()

    def turn(self) -> None:
        self.harness.turn()
        self.watch()
        told = len(self.sent)
        if not self.harness.broker.unwritten:
            self.harness.store.commits.when_announced(lambda: setattr(self, "safe", max(self.safe, told)))

    @rule(n=st.integers(1, 6), size=st.sampled_from([5, 60, 300]))
    def publish(self, n: int, size: int) -> None:
        for _ in range(n):
            self.number += 1
            assert self.harness.publish("s", body(self.number, size))
            self.sent.append(body(self.number, size))
        self.turn()

    @precondition(lambda self: len(self.followers) < 4)
    @rule(
        tag=st.sampled_from(["", "t", "u"]),
        given=st.sampled_from(["first", "last", "next", None, 0, 10, 100]),
        room=st.integers(1, 20),
    )
    def consume(self, tag: str, given: Any, room: int) -> None:
        if tag and any(f.progress.tag == tag for f in self.followers):
            return
        q = self.q
        f = Follower(q, tag=tag, room=room, **({} if given is None else {"x_stream_offset": given}))
        begin = {"first": q.cursor, "last": max(q.next - 1, q.cursor), "next": q.next, None: q.next}.get(given, given)
        if tag and given is None:
            begin = min(self.acked.setdefault(tag, q.next), q.next)
        assert f.progress.next == max(begin, q.cursor)
        assert f.progress.tag == (tag if tag and given is None else None)
        self.followers.append(f)
        self.expected[f] = f.progress.next
        self.held[f] = []
        self.turn()

    @precondition(lambda self: self.followers)
    @rule(which=st.integers(0, 3), at=st.integers(0, 20), multiple=st.booleans(), kind=st.sampled_from(["ack", "back"]))
    def settle(self, which: int, at: int, multiple: bool, kind: str) -> None:
        f = self.followers[which % len(self.followers)]
        held = self.held[f]
        if not held:
            return
        at %= len(held)
        chosen = held[: at + 1] if multiple else [held[at]]
        for offset in chosen:
            held.remove(offset)
            if kind == "ack":
                f.ack(offset)
            else:
                f.unacked -= 1
                self.q.requeue(offset, 1, 1)
                self.q.mark_dirty()
        if f.progress.tag is not None:
            self.acked[f.progress.tag] = f.progress.acked
            assert all(offset >= f.progress.acked for offset in held), "an offset counts as acked that is not"
        self.turn()

    @precondition(lambda self: self.followers)
    @rule(which=st.integers(0, 3))
    def leave(self, which: int) -> None:
        f = self.followers.pop(which % len(self.followers))
        f.leave()
        if f.progress.tag is not None:
            self.acked[f.progress.tag] = f.progress.acked
        self.turn()

    @rule(ms=st.sampled_from([300, 2000, 6000]))
    def wait(self, ms: int) -> None:
        self.harness.clock.advance(ms / 1000)
        self.harness.broker.tick()
        self.turn()

    @rule(everything=st.booleans())
    def sync(self, everything: bool) -> None:
        self.harness.sync(everything)
        self.turn()

    @rule(full=st.booleans())
    def space(self, full: bool) -> None:
        """D4: nothing is lost while there is no room."""
        self.harness.disk.full = full
        self.was_full |= full
        self.harness.broker.retry_writes()
        self.turn()

    def begin_again(self, exact: bool) -> None:
        """A start: what was confirmed is there, the rest is a beginning of what was sent."""
        q = self.q
        remembered = {tag: q.log.offsets.get(tag) for tag in ("t", "u")}
        for tag, was in self.acked.items():
            found = remembered[tag]
            assert not exact or max(found or 0, q.cursor) == max(was, q.cursor), "an end in order loses nothing of it"
            assert found is None or found <= was, "it counts as acked what is not"
        self.acked = {tag: found for tag, found in remembered.items() if found is not None}
        assert self.safe <= q.next <= len(self.sent)
        assert not exact or q.next == len(self.sent)
        del self.sent[q.next :]
        assert q.cursor == q.log.first and q.ready == q.next - q.cursor
        self.followers.clear()
        for offset in range(q.cursor, q.next):
            message = stored.read(q, offset)
            if message is None and offset >= self.safe and not exact:
                self.sent[offset] = None
            assert (message and message[2]) == self.sent[offset]
        self.safe = q.next
        q.release_windows()
        self.turn()

    @rule()
    def restart(self) -> None:
        self.space(False)
        for f in self.followers:
            if f.progress.tag is not None:
                self.acked[f.progress.tag] = f.progress.acked
        self.harness.restart()
        self.first = min(self.first, self.q.cursor)
        assert self.q.cursor >= self.first
        self.begin_again(exact=True)

    @rule()
    def kill(self) -> None:
        self.space(False)
        before = self.q.cursor
        self.harness.kill()
        assert self.q.cursor >= before
        self.begin_again(exact=False)

    @rule(seed=st.integers(0, 99), hostile=st.booleans())
    def cut(self, seed: int, hostile: bool) -> None:
        self.space(False)
        self.harness.cut(Random(seed), hostile=hostile)
        cursor = self.q.cursor
        if self.only_length:
            gone = max(self.first, self.may_go)
            assert cursor <= gone or gone >= self.safe, "a confirmed message is gone"
        self.floor = cursor  # a first segment that was never confirmed may be gone
        self.first = min(self.first, cursor)  # the segment that went last may be back
        self.begin_again(exact=False)

    @invariant()
    def books(self) -> None:
        if not hasattr(self, "arguments"):
            return
        q = self.q
        assert q.ready == q.next - q.cursor == len(self.sent) - q.cursor
        assert q.ready_bytes == sum(len(b) for b in self.sent[q.cursor :] if b is not None)
        if not self.harness.broker.unwritten:  # else there may be the name of one that had no room
            kept = [
                base for base in on_disk(self.harness, q) if base >= q.log.first
            ]  # what is below goes with the next sync
            assert kept == [part.base for part in q.log.segments]
        if self.only_length:
            assert q.cursor <= max(self.floor, self.may_go)
        # a disk that was full may have left half an entry of a named consumer
        assert not [text for text in self.harness.store.alarms if "/offsets" not in text or not self.was_full]


TestStreamModel = StreamModel.TestCase
TestStreamModel.settings = settings(
    max_examples=1000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 100,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
)


def test_damage_in_a_segment_whose_file_has_been_closed_is_stepped_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: a consumer's window still holds the batches before it, and other segments have been read meanwhile."""
    monkeypatch.setattr("kvitto.store.stream.OPEN_MAX", 2)
    harness = BrokerHarness()
    stream(harness, x_stream_max_segment_size_bytes=700)
    fill(harness, 0, 60)
    harness.settle_down()
    harness.kill()
    queue = harness.queue("s")
    assert isinstance(queue, Stream)
    head = queue.log.segments[0]
    file = queue.log.file_of(head)
    second = HEADER + BatchHeader(file.read_at(HEADER, BATCH_HEADER), 0).length
    end = second + BatchHeader(file.read_at(second, BATCH_HEADER), 0).length
    file.write_at(end - 2, [b"\xff"])
    slow = Follower(queue, x_stream_offset=0, room=1)
    harness.settle_down()
    Follower(queue, x_stream_offset=20, room=100)
    harness.settle_down()
    assert head.file is None, "it was closed"
    slow.unacked = 0
    queue.mark_dirty()
    harness.settle_down()
    assert slow.offsets == [0, 2] and queue.fault is None
    assert any("offsets 1 to 1 cannot be read" in alarm for alarm in harness.store.alarms)
