"""Waits for Linux's epoll, and says which descriptors are ready.

`ready.pxd` holds a C twin of each function, which makes no Python object. A change to one form needs the same change to the other. The
events of one wait stand in a bytearray that the caller keeps; only the functions here know its layout, and the two forms differ in it.
"""

from __future__ import annotations

import select
import struct

_EVENT = struct.Struct("=iI")
EVENT_BYTES = 16
"""The caller reserves this many bytes for each event."""


def wait(epoll: select.epoll, fd: int, events: bytearray, most: int, timeout: float) -> int:
    """Wait until files are ready, and return their number, at most `most`. It is 0 after `timeout` seconds and after a signal.
    A `timeout` of less than 0 stands for no limit. It is rounded up to milliseconds here, and where `fine` is false: before Linux 5.11.

    `fd` is the descriptor of `epoll`. Raises OSError.
    """
    try:
        found = epoll.poll(-1 if timeout < 0 else timeout, most)
    except InterruptedError:
        return 0
    for i, event in enumerate(found):
        _EVENT.pack_into(events, _EVENT.size * i, *event)
    return len(found)


def fine(fd: int) -> bool:
    """Return whether `wait` can wait for less than a millisecond. This form cannot; it says so all the same, and both go the same way."""
    return fd >= 0


def descriptor(events: bytearray, i: int) -> int:
    """Return the descriptor of the i-th file that is ready."""
    return int(_EVENT.unpack_from(events, _EVENT.size * i)[0])


def bits(events: bytearray, i: int) -> int:
    """Return what it is ready for, as epoll says it."""
    return int(_EVENT.unpack_from(events, _EVENT.size * i)[1])
