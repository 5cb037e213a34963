"""Joins the right source and target for two brokers: exactly once where both are Kvitto, at least once otherwise."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from kvitto.client.aio import Connection, NotSupported
from kvitto.client.errors import ChannelClosed
from kvitto.shovel.load import Dress, Source, Target
from kvitto.shovel.marked import MarkedTarget
from kvitto.shovel.ranges import RangeSource
from kvitto.shovel.sources import QueueSource, StreamSource
from kvitto.shovel.targets import ConfirmTarget, StageTarget

ONCE = "each message arrives once"


class Pair(NamedTuple):
    """`once`: whether each message arrives once, whatever dies. `why`: the reason if not."""

    source: Source
    target: Target
    once: bool
    why: str


async def open_pair(
    source: Connection,
    target: Connection,
    queue: str,
    dress: Dress,
    *,
    writer: str,
    group: str,
    stream: bool,
    prefetch: int,
) -> Pair:
    """Open both ends for one queue, where the last run ended. `writer` and `group` name the work at the target and at the source,
    and are the same in each run.

    Raises ChannelClosed if a broker refuses: there is no such queue, or it may not be read.
    """
    if stream:
        return await _stream_pair(source, target, queue, dress, writer)
    try:
        ranges = await RangeSource.open(source, queue, group)
    except NotSupported as error:
        return await _consuming_pair(source, target, queue, dress, prefetch, str(error))
    except ChannelClosed as error:
        if error.code not in (403, 405, 406):
            raise
        return await _consuming_pair(source, target, queue, dress, prefetch, str(error))
    try:
        stage = await StageTarget.open(target, f"{writer}/{ranges.incarnation}", dress)
        await ranges.skip(await stage.last())
    except NotSupported as error:
        await ranges.close()
        return await _consuming_pair(source, target, queue, dress, prefetch, str(error))
    return Pair(ranges, stage, True, ONCE)


async def _consuming_pair(
    source: Connection, target: Connection, queue: str, dress: Dress, prefetch: int, why: str
) -> Pair:
    ends = await QueueSource.open(source, queue, prefetch), await ConfirmTarget.open(target, dress)
    return Pair(*ends, False, why)


async def _stream_pair(source: Connection, target: Connection, queue: str, dress: Dress, writer: str) -> Pair:
    """The offsets of a stream do not change at any broker. How far it has come is kept at the target."""
    try:
        ranges = await RangeSource.open(source, queue, None)
        name = f"{writer}/{ranges.incarnation}"
    except NotSupported:
        ranges = None
        name = f"{writer}/{hashlib.sha256(queue.encode()).hexdigest()[:32]}"
    marked: StageTarget | MarkedTarget
    try:
        marked, why = await StageTarget.open(target, name, dress), ONCE
    except NotSupported as error:
        marked, why = await MarkedTarget.open(target, name, dress), str(error)
    start = await marked.last()
    if ranges is not None:
        await ranges.skip(start)
        return Pair(ranges, marked, isinstance(marked, StageTarget), why)
    return Pair(await StreamSource.open(source, queue, start), marked, isinstance(marked, StageTarget), why)
