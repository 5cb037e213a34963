"""What delayed messages cost: memory and start time with very many that wait, CPU per message, and how punctual they are.

    python -m benchmarks.delayed [--waiting 1000000] [--timed 5000]

A real broker gets `--waiting` messages that are due in an hour or later, at random times. It is ended and started again. Then `--timed`
messages with delays up to 3 s are published among them, one after the other, and each one's lateness is measured where it arrives.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import kvitto
from benchmarks.proc import cpu_s, rss_bytes
from kvitto import Message
from kvitto.torture.nodes import Kvitto

HOUR_MS = 3_600_000
BODY = bytes(100)
DELAY_MAX_MS = 3000


def waiting(count: int, rng: random.Random) -> Iterator[Message]:
    for number in range(count):
        delay_ms = HOUR_MS + rng.randrange(24 * HOUR_MS)
        yield Message(BODY, "k", exchange="later", headers={"x-delay": delay_ms}, message_id=str(number))


def fill(broker: Kvitto, count: int) -> None:
    rss, cpu, begin = rss_bytes(broker.pid), cpu_s(broker.pid), time.monotonic()
    with kvitto.connect_sync(broker.uri) as connection, connection.channel() as channel:
        channel.publish_many(waiting(count, random.Random(1)))
        took, used = time.monotonic() - begin, cpu_s(broker.pid) - cpu
    grown = rss_bytes(broker.pid) - rss
    print(f"{count:,} published and confirmed in {took:.1f} s, {used * 1e6 / count:.1f} us of CPU for each")
    print(f"memory of the broker: {rss / 1e6:.0f} MB before, {grown / 1e6:+.1f} MB with all that wait")


def again(broker: Kvitto) -> None:
    begin = time.monotonic()
    broker.start()
    ready = time.monotonic() - begin
    cpu = cpu_s(broker.pid)
    with kvitto.connect_sync(broker.uri) as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        channel.publish(BODY, "k", exchange="later", headers={"x-delay": 1})
        while queue.get(no_ack=True) is None:
            time.sleep(0.01)
    first = time.monotonic() - begin
    print(f"started again in {ready:.2f} s; the first delayed message came {first:.2f} s after the start", end="")
    time.sleep(2)
    print(f"; {cpu_s(broker.pid) - cpu:.2f} s of CPU behind the start, memory {rss_bytes(broker.pid) / 1e6:.0f} MB")


def receive(uri: str, count: int, result: Connection) -> None:
    """Note how late each message is, in a process of its own: threads of one process wait for each other for milliseconds.

    The monotonic clock is the same in all processes of Linux. The clock of the day of a virtual machine may be set at any time.
    """
    with kvitto.connect_sync(uri) as connection, connection.channel() as channel:
        arrived = iter(channel.queue("q", durable=True).consume(prefetch=1000, no_ack=True))
        result.send([-float(next(arrived).body) + time.monotonic() for _ in range(count)])


def punctual(broker: Kvitto, count: int) -> None:
    context = multiprocessing.get_context("spawn")
    result, other = context.Pipe(duplex=False)
    receiver = context.Process(target=receive, args=(broker.uri, count, other))
    receiver.start()
    rng = random.Random(2)
    with kvitto.connect_sync(broker.uri) as connection, connection.channel() as channel:
        for _ in range(count):
            delay_ms = rng.randrange(1, DELAY_MAX_MS)
            body = repr(time.monotonic() + delay_ms / 1000).encode()
            channel.publish(body, "k", exchange="later", headers={"x-delay": delay_ms})
    late = sorted(result.recv())
    receiver.join()
    p50, p99 = (late[len(late) * part // 100] * 1e3 for part in (50, 99))
    print(
        f"{count:,} timed messages: earliest {late[0] * 1e3:+.1f} ms, late by p50 {p50:.1f} ms, p99 {p99:.1f}", end=""
    )
    print(f", at most {late[-1] * 1e3:.1f} ms; mean {statistics.mean(late) * 1e3:.1f} ms")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.delayed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--waiting", type=int, default=1_000_000, help="messages that wait")
    parser.add_argument("--timed", type=int, default=5000, help="messages whose time is measured")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="kvitto-delayed-") as place:
        broker = Kvitto(Path(place) / "broker")
        try:
            broker.start()
            with kvitto.connect_sync(broker.uri) as connection, connection.channel() as channel:
                exchange = channel.exchange(
                    "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
                )
                channel.queue("q", durable=True).bind(exchange, "k")
            fill(broker, args.waiting)
            broker.stop()
            again(broker)
            punctual(broker, args.timed)
        finally:
            broker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
