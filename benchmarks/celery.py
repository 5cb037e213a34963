"""Celery with no-op tasks over kvitto:// and over amqp://: tasks published and run per second, and the CPU of both.

    python -m benchmarks.celery                             both pools, against a fresh `kvitto serve`
    python -m benchmarks.celery --rabbitmq                  against Debian's RabbitMQ
    python -m benchmarks.celery --profile                   then also where the solo worker's time goes

A queue is filled, then one worker process empties it. The two transports take turns in one run. The clock starts when
the worker has run the first tenth. CPU is that of the worker with its children, for each task.
"""

from __future__ import annotations

import argparse
import os
import pstats
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks import proc
from benchmarks.brokers import Kvitto, RabbitMQ
from benchmarks.celery_app import QUEUE, app, noop
from kvitto.client import Channel, Connection

SCHEMES = ("amqp", "kvitto")
POOLS = ("solo", "prefork")
WORKER_S = 60.0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tasks", type=int, default=10000, help="tasks for each worker (10000)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each transport and pool (3)")
    parser.add_argument("--pools", default=",".join(POOLS), help="solo, prefork or both")
    parser.add_argument("--rabbitmq", action="store_true", help="against RabbitMQ instead of Kvitto")
    parser.add_argument("--profile", action="store_true", help="profile a solo worker of each transport, too")
    args = parser.parse_args(argv)
    place = Path(tempfile.mkdtemp(prefix="kvitto-celery-"))
    cores = frozenset(os.sched_getaffinity(0))
    broker = RabbitMQ(place, cores, None) if args.rabbitmq else Kvitto(place, cores, None)
    broker.start()
    try:
        print(f"{broker.name}, {args.tasks} tasks, {args.runs} runs of each, medians")
        print(f"{'':<24}{'tasks/s':>8}{'ratio':>8}{'CPU us/task':>13}  tasks/s of the runs")
        uri = broker.uri.partition("?")[0]
        published: dict[str, list[tuple[float, float]]] = {scheme: [] for scheme in SCHEMES}
        for pool in args.pools.split(","):
            ran: dict[str, list[tuple[float, float]]] = {scheme: [] for scheme in SCHEMES}
            for _ in range(args.runs):
                for scheme in SCHEMES:
                    url = uri.replace("amqp://", f"{scheme}://", 1)
                    published[scheme].append(publish(url, args.tasks))
                    ran[scheme].append(work(uri, url, pool, args.tasks, []))
            show(f"worker, {pool}", ran)
        show("apply_async", published)
        if args.profile:
            for scheme in SCHEMES:
                url = uri.replace("amqp://", f"{scheme}://", 1)
                publish(url, args.tasks)
                file = place / f"{scheme}.profile"
                work(uri, url, "solo", args.tasks, ["-m", "cProfile", "-o", str(file)])
                show_profile(scheme, file, args.tasks)
    finally:
        broker.stop()
        shutil.rmtree(place, ignore_errors=True)
    return 0


def show(what: str, rates: dict[str, list[tuple[float, float]]]) -> None:
    """Print a line for each transport: the median rate and CPU, and the rate's ratio to that of amqp://."""
    base = statistics.median(rate for rate, _ in rates["amqp"])
    for scheme, pairs in rates.items():
        rate, cpu_us = (statistics.median(column) for column in zip(*pairs, strict=True))
        span = f"{min(pairs)[0]:,.0f} to {max(pairs)[0]:,.0f}"
        print(f"{what:<16}{scheme:<8}{rate:>8,.0f}{rate / base:>8.2f}{cpu_us:>13,.0f}  {span}", flush=True)


def publish(url: str, tasks: int) -> tuple[float, float]:
    """Publish the tasks from this process. Return tasks per second and microseconds of CPU per task."""
    app.conf.broker_url = url
    with app.connection_for_write(url) as connection, app.amqp.Producer(connection) as producer:
        noop.apply_async(producer=producer)
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(tasks - 1):
            noop.apply_async(producer=producer)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return tasks / took, cpu / tasks * 1e6


def work(uri: str, url: str, pool: str, tasks: int, around: list[str]) -> tuple[float, float]:
    """Let a worker empty the queue. Return tasks per second and microseconds of CPU per task, without its start."""
    words = ["-m", "celery", "-A", "benchmarks.celery_app", "worker", "-P", pool, "-c", "1", "-l", "ERROR"]
    environment = {**os.environ, "BROKER_URL": url}
    with Connection(uri) as connection:
        channel = connection.channel()
        wait_for(channel, lambda count: count >= tasks, None)
        process = subprocess.Popen([sys.executable, *around, *words], env=environment, stdout=subprocess.DEVNULL)
        try:
            start = wait_for(channel, lambda count: count <= tasks * 0.9, process)
            began, cpu = time.perf_counter(), proc.cpu_s(process.pid)
            wait_for(channel, lambda count: count == 0, process)
            took, cpu = time.perf_counter() - began, proc.cpu_s(process.pid) - cpu
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    return start / took, cpu / start * 1e6


def wait_for(channel: Channel, enough: Callable[[int], bool], worker: subprocess.Popen[bytes] | None) -> int:
    """Ask for the number of waiting tasks until it is as wanted, and return it."""
    deadline = time.monotonic() + WORKER_S
    while time.monotonic() < deadline and (worker is None or worker.poll() is None):
        count = channel.queue_declare(QUEUE, durable=True).message_count
        if enough(count):
            return count
        time.sleep(0.02)
    raise SystemExit(f"the tasks did not get done within {WORKER_S:g} s; is the worker running?")


def show_profile(scheme: str, file: Path, tasks: int) -> None:
    """Print the share of each package in the time of the worker; functions in C count for their callers."""
    stats = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]  # typeshed does not have it
    own: Counter[str] = Counter()
    for (path, _, name), (_, _, seconds, _, callers) in stats.items():
        if path != "~":
            own[package(path)] += seconds
        elif "poll" in name:
            own["(waiting)"] += seconds
        else:
            for (caller, _, _), (_, _, part, _) in callers.items():
                own[package(caller)] += part
    total = sum(own.values()) - own["(waiting)"]
    print(f"\nprofile of the solo worker over {scheme}://, its start included: {total / tasks * 1e6:.0f} us/task")
    for name, seconds in own.most_common(12):
        if name != "(waiting)":
            print(f"  {name:<24}{seconds / tasks * 1e6:>8.1f} us {seconds / total:>7.1%}")


def package(path: str) -> str:
    parts = Path(path).parts
    for root in ("site-packages", "src"):
        if root in parts:
            inside = parts[parts.index(root) + 1 :]
            return "/".join(inside[:2]) if inside[0] in ("celery", "kvitto", "kombu") else inside[0]
    return parts[-1] if parts else path


if __name__ == "__main__":
    sys.exit(main())
