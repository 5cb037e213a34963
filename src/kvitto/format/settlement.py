"""One settlement in a settlement log (`layouts.Settlement`), addressed as (buffer, position), and what became of the messages. Also the
head of a block of them (`layouts.BlockHead`).

`settlement.pxd` holds the inline C twins; keep both in step. `store/settlements.py` writes and reads these entries, and
format("kvitto-archive") of Spark knows the outcomes from here.
"""

from __future__ import annotations

from kvitto.format.layouts import BLOCK, BLOCK_MAGIC, SETTLEMENT
from kvitto.wire import bits
from kvitto.wire.bits import Bytes

SIZE = SETTLEMENT.size
OFFSET_AT = SETTLEMENT.at["offset"]
WORD_AT = SETTLEMENT.at["word"]
DELIVERIES_AT = SETTLEMENT.at["deliveries"]
COUNT_BITS = 24
"""The outcome is above so many bits of the word, which are the count."""
COUNT_MAX = (1 << COUNT_BITS) - 1
BLOCK_SIZE = BLOCK.size
DURABLE_MAX = (1 << 32) - 1
"""A block says at most that so many bytes before it are durable."""

ACKED = 1
REJECTED = 2
DEAD_LETTERED = 3
EXPIRED = 4
DROPPED = 5
PURGED = 6
RANGE_SETTLED = 7
REDELIVERED = 16
IN_DOUBT = 17
OUTCOMES = {
    ACKED: "acked",
    REJECTED: "rejected",
    DEAD_LETTERED: "dead-lettered",
    EXPIRED: "expired",
    DROPPED: "dropped",
    PURGED: "purged",
    RANGE_SETTLED: "range-settled",
    REDELIVERED: "redelivered",
    IN_DOUBT: "in doubt",
}
"""By number, as docs/formats.md names them. Those from REDELIVERED on settle nothing."""


def offset(p: Bytes, e: int) -> int:
    return bits.le64(p, e + OFFSET_AT)


def word(p: Bytes, e: int) -> int:
    """Count and outcome."""
    return bits.le32(p, e + WORD_AT)


def count_of(word: int) -> int:
    return word & COUNT_MAX


def outcome_of(word: int) -> int:
    return word >> COUNT_BITS


def deliveries(p: Bytes, e: int) -> int:
    return bits.le32(p, e + DELIVERIES_AT)


def put(p: bytearray, e: int, offset: int, count: int, outcome: int, deliveries: int) -> None:
    bits.put_le64(p, e + OFFSET_AT, offset)
    put_count(p, e, count, outcome)
    bits.put_le32(p, e + DELIVERIES_AT, deliveries)


def put_block(p: bytearray, length: int, time_ms: int, mark: int, entries: int, durable: int) -> None:
    """Write the head of a block at the start of `p`, a buffer of zeros. Its checksum stays 0."""
    p[: BLOCK.size] = BLOCK.pack(BLOCK_MAGIC, length, 0, time_ms, mark, entries, min(durable, DURABLE_MAX))


def put_count(p: bytearray, e: int, count: int, outcome: int) -> None:
    bits.put_le32(p, e + WORD_AT, count | outcome << COUNT_BITS)
