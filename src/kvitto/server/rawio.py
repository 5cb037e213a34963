"""Two system calls on a socket that does not block, for `peer.py`.

`rawio.pxd` holds a C twin of each, which makes no Python object (docs/adr/0023). A change to one form needs the same change to the other.
Both return a number of bytes, or the negative errno: -EAGAIN means that the socket has nothing, or takes nothing, now.
"""

from __future__ import annotations

import errno
import os

from kvitto.wire.buf import Buf


def receive(fd: int, box: Buf, at: int) -> int:
    """Read what has arrived into the bytes of `box` from `at` on. 0 means that the peer has closed its side."""
    try:
        return os.readv(fd, [memoryview(box.data)[at:]])
    except OSError as error:
        return -(error.errno or errno.EIO)


def send(fd: int, data: memoryview) -> int:
    """Send as much of `data` as the socket takes now."""
    try:
        return os.write(fd, data)
    except OSError as error:
        return -(error.errno or errno.EIO)
