"""Two functions for threads beside the loop: one syncs files, the other one frees the bytes of removed files.

`datasync.pxd` holds a C twin of each, which does not need the interpreter (docs/adr/0019). A change to one form needs the same change
to the other.

A request consists of a number of descriptors and the descriptors. An inverted descriptor (~fd) belongs to a directory, whose names are
made durable. An outcome is (last descriptor, errno, begin, end); the times are seconds of `time.perf_counter`. Several threads may read
from the same pipe, because each request is written and read as a whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import time
from contextlib import suppress

from kvitto.store.disk import datasync, fullsync

MOST = 15
"""A request holds at most this many descriptors."""
REQUEST = struct.Struct(f"={1 + MOST}i")
OUTCOME = struct.Struct("=iidd")
DESCRIPTOR = struct.Struct("=i")
FREED_BYTES, PAUSE_S = 16 << 20, 0.002
"""A large file is cut by this many bytes at a time, with a pause of this many seconds behind each step."""


def serve(requests: int, outcomes: int) -> None:
    """Read requests from one pipe and write their outcomes into another pipe.

    After a failure the rest of the request is skipped; without one the errno is 0. This returns when it reads a request with a negative
    count, or when the first pipe is closed.
    """
    while len(request := os.read(requests, REQUEST.size)) == REQUEST.size:
        count, *descriptors = REQUEST.unpack(request)
        if count < 0:
            return
        begin, fd, code = time.perf_counter(), -1, 0
        for fd in descriptors[:count]:
            try:
                datasync(fd) if fd >= 0 else fullsync(~fd)
            except OSError as error:
                code = error.errno or errno.EIO
                break
        os.write(outcomes, OUTCOME.pack(fd, code, begin, time.perf_counter()))


def shorten(fd: int) -> None:
    """Cut a file step by step if nobody else reads it: it has no name, and the system gives a lease only where no other descriptor is."""
    state = os.fstat(fd)
    left = state.st_size
    if state.st_nlink or not hasattr(fcntl, "F_SETLEASE"):
        return
    # SIGIO, the usual signal to the holder of a lease, would end the process
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    while left > FREED_BYTES:
        left -= FREED_BYTES
        os.ftruncate(fd, left)
        time.sleep(PAUSE_S)


def free(descriptors: int, freed: int) -> None:
    """Read descriptors from one pipe, close each of them, and write one byte for each into another pipe.

    Closing the last descriptor of a file without a name frees the bytes of the file, FREED_BYTES at a time: a sync of any file waits until
    the file system has noted what was freed, 25 to 50 ms after 200 MB. This returns when it reads a negative descriptor, or when the first
    pipe is closed.
    """
    while len(text := os.read(descriptors, DESCRIPTOR.size)) == DESCRIPTOR.size:
        (fd,) = DESCRIPTOR.unpack(text)
        if fd < 0:
            return
        with suppress(OSError):
            shorten(fd)
        with suppress(OSError):
            os.close(fd)
        os.write(freed, text[:1])
