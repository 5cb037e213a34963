"""`python -m benchmarks.clients`: Kvitto's client beside others, with the same messages through the same broker.

Each measurement is a process of its own: one client, one kind of work, 100 bytes, a durable queue, persistent messages.
A client that is not installed is left out. The broker is Kvitto, started here, or the one of `--uri`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.brokers import BrokerFailed, rabbitmq_script
from kvitto.torture import nodes

BODY = b"x" * 100
QUEUE = "benchmark-clients"
TASKS = 1000
PREFETCH = 1000
PIECE = 10_000
BROKERS: dict[str, Callable[[Path], nodes.Node]] = {"Kvitto": nodes.Kvitto, "RabbitMQ": nodes.RabbitMQ}

WORK = {
    "one": "publish, each confirmed before the next",
    "tasks": f"publish, {TASKS:,} tasks at once, each waits for its confirm",
    "stream": "publish, confirms streamed",
    "plain": "publish without confirms",
    "consume": f"consume, ack each, prefetch {PREFETCH:,}",
}


class Until:
    """Counts the work, and says when its time is over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.most = int(os.environ.get("MESSAGES_THERE", "0")) or 1 << 60
        self.count = 0
        self.started = time.perf_counter()
        self.cpu = time.process_time()

    def more(self, done: int = 0) -> bool:
        self.count += done
        return self.count < self.most and time.perf_counter() - self.started < self.seconds

    def pieces(self) -> Iterator[bytes]:
        """Bodies until the time is over, counted."""
        while self.more():
            for _ in range(PIECE):
                yield BODY
            self.count += PIECE

    def result(self, **also: float) -> dict[str, float]:
        elapsed = time.perf_counter() - self.started
        return {"count": self.count, "seconds": elapsed, "cpu": time.process_time() - self.cpu, **also}


# --- asyncio


async def kvitto_client(uri: str, work: str, seconds: float) -> dict[str, float]:
    from kvitto.client.aio import connect

    connecting = time.perf_counter()
    async with connect(uri) as connection, connection.channel(confirms=work != "plain") as channel:
        connect_ms = (time.perf_counter() - connecting) * 1000
        queue = await channel.queue(QUEUE, durable=True)
        until = Until(seconds)

        async def publish() -> None:
            while until.more():
                await channel.publish(BODY, QUEUE)
                until.count += 1

        if work in ("one", "plain"):
            await publish()
        elif work == "tasks":
            async with asyncio.TaskGroup() as group:
                for _ in range(TASKS):
                    group.create_task(publish())
        elif work == "stream":
            await channel.publish_many(until.pieces(), QUEUE)
        else:
            async for message in queue.consume(prefetch=PREFETCH):
                message.ack()
                if not until.more(1):
                    break
        return until.result(connect_ms=connect_ms)


async def aio_pika_client(uri: str, work: str, seconds: float) -> dict[str, float]:
    import aio_pika

    connecting = time.perf_counter()
    async with await aio_pika.connect(uri) as connection:
        channel = await connection.channel(publisher_confirms=work != "plain")
        connect_ms = (time.perf_counter() - connecting) * 1000
        queue = await channel.declare_queue(QUEUE, durable=True)
        until = Until(seconds)

        async def publish() -> None:
            while until.more():
                message = aio_pika.Message(BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await channel.default_exchange.publish(message, QUEUE)
                until.count += 1

        if work in ("one", "plain"):
            await publish()
        elif work == "tasks":
            async with asyncio.TaskGroup() as group:
                for _ in range(TASKS):
                    group.create_task(publish())
        elif work == "consume":
            await channel.set_qos(PREFETCH)
            async with queue.iterator() as messages:
                async for message in messages:
                    await message.ack()
                    if not until.more(1):
                        break
        else:
            raise NotImplementedError
        return until.result(connect_ms=connect_ms)


# --- synchronous


def kvitto_sync_client(uri: str, work: str, seconds: float) -> dict[str, float]:
    from kvitto.client.blocking import connect_sync

    connecting = time.perf_counter()
    with connect_sync(uri) as connection:
        channel = connection.channel(confirms=work != "plain")
        connect_ms = (time.perf_counter() - connecting) * 1000
        until = Until(seconds)
        if work in ("one", "plain"):
            while until.more():
                channel.publish(BODY, QUEUE)
                until.count += 1
            channel.flush()
        elif work == "stream":
            channel.publish_many(until.pieces(), QUEUE)
        elif work == "consume":
            with channel.queue(QUEUE, durable=True).consume(prefetch=PREFETCH) as consumer:
                for message in consumer:
                    message.ack()
                    if not until.more(1):
                        break
        else:
            raise NotImplementedError
        return until.result(connect_ms=connect_ms)


def pika_client(uri: str, work: str, seconds: float) -> dict[str, float]:
    import pika

    connecting = time.perf_counter()
    connection = pika.BlockingConnection(pika.URLParameters(uri))
    channel = connection.channel()
    connect_ms = (time.perf_counter() - connecting) * 1000
    properties = pika.BasicProperties(delivery_mode=2)
    if work == "one":
        channel.confirm_delivery()
    until = Until(seconds)
    if work in ("one", "plain"):
        while until.more():
            channel.basic_publish("", QUEUE, BODY, properties)
            until.count += 1
    elif work == "consume":
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, _, _ in channel.consume(QUEUE):
            channel.basic_ack(method.delivery_tag)
            if not until.more(1):
                break
        channel.cancel()
    else:
        raise NotImplementedError
    connection.close()
    return until.result(connect_ms=connect_ms)


def amqpstorm_client(uri: str, work: str, seconds: float) -> dict[str, float]:
    amqpstorm: Any = importlib.import_module("amqpstorm")

    connecting = time.perf_counter()
    with amqpstorm.UriConnection(uri) as connection, connection.channel() as channel:
        connect_ms = (time.perf_counter() - connecting) * 1000
        if work == "one":
            channel.confirm_deliveries()
        until = Until(seconds)
        if work in ("one", "plain"):
            while until.more():
                channel.basic.publish(BODY, QUEUE, properties={"delivery_mode": 2})
                until.count += 1
        elif work == "consume":
            channel.basic.qos(PREFETCH)
            channel.basic.consume(queue=QUEUE)
            for message in channel.build_inbound_messages():
                message.ack()
                if not until.more(1):
                    break
        else:
            raise NotImplementedError
        return until.result(connect_ms=connect_ms)


def amqp_client(uri: str, work: str, seconds: float) -> dict[str, float]:
    import amqp

    parts = urlsplit(uri)
    connecting = time.perf_counter()
    connection = amqp.Connection(
        f"{parts.hostname}:{parts.port}", parts.username, parts.password, confirm_publish=work == "one"
    )
    with connection:
        channel = connection.channel()
        connect_ms = (time.perf_counter() - connecting) * 1000
        until = Until(seconds)
        if work in ("one", "plain"):
            while until.more():
                channel.basic_publish(amqp.Message(BODY, delivery_mode=2), "", QUEUE)
                until.count += 1
        elif work == "consume":

            def take(message: Any) -> None:
                channel.basic_ack(message.delivery_tag)
                until.count += 1

            channel.basic_qos(0, PREFETCH, False)
            channel.basic_consume(QUEUE, callback=take)
            while until.more():
                connection.drain_events(timeout=5)
        else:
            raise NotImplementedError
        return until.result(connect_ms=connect_ms)


def rabbitpy_client(uri: str, work: str, seconds: float) -> dict[str, float]:
    rabbitpy: Any = importlib.import_module("rabbitpy")

    connecting = time.perf_counter()
    with rabbitpy.Connection(uri) as connection, connection.channel() as channel:
        connect_ms = (time.perf_counter() - connecting) * 1000
        if work == "one":
            channel.enable_publisher_confirms()
        until = Until(seconds)
        if work in ("one", "plain"):
            while until.more():
                rabbitpy.Message(channel, BODY, {"delivery_mode": 2}).publish("", QUEUE)
                until.count += 1
        elif work == "consume":
            for message in rabbitpy.Queue(channel, QUEUE).consume(prefetch=PREFETCH):
                message.ack()
                if not until.more(1):
                    break
        else:
            raise NotImplementedError
        return until.result(connect_ms=connect_ms)


Client = Callable[[str, str, float], Any]
CLIENTS: dict[str, tuple[str, Client, tuple[str, ...]]] = {
    "kvitto": ("kvitto.client.aio", kvitto_client, tuple(WORK)),
    "kvitto, uvloop": ("uvloop", kvitto_client, tuple(WORK)),
    "kvitto, sync": ("kvitto.client.blocking", kvitto_sync_client, ("one", "stream", "plain", "consume")),
    "aio-pika": ("aio_pika", aio_pika_client, ("one", "tasks", "plain", "consume")),
    "pika": ("pika", pika_client, ("one", "plain", "consume")),
    "amqpstorm": ("amqpstorm", amqpstorm_client, ("one", "plain", "consume")),
    "py-amqp": ("amqp", amqp_client, ("one", "plain", "consume")),
    "rabbitpy": ("rabbitpy", rabbitpy_client, ("one", "plain", "consume")),
}


def child(name: str, work: str, uri: str, seconds: float) -> None:
    """Measure one thing, and print it as JSON."""
    _, client, _ = CLIENTS[name]
    if asyncio.iscoroutinefunction(client):
        factory = None
        if name.endswith("uvloop"):
            factory = importlib.import_module("uvloop").new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            found = runner.run(client(uri, work, seconds))
    else:
        found = client(uri, work, seconds)
    # ru_maxrss would be that of the parent, from which this process was made
    status = Path("/proc/self/status").read_text()
    found["rss_mb"] = int(status.partition("VmRSS:")[2].split()[0]) / 1024
    print(json.dumps(found), flush=True)
    os._exit(0)  # some clients wait for threads that nobody ends


def measure(name: str, work: str, uri: str, seconds: float, there: int) -> dict[str, float] | str:
    command = [sys.executable, "-m", "benchmarks.clients", "--child", name, work, uri, str(seconds)]
    try:
        environment = {**os.environ, "MESSAGES_THERE": str(there)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60 + 4 * seconds, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode or not done.stdout:
        return (done.stderr.strip().splitlines() or ["no output"])[-1][:80]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def import_ms(module: str) -> float:
    """The time that `import` of a client takes after `import asyncio, ssl`, which most programs have anyway; the best of
    three. In a checkout, but not where Kvitto is installed, the first compiled module costs 20 ms to look for edits."""
    code = "import asyncio, ssl, time, kvitto; kvitto.compiled(); t = time.perf_counter(); import {}; "
    code += "print((time.perf_counter() - t) * 1000)"
    command = [sys.executable, "-c", code.format(module)]
    # without its bytecode a module is compiled again by each process, which is nothing that an installed package does
    cached = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = [
        float(subprocess.run(command, capture_output=True, text=True, check=True, env=cached).stdout) for _ in range(3)
    ]
    return min(times)


def prepare(uri: str, messages: int) -> None:
    """Empty the queue, then fill it with so many messages."""
    import kvitto

    async def fill() -> None:
        async with kvitto.connect(uri) as connection, connection.channel() as channel:
            queue = await channel.queue(QUEUE, durable=True)
            await queue.purge()
            await channel.publish_many((BODY for _ in range(messages)), QUEUE)

    asyncio.run(fill())


@contextmanager
def broker(name: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="kvitto-clients-", dir=Path.cwd() / "build") as place:
        node = BROKERS[name](Path(place))
        try:
            node.start()
            yield node.uri
        finally:
            node.stop()


def table(where: str, uri: str, chosen: list[str], works: list[str], seconds: float, fill: int) -> None:
    """Print one table."""
    print(f"\nBroker: {where}; {len(BODY)} bytes, durable; {seconds:g} s each\n")
    print("| client | work | messages/s | CPU of the client, µs each | memory, MiB | connect, ms |")
    print("|---|---|---|---|---|---|", flush=True)
    for work in works:
        for name in chosen:
            if work not in CLIENTS[name][2]:
                continue
            there = fill if work == "consume" else 0
            prepare(uri, there)
            found = measure(name, work, uri, seconds, there)
            if isinstance(found, str):
                print(f"| {name} | {WORK[work]} | {found} | | | |", flush=True)
                continue
            rate, cpu = found["count"] / found["seconds"], found["cpu"] / max(found["count"], 1) * 1e6
            shown = f"{rate:,.0f} | {cpu:,.1f} | {found['rss_mb']:.0f} | {found['connect_ms']:.1f} |"
            print(f"| {name} | {WORK[work]} | {shown}", flush=True)
    prepare(uri, 0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__.splitlines()[0])
    parser.add_argument("--uri", help="measure against this broker (default: start Kvitto)")
    parser.add_argument("--rabbitmq", action="store_true", help="start RabbitMQ, too, and measure against it")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement (3)")
    parser.add_argument("--only", default="", metavar="CLIENT,...", help=f"of {', '.join(CLIENTS)}")
    parser.add_argument("--work", default="", metavar="WORK,...", help=f"of {', '.join(WORK)}")
    parser.add_argument("--fill", type=int, default=2_000_000, help="messages to consume, at most (2,000,000)")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, work, uri, seconds = options.child
        child(name, work, uri, float(seconds))
    chosen = [n for n in CLIENTS if (not options.only or n.split(",")[0] in options.only.split(","))]
    for name in [n for n in chosen if importlib.util.find_spec(CLIENTS[n][0].split(".")[0]) is None]:
        print(f"{name} is not installed: left out", file=sys.stderr)
        chosen.remove(name)
    works = [work for work in WORK if not options.work or work in options.work.split(",")]
    print("| client | import after asyncio and ssl, ms |\n|---|---|")
    for name in chosen:
        if not name.startswith("kvitto,"):
            print(f"| {name} | {import_ms(CLIENTS[name][0]):.0f} |", flush=True)
    if options.uri:
        table("the one of --uri", options.uri, chosen, works, options.seconds, options.fill)
        return
    names = ["Kvitto", "RabbitMQ"] if options.rabbitmq and rabbitmq_script() else ["Kvitto"]
    for where in names:
        with broker(where) as uri:
            fill = options.fill if where == "Kvitto" else options.fill // 10
            table(where, uri, chosen, works, options.seconds, fill)


if __name__ == "__main__":
    try:
        main()
    except BrokerFailed as failed:
        sys.exit(str(failed))
