"""No Python object per message on the data plane: the compiled broker handles a thousand messages with few allocations.

CPython's own test module makes one allocation fail, the n-th. What allocates once per message ends in a MemoryError here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvitto.base.build import compiled
from kvitto.wire import methods as m
from kvitto.wire.buf import Buf
from kvitto.wire.methods import frame
from kvitto.wire.spec import FRAME_METHOD
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import ProtocolHarness, Wire

limit = pytest.importorskip("_testcapi", reason="this Python comes without its test modules")
pytestmark = pytest.mark.skipif(not compiled(), reason="needs the compiled form: run `make build`")

COUNT = 3000
FEW = COUNT // 5
"""Allocations of a turn, whatever the number of messages: batches, buffers that grow, the simulated disk."""


@contextmanager
def few_allocations() -> Iterator[None]:
    limit.set_nomemory(FEW, FEW + 1)
    try:
        yield
    finally:
        limit.remove_mem_hooks()


def box_of(data: bytes) -> Buf:
    box = Buf(0)
    box.add(data)
    return box


def publishes(first: int = 0) -> Buf:
    return box_of(
        b"".join(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"%016d" % n) for n in range(first, first + COUNT))
    )


def pair(harness: ProtocolHarness, *, durable: bool, no_ack: bool, confirm: bool = False) -> tuple[Wire, Wire]:
    """A publisher and a consumer of `q`, warm."""
    publisher, consumer = harness.wire(), harness.wire()
    publisher.put(1, m.QueueDeclare("q", durable=durable))
    harness.settle_down()
    if confirm:
        publisher.put(1, m.ConfirmSelect())
    consumer.put(1, m.BasicQos(0, COUNT))
    consumer.put(1, m.BasicConsume("q", "tag", no_ack=no_ack))
    harness.settle_down()
    return publisher, consumer


def delivered(wire: Wire) -> int:
    return sum(isinstance(method, m.BasicDeliver) for method in wire.methods())


@pytest.mark.parametrize("durable", [False, True])
def test_publish_and_deliver(durable: bool) -> None:
    """Benchmarks (a) and (b)."""
    harness = ProtocolHarness()
    publisher, consumer = pair(harness, durable=durable, no_ack=True)
    for round_ in range(3):  # the first one fills pools and makes buffers grow
        box = publishes()
        if round_ < 2:
            publisher.connection.receive(box, box.n)
            harness.settle_down()
            assert delivered(consumer) == COUNT
    with few_allocations():
        publisher.connection.receive(box, box.n)
    with few_allocations():
        harness.turn()
    harness.settle_down()
    assert delivered(consumer) == COUNT


def test_publish_with_confirms_and_acks() -> None:
    """Benchmark (d): confirms, manual acks, prefetch."""
    harness = ProtocolHarness()
    publisher, consumer = pair(harness, durable=True, no_ack=False, confirm=True)
    tag = 0
    for round_ in range(3):
        box = publishes()
        acks = box_of(
            b"".join(frame(FRAME_METHOD, 1, m.BasicAck(tag + n + 1).encode()) for n in range(COUNT))
            if round_ % 2
            else frame(FRAME_METHOD, 1, m.BasicAck(tag + COUNT, True).encode())
        )
        if round_ < 2:
            publisher.connection.receive(box, box.n)
            harness.settle_down()
            assert delivered(consumer) == COUNT
            consumer.connection.receive(acks, acks.n)
            harness.settle_down()
        tag += COUNT
    with few_allocations():
        publisher.connection.receive(box, box.n)
        harness.turn()
    harness.settle_down()
    assert delivered(consumer) == COUNT
    with few_allocations():
        consumer.connection.receive(acks, acks.n)
        harness.turn()
    harness.settle_down()
    assert harness.broker.vhosts["/"].queues["q"].unacked == 0


def test_a_backlog() -> None:
    """Benchmark (c): read back from the disk."""
    harness = ProtocolHarness()
    publisher = harness.wire()
    publisher.put(1, m.QueueDeclare("q", durable=True))
    harness.settle_down()
    for _ in range(3):
        box = publishes()
        publisher.connection.receive(box, box.n)
        harness.settle_down()
    for _ in range(2):
        consumer = harness.wire()
        consumer.put(1, m.BasicQos(0, COUNT))
        harness.settle_down()
        consumer.put(1, m.BasicConsume("q", "tag", no_ack=False))
        with few_allocations():
            harness.turn()
        harness.settle_down()
        assert delivered(consumer) == COUNT


@pytest.mark.parametrize("again", [False, True])
def test_an_ack_finds_its_consumer_whatever_failed_behind_the_delivery(again: bool) -> None:
    """The queue was out of service, its consumer's slot was free, and an ack of the delivery ended the process.

    One allocation fails, the n-th of the turn that delivers; then everything is acked, also what another queue has delivered since.
    """
    failed = 0
    for n in range(60):
        harness = ProtocolHarness()
        publisher, consumer = pair(harness, durable=True, no_ack=False)
        publisher.put(1, m.QueueDeclare("other", durable=True))
        harness.settle_down()
        for number in range(3):
            publisher.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"%d" % number))
        if again:
            harness.settle_down()
            consumer.put(1, m.BasicNack(consumer.connection.channels[1].next_tag - 1, True, True))
        queue = harness.broker.vhosts["/"].queues["q"]
        limit.set_nomemory(n, n + 1)
        try:
            harness.turn()
        except MemoryError:
            pass  # in the harness
        finally:
            limit.remove_mem_hooks()
        failed += queue.fault is not None
        if consumer.closed or publisher.closed:
            continue
        consumer.put(1, m.BasicConsume("other", "another"))
        publisher.feed(content(1, m.BasicPublish("", "other"), NO_PROPERTIES, b"x"))
        harness.settle_down()
        consumer.put(1, m.BasicAck(0, True))
        harness.settle_down()
        assert harness.broker.vhosts["/"].queues["other"].unacked == 0
    assert failed
