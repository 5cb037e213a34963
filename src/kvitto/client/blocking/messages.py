"""Messages, and the iterators that give them: consumers, and reads of a range. Any number of threads may use one."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self

from kvitto.client import disown
from kvitto.client.aio.consumer import Consumer
from kvitto.client.aio.core import IncomingMessage
from kvitto.client.aio.errors import AlreadySettled, Closed
from kvitto.client.aio.ranges import RangeReader
from kvitto.client.blocking.loop import Loop


class SyncMessage:
    """A message from the broker, see `IncomingMessage` for its attributes. It is settled by any thread, once."""

    def __init__(self, incoming: IncomingMessage, loop: Loop) -> None:
        self.incoming = incoming
        self.body = incoming.body
        self._loop = loop
        self._settled = incoming.settled

    def __getattr__(self, name: str) -> Any:
        return getattr(self.incoming, name)

    def ack(self) -> None:
        """Acknowledge it. If its connection is lost meanwhile, the broker delivers it again."""
        self._settle(self.incoming.ack)

    def reject(self, *, requeue: bool = False) -> None:
        """Reject it: the broker dead-letters or drops it, or with `requeue` delivers it again."""
        incoming = self.incoming
        self._settle(lambda: incoming.reject(requeue=requeue))

    def _settle(self, call: Callable[[], object]) -> None:
        if self._settled:
            raise AlreadySettled("this message was acked or rejected before, or its consumer needs no acks")
        self._settled = True
        settle(self._loop, call)

    def process(self, *, on_error: str = "reject") -> AbstractContextManager[SyncMessage]:
        """`with message.process(on_error="requeue"):`, see `IncomingMessage.process`."""
        if on_error not in ("reject", "requeue"):
            raise ValueError(f'on_error is "reject" or "requeue", not {on_error!r}')
        return self._block(on_error == "requeue")

    @contextlib.contextmanager
    def _block(self, requeue: bool) -> Iterator[SyncMessage]:
        try:
            yield self
        except BaseException as error:
            if not self._settled:
                self.reject(requeue=requeue or not isinstance(error, Exception))
            raise
        if not self._settled:
            self.ack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._settled:
            return
        if error is None:
            self.ack()
        else:
            self.reject(requeue=not isinstance(error, Exception))


def settle(loop: Loop, call: Callable[[], object]) -> None:
    """Have the loop make a call that acks or rejects a message. If the connection is closed, the broker has the message back already."""
    try:  # noqa: SIM105 - `suppress` takes as long as the rest
        loop.hand_over(call)
    except Closed:
        pass


Wrap = Callable[[IncomingMessage, Loop], SyncMessage]


class SyncMessages:
    """An iterator over messages, of which several come from the loop at a time. Any number of threads may use it."""

    def __init__(self, loop: Loop, wrap: Wrap) -> None:
        self._loop = loop
        self._wrap = wrap
        self._here: deque[IncomingMessage] = deque()
        disown.own(self)

    def disown(self) -> None:
        """In a forked child: the parent handles what is here."""
        self._here.clear()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncMessage:
        while True:
            try:
                return self._wrap(self._here.popleft(), self._loop)
            except IndexError:
                pass
            try:
                self._here.extend(self._take_all())
            except StopAsyncIteration:
                raise StopIteration from None

    def _take_all(self) -> list[IncomingMessage]:
        """Wait for messages, and return those that are here. Raises StopAsyncIteration at the end."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self


class SyncConsumer(SyncMessages):
    """An iterator over the messages of a queue, see `Consumer`. `with` or `cancel` ends it."""

    def __init__(self, loop: Loop, consumer: Consumer, timeout_s: float | None, wrap: Wrap) -> None:
        super().__init__(loop, wrap)
        self._consumer: Consumer | None = consumer
        self._timeout_s = timeout_s

    def _take_all(self) -> list[IncomingMessage]:
        if self._consumer is None:
            raise StopAsyncIteration
        try:
            return self._loop.run(self._consumer.take_all(), self._timeout_s)
        except TimeoutError:
            self.cancel()
            raise StopAsyncIteration from None

    def cancel(self) -> None:
        """End it. Messages that were not taken return to the queue."""
        consumer, self._consumer = self._consumer, None
        if consumer is None or self._loop.ended:
            return
        self._return_messages()
        self._loop.run(consumer.cancel())

    def _return_messages(self) -> None:
        while self._here:
            incoming = self._here.popleft()
            if not incoming.settled:
                settle(self._loop, partial(incoming.reject, requeue=True))

    def __del__(self) -> None:
        self._return_messages()  # the consumer itself ends as its own handle goes

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.cancel()


class SyncRangeReader(SyncMessages):
    """An iterator over the messages of a range of offsets, see `RangeReader`. `close`, or the end of a `with` block, ends it early."""

    def __init__(self, loop: Loop, reader: RangeReader) -> None:
        super().__init__(loop, SyncMessage)
        self._reader = reader

    def _take_all(self) -> list[IncomingMessage]:
        return self._loop.run(self._reader.take_all())

    def close(self) -> None:
        """End the iterator. A second call does nothing."""
        self._here.clear()
        if not self._loop.ended:
            self._loop.run(self._reader.close())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
