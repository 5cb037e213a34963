"""What a process that is a broker and nothing else does for its loop: threads, memory, and above all garbage.

Garbage in cycles is found by a look at all objects only, which takes up to a second where there are many bindings or connections. So
that waits until the broker is idle or memory is low (`Server.when_idle`), and what asyncio would leave behind with each connection is
taken apart here.
"""

from __future__ import annotations

import gc
import sys
import traceback
from asyncio import selector_events
from typing import Any

from kvitto.base.process import give_back_memory, keep_large_memory_apart

MIDDLE = 2
"""Looks at the youngest objects before those that outlived them are looked at once more: few at a time, each of them takes 2 us."""


LARGE_BLOCK = 4 << 20
SWITCH_S = 0.0001
"""How long a thread waits for the interpreter before it asks the loop for it.

A loop that has work lets go of it in each call of the system, but for less time than another thread needs to wake up, and each time
the other one begins to wait anew: with the usual 5 ms a thread that had checked a password could not say so for up to a second.
"""


def spare_the_loop() -> None:
    """Look for garbage among young objects only, let large bodies grow in place, and let threads have the interpreter soon."""
    keep_large_memory_apart(LARGE_BLOCK)
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(gc.get_threshold()[0], MIDDLE, 1 << 30)
    unbind_transports()


def clean_up() -> None:
    """Nobody is waiting: find all garbage, and return the memory that is free."""
    gc.collect()
    give_back_memory()


def forget_frames(error: BaseException) -> None:
    """Empty the frames of a traceback that has served: a future in them may lead to the error again."""
    traceback.clear_frames(error.__traceback__)


def unbind_transports() -> None:
    """Have asyncio's socket transports keep the function that reads, not a method bound to themselves."""

    def keep(transport: Any, method: Any) -> None:
        transport._reads = getattr(method, "__func__", method)

    def read(transport: Any) -> None:
        transport._reads(transport)

    kind: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    kind._read_ready_cb = property(None, keep)
    kind._read_ready = read
