"""A broker of any checkout under the loop watch, with the probe beside it: measures one row."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import proc
from benchmarks.metrics import MIB
from benchmarks.overload import quantile
from benchmarks.stalls import loopwatch
from benchmarks.stalls.peer import Refused, Stuck
from benchmarks.stalls.rows import Row, Site
from benchmarks.tls import make_certificate
from kvitto.base.readable import readable
from kvitto.torture import nodes

READY = re.compile(r"^kvitto ready amqp=\S+:(\d+) http=\S+:(\d+) .*")
SETTLE_S = 0.5
"""Measured beyond the end of an attack: what it leaves behind for later turns belongs to it."""
SMALL_SETTLE_S = 0.1
QUIET_SHARE = 0.5
"""Of a core: with more than the probe can cause the broker is still at work on the attack."""
LIMIT_S = 150.0
"""A row that is not over by then is ended, and what its unfinished piece has taken so far is its result."""


@dataclass
class Found:
    """What one row showed on one broker."""

    piece_ms: float = 0.0
    callback: str = ""
    round_ms: float = 0.0
    confirms_ms: list[float] = field(default_factory=list)
    rss_mib: float = 0.0
    """What the process grew by, from before the setup to its largest."""
    stuck: str = ""
    """Why the row did not end, "" if it did."""

    @property
    def p999_ms(self) -> float:
        return quantile(self.confirms_ms, 0.999) if self.confirms_ms else float("nan")


class Broker(nodes.Kvitto):
    """`kvitto serve` of the checkout whose Python is given."""

    def __init__(self, place: Path, python: Path, options: Sequence[str] = (), tls: bool = False) -> None:
        super().__init__(place)
        self.python = python
        self.options = list(options)
        if tls:
            made = make_certificate(place / "tls")
            assert made is not None, "openssl is needed for a broker with TLS"
            self.options += ["--tls-port", "0", "--tls-cert", str(made.cert), "--tls-key", str(made.key)]
        self.http_port = self.tls_port = 0
        watch = place / "watch"
        watch.write_bytes(bytes(loopwatch.SIZE))
        with watch.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), loopwatch.SIZE)
        self.words = memoryview(self._map).cast("Q")

    def begin(self) -> None:
        script = str(Path(loopwatch.__file__).resolve())
        serve = ["serve", "--data-dir", str(self.data), "--port", "0", "--http-port", "0", *self.options]
        command = [str(self.python), "-P", script, str(self.place / "watch"), *serve]
        self._process = self._spawn(command, {"PYTHONPATH": ""}, listen=True)

    def _wait_ready(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline() if readable(self._process.stdout, nodes.START_S) else ""
        match = READY.match(line)
        if match is None:
            self.kill()
            raise nodes.BrokerFailed(f"kvitto serve did not get ready (it said {line!r}); see {self.log}")
        self.pid = self._process.pid
        self.uri = nodes.uri_for(int(match[1]))
        self.http_port = int(match[2])
        tls = re.search(r" tls=\S+:(\d+)", line)
        self.tls_port = int(tls[1]) if tls else 0

    def site(self, small: bool) -> Site:
        return Site(int(self.uri.rpartition(":")[2].partition("/")[0]), self.http_port, self.tls_port, self.pid, small)

    # -- the watch -------------------------------------------------------------------------------------------

    def new_phase(self) -> None:
        self.words[loopwatch.PHASE] += 1

    def longest(self) -> tuple[float, str, float]:
        """Longest piece of this phase in ms, its callback, and the longest round in ms."""
        words = self.words
        if words[loopwatch.SEEN] != words[loopwatch.PHASE]:
            return 0.0, "", 0.0
        at = loopwatch.NAME_AT
        name = f"`{self._map[at : at + loopwatch.NAME_MAX].rstrip(bytes(1)).decode(errors='replace')}`"
        if (garbage := words[loopwatch.GARBAGE_NS] / 1e6) > 1:
            name += f" (of it garbage collection {garbage:.1f})"
        return words[loopwatch.PIECE_NS] / 1e6, name, words[loopwatch.ROUND_NS] / 1e6

    def unfinished_ms(self) -> float:
        """CPU time that the callback has taken which runs at the moment."""
        began = self.words[loopwatch.BEGAN_NS]
        return max(self.thread_s() * 1000 - began / 1e6, 0.0) if began else 0.0

    def thread_s(self) -> float:
        """CPU seconds of the loop's thread."""
        stat = proc.parse_stat(Path(f"/proc/{self.pid}/task/{self.pid}/stat").read_text())
        return stat.cpu_s


class Probe:
    """The other client, in a process of its own."""

    def __init__(self, uri: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.stalls.probe", uri],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=Path(__file__).resolve().parent.parent.parent,
        )

    def turn(self, within_s: float = LIMIT_S) -> list[float]:
        """Begin a phase, or end it: its latencies in ms. Stuck if the confirm that is under way does not come."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write("\n")
            if readable(self._process.stdout, within_s):
                line = self._process.stdout.readline()
                if line:
                    return [float(value) for value in json.loads(line)]
                raise Refused("the other client has lost its connection")
        raise Stuck(f"the other client got no confirm within {within_s:g} s")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(broker: Broker, row: Row, probe: Probe, small: bool) -> Found:
    """Setup, attack and aftermath of a row on a broker that runs."""
    found, site = Found(), broker.site(small)
    settle_s = SMALL_SETTLE_S if small else SETTLE_S
    before = peak(broker)
    try:
        steps = row.attack(site)
        next(steps)
        settle(broker, settle_s)
        probe.turn()
        broker.new_phase()
        try:
            next(steps, None)
            settle(broker, settle_s)
        finally:
            found.confirms_ms = probe.turn()
    except (Stuck, Refused, AssertionError, OSError) as error:
        found.stuck = f"{type(error).__name__}: {error}"
    finally:
        if broker.running:
            found.piece_ms, found.callback, found.round_ms = broker.longest()
            if (unfinished := broker.unfinished_ms()) > found.piece_ms and found.stuck:
                found.piece_ms, found.callback = unfinished, "still running"
            found.rss_mib = (peak(broker) - before) / MIB
        else:
            found.stuck = f"the broker has ended: {last_line(broker.log)}"
        site.close()
    return found


def settle(broker: Broker, settle_s: float) -> None:
    """Until the broker has done what it was given, and a moment more."""
    until = time.monotonic() + LIMIT_S
    quiet = 0
    while quiet < 2 and time.monotonic() < until:
        began = broker.thread_s()
        time.sleep(settle_s / 2)
        quiet = quiet + 1 if broker.thread_s() - began < QUIET_SHARE * settle_s / 2 else 0


def peak(broker: Broker) -> int:
    """The most memory that the process has had, in bytes."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").rstrip().splitlines()
    return lines[-1] if lines else "it said nothing"


def python_of(checkout: Path) -> Path:
    """The interpreter of a checkout, or what is one already."""
    python = checkout / ".venv" / "bin" / "python" if checkout.is_dir() else checkout
    if not os.access(python, os.X_OK):
        raise FileNotFoundError(f"there is no Python at {python}: give a checkout in which `make build` has run")
    return python
