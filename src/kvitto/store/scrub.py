"""Verifies the files of a data directory while a broker or a follower uses it, in small steps (docs/adr/0038).

It goes by the same checksums and layouts as a start and `kvitto check`, and reads each byte once, a piece at a time. Files may grow, be
cut at their end, renamed and removed meanwhile. That is no damage: what does not verify is looked at again, and only what is still the
same then, in a file that still has its name, is told of. The caller decides how fast the steps are taken, and in which thread.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import xxhash

from kvitto.base.errors import StoreError
from kvitto.format.layouts import (
    BATCH,
    BATCH_MAGIC,
    BLOCK,
    BLOCK_MAGIC,
    FOOTER,
    FOOTER_END,
    FOOTER_MAGIC,
    GAP_MAX,
    PREFIX,
    RECORD,
    RECORD_MAGIC,
    SEGMENT_MAGIC,
    SETTLEMENTS_MAGIC,
)
from kvitto.store import inventory, paths, slot
from kvitto.store.batch import BatchHeader
from kvitto.store.disk import Disk, File, without_read_ahead
from kvitto.store.inventory import Sizes
from kvitto.store.line import DIGITS, is_whole, owned
from kvitto.store.segment import FOOTER_LEAST, HEADER, footer_length, footer_position, foreign, header_is_valid, salts
from kvitto.store.store import FORMAT, WITHOUT_INVENTORY

PIECE = 64 << 10
"""A step reads about this many bytes."""
FRAME_COST = 2 << 10
"""The least cost of a batch, a block or a record: the time that a small one takes does not depend on its size."""
FILE_COST = PIECE
AGAIN_COST = 2 << 20
"""The cost that stands for the pause before a second look."""
SEARCHED_MAX = 1 << 30
"""Behind damage at most this many bytes are checked for a frame that verifies: a body may be full of bytes that look like the beginning
of one."""
COMPARED = 4096
"""A second look takes damage for the same if this many bytes at its beginning are the same."""

Steps = Generator[int, None, "list[Damage]"]
"""Yields what each step has cost, in bytes, and returns what has been found."""


@dataclass(frozen=True)
class Damage:
    """Bytes at..until of a file that do not verify. `offsets`: the first and the end of the messages that are lost with them, if known."""

    path: str
    at: int
    until: int
    text: str
    offsets: tuple[int, int] | None = None
    content: int = 0
    """A checksum of its beginning, by which a second look recognises it."""

    def __str__(self) -> str:
        lost = f", and with them offsets {self.offsets[0]} to {self.offsets[1] - 1}" if self.offsets else ""
        return f"{self.path}, byte {self.at}: {self.text}{lost}"


class Changed(Exception):
    """A file has become shorter, or has gone, since it was looked at."""


class Source:
    """A file that is read block by block. `data` has the bytes from `start` to `end`."""

    def __init__(self, file: File, path: str) -> None:
        self.path = path
        self.size = file.size()
        self.data = b""
        self.start = self.end = 0
        self.is_sealed = False
        """Whether nothing is written to the file any more."""
        self.may_pass_cache = True
        """Whether such a file is read from the device even where the system's cache has it."""
        self._file = file
        without_read_ahead(file)  # what is read ahead would stay in the cache

    def load(self, at: int, n: int) -> int:
        """Have `n` bytes from `at` on in `data`, or all up to the end of the file. Returns how many bytes were read."""
        until = min(at + n, self.size)
        if self.start <= at and until <= self.end:
            return 0
        begin, parts, read = at - at % PIECE, [], 0
        if self.start <= begin < self.end:
            parts.append(self.data[begin - self.start :])
            begin, self.start = self.end, begin
        else:
            self.start = begin
        while begin < until:
            data = read_quietly(
                self._file, begin, min(PIECE, self.size - begin), self.is_sealed and self.may_pass_cache
            )
            parts.append(data)
            begin, read = begin + len(data), read + len(data)
            if len(data) < PIECE and begin < until:
                raise Changed(self.path)
        self.data, self.end = b"".join(parts), begin
        return read

    def bytes_at(self, at: int, n: int) -> bytes:
        self.load(at, n)
        return self.data[at - self.start : at - self.start + n]


def read_quietly(file: File, at: int, n: int, past_cache: bool) -> bytes:
    """Read a piece, and leave the system's cache as it was. `past_cache`: read from the device even if the cache has the piece."""
    fd, buffer = file.fileno(), bytearray(n)
    if fd < 0 or not hasattr(os, "RWF_NOWAIT"):
        return file.read_at(at, n)
    try:
        cached = os.preadv(fd, [buffer], at, os.RWF_NOWAIT) == n
    except OSError as error:
        if error.errno != errno.EAGAIN:  # this file system does not tell
            return file.read_at(at, n)
        cached = False
    if cached and not past_cache:
        return bytes(buffer)
    if cached:
        os.posix_fadvise(fd, at, n, os.POSIX_FADV_DONTNEED)
    data = file.read_at(at, n)
    if not cached:
        os.posix_fadvise(fd, at, n, os.POSIX_FADV_DONTNEED)
    return data


# -- batches, blocks and records -------------------------------------------------------------------------------


class Frame(NamedTuple):
    """What the head of a batch, a block or a record says. `first` and `end` are offsets; those of a block and a record are 0."""

    length: int
    checksum: int
    first: int = 0
    end: int = 0


class Form(NamedTuple):
    magic: bytes
    head: Callable[[bytes, int], Frame | None]


def _batch(data: bytes, at: int) -> Frame | None:
    head = BatchHeader(data, at)
    return Frame(head.length, head.checksum, head.first, head.end) if head.length else None


def _block(data: bytes, at: int) -> Frame | None:
    if len(data) - at < BLOCK.size:
        return None
    head = BLOCK.read(data, at)
    return Frame(head.length, head.checksum) if head.magic == BLOCK_MAGIC and head.length >= BLOCK.size else None


def _record(data: bytes, at: int) -> Frame | None:
    if len(data) - at < RECORD.size:
        return None
    head = RECORD.read(data, at)
    return Frame(head.length, head.checksum) if head.magic == RECORD_MAGIC and head.length >= RECORD.size else None


BATCHES, BLOCKS, RECORDS = Form(BATCH_MAGIC, _batch), Form(BLOCK_MAGIC, _block), Form(RECORD_MAGIC, _record)
HEAD_MOST = max(BATCH.size, BLOCK.size, RECORD.size)


class Hole(NamedTuple):
    """Bytes in which no frame verifies, and the offsets that are missing between the frames before and behind them."""

    at: int
    until: int
    first: int
    end: int


class Walk:
    """Verifies the frames of a file from `at` to `until`, one behind the other."""

    def __init__(self, source: Source, form: Form, seed: int, at: int, until: int, first: int = 0) -> None:
        self.holes: list[Hole] = []
        """The places that do not verify, each with a frame behind it that does."""
        self.end_at = at
        """The position behind the last frame that verifies."""
        self.end = first
        """The offset behind those of that frame."""
        self.count = 0
        """How many offsets the frames hold."""
        self.searched = 0
        self._source = source
        self._form = form
        self._seed = seed
        self._at = at
        self._until = until

    def run(self) -> Iterator[int]:
        source, at, bad, cost = self._source, self._at, -1, 0
        while at < self._until:
            cost += source.load(at, HEAD_MOST)
            frame = self._form.head(source.data, at - source.start)
            good = False
            if frame is not None and self._fits(frame, at, bad):
                cost += FRAME_COST
                if frame.length <= PIECE:
                    cost += source.load(at, frame.length)
                    begin = at - source.start
                    body = memoryview(source.data)[begin + PREFIX.size : begin + frame.length]
                    good = xxhash.xxh3_64_intdigest(body, self._seed) == frame.checksum
                else:
                    digest, p = xxhash.xxh3_64(seed=self._seed), at + PREFIX.size
                    while p < at + frame.length:
                        cost += source.load(p, 1)
                        end = min(source.end, at + frame.length)
                        digest.update(memoryview(source.data)[p - source.start : end - source.start])
                        p = end
                        if cost >= PIECE:
                            yield cost
                            cost = 0
                    good = digest.intdigest() == frame.checksum
                if not good:
                    self.searched += frame.length
            if good:
                assert frame is not None
                if bad >= 0:
                    self.holes.append(Hole(bad, at, self.end, frame.first))
                    bad = -1
                self.count += frame.end - frame.first
                at += frame.length
                self.end_at, self.end = at, frame.end
            elif self.searched > SEARCHED_MAX:
                return
            else:
                bad = at if bad < 0 else bad
                at = yield from self._next(at + 1, cost)
                cost = 0
            if cost >= PIECE:
                yield cost
                cost = 0
        yield cost

    def _fits(self, frame: Frame, at: int, bad: int) -> bool:
        return at + frame.length <= self._until and self.end <= frame.first <= (
            frame.first if bad < 0 else self.end + GAP_MAX
        )

    def _next(self, at: int, cost: int) -> Generator[int, None, int]:
        """Return where the next frame may begin, from `at` on."""
        source, magic = self._source, self._form.magic
        while at < self._until:
            cost += source.load(at, len(magic))
            found = source.data.find(magic, at - source.start)
            if found >= 0:
                yield cost
                return min(found + source.start, self._until)
            at = max(at + 1, source.end - len(magic) + 1)
            if source.end >= source.size:
                break
            yield cost
            cost = 0
        yield cost
        return self._until


# -- files -----------------------------------------------------------------------------------------------------


def look_at(disk: Disk, path: str, sizes: Sizes = inventory.UNKNOWN, past_cache: bool = True) -> Steps:
    """Verify one file, twice if something does not verify. Returns what is damaged for certain.

    `sizes`: what the inventory has said of the file, before it was looked at. `past_cache`: whether files that are not written any more are
    read from the device. Nothing is found in a file that is gone, or of no known kind.
    """
    found = yield from _look(disk, path, sizes, past_cache)
    if found:
        yield AGAIN_COST
        again = yield from _look(disk, path, sizes, past_cache)
        found = [damage for damage in again if damage in found and disk.exists(path)]
    return found


def _look(disk: Disk, path: str, sizes: Sizes, past_cache: bool) -> Steps:
    verify = _verifier(path)
    if verify is None:
        return []
    try:
        if not disk.exists(path):
            return []
        file = disk.open(path)
    except StoreError:  # it has gone since
        return []
    try:
        source = Source(file, path)
        source.may_pass_cache = past_cache
        return (yield from verify(disk, source, sizes))
    except Changed:
        return []
    except StoreError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EIO:
            return []  # closed by the end of the broker
        at = source.end
        return [Damage(path, at, at + PIECE, "the device cannot read it: see the system log")]
    finally:
        file.close()


def _verifier(path: str) -> Callable[[Disk, Source, Sizes], Steps] | None:
    directory, _, name = path.rpartition("/")
    top, _, queue_id = directory.partition("/")
    if path == paths.DEFINITIONS:
        return _definitions
    if path == paths.INVENTORY:
        return _inventory
    if path == paths.FORMAT:
        return _format
    if directory == paths.JOURNALS and paths.journal_of(name) is not None:
        return _journal
    if top not in (paths.QUEUES, paths.ARCHIVE) or not paths.is_queue_id(queue_id):
        return None
    if path == paths.offsets(directory):
        return _offsets
    if path == paths.about(directory):
        return _about
    base = paths.base_of(name)
    if name == paths.segment("", base).strip("/"):
        return _segment
    return _settlements if name == paths.settlements("", base).strip("/") else None


def _damage(source: Source, at: int, until: int, text: str, offsets: tuple[int, int] | None = None) -> Damage:
    content = xxhash.xxh3_64_intdigest(source.bytes_at(at, min(COMPARED, max(until - at, 0))))
    return Damage(source.path, at, until, text, offsets, content)


def _segment(disk: Disk, source: Source, sizes: Sizes) -> Steps:
    directory, _, name = source.path.rpartition("/")
    top, _, queue_id = directory.partition("/")
    base = paths.base_of(name)
    head = source.bytes_at(0, HEADER)
    if len(head) < HEADER:  # it has just been made
        return [_damage(source, 0, len(head), "it ends here, although it had been synced")] if sizes[0] else []
    if whose := foreign(head, SEGMENT_MAGIC, queue_id, base):
        return [_damage(source, 0, HEADER, f"its header says that it is {whose}")]
    found: list[Damage] = []
    salt, copy = salts(head)
    if not header_is_valid(head, SEGMENT_MAGIC):
        found.append(_damage(source, 0, HEADER, "the segment's header is damaged"))
        salt = yield from _right_salt(source, base, salt, copy)
        if not salt:
            return found
    elif salt != copy:
        found.append(_damage(source, HEADER - 8, HEADER, "the copy of the salt in its header is damaged"))
    footer = _footer(source, salt)
    source.is_sealed = footer is not None
    until = source.size if footer is None else footer.position
    walk = Walk(source, BATCHES, salt, HEADER, until, base)
    yield from walk.run()
    if footer is not None and walk.end_at < until:
        walk.holes.append(Hole(walk.end_at, until, walk.end, footer.end))
    for hole in walk.holes:
        lost = (hole.first, hole.end) if hole.end > hole.first else None
        found.append(_damage(source, hole.at, hole.until, f"{hole.until - hole.at} bytes cannot be read", lost))
    if footer is not None:
        if not walk.holes and walk.count != footer.messages:
            text = f"its footer counts {footer.messages} messages, its batches {walk.count}"
            found.append(_damage(source, until, source.size, text))
        return found
    is_last = top == paths.QUEUES and not any(paths.base_of(n) > base for n in _segments(disk, directory))
    found += yield from _tail(source, walk.end_at, sizes[0], not is_last)
    return found


def _segments(disk: Disk, directory: str) -> list[str]:
    return [name for name in disk.listdir(directory) if name.endswith(paths.SEGMENT_SUFFIX)]


def _right_salt(source: Source, base: int, *salts_: int) -> Generator[int, None, int]:
    """Return the salt by which the file's batches verify, 0 if neither does. Zeros are no salt (docs/formats.md)."""
    for salt in filter(None, salts_):
        walk = Walk(source, BATCHES, salt, HEADER, source.size, base)
        for cost in walk.run():
            yield cost
            if walk.end_at > HEADER:
                return salt
    return 0


class Sealed(NamedTuple):
    """What a valid footer says."""

    position: int
    end: int
    messages: int


def _footer(source: Source, salt: int) -> Sealed | None:
    if source.size < HEADER + FOOTER_LEAST:
        return None
    position = footer_position(source.bytes_at(source.size - FOOTER_END.size, FOOTER_END.size))
    if not max(HEADER, source.size - (1 << 20)) <= position <= source.size - FOOTER_LEAST:
        return None
    data = source.bytes_at(position, source.size - position)
    if not data.startswith(FOOTER_MAGIC) or footer_length(data) != len(data):
        return None
    end = FOOTER_END.read(data, len(data) - FOOTER_END.size)
    if xxhash.xxh3_64_intdigest(data[: -FOOTER_END.size], salt) != end.checksum:
        return None
    footer = FOOTER.read(data)
    return Sealed(position, footer.end, footer.messages)


def _tail(source: Source, at: int, synced: int, complete: bool) -> Steps:
    """Judge what follows the last frame that verifies. `synced`: so many bytes are known to be synced. `complete`: nothing is written
    there any more, so that only zeros may follow, which is room that was reserved."""
    if synced > at:
        return [_damage(source, at, synced, f"it cannot be read from here on, and had been synced up to byte {synced}")]
    begin, rest = at, source.bytes_at(at, min(PIECE, source.size - at))
    if rest.startswith(FOOTER_MAGIC) or footer_position(rest) == at >= HEADER:
        return [_damage(source, at, source.size, "its footer is damaged; its messages can be read")]
    if not complete:
        return []
    while at < source.size:
        yield source.load(at, 1)
        if source.data[at - source.start :].strip(b"\0"):
            return [_damage(source, begin, source.size, "its end is damaged")]
        at = source.end
    return []


def _settlements(_disk: Disk, source: Source, sizes: Sizes) -> Steps:
    directory, _, name = source.path.rpartition("/")
    top, _, queue_id = directory.partition("/")
    source.is_sealed = top == paths.ARCHIVE
    head = source.bytes_at(0, HEADER)
    if len(head) < HEADER:
        return [_damage(source, 0, len(head), "it ends here, although it had been synced")] if sizes[1] else []
    if whose := foreign(head, SETTLEMENTS_MAGIC, queue_id, paths.base_of(name)):
        return [_damage(source, 0, HEADER, f"its header says that it is {whose}")]
    found: list[Damage] = []
    if not header_is_valid(head, SETTLEMENTS_MAGIC) or len(set(salts(head))) > 1:
        found.append(_damage(source, 0, HEADER, "the settlement log's header is damaged"))
    walk = Walk(source, BLOCKS, 0, HEADER, source.size)
    yield from walk.run()
    for hole in walk.holes:
        text = f"{hole.until - hole.at} bytes of settlements cannot be read: what they had settled comes again, flagged"
        found.append(_damage(source, hole.at, hole.until, text))
    found += yield from _tail(source, walk.end_at, sizes[1], top == paths.ARCHIVE)
    return found


def _journal(_disk: Disk, source: Source, sizes: Sizes) -> Steps:
    known = paths.journal_of(source.path.rpartition("/")[2])
    assert known is not None
    walk = Walk(source, RECORDS, known[1], 0, source.size)
    yield from walk.run()
    found = []
    for hole in walk.holes:
        text = (
            f"{hole.until - hole.at} bytes of transactions or dead letters cannot be read: no broker would start here"
        )
        found.append(_damage(source, hole.at, hole.until, text))
    found += yield from _tail(source, walk.end_at, sizes[0], False)
    return found


def _lines(source: Source) -> Iterator[tuple[int, bytes]]:
    """Yield the position of each line, and the line."""
    at = 0
    while at < source.size:
        n = PIECE
        while True:
            source.load(at, n)
            end = source.data.find(b"\n", at - source.start) + 1
            if end or source.end >= source.size:
                break
            n *= 2
        line = source.data[at - source.start : end or len(source.data)]
        yield at, line
        at += len(line)


def _definitions(_disk: Disk, source: Source, _sizes: Sizes) -> Steps:
    found, cost = list[Damage](), 0
    for at, line in _lines(source):
        if not is_whole(line):
            text = f"a line of {len(line)} bytes is damaged: no broker would start here"
            found.append(_damage(source, at, at + len(line), text))
        cost += max(len(line), FRAME_COST)
        if cost >= PIECE:
            yield cost
            cost = 0
    yield cost
    return found


def _offsets(_disk: Disk, source: Source, _sizes: Sizes) -> Steps:
    seed, found, cost = slot.seed_of(source.path.split("/")[1]), list[Damage](), 0
    for at in range(0, source.size - slot.SLOT + 1, slot.SLOT):
        content = source.bytes_at(at, slot.SLOT)
        if any(content) and slot.entry(0, content, seed) is None:
            text = "how far a named consumer has read cannot be read"
            found.append(_damage(source, at, at + slot.SLOT, text))
        cost += FRAME_COST
        if cost >= PIECE:
            yield cost
            cost = 0
    yield cost
    return found


def _format(_disk: Disk, source: Source, _sizes: Sizes) -> Steps:
    yield 0
    good = source.bytes_at(0, source.size) in (FORMAT, WITHOUT_INVENTORY)
    return [] if good else [_damage(source, 0, source.size, "it does not name a format: no broker would start here")]


def _about(_disk: Disk, source: Source, _sizes: Sizes) -> Steps:
    """It has no checksum, so not all damage is found."""
    yield 0
    try:
        found = json.loads(source.bytes_at(0, source.size))
        good = isinstance(found, dict) and found.get("id") == source.path.split("/")[1]
    except ValueError:
        good = False
    return [] if good else [_damage(source, 0, source.size, "it does not say which queue this is")]


def _inventory(_disk: Disk, source: Source, _sizes: Sizes) -> Steps:
    header = inventory.read(source.bytes_at(0, inventory.SLOT), True, True)
    found = [_damage(source, at, at + inventory.HALF, text) for text, at in header.damage]
    for piece, first in _entries(source):
        yield len(piece)
        for text, at in inventory.read(piece, True, False).damage:
            place = first + at - inventory.SLOT
            found.append(_damage(source, place, place + inventory.HALF, text))
    return found


def _entries(source: Source) -> Iterator[tuple[bytes, int]]:
    """Yield the slots of an inventory, some at a time, each time behind a whole header, with the position of the first one."""
    many = 64
    for at in range(inventory.SLOT, source.size, many * inventory.SLOT):
        slots = min(many, (source.size - at) // inventory.SLOT)
        yield inventory.header(slots) + source.bytes_at(at, slots * inventory.SLOT), at


# -- a directory -----------------------------------------------------------------------------------------------


class Pass:
    """One look at all files of a data directory."""

    def __init__(self, disk: Disk, tell: Callable[[Damage, str], None]) -> None:
        """`tell` is called with what is damaged for certain, and with the owner of the file in words."""
        self._disk = disk
        self._tell = tell
        self._known: dict[tuple[int, str, int], Sizes] = {}
        self.files = 0
        """How many files have been looked at."""

    def run(self) -> Generator[int, None, None]:
        """Look at one file after the other. Yields what each step has cost, in bytes. Raises StoreError if a directory cannot be listed."""
        yield from self._read_known()
        for path, key in self._paths():
            yield FILE_COST
            found = yield from look_at(self._disk, path, self._known.get(key, inventory.UNKNOWN))
            self.files += 1
            whose = (yield from self._owner(path)) if found else ""
            for damage in found:
                self._tell(damage, whose)

    def _read_known(self) -> Iterator[int]:
        """Read how much of each file has been synced. A file is looked at later, so it has at least that."""
        if not self._disk.exists(paths.INVENTORY):
            return
        file = self._disk.open(paths.INVENTORY)
        try:
            for piece, _ in _entries(Source(file, paths.INVENTORY)):
                for entry in inventory.read(piece, True, False).entries:
                    if entry.kind in (inventory.SEGMENT, inventory.JOURNAL) and any(entry.sizes):
                        self._known[entry.kind, entry.queue_id, entry.number] = entry.sizes
                yield len(piece)
        except Changed:
            pass
        finally:
            file.close()

    def _paths(self) -> Iterator[tuple[str, tuple[int, str, int]]]:
        """Yield the path of each file, with the key by which the inventory may know it."""
        disk, none = self._disk, (0, "", 0)
        yield paths.INVENTORY, none
        yield paths.DEFINITIONS, none
        yield paths.FORMAT, none
        for name in disk.listdir(paths.JOURNALS):
            known = paths.journal_of(name)
            yield f"{paths.JOURNALS}/{name}", (inventory.JOURNAL, inventory.NOBODY, known[0] if known else 0)
        for top in (paths.QUEUES, paths.ARCHIVE):
            for queue_id in disk.listdir(top):
                for name in disk.listdir(f"{top}/{queue_id}") if paths.is_queue_id(queue_id) else ():
                    kind = inventory.SEGMENT if top == paths.QUEUES else 0
                    yield f"{top}/{queue_id}/{name}", (kind, queue_id, paths.base_of(name))

    def _owner(self, path: str) -> Generator[int, None, str]:
        """Return to which queue or exchange a file belongs, in words; "" if the definitions do not say so."""
        parts, whose = path.split("/"), ""
        if len(parts) < 3 or not self._disk.exists(paths.DEFINITIONS):
            return ""
        file, wanted = self._disk.open(paths.DEFINITIONS), parts[1].encode()
        try:
            for _, line in _lines(Source(file, paths.DEFINITIONS)):
                yield max(len(line), FRAME_COST)
                if wanted in line and is_whole(line):
                    whose = _whose(json.loads(line[DIGITS + 1 :]), parts[1]) or whose
        except Changed:
            pass
        finally:
            file.close()
        return whose


def _whose(change: dict[str, object], queue_id: str) -> str:
    kind, key, value = str(change["kind"]), change["key"], change.get("value")
    if not isinstance(key, list) or not isinstance(value, dict) or queue_id not in owned(kind, value):
        return ""
    return f"{kind} '{key[1]}' in vhost '{key[0]}'"
