"""Consumers that wait for room in their connection's output are served once there is some."""

from __future__ import annotations

import pytest

from kvitto.broker import turning
from kvitto.protocol.output import LIMIT
from kvitto.wire import methods as m
from kvitto.wire.methods import frame
from kvitto.wire.spec import FRAME_METHOD
from tests.protocol import sessions
from tests.protocol.sansio import ProtocolHarness
from tests.protocol.test_limits import ask

BODY = bytes(1000)
COUNT = 2 * LIMIT // len(BODY)
CONSUMERS = 100


@pytest.mark.parametrize("allowance", [*range(250, 1050, 25), 20_000])
def test_nobody_is_forgotten_when_the_output_is_full_and_the_turn_is_over(
    monkeypatch: pytest.MonkeyPatch, allowance: int
) -> None:
    """The time of a turn ended just when the output was full: then nobody asked for room, and nobody was told when there was some."""
    harness = ProtocolHarness()
    wire, other = harness.wire(), harness.wire()
    ask(wire, m.QueueDeclare("q"), m.BasicQos(0, 1 + COUNT // CONSUMERS))
    for number in range(CONSUMERS):
        ask(wire, m.BasicConsume("q", f"c{number}"))
    monkeypatch.setattr(turning, "ALLOWANCE", allowance)
    for _ in range(COUNT):
        other.feed(sessions.content(1, m.BasicPublish("", "q"), b"\0\0", BODY))
    harness.settle_down()
    assert harness.broker.vhosts["/"].queues["q"].ready == 0


def test_a_consumer_keeps_pace_with_a_publisher_who_fills_each_read() -> None:
    """Each turn took half a MiB of input and gave half a MiB of output, in which there are fewer messages."""
    harness = ProtocolHarness()
    wire, other = harness.wire(), harness.wire()
    ask(wire, m.QueueDeclare("q"), m.BasicConsume("q", "a consumer tag of a usual length", no_ack=True))
    message = sessions.content(1, m.BasicPublish("", "q"), b"\0\0", bytes(16))
    many = message * (LIMIT // len(message))
    for _ in range(3):
        other.feed(many)
        harness.turn()
        assert harness.broker.vhosts["/"].queues["q"].ready == 0


def test_nobody_waits_behind_the_many_queues_of_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A10: what a connection got beyond one output came out of the next turn's allowance, and the others' queues waited for many turns."""
    harness = ProtocolHarness()
    greedy, publisher, other = harness.wire(), harness.wire(), harness.wire()
    names = [f"q{number}" for number in range(20)]
    ask(greedy, *(m.QueueDeclare(name) for name in names))
    ask(other, m.QueueDeclare("other"), m.BasicConsume("other", "c", no_ack=True))
    for name in names:
        publisher.feed(sessions.content(1, m.BasicPublish("", name), b"\0\0", BODY) * 1000)
        harness.settle_down()
    monkeypatch.setattr(turning, "ALLOWANCE", 1000)  # less than two outputs
    greedy.feed(b"".join(frame(FRAME_METHOD, 1, m.BasicConsume(name, name, no_ack=True).encode()) for name in names))
    one = sessions.content(1, m.BasicPublish("", "other"), b"\0\0", b"")
    waited = 0
    while any(harness.broker.vhosts["/"].queues[name].ready for name in names):
        if not harness.broker.vhosts["/"].queues["other"].ready:
            publisher.feed(one)
            waited = 0
        harness.turn()
        greedy.written.clear()
        waited += 1
        assert waited <= 2
