"""Every call of the asyncio client, cancelled at each of its awaits: while it waits, and in the turn in which its answer has come."""

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol

import pytest

import kvitto
from kvitto.client.aio import Closed
from tests.client.aio.test_reconnect import until
from tests.support.running import asynchronous

pytestmark = pytest.mark.usefixtures("no_pauses")
AWAITS_MAX = 200


class HasUrl(Protocol):
    url: str
    port: int


@types.coroutine
def cancelled_at(work: Coroutine[Any, Any, object], number: int, late: bool) -> Generator[Any, Any, bool]:
    """Run a coroutine, and cancel it at the await of this number: at once, or when what it awaits is done (`late`).

    Return False if it has fewer awaits.
    """
    task = asyncio.current_task()
    assert task is not None
    count = 0
    send: Callable[[], Any] = lambda: work.send(None)  # noqa: E731
    while True:
        try:
            waits = send()
        except StopIteration:
            return count > number
        count += 1
        if count - 1 == number:
            if late and waits is not None:
                waits.add_done_callback(lambda _: task.cancel())
            else:
                task.cancel()
        try:
            yield waits
        except BaseException as error:  # noqa: BLE001 - it goes into the coroutine
            send = lambda error=error: work.throw(error)  # type: ignore[misc]  # noqa: E731
        else:
            send = lambda: work.send(None)  # noqa: E731


async def everywhere(work: Callable[[], Coroutine[Any, Any, object]], after: Callable[[], Awaitable[object]]) -> int:
    """Cancel the work at each of its awaits, and call `after` each time. Return the number of awaits."""
    for number in range(AWAITS_MAX):
        reached = False
        for late in (False, True):

            async def run(number: int = number, late: bool = late) -> bool:
                return await cancelled_at(work(), number, late)

            async with asyncio.timeout(30):
                (outcome,) = await asyncio.gather(asyncio.create_task(run()), return_exceptions=True)
                assert isinstance(outcome, bool | asyncio.CancelledError), outcome
                reached |= outcome is not False
                await after()
        if not reached:
            return number
    raise AssertionError("the work never ends")


@asynchronous
async def test_connecting_and_closing(kvitto_broker: HasUrl) -> None:
    opened: list[kvitto.Connection] = []

    async def use() -> None:
        async with kvitto.connect(kvitto_broker.url) as connection:
            opened.append(connection)
            async with connection.channel() as channel:
                await channel.queue("q", durable=True)

    async def after() -> None:
        for connection in opened:
            assert isinstance(connection.closed, Closed)
        opened.clear()

    assert await everywhere(use, after) >= 6


@asynchronous
async def test_calls_of_a_channel_that_goes_on(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = await channel.queue("q", durable=True)

        async def check() -> None:
            await channel.publish(b"check", "q")
            assert channel.closed is None

        calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
            lambda: channel.publish(b"x", "q"),
            lambda: channel.publish(b"x", "nowhere-at-all"),
            lambda: channel.publish_many([b"x"] * 5000, "q"),
            lambda: channel.queue("q", durable=True),
            lambda: channel.exchange("e", auto_delete=True),
            lambda: queue.bind("amq.direct"),
            lambda: queue.unbind("amq.direct"),
            queue.purge,
            lambda: channel.qos(0),
            queue.offsets,
            lambda: channel.last_batch("w"),
        ]
        for call in calls:
            assert await everywhere(call, check) >= 1
        assert list(connection._channels) == [channel]


@asynchronous
async def test_no_message_is_lost_by_get_or_a_consumer(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = await channel.queue("q", durable=True)

        async def get() -> None:
            message = await queue.get()
            assert message is not None
            message.reject(requeue=True)

        async def consume() -> None:
            async with queue.consume(prefetch=1) as consumer:
                (await anext(consumer)).reject(requeue=True)

        async def leave() -> None:
            async for message in queue.consume(prefetch=1):
                async with message.process(on_error="requeue"):
                    await channel.qos(0)
                    message.reject(requeue=True)
                break

        async def check() -> None:
            """One message is in the queue, ready, with no consumer."""
            async with asyncio.timeout(10):
                while True:
                    seen = await channel.queue("q", passive=True)
                    if (seen.message_count, seen.consumer_count) == (1, 0):
                        break
            assert not channel._subscriptions

        await channel.publish(b"x", "q")
        for work in (get, consume, leave):
            assert await everywhere(work, check) >= 1


@asynchronous
async def test_rpc_and_transactions_can_begin_again(kvitto_broker: HasUrl) -> None:
    async with kvitto.connect(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = await channel.queue("questions", durable=True)
        async with connection.channel() as serving, queue.consume() as questions:

            async def serve() -> None:
                async for question in questions:
                    question.ack()
                    await serving.reply(question, b"answer")

            async def ask() -> None:
                async with channel.rpc() as rpc:
                    assert (await rpc.call(b"?", "questions")).body == b"answer"

            async def check() -> None:
                await until(lambda: set(channel._subscriptions) == {questions.consumer_tag} and not channel.rpcs)
                await ask()

            server = asyncio.create_task(serve())
            assert await everywhere(ask, check) >= 4
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)

        async with connection.channel() as transacted:
            mine = await transacted.queue("q", durable=True)

            async def transact() -> None:
                async with transacted.transaction():
                    await transacted.publish(b"x", "q")
                    await transacted.qos(0)

            assert await everywhere(transact, transact) >= 2
            assert (await mine.purge()) >= 8
