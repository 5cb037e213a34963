"""Runs `kvitto serve` with a watch on its event loop; a script for the Python of any checkout, it imports nothing of this one.

    python -P loopwatch.py FILE serve ...

The CPU time of each callback that the loop runs, and of each round of the loop, is taken on the loop's own thread: what others do
on the machine, and what the broker's other threads do, does not count. The longest ones of a phase stand in FILE, which the
harness maps too: it begins a phase by writing its number, and reads what the broker has written. See `Watch` for the layout.
"""

from __future__ import annotations

import asyncio.base_events
import asyncio.events
import functools
import gc
import mmap
import sys
from collections.abc import Callable
from time import thread_time_ns
from typing import Any

try:
    from kvitto.server import poller
except ImportError:  # a checkout from before it
    poller = None  # type: ignore[assignment]
try:
    from kvitto.server.served import Served
except ImportError:  # a checkout from before it
    Served = object  # type: ignore[assignment, misc]

SIZE = 4096
NAME_AT, NAME_MAX = 128, 256
PHASE, SEEN, PIECE_NS, ROUND_NS, BEGAN_NS, GARBAGE_NS = range(6)
"""Words of 8 bytes: the phase that the harness wants, the phase of what follows, the longest callback and the longest round of it,
the thread's CPU time when the callback began that runs now, 0 while none runs, and the garbage collections in the longest callback."""


def name_of(callback: Any) -> str:
    """What a person looks for in the sources: a function, behind it whose socket it serves."""
    while isinstance(callback, functools.partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    name = getattr(callback, "__qualname__", type(callback).__name__)
    coroutine = owner.get_coro() if isinstance(owner, asyncio.Task) else None
    if coroutine is not None:
        return f"{name} of {getattr(coroutine, '__qualname__', coroutine)}"
    protocol = getattr(owner, "_protocol", None)
    return f"{name} of {type(protocol).__name__}" if protocol is not None else str(name)


def watch_peers(kind: Any, timed: Any, ended: Callable[[], None]) -> None:
    """Time what a poller does outside of asyncio's handles: it serves the sockets of peers, and runs the turn behind their input.

    `ended` is called behind each turn, with which a round of the poller ends.
    """
    watch_untimed = kind.watch

    class Timed(Served):
        def __init__(self, served: Any) -> None:
            self.served = served

        def ready(self, events: int) -> None:
            timed(self.served.ready, self.served.ready, events)

    def watch(self: Any, fd: int, served: Any, before: int, events: int) -> None:
        watch_untimed(self, fd, Timed(served), before, events)

    turn = getattr(kind, "turn", None)

    def set_turn(self: Any, action: Any) -> None:
        def timed_turn() -> None:
            timed(action, action)
            ended()

        self.timed_turn = timed_turn
        if turn is not None:
            turn.fset(self, self.timed_turn)

    kind.watch = watch
    # `turn` is a plain attribute in older checkouts
    kind.turn = property(lambda self: self.timed_turn, set_turn)


class Watch:
    """The longest callback and round of a phase, kept in a file that another process maps."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), SIZE)
        self.words = memoryview(self.map).cast("Q")

    def install(self) -> None:
        garbage = 0
        collecting = 0

        def collected(step: str, _: object) -> None:
            nonlocal garbage, collecting
            if step == "start":
                collecting = thread_time_ns()
            else:
                garbage += thread_time_ns() - collecting

        gc.callbacks.append(collected)
        run_handle = asyncio.events.Handle._run
        run_once = asyncio.base_events.BaseEventLoop._run_once  # type: ignore[attr-defined]
        words, new_phase, worse = self.words, self.new_phase, self.worse

        def handle(self: Any) -> None:
            timed(self._callback, run_handle, self)

        def timed(callback: Any, action: Any, *args: Any) -> None:
            nonlocal garbage
            garbage = 0
            words[BEGAN_NS] = began = thread_time_ns()
            action(*args)
            spent = thread_time_ns() - began
            words[BEGAN_NS] = 0
            if words[SEEN] != words[PHASE]:
                new_phase()
            if spent > words[PIECE_NS]:
                worse(spent, callback)
                words[GARBAGE_NS] = garbage

        def once(self: Any) -> None:
            began = thread_time_ns()
            run_once(self)
            words[ROUND_NS] = max(words[ROUND_NS], thread_time_ns() - began)

        last_ended = 0

        def ended() -> None:
            """Note how long a round has taken. Several of them may follow each other without asyncio."""
            nonlocal last_ended
            before, last_ended = last_ended, thread_time_ns()
            if before:
                words[ROUND_NS] = max(words[ROUND_NS], last_ended - before)

        asyncio.events.Handle._run = handle  # type: ignore[method-assign]
        if poller is not None:
            watch_peers(poller.Poller, timed, ended)
        else:
            asyncio.base_events.BaseEventLoop._run_once = once

    def new_phase(self) -> None:
        self.words[PIECE_NS] = self.words[ROUND_NS] = 0
        self.words[SEEN] = self.words[PHASE]

    def worse(self, spent: int, callback: Any) -> None:
        self.words[PIECE_NS] = spent
        name = name_of(callback).encode()[:NAME_MAX]
        self.map[NAME_AT : NAME_AT + NAME_MAX] = name.ljust(NAME_MAX, b"\0")


if __name__ == "__main__":
    from kvitto.cli.main import main

    Watch(sys.argv[1]).install()
    sys.exit(main(sys.argv[2:]))
