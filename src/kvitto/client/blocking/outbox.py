"""What is published without confirms: threads hand it over, the loop sends it, and whoever closes is told what was not sent."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from kvitto.client.aio.channel import Channel
from kvitto.client.aio.errors import Closed, PublishFailed
from kvitto.client.blocking.loop import Loop
from kvitto.client.blocking.receipt import CLOSED

CLOSE_TIMEOUT_S = 5.0
"""How long a close waits until everything is sent, and for the broker's answer."""
WAITING_MAX = 1 << 15
"""Without confirms `publish` waits while so many messages are not handed over."""
TURN = 512
"""The number of messages that are sent before other tasks of the loop run."""

Item = tuple[str, str, int, bytes, bytes]
"""Exchange, routing key, flags, encoded properties and body."""

log = logging.getLogger("kvitto.client")


class Outbox:
    """The messages of one channel. At most one task of the loop sends them, in order."""

    def __init__(self, loop: Loop, channel: Channel, busy: Outboxes) -> None:
        self._loop = loop
        self._channel = channel
        self._busy = busy
        self._waiting: deque[Item] = deque()
        self._lock = threading.RLock()
        """`with` takes this lock and not the condition, because the condition's methods are Python's: Ctrl-C at the beginning of its
        `__exit__` would leave the lock taken."""
        self._changed = threading.Condition(self._lock)
        self._inside: list[int] = []
        """The threads that are in `put`, `flush` or `finish`, and may have the lock. Adding, removing and looking are atomic, so they need
        no lock."""
        self._sending = False
        self._failed: Exception | None = None
        self._given_up = False

    def put(self, item: Item, timeout_s: float | None) -> None:
        """Hand over a message, and begin to send if nothing is being sent. Raise the error of an earlier one that could not be."""
        self._loop.check()  # before the lock, which in a forked child may be held for ever
        self._locked(self._put, item, timeout_s)

    def _put(self, item: Item, timeout_s: float | None) -> None:
        if self._given_up:
            raise Closed("it was closed by this program")
        self._raise_failed()
        if not self._sending:
            self._begin()
        self._waiting.append(item)
        if (
            len(self._waiting) > WAITING_MAX
            and not self._loop.inside
            and not self._changed.wait_for(self._has_room, timeout_s)
        ):
            raise TimeoutError("the broker does not take messages; this one is still sent when it does")

    def flush(self, timeout_s: float | None) -> None:
        """Wait until everything is sent. Raise the error of a message that could not be sent."""
        self._loop.check_waiting()
        self._locked(self._flush, timeout_s)

    def _flush(self, timeout_s: float | None) -> None:
        if not self._changed.wait_for(self._is_idle, timeout_s):
            raise TimeoutError(f"{len(self._waiting)} messages are not sent yet")
        self._raise_failed()

    def finish(self, timeout_s: float) -> Exception | None:
        """Wait until everything is sent, at most so long, and drop the rest. Return the error of what was not sent."""
        self._locked(self._changed.wait_for, self._is_idle, timeout_s)
        return not_sent([self.give_up()])

    def _locked(self, action: Callable[..., object], *args: Any) -> None:
        """In a thread of the program: do this with the lock."""
        thread = threading.get_ident()
        self._inside.append(thread)
        try:
            with self._lock:
                action(*args)
        finally:
            self._inside.remove(thread)

    def inside(self) -> bool:
        """Whether the caller is a signal handler that has interrupted `put`, `flush` or `finish` in its own thread.

        That thread may have the lock then, and cannot give it up before the handler returns.
        """
        return threading.get_ident() in self._inside

    def give_up(self) -> tuple[int, Exception | None]:
        """Take no more, and drop what is not sent. Return the number of messages, and the error of earlier ones that nobody was told."""
        with self._lock:
            self._given_up = True
            count = len(self._waiting)
            self._waiting.clear()
            failed, self._failed = self._failed, None
            self._changed.notify_all()
        self._busy.discard(self)
        return count, failed

    def is_sending(self) -> bool:
        with self._lock:
            return self._sending

    def _has_room(self) -> bool:
        return len(self._waiting) <= WAITING_MAX // 2 or self._failed is not None

    def _is_idle(self) -> bool:
        return not self._sending

    def _raise_failed(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            if not self._sending:
                self._busy.discard(self)
            raise failed

    def _begin(self) -> None:
        self._busy.add(self)
        try:
            self._loop.begin(self._send)
        except BaseException:
            self._busy.discard(self)
            raise
        self._sending = True

    async def _send(self) -> None:
        """In the loop: send what waits, and end when nothing is left."""
        failed: Exception | None = None
        try:
            while not self._has_sent():
                core = await self._channel.clear()
                for _ in range(min(len(self._waiting), TURN)):
                    try:
                        core.publish(*self._waiting.popleft())
                    except (ValueError, TypeError, AttributeError) as error:  # only this message is wrong
                        self._failed = error
                core.connection.flush()
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - the next call raises it
            failed = error
        except BaseException:  # the thread ends
            failed = Closed(CLOSED)
            raise
        finally:
            self._end(failed)

    def _has_sent(self) -> bool:
        with self._lock:
            self._changed.notify_all()
            self._sending = bool(self._waiting)
            return not self._sending

    def _end(self, failed: Exception | None) -> None:
        with self._lock:
            if failed is not None:
                self._waiting.clear()
                self._failed = None if self._given_up else failed
                self._sending = False
                self._changed.notify_all()
            if self._failed is None and not self._sending:
                self._busy.discard(self)
        self._busy.wake()


class Outboxes:
    """The outboxes of a connection that have something to send, or an error to tell."""

    def __init__(self) -> None:
        self._busy: set[Outbox] = set()
        """Adding, removing and copying are atomic: threads do the first two, and the loop the last."""
        self._woken = asyncio.Event()
        self._hurried = False

    def add(self, outbox: Outbox) -> None:
        self._busy.add(outbox)

    def discard(self, outbox: Outbox) -> None:
        self._busy.discard(outbox)

    def busy(self) -> bool:
        """Whether any has something to send, or an error to tell."""
        return bool(self._busy)

    def inside(self) -> bool:
        """Whether the caller is a signal handler that has interrupted one of the outboxes in its own thread."""
        return any(outbox.inside() for outbox in list(self._busy))

    def wake(self) -> None:
        """In the loop: note that an outbox has ended to send."""
        self._woken.set()

    def hurry(self) -> None:
        """In the loop: wait no longer in `sent`."""
        self._hurried = True
        self._woken.set()

    async def sent(self) -> None:
        """In the loop: wait until everything is sent, for all together at most CLOSE_TIMEOUT_S long."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while not self._hurried and any(outbox.is_sending() for outbox in list(self._busy)):
                    self._woken.clear()
                    await self._woken.wait()
        except TimeoutError:
            pass

    def give_up(self) -> Exception | None:
        """Drop what is not sent. Return the error of it."""
        return not_sent([outbox.give_up() for outbox in list(self._busy)])


def not_sent(given_up: list[tuple[int, Exception | None]]) -> Exception | None:
    """Return one error for what outboxes had to give up, None if that is nothing."""
    count = sum(each for each, _ in given_up)
    failed = next((error for _, error in given_up if error is not None), None)
    if not count:
        return failed
    error = PublishFailed(
        f"{count} messages that were published without confirms were not sent: the broker did not take them before the close"
    )
    error.__cause__ = failed
    return error


class Closing:
    """Something that is closed by `close` or `with`, and then tells what was not sent: by raising it, or if an exception is under
    way by a line of the log."""

    def _close(self) -> Exception | None:
        """Close it. Return the error of what was not sent."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it."""
        unsent = self._close()
        if unsent is not None:
            raise unsent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        unsent = self._close()
        if unsent is not None:
            if error is None:
                raise unsent
            log.warning("%s", unsent)
