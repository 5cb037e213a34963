"""What waits when the program ends something: a connection, a channel or a block of calls. It gets an exception that says so."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

import kvitto
from kvitto.client import AMQPError
from kvitto.client.aio import Closed
from tests.client.aio.test_reconnect import cut, until, url
from tests.support.faults import Faults
from tests.support.running import asynchronous

pytestmark = pytest.mark.usefixtures("no_pauses")


class HasUrl(Protocol):
    url: str
    port: int


@asynccontextmanager
async def reconnecting(broker: HasUrl) -> AsyncIterator[tuple[kvitto.Connection, kvitto.Channel, Faults]]:
    """A connection that is lost, and does not come back while `proxy.refuse`."""
    async with Faults(broker.port) as proxy, kvitto.connect(url(proxy)) as connection:
        channel = await connection.channel()
        await channel.queue("q", durable=True)
        proxy.refuse = True
        await cut(proxy, connection)
        yield connection, channel, proxy


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def outcome(task: asyncio.Task[Any]) -> BaseException:
    """What a call was told. It has to be told now: nothing else happens any more."""
    async with asyncio.timeout(30):
        outcomes: Any = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(outcomes[0], BaseException)
    return outcomes[0]


CALLS: dict[str, Callable[[kvitto.Connection, kvitto.Channel], Any]] = {
    "publish": lambda _, channel: channel.publish(b"x", "q"),
    "publish_many": lambda _, channel: channel.publish_many([b"x"], "q"),
    "declare": lambda _, channel: channel.queue("other"),
    "get": lambda _, channel: channel.get("q"),
    "channel": lambda connection, _: connection.channel().__aenter__(),
    "last_batch": lambda _, channel: channel.last_batch("writer"),
    "stage": lambda _, channel: channel.stage("writer", 1).__aenter__(),
}


@asynchronous
async def test_a_close_that_is_cancelled_while_the_client_reconnects_ends_what_waits(kvitto_broker: HasUrl) -> None:
    for after in range(4):
        async with reconnecting(kvitto_broker) as (connection, channel, _):
            waiting = {name: asyncio.create_task(call(connection, channel)) for name, call in CALLS.items()}
            await turns(1)
            closing = asyncio.create_task(connection.close())
            await turns(after)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            if not after:  # it had not begun
                await connection.close()
            for name, task in waiting.items():
                assert isinstance(await outcome(task), Closed), name
            with pytest.raises(Closed):
                await channel.publish(b"x", "q")


@asynchronous
async def test_a_channel_that_is_closed_while_the_client_reconnects_ends_what_waits(kvitto_broker: HasUrl) -> None:
    async with reconnecting(kvitto_broker) as (connection, channel, proxy):
        waiting = {name: asyncio.create_task(call(connection, channel)) for name, call in CALLS.items()}
        await turns(1)
        await channel.close()
        for name in ("publish", "publish_many", "declare", "get"):
            assert isinstance(await outcome(waiting[name]), Closed), name
        assert not waiting["channel"].done()
        proxy.refuse = False
        async with await waiting["channel"] as another:
            await another.publish(b"x", "q")
        await asyncio.gather(*waiting.values(), return_exceptions=True)


@pytest.mark.parametrize("resend", [False, True])
@asynchronous
async def test_calls_of_other_tasks_are_told_when_their_rpc_block_ends(kvitto_broker: HasUrl, resend: bool) -> None:
    async with kvitto.connect(kvitto_broker.url) as connection, connection.channel() as channel:
        await channel.queue("silent", durable=True)
        rpc = channel.rpc(resend=resend)
        async with rpc:
            calls = [asyncio.create_task(rpc.call(b"?", "silent")) for _ in range(3)]
            await turns(2)
        for call in calls:
            error = await outcome(call)
            assert isinstance(error, Closed) and "rpc" in str(error)
        with pytest.raises(AMQPError, match="need their block"):
            await rpc.call(b"?", "silent")
        async with rpc:  # it may be used again
            await channel.publish(b"x", "silent")


@pytest.mark.parametrize("resend", [False, True])
@pytest.mark.parametrize("end", ["block", "channel", "connection"])
@asynchronous
async def test_calls_are_told_when_their_rpc_ends_while_the_client_reconnects(
    kvitto_broker: HasUrl, end: str, resend: bool
) -> None:
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy)) as connection:
        channel = await connection.channel()
        await channel.queue("silent", durable=True)
        rpc = channel.rpc(resend=resend)
        await rpc.__aenter__()
        asked = asyncio.create_task(rpc.call(b"?", "silent"))
        await turns(2)
        proxy.refuse = True
        await cut(proxy, connection)
        new = asyncio.create_task(rpc.call(b"?", "silent"))
        await turns(2)
        assert not new.done() and asked.done() is not resend
        if end == "block":
            await rpc.__aexit__(None, None, None)
        elif end == "channel":
            await channel.close()
        else:
            await connection.close()
        told = await asyncio.gather(outcome(asked), outcome(new))
        assert isinstance(told[1], Closed)
        if resend:
            assert isinstance(told[0], Closed)
        if end != "block":
            await rpc.__aexit__(None, None, None)
        else:
            proxy.refuse = False
            await until(lambda: connection.connected)
            assert (await channel.queue("silent", passive=True)).message_count <= 1  # the one that was asked, at most


@asynchronous
async def test_a_channel_whose_close_was_cancelled_is_closed(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(kvitto_broker.url) as connection:
        for after in range(1, 5):
            channel = await connection.channel()
            closing = asyncio.create_task(channel.close())
            await turns(after)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            for call in (channel.publish(b"x", "q"), channel.queue("q"), channel.qos(1)):
                with pytest.raises(Closed):
                    await call
        assert connection.connected
        async with connection.channel() as another:
            await another.queue("q", durable=True)
        assert connection.connected and not connection._channels


@pytest.mark.parametrize("call", ["publish", "publish_many", "declare", "get"])
@asynchronous
async def test_calls_beside_the_close_of_their_channel_do_not_end_the_connection(
    kvitto_broker: HasUrl, call: str
) -> None:
    """Nothing may be sent behind channel.close: brokers end the connection with all other channels then."""
    async with kvitto.connect(kvitto_broker.url, reconnect=False) as connection:
        channel, other = await connection.channel(), await connection.channel()
        await channel.queue("q", durable=True)
        closing = asyncio.create_task(channel.close())
        await asyncio.sleep(0)
        assert isinstance(await outcome(asyncio.create_task(CALLS[call](connection, channel))), Closed)
        await closing
        await other.publish(b"x", "q")


@asynchronous
async def test_blocks_end_although_the_broker_reads_nothing(
    kvitto_broker: HasUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program whose publish had timed out, because the broker's disk was full, waited for the end of its channel for ever."""
    monkeypatch.setattr("kvitto.client.aio.link.CLOSE_TIMEOUT_S", 0.05)
    async with Faults(kvitto_broker.port) as proxy, asyncio.timeout(30):
        async with kvitto.connect(url(proxy)) as connection, connection.channel() as channel:
            queue = await channel.queue("q", durable=True)
            async with queue.consume(), channel.rpc():
                proxy.stall()
        proxy.flow()


@asynchronous
async def test_a_close_that_drops_bytes_says_so(
    kvitto_broker: HasUrl, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kvitto.client.aio.link.CLOSE_TIMEOUT_S", 0.05)
    async with Faults(kvitto_broker.port) as proxy:
        connection = await kvitto.connect(url(proxy))
        channel = await connection.channel(confirms=False)
        proxy.stall()
        link = connection._link
        assert link is not None
        while not link.paused:
            await channel.publish(bytes(1 << 16), "q")
        await connection.close()
        assert "bytes that the server did not take in time" in caplog.text
        proxy.flow()
