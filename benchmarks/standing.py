"""Scenario (i): what a broker of its own needs for waiting messages, queues or connections, and how fast it is back."""

from __future__ import annotations

import contextlib
import resource
import time

from benchmarks import proc
from benchmarks.brokers import Broker, BrokerFailed
from benchmarks.metrics import MIB
from benchmarks.scenarios import Standing
from kvitto.client import Connection, Properties

QUEUE = "kvitto-bench-waiting"
DEPTH_S = 300.0
SETTLE_LOOK_S = 0.5
SETTLE_S = 30.0
CHUNK = 1000
WINDOW = 20_000
"""Unconfirmed at most while filling: the broker is not made to hold more than it wants to."""


def measure(scenario: Standing, broker: Broker) -> dict[str, float]:
    """Start the broker on its empty directory, measure, and leave it stopped."""
    values = {"cold_start_s": broker.start()}
    try:
        values["empty_rss_mib"] = settled_rss_mib(broker)
        with contextlib.ExitStack() as held:
            if scenario.kind == "backlog":
                fill(broker.uri, scenario.count, scenario.size)
            elif scenario.kind == "queues":
                declare(broker.uri, scenario.count)
            else:
                connect(broker.uri, scenario.count, held)
            values["full_rss_mib"] = settled_rss_mib(broker)
        values["added_rss_mib"] = values["full_rss_mib"] - values["empty_rss_mib"]
        if scenario.kind == "backlog":
            values |= restart(broker, scenario.count)
    finally:
        broker.stop()
    return values


def restart(broker: Broker, count: int) -> dict[str, float]:
    """Kill it, start it, stop it, start it; all messages are there both times, or they are counted as missing."""
    broker.kill()
    values = {"kill_ready_s": broker.start()}
    missing = count - depth(broker.uri, QUEUE)
    values["kill_rss_mib"] = settled_rss_mib(broker)
    started = time.perf_counter()
    broker.stop()
    values["stop_s"] = time.perf_counter() - started
    values["term_ready_s"] = broker.start()
    values["missing"] = max(missing, count - depth(broker.uri, QUEUE))
    values["term_rss_mib"] = settled_rss_mib(broker)
    return values


def fill(uri: str, count: int, size: int) -> None:
    """Persistent messages, all confirmed."""
    with Connection(uri, heartbeat_thread=False, buffer_bytes=1 << 18) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True)
        channel.confirm_select(max_unconfirmed=WINDOW)
        template = channel.template(bytes(size), "", QUEUE, Properties(delivery_mode=2))
        for done in range(0, count, CHUNK):
            channel.publish_template(template, min(CHUNK, count - done))
            if channel.outstanding >= WINDOW:
                connection.wait_until(lambda: channel.outstanding < WINDOW, None, "for confirms")
        if not channel.wait_for_confirms():
            raise BrokerFailed(f"the broker at {uri} nacked messages")


def declare(uri: str, count: int) -> None:
    with Connection(uri, heartbeat_thread=False) as connection:
        channel = connection.channel()
        for number in range(count):
            channel.queue_declare(f"{QUEUE}-{number}", durable=True)


def connect(uri: str, count: int, held: contextlib.ExitStack) -> None:
    """Connections with a channel each, open until `held` is closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 100:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for _ in range(count):
        connection = held.enter_context(Connection(uri, heartbeat_thread=False))
        connection.channel()


def depth(uri: str, queue: str) -> int:
    """How many messages are ready."""
    with Connection(uri, heartbeat_thread=False) as connection:
        return connection.channel().queue_declare(queue, passive=True).message_count


def wait_depth(uri: str, queue: str, count: int) -> None:
    """Until the queue holds so many."""
    deadline = time.monotonic() + DEPTH_S
    while (found := depth(uri, queue)) < count:
        if time.monotonic() > deadline:
            raise BrokerFailed(f"queue {queue!r} at {uri} holds {found:,} of {count:,} messages")
        time.sleep(0.05)


def settled_rss_mib(broker: Broker) -> float:
    """Resident memory once it stays the same to 1 % for half a second."""
    last, deadline = proc.rss_bytes(broker.pid), time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        time.sleep(SETTLE_LOOK_S)
        now = proc.rss_bytes(broker.pid)
        if abs(now - last) < 0.01 * now:
            return now / MIB
        last = now
    return last / MIB
