"""The leader's side of one connection to a follower: what it says, in which order, without a socket (docs/adr/0032).

The server gives it what the follower sends (`take`), and asks it for what to send as long as the socket has room (`pieces`). Each call does
a little: at most STEP_BYTES of records, or one chunk of a file. Nothing here ever waits, so a follower that is slow or silent holds up
nobody; if the ring has not kept what it needs, its connection ends, and it compares its files anew.

**Comparing.** The follower sends checksums of its files. The leader first looks which of them are the same, while the follower waits and
changes nothing. Then it takes all names at one place of the stream, and sends them; and from then on, in turns, the records from that place
on, and of each file what differs. A chunk has every change up to the place of the stream at which it is sent: it is read in that step of
the loop, or a thread has read it before (`read_ahead`) and nothing has changed it since. That needs steps between the operations of the
disk and not in the middle of one, where only records may be sent (`at_once`).
The follower may apply a change once more that a chunk has had already, which changes nothing, because writes have positions. When all files
have been sent, and all records up to that moment, the follower has what the leader has.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from kvitto.base.errors import StoreError
from kvitto.cluster import handshake, levels
from kvitto.cluster.handshake import FOLLOWER, LEADER, VERSION, Inbox, Refused
from kvitto.cluster.records import (
    ACKNOWLEDGEMENT,
    CHUNK_BYTES,
    DOUBTED,
    NAMED,
    SUM_BYTES,
    Decoder,
    Frames,
    Kind,
    Nonces,
    Record,
    StreamError,
    checksum,
    chunk_sum,
)
from kvitto.cluster.ring import Ring
from kvitto.cluster.tapping import TapDisk
from kvitto.cluster.tree import Node
from kvitto.store.disk import without_read_ahead
from kvitto.store.scrub import Damage, look_at

STEP_BYTES = 256 << 10
STEP_RECORDS = 400
"""A step sends at most so many bytes, or so many records, which takes about a millisecond."""
LINKS_MAX = 16
"""At most this many followers are accepted."""
NAMES_AT_ONCE = 400
MARKS_MAX = 10_000
TLS_BEGIN = b"\x16"
"""The first byte of a follower that speaks TLS."""
SUMS_BYTES_MAX = 256 << 20
"""The names and checksums that a follower may send: enough for some TiB."""


class Behind(Exception):
    """The ring has dropped records that have to be sent. The connection ends, and in the next one the follower compares its files."""


def never(_link: Link) -> bool:
    """Return that a connection is not silent. This is the `is_silent` of a leader that does not measure it."""
    return False


def ignore(_damage: Damage) -> None:
    """Tell nobody of damage. This is the `on_damage` of a leader without a broker."""


def always(_member: str) -> bool:
    """Let each follower's directory be changed."""
    return True


def own_level() -> int:
    """Return the level of a leader without elections: it writes the highest one that it knows."""
    return levels.LEVEL


class Leader:
    """What all links of a leader share."""

    def __init__(self, disk: TapDisk, ring: Ring, key: bytes) -> None:
        self.disk = disk
        self.ring = ring
        self.key = key
        self.history: list[str] = []
        self.session = handshake.nonce()
        """A random id of this run of the leader. Places count from its beginning."""
        self.cluster = ""
        """The id of the cluster, "" if there are no elections."""
        self.continued: tuple[str, int] | None = None
        """The run of the old leader whose stream goes on here, and the place up to which it is the same."""
        self.may_be_cut: Callable[[str], bool] = always
        """Whether the directory of this follower may be changed in other ways than the stream does (R7 of docs/cluster-model.md)."""
        self.level: Callable[[], int] = own_level
        """The level that a follower has to know."""
        self.links: list[Link] = []
        self.is_silent: Callable[[Link], bool] = never
        """Whether nothing has come over a connection for so long that the follower's process, or its machine, must be gone."""
        self.on_damage: Callable[[Damage], None] = ignore
        """Called with damage in a file of this leader that differs from a follower's."""
        self.kept: dict[str, set[str]] = {}
        """The files that are damaged here, each with the members that have been told to keep their own bytes."""


Step = bytes | tuple[bytes, bytes]
"""What one step of a comparison sends: bytes, in one piece or in two."""


class Read:
    """A read of one chunk of a file of the leader."""

    def __init__(self, disk: TapDisk, node: Node, at: int, since: int) -> None:
        """`since`: the next place of the stream."""
        self._disk = disk
        self._node = node
        self._path, self._at, self._size = node.paths[0], at, chunk_size(node, at)
        self._since, self._renames = since, disk.renames
        self._data = b""

    def run(self) -> None:
        """Read. A thread may call this while files change. If it fails, `found` has nothing."""
        with suppress(StoreError):
            self._data = read(self._disk, self._path, self._at, self._size)

    def found(self, node: Node, at: int) -> bytes | None:
        """Return what is at this place of a file now, None if it has not been read, or may have changed since."""
        disk = self._disk
        if node is not self._node or at != self._at or node.changed > self._since:
            return None
        if disk.tree.get(self._path) is not node or disk.renames != self._renames:
            return None
        return self._data if len(self._data) == self._size == chunk_size(node, at) else None


def chunk_size(node: Node, at: int) -> int:
    """Return the size of the chunk of a file that begins at `at`."""
    return min(CHUNK_BYTES, node.length - at)


def read(disk: TapDisk, path: str, at: int, size: int) -> bytes:
    """Read from a file of the leader. Raises StoreError."""
    file = disk.inner.open(path)
    try:
        without_read_ahead(file)  # the system may read some MiB ahead, and syncs would wait for all of them
        return file.read_at(at, size)
    finally:
        file.close()


class Link:
    def __init__(self, leader: Leader, where: str) -> None:
        self.leader = leader
        self.where = where
        self.state = "beginning"
        """The state that people are shown: beginning, comparing, copying or following."""
        self.member = self.process = ""
        self.level = levels.FIRST
        """The highest level that the follower knows."""
        self.acknowledged = 0
        """The place up to which the follower has synced everything."""
        self.behind_at = 0
        """The bytes of the stream up to that place."""
        self.free_bytes = 0
        self.sent = self.files = self.files_done = 0
        self.prefetch: tuple[str, int] | None = None
        """A chunk of a file that the next step reads: path and position. If a thread has read it before (`read_ahead`), the loop need not
        wait for the disk."""
        self._read: Read | None = None
        self.last_words = b""
        """The message to send after `take` has raised Refused."""
        self.waits = False
        """Whether the follower's directory may not be changed yet."""
        self.replaced = False
        """Whether the same follower has come again, because this connection is broken for it."""
        self._nonce = handshake.nonce()
        self._theirs = ""
        self._inbox = Inbox()
        self._begun = False
        self._out: list[bytes] = []
        self._secrets: Nonces | None = None
        self._frames: Frames
        self._decoder: Decoder | None = None
        self.place = 0
        """The place of the next record to send."""
        self._marks: deque[tuple[int, int]] = deque()
        """Places up to which records have been sent, with the bytes of the stream up to there."""
        self._sums: dict[str, tuple[int, bytes]] = {}
        self._sums_bytes = 0
        self._same: dict[str, tuple[Node, int]] = {}
        """The follower's files that are the same as these if these have not changed since this place."""
        self._found: list[tuple[str, Node]] = []
        self._steps: Iterator[Step] | None = None
        self._streaming = False
        self._done: int | None = None
        """The place of the DONE that the follower has not acknowledged yet."""

    @property
    def lag_bytes(self) -> int | None:
        """How many bytes of the stream the follower has not acknowledged. None while its files are compared."""
        return self.leader.ring.total - self.behind_at if self.state == "following" else None

    # -- what the follower sends -----------------------------------------------------------------------------------

    def take(self, data: bytes) -> None:
        """Handle received bytes. Raises StreamError or Refused; the caller then sends `last_words` and ends the connection."""
        if self._decoder is None:
            self._inbox.feed(data)
            if not self._begun and self._inbox.rest[:1] == TLS_BEGIN:
                self._refuse(
                    "the follower speaks TLS, and this leader does not: --cluster-tls-cert on both sides, or on neither"
                )
            if not self._begun and not self._inbox.magic():
                return
            self._begun = True
            while self._decoder is None and (found := self._inbox.next()) is not None:
                if self._secrets is None:
                    self._greet(found)
                else:
                    self._accept(found)
            data = self._inbox.rest
        if self._decoder is None:
            return
        for record in self._decoder.feed(data):
            self._answer(record)

    def _greet(self, found: dict[str, Any]) -> None:
        if found.get("version") != VERSION:
            self._refuse(f"the leader speaks version {VERSION} of the stream, the follower {found.get('version')}")
        self._theirs = str(found.get("nonce"))
        if len(self._theirs) != 2 * handshake.NONCE_BYTES:
            raise StreamError("a nonce that is none")
        key = self.leader.key
        self._secrets = handshake.nonces(key, self._theirs, self._nonce)
        self._frames = Frames(self._secrets.frames)
        said = {"version": VERSION, "nonce": self._nonce}
        self._out.append(handshake.proved(key, LEADER, self._theirs, self._nonce, said))

    def _accept(self, found: dict[str, Any]) -> None:
        leader, secrets = self.leader, self._secrets
        assert secrets is not None
        if not handshake.proves(leader.key, FOLLOWER, self._theirs, self._nonce, found):
            self._refuse("the follower has another key: --cluster-key has to be the same file on both sides")
        self.member, self.process = str(found.get("member")), str(found.get("process"))
        for other in leader.links:
            if other is self or other.member != self.member:
                continue
            if other.process == self.process or leader.is_silent(other):
                other.replaced = True
            else:
                self._refuse(
                    f"another process follows with a copy of the same directory, from {other.where}: "
                    "let one of them follow with an empty directory",
                    again=True,  # it may be an earlier one, whose last bytes have been on their way until now
                )
        if sum(bool(other.member) and not other.replaced for other in leader.links) > LINKS_MAX:
            self._refuse(f"there are {LINKS_MAX} followers already", again=True)
        if (theirs := str(found.get("cluster", ""))) != leader.cluster:
            what = (
                f"belongs to another cluster, {theirs[:8]}" if theirs else "belongs to no cluster: start it with --etcd"
            )
            self._refuse(f"the follower {what}")
        level = found.get("level")
        self.level = level if type(level) is int else levels.FIRST
        if self.level < leader.level():
            self._refuse(
                f"what is written here has level {leader.level()}, and the follower knows {self.level}: update the follower"
            )
        ring, place = leader.ring, self._resumes(found)
        resume = place is not None
        self.place = ring.next if place is None else place
        said = {"history": leader.history, "session": leader.session, "place": self.place, "resume": resume}
        said["cluster"] = leader.cluster
        self._out.append(handshake.proved(leader.key, LEADER, self._theirs, self._nonce, said))
        self._decoder = Decoder(0, 0, secrets.answers)
        if resume:
            self._follow()
            self.behind_at = ring.total_before(self.place)
        else:
            self.state = "comparing"

    def _resumes(self, found: dict[str, Any]) -> int | None:
        """Return the place at which the follower goes on, None if it has to compare its files."""
        leader, session, place = self.leader, found.get("session"), found.get("place")
        if not isinstance(place, int) or not leader.ring.first <= place <= leader.ring.next:
            return None
        if session == leader.session:
            return place
        if leader.continued is not None and session == leader.continued[0] and place <= leader.continued[1]:
            return place
        return None

    def _refuse(self, text: str, again: bool = False) -> NoReturn:
        self.last_words = handshake.message(refused=text, **({"again": True} if again else {}))
        raise Refused(text, again)

    def _answer(self, record: Record) -> None:
        kind, _, position, payload = record
        if kind == Kind.ACK and len(payload) == ACKNOWLEDGEMENT.size:
            _, place, self.free_bytes, _ = ACKNOWLEDGEMENT.unpack(payload)
            self._acknowledged(place)
        elif kind == Kind.SUMS and self._steps is None and not self._streaming:
            self._sums_bytes += len(payload) + 100
            if self._sums_bytes > SUMS_BYTES_MAX:
                raise StreamError("too many files")
            try:
                (length,) = NAMED.unpack_from(payload)
                name = payload[NAMED.size : NAMED.size + length].decode()
            except (struct.error, UnicodeDecodeError):
                raise StreamError("checksums that cannot be read") from None
            self._sums[name] = position, payload[NAMED.size + length :]
        elif kind == Kind.COMPARE and self._steps is None and not self._streaming:
            self._steps = self._compare()
        elif kind == Kind.REFUSED:
            raise Refused(payload.decode(errors="replace"))
        else:
            raise StreamError(f"a frame of kind {kind} that does not belong here")

    def leave(self, end: int, successor: str = "") -> bool:
        """Tell the follower that this leader has ended in order, if it has everything up to `end`, where the stream ends.

        `successor`: the member that is to lead next, "" for any.
        """
        if self.state != "following" or self.replaced or self.acknowledged < end:
            return False
        self._out.append(self._frames.encode(Kind.LEFT, 0, end, successor.encode()))
        return True

    def _acknowledged(self, place: int) -> None:
        if place > self.place:
            raise StreamError("an acknowledgement of what has not been sent")
        self.acknowledged = max(self.acknowledged, place)
        while self._marks and self._marks[0][0] <= place:
            self.behind_at = self._marks.popleft()[1]
        if self._done is not None and place >= self._done:
            self.state, self._done = "following", None

    # -- what to send ----------------------------------------------------------------------------------------------

    @property
    def is_copying(self) -> bool:
        """Whether files are compared."""
        return self._steps is not None

    def read_ahead(self) -> Read | None:
        """Return the read of `prefetch`, for a thread to run before the next step, None if there is nothing to read."""
        self._read = None
        if self.prefetch is not None:
            path, at = self.prefetch
            node = self.leader.disk.tree.get(path)
            if node is not None and at < node.length:
                self._read = Read(self.leader.disk, node, at, self.leader.ring.next)
        return self._read

    def at_once(self) -> list[bytes]:
        """Return the pieces that may be sent in the middle of an operation of the disk. Raises Behind.

        While files are compared there are none: at that moment the stream may already say what the tree does not know yet.
        """
        return [] if self.is_copying or self.replaced else self.pieces()

    def pieces(self) -> list[bytes]:
        """Return the bytes to send next, in pieces; none if there are none at the moment. Raises Behind or StoreError."""
        if self._out:
            out, self._out = self._out, []
            return out
        pieces = self._records() if self._streaming else []
        if self._steps is not None:
            found = next(self._steps, None)
            if found is None:
                self._steps = None
            elif isinstance(found, tuple):
                pieces += found
            elif found:
                pieces.append(found)
            elif not pieces:
                pieces.append(self._frames.encode(Kind.ALIVE))
        return pieces

    def beat(self) -> None:
        """Send a sign of life to a follower that waits until its directory may be changed."""
        if self.waits and not self._out:
            self._out.append(self._frames.encode(Kind.ALIVE))

    @property
    def wants(self) -> bool:
        """Whether `pieces` has something to send."""
        if self.waits and not self._out:
            return self.leader.may_be_cut(self.member)
        return bool(self._out) or self._steps is not None or (self._streaming and self.place < self.leader.ring.told)

    def _records(self) -> list[bytes]:
        """Return the next records, encoded for this connection: a header and a payload for each."""
        ring, secrets = self.leader.ring, self._secrets
        assert secrets is not None
        if self.place < ring.first:
            raise Behind
        parts: list[bytes] = []
        size, place, total = 0, self.place, 0
        # While files are copied, records do not wait for a sync point: a chunk has the changes of all records up to now.
        end = min(ring.next if self._steps is not None else ring.told, place + STEP_RECORDS)
        while place < end and size < STEP_BYTES:
            head, payload, total = ring.at(place)
            parts += (head + checksum(secrets.records + place, head, payload), payload)
            size += len(payload)
            place += 1
        if parts:
            self.place = place
            self.sent += size
            if len(self._marks) >= MARKS_MAX:  # a follower that acknowledges nothing
                self._marks.pop()
            self._marks.append((place, total))
        return parts

    def _follow(self) -> None:
        self.state, self._streaming = "following", True

    # -- comparing -------------------------------------------------------------------------------------------------

    def _compare(self) -> Iterator[Step]:
        yield from self._look()
        while not self.leader.may_be_cut(self.member):
            self.waits = True
            yield b""
        self.waits = False
        yield from self._send_names()
        yield from self._send_files()
        ring = self.leader.ring
        until = ring.next
        while self.place < until:
            yield b""  # `pieces` sends records with each step
        self._done, self._sums, self._same = self.place, {}, {}
        yield self._frames.encode(Kind.DONE, 0, self.place)

    def _look(self) -> Iterator[Step]:
        """Look which files are the same. Nothing is sent: the follower's directory is still what it was."""
        tree = self.leader.disk.tree
        for path in self._sums:
            node = tree.get(path)
            if node is None:
                continue
            since, same = self.leader.ring.next, True
            length, _ = self._sums[path]
            if length != node.length:
                continue
            for at in range(0, length, CHUNK_BYTES):
                self.prefetch = path, at
                yield b""
                if tree.get(path) is not node or node.changed > since or not self._is_same(node, path, at):
                    same = False
                    break
            if same and node.length == length:
                self._same[path] = node, since
        self.prefetch = None

    def _is_same(self, node: Node, path: str, at: int) -> bool:
        data = self._chunk(node, at)
        return self._known(path, at, data) == len(data)

    def _chunk(self, node: Node, at: int) -> bytes:
        ahead, self._read, self.prefetch = self._read, None, None
        if ahead is not None and (data := ahead.found(node, at)) is not None:
            return data
        return read(self.leader.disk, node.paths[0], at, chunk_size(node, at))

    def _known(self, path: str, at: int, data: bytes) -> int:
        """Return how many bytes at the beginning of a chunk the follower has too, 0 if its bytes differ."""
        secrets = self._secrets
        assert secrets is not None
        theirs = self._shared(path, at, data)
        _, sums = self._sums.get(path, (0, b""))
        index = at // CHUNK_BYTES * SUM_BYTES
        said = sums[index : index + SUM_BYTES]
        if not theirs or not said:
            return 0
        return theirs if chunk_sum(secrets.sums, memoryview(data)[:theirs]) == said else 0

    def _shared(self, path: str, at: int, data: bytes) -> int:
        """Return how many bytes of a chunk the follower has, whatever they are; 0 if it has more of them than this leader."""
        length, _ = self._sums.get(path, (0, b""))
        theirs = min(length - at, CHUNK_BYTES)
        return theirs if 0 < theirs <= len(data) else 0

    def _verify(self, path: str, node: Node) -> Generator[bytes, None, list[Damage]]:
        """Verify a file of the leader of which the follower has a part that differs: either of them may be the damaged one.

        Return the damaged places at which the follower may keep its own bytes. It may if the rest of the file is the same on both sides,
        because both files have been the same then.
        """
        done, found = 0, list[Damage]()

        def look() -> Generator[int, None, None]:
            found.extend((yield from look_at(self.leader.disk.inner, node.paths[0], past_cache=False)))

        for cost in look():
            done += cost
            self.prefetch = path, done // CHUNK_BYTES * CHUNK_BYTES
            yield b""
        for damage in found:
            self.leader.on_damage(damage)
        at = 0
        while found and at < node.length and node.paths:
            self.prefetch = node.paths[0], at
            yield b""
            if node.paths and not doubted(found, at, CHUNK_BYTES):
                data = self._chunk(node, at)
                if self._shared(path, at, data) and not self._known(path, at, data):
                    return []
            at += CHUNK_BYTES
        return found

    def _send_names(self) -> Iterator[Step]:
        """Send all names as they are now, and from now on the records behind them."""
        leader = self.leader
        self.state = "copying"
        self.place = leader.ring.next
        self.behind_at = leader.ring.total
        files, directories = leader.disk.tree.files(), leader.disk.tree.directories()
        self._found = files
        self.files = len(files)
        place = self.place
        parts: list[bytes] = []
        for path in directories:
            parts.append(self._frames.encode(Kind.NAME, 0, 0, path.encode()))
            if len(parts) >= NAMES_AT_ONCE:
                yield b"".join(parts)
                parts.clear()
        for path, node in files:
            parts.append(self._frames.encode(Kind.NAME, node.number, node.length, path.encode()))
            if len(parts) >= NAMES_AT_ONCE:
                yield b"".join(parts)
                parts.clear()
        parts.append(self._frames.encode(Kind.NAMES, 0, place))
        self._streaming = True
        yield b"".join(parts)

    def _send_files(self) -> Iterator[Step]:
        sent: set[Node] = set()
        for path, node in self._found:
            self.files_done += 1
            if node in sent:
                continue
            sent.add(node)
            same, since = self._same.get(path, (None, 0))
            if not node.paths:  # it has been removed meanwhile: the records say so
                continue
            if same is node and node.changed <= since:
                yield self._frames.encode(Kind.END, node.number, node.length)
            else:
                yield from self._send_file(path, node)
        self.prefetch = None

    def _send_file(self, path: str, node: Node) -> Iterator[Step]:
        at, holes = 0, None
        while node.paths:
            if at < node.length:
                self.prefetch = node.paths[0], at
                yield b""
            if not node.paths:
                return
            data = b""
            if at < node.length:
                data = self._chunk(node, at)
                known = self._known(path, at, data)
                theirs = self._shared(path, at, data)
                if theirs and not known and holes is None:
                    holes = yield from self._verify(path, node)
                    continue  # the chunk may have changed meanwhile
                # All that was read goes out in one step: the file may change between two steps, and a later part would be out of date.
                doubt = b""
                if theirs and not known and (doubts := doubted(holes or (), at, theirs)):
                    self.leader.kept.setdefault(node.paths[0], set()).add(self.member)
                    doubt = self._frames.encode(Kind.DOUBT, node.number, at, doubts)
                    doubt += self._frames.encode(Kind.CHUNK, node.number, at, data[:theirs])
                    known = theirs
                if known < len(data):
                    self.sent += len(data) - known
                    head, rest = self._frames.split(Kind.CHUNK, node.number, at + known, data[known:])
                    yield doubt + head, rest
                elif doubt:
                    yield doubt
                at += len(data)
            if (
                not node.paths
            ):  # removed since the chunk was sent, and the record that says so goes out before this step
                return
            if at >= node.length or not data:
                yield self._frames.encode(Kind.END, node.number, node.length)
                return


def doubted(holes: Sequence[Damage], at: int, size: int) -> bytes:
    """Return where the bytes at..at+size of a file are damaged, encoded for a DOUBT; b"" if they are not."""
    found = b""
    for hole in holes:
        begin, end = max(hole.at - at, 0), min(hole.until - at, size)
        if begin < end:
            found += DOUBTED.pack(begin, end)
    return found
