"""Files whose contents can be made anew, such as the index of a queue's messages by due time (`broker/queues/due.py`).

They lie beside the files of transient queues: they are never synced, the inventory does not know them, and a start removes them.
"""

from __future__ import annotations

from kvitto.store import paths
from kvitto.store.disk import Disk, File


class ScratchFile:
    """A file to which data is appended. `remove` must be called at the end."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: File = disk.open(path, create=True)
        self._size = 0

    def append(self, data: bytes) -> int:
        """Append, and return the position of the first byte. Raises StoreFull; then nothing has been appended."""
        at = self._size
        self._file.write_at(at, [data])
        self._size += len(data)
        return at

    def read_at(self, pos: int, n: int) -> bytes:
        return self._file.read_at(pos, n)

    def remove(self) -> None:
        self._file.close()
        self._disk.unlink(self._path)


class Scratch:
    """The scratch files of one queue."""

    def __init__(self, disk: Disk, queue_id: str) -> None:
        self._disk = disk
        self._directory = paths.scratch_dir(queue_id)
        self._made = 0

    def make(self) -> ScratchFile:
        """Make an empty file. Raises StoreFull."""
        if not self._made:
            self._disk.makedirs(self._directory)
        self._made += 1
        return ScratchFile(self._disk, paths.scratch(self._directory, self._made))

    def remove(self) -> None:
        """Remove all files. None of them may be used any more."""
        if self._made:
            self._disk.rmtree(self._directory)
