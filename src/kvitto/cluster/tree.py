"""The names in a data directory, in memory, with the number by which the stream calls each file. Leader and follower have one each.

A file is called by a number from the time when it is made, because it may be renamed while it is open. The tree does to its names what
the disk does, so it has always what the disk has; files of one machine (`paths.is_local`) are not in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvitto.base.errors import StoreError
from kvitto.store import paths
from kvitto.store.disk import Disk


class Node:
    """A file, whatever its names."""

    __slots__ = ("changed", "dirty", "length", "number", "paths")

    def __init__(self, number: int, length: int = 0) -> None:
        self.number = number
        self.paths: list[str] = []
        self.length = length
        self.changed = 0
        """The place behind the record that changed its contents last."""
        self.dirty = False
        """Whether it has contents that no sync point covers."""


class Tree:
    def __init__(self) -> None:
        self._directories: dict[str, dict[str, Node | None]] = {"": {}}
        """The names in each directory; that of a directory is None."""
        self.count = 0
        """The number of names."""

    def get(self, path: str) -> Node | None:
        """Return the file of this name, None if there is none."""
        directory, _, name = path.rpartition("/")
        return self._directories.get(directory, {}).get(name)

    def has_directory(self, path: str) -> bool:
        return path in self._directories

    def files(self) -> list[tuple[str, Node]]:
        """Return the names of all files, each with its file."""
        return [
            (f"{directory}/{name}" if directory else name, node)
            for directory, names in self._directories.items()
            for name, node in names.items()
            if node is not None
        ]

    def directories(self) -> list[str]:
        """Return all directories, each of them behind the directory that it is in."""
        return [path for path in self._directories if path]

    def make_directory(self, path: str) -> bool:
        """Add a directory and those above it. Return whether one of them was missing."""
        if path in self._directories:
            return False
        above, _, name = path.rpartition("/")
        self.make_directory(above)
        self._directories[above][name] = None
        self._directories[path] = {}
        self.count += 1
        return True

    def name(self, path: str, node: Node) -> Node | None:
        """Give a file a name. Return the file that had this name before, None if there was none."""
        old = self.forget(path)
        directory, _, name = path.rpartition("/")
        self._directories[directory][name] = node
        node.paths.append(path)
        self.count += 1
        return old

    def forget(self, path: str) -> Node | None:
        """Remove a name. Return the file that had it, None if there was none."""
        directory, _, name = path.rpartition("/")
        names = self._directories.get(directory, {})
        node = names.get(name)
        if node is not None:
            del names[name]
            node.paths.remove(path)
            self.count -= 1
        return node

    def remove(self, path: str) -> list[Node]:
        """Remove a directory with everything in it. Return the files that were in it."""
        gone: list[Node] = []
        for name, node in list(self._directories.get(path, {}).items()):
            below = f"{path}/{name}"
            if node is None:
                gone += self.remove(below)
            else:
                self.forget(below)
                gone.append(node)
        if self._directories.pop(path, None) is not None:
            above, _, name = path.rpartition("/")
            del self._directories[above][name]
            self.count -= 1
        return gone


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def walk(disk: Disk, directory: str = "") -> Iterator[tuple[str, bool]]:
    """Yield each path of a data directory that is not of one machine, and whether it is a directory. A directory comes before its names."""
    for name in disk.listdir(directory):
        path = f"{directory}/{name}" if directory else name
        if paths.is_local(path):
            continue
        try:
            disk.listdir(path)
        except StoreError:  # a file
            yield path, False
            continue
        yield path, True
        yield from walk(disk, path)
