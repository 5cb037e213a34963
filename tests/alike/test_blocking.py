"""The synchronous face of the client against each broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import kvitto
from kvitto.client import AMQPError
from kvitto.client.aio import Closed, Returned
from kvitto.client.blocking import SyncConnection


def url(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}/"


@contextmanager
def answering(connection: SyncConnection) -> Iterator[str]:
    """A thread that answers each question of a queue with its letters in the other order."""
    channel = connection.channel()
    queue = channel.queue(exclusive=True)
    consumer = queue.consume()

    def answer() -> None:
        for message in consumer:
            with message:
                channel.reply(message, message.body[::-1])

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield queue.name
    finally:
        consumer.cancel()
        thread.join()


def test_many_threads_call_and_each_has_its_answer(port: int) -> None:
    with (
        kvitto.connect_sync(url(port)) as connection,
        answering(connection) as questions,
        connection.channel() as channel,
        channel.rpc() as rpc,
    ):

        def ask(number: int) -> bytes:
            answer = rpc.call((b"%d" % number)[::-1], questions, timeout_s=30)
            assert answer.settled
            with answer:
                return bytes(answer.body)

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, range(100))) == [b"%d" % number for number in range(100)]


def test_a_call_without_a_queue_or_an_answer_ends(port: int) -> None:
    with kvitto.connect_sync(url(port)) as connection, connection.channel() as channel:
        silent = channel.queue(exclusive=True)
        with pytest.raises(AMQPError, match="calls need their block"):
            channel.rpc().call(b"?", silent.name)
        with channel.rpc() as rpc:
            with pytest.raises(Returned):
                rpc.call(b"?", "nobody")
            with pytest.raises(TimeoutError):
                rpc.call(b"?", silent.name, timeout_s=0.01)
            connection.close()
            with pytest.raises(Closed):
                rpc.call(b"?", silent.name)


def test_a_call_passes_interceptors(port: int) -> None:
    seen: list[str] = []

    class Seeing(kvitto.Interceptor):
        @contextmanager
        def publish(self, message: kvitto.Message) -> Iterator[None]:
            assert message.properties is not None and message.properties.correlation_id
            yield
            seen.append(message.body.decode())

        @contextmanager
        def handle(self, message: kvitto.IncomingMessage, queue: str) -> Iterator[None]:
            yield
            seen.append(f"{message.body.decode()} of {queue}")

    with (
        kvitto.connect_sync(url(port)) as other,
        answering(other) as questions,
        kvitto.connect_sync(url(port), interceptors=[Seeing()]) as connection,
        connection.channel() as channel,
        channel.rpc() as rpc,
    ):
        with rpc.call(b"abc", questions) as answer:
            assert answer.body == b"cba"
        assert seen == ["abc", "cba of amq.rabbitmq.reply-to"]
