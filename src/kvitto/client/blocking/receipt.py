"""The outcome of one publish, for the thread that waits for it.

A coroutine in the client's thread, and the two futures that pass its outcome on, would cost more than all the rest of a publish.
"""

from __future__ import annotations

import asyncio
import threading

from kvitto.client.aio.errors import Closed
from kvitto.client.blocking.loop import CLOSED


class Receipt:
    """To the core of the client it is like a future: `done`, `set_result` and `set_exception` are called in the client's thread.

    Whoever waits calls `wait` or `abandon`, in a thread of the program.
    """

    __slots__ = ("_ended", "_error", "_lock", "_task")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._ended = False
        self._error: BaseException | None = None
        self._task: asyncio.Future[None] | None = None

    def done(self) -> bool:
        """Whether there is an outcome, or nobody waits for one any more."""
        return self._ended

    def set_result(self, result: None) -> None:
        """Note that the message was confirmed."""
        self._end(None)

    def set_exception(self, error: BaseException) -> None:
        """Note why it was not."""
        self._end(error)

    def follow(self, task: asyncio.Future[None]) -> None:
        """In the client's thread: take the outcome of a task that publishes."""
        self._task = task
        task.add_done_callback(self._followed)

    def wait(self, timeout_s: float | None) -> None:
        """Return when the message was confirmed, or raise why it was not. After `timeout_s` raise TimeoutError."""
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

    def abandon(self) -> None:
        """Note that nobody waits any more. The loop does not begin what it has not begun; `cancel` has to be called there for the rest."""
        self._ended = True

    def cancel(self) -> None:
        """In the client's thread: end what still works for it."""
        if self._task is not None:
            self._task.cancel()

    def _followed(self, task: asyncio.Future[None]) -> None:
        self._end(Closed(CLOSED) if task.cancelled() else task.exception())

    def _end(self, error: BaseException | None) -> None:
        if not self._ended:
            self._error = error
            self._ended = True
            self._lock.release()
