"""Sets up a process that only runs a broker: its threads, its memory, and above all its garbage collection.

A full collection takes up to a second with many bindings or connections. So it waits until the broker is idle or memory
is low (`Server.when_idle`), and this module breaks the cycles that asyncio would leave behind with each connection
(adr/0018). `cli/serve.py` calls it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
from asyncio import selector_events
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvitto.base.process import give_back_memory, keep_large_memory_apart, page_releaser
from kvitto.wire import buf

YOUNG = 700
"""Objects that may be made before the youngest are looked at. It is the default up to Python 3.12; 2,000, that of later ones,
makes each look take three times as long."""
MIDDLE = 2
"""The number of collections of the youngest objects before the next generation is collected. The youngest are few at a
time, and each takes 2 us."""


BOTH_YOUNG = 1 if sys.version_info < (3, 14) else 0
"""The generation whose collection looks at the youngest objects and those that have been looked at once, and at no others."""
_spared = False
"""Whether `spare_the_loop` has been called: this process only runs a broker."""

LARGE_BLOCK = 4 << 20
LOOK_S = 0.1
RELEASED = 8 << 20
"""Bytes of memory that are given back in one round of the loop. They take about 0.5 ms."""
SWITCH_S = 0.0001
"""The time that a thread waits for the interpreter before it asks the loop for it.

A busy loop releases the interpreter in each system call, but for less time than another thread needs to wake up, and
each time the other thread's wait begins again. With the usual 5 ms, a thread that had checked a password could not
report it for up to a second.
"""


@contextmanager
def put_off() -> Iterator[None]:
    """Collect nothing until this ends or `spare_the_loop` is called. What a start makes stays, and clients may be waiting for it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def spare_the_loop() -> None:
    """Collect young objects only, let large bodies grow in place, and let threads get the interpreter soon."""
    global _spared
    keep_large_memory_apart(LARGE_BLOCK)
    sys.setswitchinterval(SWITCH_S)
    gc.freeze()  # a start leaves next to nothing to collect, and to look for it would hold up an election by 20 ms
    gc.set_threshold(YOUNG, MIDDLE, 1 << 30)
    gc.enable()
    _spared = True
    unbind_transports()
    release = page_releaser()
    if release is not None:
        buf.discard_with(Waste(release).add)


def collect_young() -> None:
    """Collect young objects now, in a process that only runs a broker. The loop calls this after long work.

    Python looks at young objects once there are more new ones than freed ones, of any age. While connections or queues go in thousands
    that is never, and then at all that were made meanwhile at once.
    """
    if _spared:
        gc.collect(BOTH_YOUNG)


class Waste:
    """Gives the memory of large buffers back to the system, RELEASED bytes in each round of the loop: at once, 128 MiB take 7 ms.

    Memory of which something has a view waits until that is gone, which is looked at again each LOOK_S.
    """

    def __init__(self, release: Callable[[bytearray, int, int], None]) -> None:
        self._release = release
        self._waiting = deque([bytearray(1)])
        self._used: list[bytearray] = []
        self._left = 0
        """How much of the first one is left, 0 if it has not been begun."""
        self._alone = self._references()
        """The references to a buffer that nobody else has."""
        self._waiting.clear()

    def add(self, data: bytearray) -> None:
        """Take memory that a buffer does not need any more. Without a loop in this thread it is freed at once."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._put(data, loop)

    def _put(self, data: bytearray, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(data)
        if len(self._waiting) == 1:
            loop.call_soon(self._some, loop)

    def _some(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._left or (self._references() == self._alone and not has_view(self._waiting[0])):
            end = self._left or len(self._waiting[0])
            self._left = max(end - RELEASED, 0)
            self._release(self._waiting[0], self._left, end)
            if not self._left:
                self._waiting.popleft()
        else:
            self._used.append(self._waiting.popleft())
            if len(self._used) == 1:
                loop.call_later(LOOK_S, self._look, loop)
        if self._waiting:
            loop.call_soon(self._some, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        used, self._used = self._used, []
        while used:
            self._put(used.pop(), loop)

    def _references(self) -> int:
        return sys.getrefcount(self._waiting[0])


def has_view(data: bytearray) -> bool:
    """Whether something has a view of these bytes: then they cannot be made longer or shorter."""
    try:
        data.append(data.pop())
    except BufferError:
        return True
    return False


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
