"""Reading a queue by offset and settling by range (Kvitto's class `log`)."""

from collections.abc import Iterator
from typing import Protocol

import pytest

from kvitto.client import Channel, ChannelClosed, Connection


class HasUrl(Protocol):
    url: str


COUNT = 1000
BODIES = [f"{n:04} {'x' * (n % 50)}".encode() for n in range(COUNT)]


@pytest.fixture
def channel(kvitto_broker: HasUrl) -> Iterator[Channel]:
    """A channel beside a durable queue `events` that holds BODIES."""
    with Connection(kvitto_broker.url, buffer_bytes=1 << 16) as connection:
        setup = connection.channel()
        setup.queue_declare("events", durable=True)
        setup.confirm_select()
        for body in BODIES:
            setup.publish(body, routing_key="events")
        assert setup.wait_for_confirms(10)
        yield connection.channel()


def test_attach_tells_the_offsets(channel: Channel) -> None:
    attached = channel.log_attach("events", "spark")
    assert (attached.first, attached.next, attached.settled) == (0, COUNT, 0)
    inspected = channel.log_inspect("events")
    assert (inspected.incarnation, inspected.next) == (attached.incarnation, COUNT)


def test_a_range_can_be_read_again_and_again(channel: Channel) -> None:
    channel.log_attach("events", "spark")
    for _ in range(2):
        batch = channel.log_read("events", 100, 200)
        assert batch.delivery_tags() == list(range(101, 201))
        assert batch.bodies.tolist() == BODIES[100:200]
        assert set(batch.routing_keys.tolist()) == {b"events"}
        assert channel.last_read is not None
        assert (channel.last_read.next, channel.last_read.count) == (200, 100)


def test_a_range_comes_in_pieces_of_the_size_asked_for(channel: Channel) -> None:
    channel.log_attach("events", "spark")
    batches = list(channel.log_batches("events", 0, COUNT, batch_bytes=1))
    assert [body for batch in batches for body in batch.bodies.tolist()] == BODIES


def test_a_reading_that_is_left_early_does_not_disturb_the_next(channel: Channel) -> None:
    channel.log_attach("events", "spark")
    for _ in channel.log_batches("events", 0, COUNT, batch_bytes=1):
        break
    assert channel.log_read("events", 5, 6).bodies.tolist() == [BODIES[5]]


def test_settled_messages_are_not_read_again(channel: Channel) -> None:
    attached = channel.log_attach("events", "spark")
    assert channel.log_settle("events", "spark", attached.incarnation, 300) == 300
    assert channel.log_read("events", 0, 305).bodies.tolist() == BODIES[300:305]
    assert channel.log_inspect("events").settled == 300
    assert channel.queue_declare("events", passive=True).message_count == COUNT - 300


def test_another_incarnation_is_not_settled(channel: Channel) -> None:
    channel.log_attach("events", "spark")
    with pytest.raises(ChannelClosed):
        channel.log_settle("events", "spark", "0" * 32, 300)


def test_a_new_queue_of_that_name_is_another_incarnation(channel: Channel) -> None:
    before = channel.log_attach("events", "spark").incarnation
    channel.log_detach("events", "spark")
    channel.queue_delete("events")
    channel.queue_declare("events", durable=True)
    assert channel.log_inspect("events").incarnation != before


def test_a_missing_queue_is_404(channel: Channel) -> None:
    with pytest.raises(ChannelClosed, match="404"):
        channel.log_inspect("nothing")
