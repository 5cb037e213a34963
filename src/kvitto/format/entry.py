"""The index entry of a message (`layouts.Entry`), addressed as (buffer, position of the entry); one per message, so nothing is allocated.

`entry.pxd` holds the inline C twins; keep both in step. `store/batch.py` writes entries. It reads them too, and so do queues/queue.py
and `protocol/delivery.py`, for each message that they copy or send.
"""

from __future__ import annotations

from typing import NamedTuple

from kvitto.format.layouts import ENTRY
from kvitto.wire import bits
from kvitto.wire.bits import Bytes

SIZE = ENTRY.size
META_AT = ENTRY.at["meta"]
BODY_AT = ENTRY.at["body"]
BODY_LEN_AT = ENTRY.at["body_len"]
PROPS_LEN_AT = ENTRY.at["props_len"]
KEY_LEN_AT = ENTRY.at["key_len"]
FLAGS_AT = ENTRY.at["flags"]
TTL_HIGH_AT = ENTRY.at["ttl_high"]
TTL_LOW_AT = ENTRY.at["ttl_low"]

EXPIRES = 1
"""Flag: the message has a time to live."""
DEAD = 2
"""Flag: the broker has dead-lettered the message."""
SPECIAL = 4
"""Flag, only in a stage: where the message goes, or for how long, is to be asked of its properties."""
TTL_MAX = (1 << 40) - 1
"""The longest time to live in ms, some 34 years: `ttl_high` has its upper 8 bits, `ttl_low` the others."""


class Message(NamedTuple):
    """Where a message lies: positions in the areas for meta data and bodies, and lengths. The properties begin behind the key."""

    meta: int
    body: int
    body_len: int
    props_len: int
    key_len: int


def read(p: Bytes, e: int) -> Message:
    """Where the message lies. In C a struct, of which only what is used is read."""
    return Message(meta(p, e), body(p, e), body_len(p, e), props_len(p, e), key_len(p, e))


def meta(p: Bytes, e: int) -> int:
    return bits.le32(p, e + META_AT)


def body(p: Bytes, e: int) -> int:
    return bits.le32(p, e + BODY_AT)


def body_len(p: Bytes, e: int) -> int:
    return bits.le32(p, e + BODY_LEN_AT)


def props_len(p: Bytes, e: int) -> int:
    return bits.le32(p, e + PROPS_LEN_AT)


def key_len(p: Bytes, e: int) -> int:
    return bits.le16(p, e + KEY_LEN_AT)


def flags(p: Bytes, e: int) -> int:
    return p[e + FLAGS_AT]


def ttl_ms(p: Bytes, e: int) -> int:
    """The time to live, from the time of the batch on; -1 if there is none."""
    if not p[e + FLAGS_AT] & EXPIRES:
        return -1
    return (p[e + TTL_HIGH_AT] << 32) + bits.le32(p, e + TTL_LOW_AT)


def put(p: bytearray, e: int, meta: int, body: int, body_len: int, props_len: int, key_len: int) -> None:
    """Write all but flags and time to live."""
    bits.put_le32(p, e + META_AT, meta)
    bits.put_le32(p, e + BODY_AT, body)
    bits.put_le32(p, e + BODY_LEN_AT, body_len)
    bits.put_le32(p, e + PROPS_LEN_AT, props_len)
    bits.put_le16(p, e + KEY_LEN_AT, key_len)


def put_body(p: bytearray, e: int, body: int, body_len: int) -> None:
    """Write where the body lies once more."""
    bits.put_le32(p, e + BODY_AT, body)
    bits.put_le32(p, e + BODY_LEN_AT, body_len)


def put_flags(p: bytearray, e: int, ttl_ms: int, flags: int) -> None:
    """Write flags and time to live; ttl_ms < 0: it has none."""
    if ttl_ms < 0:
        bits.put_le16(p, e + FLAGS_AT, flags)
        bits.put_le32(p, e + TTL_LOW_AT, 0)
    else:
        bits.put_le16(p, e + FLAGS_AT, flags | EXPIRES | (ttl_ms >> 32) << 8)
        bits.put_le32(p, e + TTL_LOW_AT, ttl_ms & 0xFFFFFFFF)


def split_ttl(ttl_ms: int, flags: int) -> tuple[int, int, int]:
    """(flags, upper and lower part of the time to live), as an operation of the journal has them too; ttl_ms < 0: it has none."""
    return (flags, 0, 0) if ttl_ms < 0 else (flags | EXPIRES, ttl_ms >> 32, ttl_ms & 0xFFFFFFFF)


def join_ttl(flags: int, ttl_high: int, ttl_low: int) -> int:
    """The time to live in ms; -1 if there is none."""
    return (ttl_high << 32) + ttl_low if flags & EXPIRES else -1
