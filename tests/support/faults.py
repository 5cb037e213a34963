"""A proxy with faults, in the event loop of the test: it resets, stalls, forwards byte by byte, or drops what comes.

`async with Faults(port) as proxy:` listens on `proxy.port` and forwards to `port`. The flags apply to all connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from typing import Self

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER, so that close sends a reset."""

BEGUN = 5
"""asyncio needs fewer rounds of its loop than this between the `accept` of a connection and the first step of its task."""


class Faults:
    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.refuse = False
        """End new connections at once."""
        self.mute = False
        """Drop what the server sends, and say nothing: half-open."""
        self.slow = False
        """Forward one byte at a time."""
        self.left: int | None = None
        """Forward so many bytes of the server, then reset."""
        self.left_of_client: int | None = None
        """The same for the bytes of the client."""
        self.then: int | None = None
        """After such a reset, forward so many bytes of the server on the next connection, and reset again."""
        self.forwarded = {True: 0, False: 0}
        """How many bytes of the server (True) and of the client have been forwarded."""
        self.accepted = 0
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for _ in range(BEGUN):  # a task that is cancelled before its first step closes nothing
            await asyncio.sleep(0)
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset all connections."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for writer in pair:
                sock: socket.socket | None = writer.get_extra_info("socket")
                # a descriptor of its own, because what uvloop gives has no `setsockopt`
                with contextlib.suppress(OSError):
                    if sock is not None and sock.fileno() >= 0:
                        with socket.socket(fileno=os.dup(sock.fileno())) as same:
                            same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                writer.transport.abort()

    def stall(self) -> None:
        """Forward nothing until `flow`."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        forth: asyncio.StreamWriter | None = None
        try:
            if self.refuse:
                return
            back, forth = await asyncio.open_connection("127.0.0.1", self.target)
            self._pairs.append((writer, forth))
            with contextlib.suppress(OSError):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._forward(reader, forth, False))
                    group.create_task(self._forward(back, writer, True))
        except (ExceptionGroup, OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            if forth is not None:
                forth.transport.abort()
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, from_server: bool) -> None:
        while data := await reader.read(1 if self.slow else 1 << 16):
            await self._flowing.wait()
            if from_server and self.mute:
                continue
            left = self.left if from_server else self.left_of_client
            if left is not None and left <= len(data):
                writer.write(data[:left])
                self.left, self.left_of_client, self.then = self.then, None, None
                self.refuse = False
                self.cut()
                return
            if from_server and self.left is not None:
                self.left -= len(data)
            elif not from_server and self.left_of_client is not None:
                self.left_of_client -= len(data)
            self.forwarded[from_server] += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()
