"""The form of what travels between a leader and a follower (docs/adr/0032): records of the stream, and frames beside it.

Both have a header of 32 bytes and a payload. The checksum of a record is seeded with the nonce of the connection plus the record's place
in the stream, so a record that comes twice, too late or on another connection is refused like a damaged one. Frames are about one
connection and have no place in the stream: they are counted instead, and have a nonce of their own. `link.py` and `follower.py` use this.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import xxhash

HEADER = struct.Struct("<B3sIQI4sQ")
COVERED = struct.Struct("<B3xIQI4x")
"""What is before the checksum, which covers it."""
CHECKSUM = struct.Struct("<Q")
PAYLOAD_BYTES_MAX = 1 << 20
PLACES = 1 << 64
CHUNK_BYTES = PAYLOAD_BYTES_MAX
"""Files are compared in pieces of this size."""
SUM_BYTES = 16
ACKNOWLEDGEMENT = struct.Struct("<QQQQ")
"""Epoch, place that is synced, free bytes, promise in ms (not used yet)."""
NAMED = struct.Struct("<H")
DOUBTED = struct.Struct("<II")
"""Where damage begins and ends in the next chunk."""
FRAMES = 32
"""Kinds from this one on are frames."""


class Kind(IntEnum):
    """The kind of a record, which says what was done to a file; from FRAMES on the kind of a frame."""

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

    NAME = 33
    """A path that existed when copying began, with the number of the file (0 for a directory) and its length."""
    NAMES = 34
    """All names have been sent. `position` is the place of the first record that follows."""
    CHUNK = 35
    """Bytes of a file as it is at this moment."""
    END = 36
    """A file has been compared up to `position`, which is its length at this moment."""
    DONE = 37
    """All files have been compared. `position` is the place behind the last record that was sent."""
    ALIVE = 38
    """The leader is busy, and the connection is not broken."""
    SUMS = 39
    """The length, the path and the checksums of the chunks of one file of the follower."""
    COMPARE = 40
    """The follower has sent the checksums of all its files."""
    ACK = 41
    REFUSED = 42
    """The sender ends the connection, and the payload tells an operator why."""
    DOUBT = 43
    """The next chunk is damaged at the leader, between the places in the payload: the follower's own bytes may be good."""
    LEFT = 44
    """The leader has ended in order, and nothing follows. `position` is the place up to which the follower has synced everything, the
    payload the member that is to lead next, if an operator has chosen one."""


KINDS = frozenset(int(kind) for kind in Kind)


class Record(NamedTuple):
    kind: int
    file: int
    position: int
    payload: bytes


class StreamError(Exception):
    """The received bytes are not what the protocol allows at this point. The connection ends, and they are not applied."""


def covered(kind: int, file: int, position: int, length: int) -> bytes:
    """Return the part of a header that its checksum covers."""
    return COVERED.pack(kind, file, position, length)


def checksum(seed: int, head: bytes, payload: bytes) -> bytes:
    state = xxhash.xxh3_64(head, seed % PLACES)
    state.update(payload)
    return CHECKSUM.pack(state.intdigest())


def chunk_sum(seed: int, data: bytes | memoryview) -> bytes:
    """Return the checksum by which both sides compare a chunk. Its seed is secret, so nobody can prepare two chunks with the same one."""
    return xxhash.xxh3_128_digest(data, seed)


class Nonces(NamedTuple):
    """The secret seeds of one connection."""

    records: int
    frames: int
    """The seed for frames from the leader."""
    answers: int
    """The seed for frames from the follower."""
    sums: int


class Frames:
    """Encodes the frames that one side sends."""

    def __init__(self, nonce: int) -> None:
        self._nonce = nonce
        self._count = 0

    def encode(self, kind: Kind, file: int = 0, position: int = 0, payload: bytes = b"") -> bytes:
        return b"".join(self.split(kind, file, position, payload))

    def split(self, kind: Kind, file: int, position: int, payload: bytes) -> tuple[bytes, bytes]:
        """Encode a frame as two pieces: its header and its payload."""
        assert kind >= FRAMES and len(payload) <= PAYLOAD_BYTES_MAX
        head = covered(kind, file, position, len(payload))
        sealed = checksum(self._nonce + self._count, head, payload)
        self._count += 1
        return head + sealed, payload


class Decoder:
    """Splits received bytes into records and frames. After an error it accepts nothing more."""

    def __init__(self, records: int, place: int, frames: int) -> None:
        self._records = records
        self.place = place
        """The place of the next record."""
        self._frames = frames
        self._count = 0
        self._waiting = bytearray()
        self._broken = False

    def feed(self, data: bytes) -> Iterator[Record]:
        self._waiting += data
        while (record := self._next()) is not None:
            yield record

    def _next(self) -> Record | None:
        waiting = self._waiting
        if self._broken:
            raise StreamError("the connection is broken")
        if len(waiting) < HEADER.size:
            return None
        kind, zeros, file, position, length, zero, sealed = HEADER.unpack_from(waiting)
        if length > PAYLOAD_BYTES_MAX:  # before any of it is waited for
            self._fail(f"a record of {length} bytes")
        size = HEADER.size + length
        if len(waiting) < size:
            return None
        payload = bytes(memoryview(waiting)[HEADER.size : size])
        frame = kind >= FRAMES
        seed = self._frames + self._count if frame else self._records + self.place
        if CHECKSUM.pack(sealed) != checksum(seed, bytes(waiting[: COVERED.size]), payload):
            self._fail("a checksum that is wrong here")
        if kind not in KINDS or any(zeros + zero):
            self._fail(f"a record of unknown kind {kind}")
        del waiting[:size]
        if frame:
            self._count += 1
        else:
            self.place += 1
        return Record(kind, file, position, payload)

    def _fail(self, what: str) -> None:
        self._broken = True
        raise StreamError(f"{what}, at place {self.place} of the stream")


# -- payloads ------------------------------------------------------------------------------------------------------


def two_paths(a: str, b: str) -> bytes:
    return a.encode() + b"\0" + b.encode()


def both_paths(payload: bytes) -> tuple[str, str]:
    a, _, b = payload.partition(b"\0")
    return a.decode(), b.decode()


def sync_payloads(files: Sequence[int], directories: Sequence[str]) -> Iterator[bytes]:
    """Yield the payloads of a sync point, usually one: the count of files, their numbers, then the directories."""
    at = 0
    names = [name.encode() for name in directories]
    least = PAYLOAD_BYTES_MAX // 8
    while True:
        some = files[at : at + least]
        at += len(some)
        payload = bytearray(struct.pack(f"<I{len(some)}I", len(some), *some))
        while names and len(payload) + len(names[-1]) < PAYLOAD_BYTES_MAX:
            payload += b"\0" + names.pop()
        yield bytes(payload)
        if at >= len(files) and not names:
            return


def sync_parts(payload: bytes) -> tuple[Sequence[int], list[str]]:
    """Decode a payload of `sync_payloads`. Raise StreamError if it is malformed."""
    try:
        (count,) = struct.unpack_from("<I", payload)
        files = struct.unpack_from(f"<{count}I", payload, 4)
    except struct.error:
        raise StreamError("a sync point that cannot be read") from None
    return files, [name.decode() for name in payload[4 + 4 * count :].split(b"\0")[1:]]
