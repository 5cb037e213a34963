"""`kvitto perf rpc` measures remote calls: how many per second go through a broker, and how long each takes."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from kvitto.client import AMQPError, Connection
from kvitto.client.columns import Latencies
from kvitto.perf.callers import Client, Server
from kvitto.perf.engine import Engine
from kvitto.perf.options import Options, Quota
from kvitto.perf.throughput import Progress, check_epoll, percentiles, totals
from kvitto.perf.workers import Worker


def run(options: Options, *, as_json: bool = False, quiet: bool = False) -> int:
    """Run, report to stdout, and return the exit code."""
    try:
        result = measure(options, quiet=quiet or as_json)
    except (AMQPError, TimeoutError, ValueError) as error:
        print(f"kvitto perf: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result) if as_json else summary(result))
    return 1 if result["incomplete"] else 0


def measure(options: Options, *, quiet: bool = True) -> dict[str, Any]:
    """Return the figures of one run with `options.publishers` clients and `options.consumers` servers. Raise AMQPError if the broker
    disconnects or refuses."""
    check_epoll("rpc")
    if options.size < 8:
        raise ValueError("the time is written into the body: it needs -s 8 or more")
    if not options.publishers or not options.consumers:
        raise ValueError("a call needs a client (-x) and a server (-y)")
    control = Connection(options.uri, name="kvitto perf control", heartbeat_thread=False)
    workers: list[Worker] = []
    try:
        control.channel().queue_declare(options.queue)
        quota = Quota(options.publish_count or None)
        servers = [Server(options, number + 1) for number in range(options.consumers)]
        workers += servers
        clients = [Client(options, quota, number + 1) for number in range(options.publishers)]
        workers += clients
        engine = Engine(options, clients, servers)
        with contextlib.suppress(KeyboardInterrupt):
            engine.run(Progress(quiet))
        return figures(engine, clients)
    finally:
        for worker in workers:
            worker.connection.close()
        if control.closed is None:
            with contextlib.suppress(AMQPError, TimeoutError):
                control.channel().queue_delete(options.queue)
        control.close()


def figures(engine: Engine, clients: list[Client]) -> dict[str, Any]:
    """Return all numbers of a run; `operations` are the calls that were answered."""
    result = totals(engine)
    latencies = Latencies()
    for client in clients:
        assert client.sink.latencies is not None
        latencies.merge(client.sink.latencies)
    result["operations"] = latencies.total
    result["avg_call_rate"] = round(latencies.total / max(engine.elapsed_s, 1e-9))
    result["latency_us"] = percentiles(latencies)
    return result


def summary(result: dict[str, Any]) -> str:
    """Return the same for people."""
    return "\n".join(
        (
            "",
            "Summary:",
            f"Average call rate: {result['avg_call_rate']:,} calls/s",
            f"{result['operations']:,} calls in {result['elapsed_seconds']:g} s, with {result['cpu_seconds']:g} s of this process's CPU",
            "Latency: " + ", ".join(f"{name} {value:,.1f} µs" for name, value in result["latency_us"].items()),
        )
    )
