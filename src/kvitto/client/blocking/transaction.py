"""A transaction for threads.

An interrupt (KeyboardInterrupt) may come at any place of the thread that uses it. If it comes before the commit, the transaction is
rolled back. If it comes during the commit, the transaction may have been committed, and the thread does not wait to find out.
"""

from __future__ import annotations

import contextlib
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING

from kvitto.client.aio.errors import Closed
from kvitto.client.aio.link import Port, forget

if TYPE_CHECKING:
    import asyncio

    from kvitto.client.blocking.channel import SyncChannel
    from kvitto.wire.methods import TxRollbackOk


class SyncTransaction(ContextDecorator):
    """`with channel.transaction():`, see `Channel.transaction`. It is used once."""

    _port: Port | None = None
    """The port that the transaction is on, None before it has begun and after it has ended. Only the loop sets this."""
    _entered = _given_up = False

    def __init__(self, channel: SyncChannel) -> None:
        self._channel = channel
        self._loop = channel._loop
        self._outbox = channel._outbox

    # -- in a thread of the program --------------------------------------------------------------------------

    def _recreate_cm(self) -> SyncTransaction:
        return self._channel.transaction()  # as a decorator it has one for each call

    def __enter__(self) -> None:
        if self._entered:
            raise RuntimeError("a transaction is used once: call `channel.transaction()` for another one")
        try:
            self._entered = True
            self._channel.run(self._begin())
        except BaseException:
            self._give_up()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if error is None:
                self._loop.run(self._commit())
            elif not self._loop.ended:
                self._loop.run(self._roll_back())
        except BaseException:
            self._give_up()
            raise

    def __del__(self) -> None:
        # If an interrupt comes at the first instruction of `__exit__`, the rest of `__exit__` does not run. Then Python calls `__del__`
        # soon, unless the program keeps the exception: its traceback refers to this object.
        if self._port is not None:
            self._give_up()

    def _give_up(self) -> None:
        """Have the transaction rolled back, if it is under way, and do not wait for that."""
        with contextlib.suppress(Closed):
            self._loop.hand_over(self._abandon)

    # -- in the loop -----------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        self._port = await self._channel._channel.begin_transaction()
        if self._given_up:  # the thread was interrupted before the answer came
            await self._roll_back()

    async def _commit(self) -> None:
        """Commit when all that was published is on its way. If a message could not be sent, roll back, and raise the error."""
        try:
            await self._outbox.finished()
        except Exception:
            await self._roll_back()
            raise
        port, self._port = self._port, None
        if port is not None:
            await self._channel._channel.commit(port)

    async def _roll_back(self) -> None:
        if (done := self._begin_to_roll_back()) is not None:
            await done

    def _abandon(self) -> None:
        """Roll back, and wait for nothing."""
        self._given_up = True
        if (done := self._begin_to_roll_back()) is not None:
            done.add_done_callback(forget)

    def _begin_to_roll_back(self) -> asyncio.Future[TxRollbackOk] | None:
        """Send the rollback, if there is anything to roll back. What was published in the transaction and is not sent is dropped."""
        port, self._port = self._port, None
        if port is None:
            return None
        self._outbox.forget()
        return self._channel._channel.roll_back(port)
