"""The header of a batch (`layouts.BatchHead`), written by `store/batch.py` for each batch, and read by `store/properties_scan.py`.

`batch_head.pxd` holds the inline C twins.
"""

from __future__ import annotations

from typing import NamedTuple

from kvitto.format.layouts import BATCH, BATCH_MAGIC, ENTRY
from kvitto.wire.bits import Bytes

SIZE = BATCH.size
ENTRY_SIZE = ENTRY.size


def put(
    p: bytearray,
    length: int,
    first: int,
    time_ms: int,
    count: int,
    meta_len: int,
    body_len: int,
    journal: int,
    durable: int,
) -> None:
    """Write a header at the start of `p`, a buffer of zeros. Its checksum stays 0."""
    p[: BATCH.size] = BATCH.pack(BATCH_MAGIC, length, 0, first, time_ms, count, meta_len, body_len, 0, journal, durable)


class Head(NamedTuple):
    """The part of a header that says where the messages lie. `length` is 0 where no batch begins."""

    length: int
    checksum: int
    first: int
    time_ms: int
    messages: int
    meta_len: int
    body_len: int


def read(p: Bytes, at: int) -> Head:
    """Read the header at `at`, which must be complete. In C this is a struct."""
    found = BATCH.read(p, at)
    length = SIZE + ENTRY_SIZE * found.messages + found.meta_len + found.body_len
    if found.magic != BATCH_MAGIC or found.length != length or not found.messages or found.time_ms >> 63:
        length = 0
    return Head(length, found.checksum, found.first, found.time_ms, found.messages, found.meta_len, found.body_len)
