"""System calls that are usually short: on sockets that do not block, and small writes to files.

`rawio.pxd` holds a C twin of each, which makes no Python object (docs/adr/0023). A change to one form needs the same change to the other.
They return a number of bytes, or the negative errno: -EAGAIN means that the socket has nothing, or takes nothing, now.
"""

from __future__ import annotations

import errno
import os


def receive(fd: int, p: bytearray, i: int, n: int) -> int:
    """Read what has arrived, at most `n` bytes, into p[i:]. 0 means that the peer has closed its side."""
    try:
        return os.readv(fd, [memoryview(p)[i : i + n]])
    except OSError as error:
        return -(error.errno or errno.EIO)


def send(fd: int, p: bytearray, i: int, n: int) -> int:
    """Send as much of p[i:i+n] as the socket takes now."""
    return send_view(fd, memoryview(p)[i : i + n])


def send_view(fd: int, data: memoryview) -> int:
    """Send as much of `data` as the socket takes now."""
    try:
        return os.write(fd, data)
    except OSError as error:
        return -(error.errno or errno.EIO)


def write_file(fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
    """Write as much of `data` as the file takes, at `position`."""
    try:
        return os.pwrite(fd, data, position)
    except OSError as error:
        return -(error.errno or errno.EIO)
