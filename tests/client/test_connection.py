"""The client against a real broker."""

import socket
import threading
from collections.abc import Iterator
from typing import Protocol

import pytest

from kvitto.client import (
    AMQPError,
    Channel,
    ChannelClosed,
    ConnectFailed,
    Connection,
    ConnectionLost,
    ConsumerCancelled,
    Properties,
    Returned,
)


class HasUrl(Protocol):
    url: str


@pytest.fixture
def connection(kvitto_broker: HasUrl) -> Iterator[Connection]:
    with Connection(kvitto_broker.url) as connection:
        yield connection


@pytest.fixture
def channel(connection: Connection) -> Channel:
    return connection.channel()


@pytest.fixture
def queue(channel: Channel) -> str:
    return channel.queue_declare(exclusive=True).queue


def receive_all(channel: Channel, count: int) -> list[bytes]:
    """The bodies of the next `count` deliveries."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        batch = channel.receive(timeout_s=10)
        assert len(batch), f"only {len(bodies)} of {count} messages came"
        bodies += batch.bodies.tolist()
    return bodies


def test_published_messages_are_confirmed_and_received_in_order(channel: Channel, queue: str) -> None:
    channel.confirm_select()
    bodies = [f"message {n}".encode() for n in range(500)]
    tags = [channel.publish(body, routing_key=queue) for body in bodies]
    assert tags == list(range(1, 501))
    assert channel.wait_for_confirms(timeout_s=10)
    assert channel.unconfirmed() == []
    channel.consume(queue)
    assert receive_all(channel, 500) == bodies


def test_a_delivery_carries_all_that_was_published(channel: Channel, queue: str) -> None:
    properties = Properties(content_type="text/plain", headers={"k": [1, "two"]}, message_id="m-1", delivery_mode=2)
    channel.publish(b"body", "", queue, properties)
    tag = channel.consume(queue, consumer_tag="me")
    delivery = channel.receive(timeout_s=10).delivery(0)
    assert delivery == (tag, 1, False, "", queue, properties, b"body")


def test_bodies_of_any_size_come_back_whole(channel: Channel, queue: str) -> None:
    frame = channel.connection.frame_max - 8
    bodies = [b"", b"x", bytes(frame), b"y" * (frame + 1), bytes(range(256)) * 8192]
    for body in bodies:
        channel.publish(body, routing_key=queue)
    channel.consume(queue)
    assert receive_all(channel, len(bodies)) == bodies


def test_get_returns_a_message_or_none(channel: Channel, queue: str) -> None:
    assert channel.get(queue) is None
    channel.confirm_select()
    channel.publish(b"one", routing_key=queue)
    channel.wait_for_confirms(10)
    got = channel.get(queue)
    assert got is not None
    assert (got.delivery_tag, got.redelivered, got.body) == (1, False, b"one")


def test_a_nacked_message_comes_again_as_redelivered(channel: Channel, queue: str) -> None:
    channel.publish(b"again", routing_key=queue)
    channel.consume(queue)
    first = channel.receive(10).delivery(0)
    channel.nack(first.delivery_tag, requeue=True)
    second = channel.receive(10).delivery(0)
    assert (second.redelivered, second.body) == (True, b"again")
    channel.ack(second.delivery_tag)
    channel.close()


def test_returns_come_before_their_confirm(channel: Channel) -> None:
    seen: list[object] = []

    def on_confirm(tag: int, multiple: bool, ok: bool) -> None:
        seen.append((tag, ok))

    def on_return(returned: Returned) -> None:
        seen.append((returned.reply_code, returned.routing_key, returned.body))

    channel.confirm_select(on_confirm=on_confirm, on_return=on_return)
    channel.publish(b"nowhere", "", "no such queue", mandatory=True)
    channel.wait_for_confirms(10)
    assert seen == [(312, "no such queue", b"nowhere"), (1, True)]


def test_a_template_is_published_many_times(connection: Connection, channel: Channel, queue: str) -> None:
    channel.confirm_select()
    template = channel.template(b"sixteen bytes...", routing_key=queue)
    assert channel.publish_template(template, 10_000) == 1
    assert channel.publish_template(template, 10_000, now_ns=5) == 10_001
    assert channel.wait_for_confirms(30)
    channel.consume(queue, no_ack=True)
    bodies = receive_all(channel, 20_000)
    assert bodies[0] == b"sixteen bytes..."
    assert bodies[-1] == (5).to_bytes(8, "big") + b"bytes..."


def test_max_unconfirmed_holds_the_publisher_back(channel: Channel, queue: str) -> None:
    channel.confirm_select(max_unconfirmed=3)
    for _ in range(100):
        channel.publish(b"x", routing_key=queue)
        assert channel.outstanding <= 3


def test_a_publisher_and_a_broker_that_both_want_to_send_do_not_wait_for_each_other(
    channel: Channel, queue: str
) -> None:
    channel.consume(queue, no_ack=True)
    body = bytes(1 << 20)
    for _ in range(40):
        channel.publish(body, routing_key=queue)
    assert sum(map(len, receive_all(channel, 40))) == 40 << 20


def test_a_channel_error_leaves_the_connection_usable(connection: Connection, channel: Channel) -> None:
    with pytest.raises(ChannelClosed, match="404") as caught:
        channel.queue_declare("does not exist", passive=True)
    assert caught.value.code == 404
    with pytest.raises(ChannelClosed):
        channel.publish(b"x")
    assert connection.channel().queue_declare(exclusive=True).queue


def test_exchanges_bind_and_unbind(channel: Channel, queue: str) -> None:
    channel.exchange_declare("ex-a", "topic", auto_delete=True)
    channel.exchange_declare("ex-b", "fanout", auto_delete=True)
    channel.exchange_bind("ex-b", "ex-a", "a.*")
    channel.queue_bind(queue, "ex-b")
    channel.publish(b"1", "ex-a", "a.b")
    assert receive_one(channel, queue) == b"1"
    channel.exchange_unbind("ex-b", "ex-a", "a.*")
    channel.queue_unbind(queue, "ex-b")


def receive_one(channel: Channel, queue: str) -> bytes:
    """The body of the next message, taken by a consumer that goes again."""
    tag = channel.consume(queue, no_ack=True)
    body = channel.receive(10).bodies[0]
    channel.cancel(tag)
    return body


def test_a_deleted_queue_cancels_its_consumer(connection: Connection, channel: Channel) -> None:
    queue = channel.queue_declare(auto_delete=True).queue
    channel.consume(queue)
    connection.channel().queue_delete(queue)
    with pytest.raises(ConsumerCancelled):
        channel.receive(10)


def test_purge_and_delete_count_what_they_drop(channel: Channel, queue: str) -> None:
    channel.confirm_select()
    for _ in range(3):
        channel.publish(b"x", routing_key=queue)
    channel.wait_for_confirms(10)
    assert channel.queue_purge(queue) == 3
    assert channel.queue_delete(queue) == 0


def test_a_transaction_is_seen_when_committed_and_gone_when_rolled_back(connection: Connection, queue: str) -> None:
    channel = connection.channel()
    channel.tx_select()
    channel.publish(b"gone", routing_key=queue)
    channel.tx_rollback()
    channel.publish(b"kept", routing_key=queue)
    channel.tx_commit()
    got = channel.get(queue)
    assert got is not None
    assert got.body == b"kept"


def test_an_empty_receive_ends_with_its_timeout(channel: Channel, queue: str) -> None:
    channel.consume(queue)
    assert len(channel.receive(timeout_s=0.01)) == 0


def test_receiving_without_a_consumer_says_so(channel: Channel) -> None:
    with pytest.raises(ConsumerCancelled):
        channel.receive(1)


def test_waiting_for_confirms_without_confirm_select_says_so(channel: Channel) -> None:
    with pytest.raises(AMQPError, match="confirm_select"):
        channel.wait_for_confirms()


def test_a_wrong_password_is_named(kvitto_broker: HasUrl) -> None:
    """And the address once."""
    with pytest.raises(ConnectFailed, match="login refused") as caught:
        Connection(kvitto_broker.url.replace("guest:guest", "guest:wrong"))
    assert str(caught.value).count("amqp://") == 1


def test_an_unknown_vhost_is_named(kvitto_broker: HasUrl) -> None:
    base = kvitto_broker.url.rsplit("/", 1)[0]
    with pytest.raises(ConnectFailed, match="virtual host"):
        Connection(f"{base}/nope")


def test_nobody_listening_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(ConnectFailed, match="is the broker running"):
            Connection(f"amqp://guest:guest@127.0.0.1:{port}/")


def test_a_server_that_says_nothing_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConnectFailed, match="AMQP 0-9-1 port"):
            Connection(f"amqp://127.0.0.1:{port}/?connection_timeout=100")


def test_use_after_close_says_so(kvitto_broker: HasUrl) -> None:
    connection = Connection(kvitto_broker.url)
    channel = connection.channel()
    connection.close()
    with pytest.raises(ConnectionLost, match="closed by this client"):
        channel.queue_declare()


def test_heartbeats_go_on_while_the_caller_is_busy(kvitto_broker: HasUrl) -> None:
    with Connection(f"{kvitto_broker.url}?heartbeat=1") as connection:
        before = connection.transport.sent_at
        busy = threading.Event()
        assert connection.heartbeat_s == 1
        while connection.transport.sent_at == before:
            assert not busy.wait(0.05)
        connection.channel()


def test_a_connection_that_ended_while_the_caller_was_busy_is_lost(kvitto_broker: HasUrl) -> None:
    """It was waited for on the closed socket: ValueError, also from `close` after two heartbeat intervals."""
    connection = Connection(kvitto_broker.url)
    connection.transport.received_at -= 3 * connection.heartbeat_s
    connection.transport.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(ConnectionLost):
        connection.wait_until(lambda: False, 10, "for anything")
    connection.close()


def test_after_a_lost_connection_the_unconfirmed_are_known(kvitto_broker: HasUrl) -> None:
    connection = Connection(kvitto_broker.url)
    channel = connection.channel()
    queue = channel.queue_declare(exclusive=True).queue
    channel.confirm_select()
    channel.publish(b"confirmed", routing_key=queue)
    channel.wait_for_confirms(10)
    connection.transport.sock.shutdown(socket.SHUT_RDWR)
    connection.buffer_bytes = 1000
    channel.publish(b"lost", routing_key=queue)
    with pytest.raises(ConnectionLost):
        channel.wait_for_confirms(10)
    assert channel.unconfirmed() == [2]
