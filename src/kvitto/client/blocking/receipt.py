"""The outcome of what the client's thread does for a thread of the program, which waits for it here."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Generic, TypeVar, cast

from kvitto.client.aio.errors import Closed

T = TypeVar("T")
CLOSED = "the connection was closed by this program"


class Receipt(Generic[T]):
    """To the core of the client it is like a future: `done`, `set_result` and `set_exception` are called in the client's thread.

    Whoever waits calls `wait` or `abandon`, in a thread of the program. `concurrent.futures.Future` costs several times as much, and holds
    a lock of Python's own where a signal handler may interrupt it: the client's thread would wait for that handler.
    """

    __slots__ = ("_ended", "_error", "_lock", "_result", "_task")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._ended = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._task: asyncio.Future[T] | None = None

    def done(self) -> bool:
        """Whether there is an outcome, or nobody waits for one any more."""
        return self._ended

    def set_result(self, result: T) -> None:
        """Note what has become of it. For a publish that is None: it was confirmed."""
        self._end(result, None)

    def set_exception(self, error: BaseException) -> None:
        """Note why nothing has."""
        self._end(None, error)

    def follow(self, task: asyncio.Future[T]) -> None:
        """In the client's thread: take the outcome of a task."""
        self._task = task
        task.add_done_callback(self._followed)

    def wait(self, timeout_s: float | None = None) -> T:
        """Return the result when it is there, or raise the exception. After `timeout_s` raise TimeoutError."""
        longest = -1.0 if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=longest):
            raise TimeoutError(
                f"the broker has not confirmed the message within {timeout_s} s; it may have it all the same"
            )
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame
        return cast(T, self._result)

    def abandon(self) -> None:
        """Note that nobody waits any more. The loop does not begin what it has not begun; `cancel` has to be called there for the rest."""
        self._ended = True

    def cancel(self) -> None:
        """In the client's thread: end what still works for it."""
        if self._task is not None:
            self._task.cancel()

    def _followed(self, task: asyncio.Future[T]) -> None:
        if task.cancelled():
            self._end(None, Closed(CLOSED))
        elif (error := task.exception()) is not None:
            self._end(None, error)
        else:
            self._end(task.result(), None)

    def _end(self, result: Any, error: BaseException | None) -> None:
        if not self._ended:
            self._result, self._error = result, error
            self._ended = True
            self._lock.release()
