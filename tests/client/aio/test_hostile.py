"""The asyncio client and servers that answer wrongly, in odd order, with malformed frames, or not at all, and close at any time.

Whatever the server does, every call ends with a result or an exception that names what happened, and nothing hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvitto
from kvitto.base.errors import ConnectionError_
from kvitto.client import AMQPError
from kvitto.client.aio import connection as connection_module
from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from tests.support.running import asynchronous

ODD: list[Method] = [
    m.BasicAck(1),
    m.BasicAck(0, True),
    m.BasicAck(1 << 63, True),
    m.BasicNack(2, True, False),
    m.BasicReturn(312, "NO_ROUTE", "", "q"),
    m.BasicDeliver("kvitto-1", 1, False, "", "q"),
    m.BasicDeliver("nobody", 9, True, "x", "y"),
    m.BasicGetOk(3, False, "", "q", 1),
    m.BasicGetEmpty(),
    m.BasicCancel("kvitto-1"),
    m.BasicCancelOk("kvitto-1"),
    m.BasicConsumeOk("other"),
    m.ChannelClose(404, "NOT_FOUND - gone", 50, 10),
    m.ChannelCloseOk(),
    m.ChannelOpenOk(),
    m.ChannelFlow(False),
    m.ConfirmSelectOk(),
    m.QueueDeclareOk("q", 1, 1),
    m.ConnectionBlocked("low on disk"),
    m.ConnectionUnblocked(),
    m.ConnectionClose(320, "CONNECTION_FORCED - bye", 0, 0),
    m.ConnectionCloseOk(),
    m.ConnectionOpenOk(),
    m.ConnectionStart(0, 9, {}, b"EXTERNAL", b"en_US"),
    m.ConnectionTune(1, 4096, 0),
    m.ConnectionTune(0, 100, 0),
    m.TxCommitOk(),
    m.BasicPublish("", "q"),
]
ANSWERS: dict[type[Method], Method] = {
    m.ConnectionStartOk: m.ConnectionTune(2047, 131072, 60),
    m.ConnectionOpen: m.ConnectionOpenOk(),
    m.ConnectionClose: m.ConnectionCloseOk(),
    m.ChannelOpen: m.ChannelOpenOk(),
    m.ChannelClose: m.ChannelCloseOk(),
    m.QueueDeclare: m.QueueDeclareOk("q", 0, 0),
    m.BasicQos: m.BasicQosOk(),
    m.BasicGet: m.BasicGetEmpty(),
    m.TxSelect: m.TxSelectOk(),
    m.TxCommit: m.TxCommitOk(),
    m.TxRollback: m.TxRollbackOk(),
}
CONTENT = (m.BasicDeliver, m.BasicGetOk, m.BasicReturn, m.BasicPublish)

STEP = st.one_of(
    st.just(("answer", 0, b"")),
    st.just(("answer", 0, b"")),
    st.just(("answer", 0, b"")),
    st.just(("answer", 0, b"")),
    st.tuples(st.just("odd"), st.integers(0, len(ODD) - 1), st.sampled_from([b"\0\0", b"\0\1", b"\0\2", b"\xff\xff"])),
    st.tuples(st.just("bytes"), st.just(0), st.binary(max_size=40)),
    st.just(("half", 0, b"")),
    st.just(("ignore", 0, b"")),
    st.just(("close", 0, b"")),
)


IDLE_S = 0.02


class Hostile:
    """A server that follows a script: a step for each method of the client. It closes the connection at the end of the
    script, and when the client has waited for IDLE_S."""

    def __init__(self, script: list[tuple[str, int, bytes]]) -> None:
        self.script = iter(script)
        self.published = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(8)
            writer.write(m.frame(1, 0, m.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US").encode()))
            await self.serve(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ConnectionError_):
            pass
        finally:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            async with asyncio.timeout(IDLE_S):
                head = await reader.readexactly(7)
            payload = (await reader.readexactly(int.from_bytes(head[3:], "big") + 1))[:-1]
            if head[0] != 1:
                continue
            method, number = m.decode(payload), int.from_bytes(head[1:3], "big")
            if isinstance(method, m.ConnectionTuneOk | m.ConfirmSelect | m.BasicAck | m.BasicReject):
                continue
            kind, chosen, data = next(self.script, ("close", 0, b""))
            if kind == "close":
                return
            if kind == "answer":
                writer.write(self.answer(method, number))
            elif kind == "half":
                writer.write(self.answer(method, number)[:-3])
                return
            elif kind == "odd":
                writer.write(frames(ODD[chosen], int.from_bytes(data, "big")) + self.answer(method, number))
            elif kind == "bytes":
                writer.write(data)

    def answer(self, method: Method, number: int) -> bytes:
        if isinstance(method, m.BasicPublish):
            self.published += 1
            return frames(m.BasicAck(self.published), number)
        if isinstance(method, m.BasicConsume):
            return frames(m.BasicConsumeOk(method.consumer_tag), number) + frames(
                m.BasicDeliver(method.consumer_tag, 1, False, "", "q"), number
            )
        if isinstance(method, m.BasicCancel):
            return frames(m.BasicCancelOk(method.consumer_tag), number)
        return frames(ANSWERS[type(method)], number) if type(method) in ANSWERS else b""


def frames(method: Method, number: int) -> bytes:
    data = m.frame(1, number, method.encode())
    if isinstance(method, CONTENT):
        data += m.frame(2, number, b"\0\x3c\0\0" + (4).to_bytes(8, "big") + b"\0\0") + m.frame(3, number, b"body")
    return data


async def program(port: int, reconnect: bool) -> None:
    """Everything that a program does, at once."""
    connecting = kvitto.connect(f"amqp://127.0.0.1:{port}/?connection_timeout=20000", reconnect=reconnect)
    async with connecting as connection, connection.channel() as channel:
        queue = await channel.queue("q")
        outcomes = await asyncio.gather(
            channel.publish(b"body", "q"),
            channel.publish(b"body", "q", mandatory=True),
            channel.publish_many([b"a"] * 10, "q"),
            queue.get(),
            some(queue.consume(), 2),
            transact(connection),
            call(channel),
            return_exceptions=True,
        )
        for outcome in outcomes:
            assert outcome is None or isinstance(outcome, int | kvitto.IncomingMessage | AMQPError), repr(outcome)


async def some(consumer: kvitto.Consumer, count: int) -> None:
    async with consumer:
        for _ in range(count):
            message = await anext(consumer)
            with contextlib.suppress(AMQPError):
                message.ack()


async def transact(connection: kvitto.Connection) -> None:
    async with connection.channel() as channel, channel.transaction():
        await channel.publish(b"in", "q")


async def call(channel: kvitto.Channel) -> kvitto.IncomingMessage:
    async with channel.rpc() as rpc:
        return await rpc.call(b"?", "q")


@settings(max_examples=60)
@given(st.lists(STEP, max_size=30))
def test_every_call_ends_whatever_the_server_does(script: list[tuple[str, int, bytes]]) -> None:
    run(script, False)


def run(script: list[tuple[str, int, bytes]], reconnect: bool) -> None:
    @asynchronous
    async def test() -> None:
        server = await asyncio.start_server(Hostile(script), "127.0.0.1", 0)
        try:
            async with asyncio.timeout(60):
                with contextlib.suppress(AMQPError):
                    await program(server.sockets[0].getsockname()[1], reconnect)
        finally:
            server.close()
            await until_idle()

    test()


async def until_idle() -> None:
    """Let the server's own tasks end: they have lost their client."""
    while len(tasks := asyncio.all_tasks() - {asyncio.current_task()}):
        await asyncio.wait(tasks, timeout=5)


def test_a_confirm_that_nobody_waits_for_ends_the_connection_with_the_reason() -> None:
    step: list[tuple[str, int, bytes]] = [("answer", 0, b"")] * 4
    run([*step, ("odd", 2, b"\0\1"), *step], False)


class Overtaking(Hostile):
    """A server whose answer to a bind comes behind that to the next method."""

    held = b""

    def answer(self, method: Method, number: int) -> bytes:
        held, self.held = self.held, b""
        if isinstance(method, m.QueueBind):
            self.held = frames(m.QueueBindOk(), number)
            return held
        return super().answer(method, number) + held


@asynchronous
async def test_an_answer_may_overtake_that_to_an_earlier_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ's queues send basic.cancel-ok themselves, so queue.unbind-ok may come before it."""
    monkeypatch.setattr(f"{__name__}.IDLE_S", 60)
    server = await asyncio.start_server(Overtaking([("answer", 0, b"")] * 20), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with (
            asyncio.timeout(60),
            kvitto.connect(f"amqp://127.0.0.1:{port}/") as connection,
            connection.channel() as channel,
        ):
            queue = await channel.queue("q")
            await asyncio.gather(queue.bind("amq.fanout"), channel.queue("q"))
    finally:
        server.close()
        await until_idle()


@asynchronous
async def test_a_server_that_always_closes_is_asked_again_and_again_until_the_client_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server_tasks: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_tasks.append(1)
        await Hostile([("answer", 0, b"")] * (2 + len(server_tasks) % 4))(reader, writer)

    monkeypatch.setattr(connection_module, "BACKOFF_MAX_S", 0.001)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(60):
            connection = await kvitto.connect(f"amqp://127.0.0.1:{port}/")
            waiting = asyncio.create_task(connection.channel().__aenter__())
            while len(server_tasks) < 20:
                await asyncio.sleep(0.001)
            await connection.close()
            assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], AMQPError | kvitto.Channel)
    finally:
        server.close()
        await until_idle()
