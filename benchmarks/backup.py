"""Backups of a broker under load: what is in each of them, and what a publisher notices meanwhile.

    python -m benchmarks.backup [--backups 50] [--kills 0] [--pause 3] [--rate 3000] [--seed 1] [--place DIR]

The load is that of `kvitto torture`: publishers with confirms, consumers that ack, requeue and reject, dead letters, and transactions of
publishes, and of a publish with an ack. `kvitto backup` runs again and again, and a broker starts on each copy and is drained: it has
what had been confirmed before the command unless a consumer settled it, nothing that was settled and stored comes back, all that had been
delivered is flagged, and no transaction or dead letter is done by half. A probe publishes one message at a time all the while; the last
lines are its times from publish to confirm, with and without a backup. With `--kills`, SIGKILL ends the broker so often while a
backup is being taken, or the broker and the command: then there is no backup, or one that is refused, and the broker's own directory is
judged as `kvitto torture` does.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvitto.client import Connection, Properties
from kvitto.torture import load
from kvitto.torture.load import DEAD, MOVED, QUEUES, C
from kvitto.torture.nodes import Kvitto, kvitto_command
from kvitto.torture.oracle import ACKED, CONFIRMED, FLOW_SHIFT, HEAD, NEVER, REJECTED, SAFE, SEEN, WORDS, Oracle
from kvitto.torture.report import as_text
from kvitto.torture.run import Run, Wanted

PLACE = Path(__file__).resolve().parent.parent / "build" / "bench" / "backup"
PROBED = "backup.probed"
QUIET_S = 0.5
DRAIN_EVERY = 2
"""After so many backups all queues are drained: one of them has no consumer."""
TIMEOUT_S = 300.0

Message = tuple[int, int]
Stored = dict[str, dict[Message, bool]]
"""By queue the messages, and whether each is flagged."""


class Known:
    """What the clients know at one moment: a copy of all marks."""

    def __init__(self, oracle: Oracle) -> None:
        self.queues = {name: [bytes(marks) for marks in ledger.marks] for name, ledger in oracle.ledgers.items()}
        self.flows = [bytes(flow.marks) for flow in oracle.flows]

    def sent(self, message: Message) -> int:
        flow, number = message
        return self.flows[flow][number] if number < len(self.flows[flow]) else 0

    def mark(self, queue: str, message: Message) -> int:
        flow, number = message
        marks = self.queues[queue][flow]
        return marks[number] if number < len(marks) else 0


@dataclass
class Counts:
    """What the backups had, and what was wrong with them."""

    backups: int = 0
    messages: int = 0
    owed: int = 0
    linked: int = 0
    copied: int = 0
    copied_bytes: int = 0
    seconds: list[float] = field(default_factory=list)
    kills: int = 0
    left: int = 0
    findings: list[str] = field(default_factory=list)


class Throttle:
    """Tells publishers to wait while they have sent more than `rate` messages per second, or while consumers are far behind."""

    def __init__(self, oracle: Oracle, rate: float, behind: Callable[[], int]) -> None:
        self.oracle = oracle
        self.rate = rate
        self.behind = behind
        self.left = 0.0
        self.seen = 0
        self.at = time.monotonic()

    def __call__(self) -> int:
        now, published = time.monotonic(), self.oracle.published
        self.left = min(self.left + self.rate * (now - self.at), self.rate / 5) - (published - self.seen)
        self.at, self.seen = now, published
        return self.behind() if self.left > 0 else load.BEHIND_MAX + 1


class BackupRun(Run):
    """A run of the torture whose faults are backups."""

    def __init__(self, place: Path, wanted: Wanted, pause_s: float, kills: int, rate: float) -> None:
        super().__init__(Kvitto(place / "broker"), wanted, "", print)
        self.rng = random.Random(wanted.seed)
        throttle = Throttle(self.oracle, rate, self.load.behind)
        for client in (*self.load.publishers, *self.load.transactors):
            client.behind = throttle  # type: ignore[attr-defined]
        self.place = place
        self.pause_s = pause_s
        self.kills = kills
        self.counts = Counts()
        self.during: list[tuple[float, float]] = []
        self.without: list[tuple[float, float]] = []
        self.floor = [0, 0, 0]
        """Messages below these numbers were drained."""
        self.probe: subprocess.Popen[str] | None = None
        self.probed = place / "probe"

    def _faults(self) -> None:
        for number in range(self.kills):
            self._wait_moving()
            self._kill_during(number)
        if self.wanted.cycles:
            self._start_probe()
        for number in range(self.wanted.cycles):
            self._wait_moving()
            began = time.monotonic()
            time.sleep(self.pause_s)
            self.without.append((began, time.monotonic()))
            self._alive()
            self._backup(number)
            self._progress(number + 1)
            if number % DRAIN_EVERY == DRAIN_EVERY - 1:
                self._judge()
                self.floor = [flow.next for flow in self.oracle.flows]
        if self.probe is not None:
            self.probe.terminate()
            self.probe.wait()

    def _start_probe(self) -> None:
        with Connection(self.node.uri) as connection:
            connection.channel().queue_declare(PROBED, durable=True, arguments={"x-max-length": 10})
        self.probe = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.backup", "--probe", self.node.uri, str(self.probed)], text=True
        )

    def _command(self, target: Path, *more: str) -> list[str]:
        assert self.node.http_uri is not None
        uri = self.node.http_uri.replace("//", "//guest:guest@")
        return [*kvitto_command(), "backup", str(target), "--json", "--uri", uri, *more]

    # -- a backup --------------------------------------------------------------------------------------------

    def _backup(self, number: int) -> None:
        place = self.place / f"copy-{number}"
        place.mkdir(parents=True)
        target, before, began = place / "data", Known(self.oracle), time.monotonic()
        more = ("--copy",) if number % 5 == 4 else ()
        done = subprocess.run(
            self._command(target, *more), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        self.during.append((began, time.monotonic()))
        after = Known(self.oracle)
        where = f"backup {number}"
        if done.returncode:
            self.counts.findings.append(f"{where}: {done.stdout} {done.stderr}")
            return
        said = json.loads(done.stdout)
        self.counts.seconds.append(said["seconds"])
        self.counts.linked += said["linked"]
        self.counts.copied += said["copied"]
        self.counts.copied_bytes += said["copied_bytes"]
        node = Kvitto(place)
        try:
            node.start()
            stored = drain(node.uri, self.counts.findings)
            if node.stop():
                self.counts.findings.append(f"{where}: the broker on it did not end in order")
        finally:
            node.close()
        self.counts.backups += 1
        self.counts.messages += sum(map(len, stored.values()))
        problems = list(self._compare(stored, before, after))
        self.counts.findings += [f"{where}: {text}" for text in problems[:5]]
        if not problems:
            shutil.rmtree(place)

    def _compare(self, stored: Stored, before: Known, after: Known) -> Sequence[str]:
        found: list[str] = []
        for queue, messages in stored.items():
            for message, again in messages.items():
                name = f"{queue}: flow {message[0]} number {message[1]}"
                if before.mark(queue, message) & SAFE:
                    found.append(f"{name} was settled, and is back")
                if before.mark(queue, message) & SEEN and not again:
                    found.append(f"{name} had been delivered, and is not flagged")
                if before.sent(message) & NEVER:
                    found.append(f"{name} was rolled back")
        for one, other in ((C, DEAD), (DEAD, MOVED), (C, MOVED)):
            found += [f"{message} is in {one} and in {other}" for message in stored[one].keys() & stored[other].keys()]
        for flow in self.oracle.flows:
            for number in range(self.floor[flow.number], len(before.flows[flow.number])):
                message = flow.number, number
                for queue in flow.routes[number % len(flow.routes)][1]:
                    if before.sent(message) & CONFIRMED:
                        self.counts.owed += 1
                        if not self._is_there(stored, queue, message, after):
                            found.append(f"{queue}: flow {flow.name} number {number} is lost")
            found += self._halves(stored, flow.number, after)
        return found

    @staticmethod
    def _is_there(stored: Stored, queue: str, message: Message, after: Known) -> bool:
        """Whether a message is in its queue or has been settled there; a rejected one, whether it is where that has brought it."""
        if message in stored[queue]:
            return True
        mark = after.mark(queue, message)
        if not mark & REJECTED:
            return bool(mark & ACKED)
        if message in stored[DEAD] or message in stored[MOVED]:
            return True
        return bool(after.mark(DEAD, message) & ACKED and after.mark(MOVED, message) & ACKED)

    def _halves(self, stored: Stored, number: int, after: Known) -> list[str]:
        flow = self.oracle.flows[number]
        found: list[str] = []
        for first in range(self.floor[number], len(after.flows[number]), flow.group) if flow.group > 1 else ():
            copies = [
                (queue, (number, n))
                for n in range(first, first + flow.group)
                for queue in flow.routes[n % len(flow.routes)][1]
            ]
            if any(message in stored[queue] for queue, message in copies):
                lacking = [copy for copy in copies if not self._is_there(stored, *copy, after)]
                found += [f"half a transaction: {flow.name} {first} lacks {lacking}"] if lacking else []
        return found

    # -- kills -----------------------------------------------------------------------------------------------

    def _kill_during(self, number: int) -> None:
        """Kill the broker while a backup is taken; every second time the command too."""
        target = self.place / f"killed-{number}"
        command = subprocess.Popen(
            self._command(target, "--no-check", "--copy"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + TIMEOUT_S
        while not target.exists() and command.poll() is None and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(self.rng.choice((0, 0.001, 0.003, 0.01, 0.03)))
        self.down()
        if number % 2:
            command.kill()
        self.node.kill()
        _, said = command.communicate(timeout=TIMEOUT_S)
        self.counts.kills += 1
        if command.returncode == 0:  # it was complete before the broker was killed
            shutil.rmtree(target)
        elif target.exists():
            self.counts.left += 1
            self._is_refused(target, f"kill {number}")
        if "Traceback" in said:
            self.counts.findings.append(f"kill {number}: {said}")
        self.outcome.recoveries_s.append(self.start())

    def _is_refused(self, target: Path, where: str) -> None:
        names = list(target.iterdir())
        port = ("--port", "0", "--http-port", "0")
        for words in (("check", str(target)), ("serve", "--data-dir", str(target), *port)):
            if not names:
                break  # it was killed before it had made a file
            done = subprocess.run(
                [*kvitto_command(), *words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
            whole = words[0] == "check" and done.returncode == 0 and not (target / "incomplete-backup").exists()
            if whole:
                break  # it was killed when nothing was left to do
            if not done.returncode or "never completed" not in done.stderr:
                self.counts.findings.append(f"{where}: {words[0]} says {done.stdout} {done.stderr}")
        shutil.rmtree(target)

    # -- the end ---------------------------------------------------------------------------------------------

    def tell(self) -> bool:
        """Print what came out of it. Returns whether all is as it should be."""
        counts = self.counts
        print(as_text(self.outcome, self.oracle))
        print(
            f"{counts.backups} backups, {counts.messages:,} messages in them, {counts.owed:,} confirmed copies looked for, "
            f"{counts.linked:,} files linked, {counts.copied:,} copied ({counts.copied_bytes / (1 << 20):,.0f} MiB)"
        )
        print(f"{counts.kills} kills during backups, {counts.left} incomplete backups left, all refused")
        print("\n".join(["findings:", *counts.findings]) if counts.findings else "findings: 0")
        quick = self._tell_times()
        return quick and not counts.findings and self.outcome.passed(self.oracle)

    def _tell_times(self) -> bool:
        if not self.probed.exists():
            return True
        samples = [tuple(map(float, line.split())) for line in self.probed.read_text().splitlines()]
        p99 = {}
        for name, windows in (("without", self.without), ("during", self.during)):
            times = sorted(ms for at, ms in samples if any(begin <= at <= end for begin, end in windows))
            if not times:
                return True
            p99[name] = at_share(times, 0.99)
            print(
                f"confirm {name:<8} n {len(times):>6}  p50 {at_share(times, 0.5):6.2f}  p90 {at_share(times, 0.9):6.2f}  "
                f"p99 {p99[name]:6.2f}  max {times[-1]:7.2f} ms"
            )
        if self.counts.seconds:
            taken = sorted(self.counts.seconds)
            print(
                f"a backup took {at_share(taken, 0.5):.2f} s (median), {taken[-1]:.2f} s (longest), without its check"
            )
        print(f"p99 during / without: {p99['during'] / p99['without']:.2f} (wanted: <= 2)")
        return p99["during"] <= 2 * p99["without"]


def at_share(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def drain(uri: str, findings: list[str]) -> Stored:
    """Take all messages of all queues of the load."""
    stored: Stored = {}
    with Connection(uri) as connection:
        for queue in QUEUES:
            messages = stored[queue] = {}
            channel = connection.channel()
            channel.consume(queue, no_ack=True)
            while len(batch := channel.receive(QUIET_S)):
                for body, flag in zip(batch.bodies.tolist(), batch.flags.view(), strict=True):
                    key, number = WORDS.unpack_from(body.ljust(HEAD.size, b"\xff"))
                    message = key >> FLOW_SHIFT, number
                    if message in messages:
                        findings.append(f"{queue}: {message} is there twice")
                    messages[message] = bool(flag)
            channel.close()
    return stored


def probe(uri: str, path: str) -> None:
    """Publish one message at a time, until SIGTERM ends this, and write when each was confirmed, and after how many ms."""
    with Connection(uri) as connection, open(path, "w", buffering=1) as out:
        channel = connection.channel()
        channel.confirm_select()
        while True:
            began = time.monotonic()
            channel.publish(bytes(100), "", PROBED, Properties(delivery_mode=2))
            channel.wait_for_confirms(60)
            ended = time.monotonic()
            out.write(f"{ended:.6f} {1000 * (ended - began):.4f}\n")
            time.sleep(0.001)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backup", description=__doc__.partition("\n")[0])
    parser.add_argument("--backups", type=int, default=50, help="(default: 50)")
    parser.add_argument(
        "--kills", type=int, default=0, help="kills of the broker during backups, before those (default: 0)"
    )
    parser.add_argument("--pause", type=float, default=3.0, metavar="S", help="between two backups (default: 3)")
    parser.add_argument(
        "--rate", type=float, default=3000, help="messages per second of all publishers (default: 3000)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--place", type=Path, default=PLACE)
    parser.add_argument("--probe", nargs=2, metavar=("URI", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.probe:
        probe(*options.probe)
    shutil.rmtree(options.place, ignore_errors=True)
    options.place.mkdir(parents=True)
    run = BackupRun(
        options.place, Wanted((), options.seed, cycles=options.backups), options.pause, options.kills, options.rate
    )
    try:
        run.go()
    finally:
        if run.probe is not None:
            run.probe.kill()
            run.probe.wait()
    return 0 if run.tell() else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
