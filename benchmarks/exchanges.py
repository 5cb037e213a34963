"""What the types of exchanges cost the broker per message.

    python -m benchmarks.exchanges [--messages 100000]

For each type a real broker gets messages of 100 B with confirms, with a thousand values of the routing key and of a header in turn. They
are routed to durable queues, whose number is in the first column. CPU time includes everything that the broker does for a message, so
it is to be compared with the first rows. It is not sensitive to what else runs on the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kvitto
from benchmarks.proc import cpu_s
from kvitto import Message
from kvitto.torture.nodes import Kvitto

VALUES = 1000
BODY = bytes(100)
CASES: tuple[tuple[int, str, dict[str, Any], bool], ...] = (
    (1, "fanout", {}, False),
    (1, "headers", {}, True),
    (10, "x-consistent-hash", {}, False),
    (100, "x-consistent-hash", {}, False),
    (10, "x-consistent-hash", {"hash-header": "h"}, True),
    (100, "x-consistent-hash", {"hash-header": "h"}, True),
    (10, "x-modulus-hash", {}, False),
    (10, "x-random", {}, False),
    (1, "x-recent-history", {}, False),
)
"""Queues, the type and its arguments, and whether the messages have a header."""


def messages(exchange: str, count: int, header: bool) -> Iterator[Message]:
    for i in range(count):
        value = str(i % VALUES)
        yield Message(BODY, f"key-{value}", exchange=exchange, headers={"h": value} if header else {})


def measure(broker: Kvitto, case: tuple[int, str, dict[str, Any], bool], count: int) -> float:
    """Return the broker's CPU time per message, in microseconds."""
    queues, kind, arguments, header = case
    with kvitto.connect_sync(broker.uri) as connection, connection.channel() as channel:
        exchange = channel.exchange("measured", kind, durable=True, arguments=arguments)
        bound = [channel.queue(f"measured.{n}", durable=True) for n in range(queues)]
        for queue in bound:
            queue.bind(exchange, "1")
        channel.publish_many(messages("measured", 5 * VALUES, header))  # the routes are cached then
        before = cpu_s(broker.pid)
        channel.publish_many(messages("measured", count, header))
        used = cpu_s(broker.pid) - before
        for queue in bound:
            queue.delete()
        exchange.delete()
    return used * 1e6 / count


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchanges", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=100_000, help="messages of each row")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="kvitto-exchanges-") as place:
        broker = Kvitto(Path(place) / "broker")
        try:
            broker.start()
            print("| queues | exchange | CPU per message |\n|---|---|---|")
            for case in CASES:
                said = ", ".join(f"`{name}`" for name in case[2]) or "routing key"
                print(
                    f"| {case[0]} | `{case[1]}`, {said} | {measure(broker, case, args.messages):.1f} us |", flush=True
                )
        finally:
            broker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
