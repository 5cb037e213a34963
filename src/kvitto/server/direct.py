"""Serves the connection of a follower by the poller, as connections of clients are served, and not by asyncio's streams.

Each sync of a leader is two events for each follower: records go out, and an acknowledgement comes in. Through asyncio's streams each of
them takes a future, a task and a round of the loop, which cost more than the records (docs/adr/0023 says the same of clients), and they
copy what they send. So asyncio has a connection only until the follower has been accepted. TLS stays with asyncio.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from selectors import EVENT_READ, EVENT_WRITE

from kvitto.cluster.link import Behind, Link
from kvitto.server.poller import Loop
from kvitto.server.served import Served

READ_BYTES = 64 << 10
PIECES_MAX = 1000
"""The system takes at most 1,024 pieces in one call."""
WAITING_MAX = 1 << 20
"""The task that sends pauses while more bytes than this wait until the system takes them."""


class Direct(Served):
    def __init__(self, writer: asyncio.StreamWriter, link: Link, took: Callable[[bytes], None]) -> None:
        """`took` is called with what is received; if it raises an error the connection ends.

        asyncio must have sent everything, and the caller must have read everything that asyncio has received.
        """
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        self._link = link
        self._took = took
        transport = writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._poller = loop.poller
        # a descriptor of its own: the transport may close the other one, and the system gives its number to another file then
        self._socket = writer.get_extra_info("socket").dup()
        self._socket.setblocking(False)
        self._waiting: deque[bytes | memoryview] = deque()
        """What the system has not taken yet."""
        self._size = 0
        """The number of bytes in `_waiting`."""
        self._taken = asyncio.Event()
        self._watched = EVENT_READ
        self.over: asyncio.Future[None] = loop.create_future()
        """Its exception is what has ended the connection: EOFError, OSError, or what `took` has raised."""
        self._poller.watch(self._socket.fileno(), self, 0, EVENT_READ)

    @property
    def waits(self) -> bool:
        """Whether there are bytes that the system has not taken."""
        return bool(self._waiting)

    def ready(self, events: int) -> None:
        try:
            if events & EVENT_WRITE and self._waiting:
                self._send_waiting()
            if events & EVENT_READ:
                data = self._socket.recv(READ_BYTES)
                if not data:
                    raise EOFError
                self._took(data)
        except BlockingIOError:
            pass
        except Exception as error:  # noqa: BLE001 - whoever waits for `over` gets it
            self._end(error)

    def push(self) -> bool:
        """Send what there is at once, unless earlier bytes still wait. Return whether nothing is left for the task that sends.

        It is called in the middle of an operation of the broker, which must not hear of what is wrong with a connection.
        """
        link = self._link
        if self._waiting or self.over.done():
            return False
        try:
            self.send(link.at_once())
        except Behind:
            return False  # the task finds out itself
        except Exception as error:  # noqa: BLE001 - as in `ready`
            self._end(error)
            return False
        return not (self._waiting or link.wants or link.replaced)

    def send(self, pieces: Sequence[bytes]) -> None:
        """Send these pieces, one behind the other. What the system does not take is sent later."""
        if self.over.done() or not pieces:
            return
        self._waiting += pieces
        self._size += sum(map(len, pieces))
        if not self._watched & EVENT_WRITE:
            try:
                self._send_waiting()
            except OSError as error:
                self._end(error)

    def _send_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            try:
                sent = self._socket.sendmsg(list(islice(waiting, PIECES_MAX)))
            except BlockingIOError:
                break
            self._size -= sent
            while waiting and sent >= len(waiting[0]):
                sent -= len(waiting.popleft())
            if sent:
                waiting[0] = memoryview(waiting[0])[sent:]
        self._watch(EVENT_READ | EVENT_WRITE if waiting else EVENT_READ)
        if self._size <= WAITING_MAX:
            self._taken.set()

    async def drain(self) -> None:
        """Wait until at most WAITING_MAX bytes are left, or the connection has ended."""
        while self._size > WAITING_MAX and not self.over.done():
            self._taken.clear()
            await self._taken.wait()

    def _watch(self, events: int) -> None:
        if events != self._watched:
            self._poller.watch(self._socket.fileno(), self, self._watched, events)
            self._watched = events

    def _end(self, error: Exception) -> None:
        self.close()
        if not self.over.done():
            self.over.set_exception(error)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._watch(0)
            self._socket.close()
            self._taken.set()
