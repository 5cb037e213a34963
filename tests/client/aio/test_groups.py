"""Queues that are reserved for a group: attach, hold and settle, with asyncio and without."""

import asyncio
from typing import Any

import pytest

import kvitto
from kvitto.client import AMQPError, ChannelClosed, ConnectionLost
from kvitto.client.aio import Closed, Group, NotSupported
from tests.client.aio.test_extensions import HasUrl, filled, taken, url
from tests.client.aio.test_extensions_cancelled import TURNS, cancelled_after
from tests.client.aio.test_hostile import Hostile
from tests.client.aio.test_reconnect import cut, until
from tests.support.faults import Faults
from tests.support.running import asynchronous

pytestmark = pytest.mark.usefixtures("no_pauses")


def stored(broker: kvitto.Broker) -> Any:
    """The queue as the broker has it."""
    return broker._running().broker.vhosts["/"].queues["events"]


def held(broker: kvitto.Broker) -> int:
    """How many messages the broker holds for a group."""
    hold = stored(broker).hold
    return 0 if hold is None else hold.count


async def is_reserved(connection: kvitto.Connection) -> bool:
    """Whether a consumer is refused because of a group."""
    async with connection.channel() as channel:
        try:
            await (await channel.queue("events", passive=True)).get()
        except ChannelClosed as error:
            assert error.code == 403
            return True
        return False


@asynchronous
async def test_a_group_reads_holds_and_settles_and_gives_the_queue_back(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await filled(channel, 50)
        async with queue.group("billing") as group:
            assert group.offsets == await queue.offsets()
            assert (group.offsets.first, group.offsets.next) == (0, 50)
            assert await is_reserved(connection)
            assert await group.hold(0, 20) == (0, 20, 20)
            assert await group.hold(0, 20) == (0, 20, 20)
            assert [message.offset async for message in group.read(0, 20, batch=7)] == list(range(20))
            assert await group.settle(15) == 15
            assert await group.settle(15) == 15
            assert await group.count(0, 20) == (15, 20, 5)
            assert [message.offset async for message in group.read(0)] == list(range(15, 50))
            with pytest.raises(AMQPError, match="attached already"):
                await group.__aenter__()
        assert not await is_reserved(connection)
        assert connection.groups == {}
        for call in (group.settle(20), group.hold(0, 1)):
            with pytest.raises(Closed, match="left the queue"):
                await call
        assert await taken(queue, 35) == [b"%d" % n for n in range(15, 50)]
        async with group:  # it may be used again
            assert group.offsets.first == 50


@asynchronous
async def test_what_is_held_outlives_an_exception_and_its_connection(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as other, other.channel() as channel:
        queue = await channel.queue("events", durable=True, arguments={"x-max-length": 10})
        await channel.publish_many([b"%d" % n for n in range(10)], "events")
        async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as reading:
            mine = await reading.queue("events", passive=True)
            with pytest.raises(ZeroDivisionError):  # noqa: PT012
                async with mine.group("billing") as group:
                    assert (await group.hold(0, 5)).messages == 5
                    raise ZeroDivisionError
            assert await is_reserved(other)
            async with mine.group("billing") as group:  # the next attempt, on the same connection
                with pytest.raises(ZeroDivisionError):
                    async with mine.group("billing"):
                        raise ZeroDivisionError
                assert (await group.count(0, 5)).messages == 5
                with pytest.raises(ZeroDivisionError):
                    async with mine.group("billing"):
                        raise ZeroDivisionError
                await connection.close()
        await channel.publish_many([b"more"] * 20, "events")
        async with queue.group("billing") as group:
            assert await group.count(0, 5) == (0, 20, 5)  # the length limit has dropped what was not held
            assert await group.settle(5) == 20


@asynchronous
async def test_handles_of_one_group_are_one_reader(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await filled(channel, 10)
        async with queue.group("billing") as group:
            async with queue.group("billing"):
                pass
            assert await is_reserved(connection)
            assert await group.settle(3) == 3
        assert not await is_reserved(connection)


@asynchronous
async def test_a_queue_in_use_is_refused_with_the_reason(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await filled(channel, 10)
        async with queue.consume() as consumer:
            (await anext(consumer)).reject(requeue=True)
            with pytest.raises(ChannelClosed, match=r"403.*consumers"):
                await queue.group("billing").__aenter__()
        async with queue.group("billing"):
            with pytest.raises(ChannelClosed, match=r"403.*'billing'"):
                await queue.group("other").__aenter__()
        stream = await channel.queue("s", durable=True, arguments={"x-queue-type": "stream"})
        with pytest.raises(ChannelClosed, match=r"406.*stream"):
            await stream.group("billing").__aenter__()
        assert connection.groups == {} and list(connection._channels) == [channel]
        with pytest.raises(ValueError, match="needs a name"):
            queue.group("")
        with pytest.raises(Closed, match="not attached"):
            queue.group("g").read(0)


@asynchronous
async def test_a_group_comes_back_with_its_hold_after_a_lost_connection(kvitto_broker: HasUrl) -> None:
    async with (
        kvitto.connect(url(kvitto_broker.port)) as other,
        Faults(kvitto_broker.port) as proxy,
        kvitto.connect(url(proxy.port)) as connection,
    ):
        queue = await filled(await connection.channel(), 50)
        async with queue.group("billing") as group:
            await group.hold(0, 20)
            await cut(proxy, connection)
            assert await group.count(0, 20) == (0, 20, 20)
            assert await is_reserved(other)
            proxy.mute = True
            settling = asyncio.create_task(group.settle(10))
            for _ in range(5):
                await asyncio.sleep(0)
            proxy.cut()
            proxy.mute = False
            assert await settling == 10
            found = []
            async for message in group.read(0, 20, batch=2):
                found.append(message.offset)
                if len(found) in (3, 7):
                    await cut(proxy, connection)
            assert found == list(range(10, 20))
            await cut(proxy, connection)
        await until(lambda: connection.connected)
        assert await group.queue.offsets()
        async with queue.group("billing") as group:
            pass
        assert not await is_reserved(other)


@asynchronous
async def test_a_group_that_may_not_come_back_says_why(kvitto_broker: HasUrl) -> None:
    async with (
        kvitto.connect(url(kvitto_broker.port)) as other,
        other.channel() as changing,
        Faults(kvitto_broker.port) as proxy,
        kvitto.connect(url(proxy.port)) as connection,
    ):
        queue = await filled(await connection.channel(), 10)
        theirs = await changing.queue("events", passive=True)
        with pytest.raises(ChannelClosed, match=r"403.*consumers"):  # noqa: PT012
            async with queue.group("billing") as group:
                proxy.refuse = True
                await cut(proxy, connection)
                async with theirs.consume() as consumer:
                    (await anext(consumer)).reject(requeue=True)
                    proxy.refuse = False
                    await until(lambda: connection.connected)
                    await group.settle(3)
        with pytest.raises(AMQPError, match="declared again"):  # noqa: PT012
            async with queue.group("billing") as group:
                proxy.refuse = True
                await cut(proxy, connection)
                await theirs.delete()
                await filled(changing, 10)
                proxy.refuse = False
                await until(lambda: connection.connected)
                with pytest.raises(AMQPError, match="declared again"):
                    await anext(group.read(0))
                await group.settle(3)
        assert (await queue.offsets()).first == 0


@asynchronous
async def test_without_reconnecting_a_group_ends_with_its_connection(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy.port), reconnect=False) as connection:
        queue = await filled(await connection.channel(), 10)
        with pytest.raises(ConnectionLost):  # noqa: PT012
            async with queue.group("billing") as group:
                await cut(proxy, connection)
                with pytest.raises(ConnectionLost):
                    await group.settle(3)


@asynchronous
async def test_a_group_that_is_cancelled_anywhere_leaves_nothing_behind(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await filled(channel, 20)

        async def work(given: Group) -> None:
            async with given as group:
                await group.hold(0, 5)
                assert len([message async for message in group.read(0, 5)]) == 5

        for turns in range(TURNS):
            await cancelled_after(turns, asyncio.create_task(work(queue.group("billing"))))
        assert connection.groups == {}
        await work(queue.group("billing"))
        assert not await is_reserved(connection)
        assert list(connection._channels) == [channel]


@asynchronous
async def test_an_attach_that_is_cancelled_keeps_what_an_earlier_attempt_holds(kvitto_broker: kvitto.Broker) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await filled(channel, 20)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with queue.group("billing") as group:
                assert (await group.hold(0, 5)).messages == 5
                raise ZeroDivisionError
        for turns in range(5):  # the broker is asked, and mostly has not answered yet
            group = queue.group("billing")
            task = asyncio.create_task(group.__aenter__())
            while group._channel is None:
                await asyncio.sleep(0)
            await cancelled_after(turns, task)
            if not task.cancelled():
                await group.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
            await channel.qos(0)  # what was sent before is answered by now
            assert held(kvitto_broker) == 5
        assert await is_reserved(connection)
        async with queue.group("billing"):
            pass
        assert held(kvitto_broker) == 0 and not await is_reserved(connection)
        assert connection.groups == {} and list(connection._channels) == [channel]


@asynchronous
async def test_a_block_that_ends_while_the_client_reconnects_gives_the_queue_back(kvitto_broker: kvitto.Broker) -> None:
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy.port)) as connection:
        queue = await filled(await connection.channel(), 20)
        for others in range(3):
            group = queue.group("billing")
            await group.__aenter__()
            await group.hold(0, 5)
            proxy.refuse = True
            await cut(proxy, connection)
            await until(lambda: not stored(kvitto_broker).group_holders)
            leaving = asyncio.create_task(group.__aexit__(None, None, None))
            more = [asyncio.create_task(queue.group("billing").__aenter__()) for _ in range(others)]
            await asyncio.sleep(0)
            assert not leaving.done() and held(kvitto_broker) == 5
            proxy.refuse = False
            await leaving
            assert held(kvitto_broker) == 0
            for other in await asyncio.gather(*more):
                assert len(stored(kvitto_broker).group_holders) == 1
                await other.__aexit__(None, None, None)
            assert not stored(kvitto_broker).group_holders
        assert connection.groups == {}


@asynchronous
async def test_a_block_that_ends_without_a_connection_says_so_or_ends_with_it(kvitto_broker: kvitto.Broker) -> None:
    for end in ("lost", "closed", "closed while it waits"):
        async with Faults(kvitto_broker.port) as proxy:
            connection = await kvitto.connect(url(proxy.port), reconnect=end != "lost")
            queue = await filled(await connection.channel(), 10)
            group = queue.group("billing")
            await group.__aenter__()
            proxy.refuse = True
            if end == "closed":
                await connection.close()
            else:
                await cut(proxy, connection)
            leaving = asyncio.create_task(group.__aexit__(None, None, None))
            await asyncio.sleep(0)
            await connection.close()
            if end == "lost":
                with pytest.raises(ConnectionLost):
                    await leaving
            else:
                await leaving
            assert connection.groups == {}


@asynchronous
async def test_a_queue_that_was_declared_again_is_not_reserved_by_a_group_of_the_old_one(
    kvitto_broker: kvitto.Broker,
) -> None:
    async with (
        kvitto.connect(url(kvitto_broker.port)) as other,
        other.channel() as changing,
        Faults(kvitto_broker.port) as proxy,
        kvitto.connect(url(proxy.port)) as connection,
    ):
        queue = await filled(await connection.channel(), 10)
        async with queue.group("billing") as group:
            proxy.refuse = True
            await cut(proxy, connection)
            await (await changing.queue("events", passive=True)).delete()
            theirs = await filled(changing, 10)
            with pytest.raises(ZeroDivisionError):  # noqa: PT012
                async with theirs.group("billing") as again:
                    await again.hold(0, 5)
                    await changing.close()
                    raise ZeroDivisionError
            await other.close()
            await until(lambda: not stored(kvitto_broker).group_holders)
            proxy.refuse = False
            await until(lambda: connection.connected)
            with pytest.raises(AMQPError, match="declared again"):
                await group.settle(3)
            assert not stored(kvitto_broker).group_holders
            assert held(kvitto_broker) == 5
        assert held(kvitto_broker) == 5  # it waits for the group of the new queue


@asynchronous
async def test_another_broker_has_no_groups() -> None:
    server = await asyncio.start_server(Hostile([("answer", 0, b"")] * 20), "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        async with kvitto.connect(url(port), reconnect=False) as connection, connection.channel() as channel:
            with pytest.raises(NotSupported, match="reserve a queue for a group"):
                await (await channel.queue("q")).group("billing").__aenter__()
    finally:
        server.close()


def test_threads_have_groups_too(kvitto_broker: HasUrl) -> None:
    with kvitto.connect_sync(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = channel.queue("events", durable=True)
        channel.publish_many([b"%d" % n for n in range(50)], "events")
        with queue.group("billing") as group:
            assert (group.name, group.offsets.next) == ("billing", 50)
            held = group.hold(0, 20, timeout_s=60)
            assert [message.body for message in group.read(0, held.end)] == [b"%d" % n for n in range(20)]
            assert group.settle(held.end) == 20
            assert group.count(20, 30).messages == 10
        with pytest.raises(ZeroDivisionError), queue.group("billing") as group:
            raise ZeroDivisionError
        with queue.group("billing"):
            pass
        message = queue.get()
        assert message is not None and message.body == b"20"
        message.ack()
        with pytest.raises(Closed):
            group.settle(30)
