"""One migration between two brokers as processes, with kills: of the old broker, of the new one, and of the command itself."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvitto.base import limits
from kvitto.client import Connection
from kvitto.torture.nodes import Kvitto, Node, free_port
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from tests.alike.conftest import Managed, answers
from tests.support.wait import wait_until

VICTIMS = ("source", "target", "command")
START_S = 120.0
FILL_WINDOW = 20_000


class Steady(Kvitto):
    """`kvitto serve` that has the same ports after a restart."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.ports = free_port(), free_port()

    def _options(self) -> list[str]:
        return ["--port", str(self.ports[0]), "--http-port", str(self.ports[1])]


@contextlib.contextmanager
def node(kind: str, place: Path) -> Iterator[Node]:
    """A broker with a management API, until the end of the block."""
    made: Node = Managed(place) if kind == "rabbitmq" else Steady(place)
    try:
        made.start()
        wait_until(lambda: answers(api_of(made)), START_S)
        yield made
    finally:
        made.close()


def api_of(made: Node) -> str:
    port = made.http_port if isinstance(made, Managed) else made.ports[1] if isinstance(made, Steady) else 0
    return f"http://guest:guest@127.0.0.1:{port}"


def amqp_of(made: Node) -> str:
    return made.uri.partition("/%2f")[0]


@dataclass
class Arrived:
    """What arrived. `lost` and `doubled` count messages, `disordered` those that came behind a later one, `left` those at the source."""

    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    left: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def note(self, numbers: Iterable[int], seen: bytearray) -> None:
        """Compare the numbers of the messages of one queue, which rise if they are in order, and mark them as seen."""
        last = -1
        for number in numbers:
            if seen[number]:
                self.doubled += 1
            else:
                seen[number] = 1
                self.disordered += number < last
                last = number

    def __str__(self) -> str:
        return f"lost {self.lost}, doubled {self.doubled}, out of order {self.disordered}, left {self.left}"

    @property
    def killed(self) -> str:
        """How often each was killed."""
        return ", ".join(f"{count} of the {victim}" for victim, count in sorted(self.kills.items())) or "none"


@dataclass
class Outcome(Arrived):
    """What a migration has brought. `foreign` are messages that nobody sent; `reports` are those of the runs that were not killed."""

    foreign: int = 0
    runs: int = 0
    reports: list[Any] = field(default_factory=list)


class Trial:
    """`messages` numbered messages in `queues` queues at the source, which are moved meanwhile `kills` processes are killed."""

    def __init__(self, source: Node, target: Node, messages: int, queues: int, seed: int, rate: int = 0) -> None:
        self.source = source
        self.target = target
        self.messages = messages
        self.queues = [f"q{n}" for n in range(queues)]
        self.random = random.Random(seed)
        self.rate = rate
        self.outcome = Outcome()
        self.victims = VICTIMS

    def run(self, kills: int, pause_s: tuple[float, float]) -> Outcome:
        for each in (self.source, self.target):
            declare(each.uri, self.queues)
        fill(self.source.uri, self.queues, self.messages)
        started = time.monotonic()
        self._migrate(kills, pause_s)
        self.outcome.seconds = time.monotonic() - started
        self._compare()
        return self.outcome

    def command(self) -> list[str]:
        command = [
            sys.executable,
            "-m",
            "kvitto.cli.main",
            "migrate",
            amqp_of(self.source),
            "--to",
            amqp_of(self.target),
        ]
        command += [
            "--source-api",
            api_of(self.source),
            "--target-api",
            api_of(self.target),
            "--skip-definitions",
            "--queues",
            "^q[0-9]+$",
        ]
        return [*command, "--json", *(["--rate", str(self.rate)] if self.rate else [])]

    def _migrate(self, kills: int, pause_s: tuple[float, float]) -> None:
        victims = [self.victims[n % len(self.victims)] for n in range(kills)]
        self.random.shuffle(victims)
        process = self._begin()
        while True:
            if victims:
                self._wait_for_progress(process)
            try:
                out, err = process.communicate(timeout=self.random.uniform(*pause_s) if victims else 600.0)
            except subprocess.TimeoutExpired:
                assert victims, "the migration does not end"
                victim = victims.pop()
                self.outcome.kills[victim] = self.outcome.kills.get(victim, 0) + 1
                if victim == "command":
                    process.send_signal(signal.SIGKILL)
                    process.communicate()
                    process = self._begin()
                else:
                    self._restart(self.source if victim == "source" else self.target)
                continue
            if process.returncode == 0:
                self.outcome.reports.append(json.loads(out))
                return
            assert process.returncode == 3, (process.returncode, out, err)  # a management API was down
            process = self._begin()

    def _wait_for_progress(self, process: subprocess.Popen[str]) -> None:
        """A kill hits the work, and not the questions that come before it."""
        before = self._arrived()
        wait_until(lambda: process.poll() is not None or self._arrived() != before, START_S)

    def _arrived(self) -> int:
        with Connection(self.target.uri) as connection:
            channel = connection.channel()
            return sum(channel.queue_declare(queue, passive=True).message_count for queue in self.queues)

    def _begin(self) -> subprocess.Popen[str]:
        self.outcome.runs += 1
        for each in (self.source, self.target):
            wait_until(lambda: answers(api_of(each)), START_S)  # noqa: B023 - called at once
        return subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @staticmethod
    def _restart(each: Node) -> None:
        each.kill()
        each.start()

    def _compare(self) -> None:
        outcome = self.outcome
        seen = bytearray(self.messages)
        for queue in self.queues:
            numbers = list(drain(self.target.uri, queue))
            outcome.note((number for number in numbers if number < self.messages), seen)
            outcome.foreign += sum(number >= self.messages for number in numbers)
            outcome.left += sum(1 for _ in drain(self.source.uri, queue))
        outcome.lost = seen.count(0)


def declare(uri: str, queues: list[str]) -> None:
    with Connection(uri) as connection:
        channel = connection.channel()
        for queue in queues:
            channel.call(m.QueueDeclare(queue, False, True, False, False, False, {}), m.QueueDeclareOk)


def fill(uri: str, queues: list[str], messages: int) -> None:
    """Message n goes to queue n mod their number; its body begins with n."""
    with Connection(uri) as connection:
        channel = connection.channel()
        channel.confirm_select()
        properties = Properties(delivery_mode=2, headers={"from": "the old one"}, content_type="text/plain")
        for number in range(messages):
            channel.publish(b"%d " % number + b"x" * 50, "", queues[number % len(queues)], properties)
            if channel.outstanding >= FILL_WINDOW:
                channel.wait_until_outstanding(FILL_WINDOW // 2, START_S)
        assert channel.wait_for_confirms(START_S)


def drain(uri: str, queue: str) -> Iterator[int]:
    """Yield the numbers of the messages in a queue, and take them out."""
    with Connection(uri) as connection:
        channel = connection.channel()
        count = channel.call(
            m.QueueDeclare(queue, True, False, False, False, False, {}), m.QueueDeclareOk
        ).message_count
        channel.qos(limits.KIB)
        channel.consume(queue)
        while count > 0:
            batch = channel.receive(30.0)
            assert batch.count, f"{count} messages of {queue} do not come"
            for delivery in batch:
                yield int(delivery.body.split(b" ", 1)[0])
            channel.ack(batch.delivery_tags()[-1], multiple=True)
            count -= batch.count
