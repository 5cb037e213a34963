"""What threads do for the loop: sync files, and free those that are gone. `datasync.pxd` holds C twins, which need no interpreter.

Keep both in step (docs/adr/0019).

A request is the number of descriptors and the descriptors; an outcome is (descriptor, errno, begin, end), the times in seconds as
`time.perf_counter` has them. A descriptor that is inverted (~fd) is a directory's, of which the names are made durable. Several threads
may read from one pipe: each takes whole requests, which are written as a whole.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from contextlib import suppress

from kvitto.store.disk import datasync, fullsync

MOST = 15
"""Descriptors in one request."""
REQUEST = struct.Struct(f"={1 + MOST}i")
OUTCOME = struct.Struct("=iidd")
DESCRIPTOR = struct.Struct("=i")


def serve(requests: int, outcomes: int) -> None:
    """Take requests from one pipe and write their outcomes into another, until one has a negative count or the pipe is closed.

    The rest of a request is left when one of its descriptors fails; if none does, the outcome's errno is 0.
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


def free(descriptors: int, freed: int) -> None:
    """Close the descriptors that come out of one pipe and write a byte for each into another, until one is negative or the pipe is closed.

    To close the last descriptor of a file without a name frees its bytes.
    """
    while len(text := os.read(descriptors, DESCRIPTOR.size)) == DESCRIPTOR.size:
        (fd,) = DESCRIPTOR.unpack(text)
        if fd < 0:
            return
        with suppress(OSError):
            os.close(fd)
        os.write(freed, text[:1])
