"""The course of the run: start everything, watch, kill twice, wait until all is landed and settled, reconcile."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from examples.flights import data
from examples.flights.children import Child
from examples.flights.reconcile import Result, reconcile
from examples.flights.report import write_report
from examples.flights.show import Display
from examples.flights.table import RowCount
from kvitto.client import AMQPError, Connection

BROKER_DIES_AT: Final = 0.5
"""Share of the flights confirmed."""
SPARK_DIES_AT: Final = 0.7
"""Share of the flights landed; a little later than a batch's files are there, often before Spark's own note of it."""
BATCH_SHARE: Final = 8
"""A batch holds at most this part of all flights, so that there is something to interrupt."""
TICK_S: Final = 0.1
LEDGER_S: Final = 300.0
SILENCE_S: Final = 180.0
"""Without any progress for so long the run breaks off."""


@dataclass
class Sample:
    """The counts at one time, in seconds since publishing began."""

    at: float
    published: int
    confirmed: int
    landed: int
    settled: int


@dataclass
class Story:
    """What the report tells: samples, kills and the result."""

    samples: list[Sample] = field(default_factory=list)
    kills: list[tuple[float, str]] = field(default_factory=list)
    restarts: list[tuple[float, str]] = field(default_factory=list)
    seconds: float = 0.0


class Run:
    """One run. Every process it starts is in `children`, which the caller ends."""

    def __init__(
        self, directory: Path, most: int, rate: float, master: str, display: Display, children: list[Child]
    ) -> None:
        self.directory = directory
        self.receipts = directory / "receipts.txt"
        self.rate = rate
        self.master = master
        self.display = display
        self.children = children
        self.result = Result(flights=most or sum(1 for _ in data.rows()))
        self.story = Story()
        self.rows = RowCount(directory / "table")
        self.uri = ""
        self._connection: Connection | None = None
        self._progress_at = time.monotonic()
        self._began = 0.0
        self._spark_back = True

    def go(self) -> int:
        """The exit code."""
        self.broker = self._start_broker(0)
        self._declare()
        self.query = self._start_query()
        self.query.expect('"progress"', 120)
        self.display.event("kvitto pipeline land: queue flights -> " + str(self.directory / "table"))
        self._began = time.monotonic()
        arguments = [
            "examples.flights.publisher",
            self.uri,
            str(self.result.flights),
            str(self.rate),
            str(self.receipts),
        ]
        self.publisher = self._start("publisher", arguments)
        self.display.event(
            f"publishing {self.result.flights:,} flights, {self.rate:,.0f} per second, confirms streamed"
        )
        self._watch()
        return self._finish()

    # --- processes

    def _start(self, name: str, arguments: list[str]) -> Child:
        child = Child(name, arguments, self.directory / "logs" / f"{name}.log")
        self.children.append(child)
        return child

    def _start_broker(self, port: int) -> Child:
        place = ["--data-dir", str(self.directory / "data"), "--port", str(port), "--http-port", "0"]
        broker = self._start("broker", ["kvitto.cli.main", "serve", "--sync", "on", *place])
        ready = broker.expect(r"kvitto ready amqp=(\S+):(\d+)", 60)
        self.uri = f"amqp://guest:guest@{ready[1]}:{ready[2]}/%2f"
        self.port = int(ready[2])
        self.display.event(f"broker ready on port {ready[2]}, pid {broker.pid}")
        return broker

    def _start_query(self) -> Child:
        most = str(max(1, self.result.flights // BATCH_SHARE))
        query = self._start("query", ["examples.flights.query", self.uri, str(self.directory), most, self.master])
        self.display.event(f"Spark is starting, pid {query.pid}")
        return query

    def _declare(self) -> None:
        with Connection(self.uri) as connection:
            channel = connection.channel()
            channel.exchange_declare(data.EXCHANGE, "topic", durable=True)
            channel.queue_declare(data.QUEUE, durable=True, arguments={"x-archive": True})
            channel.queue_bind(data.QUEUE, data.EXCHANGE, "flights.#")

    def _kill_broker(self) -> None:
        self.broker.kill()
        at = self._elapsed()
        waiting = self.result.published - self.result.confirmed
        self.display.event(f"SIGKILL to the broker; {waiting:,} flights waited for a receipt when last asked")
        self.story.kills.append((at, "broker killed"))
        self.broker = self._start_broker(self.port)
        self.story.restarts.append((self._elapsed(), "broker back"))

    def _kill_query(self) -> None:
        count = self.query.kill()
        at = self._elapsed()
        self.display.event(f"SIGKILL to the Spark driver and all it started, {count} processes")
        self.story.kills.append((at, "Spark killed"))
        self.query = self._start_query()
        self._spark_back = False

    # --- watching

    def _watch(self) -> None:
        """Until everything is landed and settled, with the two kills on the way."""
        broker_died = spark_died = False
        while not (broker_died and spark_died and self._all_done()):
            before = self._counts()
            self._listen()
            self._measure()
            counts = self._counts()
            if counts != before:
                self._progress_at = time.monotonic()
            self._check()
            self.display.counts(self.result.flights, counts)
            if not broker_died and self.result.confirmed >= BROKER_DIES_AT * self.result.flights:
                broker_died = True
                self._kill_broker()
            elif broker_died and not spark_died and self.result.landed >= SPARK_DIES_AT * self.result.flights:
                spark_died = True
                self._kill_query()
            time.sleep(TICK_S)

    def _all_done(self) -> bool:
        r = self.result
        return not self.publisher.running and r.landed >= r.flights and 0 < r.stored == r.settled

    def _listen(self) -> None:
        """What the publisher and the query said."""
        for line in self.publisher.take():
            said = _message(line)
            self.result.published = said.get("published", self.result.published)
            self.result.confirmed = said.get("confirmed", self.result.confirmed)
            self.result.republished = said.get("republished", self.result.republished)
            if said.get("done"):
                again = (
                    f"{self.result.republished:,} of them sent again" if self.result.republished else "none sent again"
                )
                self.display.event(f"all {self.result.confirmed:,} flights are confirmed, {again}")
        for line in self.query.take():
            said = _message(line)
            if said.get("event") == "failed":
                raise RuntimeError(f"kvitto pipeline land: {said['why']}")
            if said.get("event") == "progress" and not self._spark_back:
                self._spark_back = True
                self.display.event("Spark goes on from its checkpoint")
                self.story.restarts.append((self._elapsed(), "Spark back"))

    def _measure(self) -> None:
        """What the broker and the table hold."""
        self.result.landed = self.rows.update()
        try:
            if self._connection is None or self._connection.closed is not None:
                self._connection = Connection(self.uri, name="flights run")
                self._channel = self._connection.channel()
            queue = self._channel.log_inspect(data.QUEUE)
            self.result.stored, self.result.settled = queue.next, queue.settled
        except (AMQPError, OSError, TimeoutError):
            if self._connection is not None:
                self._connection.close()
            self._connection = None
        r = self.result
        self.story.samples.append(Sample(self._elapsed(), r.published, r.confirmed, r.landed, r.settled))

    def _check(self) -> None:
        for child in (self.broker, self.query):
            if not child.running:
                raise RuntimeError(child.why(f"ended by itself with code {child.process.returncode}"))
        if not self.publisher.running and self.publisher.process.returncode != 0:
            raise RuntimeError(self.publisher.why(f"ended with code {self.publisher.process.returncode}"))
        if time.monotonic() - self._progress_at > SILENCE_S:
            raise RuntimeError(
                f"nothing has moved for {SILENCE_S:g} s: {self._counts()}; see {self.directory / 'logs'}"
            )

    def _counts(self) -> dict[str, int]:
        r = self.result
        counts = {"published": r.published, "confirmed": r.confirmed, "landed": r.landed, "settled": r.settled}
        return counts | ({"republished": r.republished} if r.republished else {})

    def _elapsed(self) -> float:
        return time.monotonic() - self._began if self._began else 0.0

    # --- the end

    def _finish(self) -> int:
        self.story.seconds = self._elapsed()
        self.display.end()
        if self._connection is not None:
            self._connection.close()
        self.display.event(
            "everything has landed; kvitto pipeline ledger: what became of each message in the broker's files"
        )
        ledger = self._take_ledger()
        self.query.stop()
        self.broker.stop()
        result = reconcile(self.result, self.directory)
        report = self.directory / "report.html"
        write_report(report, result, self.story, data.airlines())
        self._print(result, ledger)
        return 1 if result.failures else 0

    def _take_ledger(self) -> dict[str, Any]:
        """End the landing in order, and what the ledger says then."""
        self.query.process.terminate()
        said = _message(self.query.expect(r'^\{"event": "(ledger|failed)".*', LEDGER_S)[0])
        if said["event"] == "failed":
            raise RuntimeError(f"kvitto pipeline ledger: {said['why']}")
        r = self.result
        r.stored, r.settled, r.resent, r.missing = said["stored"], said["settled"], said["doubled"], said["lost"]
        return said

    def _print(self, r: Result, ledger: dict[str, Any]) -> None:
        notes = {
            "published": "",
            "confirmed": "",
            "republished": "sent again: unconfirmed when the broker died",
            "stored": "messages in the queue, by the ledger",
            "removed": "stored twice because sent again; left out of the table by message id",
            "landed": "rows in the table",
            "settled": "messages settled after Spark's commits, by the ledger",
            "lost": "must be 0",
            "duplicates": "in the table; must be 0",
        }
        print()
        for name, note in notes.items():
            print(f"  {name:<12}{getattr(r, name):>10,}  {note}".rstrip())
        print("\n  mean departure delay, minutes")
        for carrier, mean, count in r.delays[:3] + r.delays[-2:]:
            print(f"  {carrier:<12}{mean:>10.1f}  {count:,} flights")
        print("\n  kvitto pipeline ledger: " + ledger["text"].replace("\n", "\n  "))
        print(f"\n  reports: {self.directory / 'report.html'}, {self.directory / 'ledger.html'}")
        print("  the life of one flight:", self._life(ledger["sample"]))
        for failure in r.failures:
            print(f"  FAILED: {failure}")
        print(f"\n  {'FAILED' if r.failures else 'OK: nothing lost, nothing doubled'} ({self.story.seconds:.0f} s)")

    def _life(self, sample: str) -> str:
        """The command that tells it."""
        number = self.result.flights // 2
        flight = sample or data.message_id(number, next(islice(data.rows(), number, None)))
        return f"kvitto pipeline ledger {self.directory / 'data'} --message-id {flight}"


def _message(line: str) -> dict[str, Any]:
    """A line of a child as an object; lines that are none say nothing."""
    if not line.startswith("{"):
        return {}
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
