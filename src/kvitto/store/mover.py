"""The `Mover` of `kvitto backup`: hard links, and copies that the kernel makes, as clones where the file system has them."""

from __future__ import annotations

import errno
import os

from kvitto.store import paths
from kvitto.store.disk import NO_LINKS, File, RealDisk, fail
from kvitto.store.repair.readonly import ReadOnlyDisk
from kvitto.store.taking import Gone

_copy_range = getattr(os, "copy_file_range", None)  # Linux only
_NO_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}


class FileMover:
    """`linking`: whether files get second names, as long as the file system allows it."""

    def __init__(self, source: ReadOnlyDisk, target: RealDisk, linking: bool) -> None:
        self.linking = linking
        self._source = source
        self._target = target

    def try_link(self, path: str) -> None:
        """Find out with this file whether the backup is on the file system of the broker's directory."""
        name = paths.copying(paths.INCOMPLETE)
        if self.linking:
            self.linking = self.link(path, name)
            if self.linking:
                self._target.unlink(name)

    def open(self, path: str) -> File:
        if not self._source.exists(path):
            raise Gone(path)
        try:
            return self._source.open(path)
        except Exception as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise Gone(path) from error
            raise

    def link(self, path: str, name: str) -> bool:
        full = os.path.join(self._target.root, name)
        try:
            os.link(os.path.join(self._source.root, path), full)
        except FileNotFoundError:
            raise Gone(path) from None
        except OSError as error:
            if error.errno in NO_LINKS:
                return False
            fail("make", full, error)
        return True

    def copy(self, source: File, target: File, at: int, n: int) -> int:
        global _copy_range
        if _copy_range is not None:
            try:
                return int(_copy_range(source.fileno(), target.fileno(), n, at, at))
            except OSError as error:
                if error.errno not in _NO_COPY:
                    fail("copy to", target.path, error)
                _copy_range = None
        return target.write_at(at, [source.read_at(at, n)])
