"""Reads the list of unacked deliveries of a channel without changing it, for people who ask who holds what (http/unacked.py)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvitto.protocol.channel import ENTRY, UNCOMMITTED

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.protocol.channel import Channel

_ENTRY = struct.Struct("<QQII")
PIECE = 200
"""Entries that are read at once."""


@dataclass(frozen=True, slots=True)
class Held:
    """`consumer_tag` is empty for a message that came by basic.get."""

    channel: Channel
    tag: int
    consumer_tag: str
    offset: int
    body_bytes: int


def held(channel: Channel, queue: Queue) -> Iterator[Held | None]:
    """Yield the deliveries of a queue's messages that the channel holds, in the order of their tags, and None for each piece of others.

    The channel may go on meanwhile: what is settled or delivered after a piece was read is left out, or comes later.
    """
    slots = {slot: c for slot, c in enumerate(channel.slots, 1) if c is not None and c.queue is queue}
    yield None
    tag = 0
    while slots and (piece := _after(channel, tag)):
        for offset, tag, body_bytes, slot in _ENTRY.iter_unpack(piece):
            consumer = slots.get(slot & ~UNCOMMITTED)
            if consumer is not None:
                yield Held(channel, tag, consumer.tag, offset, body_bytes)
        yield None


def _after(channel: Channel, tag: int) -> bytes:
    """Return the entries with higher tags than this one, at most PIECE of them."""
    entries, low = channel._tags, channel._head // ENTRY
    high = entries.n // ENTRY
    end = high
    while low < high:
        middle = (low + high) // 2
        if _ENTRY.unpack_from(entries.data, middle * ENTRY)[1] <= tag:
            low = middle + 1
        else:
            high = middle
    return bytes(entries.data[low * ENTRY : min(low + PIECE, end) * ENTRY])
