"""Verifies the batches of a follower's segments before they are stored, and counts them.

So a broker that starts on the directory need not read a segment that is not sealed yet (docs/adr/0037). Segments that the follower had
before are counted while it reads them to compare them with the leader's. What it has got from the leader then is counted in the background.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from kvitto.cluster.records import StreamError
from kvitto.cluster.tree import Node
from kvitto.format.layouts import BATCH, BATCH_MAGIC, FOOTER_MAGIC, SEGMENT_MAGIC
from kvitto.store import paths
from kvitto.store.batch import BatchHeader
from kvitto.store.disk import File
from kvitto.store.segment import HEADER, Segment, created_ms, foreign, header_is_valid, salts, valid_at

LOOK_MS = 250
LOOK_BYTES = 32 << 20
"""Every LOOK_MS about this many bytes are read of segments that were not counted while they were written."""


class Copy(Node):
    """A file of the follower."""

    __slots__ = ("file", "learned", "original", "segment")

    def __init__(self, number: int, length: int = 0) -> None:
        super().__init__(number, length)
        self.file: File | None = None
        self.original = 0
        """While files are compared: how many bytes the follower had before that are not known to be the leader's. They are kept if they are
        replaced."""
        self.learned = False
        """Whether the header of the file has been read. If so, `segment` says what has been verified."""
        self.segment: Segment | None = None
        """The batches that have been verified and counted, None if the file is no segment, or one that is sealed or damaged."""

    def cut(self, length: int) -> None:
        """Forget what has been counted if some of it is behind `length`, because only the bytes before that are known to be left."""
        if self.segment is None or length < self.segment.size:
            self.learned, self.segment = False, None


class Counting:
    def __init__(self, file: Callable[[Copy], File]) -> None:
        """`file` opens a file of the follower."""
        self._file = file
        self._left: deque[Copy] = deque()
        """The files that may not have been counted while they were written, and that have not been looked into yet."""
        self._looked_ms = 0

    def begin(self, nodes: Iterable[Copy], now_ms: int) -> None:
        """Begin to look into files that may not have been counted while they were written."""
        self._left, self._looked_ms = deque(nodes), now_ms

    def clear(self) -> None:
        self._left.clear()

    def look(self, now_ms: int) -> None:
        """Look into some more of these files if LOOK_MS have passed."""
        if not self._left or now_ms - self._looked_ms < LOOK_MS:
            return
        left, self._looked_ms = LOOK_BYTES, now_ms
        while self._left and left > 0:
            node = self._left.popleft()
            if node.paths and not node.learned and is_segment(node.paths[0]):
                self._learn(node)
                left -= node.length if node.segment is not None else 0

    def write(self, node: Copy, position: int, data: bytes) -> None:
        """Verify the whole batches in a write. Raises StreamError if one is not what the leader's broker has built."""
        if not is_segment(node.paths[0]):
            return
        at = 0
        if not node.learned:
            if position == 0 and len(data) >= HEADER:
                self._begin(node, data[:HEADER])
                at = HEADER
            else:
                self._learn(node)
        segment = node.segment
        if segment is None or position + at != segment.size:
            return
        at = count_whole(node.paths[0], segment, data, at)
        if data.startswith(FOOTER_MAGIC, at):
            node.segment = None  # it is sealed, and says itself what is in it

    def rest(self, node: Copy) -> None:
        """Verify the batches that have been written in parts: the header of a large batch is written last. Raises StreamError."""
        segment = node.segment
        if segment is None or segment.size >= node.length:
            return
        file = self._file(node)
        while (size := batch_size(file.read_at(segment.size, BATCH.size), 0)) and segment.size + size <= node.length:
            count(node.paths[0], segment, file.read_at(segment.size, size), 0)

    def _learn(self, node: Copy) -> None:
        """Find out where the batches end in a segment that existed before. Damage in it was not caused by this connection."""
        file = self._file(node)
        self._begin(node, file.read_at(0, HEADER))
        segment = node.segment
        if segment is None:
            return
        segment.file = file
        sealed = segment.read_footer()
        segment.file = None
        try:
            if sealed:
                node.segment = None
            else:
                self.rest(node)
        except StreamError:
            node.segment = None

    @staticmethod
    def _begin(node: Copy, head: bytes) -> None:
        node.learned, node.segment = True, segment_with(node.paths[0], head)


class Reading:
    """Counts the batches of a segment whose bytes come piece by piece, from the beginning to the end of the file."""

    def __init__(self, path: str, length: int) -> None:
        """`length`: that of the file."""
        self.segment: Segment | None = None
        """The batches that have been counted. It is None if the file is not a segment, or is a sealed or damaged one."""
        self._path = path
        self._length = length
        self._rest = b""
        """The bytes behind the last whole batch that has been counted."""
        self._begun = False
        self._over = not is_segment(path)
        """Whether no batch follows, only room."""

    def feed(self, data: bytes) -> None:
        if self._over:
            self._look_at_room(data)
            return
        data = self._rest + data
        at = 0
        if not self._begun:
            if len(data) < HEADER:
                self._rest = data
                return
            self._begun, at = True, HEADER
            self.segment = segment_with(self._path, data[:HEADER])
        segment = self.segment
        if segment is not None:
            try:
                at = count_whole(self._path, segment, data, at)
            except StreamError:
                segment = None
        self._rest = data[at:]
        if segment is None or self._rest.startswith(FOOTER_MAGIC):
            self.segment, self._over = None, True
        elif len(self._rest) >= BATCH.size and not 0 < batch_size(self._rest, 0) <= self._length - segment.size:
            self._over = True
            self.end()

    def end(self) -> None:
        """Take what has come since the last whole batch for room: the file has ended, or no batch begins there."""
        self._look_at_room(self._rest)
        self._rest = b""

    def _look_at_room(self, data: bytes) -> None:
        """Room is zeros. Other bytes are damage, or a batch that was never written whole."""
        if self.segment is not None and data.strip(b"\0"):
            self.segment = None


def segment_with(path: str, head: bytes) -> Segment | None:
    """Return an empty segment with this header. Return None unless the header is valid, belongs to this path, and has two equal salts."""
    directory, _, name = path.rpartition("/")
    base, (salt, copy) = paths.base_of(name), salts(head)
    queue_id = directory.rpartition("/")[2]
    if not header_is_valid(head, SEGMENT_MAGIC) or salt != copy or foreign(head, SEGMENT_MAGIC, queue_id, base):
        return None
    segment = Segment(base)
    segment.salt, segment.created_ms, segment.gaps = salt, created_ms(head), []
    return segment


def count_whole(path: str, segment: Segment, data: bytes, at: int) -> int:
    """Verify and count the whole batches that begin at `at`. Return where they end. Raises StreamError."""
    while (size := batch_size(data, at)) and at + size <= len(data):
        count(path, segment, data, at)
        at += size
    return at


def count(path: str, segment: Segment, data: bytes, at: int) -> None:
    """Verify and count the batch that begins at `at` in `data`. It has to be the next one of its segment. Raises StreamError."""
    head = BatchHeader(data, at)
    if not valid_at(data, at, head, segment.salt) or head.first < segment.end:
        raise StreamError(f"a batch of {path} at {segment.size} that does not fit its checksum")
    segment.count_batch(head, segment.size)


def is_segment(path: str) -> bool:
    return path.startswith(paths.QUEUES + "/") and path.endswith(paths.SEGMENT_SUFFIX)


def batch_size(data: bytes, at: int) -> int:
    """Return the size of the batch that begins at `at`, as its header says, 0 if none begins there."""
    if len(data) - at < BATCH.size:
        return 0
    head = BATCH.read(data, at)
    return head.length if head.magic == BATCH_MAGIC and head.length >= BATCH.size else 0
