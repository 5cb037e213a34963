"""A publisher that goes on with whichever broker leads, and knows what was confirmed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType

from kvitto.client.blocking.connection import SyncConnection
from kvitto.client.errors import AMQPError
from tests.support.wait import wait_until

BODY = b"x" * 100
PAUSE_S = 0.02


class Publisher:
    """Publishes numbers, one after the other, until the end of the block, and notes those that were confirmed.

    `ways` returns functions that connect to the brokers which may lead, and is asked again whenever a connection was lost.
    """

    def __init__(self, ways: Callable[[], Sequence[Callable[[], SyncConnection]]]) -> None:
        self.confirmed: list[int] = []
        self.number = 0
        self._ways = ways
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for connect in self._ways():
                with suppress(AMQPError, OSError), connect() as connection, connection.channel() as channel:
                    channel.queue("q", durable=True)
                    while not self._stop.is_set():
                        self.number += 1
                        channel.publish(b"%d %s" % (self.number, BODY), "q")
                        self.confirmed.append(self.number)
            self._stop.wait(PAUSE_S)

    def more(self, count: int) -> None:
        """Wait until so many further messages were confirmed."""
        wanted = len(self.confirmed) + count
        wait_until(lambda: len(self.confirmed) >= wanted, what="more confirms")

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
