"""The form of a stream's `offsets`: slots of 512 bytes, two for each consumer tag (docs/formats.md, A stream's directory).

It encodes and decodes slots, for `offsets.py`, which writes the file, and for the judge of damage.
"""

from __future__ import annotations

import xxhash

from kvitto.base.limits import SHORTSTR_MAX
from kvitto.format.layouts import TAG_SLOT, TAG_SLOT_SIZE, bytes_of, u64

SLOT = TAG_SLOT_SIZE
_COVERED = TAG_SLOT.at["sequence"]
"""The checksum is that of the slot from here on."""


class Kept:
    """What is known of one tag. `pair` is the number of its two slots, `sequence` that of its last write, -1 before the first."""

    __slots__ = ("offset", "pair", "sequence", "time_ms")

    def __init__(self, pair: int, sequence: int, offset: int, time_ms: int) -> None:
        self.pair = pair
        self.sequence = sequence
        self.offset = offset
        self.time_ms = time_ms


def seed_of(queue_id: str) -> int:
    """Return the seed of the checksums, so that a slot of another stream does not verify."""
    return u64(bytes.fromhex(queue_id))


def encode(tag: str, kept: Kept, seed: int) -> bytes:
    name = tag.encode("utf-8", "surrogateescape")
    assert len(name) <= SHORTSTR_MAX
    slot = TAG_SLOT.pack(0, kept.sequence + 1, kept.offset, kept.time_ms, len(name)) + name
    body = slot.ljust(SLOT, b"\0")[_COVERED:]
    return bytes_of(xxhash.xxh3_64_intdigest(body, seed)) + body


def slots_of(data: bytes, pair: int) -> list[bytes]:
    """Return the two slots of a pair. At the end of the file they may be shorter, or empty."""
    return [data[at : at + SLOT] for at in (2 * SLOT * pair, 2 * SLOT * pair + SLOT)]


def entry(pair: int, slot: bytes, seed: int, old: bool = False) -> tuple[str, Kept] | None:
    """Return the tag of a slot and what is known of it, None if it does not verify. `old`: accept a checksum without a seed as well."""
    if len(slot) < SLOT:
        return None
    found, body = TAG_SLOT.read(slot), slot[_COVERED:]
    seeds = (seed, 0) if old else (seed,)
    if found.checksum not in [xxhash.xxh3_64_intdigest(body, one) for one in seeds]:
        return None
    tag = slot[TAG_SLOT.size :][: found.tag_len].decode("utf-8", "surrogateescape")
    return tag, Kept(pair, found.sequence, found.offset, found.time_ms)
