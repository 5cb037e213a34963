"""`kvitto.connect_sync`: the asyncio client for threads."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pytest

import kvitto
from kvitto.client import ChannelClosed, ConnectFailed
from kvitto.client.aio import AlreadySettled, Closed, ManyFailed, Returned
from tests.support.wait import wait_until


class HasUrl(Protocol):
    url: str


def test_the_same_names_without_await(kvitto_broker: HasUrl) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = channel.queue("letters", durable=True)
        exchange = channel.exchange("news", "fanout")
        queue.bind(exchange)
        channel.publish(b"1", "letters", headers={"n": 1})
        exchange.publish(b"2")
        bodies = []
        for message in queue.consume(timeout_s=1):
            with message:
                bodies.append((message.body, message.headers))
        assert bodies == [(b"1", {"n": 1}), (b"2", {})]
        with pytest.raises(Returned):
            channel.publish(b"", "nowhere", mandatory=True)
        with connection.channel() as other, other.transaction():
            other.publish(b"3", "letters")
        got = queue.get()
        assert got is not None and got.body == b"3"
        got.reject(requeue=True)
        with pytest.raises(AlreadySettled):
            got.ack()
        assert queue.delete() == 1
        with pytest.raises(ChannelClosed, match="404"):
            channel.queue("letters", passive=True)


def test_many_threads_publish_on_one_channel_and_consume_from_one_consumer(kvitto_broker: HasUrl) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection:
        channel, plain = connection.channel(), connection.channel(confirms=False)
        queue = channel.queue("q", durable=True)

        def publish(thread: int) -> None:
            for number in range(50):
                channel.publish(b"%d %d" % (thread, number), "q")
                plain.publish(b"plain %d %d" % (thread, number), "q")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(publish, range(8)))
        plain.flush()
        found: list[bytes] = []
        with queue.consume(prefetch=50, timeout_s=1) as consumer:

            def take() -> None:
                for message in consumer:
                    message.ack()
                    found.append(message.body)
                    if len(found) == 800:
                        return

            threads = [threading.Thread(target=take) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len(set(found)) == len(found) == 800
        assert queue.purge() == 0


def test_a_stream_is_published_and_failures_are_numbered(kvitto_broker: HasUrl) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        channel.queue("q", durable=True)
        assert channel.publish_many((b"%d" % n for n in range(50_000)), "q") == 50_000
        messages = [kvitto.Message(b"x", "nowhere" if n == 5000 else "q") for n in range(6000)]
        with pytest.raises(ManyFailed) as error:
            channel.publish_many(messages, mandatory=True)
        assert [index for index, _ in error.value.failed] == [5000]


def test_a_stream_keeps_its_order(kvitto_broker: HasUrl) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        bodies = [b"%d" % n for n in range(20_000)]
        assert channel.publish_many(bodies, "q") == len(bodies)
        with queue.consume(no_ack=True) as consumer:
            assert [message.body for message in itertools.islice(consumer, len(bodies))] == bodies


def test_what_a_failed_stream_did_not_send_is_among_its_failures(kvitto_broker: HasUrl) -> None:
    """The bodies fill the socket, so the chunk with the failure is not all sent when it fails, and the next one is under way."""
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        messages = [kvitto.Message(bytes(20_000), "nowhere" if n == 10 else "q") for n in range(9000)]
        with pytest.raises(ManyFailed) as error:
            channel.publish_many(messages, mandatory=True)
        failed = dict(error.value.failed)
        assert len(failed) > 1 and isinstance(failed[10], Returned)
        assert all("not sent" in str(each) for index, each in failed.items() if index != 10)
        channel.publish(b"last", "q")
        assert queue.purge() == error.value.taken - len(failed) + 1


def test_what_does_not_fit_is_told_by_the_next_call(kvitto_broker: HasUrl) -> None:
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel(confirms=False) as channel:
        queue = channel.queue("q", durable=True)
        channel.publish(b"x", "k" * 300)
        with pytest.raises(ValueError, match="255 bytes"):
            channel.flush()
        channel.publish(b"y", "q")
        assert wait_until(queue.get).body == b"y"


def test_a_limit_and_closing_end_calls(kvitto_broker: HasUrl) -> None:
    connection = kvitto.connect_sync(kvitto_broker.url)
    channel = connection.channel()
    queue = channel.queue("q", durable=True)
    assert list(queue.consume(timeout_s=0.01)) == []
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            next(queue.consume())
        except Closed as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    consuming = lambda: channel.queue("q", passive=True).consumer_count  # noqa: E731
    wait_until(consuming)
    connection.close()
    waiting.join()
    assert len(outcome) == 1
    for call in (connection.close, channel.close):
        call()
    with pytest.raises(Closed):
        channel.publish(b"x", "q")
    assert not [thread for thread in threading.enumerate() if thread.name == "kvitto-client"]


def test_a_host_that_does_not_answer_leaves_no_thread() -> None:
    with pytest.raises(ConnectFailed):
        kvitto.connect_sync("amqp://127.0.0.1:1/")
    assert not [thread for thread in threading.enumerate() if thread.name == "kvitto-client"]
