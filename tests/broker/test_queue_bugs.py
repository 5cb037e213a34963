"""What was wrong with queues once, by name."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest

from kvitto.base.errors import ChannelError, StoreFull
from kvitto.broker.queues import queue as queues
from kvitto.broker.queues import retries
from kvitto.broker.transfers.bulk import Bulk
from kvitto.store import log, pieces
from tests.support import stored
from tests.support.harness import NO_PROPERTIES, BrokerHarness, Taker, address


def flip_body(harness: BrokerHarness, name: str, body: bytes) -> None:
    """Damage the stored message with this body."""
    path, data = next(
        (p, d) for p, d in harness.disk.files().items() if p.endswith(".log") and body in d and "queues" in p
    )
    harness.disk.flip(path, data.index(body))


def with_messages(count: int, **arguments: Any) -> BrokerHarness:
    """One batch for each."""
    harness = BrokerHarness()
    harness.declare("q", **arguments)
    for i in range(count):
        harness.publish("q", f"message {i}".encode())
        harness.turn()
    harness.settle_down()
    return harness


def test_a_damaged_message_that_came_back_does_not_hold_up_expiry_for_ever() -> None:
    """D3: the turn never ended."""
    harness = with_messages(3, x_message_ttl=60_000)
    queue = harness.queue("q")
    taker = Taker(queue)
    for _ in range(2):
        queue.get(taker)
    queue.requeue(0, 2, 18)
    harness.turn()
    flip_body(harness, "q", b"message 0")
    harness.kill()
    assert harness.peek("q") == [b"message 1", b"message 2"]
    queue = harness.queue("q")
    harness.turn()
    assert harness.drain("q") == [b"message 1", b"message 2"]
    assert queue.ready == 0
    assert harness.store.alarms


def test_damage_is_written_off_once_wherever_it_lies() -> None:
    """D3: the count of ready messages fell by what was not ready, and the last ones were never delivered."""
    for damaged in range(6):
        for taken in range(4):
            harness = with_messages(6)
            taker = Taker(harness.queue("q"))
            for _ in range(taken):
                harness.queue("q").get(taker)
            if taken > 1:
                harness.queue("q").ack(1, 1)
            harness.turn()
            flip_body(harness, "q", f"message {damaged}".encode())
            harness.kill()
            queue = harness.queue("q")
            gone = {damaged} | ({1} if taken > 1 else set())
            assert harness.drain("q") == [f"message {i}".encode() for i in range(6) if i not in gone]
            harness.turn()
            assert queue.ready == 0 == queue.messages
            assert queue.log.segments[0].done
            harness.publish("q", b"more")
            harness.turn()
            assert harness.drain("q") == [b"more"]


def test_a_rejected_message_that_cannot_be_read_leaves_the_queue() -> None:
    """X4, D3: it stayed unsettled for ever, and so did its segment."""
    harness = BrokerHarness()
    harness.declare("dead")
    harness.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    harness.publish("q", b"message")
    harness.settle_down()
    queue = harness.queue("q")
    taker = Taker(queue)
    queue.get(taker)
    harness.turn()
    flip_body(harness, "q", b"message")
    queue.backlog._behind.release()
    queue.release_windows()
    queue.reject(0, 1)
    harness.settle_down()
    assert queue.messages == 0
    assert queue.log.segments[0].done


def test_range_settlement_takes_the_bodies_out_of_the_books() -> None:
    """x-max-length-bytes counted what had been settled by range until the queue was empty."""
    harness = BrokerHarness()
    harness.declare("q", x_max_length_bytes=100, x_overflow="reject-publish")
    for i in range(5):
        assert harness.publish("q", bytes([i]) * 20)
        if i == 2:
            harness.turn()
    assert not harness.publish("q", b"x")
    harness.queue("q").settle_until(4)
    assert harness.queue("q").ready_bytes == 20
    assert harness.publish("q", b"y" * 80)


def test_a_tail_that_waits_for_room_does_not_shorten_the_life_of_what_joins_it() -> None:
    """D4: the time to live counted from when the disk had become full."""
    harness = with_messages(1)
    harness.disk.full = True
    harness.publish("q", b"first", ttl_ms=60_000)
    harness.turn()
    harness.clock.advance(10)
    harness.broker.tick()
    harness.publish("q", b"second", ttl_ms=5_000)
    harness.disk.full = False
    harness.broker.retry_writes()
    harness.turn()
    assert harness.drain("q") == [b"message 0", b"first", b"second"]


def test_what_was_delivered_and_given_back_within_a_turn_is_flagged_after_a_kill() -> None:
    """A9: the delivered mark was written only for what is unacked at the end of the turn."""
    harness = with_messages(1)
    queue = harness.queue("q")
    taker = Taker(queue)
    queue.get(taker)
    queue.requeue(0, 1, 9)
    harness.turn()
    harness.kill()
    assert [d.redelivered for d in harness.take("q")] == [True]


def test_a_delivery_limit_holds_over_a_restart() -> None:
    """A8: what was unacked for the last time allowed when the broker went down is not delivered once more."""
    harness = BrokerHarness()
    harness.declare("dead")
    harness.declare("q", x_delivery_limit=1, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    harness.publish("q", b"poison")
    harness.settle_down()
    queue = harness.queue("q")
    taker = Taker(queue)
    queue.get(taker)
    queue.requeue(0, 1, 6)
    queue.get(taker)
    harness.turn()
    harness.kill()
    assert harness.take("q") == []
    harness.settle_down()
    assert harness.peek("dead") == [b"poison"]


@pytest.mark.parametrize("damaged", [False, True])
def test_a_damaged_batch_costs_also_what_the_delivery_limit_would_have_moved(damaged: bool) -> None:
    """D3, A8: the move comes after the start, and the only copy of the dead letter is in the batch. An alarm names its offset."""
    harness = BrokerHarness()
    harness.declare("dead")
    queue = harness.declare("q", x_delivery_limit=1, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    for batch in range(2):
        harness.publish("q", b"poison %d" % batch)
        harness.publish("q", b"waits %d" % batch)
        harness.turn()
    harness.settle_down()
    taker = Taker(queue)
    while queue.get(taker):
        pass
    for offset in (0, 2):
        queue.requeue(offset, 1, 8)
        assert queue.get(taker)
    assert [delivery.offset for delivery in taker.got] == [0, 1, 2, 3, 0, 2]
    harness.settle_down()
    harness.broker.finish()
    harness.store.shut()
    if damaged:
        flip_body(harness, "q", b"waits 0")
    harness.kill()
    assert [(delivery.body, delivery.redelivered) for delivery in harness.take("q")] == [
        (b"waits %d" % batch, True) for batch in range(damaged, 2)
    ]
    harness.settle_down()
    assert harness.peek("dead") == [b"poison %d" % batch for batch in range(damaged, 2)]
    assert bool(harness.store.alarms) == damaged
    assert any("offsets 0 to 1 cannot be read" in alarm for alarm in harness.store.alarms) == damaged


def test_a_restart_expires_after_the_journal_and_keeps_the_rest_in_order() -> None:
    harness = BrokerHarness()
    harness.declare("q")
    harness.publish("q", b"a", ttl_ms=100)
    harness.publish("q", b"b")
    harness.settle_down()
    harness.clock.advance(1)
    harness.kill()
    assert harness.queue("q").ready == 1
    assert harness.peek("q") == [b"b"]


def test_purge_leaves_what_is_unacked_or_on_its_way() -> None:
    """Unacked messages come back when their channel goes, moves arrive, parked dead letters are purged."""
    harness = BrokerHarness()
    harness.declare("dead")
    harness.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    for body in (b"unacked", b"moving", b"ready"):
        harness.publish("q", body)
    harness.settle_down()
    queue = harness.queue("q")
    taker = Taker(queue)
    queue.get(taker)
    queue.get(taker)
    queue.reject(1, 1)
    harness.turn()
    assert queue.purge() == 1
    harness.settle_down()
    assert harness.peek("dead") == [b"moving"]
    queue.requeue(0, 1, 7)
    assert harness.drain("q") == [b"unacked"]
    harness.settle_down()
    harness.kill()
    assert harness.peek("q") == [] and harness.peek("dead") == [b"moving"]


def test_moves_that_find_no_room_are_parked_and_arrive_later() -> None:
    """X4, D4."""
    harness = BrokerHarness()
    harness.declare("dead")
    harness.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    harness.publish("q", b"m")
    harness.settle_down()
    queue = harness.queue("q")
    queue.get(Taker(queue))
    harness.turn()
    harness.sync()
    harness.disk.full = True
    queue.reject(0, 1)
    harness.turn()
    assert list(queue.parked) == [(0, 1)]
    harness.disk.full = False
    harness.broker.retry_writes()
    harness.clock.advance(2)
    harness.broker.tick()
    harness.settle_down()
    assert harness.peek("dead") == [b"m"]
    assert queue.messages == 0


def test_a_failed_write_of_the_tail_forgets_nothing() -> None:
    """D4: whichever of the writes of a turn fails, the next turn writes all of it, once."""
    for at in range(1, 6):
        harness = with_messages(2)
        queue = harness.queue("q")
        taker = Taker(queue)
        queue.get(taker)
        harness.disk.fail_at[harness.disk.operations + at] = StoreFull("no room")
        queue.ack(0, 1)
        for i in range(3):
            harness.publish("q", f"late {i}".encode())
        harness.turn()
        harness.broker.retry_writes()
        harness.disk.fail_at.clear()
        harness.settle_down()
        harness.kill()
        assert harness.drain("q") == [b"message 1", b"late 0", b"late 1", b"late 2"]


@pytest.mark.parametrize("whole", [0, 2 << 20], ids=["in slices", "whole"])
@pytest.mark.parametrize("late", [0, 3])
def test_a_write_that_finds_no_room_does_not_take_the_note_of_a_delivery_with_it(
    late: int, whole: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A9: the queue forgot that a delivery had to be noted before it is sent, although there was room again by then."""
    monkeypatch.setattr(pieces, "WHOLE_BYTES", whole)
    failed = []
    for at in range(1, 12):
        harness = with_messages(2)
        queue = harness.queue("q")
        for i in range(late):
            harness.publish("q", f"late {i}".encode())
        taker = Taker(queue)
        for _ in range(2 + late):
            queue.get(taker)
        harness.disk.fail_at[harness.disk.operations + at] = StoreFull("no room")
        harness.turn()
        failed += [at] if not harness.disk.fail_at else []
        harness.kill()
        queue = harness.queue("q")
        flags = {body: stored.flagged(queue, offset) for offset, body in stored.bodies(queue)}
        assert flags == {delivery.body: True for delivery in taker.got}, at
        assert len(flags) == 2 + late
    assert len(failed) >= 2


def test_many_messages_come_back_past_the_delivery_limit_in_linear_time() -> None:
    """A8: each was searched for in a list of all."""

    def seconds(count: int) -> float:
        harness = BrokerHarness()
        queue = harness.declare("q", x_delivery_limit=0)
        for _ in range(count):
            harness.publish("q", b"m")
        queue.add_consumer(Taker(queue))
        queue.pump()
        began = time.process_time()
        queue.requeue(0, count, count)
        assert queue.messages == 0
        return time.process_time() - began

    few, many = (min(seconds(count) for _ in range(3)) for count in (1_000, 16_000))
    assert many < 100 * few


def failed(harness: BrokerHarness, name: str, *bodies: bytes) -> None:
    """Publish, deliver and nack these: they wait for x-retry-delay-min."""
    queue = harness.queue(name)
    for body in bodies:
        assert harness.publish(name, body)
    for delivery in harness.take(name):
        queue.retry(delivery.offset, 1, len(delivery.body))
    harness.settle_down()


def test_a_queue_with_delayed_or_parked_messages_is_not_empty() -> None:
    """A15, X4: if-empty takes nothing with it that is not in a consumer's hands."""
    harness = BrokerHarness()
    delayed = harness.declare("delayed", x_retry_delay_min=60_000)
    failed(harness, "delayed", b"m")
    parked = harness.declare("parked", x_dead_letter_exchange="", x_dead_letter_routing_key="missing", x_message_ttl=1)
    harness.publish("parked", b"m")
    harness.clock.advance(1)
    harness.broker.tick()
    harness.settle_down()
    for queue in (delayed, parked):
        assert (queue.ready, queue.messages) == (0, 1)
        with pytest.raises(ChannelError, match="not empty"):
            harness.broker.vhosts["/"].delete_queue(queue, if_empty=True)
    held = harness.declare("held")
    harness.publish("held", b"m")
    harness.take("held")
    assert harness.broker.vhosts["/"].delete_queue(held, if_empty=True) == 0


@pytest.mark.parametrize("limit", [{"x_max_length": 5}, {"x_max_length_bytes": 500}])
def test_delayed_messages_count_for_the_limits(limit: dict[str, Any]) -> None:
    """A15, Q: what will be ready again takes up the queue's room meanwhile."""
    harness = BrokerHarness()
    queue = harness.declare("q", x_overflow="reject-publish", x_retry_delay_min=1000, **limit)
    failed(harness, "q", *[b"x" * 100] * 3)
    assert [harness.publish("q", b"y" * 100) for _ in range(4)] == [True, True, False, False]
    harness.clock.advance(2)
    harness.broker.tick()
    assert (queue.ready, len(queue.retries.delays), queue.retries.delays.bytes) == (5, 0, 0)
    harness.drain("q")
    assert harness.publish("q", b"z" * 100)
    drops = harness.declare("drops", x_retry_delay_min=1000, **limit)
    failed(harness, "drops", *[b"x" * 100] * 4)
    for i in range(3):
        assert harness.publish("drops", b"%d" % i * 100)
    assert (drops.ready, drops.messages, harness.peek("drops")) == (1, 5, [b"2" * 100])
    failed(harness, "drops", b"y" * 100, b"y" * 100)
    harness.publish("drops", b"z" * 100)
    assert (drops.ready, drops.messages) == (0, len(drops.retries.delays))


def test_many_delayed_messages_come_back_a_bounded_number_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A15, W8: each turn brings back some."""
    monkeypatch.setattr(retries, "RETRIES_PER_TURN", 10)
    harness = BrokerHarness()
    queue = harness.declare("q", x_retry_delay_min=1000)
    failed(harness, "q", *[b"%d" % i for i in range(25)])
    harness.clock.advance(2)
    came = []
    while harness.broker.timers.next_ms is not None:
        harness.broker.tick()
        harness.settle_down()
        harness.clock.advance(0.001)
        came.append(queue.ready)
    assert came == [10, 20, 25]
    assert sorted(harness.drain("q"), key=int) == [b"%d" % i for i in range(25)] and queue.messages == 0


def test_what_the_journal_brings_back_after_a_power_cut_is_flagged() -> None:
    """A9: a dead letter was delivered, the power cut took it from its queue, the journal brought it back, and it was not flagged."""
    for seed in range(10):
        harness = BrokerHarness()
        harness.declare("dead")
        work = harness.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        harness.publish("work", b"message")
        harness.settle_down()
        assert work.get(Taker(work))
        work.reject(0, 1)
        harness.turn()
        harness.sync(everything=False)  # the journal's new file
        harness.sync(everything=False)  # the inventory, which knows it then
        assert [delivery.redelivered for delivery in harness.take("dead")] == [False]
        harness.turn()
        harness.cut(Random(seed), hostile=True)
        harness.kill()
        assert [delivery.redelivered for delivery in harness.take("dead")] == [True], (
            "and the start after that knows it too"
        )


def test_what_the_journal_brings_back_of_a_damaged_batch_is_flagged() -> None:
    """A9, D3: a dead letter was delivered and acked, its batch is damaged, the journal still has it."""
    harness = BrokerHarness()
    harness.declare("dead")
    work = harness.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    for body in (b"moved", b"moved too"):
        harness.publish("work", body)
    harness.settle_down()
    for offset in range(2):
        assert work.get(Taker(work))
        work.reject(offset, 1)
        harness.turn()
        harness.settle_down()
    assert len(harness.drain("dead")) == 2
    path = next(
        p for p, d in harness.disk.files().items() if harness.queue("dead").log.queue_id in p and p.endswith(".log")
    )
    harness.disk.flip(path, harness.disk.files()[path].index(b"moved too"))
    harness.restart()
    assert harness.store.alarms
    for _ in range(2):
        assert [(each.body, each.redelivered) for each in harness.take("dead")] == [(b"moved too", True)]
        harness.restart()


def test_with_priorities_the_second_start_after_a_power_cut_flags_what_was_delivered() -> None:
    """A9: what had been delivered lay below the mark, behind which alone the first start noted its doubt."""
    for seed in range(10):
        harness = BrokerHarness()
        queue = harness.declare("q", x_max_priority=4)
        for i in range(3):
            harness.publish("q", b"%d" % i)
        harness.settle_down()
        assert queue.get(Taker(queue))
        harness.turn()
        harness.cut(Random(seed))
        harness.kill()
        assert all(delivery.redelivered for delivery in harness.take("q") if delivery.body == b"0")


def test_a_footer_that_a_killed_process_has_written_is_synced_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: it was not, an end in order vouched for it, and after a power cut its absence was taken for damage."""
    monkeypatch.setattr(log, "SEGMENT_BYTES", 500)
    for seed in range(10):
        harness = with_messages(1)
        for _ in range(2):
            harness.publish("q", bytes(400))
            harness.turn()
        harness.sync()  # and behind it comes the footer
        harness.kill()
        harness.settle_down()
        harness.broker.finish()
        harness.store.shut()
        harness.cut(Random(seed), hostile=True)
        assert harness.store.ending.in_order and not harness.store.alarms


def test_behind_a_damaged_last_batch_of_a_segment_the_next_segment_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """D3: whoever read the segment from its beginning was told that nothing followed."""
    monkeypatch.setattr(log, "SEGMENT_BYTES", 400)
    harness = BrokerHarness()
    harness.declare("q")
    for i in range(8):
        harness.publish("q", f"message {i}".encode())
        harness.turn()
    harness.restart()
    queue = harness.queue("q")
    last = queue.log.segments[0].end - 1
    assert last > 0 and len(queue.log.segments) > 2
    flip_body(harness, "q", f"message {last}".encode())
    assert harness.drain("q") == [f"message {i}".encode() for i in range(8) if i != last]


def test_what_a_damaged_settlement_log_had_settled_is_flagged() -> None:
    """A9, D3: the delivered mark was in the same block."""
    harness = BrokerHarness()
    harness.declare("q")
    for i in range(2):
        harness.publish("q", b"%d" % i)
    harness.turn()
    harness.drain("q")
    harness.publish("q", b"2")
    harness.restart()
    path = next(path for path in harness.disk.files() if path.endswith(".ack"))
    harness.disk.flip(path, 100)
    for _ in range(2):
        harness.restart()
        seen = {delivery.body: delivery.redelivered for delivery in harness.take("q")}
        assert seen.keys() >= {b"0", b"1"} and seen[b"0"] and seen[b"1"], "and the start after that knows it too"


@pytest.mark.parametrize("lost", ["a bit", "the log", "the log and its segment"])
def test_when_the_delivered_mark_is_lost_messages_of_later_segments_are_flagged(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A9, D3: only the messages of the segment whose settlement log was damaged were flagged, and the mark goes for all."""
    monkeypatch.setattr(log, "SEGMENT_BYTES", 900)
    harness = BrokerHarness()
    harness.declare("q")
    for i in range(4):
        harness.publish("q", b"%d" % i + bytes(300))
        harness.turn()
    harness.settle_down()
    queue = harness.queue("q")
    assert len(harness.take("q")) == 4
    queue.ack(0, 1)  # the mark is written in the same block, and not in the last segment
    harness.settle_down()
    harness.broker.finish()
    harness.store.shut()
    (path,) = (path for path in harness.disk.files() if path.endswith(".ack"))
    segments = sorted(p for p in harness.disk.files() if p.endswith(".log") and p.startswith("queues"))
    assert len(segments) > 1 and path.removesuffix(".ack") == segments[0].removesuffix(".log")
    if lost == "a bit":
        harness.disk.flip(path, len(harness.disk.files()[path]) - 1)
    else:
        harness.disk.unlink(path)
    if lost.endswith("segment"):
        harness.disk.unlink(segments[0])
    harness.kill()
    assert harness.store.alarms
    for _ in range(2):
        seen = [(delivery.body[:1], delivery.redelivered) for delivery in harness.take("q")]
        assert seen[-2:] == [(b"2", True), (b"3", True)] and all(again for _, again in seen)
        harness.restart()


def test_a_redelivery_whose_message_is_lost_does_not_keep_the_broker_from_starting() -> None:
    """D3, P2: the settlement log told of an offset that was in no readable batch any more; also after a power cut."""
    for end in range(20):
        harness = BrokerHarness()
        queue = harness.declare("q")
        harness.settle_down()
        harness.publish("q", b"message")
        harness.turn()
        taker = Taker(queue)
        for _ in range(2):
            assert queue.get(taker)
            harness.turn()
            queue.requeue(0, 1, 7)
        harness.turn()
        if end:
            harness.cut(Random(end), hostile=True)
            assert harness.bodies("q") in ([], [b"message"]) and not harness.store.alarms
        else:
            harness.restart()
            flip_body(harness, "q", b"message")
            harness.restart()
            assert harness.bodies("q") == [] and harness.store.alarms


def test_a_limit_of_bytes_holds_within_a_turn() -> None:
    """Q: what came in one turn could take any number of bytes, and more with every turn of many publishers."""
    harness = BrokerHarness()
    queue = harness.declare("q", x_max_length_bytes=10_000)
    for _ in range(12_000):
        harness.publish("q", bytes(1024))
        assert queue.ready_bytes <= 10_000


def test_a_journal_file_that_a_killed_process_had_removed_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A11: what it says was settled, and the segment that knew that it had been applied was gone for sure."""
    monkeypatch.setattr(log, "ROLL_WHEN_SETTLED_BYTES", 100)
    harness = BrokerHarness()
    harness.declare("dead")
    queue = harness.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    harness.publish("work", b"rejected")
    queue.reject(harness.take("work")[0].offset, 1)
    harness.settle_down()
    harness.kill()  # this start has it removed, and dies before the directory is synced
    harness.kill()
    assert not harness.disk.listdir("journal")
    assert harness.drain("dead") == [b"rejected"]
    harness.settle_down()
    harness.publish("dead", b"later")
    harness.settle_down()
    for seed in range(20):
        found = BrokerHarness(harness.disk.crash(Random(seed), hostile=seed % 2 == 1), harness.clock)
        assert found.bodies("dead") == [b"later"], seed


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("limit", [{"x_max_length": 2}, {"x_message_ttl": 1000}])
def test_a_start_applies_the_whole_journal_before_anything_leaves_for_a_limit(
    limit: dict[str, Any], large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X4: what one record pushed out, or had looked at for its age, was settled by the next one: it was dead-lettered twice."""
    if large:
        monkeypatch.setattr(queues, "ADOPTED", 1)
    harness = BrokerHarness()
    harness.declare("dead")
    queue = harness.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead", **limit)
    for body in (b"m1", b"m2"):
        harness.publish("q", body)
    harness.settle_down()
    queue.get(Taker(queue))
    harness.settle_down()
    for body in (b"m3", b"m4"):
        commit(harness, queue, body)
    queue.reject(0, 1)
    harness.turn()
    harness.clock.advance(2.0)
    harness.kill()
    harness.settle_down()
    assert harness.peek("dead").count(b"m1") == 1
    assert sorted(harness.peek("q") + harness.peek("dead")) == [b"m1", b"m2", b"m3", b"m4"]


def commit(harness: BrokerHarness, queue: queues.Queue, body: bytes) -> None:
    """Write a transaction's record to the journal."""
    bulk = Bulk(harness.broker)
    for steps in (bulk.put([queue], address("q"), NO_PROPERTIES, body), bulk.keep_room(), bulk.encode()):
        list(steps)
    applied = bulk.apply()
    harness.broker.records.write(bulk.record, lambda: next(applied, 0) is None, lambda: None)
