"""The staging directory: messages on disk before they are acked, as Arrow files that executors read.

    <stagingLocation>/lock             held while a driver runs: two of them would ack each other's messages
    <stagingLocation>/identity         32 hex digits; also in the offsets, to recognise the directory
    <stagingLocation>/queue-<name>/    name percent-encoded
        00000000000000000012.arrow     staged messages, not settled yet; numbers increase by one
        ids                            the message ids that were settled last, one Arrow column

A file gets its name only when it is complete and durable (fsync, rename, fsync of the directory). Rows are messages as
received, with undecoded properties, so a file does not depend on the query's schema. `staged.py` uses this.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from kvitto.client import Batch
from kvitto.spark.columns import Messages, binary, message_ids, received
from kvitto.spark.errors import SourceError

REMEMBERED: Final = 20_000
"""The number of ids of settled messages that are stored per queue; far more than a broker delivers to one consumer at a time."""
LOCK_S: Final = 30.0
"""How long a driver waits for the lock of a killed driver."""
ROW_BITS: Final = 32
"""The column `offset` of a staged message is number of its file << 32 | number of its row."""
TAG: Final = "tag"
_ID: Final = pa.field("message_id", pa.binary())
_STORED: Final = pa.schema(
    [
        pa.field("redelivered", pa.bool_()),
        pa.field("exchange", pa.binary()),
        pa.field("routing_key", pa.binary()),
        pa.field("properties", pa.binary()),
        pa.field("body", pa.binary()),
        _ID,
    ]
)
RAW: Final = _STORED.append(pa.field(TAG, pa.uint64()))
"""Rows as received: the stored columns, and the delivery tag."""


def raw(batch: Batch) -> pa.RecordBatch:
    """Return a batch of deliveries over the bytes into which it was received."""
    messages = received(batch)
    byte_columns = (messages.exchanges, messages.routing_keys, messages.properties, messages.bodies)
    arrays = [pa.array(messages.redelivered), *map(binary, byte_columns), message_ids(messages.properties)]
    tags = pa.array(np.frombuffer(batch.tags.view(), dtype="<u8"))
    return pa.RecordBatch.from_arrays([*arrays, tags], schema=RAW)


def read_file(number: int, path: str) -> Iterator[Messages]:
    """Yield the messages of a staged file, not decoded, with their offsets."""
    offset = number << ROW_BITS
    with pa.memory_map(path) as source, pa.ipc.open_file(source) as reader:
        for k in range(reader.num_record_batches):
            rows = reader.get_batch(k)
            offsets = np.arange(offset, offset + rows.num_rows, dtype=np.int64)
            redelivered = rows.column("redelivered").to_numpy(zero_copy_only=False)
            names = ("exchange", "routing_key", "properties", "body")
            yield Messages(offsets, redelivered, *(_buffers(rows.column(name)) for name in names))
            offset += rows.num_rows


def _buffers(array: pa.Array) -> tuple[Any, Any]:
    _, borders, data = array.buffers()
    # a file's batches start at 0, but their buffers may be padded
    return borders[: 4 * len(array) + 4], data if data is not None else b""


class Staging:
    """The directory, open and locked. Raises SourceError if it cannot be used."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._take_lock()
            self.identity = self._identify()
            self._shelves: dict[str, Shelf] = {}
        except OSError as error:
            raise unusable(error, path) from None

    def shelf(self, queue: str) -> Shelf:
        """Return the shelf of a queue. Raise SourceError if its directory cannot be used."""
        found = self._shelves.get(queue)
        if found is None:
            try:
                found = self._shelves[queue] = Shelf(self.path / _directory(queue))
            except OSError as error:
                raise unusable(error, str(self.path)) from None
        return found

    def close(self) -> None:
        """Close the directory, so that another driver may open it."""
        os.close(self._lock)

    def _take_lock(self) -> None:
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(self._lock)
                    raise SourceError(
                        f"option stagingLocation: {self.path} is in use by another query that is running: stop it, or"
                        " give each query a directory of its own"
                    ) from None
                time.sleep(0.1)

    def _identify(self) -> str:
        file = self.path / "identity"
        if not file.exists():
            _write_durably(file, lambda out: out.write(uuid.uuid4().hex.encode()))
        return file.read_text()


class Shelf:
    """The staged files of one queue, and the ids that identify messages that come again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)
        for torn in directory.glob("*.tmp"):
            torn.unlink()
        self.files = sorted(int(file.stem) for file in directory.glob("*.arrow"))
        self.next = self.files[-1] + 1 if self.files else 0
        """The number of the next file."""
        self._settled: dict[bytes, None] = {}
        if (directory / "ids").exists():
            self._settled = dict.fromkeys(_ids_of(directory / "ids"))
        self._known = dict.fromkeys(self._settled)
        for number in self.files:
            self._known.update(dict.fromkeys(_ids_of(self.file(number))))

    def file(self, number: int) -> Path:
        return self.directory / f"{number:020d}.arrow"

    def fresh(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows without redelivered messages that are staged already, or were settled lately."""
        again = rows.column("redelivered").to_numpy(zero_copy_only=False)
        if not again.any():
            return rows
        ids = rows.column("message_id").to_pylist()
        keep = [not (flag and name and name in self._known) for flag, name in zip(again, ids, strict=True)]
        return rows.filter(pa.array(keep))

    def add(self, batches: Sequence[pa.RecordBatch]) -> int:
        """Write the next file. Return its number when it is durable."""
        number = self.next
        rows = pa.Table.from_batches(batches).drop_columns([TAG]).combine_chunks()
        try:
            _write_durably(self.file(number), lambda out: _write_arrow(out, rows))
        except OSError as error:
            raise unusable(error, str(self.directory)) from None
        self.next = number + 1
        self.files.append(number)
        for batch in batches:
            self._known.update(
                dict.fromkeys(name for name in batch.column("message_id").to_pylist() if name is not None)
            )
        return number

    def settle(self, end: int) -> None:
        """Delete the files before number `end`; their ids stay known for a while."""
        due = [number for number in self.files if number < end]
        if not due:
            return
        for number in due:
            self._settled.update(dict.fromkeys(_ids_of(self.file(number))))
        for name in list(self._settled)[: max(0, len(self._settled) - REMEMBERED)]:
            del self._settled[name]
            self._known.pop(name, None)
        ids = pa.table([pa.array(list(self._settled), pa.binary())], schema=pa.schema([_ID]))
        try:
            # the ids first: without them a message that comes again would look like a new one
            _write_durably(self.directory / "ids", lambda out: _write_arrow(out, ids))
            for number in due:
                self.file(number).unlink()
        except OSError as error:
            raise unusable(error, str(self.directory)) from None
        self.files = [number for number in self.files if number >= end]


def unusable(error: OSError, path: str) -> SourceError:
    """Return the error for a staging directory that the system does not let us use."""
    return SourceError(
        f"option stagingLocation: {error.filename or path}: {error.strerror or error}; nothing is lost, what was not staged"
        " is still in its queue. Make room or give the permission, then start the query again"
    )


def _directory(queue: str) -> str:
    name = f"queue-{quote(queue, safe='')}"
    if len(name) <= 200:
        return name
    return f"{name[:150]}-{hashlib.blake2b(queue.encode(), digest_size=16).hexdigest()}"


def _ids_of(path: Path) -> list[bytes]:
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        found = [
            reader.get_batch(k).column("message_id").drop_null().to_pylist() for k in range(reader.num_record_batches)
        ]
    return [name for names in found for name in names]


def _write_arrow(out: IO[bytes], rows: pa.Table) -> None:
    with pa.ipc.new_file(out, rows.schema) as writer:
        writer.write_table(rows)


def _write_durably(path: Path, write: Any) -> None:
    """Write a file that exists completely or not at all, whatever happens. It is durable on return."""
    torn = path.with_name(f"{path.name}.tmp")
    try:
        with torn.open("wb") as out:
            write(out)
            out.flush()
            os.fsync(out.fileno())
    except OSError:
        torn.unlink(missing_ok=True)  # on a full disk the incomplete file takes space
        raise
    torn.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
