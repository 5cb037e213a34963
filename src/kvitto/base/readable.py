"""Waits for a file that has something to read, also if its descriptor is above 1,023, which `select.select` does not take."""

from __future__ import annotations

import select
from typing import IO


def readable(file: IO[str], timeout_s: float) -> bool:
    """Whether there is something to read within this time, or the end of the file."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
