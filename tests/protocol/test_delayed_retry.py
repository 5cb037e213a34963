"""A15: a nacked message is due again after min(least * 2^(count-1), most) with jitter, and holds nothing up."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.wire import methods as m
from kvitto.wire.methods import BasicDeliver, ChannelClose, Method, decode, frame
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from tests.protocol.sansio import ProtocolHarness, Wire


def publish(wire: Wire, *bodies: bytes) -> None:
    for body in bodies:
        wire.feed(
            frame(FRAME_METHOD, 1, m.BasicPublish("", "q").encode())
            + frame(FRAME_HEADER, 1, b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + b"\0\0")
            + frame(FRAME_BODY, 1, body)
        )
    wire.harness.settle_down()


def opened(harness: ProtocolHarness, **arguments: Any) -> Wire:
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True, arguments={"x-retry-delay-min": 1000} | arguments))
    harness.settle_down()
    wire.put(1, m.BasicConsume("q", "c"))
    harness.settle_down()
    wire.frames()
    return wire


def came(wire: Wire) -> list[tuple[bytes, int, bool]]:
    """(body, tag, redelivered) of what was delivered since the last call."""
    wire.harness.settle_down()
    found: list[tuple[bytes, int, bool]] = []
    last: BasicDeliver | None = None
    for kind, _, payload in wire.frames():
        if kind == FRAME_METHOD:
            method = decode(payload)
            last = method if isinstance(method, BasicDeliver) else None
        elif kind == FRAME_BODY and last is not None:
            found.append((payload, last.delivery_tag, last.redelivered))
    return found


def wait(harness: ProtocolHarness, seconds: float) -> None:
    harness.clock.advance(seconds)
    harness.broker.tick()
    harness.settle_down()


@pytest.mark.parametrize("back", [m.BasicNack(1, False, True), m.BasicReject(1, True)])
def test_it_comes_again_later_and_what_is_behind_it_does_not_wait(back: Method) -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    publish(wire, b"bad", b"good")
    assert [body for body, _, _ in came(wire)] == [b"bad", b"good"]
    wire.put(1, back)
    publish(wire, b"next")
    assert came(wire) == [(b"next", 3, False)]
    assert harness.broker.vhosts["/"].queues["q"].messages == 3
    wait(harness, 0.99)
    assert came(wire) == []
    wait(harness, 0.12)
    assert came(wire) == [(b"bad", 4, True)]


FAILED, RETURNED = m.BasicReject(1, True), m.BasicNack(1, False, True)


@pytest.mark.parametrize("kind", ["all", "failed", "returned", "disabled"])
@pytest.mark.parametrize("back", [FAILED, RETURNED], ids=["reject", "nack"])
def test_rabbitmqs_type_says_which_messages_are_delayed(kind: str, back: Method) -> None:
    """x-delayed-retry-type of RabbitMQ 4.3: a rejected message has failed, a nacked one is returned."""
    harness = ProtocolHarness()
    arguments: dict[str, Any] = {"x-retry-delay-min": None, "x-delayed-retry-type": kind, "x-delayed-retry-min": 1000}
    wire = opened(harness, **arguments)
    publish(wire, b"bad")
    came(wire)
    wire.put(1, back)
    delayed = kind == "all" or kind == ("failed" if back is FAILED else "returned")
    assert len(came(wire)) == (0 if delayed else 1)
    wait(harness, 1.01)
    assert len(came(wire)) == (1 if delayed else 0)


def test_rabbitmqs_delay_grows_by_the_same_amount_up_to_the_most() -> None:
    """min(min * deliveries, max), without jitter."""
    harness = ProtocolHarness()
    arguments: dict[str, Any] = {
        "x-delayed-retry-type": "all",
        "x-delayed-retry-min": 1000,
        "x-delayed-retry-max": 2500,
    }
    wire = opened(harness, **{"x-retry-delay-min": None}, **arguments)
    publish(wire, b"bad")
    (_, tag, _) = came(wire)[0]
    for seconds in (1, 2, 2.5, 2.5):
        wire.put(1, m.BasicNack(tag, False, True))
        wait(harness, seconds - 0.001)
        assert came(wire) == []
        wait(harness, 0.002)
        ((_, tag, _),) = came(wire)


@pytest.mark.parametrize("kind", ["failed", "returned"])
def test_a_transaction_gives_back_as_without_one(kind: str) -> None:
    harness = ProtocolHarness()
    wire = harness.wire()
    arguments: dict[str, Any] = {"x-delayed-retry-type": kind, "x-delayed-retry-min": 1000}
    wire.put(1, m.QueueDeclare("q", durable=True, arguments=arguments))
    harness.settle_down()
    wire.put(1, m.TxSelect(), m.BasicConsume("q", "c"))
    other = harness.wire()
    publish(other, b"1", b"2")
    assert [body for body, _, _ in came(wire)] == [b"1", b"2"]
    wire.put(1, m.BasicReject(1, True), m.BasicNack(2, False, True), m.TxCommit())
    assert [body for body, _, _ in came(wire)] == [b"2" if kind == "failed" else b"1"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"x-delayed-retry-type": "some"}, "'some' is none of disabled, all, failed, returned"),
        ({"x-delayed-retry-type": "all"}, "it needs x-delayed-retry-min"),
        ({"x-delayed-retry-min": 5, "x-delayed-retry-max": 4}, "it needs an x-delayed-retry-min that is not larger"),
        ({"x-delayed-retry-type": "all", "x-delayed-retry-min": 5, "x-retry-delay-min": 5}, "only one of the two"),
    ],
)
def test_a_wrong_delay_is_refused(wrong: dict[str, Any], why: str) -> None:
    wire = ProtocolHarness().wire()
    wire.put(1, m.QueueDeclare("q", arguments=wrong))
    wire.harness.settle_down()
    (close,) = wire.methods()
    assert isinstance(close, ChannelClose) and close.reply_code == 406 and why in close.reply_text


def test_each_failure_doubles_the_delay_up_to_the_most() -> None:
    harness = ProtocolHarness()
    wire = opened(harness, **{"x-retry-delay-max": 5000})
    publish(wire, b"bad")
    (_, tag, _) = came(wire)[0]
    for seconds in (1, 2, 4, 5, 5):
        wire.put(1, m.BasicNack(tag, False, True))
        wait(harness, seconds - 0.01)
        assert came(wire) == []
        wait(harness, seconds * 0.1 + 0.02)
        (_, tag, again) = came(wire)[0]
        assert again


def test_a_lost_channel_and_recover_give_back_at_once() -> None:
    """A6, A13."""
    harness = ProtocolHarness()
    wire = opened(harness)
    publish(wire, b"x")
    came(wire)
    wire.put(1, m.BasicRecover(True))
    assert [body for body, _, _ in came(wire)] == [b"x"]
    wire.put(1, m.ChannelClose(200, ""))
    other = harness.wire()
    other.put(1, m.BasicConsume("q", "c"))
    assert [body for body, _, _ in came(other)] == [b"x"]


def test_the_delivery_limit_counts_and_a_transaction_delays_too() -> None:
    """A8, T2."""
    harness = ProtocolHarness()
    wire = opened(harness, **{"x-delivery-limit": 1})
    publish(wire, b"x")
    came(wire)
    wire.put(1, m.TxSelect(), m.BasicNack(1, False, True), m.TxCommit())
    assert came(wire) == []
    wait(harness, 1.2)
    assert came(wire) == [(b"x", 2, True)]
    wire.put(1, m.BasicNack(2, False, True), m.TxCommit())
    wait(harness, 10)
    assert came(wire) == [] and harness.broker.vhosts["/"].queues["q"].messages == 0


def test_after_a_restart_it_is_due_and_a_purge_takes_it() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    publish(wire, b"x", b"y")
    came(wire)
    wire.put(1, m.BasicNack(2, True, True))
    harness.settle_down()
    again = ProtocolHarness(harness.disk.kill())
    taker = again.wire()
    taker.put(1, m.BasicConsume("q", "c"))
    assert [(body, redelivered) for body, _, redelivered in came(taker)] == [(b"x", True), (b"y", True)]
    taker.put(1, m.BasicNack(2, True, True), m.QueuePurge("q"))
    again.settle_down()
    assert again.broker.vhosts["/"].queues["q"].messages == 0
    wait(again, 10)
    assert came(taker) == []


def test_who_reads_by_offset_finds_what_is_delayed() -> None:
    """A15, and the class log: it is not settled, whenever it is due."""
    harness = ProtocolHarness()
    wire = opened(harness)
    wire.put(1, m.ConfirmSelect())
    publish(wire, b"a", b"bad", b"c", b"worse", b"e")
    came(wire)
    for tag in (1, 3, 5):
        wire.put(1, m.BasicAck(tag))
    wire.put(1, m.BasicNack(4, False, True), m.BasicNack(2, False, True), m.BasicCancel("c"), m.LogInspect("q"))
    harness.settle_down()
    told = wire.methods()[-1]
    assert isinstance(told, m.LogInspectOk) and (told.first, told.next, told.settled) == (1, 5, 1)
    wire.put(1, m.LogRead("q", "r", 0, 5))
    harness.settle_down()
    frames = wire.frames()
    assert [payload for kind, _, payload in frames if kind == FRAME_BODY] == [b"bad", b"worse"]
    done = decode(frames[-1][2])
    assert isinstance(done, m.LogReadOk) and (done.next, done.count) == (5, 2)
    wait(harness, 1.2)
    wire.put(1, m.LogInspect("q"))
    harness.settle_down()
    told = wire.methods()[-1]
    assert isinstance(told, m.LogInspectOk) and told.first == 1


@pytest.mark.parametrize(
    "arguments",
    [{"x-retry-delay-min": -1}, {"x-retry-delay-min": "1"}, {"x-retry-delay-max": 10}],
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any]) -> None:
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True, arguments=arguments))
    harness.settle_down()
    closed = wire.methods()[-1]
    assert isinstance(closed, ChannelClose) and closed.reply_code == 406 and "x-retry-delay" in closed.reply_text
