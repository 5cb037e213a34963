"""Kvitto's own extensions in the client: ranges of offsets and stages, with asyncio and without."""

import asyncio
import contextlib
from typing import Literal, Protocol

import pytest

import kvitto
from kvitto.client import AMQPError, ChannelClosed
from kvitto.client.aio import Closed, CommitUnknown, NotSupported
from kvitto.wire import methods as m
from tests.client.aio import test_hostile
from tests.client.aio.test_hostile import Hostile
from tests.support.faults import Faults
from tests.support.running import asynchronous

pytestmark = pytest.mark.usefixtures("no_pauses")


class HasUrl(Protocol):
    url: str
    port: int


def url(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}/"


async def filled(channel: kvitto.Channel, count: int) -> kvitto.Queue:
    queue = await channel.queue("events", durable=True)
    await channel.publish_many([b"%d" % n for n in range(count)], "events")
    return queue


async def taken(queue: kvitto.Queue, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with queue.consume() as consumer, asyncio.timeout(60):
        while len(found) < count:
            message = await anext(consumer)
            message.ack()
            found.append(message.body)
    return found


@asynchronous
async def test_a_range_is_read_again_and_again_and_stays_in_the_queue(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await filled(channel, 50)
        where = await queue.offsets()
        assert (where.first, where.next, where.settled, len(where.incarnation)) == (0, 50, 0, 32)
        for batch in (1, 7, 1000):
            messages = [message async for message in queue.read(10, 30, batch=batch)]
            assert [message.body for message in messages] == [b"%d" % n for n in range(10, 30)]
            assert [message.offset for message in messages] == list(range(10, 30))
            assert all(message.settled for message in messages)
        assert [message.offset async for message in queue.read(45, 1000)] == list(range(45, 50))
        assert [message async for message in queue.read(60)] == []
        assert await taken(queue, 20) == [b"%d" % n for n in range(20)]
        assert [message.offset async for message in queue.read()] == list(range(20, 50))


@asynchronous
async def test_a_read_that_is_left_or_cancelled_leaves_nothing_behind(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await filled(channel, 50)
        async for message in queue.read(batch=5):
            if message.offset == 7:
                break
        async with queue.read(batch=5) as reader:
            for turns in range(12):
                task = asyncio.create_task(anext(reader))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                reader._here.clear()  # a call that was not cancelled in time has read these
            where = reader._next
            assert [message.offset async for message in reader] == list(range(where, 50))
        with pytest.raises(StopAsyncIteration):
            await anext(reader)


@asynchronous
async def test_a_read_goes_on_after_a_lost_connection(kvitto_broker: HasUrl) -> None:
    async with Faults(kvitto_broker.port) as proxy, kvitto.connect(url(proxy.port)) as connection:
        queue = await filled(await connection.channel(), 50)
        found = []
        async for message in queue.read(batch=5):
            found.append(message.offset)
            if len(found) % 20 == 0:
                proxy.cut()
        assert found == list(range(50))


@asynchronous
async def test_a_queue_that_was_declared_again_is_another_one(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await filled(channel, 50)
        async with queue.read(batch=5) as reader:
            await anext(reader)
            await queue.delete()
            await filled(channel, 50)
            with pytest.raises(AMQPError, match="declared again"):
                async for _ in reader:
                    pass
        await queue.delete()
        with pytest.raises(ChannelClosed, match="404"):
            await anext(queue.read())
        await channel.queue("other")  # its own channel is still open


@asynchronous
async def test_a_stage_becomes_visible_at_once_and_once(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await channel.queue("events", durable=True)
        assert await channel.last_batch("job") is None
        with pytest.raises(RuntimeError, match="stop"):  # noqa: PT012
            async with channel.stage("job", 1) as stage:
                await stage.publish(b"lost", "events")
                raise RuntimeError("stop")
        for attempt in range(2):
            async with channel.stage("job", 1) as stage:
                assert stage.committed == (attempt == 1)
                await stage.publish(b"0", "events")
                assert await stage.publish_many([b"1", b"2"], "events") == (2 if attempt == 0 else 0)
                assert (await channel.queue("events", passive=True)).message_count == 0 or attempt
            assert (stage.committed, stage.fresh) == (True, attempt == 0)
        assert await channel.last_batch("job") == 1
        assert await taken(queue, 3) == [b"0", b"1", b"2"]
        assert await queue.get() is None
        with pytest.raises(Closed, match="not open"):
            await channel.stage("job", 2).publish(b"", "events")


@asynchronous
async def test_tasks_fill_their_stages_and_one_commits_them(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await channel.queue("events", durable=True)
        for task in ("b", "a", "late"):
            async with channel.stage("job", 0, task=task, commit=False) as stage:
                await stage.publish(task.encode(), "events")
        assert await channel.commit_stages("job", 0, ["a", "b"])
        assert not await channel.commit_stages("job", 0, ["a", "b"])
        assert await taken(queue, 2) == [b"a", b"b"]
        await channel.forget_writer("job")
        assert await channel.last_batch("job") is None
        with pytest.raises(ChannelClosed, match="404"):
            await channel.commit_stages("job", 5, ["missing"])
    for wrong in ("", "a\nb"):
        with pytest.raises(ValueError, match="task"):
            channel.stage("job", 0, task=wrong)


@pytest.mark.parametrize("resends", [False, True])
@asynchronous
async def test_a_stage_ends_with_its_connection(kvitto_broker: HasUrl, resends: bool) -> None:
    """Nothing that was meant for the stage may be published beside it after a reconnect."""
    how: Literal["resend", "raise"] = "resend" if resends else "raise"
    async with (
        Faults(kvitto_broker.port) as proxy,
        kvitto.connect(url(proxy.port), on_unconfirmed=how) as connection,
        connection.channel() as channel,
    ):
        queue = await channel.queue("events", durable=True)
        with pytest.raises(AMQPError):  # noqa: PT012
            async with channel.stage("job", 0) as stage:
                await stage.publish(b"staged", "events")
                proxy.mute = True
                lost = asyncio.create_task(stage.publish(b"lost", "events"))
                await asyncio.sleep(0)
                proxy.cut()
                proxy.mute = False
                with pytest.raises(AMQPError):
                    await lost
                await channel.qos(0)  # the connection is back
                with pytest.raises(AMQPError):
                    await stage.publish(b"later", "events")
                await queue.offsets()
        assert not stage.committed
        assert await queue.get() is None
        async with channel.stage("job", 0) as stage:
            await stage.publish(b"again", "events")
        assert await taken(queue, 1) == [b"again"]


@asynchronous
async def test_a_commit_is_asked_again_or_unknown(kvitto_broker: HasUrl) -> None:
    for reconnect in (True, False):
        async with Faults(kvitto_broker.port) as proxy:
            connecting = kvitto.connect(url(proxy.port), reconnect=reconnect)
            async with connecting as connection, connection.channel() as channel:
                await channel.queue("events", durable=True)
                writer = f"job-{reconnect}"
                async with channel.stage(writer, 0, commit=False) as stage:
                    await stage.publish(b"staged", "events")
                proxy.mute = True
                task = asyncio.create_task(channel.commit_stages(writer, 0, ["1"]))
                for _ in range(5):
                    await asyncio.sleep(0)
                proxy.mute = False
                proxy.cut()
                if reconnect:
                    await task
                    assert await channel.last_batch(writer) == 0
                else:
                    with pytest.raises(CommitUnknown, match="commit it again"):
                        await task


@asynchronous
async def test_a_stage_with_an_unknown_message_is_not_committed(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        await channel.queue("events", durable=True)
        with pytest.raises(AMQPError, match="unknown"):  # noqa: PT012
            async with channel.stage("job", 0) as stage:
                task = asyncio.create_task(stage.publish(b"", "events"))
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        with pytest.raises(AMQPError, match="under way"):  # noqa: PT012
            async with channel.stage("job", 0) as stage:
                task = asyncio.create_task(stage.publish(b"", "events"))
                await asyncio.sleep(0)
        await asyncio.gather(task, return_exceptions=True)
        assert await channel.last_batch("job") is None


@asynchronous
async def test_a_claim_ends_other_attempts_and_outlives_forget(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        assert await channel.claim_writer("claimed", "old") is None
        async with channel.stage("claimed", 2, task="old"):
            pass
        assert await channel.claim_writer("claimed", "next") == 2
        await channel.forget_writer("claimed")
        with pytest.raises(ChannelClosed, match="was claimed by task 'next'"):
            await channel.stage("claimed", 3, task="old").__aenter__()
        async with channel.stage("claimed", 3, task="next") as stage:
            pass
        assert stage.fresh
        await channel.forget_writer("claimed")


@asynchronous
async def test_a_broker_without_the_extensions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_hostile, "IDLE_S", 60)
    server = await asyncio.start_server(Hostile([("answer", 0, b"")] * 20), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with kvitto.connect(url(port), reconnect=False) as connection, connection.channel() as channel:
            queue = await channel.queue("q")
            for call in (
                queue.offsets,
                queue.read().take_all,
                channel.stage("job", 0).__aenter__,
                lambda: channel.commit_stages("job", 0, ["1"]),
                lambda: channel.last_batch("job"),
                lambda: channel.forget_writer("job"),
                lambda: channel.claim_writer("job", "1"),
            ):
                with pytest.raises(NotSupported, match="extension of Kvitto"):
                    await call()
            await channel.call(m.BasicQos(), m.BasicQosOk)
    finally:
        server.close()


def test_threads_have_the_same(kvitto_broker: HasUrl) -> None:
    with kvitto.connect_sync(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = channel.queue("events", durable=True)
        for attempt in range(2):
            with channel.stage("job", 3) as stage:
                assert stage.publish_many((b"%d" % n for n in range(5000)), "events") == (0 if attempt else 5000)
                stage.publish(b"last", "events", timeout_s=60)
            assert (stage.committed, stage.fresh) == (True, attempt == 0)
        with channel.stage("job", 4, task="x", commit=False) as stage:
            stage.publish(b"never", "events")
        assert channel.last_batch("job") == 3
        consumed = queue.consume()
        with consumed:
            for message in consumed:
                if message.body == b"last":
                    message.reject(requeue=True)
                    break
                message.reject(requeue=True) if message.body == b"4999" else message.ack()
        where = queue.offsets()
        assert where.next == 5001
        with queue.read(where.next - 2) as reader:
            assert [(message.offset, message.body) for message in reader] == [(4999, b"4999"), (5000, b"last")]
        assert channel.commit_stages("job", 4, [])
        assert channel.claim_writer("claimed by a thread", "1") is None
        channel.forget_writer("job")
        assert channel.last_batch("job") is None
