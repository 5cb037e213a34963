"""A search for a connection reset at each byte: `python -m tests.client.aio.resets --uri amqp://guest:guest@localhost/`.

A conversation of the asyncio client that uses all of it runs through a proxy, which resets the connection after a number of
bytes of one side; then it runs with the next number. Every conversation has to end, by success or with an exception of the
client; nothing that was confirmed may be missing, nothing may come twice that was not unknown, no task may be left, and the
event loop has nothing to complain of. Queues `resets` and `resets-x` and the writer `resets` belong to the search.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar

import kvitto
from kvitto.client import AMQPError, ConnectFailed, ConnectionLost
from kvitto.client.aio import CommitUnknown, ManyFailed, PublishUnknown, Returned
from kvitto.client.uri import parse_uri
from tests.support.faults import Faults

Mode = Literal["raise", "resend", "once"]
MODES: tuple[Mode, ...] = ("raise", "resend", "once")
"""`on_unconfirmed` of a client that reconnects; `once` is one that does not."""
LIMIT_S = 20.0
T = TypeVar("T")


class Conversation:
    """One program that talks to the broker, and what it was told."""

    def __init__(self, connection: kvitto.Connection, *, insists: bool) -> None:
        self.connection = connection
        self.insists = insists
        self.confirmed: list[bytes] = []
        self.unknown: Counter[bytes] = Counter()
        self.taken: Counter[bytes] = Counter()

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the answer comes."""
        while True:
            try:
                return await call()
            except (ConnectionLost, PublishUnknown):
                if not self.insists:
                    raise

    async def publish(self, channel: kvitto.Channel, body: bytes, key: str, exchange: str = "") -> None:
        async def publish() -> None:
            try:
                await channel.publish(body, key, exchange=exchange)
            except PublishUnknown:
                self.unknown[body] += 1
                raise

        await self.insist(publish)
        self.confirmed.append(body)

    async def talk(self) -> None:
        """Use every kind of call."""
        insist = self.insist
        channel = await insist(lambda: _open(self.connection))
        queue = await insist(lambda: channel.queue("resets", durable=True))
        exchange = await insist(lambda: channel.exchange("resets-x", "fanout", auto_delete=True))
        await insist(lambda: queue.bind(exchange))
        await self.publish(channel, b"one", "resets")
        await self.publish(channel, b"two", "", "resets-x")
        await self._return(channel)
        await self._many(channel)
        await insist(lambda: channel.qos(10))
        await self._get(queue)
        await self._consume(queue)
        await insist(lambda: self._call(channel))
        await self._transaction()
        await self._extensions(channel, queue)
        await channel.close()

    async def _return(self, channel: kvitto.Channel) -> None:
        try:
            await self.insist(lambda: channel.publish(b"nowhere", "resets-nowhere", mandatory=True))
        except Returned:
            return
        raise AssertionError("a message that no queue takes was not returned")

    async def _many(self, channel: kvitto.Channel) -> None:
        bodies = [b"many %d" % n for n in range(4)]
        while bodies:
            try:
                await channel.publish_many(bodies, "resets")
            except ManyFailed as error:
                self.confirmed += bodies[: error.taken]
                for index, _ in error.failed:
                    self.confirmed.remove(bodies[index])
                    self.unknown[bodies[index]] += 1
                if not self.insists:
                    raise
                failed = {index for index, _ in error.failed}
                bodies = [body for index, body in enumerate(bodies) if index in failed or index >= error.taken]
            except ConnectionLost:
                if not self.insists:
                    raise
            else:
                self.confirmed += bodies
                return

    async def _get(self, queue: kvitto.Queue) -> None:
        while (message := await self.insist(queue.get)) is None:
            pass
        if message.ack():
            self.taken[message.body] += 1

    async def _consume(self, queue: kvitto.Queue) -> None:
        count = 0
        async with queue.consume(prefetch=2) as consumer:
            async for message in consumer:
                if message.ack():
                    self.taken[message.body] += 1
                    count += 1
                if count == 2:
                    break

    async def _call(self, channel: kvitto.Channel) -> None:
        """Ask over a queue of its own, and answer. The queue gets another name after a reconnect, so a question may be returned."""
        asked = await channel.queue(exclusive=True)
        async with channel.rpc(resend=self.insists) as rpc, asked.consume(no_ack=True) as consumer:

            async def answer() -> None:
                async for message in consumer:
                    await self.insist(lambda message=message: channel.reply(message, b"answer"))  # type: ignore[misc]

            answering = asyncio.create_task(answer())
            try:
                assert (await rpc.call(b"question", asked.name)).body == b"answer"
            except Returned as error:
                raise ConnectionLost("the queue has another name now") from error
            finally:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
        await asked.delete()

    async def _transaction(self) -> None:
        channel = await self.insist(lambda: _open(self.connection))

        async def transaction() -> None:
            self.unknown[b"tx"] += 1
            async with channel.transaction():
                await channel.publish(b"tx", "resets")

        await self.insist(transaction)
        self.confirmed.append(b"tx")
        await channel.close()

    async def _extensions(self, channel: kvitto.Channel, queue: kvitto.Queue) -> None:
        last = await self.insist(lambda: channel.last_batch("resets"))
        batch = 0 if last is None else last + 1

        async def stage() -> None:
            async with channel.stage("resets", batch) as stage:
                await stage.publish(b"staged", "resets")

        try:
            await self.insist(stage)
        except CommitUnknown:
            self.unknown[b"staged"] += 1
            raise
        self.confirmed.append(b"staged")
        where = await self.insist(queue.offsets)
        found = [message.offset or 0 async for message in queue.read(where.first, where.next, batch=3)]
        assert found == sorted(set(found))

        async def hold() -> None:
            async with queue.group("resets") as group:
                held = await group.hold(group.offsets.first, group.offsets.first + 1)
                assert held.first == group.offsets.first

        await self.insist(hold)


async def _open(connection: kvitto.Connection) -> kvitto.Channel:
    return await connection.channel()


async def converse(uri: str, port: int, mode: Mode) -> Conversation | None:
    """Run one conversation through the proxy at `port`. None: the connection was lost before the client had connected."""
    address = parse_uri(uri)
    through = f"amqp://{address.user}:{address.password}@127.0.0.1:{port}/"
    connecting = kvitto.connect(
        through, reconnect=mode != "once", on_unconfirmed="resend" if mode == "resend" else "raise"
    )
    try:
        async with connecting as connection:
            conversation = Conversation(connection, insists=mode != "once")
            try:
                await conversation.talk()
            except AMQPError:
                assert mode == "once"
            return conversation
    except ConnectFailed:
        return None


async def check(uri: str, mode: Mode, conversation: Conversation | None) -> None:
    """Empty the queue, and compare it with what the conversation was told."""
    async with kvitto.connect(uri) as connection, connection.channel() as channel:
        queue = await channel.queue("resets", durable=True)
        found: Counter[bytes] = Counter()
        waits = time.monotonic() + 10
        while True:
            while (message := await queue.get(no_ack=True)) is not None:
                found[message.body] += 1
            if conversation is None:
                assert not found
                return
            missing = Counter(conversation.confirmed) - found - conversation.taken
            if not missing:
                break
            assert time.monotonic() < waits, f"confirmed and missing: {missing}"  # a stage arrives after its commit
        if mode != "resend":  # which sends again what had no confirm; and an ack that was lost leaves its message
            twice = found - Counter(conversation.confirmed) - conversation.unknown
            assert not twice, f"more than was published: {twice}"


async def trial(uri: str, mode: Mode, from_server: bool, left: int, again: int | None = None) -> None:
    """Run one conversation that is reset after `left` bytes of one side. With `again`, the next one is reset, too."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    async with kvitto.connect(uri) as connection, connection.channel() as channel:
        await (await channel.queue("resets", durable=True)).purge()
    async with asyncio.timeout(LIMIT_S), Faults(parse_uri(uri).port) as proxy:
        if from_server:
            proxy.left = left
        else:
            proxy.left_of_client = left
        proxy.then = again
        conversation = await converse(uri, proxy.port, mode)
        proxy.left = proxy.left_of_client = proxy.then = None
    await check(uri, mode, conversation)
    left_over = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left_over, f"tasks are left: {left_over}"
    assert not complaints, complaints


async def lengths(uri: str, mode: Mode) -> dict[bool, int]:
    """Return how many bytes the server (True) and the client send in a conversation without faults."""
    async with Faults(parse_uri(uri).port) as proxy:
        conversation = await converse(uri, proxy.port, mode)
        assert conversation is not None and len(conversation.confirmed) == 8
        forwarded = dict(proxy.forwarded)
    await check(uri, mode, conversation)
    return forwarded


def search(uri: str, modes: Iterable[Mode], step: int, rng: random.Random, *, twice: bool = False) -> int:
    """Run a conversation for each `step`-th byte of both sides. Return their number. Raise what the first bad one raised."""
    count = 0
    for mode in modes:
        total = asyncio.run(lengths(uri, mode))
        for from_server in (True, False):
            for left in range(rng.randrange(step), total[from_server] + 1, step):
                again = rng.randrange(total[from_server]) if twice else None
                try:
                    asyncio.run(trial(uri, mode, from_server, left, again))
                    if count % 20 == 0:
                        gc.collect()
                except BaseException as error:
                    side = "server" if from_server else "client"
                    error.add_note(f"mode {mode}, reset after {left} bytes of the {side}, then after {again}")
                    raise
                count += 1
    return count


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.client.aio.resets", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--uri", required=True, help="a Kvitto to talk to")
    parser.add_argument("--step", type=int, default=1, help="each byte (1), or each n-th")
    parser.add_argument("--modes", default=",".join(MODES), help="raise, resend, once")
    parser.add_argument("--twice", action="store_true", help="reset the next connection too, at a random byte")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    from kvitto.client.aio import connection

    connection.BACKOFF_S = 0.001
    logging.getLogger("kvitto.client").setLevel(logging.ERROR)
    modes = [mode for mode in MODES if mode in arguments.modes.split(",")]
    count = search(arguments.uri, modes, arguments.step, random.Random(arguments.seed), twice=arguments.twice)
    print(f"{count} conversations, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
