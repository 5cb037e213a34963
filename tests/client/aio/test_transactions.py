"""Transactions that other tasks disturb: each is committed with what was published in it, and with nothing else."""

import asyncio

import pytest

import kvitto
from kvitto.client import AMQPError
from tests.support.running import asynchronous


@pytest.mark.parametrize("error", [None, LookupError()], ids=["commit", "rollback"])
@asynchronous
async def test_what_is_published_while_one_ends_is_refused(
    kvitto_broker: kvitto.Broker, error: Exception | None
) -> None:
    async with kvitto.connect(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = await channel.queue("q", durable=True)
        transaction = channel.transaction()
        await transaction.__aenter__()
        await channel.publish(b"x", "q")
        ending = asyncio.create_task(transaction.__aexit__(type(error) if error else None, error, None))
        await asyncio.sleep(0)  # the end is on its way
        with pytest.raises(AMQPError, match="publish inside"):
            await channel.publish(b"late", "q")
        await ending
        async with channel.transaction():
            await channel.publish(b"next", "q")
        assert await queue.purge() == (1 if error else 2)


@asynchronous
async def test_one_of_two_that_begin_at_once_is_refused(kvitto_broker: kvitto.Broker) -> None:
    async with kvitto.connect(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = await channel.queue("q", durable=True)

        async def transact() -> None:
            async with channel.transaction():
                await channel.publish(b"x", "q")

        first, second = await asyncio.gather(transact(), transact(), return_exceptions=True)
        assert first is None and isinstance(second, AMQPError)
        await transact()
        assert await queue.purge() == 2
