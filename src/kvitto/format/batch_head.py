"""The header of a batch (`layouts.BatchHead`), written by `store/batch.py` for each batch. `batch_head.pxd` holds the inline C twin."""

from __future__ import annotations

from kvitto.format.layouts import BATCH, BATCH_MAGIC


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
    """Write a header, in which the checksum is 0, at the begin of `p`, a buffer of zeros."""
    p[: BATCH.size] = BATCH.pack(BATCH_MAGIC, length, 0, first, time_ms, count, meta_len, body_len, 0, journal, durable)
