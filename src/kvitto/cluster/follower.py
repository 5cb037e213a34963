"""A follower: applies the stream of a leader to its own directory, byte for byte, without a broker (docs/adr/0032).

It is given the bytes that come and gives those to send, so it knows no sockets. Records are applied in order. At a sync point it syncs
what the leader has synced there and goes on only then. So its directory is at every moment what a crash of the leader could have left,
and `durable` in what it has been sent is never more than what it has synced itself. While it compares its files with the leader's its
directory is neither the one nor the other, and is marked as such; what goes then is moved to `replaced/`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from kvitto.base.clock import Clock
from kvitto.cluster import handshake, levels
from kvitto.cluster.aside import name_of, of_earlier_leaders, too_old
from kvitto.cluster.counting import Copy, Counting, Reading
from kvitto.cluster.handshake import FOLLOWER, LEADER, MAGIC, VERSION, Inbox, Refused
from kvitto.cluster.records import (
    ACKNOWLEDGEMENT,
    CHUNK_BYTES,
    DOUBTED,
    NAMED,
    PAYLOAD_BYTES_MAX,
    SUM_BYTES,
    Decoder,
    Frames,
    Kind,
    Nonces,
    Record,
    StreamError,
    both_paths,
    chunk_sum,
    sync_parts,
)
from kvitto.cluster.ring import Ring
from kvitto.cluster.state import (
    Following,
    Member,
    epoch_of,
    forget_boot,
    new_id,
    read_following,
    read_history,
    why_not,
    write_following,
    write_history,
)
from kvitto.cluster.tree import Node, Tree, parent, walk
from kvitto.store import paths
from kvitto.store.disk import Disk, File
from kvitto.store.segment import Segment

SYNCED_AT_ONCE = 64
"""The number of files that are synced together at the end of a copy."""
OPEN_MAX = 200
"""At most this many files without unsynced bytes stay open."""
SMALL_BYTES = 1 << 20
"""A directory with less than this may be replaced as a whole."""
LOOK_MS = 3600 * 1000
COPY_BYTES = 1 << 20


@dataclass
class Inherited:
    """What a follower that leads from now on has of the stream. Other followers of the same leader go on where they are."""

    session: str
    """The run of the old leader."""
    ring: Ring
    """The last records of the stream. Those of the new leader come behind them."""
    tree: Tree
    """The files, by the numbers that they have in the stream."""
    counted: dict[str, Segment]
    """The segments whose batches have been verified and counted, by path: a start need not read those again."""


def one_by_one(disk: Disk, files: Sequence[File], directories: Sequence[str]) -> None:
    """Sync files and directories, one after the other. Raises SyncError."""
    for file in files:
        file.sync()
    for directory in directories:
        disk.sync_dir(directory)


class Follower:
    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        key: bytes,
        where: str,
        tell: Callable[[str], None],
        judge: Callable[[list[str], list[str]], str] = why_not,
        member: Member | None = None,
        sync: Callable[[Disk, Sequence[File], Sequence[str]], None] = one_by_one,
    ) -> None:
        """`where`: the leader's address, for people. `tell` gets a line whenever the state changes.

        `judge` says why a directory with the one history may not follow a leader with the other. `member`: which
        member of which cluster the directory is; it then keeps what it has applied, as it may lead itself.
        `sync` syncs files and directories in any order, and returns when all are synced. It raises SyncError.
        """
        self.disk = disk
        self.clock = clock
        self.where = where
        self.key = key
        self.tell = tell
        self.process = new_id()
        self.history = read_history(disk)
        found = read_following(disk)
        if found is None and not self.history:
            refuse_others(disk)
        self.following = found or Following(where, bool(self.history), "")
        self._cluster = member.cluster if member is not None else ""
        if member is not None:
            self.following.member = member.member
        self._judge, self._sync_all = judge, sync
        self._kept = Ring() if member is not None else None
        """The last records that were applied."""
        self.tree = Tree()
        self.nodes: dict[int, Copy] = {}
        self.session = ""
        """The run of the leader to which `place` belongs, "" if files have to be compared first."""
        self.place = 0
        """The place of the next record to apply."""
        self.synced = 0
        """The place behind the last sync point that has been carried out."""
        self.copying = False
        """Whether files are being compared, and the directory is neither the old one nor the new one."""
        self.left: str | None = None
        """If the leader has ended in order, and this directory is what its directory was then: which member is to lead next, "" for any."""
        self.heard = 0
        """The number of records and frames that have been received."""
        self.damage = ""
        """What was found to be damaged in this directory, in words. The next connection begins by comparing all files."""
        self._doubt: tuple[int, int, bytes] | None = None
        """The file, the place and the damage of the next chunk, which is damaged at the leader."""
        self._due = False
        self._torn = False
        """Whether a record has been applied in part, because the disk was full: the tree may not say what is in the files."""
        self._dirty: dict[int, None] = {}
        """The files with bytes that have not been synced."""
        self._changed: dict[str, None] = {}
        """The directories with names that have not been synced."""
        self._aside = ""
        self._aside_directories: dict[str, None] = {}
        self._moved = self._looked_ms = 0
        self._open: dict[int, None] = {}
        self._counting = Counting(self._file)
        self._read: dict[str, Segment] = {}
        """The segments that were counted while they were read to be compared."""
        self._names: list[Record] = []
        self._inbox = Inbox()
        self._decoder: Decoder | None = None
        self._frames: Frames
        self._nonce = ""
        self._theirs = ""
        self._step: Callable[[dict[str, Any]], Iterator[bytes]] = self._greeted
        self._leaders: list[str] = []
        self._session = ""
        self._secrets: Nonces

    # -- a connection --------------------------------------------------------------------------------------------

    def turn_to(self, where: str) -> None:
        """Connect to the leader at this address next."""
        self.where, self.left = where, None

    def begin(self) -> bytes:
        """Begin a connection. Return the bytes to send first."""
        if self.damage:
            self._note(replace(self.following, damage=self.damage))
            self.damage = ""
            self._forget()
        if self.copying:
            self._forget()
        self.left = None
        self._inbox, self._decoder = Inbox(), None
        self._names = []
        self._step, self._nonce = self._greeted, handshake.nonce()
        return MAGIC + handshake.message(version=VERSION, nonce=self._nonce)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Handle received bytes, and yield the bytes to send.

        Raises StreamError if the leader has broken the protocol, Refused if an operator has to do something first, and StoreError if the
        disk fails; the records before have been applied. After a StoreFull or a StreamError another connection may begin.
        """
        if self._decoder is None:
            self._inbox.feed(data)
            while self._decoder is None and (found := self._inbox.next()) is not None:
                yield from self._step(found)
            data = self._inbox.rest
        if self._decoder is None:
            return
        for record in self._decoder.feed(data):
            yield from self._take(record)
        if self.session:
            self._counting.look(self.clock.monotonic_ms())
        if self._due:
            self._due = False
            yield self._acknowledgement()

    def refusal(self, text: str) -> bytes:
        """Return the bytes that tell the leader why this follower ends the connection."""
        if self._decoder is None:
            return handshake.message(refused=text)
        return self._frames.encode(Kind.REFUSED, payload=text.encode()[:1000])

    def _greeted(self, found: dict[str, Any]) -> Iterator[bytes]:
        nonce = str(found.get("nonce"))
        if found.get("version") != VERSION:
            raise Refused(
                f"the leader at {self.where} speaks version {found.get('version')} of the stream, this Kvitto speaks {VERSION}"
            )
        if not handshake.proves(self.key, LEADER, self._nonce, nonce, found):
            raise Refused(
                f"the leader at {self.where} has another key: --cluster-key has to be the same file on both sides"
            )
        self._secrets = handshake.nonces(self.key, self._nonce, nonce)
        self._frames = Frames(self._secrets.answers)
        self._step = self._answered
        self._theirs = nonce
        said = {"member": self.following.member, "process": self.process, "session": self.session, "place": self.place}
        said |= {"cluster": self._cluster, "level": levels.LEVEL}
        yield handshake.proved(self.key, FOLLOWER, self._nonce, nonce, said)

    def _answered(self, found: dict[str, Any]) -> Iterator[bytes]:
        history, session, place = found.get("history"), found.get("session"), found.get("place")
        if not handshake.proves(self.key, LEADER, self._nonce, self._theirs, found):
            raise StreamError("a message that is damaged")
        if not (isinstance(history, list) and history and isinstance(session, str) and isinstance(place, int)):
            raise StreamError("a message that cannot be read")
        if self._cluster and found.get("cluster") != self._cluster:
            raise Refused(f"the leader at {self.where} belongs to another cluster, or to none")
        if why := self._judge(self.history, history):
            raise Refused(f"{self.where}: {why}")
        self._leaders = history
        if found.get("resume") is True:
            if not self.session or place != self.place:
                raise StreamError("a place that was not asked for")
            if session != self.session:
                if self._torn:  # the next record of this stream is another one than that of which a part is here
                    self._forget()
                    raise StreamError("another leader's record, where a part of one is here: files have to be compared")
                self._go_on_with(session)
            self._decoder = Decoder(self._secrets.records, place, self._secrets.frames)
            self.tell(f"following {self.where}")
            yield self._acknowledgement()
            return
        self._forget()
        self._session = session
        self._decoder = Decoder(self._secrets.records, place, self._secrets.frames)
        self.place = place
        self.tell(f"comparing files with {self.where}")
        yield from self._sums()
        yield self._frames.encode(Kind.COMPARE)

    def _go_on_with(self, session: str) -> None:
        """Go on where the stream of the old leader ended, with one that followed it, and leads now. What it has is what this one has."""
        write_history(self.disk, self._leaders)
        self.history = self._leaders
        self._note(Following(self.where, True, session, self.following.member))
        self.session = self._session = session

    def settle(self) -> None:
        """Sync everything that has been applied, before this directory may lead (R4). Raises StoreError."""
        if self.session and not self.copying:
            self._sync_unsynced(list(self._dirty), sorted(self._changed))
            self.synced = self.place

    def inherit(self) -> Inherited | None:
        """Return what other followers can go on with, now that this directory leads; None: their files have to be compared.

        `settle` has been called. Nothing may be fed any more. What the others have not synced yet they sync with the next TIME record,
        which the new leader waits for.
        """
        if self.copying or not self.session or self._kept is None or self._torn:
            return None
        for number in list(self._open):
            self._close(self.nodes[number])
        counted: dict[str, Segment] = {}
        if not self.damage:
            counted = {node.paths[0]: node.segment for node in self.nodes.values() if node.segment is not None}
        return Inherited(self.session, self._kept, self.tree, counted)

    def _forget(self) -> None:
        """Forget places and numbers of files, which belong to an earlier run of the leader."""
        self.session, self.copying, self._torn = "", False, False
        for number in list(self._open):
            self._close(self.nodes[number])
        self.tree, self.nodes = Tree(), {}
        self._dirty, self._changed = {}, {}
        self._counting.clear()

    def _sums(self) -> Iterator[bytes]:
        """Yield the checksums of all files of this directory, without the room that is reserved behind the last batch of a segment."""
        self._read = {}
        for path, directory in walk(self.disk):
            if directory:
                continue
            file = self.disk.open(path)
            length, seed = file.size(), self._secrets.sums
            name = path.encode()
            most = (PAYLOAD_BYTES_MAX - NAMED.size - len(name)) // SUM_BYTES * CHUNK_BYTES
            reading, sums = Reading(path, length), []
            for at in range(0, min(length, most), CHUNK_BYTES):
                data = file.read_at(at, CHUNK_BYTES)
                sums.append(chunk_sum(seed, data))
                reading.feed(data)
                yield b""  # the caller shows that it is alive
            reading.end()
            if length <= most and (segment := reading.segment) is not None:
                self._read[path] = segment
                if segment.size < length:
                    length = segment.size
                    last, more = divmod(length, CHUNK_BYTES)
                    sums[last:] = [chunk_sum(seed, file.read_at(last * CHUNK_BYTES, more))] if more else []
            file.close()
            yield self._frames.encode(Kind.SUMS, 0, length, b"".join((NAMED.pack(len(name)), name, *sums)))

    def _acknowledgement(self) -> bytes:
        payload = ACKNOWLEDGEMENT.pack(self.epoch, self.synced, self.disk.free_bytes(), 0)
        return self._frames.encode(Kind.ACK, 0, 0, payload)

    # -- what comes ------------------------------------------------------------------------------------------------

    def _take(self, record: Record) -> Iterator[bytes]:
        kind = record.kind
        self.heard += 1
        if kind < Kind.NAME:
            if not self.session and not self.copying:
                raise StreamError("a record before the files have been compared")
            self._torn = True
            try:
                self._apply(record)
            except (KeyError, ValueError, struct.error) as error:
                raise StreamError(f"a record that does not fit what is here: {error!r}") from None
            self._torn = False
            self.place += 1
            if self._kept is not None:
                self._kept.keep(kind, record.file, record.position, record.payload)
            return
        if kind == Kind.NAME:
            self._names.append(record)
        elif kind == Kind.NAMES:
            self._begin_copy(record.position)
        elif kind == Kind.CHUNK and self.copying:
            node = self._node(record.file)
            if self._keeps_own(node, record):
                return
            self._keep(node, record.position, record.payload)
            self._file(node).write_at(record.position, [record.payload])
            node.length = max(node.length, record.position + len(record.payload))
        elif kind == Kind.DOUBT and self.copying and len(record.payload) % DOUBTED.size == 0:
            self._doubt = record.file, record.position, record.payload
        elif kind == Kind.END and self.copying:
            self._end_of_file(self._node(record.file), record.position)
        elif kind == Kind.DONE and self.copying and record.position == self.place:
            self._complete()
            yield self._acknowledgement()
        elif kind == Kind.REFUSED:
            raise Refused(f"{self.where}: {record.payload.decode(errors='replace')}")
        elif kind == Kind.LEFT:
            if record.position == self.place == self.synced:
                self.left = record.payload.decode(errors="replace")
        elif kind != Kind.ALIVE:
            raise StreamError(f"a frame of kind {kind} that does not belong here")

    # -- records -----------------------------------------------------------------------------------------------------

    def _apply(self, record: Record) -> None:
        kind, number, position, payload = record
        if kind == Kind.SYNC:
            if not self.copying:
                self._sync(*sync_parts(payload))
            return
        if kind == Kind.TIME:
            self._time()
            return
        if kind == Kind.WRITE:
            node = self._node(number)
            if self.copying:
                self._keep(node, position, payload)
            else:
                self._counting.write(node, position, payload)
            self._file(node).write_at(position, [payload])
            node.length = max(node.length, position + len(payload))
            self._dirty[number] = None
        elif kind == Kind.TRUNCATE:
            node = self._node(number)
            if self.copying:
                self._keep(node, position)
            self._file(node).truncate(position)
            node.length = position
            node.cut(position)
            self._dirty[number] = None
        elif kind == Kind.OPEN:
            self._make(inside(payload.decode()), number)
        elif kind == Kind.MKDIR:
            self._make_directory(inside(payload.decode()))
        elif kind == Kind.RENAME:
            self._rename(*map(inside, both_paths(payload)))
        elif kind == Kind.LINK:
            self._link(*map(inside, both_paths(payload)))
        elif kind == Kind.UNLINK:
            self._unlink(inside(payload.decode()))
        elif kind == Kind.RMTREE:
            self._remove(inside(payload.decode()))
        else:
            raise StreamError(f"a record of kind {kind}, which this Kvitto does not know")

    def _node(self, number: int) -> Copy:
        node = self.nodes.get(number)
        if node is None:
            raise StreamError(f"a file {number} that is not there")
        return node

    def _named(self, path: str) -> Copy:
        node = self.tree.get(path)
        if not isinstance(node, Copy):
            raise StreamError(f"{path} is not there")
        return node

    def _make(self, path: str, number: int) -> None:
        if self.tree.get(path) is not None or number in self.nodes:
            raise StreamError(f"{path} is there already")
        file = self.disk.open(path, create=True)
        if file.size():  # left by a try that failed
            file.truncate(0)
        node = self.nodes[number] = Copy(number)
        node.file = file
        self._open[number] = self._dirty[number] = self._changed[parent(path)] = None
        self.tree.name(path, node)

    def _make_directory(self, path: str) -> None:
        self.disk.makedirs(path)
        self.tree.make_directory(path)
        while path:
            path = parent(path)
            self._changed[path] = None

    def _rename(self, a: str, b: str) -> None:
        node = self._named(a)
        if paths.is_local(b):  # the leader's copy is damaged, this one may be good
            self._move_aside(a)
            self._lost_name(node)
            return
        old = self.tree.get(b)
        if old is not None and self.copying:
            self._move_aside(b)
        self.disk.rename(a, b)
        self.tree.forget(a)
        self.tree.name(b, node)
        self._changed[parent(a)] = self._changed[parent(b)] = None
        self._lost_name(old)

    def _link(self, a: str, b: str) -> None:
        node = self._named(a)
        if self.tree.get(b) is not None:
            raise StreamError(f"{b} is there already")
        if not self.disk.exists(b) and not self.disk.link(a, b):
            raise Refused(
                "the file system of this directory knows no hard links, and the leader's does: choose another one"
            )
        self.tree.name(b, node)
        self._changed[parent(b)] = None

    def _unlink(self, path: str) -> None:
        node = self._named(path)
        if self.copying:
            self._move_aside(path)
        else:
            self.tree.forget(path)
            self.disk.unlink(path)
        self._changed[parent(path)] = None
        self._lost_name(node)

    def _remove(self, path: str) -> None:
        if self.copying:
            for name, _ in self.tree.files():
                if name.startswith(path + "/"):
                    node = self._named(name)
                    self._move_aside(name)
                    self._lost_name(node)
            self.tree.remove(path)
            self._remove_empty(path)
            return
        for gone in self.tree.remove(path):
            self._lost_name(gone)
        self.disk.rmtree(path)
        self._changed[parent(path)] = None

    def _remove_empty(self, path: str) -> None:
        """Remove a directory, unless it has files of this machine, such as copies of damaged segments."""
        if not self.disk.listdir(path):
            self.disk.rmtree(path)

    def _lost_name(self, node: Node | None) -> None:
        if node is not None and not node.paths:
            found = self.nodes.pop(node.number)
            self._dirty.pop(node.number, None)
            self._close(found)

    # -- open files ----------------------------------------------------------------------------------------------

    def _file(self, node: Copy) -> File:
        if node.file is None:
            if len(self._open) >= OPEN_MAX:
                self._close_some()
            node.file = self.disk.open(node.paths[0])
            self._open[node.number] = None
        return node.file

    def _close_some(self) -> None:
        """Close files that have nothing unsynced: another descriptor may not be told of an error."""
        for number in [number for number in self._open if number not in self._dirty][: OPEN_MAX // 2]:
            self._close(self.nodes[number])

    def _close(self, node: Copy) -> None:
        if node.file is not None:
            node.file.close()
            node.file = None
            del self._open[node.number]

    # -- sync points -----------------------------------------------------------------------------------------------

    def _sync(self, files: Sequence[int], directories: Sequence[str]) -> None:
        self._sync_unsynced(files, directories)
        self.synced, self._due = self.place + 1, True

    def _sync_unsynced(self, files: Sequence[int], directories: Sequence[str]) -> None:
        """Sync these directories, and those of these files that have unsynced bytes."""
        unsynced = [self.nodes[number] for number in files if number in self._dirty]
        for node in unsynced:
            self._counting.rest(node)
        self._sync_all(self.disk, [self._file(node) for node in unsynced], directories)
        for node in unsynced:
            self._dirty.pop(node.number, None)
        for directory in directories:
            self._changed.pop(directory, None)

    def _time(self) -> None:
        """The leader is idle: sync also what it has not synced, so that everything can be acknowledged."""
        if self.copying:
            return
        self._sync(list(self._dirty), sorted(self._changed))
        if self.clock.now_ms() - self._looked_ms > LOOK_MS:
            self._looked_ms = self.clock.now_ms()
            self._drop_replaced()

    # -- comparing and copying -------------------------------------------------------------------------------------

    def _begin_copy(self, place: int) -> None:
        """Give the directory the leader's names. Raises Refused if that would take more from it than it should without an operator."""
        if self.copying or self.session or self._decoder is None:
            raise StreamError("names that do not belong here")
        self.place = self._decoder.place = place
        if self._kept is not None:
            self._kept = Ring(first=place)
        files = {record.payload.decode(): record for record in self._names if record.file}
        directories = {record.payload.decode() for record in self._names if not record.file}
        self._names = []
        if any(paths.is_local(inside(path)) for path in (*files, *directories)):
            raise StreamError("a name that no leader sends")
        found = list(walk(self.disk))
        own = {path: self._size(path) for path, directory in found if not directory}
        gone = [path for path in own if path not in files]
        self._refuse_to_empty(sum(own[path] for path in gone), sum(own.values()))
        self._note(Following(self.where, False, self.following.session, self.following.member))
        forget_boot(self.disk)
        if self._leaders != self.history:
            write_history(self.disk, self._leaders)
            self.history = self._leaders
        self.copying = True
        self._aside, self._moved = "", 0
        for path in gone:
            self._move_aside(path)
        for path in reversed([path for path, directory in found if directory and path not in directories]):
            self._remove_empty(path)
        for path in sorted(directories):
            self._make_directory(path)
        for path, record in files.items():
            self._name(path, record.file, own.get(path))
        self._read = {}

    def _size(self, path: str) -> int:
        file = self.disk.open(path)
        size = file.size()
        file.close()
        return size

    def _name(self, path: str, number: int, size: int | None) -> None:
        node = self.nodes.get(number)
        if node is None:
            if size is None:
                self._make(path, number)
                return
            node = self.nodes[number] = Copy(number, size)
            node.original = size
            if (segment := self._read.get(path)) is not None:
                node.learned, node.segment, node.original = True, segment, segment.size
            self.tree.name(path, node)
            return
        if size is not None:  # on the leader it is another name of the same file
            self._move_aside(path)
        self._link(node.paths[0], path)

    def _refuse_to_empty(self, gone: int, of: int) -> None:
        if self._cluster:  # who was elected has everything that was confirmed, and what goes from here is kept
            return
        if of < SMALL_BYTES or 2 * gone <= of or self._session == self.following.session:
            return
        raise Refused(
            f"the leader at {self.where} lacks files with {gone} of the {of} bytes that are here, and may be the damaged one: "
            "if it is right, follow it with an empty directory; if not, stop it and promote this one"
        )

    def _move_aside(self, path: str) -> None:
        """Give a file another name in `replaced/`, and take it out of the tree."""
        target = self._place_aside(path)
        self._moved += self._size(path)
        self.disk.rename(path, target)
        self.tree.forget(path)

    def _place_aside(self, path: str) -> str:
        if not self._aside:
            self._aside = name_of(self.epoch, self.clock.now_ms())
        first = target = f"{self._aside}/{path}"
        more = 1
        while self.disk.exists(target):
            target, more = f"{first}.{more}", more + 1
        directory = parent(target)
        self.disk.makedirs(directory)
        while directory:
            self._aside_directories[directory] = None
            directory = parent(directory)
        return target

    def _keep(self, node: Copy, position: int, payload: bytes = b"") -> None:
        """Move a file aside if bytes of its own are about to be overwritten with others, or cut, and go on with a copy of it.

        The file itself moves and not the copy, since a backup may have hard links to it. Room that was reserved behind the last batch of a
        segment is not kept: it has no bytes of anybody.
        """
        own = min(node.original - position, len(payload))
        if position >= node.original or (own and self._file(node).read_at(position, own) == payload[:own]):
            return
        node.original = 0
        node.cut(position)
        path, source = node.paths[0], self._file(node)
        target = self._place_aside(path)
        copy = self.disk.open(paths.copying(target), create=True)
        at = 0
        while data := source.read_at(at, COPY_BYTES):
            at += copy.write_at(at, [data])
        copy.sync()
        copy.close()
        self._close(node)
        self.disk.rename(path, target)
        self.disk.rename(paths.copying(target), path)
        for other in node.paths[1:]:
            self.disk.rename(other, self._place_aside(other))
            self.disk.link(path, other)
        self._sync_aside()
        self._moved += at

    def _keeps_own(self, node: Copy, chunk: Record) -> bool:
        """Return whether this follower's own bytes stay instead of a chunk that is damaged at the leader.

        They do if they are the leader's but for the damage, so that both have been the same. They cannot be worse then.
        """
        doubt, self._doubt = self._doubt, None
        if doubt is None or doubt[:2] != (chunk.file, chunk.position):
            return False
        own = self._file(node).read_at(chunk.position, len(chunk.payload))
        at = 0
        for begin, end in [*DOUBTED.iter_unpack(doubt[2]), (len(own), len(own))]:
            if own[at:begin] != chunk.payload[at:begin]:
                return False
            at = max(at, end)
        self.tell(f"{node.paths[0]} is damaged at {self.where}: what is here from byte {chunk.position} on is kept")
        return len(own) == len(chunk.payload)

    def _sync_aside(self) -> None:
        for directory in self._aside_directories:
            self.disk.sync_dir(directory)
        self._aside_directories = {}

    def _end_of_file(self, node: Copy, length: int) -> None:
        if node.length > length:
            self._keep(node, length)
            self._file(node).truncate(length)
            node.length = length
        node.original = 0

    def _complete(self) -> None:
        """Sync everything, and note that the directory equals the leader's at this place."""
        nodes = iter(self.nodes.values())
        while some := list(islice(nodes, SYNCED_AT_ONCE)):
            self._dirty |= {node.number: None for node in some}  # so that the next one does not close them
            self._sync_all(self.disk, [self._file(node) for node in some], ())
            for node in some:
                del self._dirty[node.number]
                node.original = 0
                if node.segment is not None and node.segment.size < node.length:
                    node.cut(0)  # more has come, which is counted in the background
            if len(self._open) >= OPEN_MAX:
                self._close_some()
        self._sync_aside()
        self._sync_all(self.disk, (), ["", *self.tree.directories()])
        self._note(Following(self.where, True, self._session, self.following.member))
        self.session, self.copying = self._session, False
        self.synced, self._dirty, self._changed = self.place, {}, {}
        self._counting.begin(self.nodes.values(), self.clock.monotonic_ms())
        moved = f"; {self._moved} bytes that were here and not there are in {self._aside}" if self._moved else ""
        self._aside = ""
        self._drop_replaced()
        self.tell(f"following {self.where}{moved}")

    def _note(self, following: Following) -> None:
        """Write what the directory is. It is that only when the file says so, which a full disk may prevent."""
        write_following(self.disk, following)
        self.following = following

    @property
    def epoch(self) -> int:
        """The epoch in which the leader was elected. Without elections it is the number of entries in the leader's history."""
        return epoch_of(self.history) or len(self.history)

    def make_room(self) -> bool:
        """Remove what was replaced before the latest election, because the disk is full. Return whether there was anything."""
        found = of_earlier_leaders(self.disk, self.epoch)
        for path in found:
            self.disk.rmtree(path)
        return bool(found)

    def _drop_replaced(self) -> None:
        """Remove what has been kept long enough."""
        for path in too_old(self.disk, self.clock.now_ms()):
            self.disk.rmtree(path)


def inside(path: str) -> str:
    """Return the path if it is one inside of the data directory. Else raise StreamError: whoever has the key may write there, and nowhere
    else."""
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise StreamError(f"the path {path!r}, which is not inside of the data directory")
    return path


def refuse_others(disk: Disk) -> None:
    """Raise Refused if the directory has files, and no leader has ever sent them."""
    # a process that was killed, or whose disk was full, may have left the beginning of `follows`
    own = paths.LOCK, paths.NOBODYS, paths.MEMBER, paths.copying(paths.FOLLOWS)
    names = [name for name in disk.listdir("") if name not in own]
    if names:
        where = getattr(disk, "root", "the directory")
        raise Refused(
            f"{where} is not empty and has never followed a leader, it holds {names[0]!r}: choose an empty directory"
        )
