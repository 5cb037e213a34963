"""The form of a stream's `offsets`: slots of 512 bytes, two for each consumer tag (docs/formats.md, A stream's directory).

It encodes and decodes. Used by `offsets.py`, which writes the file, by the judge of damage, and by `kvitto salvage`.
"""

from __future__ import annotations

import xxhash

from kvitto.base.limits import SHORTSTR_MAX

SLOT = 512
_FIXED = 33


class Kept:
    """What is known of one tag. `pair` is the number of its two slots, `sequence` that of its last write, -1 before the first."""

    __slots__ = ("offset", "pair", "sequence", "time_ms")

    def __init__(self, pair: int, sequence: int, offset: int, time_ms: int) -> None:
        self.pair = pair
        self.sequence = sequence
        self.offset = offset
        self.time_ms = time_ms


def seed_of(queue_id: str) -> int:
    """Of a file's checksums: that of another stream does not verify."""
    return int.from_bytes(bytes.fromhex(queue_id)[:8], "little")


def encode(tag: str, kept: Kept, seed: int) -> bytes:
    name = tag.encode("utf-8", "surrogateescape")
    assert len(name) <= SHORTSTR_MAX
    body = (kept.sequence + 1).to_bytes(8, "little") + kept.offset.to_bytes(8, "little")
    body += kept.time_ms.to_bytes(8, "little") + bytes((len(name),)) + name
    body = body.ljust(SLOT - 8, b"\0")
    return xxhash.xxh3_64_intdigest(body, seed).to_bytes(8, "little") + body


def slots_of(data: bytes, pair: int) -> list[bytes]:
    """The two slots of a pair."""
    return [data[at : at + SLOT] for at in (2 * SLOT * pair, 2 * SLOT * pair + SLOT)]


def entry(pair: int, slot: bytes, seed: int, old: bool = False) -> tuple[str, Kept] | None:
    """What a slot says: a tag, and what is known of it. None if it does not verify. `old`: nor does one of the format before."""
    if len(slot) < SLOT:
        return None
    found = int.from_bytes(slot[:8], "little")
    if found != xxhash.xxh3_64_intdigest(slot[8:], seed) and not (old and found == xxhash.xxh3_64_intdigest(slot[8:])):
        return None
    sequence, offset, time_ms = (int.from_bytes(slot[at : at + 8], "little") for at in (8, 16, 24))
    tag = slot[_FIXED : _FIXED + slot[_FIXED - 1]].decode("utf-8", "surrogateescape")
    return tag, Kept(pair, sequence, offset, time_ms)
