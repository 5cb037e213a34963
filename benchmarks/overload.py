"""What other connections notice of an overload: 10,000 of them, and a publisher at full speed whose consumer has stopped.

    python -m benchmarks.overload [--connections 10000] [--mib 2000] [--place DIR]

One publisher without confirms sends as fast as the broker reads, a consumer of its queue reads nothing, until the watermark of the
disk (set so that about `--mib` fit) blocks it. Meanwhile a probe does round trips, one at a time: publish to confirm on a durable
queue, and a passive declare. The table has their times, the broker's memory and how much came in; the last line says whether p99
stayed below 50 ms and memory was bounded.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import proc
from benchmarks.metrics import MIB
from kvitto.client import Connection
from kvitto.torture import nodes
from kvitto.wire import methods as m
from kvitto.wire.methods import frame
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD, PROTOCOL_HEADER

PLACE = Path(__file__).resolve().parent.parent / "build" / "bench" / "overload"
FLOODED, PROBED = "overload-flooded", "overload-probed"
SIZE = 1000
P99_MS = 50.0
RSS_SHARE = 64 * MIB
"""What a flood may add to the memory of a broker, however much of it there is."""
SETTLE_S = 3.0
BLOCKED_S = 120.0
PAUSE_S = 0.002


@dataclass
class Phase:
    """What was measured while one thing was going on; times in ms."""

    name: str
    connections: int
    confirms: list[float] = field(default_factory=list)
    declares: list[float] = field(default_factory=list)
    mib: float = 0.0
    seconds: float = 0.0
    rss_mib: float = 0.0

    def row(self) -> str:
        rate = self.mib / max(self.seconds, 1e-9)
        figures = f"{self.connections:>6} | {self.mib:>7.0f} | {rate:>6.0f} | {self.rss_mib:>5.0f}"
        return f"| {self.name:<28} | {figures} | {times(self.confirms)} | {times(self.declares)} |"


TIMES = "p50    p99  max ms      n"
HEAD = (
    f"| while                        | others |  MiB in |  MiB/s |   RSS | confirm {TIMES} | declare {TIMES} |\n"
    "|---|---|---|---|---|---|---|"
)


def times(values: Sequence[float]) -> str:
    if not values:
        return f"{'-':>33}"
    return f"{quantile(values, 0.5):>11.2f} {quantile(values, 0.99):>6.2f} {max(values):>7.1f} {len(values):>6}"


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


class Probe(threading.Thread):
    """Round trips on connections of its own, for as long as the block lasts, and one at least."""

    def __init__(self, uri: str, phase: Phase, confirms: bool) -> None:
        super().__init__(daemon=True)
        self.uri = uri
        self.phase = phase
        self.with_confirms = confirms
        self.stopping = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            with Connection(self.uri) as asks, Connection(self.uri) as publishes:
                asking, publishing = asks.channel(), publishes.channel()
                publishing.confirm_select()
                while True:
                    began = time.perf_counter()
                    asking.queue_declare(PROBED, passive=True)
                    self.phase.declares.append((time.perf_counter() - began) * 1000)
                    if self.with_confirms and publishes.blocked is None:
                        began = time.perf_counter()
                        publishing.publish(bytes(100), routing_key=PROBED)
                        publishing.wait_for_confirms(BLOCKED_S)
                        if publishes.blocked is None:  # else it has waited for the watermark, not for the others
                            self.phase.confirms.append((time.perf_counter() - began) * 1000)
                    if self.stopping.wait(PAUSE_S):
                        break
        except Exception as error:  # noqa: BLE001 - handed to the one who measures
            self.failure = error

    def __enter__(self) -> Probe:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join(BLOCKED_S)
        if self.failure is not None:
            raise self.failure


# -- the others ----------------------------------------------------------------------------------------------


def handshake(vhost: str = "/", user: str = "guest") -> bytes:
    """All that a client says until its channel 1 is open, at once."""
    said = (
        (0, m.ConnectionStartOk({}, "PLAIN", f"\0{user}\0{user}".encode(), "en_US")),
        (0, m.ConnectionTuneOk(0, 0, 60)),
        (0, m.ConnectionOpen(vhost)),
        (1, m.ChannelOpen()),
    )
    return PROTOCOL_HEADER + b"".join(frame(FRAME_METHOD, number, method.encode()) for number, method in said)


OPENED = frame(FRAME_METHOD, 1, m.ChannelOpenOk().encode())


def connect(port: int, count: int, at_once: int = 50, vhost: str = "/", user: str = "guest") -> list[socket.socket]:
    """So many connections with a channel each."""
    hello, made = handshake(vhost, user), []
    for start in range(0, count, at_once):
        part = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(min(at_once, count - start))]
        for sock in part:
            sock.sendall(hello)
        for sock in part:
            wait_for(sock, OPENED)
        made += part
    return made


def wait_for(sock: socket.socket, end: bytes) -> None:
    got = b""
    while not got.endswith(end):
        data = sock.recv(65536)
        if not data:
            raise ConnectionError(f"the broker closed the connection after {got!r}")
        got += data


# -- the flood -----------------------------------------------------------------------------------------------


def pour(port: int) -> None:
    """Publish at full speed until the socket is closed: the part of a process of its own."""
    properties = Properties(delivery_mode=2).encode()
    header = b"\x00\x3c\x00\x00" + SIZE.to_bytes(8, "big") + properties
    message = b"".join(
        (
            frame(FRAME_METHOD, 1, m.BasicPublish("", FLOODED).encode()),
            frame(FRAME_HEADER, 1, header),
            frame(FRAME_BODY, 1, bytes(SIZE)),
        )
    )
    burst = message * 500
    [sock] = connect(port, 1)
    sock.settimeout(None)
    while True:
        sock.sendall(burst)


@contextlib.contextmanager
def flood(port: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.overload", "--pour", str(port)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Kvitto(nodes.Kvitto):
    """With a watermark: so many bytes stay free on the disk."""

    free_limit = 0

    def _options(self) -> list[str]:
        return ["--disk-free-limit", str(self.free_limit)]


# -- the measurement -----------------------------------------------------------------------------------------


def measure(broker: Kvitto, connections: int, mib: int, settle_s: float = SETTLE_S) -> list[Phase]:
    """Start the broker with a watermark `mib` MiB below what is free now; the phases in their order, printed as they end."""
    free = os.statvfs(broker.place)
    broker.free_limit = free.f_bavail * free.f_frsize - mib * MIB
    broker.start()
    phases = []
    try:
        port = urlsplit(broker.uri).port
        assert port is not None
        with Connection(broker.uri) as connection:
            channel = connection.channel()
            for name in (FLOODED, PROBED):
                channel.queue_declare(name, durable=True)
        for phase in run(broker, port, connections, settle_s):
            phases.append(phase)
            print(phase.row(), flush=True)
    finally:
        broker.stop()
    return phases


def run(broker: Kvitto, port: int, connections: int, settle_s: float) -> Iterator[Phase]:
    phase = Phase("nothing else", 0)
    with Probe(broker.uri, phase, True):
        time.sleep(settle_s)
    yield seen(phase, broker)

    phase = Phase("they connect", connections)
    began = time.perf_counter()
    with Probe(broker.uri, phase, True):
        others = connect(port, connections)
    phase.seconds = time.perf_counter() - began
    yield seen(phase, broker)

    phase = Phase("they are there", connections)
    with Probe(broker.uri, phase, True):
        time.sleep(settle_s)
    yield seen(phase, broker)

    deaf = Connection(broker.uri)
    deaf.channel().consume(FLOODED)
    watch = Connection(broker.uri)
    watching = watch.channel()
    with flood(port):
        phase = Phase("a publisher at full speed", connections)
        began, before = time.perf_counter(), size(broker.place)
        with Probe(broker.uri, phase, True):
            while watch.blocked is None and time.perf_counter() - began < BLOCKED_S:
                watching.publish(b"", routing_key=PROBED)  # who publishes is told
                watch.process(0.05)
                phase.rss_mib = max(phase.rss_mib, proc.rss_bytes(broker.pid) / MIB)
        phase.seconds, phase.mib = time.perf_counter() - began, (size(broker.place) - before) / MIB
        if watch.blocked is None:
            raise TimeoutError(f"publishers were not blocked within {BLOCKED_S:g} s")
        yield seen(phase, broker)

        phase = Phase("publishers are blocked", connections)
        with Probe(broker.uri, phase, False):
            time.sleep(settle_s)
        yield seen(phase, broker)

    for sock in others:
        sock.close()
    phase = Phase("all have gone", 0)
    deaf.channel().queue_delete(FLOODED)
    deaf.close()
    began = time.perf_counter()
    while watch.blocked is not None and time.perf_counter() - began < BLOCKED_S:
        watch.process(0.05)
    if watch.blocked is not None:
        raise TimeoutError(f"publishers were still blocked {BLOCKED_S:g} s after the queue was deleted")
    with Probe(broker.uri, phase, True):
        time.sleep(settle_s)
    watch.close()
    yield seen(phase, broker)


def seen(phase: Phase, broker: Kvitto) -> Phase:
    phase.rss_mib = max(phase.rss_mib, proc.rss_bytes(broker.pid) / MIB)
    return phase


def size(place: Path) -> int:
    """Bytes on the disk under it."""
    found = 0
    for path in place.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found += path.stat().st_blocks * 512
    return found


def verdict(phases: Sequence[Phase]) -> list[str]:
    """What missed; empty if nothing did."""
    missed = []
    for phase in phases:
        for what, values in (("confirm", phase.confirms), ("declare", phase.declares)):
            if values and quantile(values, 0.99) >= P99_MS:
                missed.append(f"{what} p99 {quantile(values, 0.99):.1f} ms while: {phase.name}")
    calm = max(phase.rss_mib for phase in phases[:3])
    worst = max(phase.rss_mib for phase in phases)
    if (worst - calm) * MIB > RSS_SHARE:
        missed.append(f"RSS grew from {calm:.0f} to {worst:.0f} MiB under the flood")
    return missed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument(
        "--mib",
        type=int,
        default=2000,
        help="about so much comes in before the watermark (2000; 100 or more: its alarm ends 64 MiB behind it)",
    )
    parser.add_argument("--place", type=Path, default=PLACE, help="where the broker keeps its data")
    parser.add_argument("--pour", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.pour is not None:
        with contextlib.suppress(OSError):
            pour(args.pour)
        return 0
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < args.connections + 200:
        print(f"only {hard} files may be open (ulimit -Hn): fewer connections, --connections {hard - 200}")
        return 2
    shutil.rmtree(args.place, ignore_errors=True)
    broker = Kvitto(args.place)
    print(HEAD)
    missed = verdict(measure(broker, args.connections, args.mib))
    shutil.rmtree(args.place, ignore_errors=True)
    print("missed: " + "; ".join(missed) if missed else f"p99 below {P99_MS:g} ms and memory bounded in every phase")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
