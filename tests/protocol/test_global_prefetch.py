"""A channel that holds more unacked messages than its global prefetch: it gets no more, and nothing else happens."""

from __future__ import annotations

import pytest

from kvitto.wire import methods as m
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import ProtocolHarness, Wire

QUEUE = "q"


@pytest.fixture
def wire() -> Wire:
    """A peer with a queue of three messages."""
    wire = ProtocolHarness().wire()
    wire.put(1, m.QueueDeclare(QUEUE))
    wire.harness.settle_down()
    for _ in range(3):
        wire.feed(content(1, m.BasicPublish("", QUEUE), NO_PROPERTIES, b"x"))
    wire.harness.settle_down()
    wire.frames()
    return wire


def consume() -> m.BasicConsume:
    return m.BasicConsume(QUEUE, "c")


def delivered(wire: Wire) -> int:
    """Deliveries to consumers since the last look."""
    wire.harness.settle_down()
    return sum(isinstance(method, m.BasicDeliver) for method in wire.methods())


def check_goes_on(wire: Wire) -> None:
    """Acks of everything give the consumer what is left."""
    wire.put(1, m.BasicAck(0, True))
    wire.harness.settle_down()
    assert wire.harness.broker.vhosts["/"].queues[QUEUE].ready == 0
    assert not wire.closed


def test_a_get_beside_a_consumer_whose_global_prefetch_is_used_up(wire: Wire) -> None:
    wire.put(1, m.BasicQos(0, 1, True), consume())
    assert delivered(wire) == 1
    wire.put(1, m.BasicGet(QUEUE))
    assert delivered(wire) == 0
    check_goes_on(wire)


def test_a_consumer_on_a_channel_that_holds_more_than_its_global_prefetch(wire: Wire) -> None:
    wire.put(1, m.BasicGet(QUEUE), m.BasicGet(QUEUE), m.BasicQos(0, 1, True), consume())
    delivered(wire)
    check_goes_on(wire)


def test_a_global_prefetch_that_is_set_below_what_is_unacked(wire: Wire) -> None:
    wire.put(1, m.BasicQos(0, 2, True), consume())
    assert delivered(wire) == 2
    wire.put(1, m.BasicQos(0, 1, True))
    assert delivered(wire) == 0
    check_goes_on(wire)
