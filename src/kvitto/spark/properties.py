"""Basic properties of many messages at once: finds each field with one step per field, not per message.

A property list is flags (u16) and then the present fields in a fixed order. So one pass over the 14 fields moves a
position for every message at the same time. A position that leaves the data (of a list that no broker should accept) is
limited to its last byte: such a message has wrong properties, but never bytes of other memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvitto.wire.properties import FIELDS

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_WORD = 8
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(_WORD + 1)], np.uint64)
"""The masks of a value's part of the next eight bytes, by the number of bytes that it has left."""


class Slices(NamedTuple):
    """One field of every message: `present`, and the position of its value in the data. An absent field has length 0."""

    present: NDArray[np.bool_]
    start: Ints
    length: Ints


def locate(data: Bytes, ends: Ints, wanted: set[str]) -> dict[str, Slices]:
    """Find the wanted fields of n messages whose property lists are in `data`, with the n + 1 borders `ends`."""
    found: dict[str, Slices] = {}
    n = len(ends) - 1
    if n == 0 or len(data) < 2:
        nothing = np.zeros(n, dtype=np.int64)
        return {name: Slices(nothing.astype(np.bool_), nothing, nothing) for name in wanted}
    last = len(data) - 1
    at = ends[:-1].astype(np.int64)
    flags = (data[at].astype(np.int32) << 8) | data[np.minimum(at + 1, last)]
    any_flags = int(np.bitwise_or.reduce(flags))
    at = at + 2
    for k, (name, kind) in enumerate(FIELDS):
        if len(found) == len(wanted):
            break
        bit = 1 << (15 - k)
        present = (flags & bit) != 0
        if not any_flags & bit:
            if name in wanted:
                found[name] = Slices(present, at, np.zeros(n, dtype=np.int64))
            continue
        prefix, length = _length(data, at, kind, last)
        step: Any = prefix + length
        if not present.all():
            step, length = step * present, length * present
        if name in wanted:
            start = np.minimum(at + prefix, last)
            found[name] = Slices(present, start, np.minimum(length, last + 1 - start))
        at = at + step
    return found


def _length(data: Bytes, at: Ints, kind: str, last: int) -> tuple[int, Ints]:
    """Return the size of the length prefix, and the length of the value at each position if a field of that kind is there."""
    if kind == "str":
        return 1, data[np.minimum(at, last)].astype(np.int64)
    if kind == "table":
        size = np.zeros(len(at), dtype=np.int64)
        for k in range(4):
            size = (size << 8) | data[np.minimum(at + k, last)]
        return 4, np.minimum(size, last + 1)
    return 0, np.full(len(at), 1 if kind == "octet" else 8, dtype=np.int64)


def gather(data: Bytes, where: Slices) -> tuple[Bytes, NDArray[np.int32]]:
    """Return the values one after the other, and their n + 1 borders."""
    borders = np.zeros(len(where.start) + 1, dtype=np.int64)
    np.cumsum(where.length, out=borders[1:])
    index = np.arange(borders[-1]) + np.repeat(where.start - borders[:-1], where.length)
    return data[index], borders.astype(np.int32)


def hashes(data: Bytes, where: Slices, seed: int) -> NDArray[np.uint64]:
    """Return 64 bits of each value. Equal values have equal hashes; unequal values rarely do, and not with two seeds."""
    padded = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    words: NDArray[np.uint64] = np.ndarray(len(data) + 1, "<u8", padded, strides=(1,))
    found = _mixed(where.length.astype(np.uint64) + np.uint64(seed))
    at, rest = where.start, where.length
    while len(rest) and rest.max() > 0:
        word = words[at] & _MASKS[np.clip(rest, 0, _WORD)]
        found = np.where(rest > 0, _mixed(found ^ word), found)
        at, rest = np.minimum(at + _WORD, len(data)), rest - _WORD
    return found


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a one-to-one mapping in which each bit depends on all (the finalizer of MurmurHash3)."""
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


def unsigned(data: Bytes, where: Slices, size: int) -> Ints:
    """Return big-endian numbers of `size` bytes; 0 if absent, and negative if a number does not fit in 63 bits."""
    last = len(data) - 1
    value = np.zeros(len(where.start), dtype=np.int64)
    for k in range(size):
        value = (value << 8) | data[np.minimum(where.start + k, last)]
    return value * where.present
