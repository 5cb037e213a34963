"""`python -m benchmarks.load KIND`: loads that `kvitto perf` has no flags for, made of its publishers and consumers.

latency   one queue, a publisher and a consumer
pairs     a publisher and a consumer on each of several queues
fanout    one publisher, an exchange that copies to several queues, a consumer on each
topic     one publisher whose routing key changes with each message, a topic exchange with many bindings
trickle   one publisher that goes round many durable queues, message by message
http      publish over HTTP, each after the answer to the last; --uri is http://host:port
idle      connections that only send and receive heartbeats
churn     declare, bind, unbind, delete
Prints one JSON object, as `kvitto perf -j` does. What it declares it deletes again.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import resource
import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from http import client as http_client
from typing import Any, cast
from urllib.parse import urlsplit

from kvitto.client import AMQPError, Channel, Connection, Properties
from kvitto.client.codec import Template
from kvitto.client.columns import Latencies
from kvitto.client.transport import HEARTBEAT_FRAME
from kvitto.perf import throughput
from kvitto.perf.engine import Engine, process_cpu_s
from kvitto.perf.options import Options, Quota
from kvitto.perf.workers import Consumer, Publisher, Worker
from kvitto.wire.buf import Buf

EXCHANGE = "kvitto-bench"
QUEUE = "kvitto-bench-{:04}"
TOPIC_KEY = "event.{:04}.created"
BOUND_KEY = "event.{:04}.*"


class Rotation:
    """Takes the place of a publisher's template: each message comes from the next of several, all of one size."""

    def __init__(self, templates: Sequence[Template]) -> None:
        sizes = {template.size for template in templates}
        assert len(sizes) == 1, f"a publisher counts in templates of one size, not {sorted(sizes)}"
        self.size = sizes.pop()
        self.templates = templates
        self.at = 0

    def fill(self, out: Buf, count: int, now_ns: int) -> None:
        templates, at, end = self.templates, self.at, len(self.templates)
        for _ in range(count):
            templates[at].fill(out, 1, now_ns)
            at += 1
            if at == end:
                at = 0
        self.at = at


def rotating(options: Options, keys: Sequence[str]) -> Publisher:
    """A publisher whose messages go to `keys` in turn."""
    publisher = Publisher(options, Quota(None), 1)
    properties = Properties(delivery_mode=2 if options.persistent else 1)
    body = bytes(options.size)
    rotation = Rotation([publisher.channel.template(body, options.exchange, key, properties) for key in keys])
    publisher.template = cast(Template, rotation)
    return publisher


@contextmanager
def declared(uri: str, queues: int, exchange_type: str = "") -> Iterator[tuple[Channel, list[str]]]:
    """Durable queues, and an exchange if a type is given, for as long as the block lasts."""
    names = [QUEUE.format(number) for number in range(queues)]
    with Connection(uri, heartbeat_thread=False) as connection:
        channel = connection.channel()
        try:
            for name in names:
                channel.queue_declare(name, durable=True)
            if exchange_type:
                channel.exchange_declare(EXCHANGE, exchange_type, durable=True)
            yield channel, names
        finally:
            if channel.closed is None and connection.closed is None:
                for name in names:
                    channel.queue_delete(name)
                if exchange_type:
                    channel.exchange_delete(EXCHANGE)


def drive(options: Options, publishers: Sequence[Publisher], consumers: Sequence[Consumer]) -> dict[str, Any]:
    """Run them together; perf's figures."""
    engine = Engine(options, publishers, consumers)
    try:
        engine.run(lambda seconds, published, consumed: None)
        result = throughput.figures(engine)
        for consumer in consumers:
            consumer.finish()
    finally:
        workers: list[Worker] = [*publishers, *consumers]
        for worker in workers:
            worker.connection.close()
    return result


def latency(options: Options, queues: int, bindings: int) -> dict[str, Any]:
    with declared(options.uri, 1) as (_, names):
        options = replace(options, queue=names[0], latency=True)
        return drive(options, [Publisher(options, Quota(None), 1)], [Consumer(options, 1)])


def pairs(options: Options, queues: int, bindings: int) -> dict[str, Any]:
    with declared(options.uri, queues) as (_, names):
        each = [replace(options, queue=name) for name in names]
        consumers = [Consumer(one, number) for number, one in enumerate(each, 1)]
        publishers = [Publisher(one, Quota(None), number) for number, one in enumerate(each, 1)]
        return drive(options, publishers, consumers)


def fanout(options: Options, queues: int, bindings: int) -> dict[str, Any]:
    with declared(options.uri, queues, "fanout") as (channel, names):
        for name in names:
            channel.queue_bind(name, EXCHANGE)
        options = replace(options, exchange=EXCHANGE, routing_key="all")
        consumers = [Consumer(replace(options, queue=name), number) for number, name in enumerate(names, 1)]
        return drive(options, [Publisher(options, Quota(None), 1)], consumers)


def topic(options: Options, queues: int, bindings: int) -> dict[str, Any]:
    with declared(options.uri, queues, "topic") as (channel, names):
        for number in range(bindings):
            channel.queue_bind(names[number % queues], EXCHANGE, BOUND_KEY.format(number))
        options = replace(options, exchange=EXCHANGE)
        consumers = [Consumer(replace(options, queue=name), number) for number, name in enumerate(names, 1)]
        publisher = rotating(options, [TOPIC_KEY.format(number) for number in range(bindings)])
        return drive(options, [publisher], consumers)


def trickle(options: Options, queues: int, bindings: int) -> dict[str, Any]:
    with declared(options.uri, queues) as (_, names):
        return drive(options, [rotating(options, names)], [])


def churn(options: Options, queues: int, bindings: int) -> dict[str, Any]:
    """One client that waits for each answer."""
    with Connection(options.uri, heartbeat_thread=False) as connection:
        channel = connection.channel()
        operations, started, cpu = 0, time.perf_counter(), time.process_time()
        while (elapsed := time.perf_counter() - started) < options.seconds:
            name = QUEUE.format(operations)
            channel.queue_declare(name, durable=options.persistent)
            channel.queue_bind(name, "amq.direct", name)
            channel.queue_unbind(name, "amq.direct", name)
            channel.queue_delete(name)
            operations += 4
        used = time.process_time() - cpu
    return {"operations": operations, "elapsed_seconds": elapsed, "cpu_seconds": used, "incomplete": False}


def http(options: Options, queues: int, bindings: int) -> dict[str, Any]:
    """One client with one connection."""
    parts = urlsplit(options.uri)
    with closing(http_client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=60)) as connection:
        return publish_over(connection, options)


def publish_over(connection: http_client.HTTPConnection, options: Options) -> dict[str, Any]:
    """Publish persistent messages to a durable queue, each after the answer to the last."""
    login = base64.b64encode(b"guest:guest").decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    queue = f"/api/queues/%2F/{QUEUE.format(0)}"
    message = {"properties": {"delivery_mode": 2}, "routing_key": QUEUE.format(0), "payload_encoding": "string"}
    body = json.dumps({**message, "payload": "x" * options.size})

    def ask(method: str, path: str, text: str) -> bytes:
        connection.request(method, path, text, headers)
        answer = connection.getresponse()
        found = answer.read()
        if answer.status >= 300:
            raise AMQPError(f"{method} {path}: {answer.status} {found[:200].decode(errors='replace')}")
        return found

    ask("PUT", queue, '{"durable": true}')
    latencies, count = Latencies(), 0
    broker_cpu = process_cpu_s(options.broker_pid) if options.broker_pid else 0.0
    started, cpu = time.monotonic_ns(), time.process_time()
    now = started
    while now - started < options.seconds * 1e9:
        if b"true" not in ask("POST", "/api/exchanges/%2F/amq.default/publish", body):
            raise AMQPError("a message that was published over HTTP was not routed")
        before, now = now, time.monotonic_ns()
        latencies.add(now - before)
        count += 1
    result = ended((now - started) / 1e9, cpu, options, broker_cpu)
    ask("DELETE", queue, "")
    return result | {"operations": count, "latency_us": throughput.percentiles(latencies)}


def idle(options: Options, queues: int, bindings: int) -> dict[str, Any]:
    """`queues` connections with heartbeats of 10 s. Only their sockets are kept, and each has its own moment."""
    files = 2 * queues + 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, files)), hard))
    uri = re.sub(r"heartbeat=\d+", "heartbeat=10", options.uri)
    with ExitStack() as held, select.epoll() as epoll:
        sockets: list[socket.socket] = []
        start, sent = time.monotonic(), 0

        def serve(until: float) -> None:
            """Receive what comes, and send what is due."""
            nonlocal sent
            while (now := time.monotonic()) < until:
                for fd, _ in epoll.poll(0.05):
                    if not os.read(fd, 4096):
                        raise AMQPError("the broker closed an idle connection")
                turn = int((now - start) / 5 * queues)
                for number in range(max(sent, turn - queues), turn):
                    if number % queues < len(sockets):
                        sockets[number % queues].send(HEARTBEAT_FRAME)
                sent = turn

        for _ in range(queues):
            connection = Connection(uri, heartbeat_thread=False)
            held.callback(connection.transport.close)
            sockets.append(connection.transport.sock)
            epoll.register(connection.fileno(), select.EPOLLIN)
            if len(sockets) % 100 == 0:
                serve(time.monotonic() + 0.001)
        serve(time.monotonic() + 1.0)
        broker_cpu = process_cpu_s(options.broker_pid) if options.broker_pid else 0.0
        began, cpu = time.monotonic(), time.process_time()
        serve(began + options.seconds)
        return ended(time.monotonic() - began, cpu, options, broker_cpu)


def ended(elapsed: float, cpu: float, options: Options, broker_cpu: float) -> dict[str, Any]:
    """What every load reports."""
    found = {"elapsed_seconds": elapsed, "cpu_seconds": time.process_time() - cpu, "incomplete": False}
    if options.broker_pid:
        found["broker_cpu_seconds"] = process_cpu_s(options.broker_pid) - broker_cpu
    return found


KINDS = {
    "latency": latency,
    "pairs": pairs,
    "fanout": fanout,
    "topic": topic,
    "trickle": trickle,
    "http": http,
    "idle": idle,
    "churn": churn,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.load", description=__doc__)
    flag = parser.add_argument
    flag("kind", choices=KINDS)
    flag("--uri", required=True)
    flag("--queues", type=int, default=10)
    flag("--bindings", type=int, default=1000)
    flag("--connections", type=int, default=0)
    flag("--pid", type=int, default=0)
    # as in kvitto perf throughput
    flag("-z", "--time", type=float, default=10.0)
    flag("-s", "--size", type=int, default=16)
    flag("-c", "--confirm", type=int, default=0)
    flag("-a", "--ack", type=int, default=0)
    flag("-P", "--prefetch", type=int, default=0)
    flag("-p", "--persistent", action="store_true")
    flag("-r", "--rate", type=float, default=0.0)
    flag("-j", "--json", action="store_true", help="always on")
    args = parser.parse_args(argv)
    options = Options(
        uri=args.uri,
        size=args.size,
        max_unconfirmed=args.confirm,
        ack_every=args.ack,
        prefetch=args.prefetch,
        persistent=args.persistent,
        seconds=args.time,
        rate=args.rate,
        broker_pid=args.pid,
    )
    try:
        result = KINDS[args.kind](options, args.connections or args.queues, args.bindings)
    except (AMQPError, TimeoutError, ValueError) as error:
        print(f"benchmarks.load: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
