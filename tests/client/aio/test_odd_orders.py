"""Stories from a seed: what programs do, in odd orders, while the connection is lost, comes back, is closed or a task is cancelled.

Whatever the order, each call ends once the connection is closed, with a result or an error of the client; no task is left, and
what was confirmed is in the queue.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest

import kvitto
from kvitto.client import AMQPError
from kvitto.client.aio import RPC
from tests.client.aio.test_reconnect import cut, url
from tests.support.faults import Faults
from tests.support.running import asynchronous

pytestmark = pytest.mark.usefixtures("no_pauses")
STORIES = 240 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 12
STEPS = 40
LIMIT_S = 60.0


class HasUrl(Protocol):
    url: str
    port: int


class Story:
    """One connection, and the tasks that use it. A step begins a call, cancels one, or does something to the connection."""

    def __init__(self, connection: kvitto.Connection, proxy: Faults, rng: random.Random) -> None:
        self.connection = connection
        self.proxy = proxy
        self.rng = rng
        self.channels: list[kvitto.Channel] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.confirmed: list[bytes] = []
        self.number = 0
        self.told: list[str] = []
        """The steps, for a story that fails."""
        self.waiting = ""
        """What a task waits for that does not end."""

    async def open(self) -> None:
        self.channels.append(await self.connection.channel())

    async def publish(self, channel: kvitto.Channel) -> None:
        self.number += 1
        body = b"%d" % self.number
        await channel.publish(body, "odd")
        self.confirmed.append(body)

    async def many(self, channel: kvitto.Channel) -> None:
        self.number += 100
        bodies = [b"%d" % n for n in range(self.number - 100, self.number)]
        assert await channel.publish_many(bodies, "odd-many") == 100

    async def consume(self, channel: kvitto.Channel) -> None:
        queue = await channel.queue("odd-many", durable=True)
        async with queue.consume(prefetch=7) as consumer:
            count = 0
            async for message in consumer:
                async with message:
                    count += 1
                if count == 20:
                    break

    async def ask(self, channel: kvitto.Channel) -> None:
        resend = self.rng.random() < 0.5
        async with channel.rpc(resend=resend) as rpc, asyncio.TaskGroup() as group:
            asking = [group.create_task(self.refused(rpc)) for _ in range(2)]
            await channel.qos(0)
            asking[0].cancel()
            if self.rng.random() < 0.5:
                asking[1].cancel()
            else:  # the block ends while it waits
                await rpc.__aexit__(None, None, None)
                await rpc.__aenter__()

    async def refused(self, rpc: RPC) -> None:
        with pytest.raises(AMQPError):
            await rpc.call(b"?", "odd-silent")

    async def group(self, channel: kvitto.Channel) -> None:
        queue = await channel.queue("odd-group", durable=True)
        async with queue.group("g") as group:
            await group.hold(0, 3)
            await group.settle(1)

    async def stage(self, channel: kvitto.Channel) -> None:
        async with channel.stage(f"writer {self.number}", 1) as stage:
            await stage.publish(b"staged", "odd-many")

    async def transaction(self, channel: kvitto.Channel) -> None:
        async with self.connection.channel() as own, own.transaction():
            await own.publish(b"tx", "odd-many")

    async def read(self, channel: kvitto.Channel) -> None:
        queue = await channel.queue("odd-group", durable=True)
        async for _ in queue.read(batch=3):
            pass

    async def close_channel(self, channel: kvitto.Channel) -> None:
        await channel.close()

    async def step(self) -> None:
        rng = self.rng
        kind = rng.choices(
            ["call", "open", "cancel", "cut", "refuse", "accept", "cancel close", "turn"],
            [16, 3, 5, 2, 1, 2, 0.2, 8],
        )[0]
        calls: list[Callable[[kvitto.Channel], Awaitable[None]]] = [
            *(self.publish, self.publish, self.many, self.consume, self.ask, self.group, self.stage),
            *(self.transaction, self.read, self.close_channel),
        ]
        if kind == "call" and self.channels:
            call = rng.choice(calls)
            kind = call.__name__
            self.begin(call(rng.choice(self.channels)))
        elif kind == "open":
            self.begin(self.open())
        elif kind == "cancel" and self.tasks:
            rng.choice(self.tasks).cancel()
        elif kind == "cut":
            self.proxy.cut()
        elif kind == "refuse":
            self.proxy.refuse = True
            await cut(self.proxy, self.connection)
        elif kind == "accept":
            self.proxy.refuse = False
        elif kind == "cancel close":
            self.begin(self.connection.close())
            await asyncio.sleep(0)
            self.tasks[-1].cancel()
        else:
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
        self.told.append(kind)

    def begin(self, work: Awaitable[None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def end(self) -> None:
        """Close the connection, from several tasks perhaps. Then everything ends."""
        closing = [asyncio.ensure_future(self.connection.close()) for _ in range(self.rng.randrange(1, 4))]
        for each in closing[1:]:
            for _ in range(self.rng.randrange(3)):
                await asyncio.sleep(0)
            if self.rng.random() < 0.5:
                each.cancel()
        await asyncio.gather(*closing, return_exceptions=True)
        await self.wait()
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            errors = outcome.exceptions if isinstance(outcome, BaseExceptionGroup) else [outcome]
            assert all(isinstance(each, AMQPError | asyncio.CancelledError | None) for each in errors), outcome
        assert not self.connection._channels and not self.connection.groups

    async def wait(self) -> None:
        """Wait for all tasks. Note in which await each of them is that does not end."""
        try:
            await asyncio.wait(self.tasks)
        except asyncio.CancelledError:
            for task in self.tasks:
                if not task.done():
                    self.waiting += "a task waits here:\n" + "\n".join(awaits(task))
            raise


def awaits(task: asyncio.Task[Any]) -> list[str]:
    """The lines at which the coroutines of a task wait, the outermost first."""
    lines = []
    inner: Any = task.get_coro()
    while hasattr(inner, "cr_frame") and inner.cr_frame is not None:
        lines.append(f"  {inner.cr_frame.f_code.co_filename}:{inner.cr_frame.f_lineno} {inner.cr_frame.f_code.co_name}")
        inner = inner.cr_await
    return [*lines, f"  {inner!r}"]


async def left(broker: HasUrl) -> list[bytes]:
    """What is in the queue of single publishes."""
    async with kvitto.connect(broker.url) as connection, connection.channel() as channel:
        queue = await channel.queue("odd", durable=True)
        found = []
        while (message := await queue.get(no_ack=True)) is not None:
            found.append(message.body)
        return found


@pytest.mark.parametrize("resends", [False, True])
@asynchronous
async def test_calls_in_odd_orders_all_end(
    kvitto_broker: HasUrl, resends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seed = int(os.environ["KVITTO_SEED"])
    async with kvitto.connect(kvitto_broker.url) as connection, connection.channel() as channel:
        for name in ("odd", "odd-many", "odd-silent", "odd-group"):
            await channel.queue(name, durable=True)
        await channel.publish_many([b"x"] * 10, "odd-group")
    for number in range(STORIES):
        rng = random.Random(f"{seed} {number} {resends}")
        async with Faults(kvitto_broker.port) as proxy:
            on_unconfirmed = "resend" if resends else "raise"
            connection = await kvitto.connect(url(proxy), on_unconfirmed=on_unconfirmed)  # type: ignore[arg-type]
            story = Story(connection, proxy, rng)
            await story.open()
            try:
                async with asyncio.timeout(LIMIT_S):
                    for _ in range(STEPS):
                        await story.step()
                    await story.end()
                lost = set(story.confirmed) - set(await left(kvitto_broker))
                assert not lost, f"confirmed and missing: {lost}"
                refused = [text for text in caplog.messages if "connection closed: 5" in text]
                assert not refused, refused
            except BaseException as error:
                error.add_note(f"story {number} of seed {seed}: {', '.join(story.told)}")
                error.add_note(story.waiting)
                raise
