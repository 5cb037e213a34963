"""A disk around another one that tells a tap each operation that has changed the data directory, in order, once it has succeeded.

Reads pass through, and so does `reserve`, because room is each machine's own matter. Files of one machine (`paths.is_local`) are
not told of. The store knows nothing of this: it gets a `Disk` like any other (docs/adr/0032).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvitto.base.errors import StoreError
from kvitto.cluster.records import Kind, two_paths
from kvitto.cluster.ring import Tap
from kvitto.cluster.tree import Node, Tree, parent, walk
from kvitto.store import paths
from kvitto.store.definitions import Tracked
from kvitto.store.disk import Bytes, Disk, File, Keeper, Remover

COPY_BYTES = 1 << 20


class TapFile:
    """A file that tells the tap each change."""

    def __init__(self, file: File, node: Node, disk: TapDisk) -> None:
        self.path = file.path
        self.node = node
        self._file = file
        self._disk = disk

    def write_at(self, pos: int, buffers: Sequence[Bytes]) -> int:
        size = self._file.write_at(pos, buffers)
        node = self.node
        if node.paths:  # what has no name any more is nobody's
            node.length = max(node.length, pos + size)
            node.dirty = True
            node.changed = self._disk.tap.put(Kind.WRITE, node.number, pos, buffers) + 1
        return size

    def truncate(self, n: int) -> None:
        self._file.truncate(n)
        node = self.node
        if node.paths and n != node.length:  # else only reserved room was cut off, which followers do not have
            node.length = n
            node.dirty = True
            node.changed = self._disk.tap.put(Kind.TRUNCATE, node.number, n, ()) + 1

    def sync(self) -> None:
        self._file.sync()
        if (
            self.node.dirty and self.node.paths
        ):  # else a sync point has all of it, perhaps that of the commit which is synced now
            self._disk.sync_point([self], [])

    def read_at(self, pos: int, n: int) -> bytes:
        return self._file.read_at(pos, n)

    def read_into(self, pos: int, buf: memoryview) -> int:
        return self._file.read_into(pos, buf)

    def size(self) -> int:
        return self._file.size()

    def reserve(self, start: int, end: int) -> None:
        self._file.reserve(start, end)

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


class TapDisk:
    """A disk that tells the tap each change. The files that exist when the directory is locked get numbers at that moment."""

    def __init__(self, disk: Disk, tap: Tap, known: Tree | None = None) -> None:
        """`known`: the files, if the stream that goes on here has numbers for them already."""
        self.inner = disk
        self.tap = tap
        self.tree = Tree()
        self._known = known
        self._numbers = 0
        self.renames = 0
        """The number of renames so far."""
        self._changed: set[str] = set()
        """The directories with changed names that no sync point covers yet."""

    # -- who looks on --------------------------------------------------------------------------------------------

    @property
    def root(self) -> str:
        return str(getattr(self.inner, "root", "the data directory"))

    @property
    def keeper(self) -> Keeper | None:
        return self.inner.keeper

    @keeper.setter
    def keeper(self, keeper: Keeper | None) -> None:
        self.inner.keeper = keeper

    @property
    def remover(self) -> Remover | None:
        return self.inner.remover

    @remover.setter
    def remover(self, remover: Remover | None) -> None:
        self.inner.remover = remover

    @property
    def freeing(self) -> int:
        return self.inner.freeing

    # -- what changes the directory ------------------------------------------------------------------------------

    def lock(self, path: str) -> object:
        lock = self.inner.lock(path)
        if self._known is not None:
            self._inherit(self._known)
            return lock
        for found, directory in walk(self.inner):
            if directory:
                self.tree.make_directory(found)
            else:
                file = self.inner.open(found)
                self.tree.name(found, self._node(file.size()))
                file.close()
        return lock

    def _inherit(self, known: Tree) -> None:
        """Take the names and numbers that the stream knows. They are what the disk has."""
        for directory in known.directories():
            self.tree.make_directory(directory)
        nodes: dict[int, Node] = {}
        for path, old in known.files():
            node = nodes.get(old.number)
            if node is None:
                node = nodes[old.number] = Node(old.number, old.length)
            self.tree.name(path, node)
        self._numbers = max(nodes, default=0)
        self._known = None

    def _node(self, length: int = 0) -> Node:
        self._numbers += 1
        return Node(self._numbers, length)

    def open(self, path: str, *, create: bool = False) -> File:
        file = self.inner.open(path, create=create)
        if paths.is_local(path):
            return file
        node = self.tree.get(path)
        if node is None:
            if not create:
                file.close()
                raise StoreError(
                    f"{file.path} has come into the data directory from elsewhere while Kvitto ran: remove it"
                )
            node = self._made(path)
        return TapFile(file, node, self)

    def _made(self, path: str) -> Node:
        node = self._node()
        node.dirty = True
        self.tree.name(path, node)
        self._changed.add(parent(path))
        node.changed = self.tap.put(Kind.OPEN, node.number, 0, [path.encode()]) + 1
        return node

    def makedirs(self, path: str) -> None:
        self.inner.makedirs(path)
        if not paths.is_local(path) and self.tree.make_directory(path):
            self.tap.put(Kind.MKDIR, 0, 0, [path.encode()])
            while path:
                path = parent(path)
                self._changed.add(path)

    def rename(self, a: str, b: str) -> None:
        self.renames += 1
        self.inner.rename(a, b)
        if paths.is_local(a):
            assert paths.is_local(b), "a file of this machine becomes one of all"
            return
        node = self.tree.forget(a)
        assert node is not None
        if not paths.is_local(b):  # else the followers move it out of the way, too
            self.tree.name(b, node)
        self._names(Kind.RENAME, a, b)

    def link(self, a: str, b: str) -> bool:
        linked = self.inner.link(a, b)
        if linked and not paths.is_local(a) and not paths.is_local(b):
            node = self.tree.get(a)
            assert node is not None
            self.tree.name(b, node)
            self._names(Kind.LINK, a, b)
        return linked

    def _names(self, kind: Kind, a: str, b: str) -> None:
        self.tap.put(kind, 0, 0, [two_paths(a, b)])
        self._changed |= {parent(a), parent(b)}

    def unlink(self, path: str) -> None:
        self.inner.unlink(path)
        if not paths.is_local(path):
            self.tree.forget(path)
            self.tap.put(Kind.UNLINK, 0, 0, [path.encode()])
            self._changed.add(parent(path))

    def rmtree(self, path: str) -> None:
        self.inner.rmtree(path)
        if not paths.is_local(path) and self.tree.has_directory(path):
            self.tree.remove(path)
            self.tap.put(Kind.RMTREE, 0, 0, [path.encode()])
            self._changed.add(parent(path))

    # -- syncs ---------------------------------------------------------------------------------------------------

    def sync_dir(self, path: str) -> None:
        self.inner.sync_dir(path)
        if path in self._changed:
            self.sync_point([], [path])

    def sync_point(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Tell the tap that these are synced here. Followers sync the same files and directories at this place."""
        numbers = []
        for file in files:
            if isinstance(file, Tracked):
                file = file.file
            if isinstance(file, TapFile):
                if file.node.dirty and file.node.paths:  # else an earlier sync point has all of it
                    numbers.append(file.node.number)
                file.node.dirty = False
        self._changed.difference_update(directories)
        shared = [path for path in directories if not paths.is_local(path)]
        if numbers or shared:
            self.tap.sync_point(numbers, shared)

    # -- the rest ------------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def listdir(self, path: str) -> list[str]:
        return self.inner.listdir(path)

    def open_dir(self, path: str) -> int:
        return self.inner.open_dir(path)

    def free_bytes(self) -> int:
        return self.inner.free_bytes()

    def open_files(self) -> int:
        return self.inner.open_files()

    def close(self) -> None:
        self.inner.close()

    def read_file(self, path: str) -> bytes:
        return self.inner.read_file(path)

    def boot_id(self) -> str:
        return self.inner.boot_id()
