"""What an archive and its live queue tell a reader that has only the files (docs/formats.md)."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

HEADER, BATCH, ENTRY = 72, 64, 24
ARCHIVE, QUEUES = "archive", "queues"

Files = dict[str, bytes]
"""Path -> contents, of a whole data directory."""


@dataclass
class Entry:
    """A message. `outcome` 0: it waits; `place`: the directory in which it was found."""

    body: bytes
    place: str
    outcome: int = 0
    deliveries: int = 0
    time_ms: int = 0


def files_of(root: Path) -> Files:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def about(files: Files, queue_id: str, place: str = ARCHIVE) -> dict[str, Any]:
    return dict(json.loads(files[f"{place}/{queue_id}/queue.json"]))


def bases(files: Files, queue_id: str, place: str = ARCHIVE, suffix: str = ".log") -> list[int]:
    names = (path for path in files if path.startswith(f"{place}/{queue_id}/") and path.endswith(suffix))
    return [int(name.rpartition("/")[2][:20]) for name in names]


def entries(files: Files, queue_id: str) -> dict[int, Entry]:
    """Offset -> message: the archive first, and of a segment that is in both places only what is there."""
    found: dict[int, Entry] = {}
    archived = set(bases(files, queue_id))
    for place in (ARCHIVE, QUEUES):
        for base in bases(files, queue_id, place):
            if place == ARCHIVE or base not in archived:
                found |= segment(files, f"{place}/{queue_id}/{base:020d}", place)
    return found


def segment(files: Files, stem: str, place: str) -> dict[int, Entry]:
    found: dict[int, Entry] = {}
    data = files[stem + ".log"]
    salt, at = int.from_bytes(data[48:56], "little"), HEADER
    while data[at : at + 4] == b"KVB1":
        length, checksum, first = struct.unpack_from("<IQQ", data, at + 4)
        count, meta = struct.unpack_from("<II", data, at + 32)
        if xxhash.xxh3_64_intdigest(data[at + 16 : at + length], salt) != checksum:
            break
        bodies = at + BATCH + ENTRY * count + meta
        for i in range(count):
            begin, size = struct.unpack_from("<II", data, at + BATCH + ENTRY * i + 4)
            found[first + i] = Entry(data[bodies + begin : bodies + begin + size], place)
        at += length
    settle(found, files.get(stem + ".ack", b""))
    return found


def settle(found: dict[int, Entry], data: bytes) -> None:
    """Apply a settlement log."""
    at, told = HEADER, {}
    while data[at : at + 4] == b"KVS1":
        length, checksum, time_ms = struct.unpack_from("<IQQ", data, at + 4)
        if xxhash.xxh3_64_intdigest(data[at + 16 : at + length]) != checksum:
            break
        for offset, word, deliveries in struct.iter_unpack("<QII", data[at + 40 : at + length]):
            for o in range(offset, offset + (word & 0xFFFFFF)):
                outcome = word >> 24
                if outcome == 16:
                    told[o] = deliveries
                elif outcome < 16 and o in found:
                    found[o].outcome, found[o].time_ms = outcome, time_ms
                    found[o].deliveries = told.get(o) or deliveries or int(outcome in (1, 2))
        at += length
