"""A16: a channel whose oldest unacknowledged delivery is older than x-consumer-timeout is closed."""

from __future__ import annotations

from typing import Any

import pika
import pika.exceptions
import pytest

from kvitto.broker.administration.policies import policy
from kvitto.protocol.timeouts import LOOKS, Timeouts
from kvitto.wire import methods as m
from kvitto.wire.methods import BasicDeliver, ChannelClose, Method, decode
from kvitto.wire.spec import FRAME_METHOD
from tests.protocol.raw import NO_PROPERTIES, Raw, content
from tests.protocol.sansio import ProtocolHarness, Wire, frame

TIMEOUT_MS = 10_000
LATE_MS = 1000
"""A tenth of it: what a timeout may be exceeded by."""


def opened(harness: ProtocolHarness, *methods: Method, **arguments: Any) -> Wire:
    """A connection that has declared "q" with the timeout, and "free" without one."""
    wire = harness.wire()
    arguments = {"x-consumer-timeout": TIMEOUT_MS} | arguments
    say(wire, 1, m.QueueDeclare("q", durable=True, arguments=arguments), m.QueueDeclare("free", durable=True), *methods)
    wire.frames()
    return wire


def say(wire: Wire, channel: int, *methods: Method) -> None:
    """One after the other: some answers wait for the disk."""
    for method in methods:
        wire.put(channel, method)
        wire.harness.settle_down()


def publish(harness: ProtocolHarness, queue: str, *bodies: bytes) -> None:
    for body in bodies:
        harness.wire().feed(content(1, m.BasicPublish("", queue), NO_PROPERTIES, body))
    harness.settle_down()


def pass_time(harness: ProtocolHarness, ms: int) -> None:
    """As the server does: every timer when it is due."""
    end = harness.clock.monotonic_ms() + ms
    while (due := harness.broker.timers.next_ms) is not None and due <= end:
        harness.clock.advance(max(due - harness.clock.monotonic_ms(), 0) / 1000)
        harness.broker.tick()
        harness.settle_down()
    harness.clock.advance((end - harness.clock.monotonic_ms()) / 1000)


def tags(wire: Wire) -> list[tuple[int, bool]]:
    """(delivery tag, redelivered) since the last call."""
    return [(each.delivery_tag, each.redelivered) for each in wire.methods() if isinstance(each, BasicDeliver)]


def closed(wire: Wire) -> list[tuple[int, ChannelClose]]:
    """Channels that were closed since the last call."""
    found = [(number, decode(payload)) for kind, number, payload in wire.frames() if kind == FRAME_METHOD]
    return [(number, each) for number, each in found if isinstance(each, ChannelClose)]


def set_timeout(harness: ProtocolHarness, ms: int) -> None:
    """A policy for all queues."""
    harness.broker.vhosts["/"].set_policy(
        "policy", policy("p", {"pattern": "", "definition": {"consumer-timeout": ms}})
    )


def ready(harness: ProtocolHarness, queue: str = "q") -> int:
    return int(harness.broker.vhosts["/"].queues[queue].ready)


@pytest.fixture
def harness() -> ProtocolHarness:
    return ProtocolHarness()


def test_the_channel_is_closed_and_its_messages_come_back(harness: ProtocolHarness) -> None:
    """A16, A6: never before the time, at most a tenth later; in RabbitMQ's words, and no method is to blame."""
    wire = opened(harness, m.BasicConsume("q", "c"))
    publish(harness, "q", b"a", b"b")
    assert tags(wire) == [(1, False), (2, False)]
    say(wire, 1, m.BasicAck(1))
    pass_time(harness, TIMEOUT_MS - 1)
    assert not closed(wire) and harness.broker.vhosts["/"].queues["q"].unacked == 1
    pass_time(harness, LATE_MS + 1)
    text = (
        "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 10000 ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    assert closed(wire) == [(1, ChannelClose(406, text, 0, 0))]
    say(wire, 1, m.ChannelCloseOk())
    say(wire, 1, m.ChannelOpen(), m.BasicConsume("q", "again"))
    harness.settle_down()
    assert tags(wire) == [(1, True)]


def test_who_acks_in_time_is_never_closed(harness: ProtocolHarness) -> None:
    """A16: it is the oldest delivery that counts, not the consumer's age; every way to settle it is one."""
    wire = opened(harness, m.BasicConsume("q", "c"))
    settle = [m.BasicAck(1), m.BasicReject(2, False), m.BasicNack(3, False, False), m.BasicRecover(True)]
    for method in settle:
        publish(harness, "q", b"x")
        pass_time(harness, TIMEOUT_MS - 1)
        say(wire, 1, method)
    pass_time(harness, TIMEOUT_MS - 1)
    assert not closed(wire)
    pass_time(harness, LATE_MS + 1)
    assert [number for number, _ in closed(wire)] == [1], "what was recovered has come again, and its time is over too"


def test_many_deliveries_have_a_time_each(harness: ProtocolHarness) -> None:
    """A16: the oldest that is left decides, wherever it is."""
    wire = opened(harness, m.BasicConsume("q", "c"))
    for tag in range(1, 31):
        publish(harness, "q", b"x")
        pass_time(harness, 700)
        if tag > 10:
            say(wire, 1, m.BasicAck(tag - 10))
    say(wire, 1, *(m.BasicAck(tag) for tag in range(21, 31) if tag != 25))
    pass_time(harness, TIMEOUT_MS - 6 * 700 - 1)
    assert not closed(wire)
    pass_time(harness, LATE_MS + 1)
    assert len(closed(wire)) == 1


def test_only_queues_that_have_it(harness: ProtocolHarness) -> None:
    """A16: another queue's deliveries may be as old as they like, on the same channel too."""
    wire = opened(
        harness, m.BasicConsume("free", "free"), m.BasicConsume("q", "q"), m.BasicConsume("q", "no", True, True)
    )
    publish(harness, "free", b"x", b"x")
    publish(harness, "q", b"x", b"x")
    given = {each.delivery_tag: each.consumer_tag for each in wire.methods() if isinstance(each, BasicDeliver)}
    say(wire, 1, *(m.BasicAck(tag) for tag, consumer in given.items() if consumer == "q"))
    pass_time(harness, 10 * TIMEOUT_MS)
    assert not closed(wire) and harness.broker.vhosts["/"].queues["free"].unacked == 2


def test_each_channel_and_timeout_for_itself(harness: ProtocolHarness) -> None:
    """A16: the other channels of the connection live on."""
    wire = opened(harness, m.BasicConsume("q", "slow"))
    say(wire, 1, m.QueueDeclare("short", durable=True, arguments={"x-consumer-timeout": 200}))
    say(wire, 2, m.ChannelOpen(), m.BasicConsume("short", "a"), m.BasicConsume("q", "b"))
    publish(harness, "q", b"x", b"x")
    publish(harness, "short", b"x")
    pass_time(harness, 199)
    assert not closed(wire)
    pass_time(harness, 101)
    ((number, why),) = closed(wire)
    assert number == 2 and " 200 ms" in why.reply_text
    say(wire, 2, m.ChannelCloseOk())
    pass_time(harness, TIMEOUT_MS + LATE_MS)
    assert [number for number, _ in closed(wire)] == [1]
    assert ready(harness) == 2 and ready(harness, "short") == 1


def test_get_counts_and_a_consumer_that_was_cancelled(harness: ProtocolHarness) -> None:
    """A16, A14: as in RabbitMQ, whoever took it."""
    wire = opened(harness, m.BasicConsume("q", "c"))
    publish(harness, "q", b"x")
    say(wire, 1, m.BasicCancel("c"))
    publish(harness, "q", b"y")
    say(wire, 2, m.ChannelOpen(), m.BasicGet("q"))
    say(wire, 3, m.ChannelOpen(), m.BasicGet("free"), m.BasicGet("q", True))
    pass_time(harness, TIMEOUT_MS + LATE_MS)
    assert [number for number, _ in closed(wire)] == [1, 2]
    assert ready(harness) == 2


def test_what_a_transaction_holds_is_acknowledged(harness: ProtocolHarness) -> None:
    """A16, T6: as in RabbitMQ; after a rollback it is unacked again."""
    wire = opened(harness, m.TxSelect(), m.BasicConsume("q", "c"))
    publish(harness, "q", b"x")
    say(wire, 1, m.BasicAck(1))
    pass_time(harness, 2 * TIMEOUT_MS)
    assert not closed(wire)
    say(wire, 1, m.TxRollback())
    pass_time(harness, LATE_MS)
    assert [number for number, _ in closed(wire)] == [1]


def test_acks_that_are_held_back_by_the_broker_are_waited_for(harness: ProtocolHarness) -> None:
    """A16, D4: a publisher that is blocked is not read from, so its acks cannot come in."""
    wire = opened(harness, m.BasicConsume("q", "c"))
    publish(harness, "q", b"x")
    harness.hub.alarms.block("low on disk")
    wire.feed(content(1, m.BasicPublish("", "free"), NO_PROPERTIES, b"one more"))
    assert not wire.reading
    pass_time(harness, 2 * TIMEOUT_MS)
    assert not closed(wire)
    harness.hub.alarms.block(None)
    say(wire, 1, m.BasicAck(1))
    pass_time(harness, 2 * TIMEOUT_MS)
    assert not closed(wire)


def flood(harness: ProtocolHarness, wire: Wire, *last: Method, turns: int) -> None:
    """Channel 2 publishes more than fits into a turn before each turn that looks at channel 1."""
    say(wire, 2, m.ChannelOpen())
    one = content(2, m.BasicPublish("", "nowhere"), NO_PROPERTIES, b"x")
    for number in range(turns):
        wire.feed(
            one * 3000 + (b"".join(frame(FRAME_METHOD, 1, each.encode()) for each in last) if not number else b"")
        )
        assert wire.connection.yielded and wire.connection.rest
        if (due := harness.broker.timers.next_ms) is None:
            return  # nothing is watched any more
        harness.clock.advance((due - harness.clock.monotonic_ms()) / 1000)
        harness.broker.tick()
        harness.turn()


def test_who_always_sends_more_than_fits_into_a_turn_is_closed_in_time(harness: ProtocolHarness) -> None:
    """A16: the input that is left to the next turn may have an ack in it, but is waited for only once."""
    wire = opened(harness, m.BasicConsume("q", "c"))
    publish(harness, "q", b"x")
    flood(harness, wire, turns=LOOKS + 3)
    assert [number for number, _ in closed(wire)] == [1]


def test_an_ack_in_the_input_that_is_left_to_the_next_turn_comes_in_time(harness: ProtocolHarness) -> None:
    """A16."""
    wire = opened(harness, m.BasicConsume("q", "c"))
    publish(harness, "q", b"x")
    pass_time(harness, TIMEOUT_MS + TIMEOUT_MS // LOOKS)
    assert not closed(wire)
    flood(harness, wire, m.BasicAck(1), turns=2)
    harness.settle_down()
    assert not closed(wire)


def test_a_clock_that_jumps_makes_nobody_late(harness: ProtocolHarness) -> None:
    """A16."""
    wire = opened(harness, m.BasicConsume("q", "c"))
    publish(harness, "q", b"x")
    harness.clock.advance(86_400)
    harness.broker.tick()
    pass_time(harness, TIMEOUT_MS // 2)
    assert not closed(wire)


def test_it_counts_as_a_delivery(harness: ProtocolHarness) -> None:
    """A16, A8: what is taken again and again and never acknowledged ends where its queue says."""
    wire = opened(harness, **{"x-delivery-limit": 1})
    publish(harness, "q", b"x")
    for _ in range(2):
        say(wire, 1, m.BasicConsume("q", "c"))
        pass_time(harness, TIMEOUT_MS + LATE_MS)
        assert closed(wire)
        say(wire, 1, m.ChannelCloseOk(), m.ChannelOpen())
    assert harness.broker.vhosts["/"].queues["q"].messages == 0


def test_a_stream_lets_go_of_a_reader_too(harness: ProtocolHarness) -> None:
    """A16: nothing comes back, it was never taken."""
    wire = harness.wire()
    arguments: dict[str, Any] = {"x-queue-type": "stream", "x-consumer-timeout": TIMEOUT_MS}
    say(wire, 1, m.QueueDeclare("s", durable=True, arguments=arguments), m.BasicQos(0, 1), m.BasicConsume("s", "c"))
    harness.settle_down()
    publish(harness, "s", b"x")
    assert tags(wire) == [(1, False)]
    pass_time(harness, TIMEOUT_MS + LATE_MS)
    assert [number for number, _ in closed(wire)] == [1]


def test_nothing_is_kept_of_those_who_are_gone(harness: ProtocolHarness) -> None:
    """A16: neither channels nor timers; a queue that was deleted has no timeout any more."""
    wire = opened(harness, m.BasicConsume("q", "c"))
    publish(harness, "q", b"x")
    say(wire, 2, m.ChannelOpen(), m.BasicConsume("q", "d"), m.ChannelClose(200, "bye"))
    other = opened(harness, m.BasicConsume("q", "e"))
    other.connection.lost()
    assert [[*channels] for channels in harness.hub.timeouts._channels.values()] == [[wire.connection.channels[1]]]
    say(wire, 1, m.QueueDelete("q"))
    pass_time(harness, 2 * TIMEOUT_MS)
    assert not closed(wire)
    say(wire, 1, m.BasicAck(1))
    pass_time(harness, TIMEOUT_MS)
    assert not harness.hub.timeouts._channels and not len(harness.broker.timers)


@pytest.mark.parametrize("value", [-1, "1000", True, 1.8e6])
def test_the_argument_is_a_number_of_ms(raw: Raw, name: str, value: Any) -> None:
    """A16, Q."""
    raw.put(1, m.QueueDeclare(name, durable=True, arguments={"x-consumer-timeout": value}))
    assert "invalid arg 'x-consumer-timeout'" in raw.channel_error(406).reply_text


def test_another_one_is_refused(harness: ProtocolHarness) -> None:
    """A16, D1."""
    wire = opened(harness)
    say(wire, 1, m.QueueDeclare("q", durable=True, arguments={"x-consumer-timeout": 5}))
    assert "inequivalent arg 'x-consumer-timeout'" in closed(wire)[0][1].reply_text


def test_policies_give_and_take_it(harness: ProtocolHarness) -> None:
    """A16: also to consumers that are there; it counts from then on, and of two timeouts the smaller one."""
    wire = opened(harness, m.BasicConsume("free", "c"))
    say(wire, 2, m.ChannelOpen(), m.BasicConsume("q", "d"))
    publish(harness, "free", b"x")
    publish(harness, "q", b"x")
    pass_time(harness, TIMEOUT_MS // 2)
    set_timeout(harness, 1000)
    pass_time(harness, 999)
    assert not closed(wire)
    set_timeout(harness, 2 * TIMEOUT_MS)
    pass_time(harness, TIMEOUT_MS - TIMEOUT_MS // 2 - 1000)
    assert not closed(wire)
    pass_time(harness, LATE_MS + 1)
    assert [number for number, _ in closed(wire)] == [2], "the queue's own timeout"
    pass_time(harness, 2 * TIMEOUT_MS + 2 * LATE_MS)
    assert [number for number, _ in closed(wire)] == [1]


@pytest.mark.parametrize("later_ms", [500, 1001, 60_000, None])
@pytest.mark.parametrize("taken", ["by a consumer that is cancelled", "by basic.get"])
def test_what_no_consumer_of_the_queue_holds_keeps_its_timeout(
    harness: ProtocolHarness, taken: str, later_ms: int | None
) -> None:
    """A16: whatever a policy gives to the queue afterwards (docs/policies.md)."""
    set_timeout(harness, 1000)
    wire = opened(harness)
    publish(harness, "free", b"x")
    say(wire, 1, *([m.BasicGet("free")] if "get" in taken else [m.BasicConsume("free", "c"), m.BasicCancel("c")]))
    if later_ms is None:
        harness.broker.vhosts["/"].clear_policy("policy", "p")
    else:
        set_timeout(harness, later_ms)
    wire.frames()
    pass_time(harness, 999)
    assert not closed(wire)
    pass_time(harness, 101)
    assert [number for number, _ in closed(wire)] == [1]


def test_a_get_after_a_policy_has_its_timeout_and_one_before_it_has_none(harness: ProtocolHarness) -> None:
    """A16: also if one channel holds both."""
    wire = opened(harness)
    publish(harness, "free", b"x", b"y", b"z")
    say(wire, 1, m.BasicGet("free"))
    set_timeout(harness, 1000)
    say(wire, 1, m.BasicGet("free"), m.BasicGet("free"), m.BasicAck(2))
    say(wire, 1, m.BasicAck(3))
    wire.frames()
    pass_time(harness, 2 * TIMEOUT_MS)
    assert not closed(wire)
    publish(harness, "free", b"w")
    say(wire, 1, m.BasicGet("free"))
    wire.frames()
    pass_time(harness, 1100)
    assert [number for number, _ in closed(wire)] == [1]


def test_a_get_that_had_to_wait_has_its_timeout(harness: ProtocolHarness) -> None:
    """A16: the channel held nothing and had no consumer when it was looked at."""
    wire = opened(harness)
    publish(harness, "q", b"x")
    queue = harness.broker.vhosts["/"].queues["q"]
    queue.begin_return()
    wire.put(1, m.BasicGet("q"))
    for _ in range(3):
        harness.clock.advance(TIMEOUT_MS / 10_000)
        harness.broker.tick()
        harness.turn()
    queue.end_return()
    harness.settle_down()
    assert queue.unacked == 1
    wire.frames()
    pass_time(harness, TIMEOUT_MS + LATE_MS)
    assert [number for number, _ in closed(wire)] == [1]


def test_a_policy_looks_at_one_timeout_for_each_consumer(
    harness: ProtocolHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel may have 1,600 timeouts, and a queue 10,000 consumers: a policy that looked at all of them took 1.5 s of CPU."""
    wire = opened(harness, m.BasicConsume("free", "c"))
    say(wire, 1, m.BasicConsume("q", "own", arguments={"x-consumer-timeout": 5000}))
    publish(harness, "free", b"x")
    set_timeout(harness, 60_000)
    pass_time(harness, 10_000)

    def all_of_them(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Timeouts, "look_again", all_of_them)
    for ms in (5000, 60_000, 5000):
        set_timeout(harness, ms)
    wire.frames()
    pass_time(harness, 5500)
    assert [number for number, _ in closed(wire)] == [1]


def test_what_cancelled_consumers_and_earlier_policies_had_is_not_watched(harness: ProtocolHarness) -> None:
    """A16: one consumer that stays keeps no memory for the timeouts of all that were there before."""
    wire = opened(harness, m.BasicConsume("free", "stays"))
    for k in range(1, 200):
        ms = 1000 + 997 * k * k
        say(wire, 1, m.BasicConsume("free", "goes", arguments={"x-consumer-timeout": ms}), m.BasicCancel("goes"))
        set_timeout(harness, 2 * ms)
    (watches,) = harness.hub.timeouts._watches.values()
    assert len(watches) <= 12
    pass_time(harness, 2 * ms)
    assert len(harness.hub.timeouts._channels) <= 12
    wire.frames()
    publish(harness, "free", b"x")
    pass_time(harness, 2 * ms + ms // 5)
    assert len(closed(wire)) == 1, "the policy that is there now counts"


def test_pika(port: int, name: str) -> None:
    """A16: by the server's own timers; what comes back may be taken by somebody else."""
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        slow, quick = connection.channel(), connection.channel()
        slow.queue_declare(name, durable=True, arguments={"x-consumer-timeout": 100})
        slow.basic_publish("", name, b"x")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as told:
            all(method for method, _, _ in slow.consume(name, inactivity_timeout=20))
        assert told.value.reply_code == 406 and "timed out" in told.value.reply_text
        method, _, body = quick.basic_get(name, auto_ack=True)
        assert (method.redelivered, body) == (True, b"x")


# -- a consumer's own ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("queues", [None, 3 * TIMEOUT_MS])
def test_a_consumers_own_timeout_counts_before_its_queues(queues: int | None) -> None:
    harness = ProtocolHarness()
    wire = opened(harness, **{"x-consumer-timeout": queues})
    say(wire, 1, m.BasicConsume("q", "c", arguments={"x-consumer-timeout": TIMEOUT_MS}))
    publish(harness, "q", b"x")
    pass_time(harness, TIMEOUT_MS - LATE_MS)
    assert closed(wire) == []
    pass_time(harness, 2 * LATE_MS)
    ((number, close),) = closed(wire)
    assert (number, close.reply_code) == (1, 406) and f"{TIMEOUT_MS} ms" in close.reply_text


def test_a_consumer_may_be_without_a_timeout_on_a_queue_that_has_one() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    say(wire, 1, m.BasicConsume("q", "c", arguments={"x-consumer-timeout": 0}))
    publish(harness, "q", b"x")
    pass_time(harness, 3 * TIMEOUT_MS)
    assert closed(wire) == []


def test_a_queue_with_a_timeout_of_zero_has_none() -> None:
    harness = ProtocolHarness()
    wire = opened(harness, m.BasicConsume("q", "c"), **{"x-consumer-timeout": 0})
    publish(harness, "q", b"x")
    pass_time(harness, 3 * TIMEOUT_MS)
    assert closed(wire) == []


@pytest.mark.parametrize("wrong", [-1, "soon", 1.5, True, None])
def test_a_consumers_timeout_that_is_none_is_refused(wrong: Any) -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    say(wire, 1, m.BasicConsume("q", "c", arguments={"x-consumer-timeout": wrong}))
    ((_, close),) = closed(wire)
    assert close.reply_code == 406 and "invalid arg 'x-consumer-timeout'" in close.reply_text


@pytest.mark.parametrize("timeout_ms", [1, 33, 999, 1056, 1057, 10_001, 131_071, 3_600_001])
def test_timeouts_that_are_looked_at_together_are_kept_each(harness: ProtocolHarness, timeout_ms: int) -> None:
    """A16: at most a tenth of the time late, or a tenth of a second, and the peer is told its own timeout."""
    harness.clock.advance(1)
    for other in (timeout_ms + 1, timeout_ms):
        wire = opened(harness, m.BasicConsume("free", str(other), arguments={"x-consumer-timeout": other}))
    publish(harness, "free", b"x", b"x")
    pass_time(harness, timeout_ms - 1)
    assert not closed(wire)
    pass_time(harness, max(timeout_ms // 10, 100) + 1)
    ((_, close),) = closed(wire)
    assert f"Timeout value used: {timeout_ms} ms" in close.reply_text


def test_ten_thousand_different_timeouts_are_few_timers(harness: ProtocolHarness) -> None:
    """Each consumer may have one of its own; a look at each took a third of the CPU."""
    wire = opened(harness)
    before = len(harness.broker.timers)
    for ms in range(1, 10_000):
        wire.connection.hub.timeouts.watch(wire.connection.channels[1], ms)
    assert len(harness.broker.timers) - before < 200
    wire.connection.hub.timeouts.forget(wire.connection.channels[1])
    pass_time(harness, 1000)
    assert len(harness.broker.timers) == before
