"""Interceptors of both faces of the client, against each broker: what they see, what they change, and what they cannot hide."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import kvitto
from kvitto.client.aio import ManyFailed, Returned
from kvitto.client.interceptors import Logging, Metrics
from tests.support.running import asynchronous


def url(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}/"


class Recording(kvitto.Interceptor):
    """Writes down what it sees, and marks each message with its name."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self.name = name
        self.lines = lines

    @contextmanager
    def publish(self, message: kvitto.Message) -> Iterator[None]:
        message.headers["path"] = str(message.headers.get("path", "")) + self.name
        with self.seen(f"publish {message.body.decode()}"):
            yield

    @contextmanager
    def handle(self, message: kvitto.IncomingMessage, queue: str) -> Iterator[None]:
        with self.seen(f"handle {message.body.decode()} of {queue[:4]}, settled: {message.settled}"):
            yield

    @contextmanager
    def seen(self, what: str) -> Iterator[None]:
        self.lines.append(f"{self.name}: {what}")
        try:
            yield
        except Exception as error:  # noqa: BLE001 - hiding it has no effect
            self.lines.append(f"{self.name}: {type(error).__name__}")
        else:
            self.lines.append(f"{self.name}: done")


def pair(lines: list[str]) -> list[kvitto.Interceptor]:
    return [Recording("a", lines), Recording("b", lines)]


PUBLISHED = ["a: publish 1", "b: publish 1", "b: done", "a: done"]
HANDLED = ["a: handle 1 of mine, settled: False", "b: handle 1 of mine, settled: False", "b: done", "a: done"]


@asynchronous
async def test_the_first_interceptor_is_the_outermost_of_publish_and_handling(port: int) -> None:
    lines: list[str] = []
    async with kvitto.connect(url(port), interceptors=pair(lines)) as connection, connection.channel() as channel:
        queue = await channel.queue("mine-asyncio", exclusive=True)
        mine = {"path": "x", "n": 1}
        await channel.publish(b"1", queue.name, headers=mine)  # type: ignore[arg-type]
        assert mine == {"path": "x", "n": 1}
        assert lines == PUBLISHED
        lines.clear()
        async for message in queue.consume():
            assert isinstance(message, kvitto.IncomingMessage)
            async with message as same:
                assert same is message
                assert message.headers == {"path": "xab", "n": 1}
            break
        assert lines == HANDLED
        exchange = await channel.exchange("mine-exchange", "fanout", auto_delete=True)
        await queue.bind(exchange)
        await exchange.publish(b"2")
        got = await queue.get()
        assert got is not None
        lines.clear()
        with pytest.raises(KeyError):
            async with got.process(on_error="requeue"):
                raise KeyError
        assert lines[1:] == ["b: handle 2 of mine, settled: False", "b: KeyError", "a: KeyError"]
        lines.clear()
        again = await queue.get(no_ack=True)
        assert again is not None and again.redelivered
        with again:
            pass
        assert lines[0] == "a: handle 2 of mine, settled: True"


def test_the_synchronous_face_does_the_same_in_the_threads_of_the_program(port: int) -> None:
    lines: list[str] = []
    with (
        kvitto.connect_sync(url(port), interceptors=pair(lines)) as connection,
        connection.channel() as channel,
        connection.channel(confirms=False) as plain,
    ):
        queue = channel.queue("mine-sync", exclusive=True)
        channel.publish(b"1", queue.name, headers={"path": "x"})
        assert lines == PUBLISHED
        lines.clear()
        for message in queue.consume(timeout_s=0.2):
            with message:
                assert message.headers == {"path": "xab"}
        assert lines == HANDLED
        plain.publish(b"2", queue.name, reply_to="q", correlation_id="c")
        plain.flush()
        found = next(queue.consume())
        lines.clear()
        with pytest.raises(KeyError), found.process(on_error="requeue"):
            raise KeyError
        assert lines[1:] == ["b: handle 2 of mine, settled: False", "b: KeyError", "a: KeyError"]
        lines.clear()
        answers = channel.queue("q", exclusive=True)
        channel.reply(found, b"3")
        assert lines[0] == "a: publish 3"
        answer = answers.get()
        assert answer is not None and answer.properties.correlation_id == "c"
        with answer, pytest.raises(Returned):
            channel.publish(b"", "nowhere", mandatory=True)
        assert lines[-3:] == ["a: Returned", "b: done", "a: done"]


class Counting(kvitto.Interceptor):
    """Stands around a stream of publishes."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []

    @contextmanager
    def publish_many(self, exchange: str, routing_key: str) -> Iterator[Callable[[kvitto.Message], object]]:
        bodies: list[bytes] = []

        def note(message: kvitto.Message) -> None:
            bodies.append(message.body)
            message.body = message.body.upper()

        yield note
        self.seen.append((exchange, routing_key, len(bodies)))


@asynchronous
async def test_each_message_of_a_stream_passes_all_interceptors(port: int) -> None:
    lines: list[str] = []
    counting = Counting()
    interceptors = [*pair(lines), counting]
    async with kvitto.connect(url(port), interceptors=interceptors) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        mine = kvitto.Message(b"m", headers={"n": 1})
        assert await channel.publish_many([b"x", mine], queue.name, message_id="i") == 2
        assert mine.headers == {"n": 1} and mine.body == b"m"
        assert lines == [f"{name}: {what}" for body in "xm" for name in "ab" for what in (f"publish {body}", "done")]

        async def later() -> Iterator[bytes]:  # type: ignore[misc]
            yield b"y"

        await channel.publish_many(later(), queue.name)
        assert counting.seen == [("", queue.name, 2), ("", queue.name, 1)]
        found = [await queue.get(no_ack=True) for _ in range(3)]
        assert [each.body for each in found] == [b"X", b"M", b"Y"]
        assert [each.headers for each in found] == [{"path": "ab"}, {"n": 1, "path": "ab"}, {"path": "ab"}]
        assert [each.properties.message_id for each in found] == ["i", None, None]
    with kvitto.connect_sync(url(port), interceptors=[counting]) as connection_sync:
        channel_sync = connection_sync.channel()
        queue_sync = channel_sync.queue(exclusive=True)
        assert channel_sync.publish_many([b"z"] * 10_000, queue_sync.name) == 10_000
        assert counting.seen[-1] == ("", queue_sync.name, 10_000)
        got = queue_sync.get()
        assert got is not None and got.body == b"Z"


class Broken(kvitto.Interceptor):
    """Fails before each block."""

    def publish(self, message: kvitto.Message) -> None:  # type: ignore[override]
        raise LookupError("publish")

    def handle(self, message: kvitto.IncomingMessage, queue: str) -> None:  # type: ignore[override]
        raise LookupError("handle")


@asynchronous
async def test_what_an_interceptor_raises_goes_to_the_caller_and_nothing_is_left_unsettled(port: int) -> None:
    lines: list[str] = []
    interceptors = [Recording("a", lines), Broken()]
    async with (
        kvitto.connect(url(port), interceptors=interceptors) as connection,
        kvitto.connect(url(port)) as other,
        other.channel() as plain,
        connection.channel() as channel,
    ):
        queue = await channel.queue("mine-broken", auto_delete=True)
        with pytest.raises(LookupError):
            await channel.publish(b"1", queue.name)
        with pytest.raises(LookupError):
            await channel.publish_many([b"1"], queue.name)
        assert lines[:2] == ["a: publish 1", "a: LookupError"]
        await plain.publish(b"2", queue.name)
        async for message in queue.consume():
            with pytest.raises(LookupError):
                async with message:
                    raise AssertionError
            assert message.settled
            break


@asynchronous
async def test_an_rpc_call_is_a_publish_that_ends_with_the_answer(port: int) -> None:
    lines: list[str] = []
    async with kvitto.connect(url(port), interceptors=[Recording("a", lines)]) as connection:
        asking, answering = await connection.channel(), await connection.channel()
        queue = await answering.queue("mine-rpc", exclusive=True)

        async def answer() -> None:
            async for message in queue.consume():
                async with message:
                    await answering.reply(message, b"4")
                return

        task = asyncio.create_task(answer())
        async with asking.rpc() as rpc:
            assert (await rpc.call(b"2+2", queue.name)).body == b"4"
        await task
    assert lines[0] == "a: publish 2+2"
    assert lines.index("a: publish 4") < len(lines) - 1 - lines[::-1].index("a: done")


@asynchronous
async def test_metrics_count_what_was_done_and_what_failed(port: int) -> None:
    metrics = Metrics()
    async with kvitto.connect(url(port), interceptors=[metrics]) as connection, connection.channel() as channel:
        queue = await channel.queue(exclusive=True)
        assert metrics.published.under_way == 0
        publishing = asyncio.create_task(channel.publish(b"", queue.name))
        await asyncio.sleep(0)
        assert metrics.published.under_way == 1
        await publishing
        with pytest.raises(Returned):
            await channel.publish(b"", "nowhere", mandatory=True)
        with pytest.raises(ManyFailed):
            await channel.publish_many(
                [kvitto.Message(b"", "nowhere" if n == 3 else queue.name) for n in range(10)], mandatory=True
            )
        with pytest.raises(ZeroDivisionError):
            await channel.publish_many((b"%d" % (1 // (2 - n)) for n in range(5)), queue.name)
        async for message in queue.consume():
            with pytest.raises(KeyError):
                async with message:
                    raise KeyError
            break
    assert (metrics.published.done, dict(metrics.published.failed), metrics.published.under_way) == (
        1,
        {"Returned": 1},
        0,
    )
    assert (metrics.streamed.done, dict(metrics.streamed.failed)) == (9, {"Returned": 1, "ZeroDivisionError": 2})
    assert (metrics.handled.done, dict(metrics.handled.failed)) == (0, {"KeyError": 1})
    assert 0 < metrics.published.seconds_max <= metrics.published.seconds
    assert metrics.streamed.seconds > 0 and metrics.handled.seconds > 0


def test_logging_names_what_and_where_and_how_it_ended(port: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kvitto.client.messages")
    with kvitto.connect_sync(url(port), interceptors=[Logging()]) as connection, connection.channel() as channel:
        queue = channel.queue("logged", exclusive=True)
        channel.publish(b"hello", "logged")
        channel.publish_many([b"1", b"2"], "logged")
        with pytest.raises(Returned):
            channel.publish(b"", "nowhere", mandatory=True)
        channel.publish(b"", "news", exchange="amq.fanout")
        for message in queue.consume():
            with message:
                pass
            break
    logged = [
        (r.levelname, r.getMessage().rpartition(" in ")[0]) for r in caplog.records if r.name.endswith("messages")
    ]
    assert logged == [
        ("DEBUG", "publish of 5 bytes to queue 'logged' done"),
        ("DEBUG", "publish of 2 messages to queue 'logged' done"),
        (
            "WARNING",
            "publish of 0 bytes to queue 'nowhere' failed: Returned: 312 NO_ROUTE: no queue took the message to exchange ''"
            " with key 'nowhere'",
        ),
        ("DEBUG", "publish of 0 bytes to exchange 'amq.fanout' with key 'news' done"),
        ("DEBUG", "handling of message 1 of queue 'logged' done"),
    ]
