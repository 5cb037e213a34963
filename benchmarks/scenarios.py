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
