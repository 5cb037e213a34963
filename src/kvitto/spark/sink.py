"""`df.write.format("amqp")` and `df.writeStream.format("amqp")`: called by Spark. Executors write (writing.py), the
driver commits.

A writer object is pickled for the executors, and a streaming commit is called on a new one, so everything that the
driver needs is in the tasks' messages. The number of the batch is in the task's local properties, under Spark's own
names; a batch write in `foreachBatch` has them too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from kvitto.spark.errors import SinkError
from kvitto.spark.rows import Layout, layout_of
from kvitto.spark.sink_options import SinkOptions
from kvitto.spark.writing import Part, Written, check_broker, commit, forget, write_rows

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
FIRST_CONTACT_S: Final = 5.0
"""If the broker of a new job does not answer for this time, the uri is probably wrong, and the job fails early."""


class AmqpWriter(DataSourceArrowWriter):
    """A batch job. With option writerId each of its batches is written once; else each run is a writer of its own."""

    def __init__(self, schema: StructType, options: SinkOptions, overwrite: bool) -> None:
        if overwrite:
            raise SinkError("messages in a queue cannot be overwritten; say mode('append')")
        self.options = options
        self.layout = layout_of(schema, options)
        self.writer = options.writer_id or f"spark-{uuid.uuid4().hex}"
        patience = options.reconnect_timeout_s  # a named writer exists for longer than this job
        check_broker(options, patience if options.writer_id else min(FIRST_CONTACT_S, patience))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self.options, self.layout, self.writer, self._batch(), iterator)

    def _batch(self) -> int:
        """Return the batch number. Nothing is assumed, because a batch that is not a repetition must not look like one."""
        if not self.options.writer_id:
            return 0
        if self.options.batch_id is not None:
            return self.options.batch_id
        told = _context().getLocalProperty(BATCH_ID)
        if told is None:
            raise SinkError(
                f"writer {self.options.writer_id!r} does not know which of its batches this is: give option batchId, a number that"
                " goes up from one batch to the next and stays the same when one is repeated (in foreachBatch: its batch id)"
            )
        return int(told)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit(self.options, _written(messages))
        self._forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._forget()

    def _forget(self) -> None:
        if not self.options.writer_id:
            forget(self.options, self.writer)


class AmqpStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query. Its id is the writer's name, unless option writerId has another."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self.options = options
        self.layout = layout_of(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        writer = self.options.writer_id or query
        if not writer or batch is None:
            raise SinkError(f"Spark has not told this task its query and batch ({QUERY_ID}, {BATCH_ID}); use Spark 4.3")
        return _write(self.options, self.layout, writer, int(batch), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        commit(self.options, _written(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Spark repeats the batch; its stages are dropped with the next commit."""


def _write(options: SinkOptions, layout: Layout, writer: str, batch: int, batches: Iterator[pa.RecordBatch]) -> Written:
    part = Part(writer, batch, _context().partitionId(), uuid.uuid4().hex[:8])
    return write_rows(options, layout, part, batches)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
