"""The form of the records of the stream, written for people: what docs/adr/0032 says, and no more.

This is the reference against which the encoder and decoder of `kvitto.cluster.records` are tested, so it shares no code with them.
A record says what was done to which file. Its place in the stream is not sent: it is in the seed of the checksum, so that a
record which comes twice, too late or on another connection is refused like one that is damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import xxhash

HEADER = struct.Struct("<B3sIQI4sQ")
COVERED = 24
"""So many bytes of the header are before its checksum, which covers them."""
PAYLOAD_BYTES_MAX = 1 << 20
PLACES = 1 << 64


class Kind(IntEnum):
    """What was done."""

    OPEN = 1
    WRITE = 2
    TRUNCATE = 3
    RENAME = 4
    LINK = 5
    UNLINK = 6
    MKDIR = 7
    RMTREE = 8
    SYNC = 9
    SEAL = 10
    TIME = 11


KINDS = frozenset(int(kind) for kind in Kind)


class Record(NamedTuple):
    kind: Kind
    file: int = 0
    position: int = 0
    payload: bytes = b""


class StreamError(Exception):
    """What came is not the record of this place. The connection ends, and nothing of it is applied."""


class Encoder:
    """The leader's side of a connection."""

    def __init__(self, nonce: int, place: int) -> None:
        self.nonce = nonce
        self.place = place
        """Of the next record."""

    def encode(self, record: Record) -> bytes:
        assert len(record.payload) <= PAYLOAD_BYTES_MAX
        fields = record.kind, bytes(3), record.file, record.position, len(record.payload), bytes(4)
        covered = HEADER.pack(*fields, 0)[:COVERED]
        checksum = seal(self.nonce, self.place, covered, record.payload)
        self.place += 1
        return covered + checksum.to_bytes(8, "little") + record.payload


class Decoder:
    """The follower's side of a connection. After an error it takes nothing more."""

    def __init__(self, nonce: int, place: int) -> None:
        self.nonce = nonce
        self.place = place
        """Of the next record."""
        self.waiting = bytearray()
        self.broken = False

    def feed(self, data: bytes) -> Iterator[Record]:
        """Take bytes as they come, and give the records that are complete."""
        self.waiting += data
        while (record := self._next()) is not None:
            yield record

    def _next(self) -> Record | None:
        if self.broken:
            raise StreamError("the connection is broken")
        if len(self.waiting) < HEADER.size:
            return None
        kind, zeros, file, position, length, zero, checksum = HEADER.unpack_from(self.waiting)
        if length > PAYLOAD_BYTES_MAX:  # before any of it is waited for
            self._fail(f"a record of {length} bytes")
        size = HEADER.size + length
        if len(self.waiting) < size:
            return None
        payload = bytes(self.waiting[HEADER.size : size])
        if checksum != seal(self.nonce, self.place, bytes(self.waiting[:COVERED]), payload):
            self._fail("a checksum that is wrong here")
        if kind not in KINDS or any(zeros + zero):
            self._fail(f"a record of unknown kind {kind}")
        del self.waiting[:size]
        self.place += 1
        return Record(Kind(kind), file, position, payload)

    def _fail(self, what: str) -> None:
        self.broken = True
        raise StreamError(f"{what}, at place {self.place} of the stream")


def seal(nonce: int, place: int, covered: bytes, payload: bytes) -> int:
    """The checksum of a record at this place of this connection."""
    return xxhash.xxh3_64_intdigest(covered + payload, (nonce + place) % PLACES)
