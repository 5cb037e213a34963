"""What is measured: one entry per row of the report, as data. `measure.py` runs them, nothing is decided there."""

from __future__ import annotations

from dataclasses import dataclass

PERF = ("perf", "throughput")
LOAD = ("load",)
DURABLE = ("-p", "-c", "1000", "-a", "100", "-P", "1000")
MIB = 1 << 20

LETTERS = {
    "a": "One publisher, one consumer, 16 bytes, auto-ack",
    "b": "Publish only",
    "c": "Consume a backlog",
    "d": "Durable: confirms (1,000 in flight), acks per 100, prefetch 1,000",
    "e": "Confirm one by one",
    "f": "A transaction each against streamed confirms",
    "g": "Latency at 10,000 messages/s, confirms and acks",
    "h": "Many queues: fanout, topic, 10 x 10",
    "i": "What waits: memory and start-up",
    "j": "Outstanding confirms",
    "k": "Queue depth",
    "l": "Declare, bind, unbind, delete",
    "m": "Bodies of 1 MiB",
    "n": "TLS",
    "o": "One connection at a limited rate, confirms and acks each, 100 bytes",
    "p": "100 publishers and 100 consumers, 100 messages/s each, confirms and acks each, 100 bytes",
    "q": "Publishers that wait for each confirm, consumers that ack each",
    "r": "1,000 connections, 10 messages/s each",
    "s": "50 consumers of one queue, prefetch 1, acks each",
    "t": "Remote calls by direct reply-to",
    "u": "Publishers that wait for each confirm, consumers that ack each, over TLS",
    "v": "Publish over HTTP, one by one",
    "w": "10 publishers and 10 consumers on one queue",
    "x": "Idle connections, heartbeats of 10 s",
}


@dataclass(frozen=True, slots=True)
class Load:
    """A generator against a running broker, on a queue of its own."""

    key: str
    title: str
    command: tuple[str, ...]
    """("perf", ...) = `kvitto perf`, ("load", ...) = `python -m benchmarks.load`; without --uri, -u, -j."""
    per: str = "mean"
    """Broker CPU is divided by the messages published, consumed, confirmed, or the mean of the first two."""
    fill: int = 0
    """Messages that wait in the queue before."""
    confirms: bool = False
    """The disk's own sync is measured beside it."""
    tls: bool = False
    http: bool = False
    """The generator speaks HTTP, to brokers that listen for it."""
    steady: bool = False
    """Broker CPU counts while the generator runs: without what connecting costs, and without what comes after it."""
    size: int = 16
    only_kvitto: bool = False
    """Too much for a broker that keeps waiting messages in memory."""
    series: str = ""
    """Scenarios of one series differ in `x` only and are drawn as a line."""
    x: float = 0

    @property
    def letter(self) -> str:
        return self.key[0]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a broker of its own needs for `count` things that only exist: waiting messages, queues, connections."""

    key: str
    title: str
    kind: str
    count: int
    size: int = 100
    confirms: bool = False
    only_kvitto: bool = False

    @property
    def letter(self) -> str:
        return self.key[0]


Scenario = Load | Standing


@dataclass(frozen=True, slots=True)
class Scale:
    """How long and how much."""

    seconds: float = 10.0
    share: float = 1.0
    """Of the full number of messages, queues, connections."""

    def of(self, count: int) -> int:
        return max(min(count, 100), int(count * self.share))


FULL = Scale()
QUICK = Scale(seconds=1.0, share=0.02)


def scenarios(scale: Scale) -> list[Scenario]:
    """All of them, in the order of the report."""
    time = ("-z", f"{scale.seconds:g}")
    return [
        *_basic(scale, time),
        *_many(scale, time),
        *_standing(scale),
        Load(
            "i-trickle",
            f"{scale.of(1000):,} durable queues in turn, confirms (1,000 in flight)",
            (*LOAD, "trickle", "--queues", str(scale.of(1000)), "-p", "-c", "1000", *time),
            per="confirmed",
            confirms=True,
        ),
        *_outstanding(scale, time),
        *_depth(scale),
        Load("l-transient", "Transient queues", (*LOAD, "churn", *time), per="operations"),
        Load("l-durable", "Durable queues", (*LOAD, "churn", "-p", *time), per="operations"),
        Load("m", LETTERS["m"], (*PERF, "-s", str(MIB), *time), size=MIB),
        Load("n-a", "As (a), over TLS", (*PERF, *time), tls=True),
        Load("n-d-16", "As (d), 16 bytes, over TLS", (*PERF, *DURABLE, *time), confirms=True, tls=True),
        *_applications(scale, time),
    ]


def _applications(scale: Scale, time: tuple[str, ...]) -> list[Scenario]:
    """The traffic of most applications: many connections, few messages at a time."""
    receipts = ("-p", "-c", "100", "-a", "1", "-P", "100")
    waits = ("-p", "-c", "1", "-a", "1", "-P", "100")
    few = scale.of(200_000)
    each = [
        ("o-2000", "2,000 messages/s", (*PERF, "-r", "2000", "-s", "100", "-l", *receipts, *time)),
        ("o-10000", "10,000 messages/s", (*PERF, "-r", "10000", "-s", "100", "-l", *receipts, *time)),
        ("p", "100 + 100", (*PERF, "-x", "100", "-y", "100", "-r", "100", "-s", "100", "-l", *receipts, *time)),
        ("q-100", "100 + 100, 100 bytes", (*PERF, "-x", "100", "-y", "100", "-s", "100", "-l", *waits, *time)),
        ("q-20", "20 + 20, 1 KiB", (*PERF, "-x", "20", "-y", "20", "-s", "1024", "-l", *waits, *time)),
        ("r", "500 + 500", (*PERF, "-x", "500", "-y", "500", "-r", "10", "-s", "100", "-l", *receipts, *time)),
    ]
    drain = (*PERF, "-x", "0", "-y", "50", "-P", "1", "-a", "1", "-D", str(few))
    call = ("perf", "rpc", "-s", "100")
    secure = (*PERF, "-x", "20", "-y", "20", "-s", "1024", "-l", *waits, *time)
    flood = (*PERF, "-x", "10", "-y", "10", *time)
    # a heartbeat each 5 s: shorter runs would see none
    idle = (*LOAD, "idle", "--connections", str(scale.of(10_000)), "-z", f"{max(10.0, scale.seconds):g}")
    return [
        *(Load(key, title, command, confirms=True, steady=True, size=100) for key, title, command in each),
        Load("s", f"A backlog of {few:,}", drain, per="consumed", fill=few, size=100),
        Load("t-1", "1 client, 1 server", (*call, *time), per="operations", steady=True),
        Load("t-20", "20 clients, 5 servers", (*call, "-x", "20", "-y", "5", *time), per="operations", steady=True),
        Load("u", "20 + 20, 1 KiB", secure, confirms=True, steady=True, tls=True, size=1024),
        Load("v", "100 bytes", (*LOAD, "http", "-s", "100", *time), per="operations", http=True, steady=True),
        Load("w", "16 bytes", flood),
        Load("x", f"{scale.of(10_000):,} connections", idle, per="", steady=True),
    ]


def _basic(scale: Scale, time: tuple[str, ...]) -> list[Scenario]:
    backlog, receipts = scale.of(2_000_000), str(scale.of(10_000))
    consume = (*PERF, "-x", "0", "-D", str(backlog))
    each = (*PERF, "-y", "0", "-p", "-c", "1", *time)
    streamed = ("perf", "confirms", "-C", receipts, "--only", "streamed", "--only", "tx")
    paced = (*LOAD, "latency", "-r", "10000", "-p", "-c", "1000", "-a", "1", "-P", "1000", *time)
    return [
        Load("a", LETTERS["a"], (*PERF, *time)),
        Load("b", LETTERS["b"], (*PERF, "-y", "0", *time), per="published"),
        Load("c", f"Consume a backlog of {backlog:,}", consume, per="consumed", fill=backlog),
        Load("d-16", "16 bytes", (*PERF, *DURABLE, *time), confirms=True),
        Load("d-1024", "1 KiB", (*PERF, *DURABLE, "-s", "1024", *time), confirms=True, size=1024),
        Load("e", LETTERS["e"], each, per="confirmed", confirms=True),
        Load("f", f"{int(receipts):,} persistent messages", streamed, per="", confirms=True),
        Load("g", LETTERS["g"], paced, confirms=True),
    ]


def _many(scale: Scale, time: tuple[str, ...]) -> list[Scenario]:
    bindings = str(scale.of(1000))
    topic = (*LOAD, "topic", "--queues", "10", "--bindings", bindings, *time)
    return [
        Load("h-fanout", "Fanout to 10 queues, a consumer each", (*LOAD, "fanout", *time), per="consumed"),
        Load("h-topic", f"Topic exchange, {int(bindings):,} bindings, a new key with each message", topic),
        Load("h-pairs", "10 publishers, 10 consumers, 10 queues", (*LOAD, "pairs", *time)),
    ]


def _standing(scale: Scale) -> list[Scenario]:
    one, ten, thousand = scale.of(1_000_000), scale.of(10_000_000), scale.of(1000)
    bytes_100 = "messages of 100 bytes waiting"
    return [
        Standing("i-backlog-1M", f"{one:,} {bytes_100}", "backlog", one, confirms=True),
        Standing("i-backlog-10M", f"{ten:,} {bytes_100}", "backlog", ten, confirms=True, only_kvitto=True),
        Standing("i-queues", f"{thousand:,} durable queues", "queues", thousand),
        Standing("i-connections", f"{thousand:,} connections", "connections", thousand),
    ]


def _outstanding(scale: Scale, time: tuple[str, ...]) -> list[Scenario]:
    return [
        Load(
            f"j-{limit}",
            f"At most {limit:,} unconfirmed",
            (*PERF, "-y", "0", "-p", "-c", str(limit), *time),
            per="confirmed",
            confirms=True,
            series="j",
            x=limit,
        )
        for limit in (scale.of(1000), scale.of(10_000), scale.of(100_000), scale.of(1_000_000))
    ]


def _depth(scale: Scale) -> list[Scenario]:
    """Publish onto a queue of that depth, then consume from one: what is consumed lies on top of it.

    Published with confirms: a publisher that waits for none is done when the sockets hold the rest.
    """
    found: list[Scenario] = []
    some = scale.of(4_000_000)
    for depth in (scale.of(1000), scale.of(100_000), scale.of(1_000_000), scale.of(10_000_000)):
        large = depth > scale.of(1_000_000)
        publish = Load(
            f"k-publish-{depth}",
            f"Publish {some:,} onto {depth:,}",
            (*PERF, "-y", "0", "-p", "-c", "100000", "-C", str(some)),
            per="confirmed",
            fill=depth,
            confirms=True,
            only_kvitto=large,
            series="k-p",
            x=depth,
        )
        consume = Load(
            f"k-consume-{depth}",
            f"Consume {some:,} of {depth + some:,}",
            (*PERF, "-x", "0", "-D", str(some)),
            per="consumed",
            fill=depth + some,
            only_kvitto=large,
            series="k-c",
            x=depth,
        )
        found += [publish, consume]
    return found
