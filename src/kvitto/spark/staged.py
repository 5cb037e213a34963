"""Read mode `staged`, for any queue of any broker. `source.py` calls the driver; executors read the files.

Messages are written to the staging directory, durably, and then acked. If the driver is killed in between, the broker
sends them again, flagged redelivered, and their ids identify them: nothing is lost, and with unique ids nothing comes
twice. A batch is a range of files, which is in Spark's log before it is read. Files that no batch names yet are the
next batch. Files are deleted after Spark has committed their batch, by `latestOffset(start)`, as in read mode `range`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql.types import StructType

from kvitto.client import Channel, ChannelClosed, Connection, ConsumerCancelled
from kvitto.spark.columns import arrow_schema, to_arrow
from kvitto.spark.driver import FIRST_CONTACT_S
from kvitto.spark.errors import DataLossError, SourceError
from kvitto.spark.link import Link, ack_timed_out, explain
from kvitto.spark.offsets import Offsets, Position, start_of
from kvitto.spark.options import EARLIEST, NEEDS_STAGING, STAGED, Options, from_the_start
from kvitto.spark.planning import parallelism
from kvitto.spark.reading import FilesPartition
from kvitto.spark.staging import TAG, Staging, raw, read_file

log = logging.getLogger("kvitto.spark")
T = TypeVar("T")

PREFETCH: Final = 5000
"""The maximum number of unacked messages of a queue, and of messages in a file."""
FILE_BYTES: Final = 32 << 20
"""A file of this size is closed."""
BATCH_BYTES: Final = 512 << 20
"""The maximum size of a batch if no option limits it; the next batch takes the rest."""
BATCH_S: Final = 1.0
"""The maximum time for staging one batch of a queue to which messages are always published."""
IDLE_S: Final = 0.1
"""The time to wait for an empty queue; then the batch is empty."""
SILENT_S: Final = 30.0
"""With Trigger.AvailableNow: the time to wait for a queue that has messages but sends none."""
GATHER_S: Final = 0.02
"""The time in which messages are collected for one file."""


class Intake:
    """The input from one queue: a consumer, and received messages that are not staged yet."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.channel.qos(PREFETCH)
        self.channel.consume(queue)
        self.held: pa.RecordBatch | None = None

    @property
    def waiting(self) -> int:
        """The number of messages that are received and not staged."""
        return self.channel.sink.batch.count + (self.held.num_rows if self.held is not None else 0)

    def take(self, most: int, wait_s: float) -> list[pa.RecordBatch]:
        """Return at most `most` messages, of about FILE_BYTES; none if none arrives in time."""
        taken: list[pa.RecordBatch] = []
        most = min(most, PREFETCH)
        size = 0
        while most > 0 and size < FILE_BYTES:
            rows, self.held = self.held, None
            if rows is None:
                batch = self.channel.receive(GATHER_S, least=most) if taken else self.channel.receive(wait_s)
                if not batch.count:
                    break
                rows = raw(batch)
            if rows.num_rows > most:
                rows, self.held = rows.slice(0, most), rows.slice(most)
            taken.append(rows)
            most -= rows.num_rows
            size += rows.nbytes
        return taken


class StagedDriver:
    """One query's consumer and its staging directory. `latest` are its offsets, with the numbers of waiting messages."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.latest: Offsets | None = None
        self._target: dict[str, int] | None = None
        """With Trigger.AvailableNow: the number of messages still to be read from each queue."""
        self._silent_since: dict[str, float] = {}
        self._staging: Staging | None = None
        self._intakes: dict[str, Intake] = {}
        self._link = Link(options.uri, "kvitto spark driver", by_range=False)

    # --- called by source.py

    def include(self, queues: tuple[str, ...]) -> None:
        """Read these queues from now on."""
        self.options = from_the_start(self.options, queues)
        self._intakes = {name: intake for name, intake in self._intakes.items() if name in queues}

    def begin(self) -> Offsets:
        """Return the start of a query without a checkpoint: the messages that are staged already, else the queue."""
        if self.options.starting != EARLIEST or self.options.starting_timestamp is not None:
            raise SourceError(
                "readMode staged takes every message of a queue: leave out startingOffsets and startingTimestamp"
            )
        self._open()
        self._link.call(self._look, FIRST_CONTACT_S)
        return self._offsets({name: self._start(name) for name in self.options.queues})

    def advance(self, start: Offsets, most: int, most_bytes: int = 0) -> Offsets:
        """Delete the files that Spark has committed, and stage the next batch: `most` messages of about `most_bytes`, 0
        means no limit."""
        staging = self._open()
        # staged messages of a queue that is deleted, or not named any more, are read all the same
        left = [name for name in start.queues if name not in self.options.queues and staging.shelf(name).files]
        begins = {name: self._continue(name, start.queues.get(name)) for name in (*self.options.queues, *left)}
        self._settle(begins)
        for name, at in begins.items():
            shelf = staging.shelf(name)
            shelf.next = max(shelf.next, at.next)
        if not any(staging.shelf(name).files for name in begins):
            self._stage(most or 1 << 62, most_bytes or BATCH_BYTES)
        ends = {name: Position(at.incarnation, at.begin, staging.shelf(name).next) for name, at in begins.items()}
        ready = self._link.call(self._look, self.options.reconnect_timeout_s)
        here = {name: intake.waiting for name, intake in self._intakes.items()}
        self.latest = Offsets("", ends, STAGED, {name: count + here.get(name, 0) for name, count in ready.items()})
        return self._offsets(ends)

    def fix_target(self) -> None:
        """From now on read no more than the queues have at this moment (Trigger.AvailableNow)."""
        self._target = self._link.call(self._look, self.options.reconnect_timeout_s)

    def plan(self, start: Offsets, end: Offsets) -> list[FilesPartition]:
        """Return the tasks of a batch, new or repeated after a crash."""
        staging = self._open()
        tasks: list[FilesPartition] = []
        for name, to in end.queues.items():
            shelf = staging.shelf(name)
            numbers = range(start_of(start.queues.get(name), to), to.next)
            files = [(number, str(shelf.file(number))) for number in numbers if number in shelf.files]
            if len(files) < len(numbers) or (numbers and to.incarnation != staging.identity):
                self._lost(
                    f"option stagingLocation: {shelf.directory} lacks the files {numbers[0]} to {numbers[-1]}, or they are"
                    " another query's; a batch of this checkpoint needs them: is it the directory that this query had before?"
                )
            pieces, _ = parallelism(self.options.min_partitions)
            size = max(1, -(-len(files) // pieces))
            tasks += [FilesPartition(name, files[k : k + size]) for k in range(0, len(files), size)]
        return tasks

    def plan_once(self) -> list[FilesPartition]:
        """Refuse: a batch read would have to consume, and could not know whether its result was stored."""
        raise SourceError(
            "a batch read (spark.read) cannot be of read mode staged: use spark.readStream with"
            " .trigger(availableNow=True), which reads what is there and ends"
        )

    def settle(self, end: Offsets) -> None:
        """Settle everything before `end`, because Spark has committed it."""
        self._open()
        self._settle(end.queues)

    def close(self) -> None:
        """Disconnect, so that the broker requeues messages that are not staged, and close the directory."""
        self._intakes = {}
        self._link.close()
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    # --- files

    def _open(self) -> Staging:
        if self._staging is None:
            if not self.options.staging:
                raise SourceError(f"readMode staged {NEEDS_STAGING}")
            self._staging = Staging(self.options.staging)
        return self._staging

    def _continue(self, name: str, start: Position | None) -> Position:
        """Return the first file of the next batch."""
        staging = self._open()
        if start is None:  # the queue was added later
            return self._start(name)
        if start.incarnation != staging.identity:
            raise DataLossError(
                f"option stagingLocation: {staging.path} is another directory than the one of this checkpoint (identity"
                f" {staging.identity} now, {start.incarnation} then): what is staged there would be lost, and what is here"
                " belongs to another query."
                " Name that one"
            )
        return start

    def _start(self, name: str) -> Position:
        """Return the first file of a queue of which the query has read nothing."""
        staging = self._open()
        shelf = staging.shelf(name)
        begin = shelf.files[0] if shelf.files else shelf.next
        return Position(staging.identity, begin, begin)

    def _settle(self, upto: dict[str, Position]) -> None:
        staging = self._open()
        for name, at in upto.items():
            if at.incarnation == staging.identity:
                staging.shelf(name).settle(at.next)

    # --- the broker

    def _stage(self, most: int, most_bytes: int) -> None:
        """Write new files with the messages that arrive, until no more arrive or it is enough."""
        left = [most, most_bytes]
        deadline = time.monotonic() + BATCH_S

        def fill(channel: Channel) -> None:
            while left[0] > 0 and left[1] > 0:
                if sum(self._stage_one(channel, name, left) for name in self.options.queues) == 0:
                    break
                if self._target is None and time.monotonic() >= deadline:
                    break

        self._link.call(fill, self.options.reconnect_timeout_s)

    def _stage_one(self, channel: Channel, name: str, left: list[int]) -> int:
        """Write one more file of a queue. Return the number of its messages."""
        wait_s, most = IDLE_S, left[0]
        if self._target is not None:
            wait_s, most = 10 * IDLE_S, min(most, self._target[name])
        if most <= 0 or left[1] <= 0:
            return 0
        intake = self._ask(name, lambda: self._intake(channel.connection, name))
        batches = self._ask(name, lambda: intake.take(most, wait_s))
        count: int = sum(batch.num_rows for batch in batches)
        if not count:
            if self._target is not None:
                return self._wait_on(channel, name)
            return 0
        self._silent_since.pop(name, None)
        shelf = self._open().shelf(name)
        left[0] -= count
        left[1] -= sum(batch.nbytes for batch in batches)
        if self._target is not None:
            self._target[name] -= count
        fresh = [rows for batch in batches if (rows := shelf.fresh(batch)).num_rows]
        if fresh:
            shelf.add(fresh)

        def ack() -> None:
            intake.channel.ack(batches[-1].column(TAG)[-1].as_py(), multiple=True)
            intake.connection.flush()

        self._ask(name, ack)
        return count

    def _wait_on(self, channel: Channel, name: str) -> int:
        """Return 1 if more messages for AvailableNow may arrive, else 0: there may be none, because other consumers
        take some too."""
        assert self._target is not None
        since = self._silent_since.setdefault(name, time.monotonic())
        if self._ask(name, lambda: _count(channel, name)) and time.monotonic() - since < SILENT_S:
            return 1
        self._target[name] = 0
        return 0

    def _intake(self, connection: Connection, name: str) -> Intake:
        intake = self._intakes.get(name)
        if intake is None or intake.connection is not connection or intake.channel.closed is not None:
            intake = self._intakes[name] = Intake(connection, name)
        return intake

    def _look(self, channel: Channel) -> dict[str, int]:
        """Return the number of ready messages in each queue."""
        return {name: self._ask(name, lambda name=name: _count(channel, name)) for name in self.options.queues}  # type: ignore[misc]

    def _ask(self, queue: str, action: Callable[[], T]) -> T:
        """Send a request about one queue; a refusal of the server becomes an error that names the queue."""
        try:
            return action()
        except ConsumerCancelled:
            self._intakes.pop(queue, None)
            self._lost(
                f"queue {queue!r} was deleted while this query read it: what was in it is gone. Declare it again (durable) and"
                " start the query again; what it has staged is kept"
            )
            raise TimeoutError(f"queue {queue!r} was deleted") from None  # look again, it may be there anew
        except ChannelClosed as error:
            self._intakes.pop(queue, None)
            if ack_timed_out(error):
                raise TimeoutError(str(error)) from None  # all unacked messages come again
            raise explain(error, queue) from None

    def _lost(self, text: str) -> None:
        if self.options.fail_on_data_loss:
            raise DataLossError(text)
        log.warning("%s; going on because failOnDataLoss = false", text)

    def _offsets(self, queues: dict[str, Position]) -> Offsets:
        return Offsets("", queues, STAGED)


def _count(channel: Channel, queue: str) -> int:
    return channel.queue_declare(queue, passive=True).message_count


def read_files(options: Options, schema: StructType, part: FilesPartition) -> Iterator[pa.RecordBatch]:
    """Yield the messages of staged files as Arrow batches of that schema, in order."""
    columns = arrow_schema(schema)
    for number, path in part.files:
        try:
            for messages in read_file(number, path):
                yield from to_arrow(messages, part.queue, columns)
        except (OSError, pa.ArrowInvalid) as error:
            raise SourceError(
                f"option stagingLocation: {path} cannot be read here ({error}); every executor has to see the directory"
                " under that path"
            ) from None
