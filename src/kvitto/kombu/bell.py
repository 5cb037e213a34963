"""Wakes an event loop for deliveries that have been received already, of which the socket says nothing any more, and
is called before the loop waits.

A kombu Hub calls what it was told to call soon before it waits for files. What is called soon by such a callback would
wait for the next event or timer, so the hub gets a file that is readable while there are deliveries.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any


class Bell:
    """A pipe in the loop. It is readable, and `callback(*args)` is called, from `ring` to `hush`."""

    def __init__(self, loop: Any, on_tick: Any, callback: Any, *args: Any) -> None:
        self.loop = loop
        self.on_tick = on_tick
        """Called in each round of the loop before it waits."""
        self.thread = threading.get_ident()
        self.pid = os.getpid()
        self.rings = False
        self._read, self._write = os.pipe()
        loop.add_reader(self._read, callback, *args)
        loop.on_tick.add(on_tick)

    def ring(self) -> None:
        if not self.rings:
            self.rings = True
            os.write(self._write, b".")

    def hush(self) -> None:
        if self.rings:
            self.rings = False
            os.read(self._read, 1)

    def close(self) -> None:
        """Leave the loop. In a child that inherited it this touches nothing but the child's files."""
        if self.pid == os.getpid():
            with contextlib.suppress(OSError, ValueError):
                self.loop.remove_reader(self._read)
        self.loop.on_tick.discard(self.on_tick)
        os.close(self._read)
        os.close(self._write)
