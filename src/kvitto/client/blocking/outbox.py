"""What is published without confirms: threads hand it over, the loop sends it, and whoever closes is told what was not sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from functools import partial
from types import TracebackType
from typing import Self

from kvitto.client.aio.channel import Channel
from kvitto.client.aio.errors import Closed, PublishFailed
from kvitto.client.blocking.handed import Handed
from kvitto.client.blocking.loop import Loop
from kvitto.client.blocking.receipt import CLOSED, Receipt

CLOSE_TIMEOUT_S = 5.0
"""How long a close waits until everything is sent, and for the broker's answer."""
WAITING_MAX = 1 << 15
"""Without confirms `publish` waits while more messages than this are not sent."""
TURN = 512
"""The number of messages that are sent before other tasks of the loop run."""

Item = tuple[str, str, int, bytes, bytes]
"""Exchange, routing key, flags, encoded properties and body."""
Outcome = asyncio.Future[None] | Receipt[None]

log = logging.getLogger("kvitto.client")


class Outbox:
    """The messages of one channel. Threads hand them over, and at most one task of the loop sends them, in order."""

    def __init__(self, loop: Loop, channel: Channel, outboxes: Outboxes) -> None:
        self._loop = loop
        self._channel = channel
        self._outboxes = outboxes
        self._waiting: Handed[Item] = Handed(self._ask)
        self._task: asyncio.Task[None] | None = None
        """The task that sends."""
        self._sent = 0
        """How many messages have been sent."""
        self._watched: list[tuple[int, Outcome]] = []
        """Numbers and outcomes. The outcome is set when so many messages have been sent, or when those that wait are dropped."""
        self._failed: deque[Exception] = deque(maxlen=1)
        """The last error of which nobody has been told. The loop adds it, and a thread takes it out, each in one step."""
        self._given_up = False

    # -- in a thread of the program --------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether messages wait that the loop has not sent."""
        return len(self._waiting) > 0

    def put(self, item: Item, timeout_s: float | None) -> None:
        """Hand over a message. Raise the error of an earlier one that could not be sent.

        If the channel or the connection is closed meanwhile, a message that the loop has not taken is withdrawn, and Closed is raised. A
        message that the loop has taken has been sent, or the close counts it: a program that published it again would have it twice.
        """
        self._loop.check()
        self._check()
        if self._failed:
            self._raise_failed()
        try:
            self._waiting.add(item)
            self._check()  # again: `give_up` may not have seen the message
            if len(self._waiting) > WAITING_MAX and not self._loop.inside:
                self._loop.outcome(partial(self._watch, WAITING_MAX // 2), timeout_s)
        except TimeoutError:
            raise TimeoutError("the broker does not take messages; this one is still sent when it does") from None
        except Closed:
            if self._waiting.withdraw(item):
                raise

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all messages that were handed over before this call have been sent. Raise the error of one that could not be sent."""
        self.wait(timeout_s)
        self._raise_unsent()

    def wait(self, timeout_s: float | None) -> None:
        """Wait until all messages that were handed over before this call have been sent or dropped."""
        try:
            self._loop.outcome(partial(self._watch, 0), timeout_s)
        except TimeoutError:
            raise TimeoutError(f"{len(self._waiting)} messages are not sent yet") from None

    def _check(self) -> None:
        if self._given_up or self._outboxes.given_up:
            raise Closed("it was closed by this program")

    def _raise_failed(self) -> None:
        if (failed := self._take_failed()) is not None:
            raise failed

    def _raise_unsent(self) -> None:
        self._raise_failed()
        self._check()  # what another thread has given up is not sent

    def _take_failed(self) -> Exception | None:
        self._outboxes.failed.discard(self)  # first: the loop may add another error meanwhile
        try:
            return self._failed.pop()
        except IndexError:
            return None

    def _ask(self) -> None:
        self._loop.hand_over(self.look)

    # -- in the loop -----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Begin to send if something waits and nothing is being sent. After a close nothing is sent: the close has counted what waited."""
        if self._waiting and self._task is None and not self._closed:
            self._outboxes.sending.add(self)
            self._task = self._loop.loop.create_task(self._send())

    def sent(self) -> asyncio.Future[None]:
        """Return a future that is done when all messages that wait now have been sent or dropped."""
        future = self._loop.loop.create_future()
        self._watch(0, future)
        return future

    def _watch(self, left: int, outcome: Outcome) -> None:
        """Set the outcome when at most `left` of the messages that wait now are not sent yet."""
        self.look()
        wanted = self._sent + len(self._waiting) - left
        if wanted <= self._sent or self._closed:
            outcome.set_result(None)
        else:
            waiting = [watched for watched in self._watched if not watched[1].done()]  # the others have timed out
            self._watched = [*waiting, (wanted, outcome)]

    async def finished(self) -> None:
        """Do in the loop what `flush` does in a thread."""
        await self.sent()
        self._raise_unsent()

    async def finish(self, timeout_s: float) -> Exception | None:
        """Wait until all that waits now is sent, at most so long, and drop the rest. Return the error of what was not sent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.sent()
        return not_sent([self.give_up()])

    def give_up(self) -> tuple[int, Exception | None]:
        """Take no more, and drop what is not sent. Return the number of messages, and the error of earlier ones that nobody was told."""
        self._given_up = True  # first: what is handed over from now on is refused
        self._outboxes.ended(self)
        return self._drop(), self._take_failed()

    def forget(self) -> None:
        """Drop the messages that are not sent, and the error of one that could not be sent. A rollback does so."""
        self._drop()
        self._take_failed()

    async def _send(self) -> None:
        """Send what waits, and end when nothing is left."""
        failed: Exception | None = None
        sending = 0
        try:
            while self._waiting:
                core = await self._channel.clear()
                if self._closed:
                    return
                for item in self._waiting.take(TURN):
                    sending += 1
                    try:
                        core.publish(*item)
                    except (ValueError, TypeError, AttributeError) as error:  # only this message is wrong
                        self._fail(error)
                core.connection.flush()
                self._sent += sending
                sending = 0
                self._tell()
                await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - the next call raises it
            failed = error
        except BaseException:  # the thread ends
            failed = Closed(CLOSED)
            raise
        finally:
            self._task = None
            if failed is not None and not self._closed and self._drop() + sending:
                self._fail(failed)
            self._outboxes.ended(self)

    @property
    def _closed(self) -> bool:
        """Whether a close has counted what waited."""
        return self._given_up or self._outboxes.closed

    def _fail(self, error: Exception) -> None:
        self._failed.append(error)
        self._outboxes.failed.add(self)

    def _drop(self) -> int:
        """Drop all messages that wait. Return their number."""
        count = sum(1 for _ in self._waiting.take())
        self._tell(everybody=True)
        return count

    def _tell(self, everybody: bool = False) -> None:
        """Set the outcomes that have waited for what is sent now, or all of them."""
        watched, self._watched = self._watched, []
        for wanted, outcome in watched:
            if outcome.done():
                continue
            if everybody or wanted <= self._sent:
                outcome.set_result(None)
            else:
                self._watched.append((wanted, outcome))


class Outboxes:
    """Those outboxes of a connection that have something to send, or an error that no caller has been told of."""

    def __init__(self) -> None:
        self.sending: set[Outbox] = set()
        """In the loop: the outboxes that have something to send."""
        self.failed: set[Outbox] = set()
        """The outboxes that have such an error. Adding, removing and copying are atomic."""
        self.given_up = False
        """Whether threads may hand over no more."""
        self.closed = False
        """In the loop: whether what waited has been counted."""
        self._woken = asyncio.Event()
        self._hurried = False

    def ended(self, outbox: Outbox) -> None:
        """In the loop: note that an outbox has nothing more to send."""
        self.sending.discard(outbox)
        self._woken.set()

    def hurry(self) -> None:
        """In the loop: wait no longer in `finish`."""
        self._hurried = True
        self._woken.set()

    async def sent(self) -> None:
        """In the loop: wait until all messages that wait now have been sent or dropped."""
        for future in [outbox.sent() for outbox in self.sending]:
            await future

    async def finish(self) -> None:
        """In the loop: wait until everything is sent, for all together at most CLOSE_TIMEOUT_S long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while not self._hurried and self.sending:
                    self._woken.clear()
                    await self._woken.wait()

    async def give_up(self) -> Exception | None:
        """In the loop: drop what is not sent. Return the error of it."""
        self.given_up = True  # what is handed over from now on is refused
        await asyncio.sleep(0)  # meanwhile the loop looks at what was handed over before
        self.closed = True
        return not_sent([outbox.give_up() for outbox in self.sending | self.failed])


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


def log_unsent(unsent: Exception | None) -> None:
    """Log the error of what was not sent, if there is one. This is for a close whose caller does not get that error."""
    if unsent is not None:
        log.warning("%s", unsent)


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
        if error is None:
            self.close()
        else:
            log_unsent(self._close())
