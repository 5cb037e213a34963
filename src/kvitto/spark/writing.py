"""The executor's part of the sink: publishes the rows of a task, each confirmed, through lost connections and nacks.

On a broker with class `stage` (Kvitto) the rows go into stages of some MiB. If a connection is lost, only the current
stage is filled again, under another name, and the messages of the old one are never published. The driver commits the
stages of accepted tasks. On other brokers rows are published directly, and unconfirmed rows of a lost connection are
published again with the same message_id. Each worker process keeps one connection from task to task.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from kvitto.base import limits
from kvitto.client import AMQPError, Channel, ChannelClosed, ConnectFailed, Connection, Returned
from kvitto.spark.errors import SinkError
from kvitto.spark.link import LOST, Patience
from kvitto.spark.rows import Layout, to_messages, with_ids
from kvitto.spark.sink_options import SinkOptions

STAGE_BYTES: Final = 32 << 20
"""The size of a stage, which a task keeps in memory to publish it again."""
WINDOW_ROWS: Final = 20_000
"""The number of unconfirmed rows: enough to keep a disk busy, and few enough to publish again."""
SLICE_ROWS: Final = 4_000
SLICE_BYTES: Final = 512 << 10
"""The bytes that are passed to the socket at once."""
NAME: Final = "kvitto spark sink"
ADVICE: Final = "Start the broker, and the job or query again"
log = logging.getLogger("kvitto.spark")
T = TypeVar("T")

_connections: dict[tuple[int, str], Connection] = {}
"""The connections by process and URI. Spark's workers are forked, and a child must not use its parent's socket."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The result of a task. `stages`: the names that the driver has to commit, none if everything is published already."""

    writer: str
    batch: int
    stages: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Part:
    """The rows that a task writes. `attempt` differs between two attempts at the same partition."""

    writer: str
    batch: int
    partition: int
    attempt: str
    repeatable: bool = False
    """Whether a batch older than the writer's last is a repetition too, because the number is not Spark's batch number."""


class _Repeated(Exception):
    """The broker has this batch already."""


class _Refused(Exception):
    """Some rows were nacked, all others are confirmed."""


@dataclass(slots=True)
class _Sent:
    """A batch of rows on its way: the first row's number on the channel, and how many rows were sent."""

    batch: pa.RecordBatch
    first: int = 0
    published: int = 0


def write_rows(options: SinkOptions, layout: Layout, part: Part, batches: Iterable[pa.RecordBatch]) -> Written:
    """Publish all rows. Return when each is confirmed. SinkError says which could not be delivered, and why."""
    task = _Task(options, layout, part)
    try:
        for batch in batches:
            if batch.num_rows:
                task.add(batch)
        task.finish()
    except _Repeated:
        log.warning("batch %d of writer %s was written before: nothing is published", part.batch, part.writer)
        task.leave()
        return Written(part.writer, part.batch, (), 0)
    except BaseException:
        disconnect(options.uri)  # messages on their way on that channel are not for the next task
        raise
    return Written(part.writer, part.batch, tuple(task.stages), task.rows)


class _Task:
    """One attempt at one partition. Rows move from `_todo` over `_sent` to confirmed, and back after a failure."""

    def __init__(self, options: SinkOptions, layout: Layout, part: Part) -> None:
        self.options = options
        self.layout = layout
        self.part = part
        self.rows = 0
        self.stages: list[str] = []
        """The stages that are full and confirmed."""
        self._staged: bool | None = None
        self._opened = 0
        self._channel: Channel | None = None
        self._todo: deque[pa.RecordBatch] = deque()
        self._sent: deque[_Sent] = deque()
        self._held = 0
        """The bytes of the batches in `_sent`."""
        self._refused: list[int] = []
        self._returned: Returned | None = None
        self._confirmed = 0
        self._patience = Patience(options.reconnect_timeout_s, SinkError, ADVICE)

    def add(self, batch: pa.RecordBatch) -> None:
        """Publish these rows, as far as memory and window allow without waiting for the last receipts."""
        if self._staged is None:
            self._persist(lambda: self._open() is not None)
        if not self._staged:
            batch = with_ids(batch, f"{self.part.writer}-{self.part.batch}-{self.part.partition}-", self.rows)
        self.rows += batch.num_rows
        self._todo.append(batch)
        self._persist(self._publish_all)

    def finish(self) -> None:
        """Wait for the last receipts."""
        self._persist(self._confirm_all)
        self.leave()

    def leave(self) -> None:
        """Close the channel; its connection stays for the next task."""
        channel, self._channel = self._channel, None
        if channel is not None:
            try:
                channel.close()
            except (AMQPError, *LOST):
                disconnect(self.options.uri)

    # --- failures

    def _persist(self, action: Callable[[], object]) -> None:
        """Run the action, and repeat what a failure undid, until it succeeds or the time is over."""
        while True:
            try:
                action()
            except ChannelClosed as error:
                raise explain(error) from None
            except _Refused as error:
                self._again(self._refused)
                self._patience.wait(error)
            except (ConnectFailed, *LOST) as error:
                unconfirmed = self._channel.unconfirmed() if self._channel is not None else []
                self._again([*unconfirmed, *self._refused])
                disconnect(self.options.uri)
                self._patience.wait(error)
            else:
                return

    def _again(self, missing: Sequence[int]) -> None:
        """Put rows that may not have arrived back into `_todo`, in order: the rows with these numbers, or the whole stage."""
        tags = np.sort(np.array(missing, dtype=np.int64))
        back: list[pa.RecordBatch] = []
        for sent in self._sent:
            if self._staged:
                back.append(sent.batch)
                continue
            start, end = np.searchsorted(tags, (sent.first, sent.first + sent.published))
            lost = np.append(tags[start:end] - sent.first, np.arange(sent.published, sent.batch.num_rows))
            if len(lost):
                back.append(sent.batch.take(pa.array(lost)))
        self._todo.extendleft(reversed(back))
        self._sent.clear()
        self._held = 0
        self.leave()

    def _look(self) -> None:
        """Handle the broker's returns and nacks."""
        channel = self._channel
        assert channel is not None
        if channel.confirmed > self._confirmed:
            self._confirmed = channel.confirmed
            self._patience.progress()
        if self._refused:
            self._wait(0)
        if self._returned is not None:
            back = self._returned
            where = f"exchange {back.exchange!r}" if back.exchange else "the default exchange"
            raise SinkError(
                f"no queue took a message with routing key {back.routing_key!r} on {where} ({back.reply_text}): declare"
                " or bind the queue first, correct the key, or set mandatory = false to drop such rows"
            )
        if self._refused:
            raise _Refused(
                f"the broker refused {len(self._refused)} messages (nack): a queue with x-overflow = reject-publish is"
                " full, or the broker could not store them"
            )

    def _wait(self, most: int) -> None:
        """Wait until at most `most` rows are unconfirmed."""
        channel = self._channel
        assert channel is not None
        self._in_time(lambda: channel.wait_until_outstanding(most, self.options.reconnect_timeout_s))

    def _in_time(self, wait: Callable[[], None]) -> None:
        channel = self._channel
        assert channel is not None
        try:
            wait()
        except TimeoutError as error:
            why = channel.connection.blocked
            reason = f"the broker takes no messages at the moment ({why})" if why else str(error)
            raise SinkError(f"{reason}; waited as long as option reconnectTimeout says") from None

    # --- publishing

    def _open(self) -> Channel:
        """Return the channel, with a stage of its own if the broker has them."""
        if self._channel is not None:
            return self._channel
        connection = connect(self.options.uri)
        channel = connection.channel()
        channel.confirm_select(on_return=self._take_return)
        self._refused = channel.gather_refused()
        self._confirmed = 0
        staged = has_stages(connection)
        if staged:
            self._opened += 1
            last = channel.stage_open(self.part.writer, self.part.batch, self._stage)
            if last >= self.part.batch:
                self._channel = channel
                if not self.part.repeatable:
                    raise_if_newer(self.part.writer, self.part.batch, last)
                raise _Repeated
        self._staged = staged
        self._channel = channel
        return channel

    @property
    def _stage(self) -> str:
        """The name of the current stage. It is short, because a commit names all stages of a batch in one frame."""
        return f"{self.part.partition}-{self.part.attempt}-{self._opened}"

    def _take_return(self, returned: Returned) -> None:
        self._returned = self._returned or returned

    def _publish_all(self) -> None:
        while self._todo:
            self._publish(self._open(), self._todo[0])
            self._make_room()

    def _publish(self, channel: Channel, batch: pa.RecordBatch) -> None:
        """Publish all rows of `_todo[0]`, which moves to `_sent`."""
        rows = to_messages(batch, self.layout)
        columns = (rows.bodies, rows.exchanges, rows.routing_keys, rows.properties)
        sent = _Sent(self._todo.popleft())
        self._sent.append(sent)
        self._held += batch.nbytes
        mandatory = self.options.mandatory
        while sent.published < batch.num_rows:
            if channel.outstanding + SLICE_ROWS > WINDOW_ROWS:
                self._wait(WINDOW_ROWS - SLICE_ROWS)
            at = sent.published
            end = int(np.searchsorted(rows.borders, rows.borders[at] + SLICE_BYTES))
            end = min(max(end, at + 1), at + SLICE_ROWS, batch.num_rows)
            try:
                tag = channel.publish_rows(*columns, at, end, mandatory=mandatory)
            except ValueError as error:
                raise SinkError(f"a row cannot be a message: {error}") from None
            sent.first = sent.first or tag
            sent.published = end
            self._in_time(lambda: channel.connection.flush(self.options.reconnect_timeout_s))
            self._look()

    def _make_room(self) -> None:
        """Drop rows that need not be published again. A full stage is closed."""
        channel = self._channel
        assert channel is not None
        if self._staged:
            if self._held >= STAGE_BYTES:
                self._end_stage()
            return
        if self._held >= STAGE_BYTES:
            self._wait(0)
            self._look()
        settled = channel.settled_below
        while self._sent and self._sent[0].first + self._sent[0].batch.num_rows <= settled:
            self._held -= self._sent.popleft().batch.nbytes

    def _end_stage(self) -> None:
        self._wait(0)
        self._look()
        self.stages.append(self._stage)
        self._sent.clear()
        self._held = 0
        self.leave()

    def _confirm_all(self) -> None:
        self._publish_all()
        if not self._sent:
            return
        if self._staged:
            self._end_stage()
        else:
            self._wait(0)
            self._look()
            self._sent.clear()


# --- the driver


def commit(options: SinkOptions, written: Sequence[Written], *, alone: bool = True) -> None:
    """Publish the stages of the tasks, once. There is nothing to do if they published directly.

    `alone`: no other job writes this batch, so SinkError if it was committed meanwhile.
    """
    names = [name for one in written for name in one.stages]
    if not names:
        return
    writer, batch = written[0].writer, written[0].batch
    asked = False

    def commit_once(channel: Channel) -> None:
        if len("\n".join(names)) + limits.KIB > channel.connection.frame_max:
            raise SinkError(
                f"{len(names)} stages do not fit into one commit; write fewer partitions (coalesce) at a time"
            )
        nonlocal asked
        again, asked = asked, True
        fresh = channel.stage_commit(writer, batch, names)
        if not fresh and alone and not again:  # the answer to an earlier attempt may have been lost
            raise SinkError(
                f"batch {batch} of writer {writer!r} was committed by somebody else while this job wrote it, these rows are not"
                " published: do two jobs use one writerId or one checkpoint? Run it again if it is the same work"
            )

    call(options, commit_once)


def forget(options: SinkOptions, writer: str) -> None:
    """Delete the writer's name, if possible: the broker drops old stages itself."""
    try:
        with Connection(options.uri, name=NAME) as connection:
            if has_stages(connection):
                connection.channel().stage_forget(writer)
    except (AMQPError, *LOST):
        return


def check_broker(options: SinkOptions, timeout_s: float) -> None:
    """Raise SinkError unless the broker can be reached, before any task is started."""
    call(options, lambda channel: None, timeout_s)


def call(options: SinkOptions, action: Callable[[Channel], T], timeout_s: float | None = None) -> T:
    """Return the result of an action that may be repeated, on a connection of its own."""
    patience = Patience(options.reconnect_timeout_s if timeout_s is None else timeout_s, SinkError, ADVICE)
    while True:
        try:
            # not kept, because Spark makes a process for each commit
            with Connection(options.uri, name=NAME) as connection:
                return action(connection.channel())
        except ChannelClosed as error:
            raise explain(error) from None
        except (ConnectFailed, *LOST) as error:
            patience.wait(error)


def connect(uri: str) -> Connection:
    """Return this process's connection to that broker."""
    key = (os.getpid(), uri)
    found = _connections.get(key)
    if found is None or found.closed is not None:
        found = _connections[key] = Connection(uri, name=NAME, buffer_bytes=1 << 20)
    return found


def disconnect(uri: str) -> None:
    """Close it; the next `connect` opens another."""
    found = _connections.pop((os.getpid(), uri), None)
    if found is not None:
        found.close()


def has_stages(connection: Connection) -> bool:
    capabilities = connection.server_properties.get("capabilities")
    return isinstance(capabilities, dict) and bool(capabilities.get("kvitto_stage"))


def raise_if_newer(writer: str, batch: int, last: int) -> None:
    """Raise SinkError for an older batch: Spark repeats the last batch only, so the broker knows the writer from
    another checkpoint."""
    if last > batch:
        raise SinkError(
            f"writer {writer!r} has written batch {last} already, this is batch {batch}: the checkpoint was set back or"
            " deleted, or two queries use one writerId. Restore the checkpoint; to write these rows, set another writerId"
        )


def explain(error: ChannelClosed) -> SinkError:
    """Return a refusal of the server as an error with advice."""
    hint = "see docs/spark.md"
    if error.code == 404:
        hint = "declare the exchange first, or correct option exchange or column exchange"
    elif error.code == 403:
        hint = "give the user of option uri the permission to write there"
    elif error.code == 406:
        hint = "correct the column that it names"
    return SinkError(f"{error}; {hint}")
