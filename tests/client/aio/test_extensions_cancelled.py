"""Reads and stages that are cancelled at each turn of the event loop: nothing is left, lost, or published twice."""

import asyncio
import contextlib
from typing import Any

import pytest

import kvitto
from tests.client.aio.test_extensions import HasUrl, filled, taken, url
from tests.support.running import asynchronous

pytestmark = pytest.mark.usefixtures("no_pauses")

TURNS = 60


async def cancelled_after(turns: int, task: asyncio.Task[Any]) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@asynchronous
async def test_a_batch_that_is_cancelled_anywhere_is_published_once(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await channel.queue("events", durable=True)

        async def publish(batch: int) -> None:
            async with channel.stage("job", batch) as stage:
                await stage.publish(b"%d" % batch, "events")

        for batch in range(TURNS):
            await cancelled_after(batch, asyncio.create_task(publish(batch)))
            await publish(batch)
        assert await taken(queue, TURNS) == [b"%d" % batch for batch in range(TURNS)]
        assert await queue.get() is None
        await channel.qos(0)  # closed channels have been answered by now
        assert list(connection._channels) == [channel]


@asynchronous
async def test_a_read_that_is_cancelled_anywhere_leaves_no_channel(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(url(kvitto_broker.port)) as connection, connection.channel() as channel:
        queue = await filled(channel, 20)

        async def read() -> None:
            async with queue.read(batch=5) as reader:
                assert [message.offset async for message in reader] == list(range(20))

        for turns in range(TURNS):
            await cancelled_after(turns, asyncio.create_task(read()))
        await read()
        await queue.offsets()
        assert list(connection._channels) == [channel]
