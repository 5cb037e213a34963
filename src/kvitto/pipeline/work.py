"""`work`: calls a Python function for each message of a queue, in long-running Spark tasks with an AMQP consumer each.

A message is acked after the function has returned and its results are confirmed. If the function raises, the message is
requeued and the queue's arguments decide: x-retry-delay-min/max when it is ready again, x-delivery-limit when it
becomes a dead letter. Driver and tasks communicate through the broker: each task consumes a control queue, whose
deletion means stop, and reports its counts to another queue.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvitto.client import AMQPError, Channel, ChannelClosed, Connection, ConsumerCancelled, Delivery, Properties
from kvitto.pipeline.arguments import add_common, count, seconds
from kvitto.pipeline.session import JobError, run_job, session
from kvitto.wire.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Result = bytes | str | dict[str, Any] | list[Any] | None
POLL_S: Final = 0.2
REPORT_S: Final = 0.5
CONTROL_EXPIRES_MS: Final = 3_600_000
"""A control queue whose driver was killed is deleted after this time without a worker."""
RETRY: Final[Table] = {"x-delivery-limit": 5, "x-retry-delay-min": 1000, "x-retry-delay-max": 60_000}
"""Arguments of a queue that `declare` makes, beside those for dead letters: six tries in about half a minute."""


class WorkError(Exception):
    """A worker cannot go on; the text is for people."""


@dataclass(frozen=True, slots=True)
class Message:
    """The argument of the function. `delivery_count` is the number of earlier deliveries, 0 for the first."""

    body: bytes
    properties: Properties
    headers: Table
    routing_key: str
    exchange: str
    delivery_count: int

    def json(self) -> Any:
        """Return the body as JSON. Raise ValueError if it is not JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Job:
    """All that a worker needs. `idle_s` 0 means until it has to stop; `path` is put before sys.path."""

    uri: str
    queue: str
    function: str
    results: str | None
    prefetch: int
    idle_s: float
    reconnect_s: float
    path: str
    control: str
    reports: str


@dataclass
class Worked:
    """Counts: messages done, attempts that failed, results published."""

    done: int = 0
    failed: int = 0
    published: int = 0
    seconds: float = 0.0


# --- the driver


def work(
    spark: SparkSession,
    uri: str,
    queue: str,
    function: str,
    *,
    results: str | None = None,
    workers: int = 0,
    prefetch: int = 1,
    declare: bool = False,
    stop_after_idle_s: float = 0.0,
    reconnect_s: float = 120.0,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] = lambda text: None,
) -> Worked:
    """Apply `module:function` to the queue's messages until `stop()`, or until no worker got one for
    `stop_after_idle_s`.

    `workers` 0 means as many as Spark has task slots; `results` is EXCHANGE[:KEY]. Raises JobError, or Spark's error,
    if it cannot go on.
    """
    slots, master = spark.sparkContext.defaultParallelism, str(spark.sparkContext.master)
    if workers > slots and master.startswith("local"):
        raise JobError(f"{workers} workers need {workers} task slots, and Spark's master {master} has {slots}")
    load(function, str(Path.cwd()))
    name = f"kvitto.work.{queue}.{uuid.uuid4().hex[:8]}"
    place = (name, f"{name}.reports")
    job = Job(uri, queue, function, results, prefetch, stop_after_idle_s, reconnect_s, str(Path.cwd()), *place)
    began = time.monotonic()
    result = _Crew(spark, job, workers or slots, declare).run(stop, progress)
    result.seconds = time.monotonic() - began
    return result


class _Crew:
    """The workers, from the driver's side."""

    def __init__(self, spark: SparkSession, job: Job, workers: int, declare: bool) -> None:
        self.spark = spark
        self.job = job
        self.workers = workers
        self.declare = declare
        self.counts: dict[str, list[int]] = {}
        self.error: Exception | None = None
        self._told = False
        self._connection: Connection | None = None
        self._channel: Channel | None = None

    def run(self, stop: Callable[[], bool], progress: Callable[[str], None]) -> Worked:
        try:
            self._listen()
        except ChannelClosed as error:
            raise JobError(_refused(error, self.job.queue)) from None
        except (AMQPError, TimeoutError) as error:
            raise JobError(str(error)) from None
        from pyspark import InheritableThread

        thread = InheritableThread(target=self._work, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                self._take_reports()
                now = self._sum()
                first = "stopping" if self._told else f"{len(self.counts)} of {self.workers} workers"
                progress(f"{first}, {now.done:,} done, {now.failed:,} failed attempts")
                if stop() and not self._told:
                    self._tell_to_stop()
        finally:
            self._tell_to_stop()
            self._close()
        if self.error is not None:
            raise self.error
        return self._sum()

    def _work(self) -> None:
        """Run Spark's job, which lasts as long as the work."""
        job = self.job

        def task(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            for _ in rows:  # one row: the worker's number
                worker = Worker(job)
                worker.run()
                done = worker.counts
                yield pa.RecordBatch.from_pydict({"worker": [worker.name], **{k: [v] for k, v in done.items()}})

        try:
            numbers = self.spark.range(0, self.workers, 1, self.workers)
            schema = "worker string, done long, failed long, published long"
            for row in numbers.mapInArrow(task, schema).collect():
                self.counts[row.worker] = [row.done, row.failed, row.published]
        except Exception as error:  # noqa: BLE001 - top of a thread: run() raises it
            self.error = error

    def _sum(self) -> Worked:
        rows = list(self.counts.values())
        return Worked(*(sum(row[k] for row in rows) for k in range(3)))

    def _listen(self) -> None:
        """Declare the queues of this run, and receive the workers' reports."""
        job = self.job
        connection = self._connection = Connection(job.uri, name="kvitto pipeline work")
        channel = self._channel = connection.channel()
        if self.declare:
            dead = f"{job.queue}.dead"
            channel.queue_declare(dead, durable=True)
            to: Table = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
            channel.queue_declare(job.queue, durable=True, arguments=RETRY | to)
        channel.queue_declare(job.queue, passive=True)
        if not self._told:
            channel.queue_declare(job.control, durable=True, arguments={"x-expires": CONTROL_EXPIRES_MS})
        channel.queue_declare(job.reports, exclusive=True)
        channel.consume(job.reports, no_ack=True)

    def _take_reports(self) -> None:
        """Handle the reports of POLL_S. If the broker is unreachable, the next call tries again."""
        try:
            if self._channel is None:
                self._listen()
            assert self._channel is not None
            for report in self._channel.receive(POLL_S):
                name, *counts = json.loads(report.body)
                self.counts[name] = counts
        except (AMQPError, TimeoutError, OSError):
            self._close()
            time.sleep(POLL_S)

    def _tell_to_stop(self) -> None:
        try:
            if self._channel is None:
                self._listen()
            assert self._channel is not None
            self._channel.queue_delete(self.job.control)
        except (AMQPError, TimeoutError, OSError):
            self._close()
        else:
            self._told = True

    def _close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.close()


def _refused(error: ChannelClosed, queue: str) -> str:
    hint = ""
    if error.code == 404:
        hint = f"; declare queue {queue!r} first, or say --declare"
    elif error.code == 406:
        hint = f"; queue {queue!r} exists with other arguments: leave --declare out, or delete it first"
    return f"{error}{hint}"


# --- a worker


def load(function: str, path: str) -> Callable[[Message], Result]:
    """Return the function that `module:function` names, with `path` on sys.path. Raise JobError if there is none."""
    module, _, name = function.partition(":")
    if not module or not name:
        raise JobError(f"the function is given as module:function, not {function!r}")
    if path not in sys.path:
        sys.path.insert(0, path)
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # noqa: BLE001 - importing runs code of others
        raise JobError(f"{function} cannot be loaded: {type(error).__name__}: {error}; looked in {path} too") from None
    if not callable(found):
        raise JobError(f"{function} is no function")
    return found  # type: ignore[no-any-return]


class Worker:
    """One consumer. `run` returns when it has to stop or has been idle for long enough."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.name = uuid.uuid4().hex[:12]
        self.counts = {"done": 0, "failed": 0, "published": 0}
        self.function = load(job.function, job.path)
        self._idle_since = time.monotonic()
        self._reported_at = 0.0

    def run(self) -> None:
        """Work through lost connections. Raise WorkError if the broker stays unreachable or refuses."""
        from kvitto.spark.link import LOST, Patience

        patience = Patience(self.job.reconnect_s, WorkError, "Start the broker, and the job again")
        while True:
            try:
                with Connection(self.job.uri, name="kvitto pipeline worker") as connection:
                    patience.progress()
                    self._consume(connection)
                return
            except ChannelClosed as error:
                raise WorkError(_refused(error, self.job.queue)) from None
            except ConsumerCancelled:
                raise WorkError(f"queue {self.job.queue!r} was deleted") from None
            except (AMQPError, *LOST) as error:
                patience.wait(error)

    def _consume(self, connection: Connection) -> None:
        channel = connection.channel()
        self._control = connection.channel()
        self._out = connection.channel()
        self._out.confirm_select()
        try:
            self._control.consume(self.job.control)
        except ChannelClosed:  # the control queue has been deleted meanwhile
            return
        channel.qos(self.job.prefetch)
        channel.consume(self.job.queue)
        while self._control.consumers:
            for delivery in channel.receive(POLL_S):
                self._take(channel, delivery)
                self._idle_since = time.monotonic()
                if not self._control.consumers:
                    break
            self._report()
            if self.job.idle_s and time.monotonic() - self._idle_since >= self.job.idle_s:
                break
        self._report(last=True)

    def _take(self, channel: Channel, delivery: Delivery) -> None:
        headers = delivery.properties.headers or {}
        earlier = headers.get("x-delivery-count", 0)
        message = Message(
            delivery.body,
            delivery.properties,
            headers,
            delivery.routing_key,
            delivery.exchange,
            earlier if isinstance(earlier, int) else 0,
        )
        try:
            results = encode(self.function(message), message)
        except Exception as error:  # noqa: BLE001 - the function of others: what it raises is its no
            self.counts["failed"] += 1
            _say(self.job.queue, message, error)
            channel.nack(delivery.delivery_tag, requeue=True)
            _hand_over(channel.connection)
            return
        if results and self.job.results is not None:
            self._publish(results, message)
        channel.ack(delivery.delivery_tag)
        _hand_over(channel.connection)
        self.counts["done"] += 1

    def _publish(self, results: list[tuple[bytes, Properties]], message: Message) -> None:
        """Publish the results. Return when all of them are confirmed."""
        exchange, _, key = str(self.job.results).partition(":")
        for body, properties in results:
            self._out.publish(body, exchange, key or message.routing_key, properties, mandatory=True)
        clean = self._out.wait_for_confirms()
        if self._out.returned:
            key = self._out.returned[0].routing_key
            raise WorkError(f"results: no queue takes routing key {key!r} of exchange {exchange!r}; bind one")
        if not clean:
            raise WorkError(f"results: the broker refused one for exchange {exchange!r} (nack); is a queue full?")
        self.counts["published"] += len(results)

    def _report(self, last: bool = False) -> None:
        if last or time.monotonic() - self._reported_at >= REPORT_S:
            self._reported_at = time.monotonic()
            body = json.dumps([self.name, *self.counts.values()]).encode()
            self._out.publish(body, "", self.job.reports)
            if last:
                with contextlib.suppress(TimeoutError):
                    self._out.wait_for_confirms(POLL_S)


def _hand_over(connection: Connection) -> None:
    """Send the output and receive the input. Raise ConnectionLost if the connection is lost."""
    connection.process()
    if connection.closed is not None:
        raise connection.closed


def encode(result: Result, message: Message) -> list[tuple[bytes, Properties]]:
    """Return the function's result as messages. Raise TypeError for another type. The ids are made of the message's own."""
    results = result if isinstance(result, list) else [] if result is None else [result]
    given = message.properties
    made = []
    for number, each in enumerate(results):
        if isinstance(each, bytes):
            body, kind = each, "application/octet-stream"
        elif isinstance(each, str):
            body, kind = each.encode(), "text/plain"
        elif isinstance(each, dict):
            body, kind = json.dumps(each).encode(), "application/json"
        else:
            raise TypeError(f"a result is bytes, str or dict, or a list of those, not {type(each).__name__}")
        own = f"{given.message_id}-{number}" if given.message_id is not None else None
        properties = Properties(
            content_type=kind, message_id=own, correlation_id=given.correlation_id or given.message_id, delivery_mode=2
        )
        made.append((body, properties))
    return made


def _say(queue: str, message: Message, error: Exception) -> None:
    """Print one line on the executor's stderr: the message, and the line of the function that failed."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    which = message.properties.message_id or repr(message.body[:40])
    text = f"queue {queue!r}, message {which}, delivery {message.delivery_count + 1}: {type(error).__name__}: {error}{where}"
    print(text, file=sys.stderr, flush=True)


# --- the command


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `work`."""
    parser = subparsers.add_parser(
        "work",
        help="call a Python function for each message",
        description="Apply a function to each message of a queue: ack when it returns, back to the queue when it raises."
        " SIGINT or SIGTERM: the messages in hand are finished. Exit codes: 0 it ended in order, 2 it could not be done.",
    )
    add_common(parser)
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="gets a kvitto.pipeline.work.Message")
    parser.add_argument("--queue", required=True)
    parser.add_argument(
        "--results", metavar="EXCHANGE[:KEY]", help="where what the function returns goes, before the ack"
    )
    parser.add_argument("--workers", type=count, default=0, metavar="N", help="consumers (default: one per core)")
    parser.add_argument("--prefetch", type=count, default=1, metavar="N", help="prefetch of a worker")
    parser.add_argument("--declare", action="store_true", help="make the queue, with delayed retry, and QUEUE.dead")
    parser.add_argument(
        "--stop-after-idle",
        type=seconds,
        default=0.0,
        metavar="TIME",
        help="end when no message has come for this time",
    )
    parser.set_defaults(run=lambda args: run_job("work", lambda: _run(args)))


def _run(args: argparse.Namespace) -> int:
    from kvitto.pipeline.stopping import Progress, Stop

    local = args.workers and args.master == "local[*]"
    with (
        session("work", f"local[{args.workers}]" if local else args.master) as spark,
        Stop() as stop,
        Progress() as progress,
    ):
        result = work(
            spark,
            args.uri,
            args.queue,
            args.function,
            results=args.results,
            workers=args.workers,
            prefetch=args.prefetch,
            declare=args.declare,
            stop_after_idle_s=args.stop_after_idle,
            stop=stop,
            progress=progress,
        )
    rate = result.done / result.seconds if result.seconds else 0.0
    print(f"  done        {result.done:,} messages")
    print(f"  failed      {result.failed:,} attempts")
    print(f"  published   {result.published:,} results")
    print(f"  time        {result.seconds:.1f} s, {rate:,.0f} messages/s")
    return 0
