"""The outcome of what the client's thread does for a thread of the program, which waits for it here."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Generic, TypeVar, cast

from kvitto.client.aio.errors import Closed

T = TypeVar("T")
CLOSED = "the connection was closed by this program"


class Receipt(Generic[T]):
    """What a thread of the program waits for. The client's thread uses it like a future.

    It is no `concurrent.futures.Future`, because that costs several times as much, and because a signal handler may interrupt `result`
    while it has a lock. The client's thread would wait for that handler.
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
        """Note the result. That of a publish is None, and says that it was confirmed."""
        self._end(result, None)

    def set_exception(self, error: BaseException) -> None:
        """Note the exception that the waiting thread raises."""
        self._end(None, error)

    def follow(self, task: asyncio.Future[T]) -> None:
        """In the client's thread: take the outcome of a task."""
        self._task = task
        task.add_done_callback(self._followed)

    def wait(self, timeout_s: float | None = None) -> T:
        """Return the result when it is there, or raise the exception. Raise TimeoutError after `timeout_s`."""
        longest = -1.0 if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=longest):
            raise TimeoutError(f"there was no outcome within {timeout_s} s")
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame
        return cast(T, self._result)

    def abandon(self) -> None:
        """Note that nobody waits any more, so the loop does not begin what it has not begun. `cancel` has to be called for the rest."""
        self._ended = True

    def cancel(self) -> None:
        """In the client's thread: cancel the task whose outcome this would be."""
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
