"""`kvitto perf throughput` measures how many messages per second go through a broker, and how long each takes."""

import contextlib
import json
import select
import sys
from typing import Any

from kvitto.client import AMQPError, ChannelClosed, Connection
from kvitto.client.columns import Latencies
from kvitto.perf.engine import Engine
from kvitto.perf.options import Options, Quota
from kvitto.perf.workers import Consumer, Publisher, Worker

PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))


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
    """Return the figures of one run. Raise AMQPError if the broker disconnects or refuses."""
    check(options)
    control = Connection(options.uri, name="kvitto perf control")
    created = prepare(control, options)
    publishers: list[Publisher] = []
    consumers: list[Consumer] = []
    try:
        quota = Quota(options.publish_count or None)
        for number in range(options.publishers):
            publishers.append(Publisher(options, quota, number + 1))
        for number in range(options.consumers):
            consumers.append(Consumer(options, number + 1))
        engine = Engine(options, publishers, consumers)
        with contextlib.suppress(KeyboardInterrupt):
            engine.run(Progress(quiet))
        result = figures(engine)
        for consumer in consumers:
            consumer.finish()
        return result
    finally:
        workers: list[Worker] = [*publishers, *consumers]
        for worker in workers:
            worker.connection.close()
        if created and publishers and consumers and control.closed is None:
            with contextlib.suppress(AMQPError, TimeoutError):
                control.channel().queue_delete(options.queue)
        control.close()


def check_epoll(command: str) -> None:
    """Raise ValueError if there is no epoll."""
    if not hasattr(select, "epoll"):
        raise ValueError(f"{command} needs epoll, which only Linux has; `kvitto perf confirms` runs everywhere")


def check(options: Options) -> None:
    """Raise ValueError for options that exclude each other, and if there is no epoll."""
    check_epoll("throughput")
    if options.publishers + options.consumers == 0:
        raise ValueError("nothing to do: both -x and -y are 0")
    if options.latency and options.size < 8:
        raise ValueError("-l writes the time into the body: it needs -s 8 or more")
    if options.max_unconfirmed and options.publish_tx:
        raise ValueError("a channel has confirms (-c) or transactions (-t), not both")


def prepare(control: Connection, options: Options) -> bool:
    """Make queue, exchange and binding if they do not exist. Return True if this run made the queue and has to delete it."""
    created = False
    try:
        control.channel().queue_declare(options.queue, passive=True)
    except ChannelClosed as closed:
        if closed.code != 404:
            raise
        control.channel().queue_declare(options.queue, durable=True)
        created = True
    if options.exchange:
        channel = control.channel()
        channel.queue_bind(options.queue, options.exchange, options.routing_key or options.queue)
    return created


class Progress:
    """Prints the rates of each second."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.last = (0.0, 0, 0)

    def __call__(self, seconds: float, published: int, consumed: int) -> None:
        if not self.quiet:
            span = seconds - self.last[0]
            p, c = (published - self.last[1]) / span, (consumed - self.last[2]) / span
            print(f"Publish rate: {p:,.0f} msgs/s Consume rate: {c:,.0f} msgs/s", flush=True)
        self.last = (seconds, published, consumed)


def totals(engine: Engine) -> dict[str, Any]:
    """Return what any run counts. Rates are averages per second over the whole run."""
    published, consumed = engine.published, engine.consumed
    elapsed = max(engine.elapsed_s, 1e-9)
    result: dict[str, Any] = {
        "elapsed_seconds": round(elapsed, 3),
        "avg_pub_rate": round(published / elapsed),
        "avg_consume_rate": round(consumed / elapsed),
        "published": published,
        "consumed": consumed,
        "cpu_seconds": round(engine.cpu_s, 3),
        "incomplete": engine.gave_up,
    }
    if engine.broker_cpu_s is not None:
        result["broker_cpu_seconds"] = round(engine.broker_cpu_s, 3)
    return result


def figures(engine: Engine) -> dict[str, Any]:
    """Return all numbers of a run."""
    result = totals(engine)
    windows = [worker.sink.window for worker in engine.publishers if worker.sink.window is not None]
    if windows:
        result["confirmed"] = sum(w.acked for w in windows)
        result["nacked"] = sum(w.nacked for w in windows)
        result["unexpected_confirms"] = sum(w.unexpected for w in windows)
    if engine.options.latency:
        latencies = Latencies()
        for worker in engine.consumers:
            if worker.sink.latencies is not None:
                latencies.merge(worker.sink.latencies)
        result["latency_us"] = percentiles(latencies)
    return result


def percentiles(latencies: Latencies) -> dict[str, float]:
    """Return the percentiles in microseconds."""
    return {name: round(latencies.percentile(share) / 1000, 1) for name, share in PERCENTILES}


def summary(result: dict[str, Any]) -> str:
    """Return the same for people."""
    lines = [
        "",
        "Summary:",
        f"Average publish rate: {result['avg_pub_rate']:,} msgs/s",
        f"Average consume rate: {result['avg_consume_rate']:,} msgs/s",
        f"Published {result['published']:,}, consumed {result['consumed']:,} in {result['elapsed_seconds']:g} s, "
        f"with {result['cpu_seconds']:g} s of this process's CPU",
    ]
    if "confirmed" in result:
        lines.append(f"Confirmed {result['confirmed']:,}, nacked {result['nacked']:,}")
    if "latency_us" in result:
        lines.append("Latency: " + ", ".join(f"{name} {value:,.1f} µs" for name, value in result["latency_us"].items()))
    if result["incomplete"]:
        lines.append("INCOMPLETE: no message came for a while, so the counts were not reached")
    return "\n".join(lines)
