"""`readable` waits until there is something to read. It takes any descriptor; `select.select` takes none above 1,023."""

from __future__ import annotations

import select
from socket import socket
from typing import IO


def readable(source: IO[str] | socket, timeout_s: float) -> bool:
    """Return whether a file or a socket has something to read, or has ended, within this time. Raises ValueError if it is closed."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
