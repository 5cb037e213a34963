"""What becomes of connections in a process that was forked: they belong to the parent, and the child may not touch them.

The child's copies of the sockets are replaced by the null device at once. So nothing that the child does by mistake
reaches the parent's streams, and the broker sees the end of the parent although a child lives on. The selector is shared
with the parent, too, so the child may not unregister or close anything of its event loop.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from typing import Protocol


class Owned(Protocol):
    """What belongs to the process that has made it."""

    def disown(self) -> None:
        """Make every call raise an error from now on, since the process was forked. This must not touch the event loop."""


_owned: weakref.WeakSet[Owned] = weakref.WeakSet()
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def own(thing: Owned) -> None:
    """Call `disown` of this object in each child that this process forks."""
    _owned.add(thing)


def own_socket(sock: socket.socket) -> None:
    """Let go of this socket in each child that this process forks. A socket that connects has no other owner yet."""
    _sockets.add(sock)


def forked(what: str) -> str:
    """Return the text of the error that a forked process gets when it uses a thing of its parent."""
    return f"this {what} belongs to the process that this one was forked from; connect again in this one"


def let_go(fd: int) -> None:
    """Replace a socket by the null device: whoever has its number may go on to use and to close it."""
    if fd < 0:  # closed
        return
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.dup2(null, fd, inheritable=False)
        finally:
            os.close(null)


def _disown_all() -> None:
    owned, sockets = list(_owned), list(_sockets)
    _owned.clear()
    _sockets.clear()
    for sock in sockets:
        let_go(sock.fileno())
    for thing in owned:
        thing.disown()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_disown_all)
