"""Sets up a process that only runs a broker: its threads, its memory, and above all its garbage collection.

A full collection takes up to a second with many bindings or connections. So it waits until the broker is idle or memory
is low (`Server.when_idle`), and this module breaks the cycles that asyncio would leave behind with each connection
(adr/0018). `cli/serve.py` calls it.
"""

from __future__ import annotations

import gc
import sys
import traceback
from asyncio import selector_events
from typing import Any

from kvitto.base.process import give_back_memory, keep_large_memory_apart

YOUNG = 700
"""Objects that may be made before the youngest are looked at. It is the default up to Python 3.12; 2,000, that of later ones,
makes each look take three times as long."""
MIDDLE = 2
"""The number of collections of the youngest objects before the next generation is collected. The youngest are few at a
time, and each takes 2 us."""


LARGE_BLOCK = 4 << 20
SWITCH_S = 0.0001
"""The time that a thread waits for the interpreter before it asks the loop for it.

A busy loop releases the interpreter in each system call, but for less time than another thread needs to wake up, and
each time the other thread's wait begins again. With the usual 5 ms, a thread that had checked a password could not
report it for up to a second.
"""


def spare_the_loop() -> None:
    """Collect young objects only, let large bodies grow in place, and let threads get the interpreter soon."""
    keep_large_memory_apart(LARGE_BLOCK)
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, 1 << 30)
    unbind_transports()


def clean_up() -> None:
    """Collect all garbage and return free memory. The broker is idle, so nobody waits for this."""
    gc.collect()
    give_back_memory()


def forget_frames(error: BaseException) -> None:
    """Clear the frames of a traceback that is not needed any more: a future in them may refer to the error again."""
    traceback.clear_frames(error.__traceback__)


def unbind_transports() -> None:
    """Make asyncio's socket transports store the function that reads, not a method bound to themselves, which would be a cycle."""

    def keep(transport: Any, method: Any) -> None:
        transport._reads = getattr(method, "__func__", method)

    def read(transport: Any) -> None:
        transport._reads(transport)

    kind: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    kind._read_ready_cb = property(None, keep)
    kind._read_ready = read
