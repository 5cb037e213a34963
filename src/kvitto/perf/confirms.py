"""`kvitto perf confirms` measures what a receipt costs.

It publishes the same persistent messages to a durable queue three times: with one transaction for each, waiting for
each confirm, and with streamed confirms. In 2011 this experiment gave "a bit more than 4 minutes" against "around 2
seconds".
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from kvitto.client import AMQPError, Channel, Connection, Properties

STREAM_BUFFER_BYTES = 64 * 1024
QUEUE = "kvitto-perf-confirms"
PERSISTENT = Properties(delivery_mode=2)
WAYS = ("streamed", "each", "tx")
TITLES = {"tx": "one transaction each", "each": "one confirm waited for each", "streamed": "streamed confirms"}


def run(uri: str, count: int, size: int, ways: list[str], *, as_json: bool = False) -> int:
    """Run the experiment, print times and ratios, and return the exit code."""
    seconds: dict[str, float] = {}
    try:
        for way in ways:
            if not as_json:
                print(f"{count:,} persistent messages of {size} bytes, {TITLES[way]} ...", file=sys.stderr, flush=True)
            seconds[way] = measure(uri, way, count, size)
    except (AMQPError, TimeoutError, ValueError) as error:
        print(f"kvitto perf: {error}", file=sys.stderr)
        return 1
    result = figures(seconds, count, size)
    print(json.dumps(result) if as_json else summary(result))
    return 0


def measure(uri: str, way: str, count: int, size: int) -> float:
    """Return the seconds until the last of `count` messages has its receipt. The queue must then hold exactly these messages."""
    buffer_bytes = STREAM_BUFFER_BYTES if way == "streamed" else 0
    with Connection(uri, name=f"kvitto perf confirms, {way}", buffer_bytes=buffer_bytes) as connection:
        setup = connection.channel()
        setup.queue_declare(QUEUE, durable=True)
        setup.queue_purge(QUEUE)
        channel = connection.channel()
        body = bytes(size)
        started = time.perf_counter()
        PUBLISHERS[way](channel, body, count)
        elapsed = time.perf_counter() - started
        stored = setup.queue_delete(QUEUE)
    if stored != count:
        raise AMQPError(f"{count} messages have their receipt, but the queue held {stored}")
    return elapsed


def publish_tx(channel: Channel, body: bytes, count: int) -> None:
    channel.tx_select()
    for _ in range(count):
        channel.publish(body, "", QUEUE, PERSISTENT)
        channel.tx_commit()


def publish_each(channel: Channel, body: bytes, count: int) -> None:
    channel.confirm_select()
    for _ in range(count):
        channel.publish(body, "", QUEUE, PERSISTENT)
        require(channel.wait_for_confirms())


def publish_streamed(channel: Channel, body: bytes, count: int) -> None:
    channel.confirm_select()
    for _ in range(count):
        channel.publish(body, "", QUEUE, PERSISTENT)
    require(channel.wait_for_confirms())


def require(confirmed: bool) -> None:
    if not confirmed:
        raise AMQPError(f"the broker nacked a message to queue {QUEUE!r}")


PUBLISHERS: dict[str, Callable[[Channel, bytes, int], None]] = {
    "tx": publish_tx,
    "each": publish_each,
    "streamed": publish_streamed,
}


def figures(seconds: dict[str, float], count: int, size: int) -> dict[str, Any]:
    """Return the times in seconds, and how many times longer they are than with streamed confirms."""
    fastest = seconds.get("streamed")
    ratios = {way: round(value / fastest, 1) for way, value in seconds.items()} if fastest else {}
    return {
        "messages": count,
        "size": size,
        "seconds": {way: round(value, 4) for way, value in seconds.items()},
        "ratio_to_streamed": ratios,
    }


def summary(result: dict[str, Any]) -> str:
    """Return the same as a table."""
    lines = [f"{'':32}{'seconds':>10}{'msgs/s':>12}{'ratio':>10}"]
    for way, seconds in result["seconds"].items():
        ratio = result["ratio_to_streamed"].get(way)
        shown = f"{ratio:,.1f} x" if ratio is not None else ""
        lines.append(f"{TITLES[way]:32}{seconds:>10.3f}{result['messages'] / seconds:>12,.0f}{shown:>10}")
    return "\n".join(lines)
