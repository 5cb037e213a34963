"""Stories from a seed for the client of threads: several threads use one connection while it is lost, comes back, and is closed.

Whatever the order, each call ends once the connection is closed, with a result or an error of the client; no thread is left, and
what was confirmed is in the queue.
"""

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import kvitto
from kvitto.client import AMQPError
from kvitto.client.aio import Event
from kvitto.client.blocking import SyncChannel, SyncConnection
from kvitto.client.blocking.loop import Loop
from tests.support.faults import Faults

STORIES = 60 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 4
THREADS = 5
CALLS = 25
LIMIT_S = 120.0


@contextmanager
def faults(port: int) -> Iterator[tuple[Faults, Loop]]:
    """A proxy in a thread of its own."""
    loop = Loop()

    async def start() -> Faults:
        return await Faults(port).__aenter__()

    proxy = loop.run(start())
    try:
        yield proxy, loop
    finally:
        loop.end(proxy.__aexit__)
        loop.join()


class Program:
    """What one thread does: calls on channels that all threads share."""

    def __init__(self, connection: SyncConnection, shared: list[SyncChannel], plain: SyncChannel, seed: str) -> None:
        self.connection = connection
        self.shared = shared
        self.plain = plain
        self.name = seed
        self.rng = random.Random(seed)
        self.confirmed: list[bytes] = []

    def publish(self, channel: SyncChannel) -> None:
        body = f"{self.name} {self.rng.random()}".encode()
        channel.publish(body, "odd", timeout_s=self.rng.choice([None, None, 0.0, 0.01]))
        self.confirmed.append(body)

    def many(self, channel: SyncChannel) -> None:
        channel.publish_many((b"%d" % n for n in range(self.rng.choice([10, 5000]))), "odd-many")

    def hand_over(self, channel: SyncChannel) -> None:
        for _ in range(self.rng.choice([1, 700])):
            self.plain.publish(b"plain", "odd-many")

    def flush(self, channel: SyncChannel) -> None:
        self.plain.flush(0.05)

    def consume(self, channel: SyncChannel) -> None:
        with channel.queue("odd-many", durable=True).consume(prefetch=7, timeout_s=0.05) as consumer:
            for _, message in zip(range(20), consumer, strict=False):
                with message:
                    pass

    def ask(self, channel: SyncChannel) -> None:
        with channel.rpc(resend=self.rng.random() < 0.5) as rpc:
            rpc.call(b"?", "odd-silent", timeout_s=0.02)

    def group(self, channel: SyncChannel) -> None:
        with channel.queue("odd-group", durable=True).group("g") as group:
            group.hold(0, 3)

    def stage(self, channel: SyncChannel) -> None:
        with channel.stage(self.name, self.rng.randrange(1 << 30)) as stage:
            stage.publish_many([b"staged"] * 3, "odd-many")

    def replace(self, channel: SyncChannel) -> None:
        at = self.rng.randrange(len(self.shared))
        self.shared[at].close()
        self.shared[at] = self.connection.channel()

    def run(self) -> None:
        """Make calls. Their errors are the client's, or that of a limit of time; those of the end are the last ones."""
        calls: list[Callable[[SyncChannel], None]] = [
            *(self.publish, self.publish, self.many, self.hand_over, self.hand_over, self.flush),
            *(self.consume, self.ask, self.group, self.stage, self.replace),
        ]
        for _ in range(CALLS):
            with contextlib.suppress(AMQPError, TimeoutError):
                self.rng.choice(calls)(self.rng.choice(self.shared))


def tell(story: "dict[str, SyncConnection]", event: Event) -> None:
    """Close within `on_event` if the story says so."""
    if "close in on_event" in story:
        story["close in on_event"].close()


@pytest.mark.usefixtures("no_pauses")
def test_threads_in_odd_orders_all_end(kvitto_broker: kvitto.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("outbox", "channel"):
        monkeypatch.setattr(f"kvitto.client.blocking.{module}.CLOSE_TIMEOUT_S", 0.2)
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        for name in ("odd", "odd-many", "odd-silent", "odd-group"):
            channel.queue(name, durable=True)
        channel.publish_many([b"x"] * 10, "odd-group")
    for number in range(STORIES):
        seed = f"{os.environ['KVITTO_SEED']} {number}"
        with faults(kvitto_broker.port) as (proxy, loop):
            confirmed = live(proxy, loop, seed)
        with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
            queue, found = channel.queue("odd", durable=True), set()
            while (message := queue.get(no_ack=True)) is not None:
                found.add(message.body)
        assert set(confirmed) <= found, seed
    assert not [thread for thread in threading.enumerate() if thread.name == "kvitto-client"]


def live(proxy: Faults, loop: Loop, seed: str) -> list[bytes]:
    """One story. Return what was confirmed."""
    rng = random.Random(seed)
    story: dict[str, SyncConnection] = {}
    url = f"amqp://guest:guest@127.0.0.1:{proxy.port}/"
    connection = kvitto.connect_sync(url, on_event=lambda event: tell(story, event))
    shared = [connection.channel() for _ in range(3)]
    plain = connection.channel(confirms=False)
    programs = [Program(connection, shared, plain, f"{seed} {n}") for n in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(program.run) for program in programs]
        for _ in range(rng.randrange(30)):
            proxy.refuse = rng.random() < 0.3
            loop.soon(proxy.cut)
            with contextlib.suppress(AMQPError, TimeoutError):
                programs[0].plain.flush(0.01)
        if rng.random() < 0.3:
            story["close in on_event"] = connection
            loop.soon(proxy.cut)
        elif rng.random() < 0.5:
            proxy.refuse = False
        with contextlib.suppress(AMQPError):  # what was not sent
            connection.close()
        for each in running:
            each.result(LIMIT_S)
    return [body for program in programs for body in program.confirmed]
