"""What the features of Kvitto cost the broker per message when they are used.

    python -m benchmarks.features [--messages 200000] [--only TEXT]

For each row a real broker gets messages of 100 B with confirms, with a thousand values of the routing key or of a header in turn, routed
to durable queues. A row with "consumed" also has each of them consumed and acknowledged. CPU time includes everything that the broker does
for a message, so a row is to be compared with the one above it that is said to be its base. Other work on the machine changes it little.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import kvitto
from benchmarks.proc import cpu_s
from kvitto import Message
from kvitto.client.blocking import SyncChannel, SyncQueue
from kvitto.torture.nodes import Kvitto

VALUES = 1000
BODY = bytes(100)
NAME = "measured"
NUMBERS = itertools.count(1_000_000_000)


def plain(exchange: str, count: int) -> Iterator[Message]:
    for i in range(count):
        yield Message(BODY, f"key-{i % VALUES}", exchange=exchange)


def one_key(exchange: str, count: int) -> Iterator[Message]:
    for _ in range(count):
        yield Message(BODY, "key", exchange=exchange)


def with_header(exchange: str, count: int) -> Iterator[Message]:
    for i in range(count):
        yield Message(BODY, f"key-{i % VALUES}", exchange=exchange, headers={"h": str(i % VALUES)})


def new_keys(exchange: str, count: int) -> Iterator[Message]:
    for i in range(count):
        yield Message(BODY, "key", exchange=exchange, headers={"h": str(i)})


def fresh_keys(exchange: str, count: int) -> Iterator[Message]:
    """Messages of which none has a key that another row or run has sent."""
    for i in islice(NUMBERS, count):
        yield Message(BODY, "key", exchange=exchange, headers={"h": str(i)})


def delayed(exchange: str, count: int) -> Iterator[Message]:
    for _ in range(count):
        yield Message(BODY, "key", exchange=exchange, headers={"x-delay": 1})


def filtered(exchange: str, count: int) -> Iterator[Message]:
    for i in range(count):
        yield Message(BODY, "key", exchange=exchange, headers={"x-stream-filter-value": str(i % 2)})


@dataclass(frozen=True)
class Case:
    what: str
    messages: Callable[[str, int], Iterator[Message]]
    kind: str = "fanout"
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of the exchange."""
    queues: int = 1
    queue: dict[str, Any] = field(default_factory=dict)
    """The arguments of the queues."""
    consumed: dict[str, Any] | None = None
    """The arguments of the consumer, if there is one."""
    share: float = 1.0
    """The share of the messages that the consumer gets."""


SEEN = {"x-message-deduplication": True, "x-deduplication-header": "h"}
STREAM = {"x-queue-type": "stream"}
CASES = (
    Case("`fanout`, one routing key", one_key),
    Case("`fanout`, 1,000 routing keys", plain),
    Case("`headers`", with_header, "headers"),
    Case("`x-consistent-hash` by routing key, 10 queues", plain, "x-consistent-hash", queues=10),
    Case("`x-consistent-hash` by routing key, 100 queues", plain, "x-consistent-hash", queues=100),
    Case(
        "`x-consistent-hash` with `hash-header`, 10 queues",
        with_header,
        "x-consistent-hash",
        {"hash-header": "h"},
        queues=10,
    ),
    Case("`x-modulus-hash`, 10 queues", plain, "x-modulus-hash", queues=10),
    Case("`x-random`, 10 queues", plain, "x-random", queues=10),
    Case("`x-recent-history`", plain, "x-recent-history"),
    Case("`fanout`, each message with another header", new_keys),
    Case(
        "the same, a queue with `x-message-deduplication`, 1,000,000 keys",
        new_keys,
        queue={**SEEN, "x-cache-size": 1_000_000},
    ),
    Case("the same, 1,000 keys: each new one replaces another", new_keys, queue={**SEEN, "x-cache-size": 1000}),
    Case("the same, duplicates only", with_header, queue={**SEEN, "x-cache-size": 10_000}),
    Case("`fanout`, consumed", one_key, consumed={}),
    Case("`fanout`, each message with another header, consumed", fresh_keys, consumed={}),
    Case(
        "the same, the exchange with `x-message-deduplication`, 1,000,000 keys",
        fresh_keys,
        arguments={**SEEN, "x-cache-size": 1_000_000},
        consumed={},
    ),
    Case(
        "`x-delayed-message`, `x-delay` of 1 ms, consumed",
        delayed,
        "x-delayed-message",
        {"x-delayed-type": "fanout"},
        consumed={},
    ),
    Case("stream, consumed", filtered, queue=STREAM, consumed={"x-stream-offset": "first"}),
    Case(
        "stream, consumed with a filter that half of the messages match",
        filtered,
        queue=STREAM,
        consumed={"x-stream-offset": "first", "x-stream-filter": "1"},
        share=0.5,
    ),
)


def consume(queue: SyncQueue, count: int, arguments: dict[str, Any]) -> None:
    with queue.consume(prefetch=1000, arguments=arguments) as messages:
        for _, message in zip(range(count), messages, strict=False):
            message.ack()


def measure(broker: Kvitto, case: Case, count: int) -> float:
    """Return the broker's CPU time per message, in microseconds."""
    with kvitto.connect_sync(broker.uri) as connection, connection.channel() as channel:
        exchange = channel.exchange(NAME, case.kind, durable=True, arguments=case.arguments)
        bound = [channel.queue(f"{NAME}.{n}", durable=True, arguments=case.queue) for n in range(case.queues)]
        for queue in bound:
            queue.bind(exchange, "1")
        run(channel, bound, case, 5 * VALUES)  # the routes are cached then
        if case.queue is not STREAM:
            for queue in bound:
                queue.purge()
        before = cpu_s(broker.pid)
        run(channel, bound, case, count)
        used = cpu_s(broker.pid) - before
        for queue in bound:
            queue.delete()
        exchange.delete()
    return used * 1e6 / count


def run(channel: SyncChannel, bound: Sequence[SyncQueue], case: Case, count: int) -> None:
    channel.publish_many(case.messages(NAME, count))
    if case.consumed is not None:
        consume(bound[0], int(count * case.share), case.consumed)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000, help="messages of each row")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the rows with this text")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="kvitto-features-") as place:
        broker = Kvitto(Path(place) / "broker")
        try:
            broker.start()
            print("| messages of 100 B, confirmed | CPU per message |\n|---|---|")
            for case in CASES:
                if args.only in case.what:
                    print(f"| {case.what} | {measure(broker, case, args.messages):.1f} us |", flush=True)
        finally:
            broker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
