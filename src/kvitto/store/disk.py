"""The only way in which the store touches files.

All code above uses the protocols `Disk` and `File`, so that tests can fail, tear, reorder and forget writes (`tests/support/simdisk.py`).
Paths are relative to the data directory, with "/" between the parts; "" is the data directory itself. An error of the operating system
becomes a `StoreFull` (there is no room, and the caller may go on later) or a `StoreError` (what failed, where, and what to do). A
`File.sync` makes contents durable, and `Disk.sync_dir` makes durable which names were created, renamed or removed in a directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Sequence
from typing import NoReturn, Protocol

from kvitto.base import rawio
from kvitto.base.errors import StoreError, StoreFull, SyncError
from kvitto.store import locking, paths
from kvitto.store.locking import Lock

Bytes = bytes | bytearray | memoryview

MAX_BUFFERS = 1024
"""One pwritev takes at most this many buffers (IOV_MAX of Linux and macOS)."""

MAX_IO_BYTES = 1 << 30
"""One read asks for at most this many bytes; the kernel stops at 2 GiB anyway."""

SMALL_BYTES = 64 << 10
"""A write of at most this many bytes keeps the interpreter: they go into the system's cache, which usually takes microseconds."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""Linux writes another id into this file at each start of the machine."""

LARGE_BYTES = 4 << 20
"""The bytes of a removed file that is larger than this are freed by a thread: that takes a file system a millisecond or more."""

_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", 0)  # macOS: fsync leaves the bytes in the device's cache
_NO_FULL_SYNC = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY}
"""Error numbers of file systems that do not support F_FULLFSYNC."""
_fallocate = getattr(os, "posix_fallocate", None)

_ADVICE = {
    errno.ENOSPC: "free some space on this file system",
    errno.EDQUOT: "raise the quota or free some space",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
    errno.EACCES: "the data directory must belong to the user that runs Kvitto",
    errno.EPERM: "the data directory must belong to the user that runs Kvitto",
    errno.EROFS: "the file system is mounted read-only: see the system log",
    errno.EIO: "the device failed: see the system log before starting again",
}

NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class File(Protocol):
    """An open file. Reads and writes name their position; there is no current one."""

    path: str

    def write_at(self, pos: int, buffers: Sequence[Bytes]) -> int:
        """Write all of the buffers, one behind the other, at `pos`. Returns the number of bytes written.

        Raises StoreFull or StoreError; then any part of the range may have been written.
        """
        ...

    def read_at(self, pos: int, n: int) -> bytes:
        """Read n bytes at `pos`. Returns fewer only at the end of the file."""
        ...

    def read_into(self, pos: int, buf: memoryview) -> int:
        """Fill `buf` from `pos` on. Returns the number of bytes read, fewer than its length only at the end of the file."""
        ...

    def size(self) -> int: ...

    def truncate(self, n: int) -> None: ...

    def reserve(self, start: int, end: int) -> None:
        """Reserve room from `start`, the end of what is written, to `end`, as far as the file system can. It holds zeros at first.

        A sync of what is written inside that room does not have to make a new size durable, which takes a disk nearly twice as long.
        """
        ...

    def sync(self) -> None:
        """Make the contents and the size durable. Raises SyncError; then the contents are unknown, and it must not be called again."""
        ...

    def fileno(self) -> int:
        """Return the descriptor, for a thread that syncs without the interpreter, or -1 if the file can only be synced by `sync`."""
        ...

    def close(self) -> None:
        """Close the file; a second call does nothing. No other thread may be syncing the file, or have its descriptor."""
        ...


class Remover(Protocol):
    """Closes the last descriptor of a large file that has been removed, which frees its bytes and takes long."""

    @property
    def freeing(self) -> int:
        """The number of descriptors that have not been closed yet."""
        ...

    def free(self, fd: int) -> None:
        """Close the descriptor of a file that has no name any more."""
        ...


class Keeper(Protocol):
    """Is told of each name that is about to be removed, so that it can give the file another one."""

    def going(self, path: str) -> None: ...


class Disk(Protocol):
    """A directory tree that belongs to this process."""

    keeper: Keeper | None
    """Who is told before a file loses its name."""

    remover: Remover | None
    """Who frees the bytes of large files that are removed. Without one, their removal takes as long as that does."""

    @property
    def freeing(self) -> int:
        """The number of removed files whose bytes have not been freed yet."""
        ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing. `create` makes an empty one if there is none."""
        ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; an empty list if there is no such directory."""
        ...

    def makedirs(self, path: str) -> None:
        """Make the directory and those above it. Each new name needs a `sync_dir` of the directory above, but the data directory itself
        ("") is durable."""
        ...

    def rename(self, a: str, b: str) -> None:
        """Give the file `a` the name `b`, atomically. A file that had this name is gone."""
        ...

    def link(self, a: str, b: str) -> bool:
        """Give the file `a` the name `b` too. Returns False if this file system gives a file one name only."""
        ...

    def unlink(self, path: str) -> None: ...

    def rmtree(self, path: str) -> None:
        """Remove the directory and all in it, if it is there."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in the directory durable. Do nothing if it is gone, because it may be removed while a sync runs."""
        ...

    def open_dir(self, path: str) -> int:
        """Open a directory for a thread that syncs it. Returns the descriptor, -1 if the directory is gone. Raises SyncError."""
        ...

    def free_bytes(self) -> int: ...

    def open_files(self) -> int:
        """The number of files that are open now."""
        ...

    def close(self) -> None:
        """Close all files that are open. Nothing may use the disk after that."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def lock(self, path: str) -> object:
        """Lock the data directory against other processes until the result is closed or collected. `path`: the lock file."""
        ...

    def boot_id(self) -> str:
        """Return an id that each start of the machine changes, "" if it is unknown. It tells a killed process from a power cut."""
        ...


def write_small(disk: Disk, path: str, content: Bytes) -> None:
    """Write a whole small file, and sync it."""
    file = disk.open(path, create=True)
    file.truncate(0)
    if content:
        file.write_at(0, [content])
    file.sync()
    file.close()


def replace_small(disk: Disk, path: str, content: Bytes) -> None:
    """Replace a small file atomically and durably, because a half of it would mean something else."""
    write_small(disk, paths.copying(path), content)
    disk.rename(paths.copying(path), path)
    disk.sync_dir(path.rpartition("/")[0])


def fail(action: str, path: str, error: OSError) -> NoReturn:
    """Raise an error of the operating system as a StoreFull or StoreError."""
    code = error.errno or 0
    text = f"cannot {action} {path}: {error.strerror or error}"
    if code in _ADVICE:
        text += f" ({_ADVICE[code]})"
    if code in (errno.ENOSPC, errno.EDQUOT):
        raise StoreFull(text) from error
    raise StoreError(text) from error


def without_read_ahead(file: File) -> None:
    """Ask the system not to read ahead in an open file, where it can be asked."""
    fd = file.fileno()
    if fd >= 0 and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)


def datasync(fd: int) -> None:
    """Make the contents of a file durable, and of its metadata only what is needed to read them. Raises OSError if that fails."""
    if _FULL_SYNC:
        fullsync(fd)
    else:
        os.fdatasync(fd)


def fullsync(fd: int) -> None:
    """Make the contents and metadata of a file, or the names in a directory, durable. Raises OSError if that fails."""
    if _FULL_SYNC:
        try:
            fcntl.fcntl(fd, _FULL_SYNC)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
    os.fsync(fd)


class RealFile:
    """A `File` of the operating system."""

    def __init__(self, path: str, fd: int, open_files: set[RealFile] | None = None) -> None:
        self.path = path
        self._fd = fd
        self._open_files = set() if open_files is None else open_files
        self._open_files.add(self)

    def write_at(self, pos: int, buffers: Sequence[Bytes]) -> int:
        if len(buffers) == 1:
            only = buffers[0]
            size = len(only)
            if size <= SMALL_BYTES and rawio.write_file(self._fd, only, pos) == size:
                return size
            # the call below writes all of it again, to the same place, and says what is wrong
        size, total, at = sum(map(len, buffers)), 0, 0
        try:
            while total < size:
                n = os.pwritev(self._fd, buffers if len(buffers) == 1 else buffers[at : at + MAX_BUFFERS], pos + total)
                if n <= 0:
                    raise OSError(errno.EIO, "the file takes no more bytes")
                total += n
                if total < size:
                    while n >= len(buffers[at]):
                        n -= len(buffers[at])
                        at += 1
                    if n:
                        buffers, at = [memoryview(buffers[at])[n:], *buffers[at + 1 :]], 0
        except OSError as error:
            fail("write to", self.path, error)
        return total

    def read_at(self, pos: int, n: int) -> bytes:
        parts, got = [], 0
        try:
            while got < n:
                part = os.pread(self._fd, min(n - got, MAX_IO_BYTES), pos + got)
                if not part:
                    break
                parts.append(part)
                got += len(part)
        except OSError as error:
            fail("read", self.path, error)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, pos: int, buf: memoryview) -> int:
        view, got = buf.cast("B"), 0
        try:
            while got < len(view):
                n = os.preadv(self._fd, [view[got : got + MAX_IO_BYTES]], pos + got)
                if n <= 0:
                    break
                got += n
        except OSError as error:
            fail("read", self.path, error)
        return got

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            fail("look at", self.path, error)

    def truncate(self, n: int) -> None:
        try:
            os.ftruncate(self._fd, n)
        except OSError as error:
            fail("cut", self.path, error)

    def reserve(self, start: int, end: int) -> None:
        if _fallocate is not None:
            with contextlib.suppress(OSError):  # without room the next write raises
                _fallocate(self._fd, start, end - start)

    def sync(self) -> None:
        try:
            datasync(self._fd)
        except (OSError, ValueError) as error:  # ValueError: closed
            # A sync that fails for want of room is no less final than any other: the pages may be gone.
            raise SyncError(f"cannot sync {self.path}: {error}") from error

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._open_files.discard(self)
            os.close(fd)


class RealDisk:
    """A `Disk` in a directory of the operating system. Directories 0700, files 0600."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self._open_files: set[RealFile] = set()
        self.keeper: Keeper | None = None
        self.remover: Remover | None = None

    def open(self, path: str, *, create: bool = False) -> RealFile:
        full = self._full(path)
        try:
            fd = os.open(full, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
            return RealFile(full, fd, self._open_files)
        except OSError as error:
            fail("open", full, error)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._full(path))

    def listdir(self, path: str) -> list[str]:
        full = self._full(path)
        try:
            return sorted(os.listdir(full))
        except FileNotFoundError:
            return []
        except OSError as error:
            fail("list", full, error)

    def makedirs(self, path: str) -> None:
        full = self.root
        if not path:
            self._make_root()
        try:
            for part in path.split("/"):
                full = os.path.join(full, part)
                if not os.path.isdir(full):
                    os.mkdir(full, 0o700)
        except OSError as error:
            fail("make the directory", full, error)

    def _make_root(self) -> None:
        try:
            _make_dirs_durably(self.root)
        except FileExistsError as error:
            if os.path.isdir(error.filename):  # another process has just made it
                fail("make the data directory", self.root, error)
            text = f"cannot make the data directory {self.root}: {error.filename} is not a directory"
            raise StoreError(f"{text}, choose another --data-dir") from error
        except OSError as error:
            fail("make the data directory", self.root, error)

    def rename(self, a: str, b: str) -> None:
        if self.keeper is not None:
            self.keeper.going(a)
            if self.exists(b):
                self.keeper.going(b)
        replaced = self._held_open(self._full(b))
        try:
            os.replace(self._full(a), self._full(b))
        except OSError as error:
            fail(f"rename {self._full(a)} to", self._full(b), error)
        finally:
            self._free(replaced)

    def link(self, a: str, b: str) -> bool:
        try:
            os.link(self._full(a), self._full(b))
        except OSError as error:
            if error.errno in NO_LINKS:
                return False
            fail(f"link {self._full(a)} to", self._full(b), error)
        return True

    @property
    def freeing(self) -> int:
        return 0 if self.remover is None else self.remover.freeing

    def unlink(self, path: str) -> None:
        full = self._full(path)
        if self.keeper is not None:
            self.keeper.going(path)
        removed = self._held_open(full)
        try:
            os.unlink(full)
        except OSError as error:
            fail("remove", full, error)
        finally:
            self._free(removed)

    def _held_open(self, full: str) -> int:
        """Open a large file that is about to lose its name, so that a thread can free its bytes. Returns -1 for any other file."""
        with contextlib.suppress(OSError):  # the bytes of a file that cannot be opened are freed at once
            if self.remover is not None and os.stat(full).st_size > LARGE_BYTES:
                return os.open(full, os.O_RDWR)  # it is cut in steps
        return -1

    def _free(self, fd: int) -> None:
        if fd >= 0 and self.remover is not None:
            self.remover.free(fd)

    def rmtree(self, path: str) -> None:
        assert path, "the data directory itself stays"
        if self.keeper is not None:
            for name in self.listdir(path):
                self.keeper.going(f"{path}/{name}")
        try:
            shutil.rmtree(self._full(path))
        except FileNotFoundError:
            pass
        except OSError as error:
            fail("remove", self._full(path), error)

    def sync_dir(self, path: str) -> None:
        fd = self.open_dir(path)
        if fd < 0:
            return  # the directory is gone, and its names with it; a sync of the directory above makes that durable
        try:
            fullsync(fd)
        except OSError as error:
            raise SyncError(f"cannot sync {self._full(path)}: {error}") from error
        finally:
            os.close(fd)

    def open_dir(self, path: str) -> int:
        try:
            return os.open(self._full(path), os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return -1
        except OSError as error:
            raise SyncError(f"cannot sync {self._full(path)}: {error}") from error

    def free_bytes(self) -> int:
        try:
            stat = os.statvfs(self.root)
        except OSError as error:
            fail("ask for the free space of", self.root, error)
        return stat.f_bavail * stat.f_frsize

    def open_files(self) -> int:
        return len(self._open_files)

    def close(self) -> None:
        for file in list(self._open_files):
            file.close()

    def read_file(self, path: str) -> bytes:
        try:
            with open(self._full(path), "rb") as file:
                return file.read()
        except OSError as error:
            fail("read", self._full(path), error)

    def lock(self, path: str) -> Lock:
        full = self._full(path)
        try:
            return locking.own(full, f"{os.getpid()} {self.boot_id()}\n")
        except BlockingIOError as error:
            text = f"{self.root} is in use by {locking.owner_of(full)}: stop it or choose another --data-dir"
            raise StoreError(text) from error
        except OSError as error:
            fail("lock", full, error)

    def boot_id(self) -> str:
        try:
            with open(BOOT_ID, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def _full(self, path: str) -> str:
        return os.path.join(self.root, path) if path else self.root


def _sync_dir(full: str) -> None:
    fd = os.open(full, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fullsync(fd)
    finally:
        os.close(fd)


def _make_dirs_durably(full: str) -> None:
    """Make the data directory so that its own name survives a power cut: nobody above will sync it."""
    if os.path.isdir(full):
        return
    above = os.path.dirname(full)
    _make_dirs_durably(above)
    os.mkdir(full, 0o700)
    _sync_dir(above)
