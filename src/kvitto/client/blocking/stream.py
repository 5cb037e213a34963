"""Publishes a stream of messages from a thread, with confirms that are streamed too."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any

from kvitto.client.aio.errors import ManyFailed, PublishFailed
from kvitto.client.aio.message import Message
from kvitto.client.blocking.loop import Loop
from kvitto.client.blocking.receipt import Receipt

CHUNK = 1 << 12
"""The number of messages that `publish_many` hands over at a time."""
UNDER_WAY = 4
"""The number of such chunks that may be under way before the first of them is waited for."""


class Stream:
    """One call of `publish_many`. The messages are sent in order, in chunks of which several wait for their confirms."""

    def __init__(
        self, loop: Loop, publish_many: Callable[[Iterable[bytes | Message]], Coroutine[Any, Any, int]]
    ) -> None:
        self._loop = loop
        self._publish_many = publish_many
        self._failed: list[tuple[int, Exception]] = []
        self._stopped = False
        """Whether the caller was interrupted: a chunk may not begin, because one before it may be sent in part."""

    def publish(self, messages: Iterable[bytes | Message]) -> int:
        """Return the number of messages when all are confirmed. Raises ManyFailed, and what else publishing raises."""
        self._loop.check_waiting()
        source = iter(messages)
        taken = confirmed = 0
        under_way: deque[Receipt[int]] = deque()
        before = None
        ends: deque[asyncio.Event] = deque(maxlen=UNDER_WAY + 1)
        try:
            while not self._failed and (chunk := list(itertools.islice(source, CHUNK))):
                sent = asyncio.Event()
                ends.append(sent)
                under_way.append(self._loop.begin(partial(self._send, taken, chunk, before, sent)))
                before = sent
                taken += len(chunk)
                if len(under_way) == UNDER_WAY:
                    confirmed += under_way[0].wait()
                    under_way.popleft()  # behind the wait, which an exception may end
            confirmed += sum(receipt.wait() for receipt in under_way)
        except BaseException:
            self._stopped = True
            for receipt in under_way:
                self._loop.drop(receipt)
            for sent in ends:  # a chunk that nobody knows of may wait for one that was dropped
                self._loop.soon(sent.set)
            raise
        if self._failed:
            raise ManyFailed(taken, sorted(self._failed, key=lambda pair: pair[0]))
        return confirmed

    async def _send(
        self, first: int, chunk: list[bytes | Message], before: asyncio.Event | None, sent: asyncio.Event
    ) -> int:
        """Publish a chunk when the one before has been sent, and return how many messages are confirmed.

        After a failure nothing more is sent, so that no message overtakes one that was left out. What has been taken from the
        iterable and is not sent is among the failures: a message that is not is taken for confirmed.
        """
        if before is not None:
            await before.wait()
        tried = 0
        try:
            if not self._failed and not self._stopped:
                return await self._publish_many(itertools.chain(chunk, _then(sent)))
        except ManyFailed as error:
            tried = error.taken
            self._failed += [(first + index, each) for index, each in error.failed]
        finally:
            sent.set()
        unsent = PublishFailed("it was not sent, because an earlier message had failed")
        self._failed += [(first + index, unsent) for index in range(tried, len(chunk))]
        return 0


def _then(sent: asyncio.Event) -> Iterator[bytes | Message]:
    """Yield nothing. It stands behind the last message: when it is asked for more, all messages have been sent."""
    sent.set()
    yield from ()
