"""The system calls of one event of the load generator, addressed by (buffer, index). `calls.pxd` has the C versions, which make no
Python object; change both together.
"""

from __future__ import annotations

import os
import time


def receive(fd: int, p: bytearray, i: int, n: int) -> int:
    """Receive at most `n` bytes into p[i:]. Return their number, 0 at the end, -1 if there are none or the connection broke."""
    try:
        return os.readv(fd, [memoryview(p)[i : i + n]])
    except OSError:
        return -1


def send(fd: int, p: bytearray, i: int, n: int) -> int:
    """Send p[i:i+n]. Return the number of bytes that the socket took, -1 if it takes none now or the connection broke."""
    try:
        return os.write(fd, memoryview(p)[i : i + n])
    except OSError:
        return -1


def now_ns() -> int:
    """Return the time of `time.monotonic_ns`."""
    return time.monotonic_ns()
