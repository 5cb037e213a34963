"""Chooses the read mode of a queue, and makes its driver. `source.py` calls it.

No answer of the protocol has the type of a queue, and a passive declaration ignores its arguments. But a stream refuses
a consumer without a prefetch count (406 "consumer prefetch count is not set" in RabbitMQ, "Stream consumers must have a
prefetch limit" in LavinMQ) before anything is delivered; `is_stream` uses this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pyspark.sql.datasource import InputPartition

from kvitto.client import Channel, ChannelClosed, Connection, ConnectionLost
from kvitto.spark.driver import FIRST_CONTACT_S, Driver
from kvitto.spark.errors import OptionError, SourceError
from kvitto.spark.link import Link, explain, has_ranges
from kvitto.spark.offsets import Offsets
from kvitto.spark.options import AUTO, NEEDS_STAGING, RANGE, STAGED, STREAM, Options
from kvitto.spark.staged import StagedDriver
from kvitto.spark.stream import StreamDriver


class ModeDriver(Protocol):
    """The calls of source.py for every read mode. All of them may be repeated."""

    latest: Offsets | None

    def include(self, queues: tuple[str, ...]) -> None: ...
    def begin(self) -> Offsets: ...
    def advance(self, start: Offsets, most: int, most_bytes: int = 0) -> Offsets: ...
    def fix_target(self) -> None: ...
    def plan(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]: ...
    def plan_once(self) -> Sequence[InputPartition]: ...
    def settle(self, end: Offsets) -> None: ...
    def close(self) -> None: ...


def driver_of(options: Options, mode: str) -> ModeDriver:
    """Return the driver of a read mode."""
    kinds: dict[str, Callable[[Options], ModeDriver]] = {RANGE: Driver, STREAM: StreamDriver, STAGED: StagedDriver}
    return kinds[mode](options)


def choose(options: Options) -> str:
    """Return the read mode for these queues: that of option readMode if it is possible. Raise SourceError if not."""
    if options.mode == RANGE:
        return RANGE

    def look(channel: Channel) -> tuple[bool, list[str]]:
        streams = [name for name in options.queues if is_stream(channel, options.uri, name)]
        return has_ranges(channel.connection), streams

    link = Link(options.uri, "kvitto spark driver", by_range=False)
    try:
        ranges, streams = link.call(look, FIRST_CONTACT_S)
    finally:
        link.close()
    if streams and len(streams) != len(options.queues):
        raise SourceError(
            f"option queues: {', '.join(streams)} are streams and the others are not; read them with two queries"
        )
    mode = STREAM if streams else RANGE if ranges else STAGED
    if options.mode == AUTO:
        if mode == STAGED and not options.staging:
            raise OptionError(
                f"queue {options.queues[0]!r} is no stream and its broker is not Kvitto: it can be read in mode staged, which"
                f" {NEEDS_STAGING}"
            )
        return mode
    if (options.mode == STREAM) != bool(streams):
        raise SourceError(
            f"queue {options.queues[0]!r} is {'a' if streams else 'no'} stream: leave option readMode out, or say {mode}"
        )
    return options.mode


def is_stream(channel: Channel, uri: str, queue: str) -> bool:
    """Return whether a queue is a stream. Raise SourceError if the queue does not exist.

    A queue that is not a stream accepts the consumer. A prefetch count of 1 for the channel limits it to one message,
    which returns to its place, flagged redelivered. RabbitMQ's quorum queues refuse such a count with 540. On Kvitto no
    consumer is needed: `log.settle` is refused with 406 for a stream, and with 403 for another queue without the group.
    """
    try:
        channel.queue_declare(queue, passive=True)
    except ChannelClosed as error:
        raise explain(error, queue) from None
    with Connection(uri) as own:
        try:
            probe = own.channel()
            if has_ranges(own):
                probe.log_settle(queue, "", "", 0)
            else:
                probe.qos(1, global_=True)
                probe.consume(queue)
        except ChannelClosed as error:
            if error.code == 406 and ("prefetch" in error.text or "is a stream" in error.text):
                return True
            if error.code == 403 and has_ranges(own):
                return False
            raise explain(error, queue) from None
        except ConnectionLost as error:
            if error.code == 540:
                return False
            raise
    return False
