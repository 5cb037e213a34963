"""A shovel `on-commit` whose last commit is still on its way when its successor has begun."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

import kvitto
from kvitto.client.aio import Connection
from kvitto.client.aio import stages as client_stages
from kvitto.client.aio.channel import Channel
from kvitto.client.errors import AMQPError
from kvitto.shovel.load import Dress
from kvitto.shovel.ranges import RangeSource
from kvitto.shovel.targets import StageTarget
from tests.shovel.running import bodies, declare, publish

GROUP = WRITER = "kvitto.shovel/test"


@pytest.fixture
def broker() -> Iterator[kvitto.Broker]:
    with kvitto.Broker() as running:
        yield running


class Relay:
    """A network that can hold what a client sends: it arrives after `release`, although the client has died meanwhile."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free = asyncio.Event()
        self._free.set()
        self.holds = asyncio.Event()
        self.done = asyncio.Event()
        """Whether the broker has ended a connection whose client has died, behind all that came from it."""
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        """asyncio itself does not keep tasks: one whose client has died could be collected before it is done."""

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        answers = asyncio.create_task(self._answer(server, to_client))
        self._tasks.add(answers)
        try:
            with contextlib.suppress(OSError):
                while data := await client.read(1 << 16):
                    if not self._free.is_set():
                        self.holds.set()
                        await self._free.wait()
                    to_server.write(data)
            with contextlib.suppress(OSError):  # whether the client has closed its connection, or reset it
                to_server.write_eof()
            await answers
        except BaseException:  # the test may end before the connection does
            to_server.transport.abort()
            to_client.transport.abort()
            raise
        to_server.close()
        self.done.set()

    @staticmethod
    async def _answer(server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await server.read(1 << 16):
                with contextlib.suppress(OSError):
                    to_client.write(data)
            to_client.close()


async def ends(source: Connection, target: Connection) -> tuple[RangeSource, StageTarget]:
    """Both ends of a shovel, as `worker` and `pair` open them."""
    ranges = await RangeSource.open(source, "a", GROUP)
    stage = await StageTarget.open(target, f"{WRITER}/{ranges.incarnation}", Dress("", "b"))
    await ranges.skip(await stage.last())
    return ranges, stage


async def carry_all(ranges: RangeSource, stage: StageTarget) -> None:
    while (load := await ranges.take(1000, 0.1)).messages:
        await stage.put(load)
        await ranges.settle(load)
    assert await stage.arrived(10.0)


def test_a_commit_of_a_killed_shovel_that_comes_late_doubles_nothing(
    broker: kvitto.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages were committed twice: by it, and by a successor that had asked for the last batch before."""
    declare(broker.url, "a")
    declare(broker.url, "b")
    publish(broker.url, "a", *(b"%d" % n for n in range(50)))
    commit_stages = client_stages.commit_stages

    async def story() -> None:
        async with Relay(broker.port)() as relay:

            async def late_commit(channel: Channel, writer: str, batch: int, tasks: list[str]) -> bool:
                relay.hold()
                return await commit_stages(channel, writer, batch, tasks)

            slow = broker.url.replace(f":{broker.port}", f":{relay.port}")
            source = await kvitto.connect(broker.url, reconnect=False)
            target = await kvitto.connect(slow, reconnect=False)
            ranges, stage = await ends(source, target)
            load = await ranges.take(1000, 1.0)
            assert len(load.messages) == 50
            monkeypatch.setattr(client_stages, "commit_stages", late_commit)
            last = asyncio.create_task(stage.put(load))
            await relay.holds.wait()
            monkeypatch.setattr(client_stages, "commit_stages", commit_stages)
            kill(source, target)
            assert isinstance((await asyncio.gather(last, return_exceptions=True))[0], AMQPError)
            publish(broker.url, "a", *(b"%d" % n for n in range(50, 100)))
            async with await kvitto.connect(broker.url) as new:
                successor = await ends(new, new)
                relay.release()
                await relay.done.wait()
                await carry_all(*successor)

    asyncio.run(story())
    assert bodies(broker.url, "b") == [b"%d" % n for n in range(100)]


def kill(*connections: Connection) -> None:
    """End connections as the death of their process does."""
    for connection in connections:
        link = connection._link
        assert link is not None and link.transport is not None
        link.transport.abort()
