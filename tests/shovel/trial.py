"""One shovel under load between two brokers as processes, with kills: of the source, of the target, and of what carries.

`test_shovel.py` runs the short form, `python -m tests.shovel` the long one. A message counts as lost if it was confirmed to
its publisher and has not arrived; one whose confirm was lost with a connection may arrive or not, and is never sent again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvitto.client import AMQPError, Connection
from kvitto.torture.nodes import Node
from kvitto.wire.properties import Properties
from tests.alike.conftest import answers
from tests.http.api import Http
from tests.migrate.trial import START_S, Arrived, Steady, api_of, declare, drain
from tests.support.wait import wait_until

SOURCE, TARGET, CARRIER = VICTIMS = ("source", "target", "shovel")
BATCH = 200
ARRIVE_S = 120.0
QUEUES = ("from", "to")


@dataclass
class Outcome(Arrived):
    """What arrived of the messages that were sent. `unsure` ones were sent and not confirmed."""

    confirmed: int = 0
    unsure: int = 0


class Load(threading.Thread):
    """Publishes numbered messages in batches, at `rate` messages per second, until `stop`. A batch whose confirms do not come is not
    sent again: its numbers stay unsure."""

    def __init__(self, uri: str, rate: int) -> None:
        super().__init__(name="load")
        self.uri = uri
        self.rate = rate
        self.sent = 0
        self.confirmed: list[range] = []
        self._ends = threading.Event()

    def run(self) -> None:
        while not self._ends.is_set():
            try:
                with Connection(self.uri) as connection:
                    channel = connection.channel()
                    channel.confirm_select()
                    while not self._ends.wait(BATCH / self.rate):
                        self._batch(channel)
            except (AMQPError, OSError):
                self._ends.wait(0.05)  # the broker was killed

    def _batch(self, channel: Any) -> None:
        batch = range(self.sent, self.sent + BATCH)
        self.sent = batch.stop
        for number in batch:
            channel.publish(b"%d " % number + b"x" * 50, "", QUEUES[0], Properties(delivery_mode=2))
        if channel.wait_for_confirms(START_S):
            self.confirmed.append(batch)

    def stop(self) -> None:
        self._ends.set()
        self.join()


class Trial:
    """A shovel of `carrier`, which is the source itself or a broker of its own, from a queue of one broker to a queue of another."""

    def __init__(self, source: Node, target: Node, carrier: Node, seed: int, rate: int, **value: Any) -> None:
        self.source = source
        self.target = target
        self.carrier = carrier
        self.random = random.Random(seed)
        self.rate = rate
        self.outcome = Outcome()
        self.victims: tuple[str, ...] = VICTIMS
        self.value = {
            "src-uri": source.uri,
            "src-queue": QUEUES[0],
            "dest-uri": target.uri,
            "dest-queue": QUEUES[1],
            "reconnect-delay": 1,
            **value,
        }

    def run(self, kills: int, pause_s: tuple[float, float]) -> Outcome:
        declare(self.source.uri, [QUEUES[0]])
        declare(self.target.uri, [QUEUES[1]])
        wait_until(lambda: answers(api_of(self.carrier)), START_S)
        answer = Http(api_of(self.carrier)).call("PUT", "/api/parameters/shovel/%2f/trial", {"value": self.value})
        assert answer.status in (201, 204), answer.body
        load = Load(self.source.uri, self.rate)
        started = time.monotonic()
        load.start()
        try:
            self._kill(kills, pause_s)
        finally:
            load.stop()
        self._settle()
        self.outcome.seconds = time.monotonic() - started
        assert Http(api_of(self.carrier)).call("DELETE", "/api/parameters/shovel/%2f/trial").status == 204
        self._compare(load)
        return self.outcome

    def _kill(self, kills: int, pause_s: tuple[float, float]) -> None:
        victims = [self.victims[n % len(self.victims)] for n in range(kills)]
        self.random.shuffle(victims)
        for victim in victims:
            moved = self._ready(self.target)
            wait_until(lambda: self._ready(self.target) > moved, ARRIVE_S)  # noqa: B023 - a kill in the middle of the work
            time.sleep(self.random.uniform(*pause_s))
            self.outcome.kills[victim] = self.outcome.kills.get(victim, 0) + 1
            if victim == CARRIER and isinstance(self.carrier, Steady):
                kill_shovels(self.carrier)
            else:
                each = {SOURCE: self.source, TARGET: self.target, CARRIER: self.carrier}[victim]
                each.kill()
                each.start()

    def _settle(self) -> None:
        """Wait until nothing is on its way: the source is empty, and nothing arrives any more."""
        wait_until(lambda: self._ready(self.source) == 0 and self._unacked() == 0, ARRIVE_S)

    def _unacked(self) -> int:
        wait_until(lambda: answers(api_of(self.source)), START_S)
        found = Http(api_of(self.source)).get(f"/api/queues/%2f/{QUEUES[0]}")
        return int(found.get("messages_unacknowledged", 1))

    def _ready(self, node: Node) -> int:
        queue = QUEUES[0] if node is self.source else QUEUES[1]
        with Connection(node.uri) as connection:
            return int(connection.channel().queue_declare(queue, passive=True).message_count)

    def _compare(self, load: Load) -> None:
        outcome, seen = self.outcome, bytearray(load.sent)
        outcome.note(drain(self.target.uri, QUEUES[1]), seen)
        outcome.confirmed = sum(len(batch) for batch in load.confirmed)
        outcome.unsure = load.sent - outcome.confirmed
        outcome.lost = sum(len(batch) - sum(seen[batch.start : batch.stop]) for batch in load.confirmed)
        outcome.left = self._ready(self.source)


def kill_shovels(broker: Steady) -> None:
    """Kill the process of a broker's shovels, as soon as there is one."""
    os.kill(wait_until(lambda: shovel_process(broker.pid), START_S), signal.SIGKILL)


def shovel_process(broker: int) -> int | None:
    """Return the pid of the process of a broker's shovels, from /proc."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = entry.joinpath("stat").read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == broker and b"kvitto.shovel" in entry.joinpath("cmdline").read_bytes():
                return int(entry.name)
    return None
