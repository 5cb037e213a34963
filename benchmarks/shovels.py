"""What shovels carry, what that costs, and what a flood beside them loses.

    python -m benchmarks.shovels [--messages 100000] [--flood 1000000] [--idle 0,10,100] [--seconds 5] [--only TEXT]

All is one broker's on this machine, with durable messages of 100 B; the shovels are in the broker's process for them (adr/0029). The
first table has `--messages` messages carried from a queue that is full before the shovel begins. The second one has a flood: one
connection publishes `--flood` messages with confirms to a queue that has no shovel, beside `--idle` shovels whose queues are empty, and
beside one that carries. Broker, shovels, publisher and webhook's server share the machine's cores: beside a shovel that carries the
flood's rate says who got how much of them, and its CPU what the broker had to do for both. The third one has `--seconds` in which
nothing is published.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import kvitto
from benchmarks.proc import processes, tree
from kvitto.cli.management import Management
from kvitto.client.blocking import SyncChannel
from kvitto.torture.nodes import Kvitto

BODY = bytes(100)
POLL_S = 0.1
ANSWER = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
KINDS: dict[str, dict[str, Any]] = {
    "at least once (`on-confirm`)": {"dest-uri": "amqp://", "dest-queue": "to"},
    "once (`on-commit`)": {"dest-uri": "amqp://", "dest-queue": "to", "ack-mode": "on-commit"},
    "webhook": {},
    "webhook, `dest-batch` 100": {"dest-batch": 100},
}
"""By name, the settings beside the source. A webhook's `dest-uri` is that of the server that runs here."""
SLOW, SHARE = "webhook", 0.1
"""This kind has a request for each message, so it carries this share of the messages."""


IDLE = [name for name, settings in KINDS.items() if "dest-queue" in settings]
"""The kinds that have nothing to carry: what a webhook does then is the same as the first of them."""


@dataclass(frozen=True)
class Cost:
    """What some messages took: seconds, and CPU seconds of the broker and of its shovels."""

    messages: int
    seconds: float
    broker_s: float
    shovels_s: float

    def __str__(self) -> str:
        each = (f"{cpu * 1e6 / self.messages:.2f} us" for cpu in (self.broker_s, self.shovels_s))
        return f"{self.messages / self.seconds:,.0f}/s | {' | '.join(each)}"


class Site:
    """A broker with queues, and shovels between them."""

    def __init__(self, broker: Kvitto, channel: SyncChannel, hook: str) -> None:
        self._broker = broker
        self._channel = channel
        self._hook = hook
        assert broker.http_uri is not None
        self._api = Management(broker.http_uri)
        for queue in ("from", "to", "flood"):
            channel.queue(queue, durable=True)

    def add(self, name: str, queue: str, settings: dict[str, Any]) -> None:
        value = {"src-uri": "amqp://", "src-queue": queue, "dest-uri": self._hook, **settings}
        self._api.put("parameters", "shovel", "/", name, body={"value": value})

    def remove(self, name: str) -> None:
        self._api.delete("parameters", "shovel", "/", name)

    def shovel(self, name: str) -> dict[str, Any]:
        shown: dict[str, Any] = self._api.get("shovels", "vhost", "/", name)
        return shown

    def wait(self, name: str, done: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until a shovel shows this."""
        while not done(shown := self.shovel(name)):
            if shown["state"] == "terminated":
                raise RuntimeError(f"shovel {name}: {shown['reason']}")
            time.sleep(POLL_S)
        return shown

    def cpu(self) -> tuple[float, float]:
        """CPU seconds of the broker and of its shovels so far."""
        broker, *shovels = tree(self._broker.pid, processes())
        return broker.cpu_s, sum(stat.cpu_s for stat in shovels)

    def cost(self, messages: int, work: Callable[[], object]) -> Cost:
        broker, shovels = self.cpu()
        began = time.monotonic()
        work()
        seconds = time.monotonic() - began
        broker_after, shovels_after = self.cpu()
        return Cost(messages, seconds, broker_after - broker, shovels_after - shovels)

    def fill(self, queue: str, count: int) -> None:
        self._channel.publish_many((BODY for _ in range(count)), queue)

    def empty(self) -> None:
        for queue in ("from", "to", "flood"):
            self._channel.queue(queue, durable=True).purge()

    def carry(self, settings: dict[str, Any], count: int) -> Cost:
        """Have a shovel carry so many messages."""
        self.fill("from", count)

        def work() -> None:
            self.add("carries", "from", settings)
            self.wait("carries", lambda shown: shown.get("moved", 0) >= count)

        cost = self.cost(count, work)
        self.remove("carries")
        self.empty()
        return cost

    def flood(self, count: int) -> Cost:
        cost = self.cost(count, lambda: self.fill("flood", count))
        self.empty()
        return cost

    def flood_beside(self, settings: dict[str, Any], count: int, most: int) -> tuple[Cost, int]:
        """Flood while a shovel carries at most `most` messages. Return that cost, and how many it carried meanwhile."""
        self.fill("from", most)
        self.add("carries", "from", settings)
        before = self.wait("carries", lambda shown: shown.get("moved", 0) > 0)["moved"]
        cost = self.cost(count, lambda: self.fill("flood", count))
        carried = self.shovel("carries")["moved"] - before
        self.remove("carries")
        self.ended()
        self.empty()
        return cost, carried

    @contextlib.contextmanager
    def idle(self, count: int, kind: str = IDLE[0]) -> Iterator[None]:
        """So many shovels that run and have nothing to carry."""
        names = [f"idle-{n}" for n in range(count)]
        for name in names:
            self._channel.queue(name, durable=True)
            self.add(name, name, KINDS[kind])
        for name in names:
            self.wait(name, lambda shown: shown["state"] == "running")
        yield
        for name in names:
            self.remove(name)
            self._channel.queue(name, durable=True).delete()
        self.ended()

    def ended(self) -> None:
        """Wait for the end of the process whose last shovel was removed: its CPU is added to the broker's then."""
        while len(tree(self._broker.pid, processes())) > 1:
            time.sleep(POLL_S)


def serve(ready: Connection) -> None:
    """An HTTP server that takes everything, in a process of its own."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
                writer.write(ANSWER)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextlib.contextmanager
def hook() -> Iterator[str]:
    """The URL of such a server, until the end of the block."""
    context = multiprocessing.get_context("spawn")
    ready, other = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(other,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ready.recv()}/"
    finally:
        process.terminate()
        process.join()


def share(name: str, messages: int) -> int:
    return max(1, int(messages * SHARE)) if name == SLOW else messages


def measure(site: Site, messages: int, flood: int, idle: Sequence[int], seconds: float, only: str) -> Iterator[str]:
    """Yield the lines of all tables."""
    kinds = {name: settings for name, settings in KINDS.items() if only in name}
    with site.idle(1):  # the process of the shovels is there
        site.carry(KINDS[IDLE[0]], 1000)
        yield "| a shovel that carries | rate | CPU of the broker per message | CPU of the shovel |"
        yield "|---|---|---|---|"
        for name, settings in kinds.items():
            yield f"| {name} | {site.carry(settings, share(name, messages))} |"
    yield "\n| a flood beside | rate | CPU of the broker per message | CPU of the shovels | carried meanwhile |"
    yield "|---|---|---|---|---|"
    site.flood(max(flood // 10, 1))
    for count in idle:
        with site.idle(count):
            yield f"| {count} idle shovels | {site.flood(flood)} | |"
    for name, settings in kinds.items():
        cost, carried = site.flood_beside(settings, flood, share(name, 4 * messages))
        yield f"| one that carries: {name} | {cost} | {carried:,} |"
    yield "\n| idle shovels | CPU of the broker | CPU of the shovels |\n|---|---|---|"
    for name in IDLE:
        for count in filter(None, idle):
            with site.idle(count, name):
                cost = site.cost(1, lambda: time.sleep(seconds))
            shares = (f"{cpu / cost.seconds:.1%} of a core" for cpu in (cost.broker_s, cost.shovels_s))
            yield f"| {count}, {name} | {' | '.join(shares)} |"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shovels", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000, help="messages that each kind of shovel carries")
    parser.add_argument("--flood", type=int, default=1_000_000, help="messages of each flood")
    parser.add_argument("--idle", default="0,10,100", metavar="N,...", help="how many idle shovels there are beside it")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long the idle ones are watched")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the kinds of shovels with this text")
    args = parser.parse_args(argv)
    idle = [int(count) for count in args.idle.split(",")]
    with tempfile.TemporaryDirectory(prefix="kvitto-shovels-") as place, hook() as url:
        broker = Kvitto(Path(place) / "broker")
        try:
            broker.start()
            with kvitto.connect_sync(broker.uri) as connection, connection.channel() as channel:
                site = Site(broker, channel, url)
                for line in measure(site, args.messages, args.flood, idle, args.seconds, args.only):
                    print(line, flush=True)
        finally:
            broker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
