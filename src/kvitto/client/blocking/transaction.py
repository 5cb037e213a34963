"""A transaction for threads. One task of the loop has it from its beginning to its end.

The thread that uses it may be interrupted at any place. Whatever place that is, the task is told to roll back, or has been told how to end.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import TYPE_CHECKING

from kvitto.client.aio.errors import Closed

if TYPE_CHECKING:
    from kvitto.client.blocking.channel import SyncChannel


class SyncTransaction:
    """`with channel.transaction():`, see `Channel.transaction`."""

    def __init__(self, channel: SyncChannel) -> None:
        self._channel = channel
        self._loop = channel._loop
        self._outbox = channel._outbox
        self._life = Life(channel)

    def __enter__(self) -> None:
        try:
            self._channel.run(self._life.begin())
        except BaseException:
            self._give_up()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            commit = False
            try:
                if error is None:
                    self._outbox.flush()  # nothing is committed if a message could not be sent
                    commit = True
            finally:
                if commit or not self._loop.ended:
                    self._loop.run(self._life.end(commit))
        except BaseException:
            self._give_up()
            raise

    def __del__(self) -> None:
        # An interrupt that comes before the first line of `__exit__`, or behind the last one of `__enter__`, ends neither of them.
        life = getattr(self, "_life", None)  # nor does `__init__` always come to its end
        if life is not None and not life.ending:
            self._give_up()

    def _give_up(self) -> None:
        with contextlib.suppress(Closed):
            self._loop.hand_over(self._life.give_up)


class Life:
    """What the loop does for a transaction. Its methods are called in the loop."""

    def __init__(self, channel: SyncChannel) -> None:
        self._channel = channel
        self._loop = channel._loop.loop
        self._transaction = channel._channel.transaction()
        self._commits: asyncio.Future[bool] = self._loop.create_future()
        """Whether it ends with a commit. Its end waits for this."""
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None

    @property
    def ending(self) -> bool:
        """Whether it is known how it ends. Any thread may ask."""
        return self._commits.done()

    async def begin(self) -> None:
        """Begin. If the transaction before was interrupted it may still be rolled back; then this one waits for that."""
        before = self._channel._transaction
        if before is not None and before.ending:
            await before._ended()
            before = None
        self._task = self._loop.create_task(self._live())
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # perhaps nobody waits for it
        if before is None:  # else that one is under way, and this one is refused
            self._channel._transaction = self
        await asyncio.wait([self._task, self._begun], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def _live(self) -> None:
        with contextlib.suppress(_RolledBack):
            async with self._transaction:
                self._begun.set_result(None)
                if not await self._commits:
                    raise _RolledBack

    async def end(self, commit: bool) -> None:
        """Commit, or roll back, and return when that is done."""
        if commit:
            self._commits.set_result(True)
        else:
            self.give_up()
        if self._task is not None:
            await self._task

    def give_up(self) -> None:
        """Roll back, unless it has ended or is about to. What was published in it and is not sent is dropped."""
        if not self._commits.done():
            if self._begun.done():  # else what waits belongs to the transaction that this one was refused for
                self._channel._outbox.forget()
            self._commits.set_result(False)

    async def _ended(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])


class _RolledBack(Exception):
    """Ends the block of the transaction in the loop."""
