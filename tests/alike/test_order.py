"""What one connection does in order looks done in order, and one prefetch for several consumers is shared fairly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from kvitto.wire import methods as m
from tests.protocol.raw import Raw


def test_a_global_prefetch_is_shared_by_the_queues_of_a_channel(raw: Raw, name: str) -> None:
    """A10: with three full queues and a prefetch of 1 the first one got all of 99 deliveries."""
    queues = [f"{name}.{number}" for number in range(3)]
    for queue in queues:
        raw.declare(queue)
        raw.put_in(queue, *[queue.encode()] * 100)
    raw.call(1, m.BasicQos(0, 1, True), m.BasicQosOk)
    raw.put(1, *(m.BasicConsume(queue, no_wait=True, consumer_tag=queue) for queue in queues))
    served: Counter[bytes] = Counter()
    for _ in range(99):
        message = raw.message()
        served[message.body] += 1
        raw.put(1, m.BasicAck(message.method.delivery_tag))
    assert min(served[queue.encode()] for queue in queues) >= 15, served


@pytest.mark.parametrize(("prefetch", "consumers"), [(1, 2), (1, 3), (2, 3), (4, 3)])
def test_a_global_prefetch_is_shared_by_the_consumers_of_a_queue(
    raw: Raw, name: str, prefetch: int, consumers: int
) -> None:
    """A10: the first consumer got all messages, as it was always before those that waited."""
    raw.declare(name)
    raw.put_in(name, *[b"x"] * 60)
    raw.call(1, m.BasicQos(0, prefetch, True), m.BasicQosOk)
    raw.put(1, *(m.BasicConsume(name, no_wait=True, consumer_tag=f"c{number}") for number in range(consumers)))
    served: Counter[str] = Counter()
    for _ in range(60):
        message = raw.message()
        served[message.method.consumer_tag] += 1
        raw.put(1, m.BasicAck(message.method.delivery_tag))
    assert len(served) == consumers and min(served.values()) >= 5, served


def test_a_get_does_not_count_towards_the_global_prefetch(raw: Raw, name: str) -> None:
    raw.declare(name)
    raw.declare(name + ".other")
    raw.put_in(name + ".other", b"got", b"got too")
    raw.call(1, m.BasicQos(0, 1, True), m.BasicQosOk)
    assert raw.get(name + ".other") is not None
    assert raw.get(name + ".other") is not None
    raw.consume(name)
    raw.publish(1, "", name, b"delivered")
    assert raw.message().body == b"delivered"


def test_a_consumer_that_waits_has_a_message_before_a_get_behind_it(
    raw: Raw, more: Callable[..., Raw], name: str
) -> None:
    """The get had the message, 50 times of 50."""
    raw.declare(name)
    waiting = more()
    waiting.consume(name, no_ack=True)
    for number in range(50):
        raw.publish(1, "", name, b"%d" % number)
        assert raw.get(name) is None
    assert [waiting.message().body for _ in range(50)] == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("dropped", [b"one", None])
def test_a_get_behind_a_nack_sees_no_queue_over_its_limit(raw: Raw, name: str, dropped: bytes | None) -> None:
    """What comes back makes the queue drop its head, as a publish does; the get had the message that is too much."""
    raw.declare(name, arguments={"x-max-length": 1 if dropped else 2})
    raw.put_in(name, b"one")
    first = raw.get(name)
    assert first is not None
    raw.put_in(name, b"two")
    raw.put(1, m.BasicNack(first.method.delivery_tag, requeue=True))
    assert raw.drain(name) == [body for body in (b"one", b"two") if body != dropped]
