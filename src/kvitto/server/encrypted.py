"""Adds TLS to a connection that asyncio's streams already read and write. `follower_links.py` calls it.

asyncio's own TLS may drop the alert that tells a peer why it is refused. This class sends the alert before it gives up. It looks at the
first byte before anything else, so that a peer without TLS gets an answer in words.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from kvitto.cluster import handshake
from kvitto.cluster.handshake import MAGIC, Refused
from kvitto.cluster.records import StreamError
from kvitto.server.node_tls import NODES, TLS_RECORD, why_not_follower

READ_BYTES = 64 << 10
LINGER_S = 1.0
"""A peer that is refused has this time to read the reason before the connection is closed."""
PLAIN = f"this leader speaks TLS only: start the follower with {NODES}-cert, {NODES}-key and {NODES}-ca"


class Encrypted:
    """Has the methods of asyncio's streams, and encrypts what goes through them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext) -> None:
        self._reader = reader
        self._writer = writer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)

    async def shake_hands(self, first: bytes = b"") -> None:
        """Shake hands. `first`: what has been read already. Raises StreamError or Refused, which say what is wrong, or EOFError."""
        data = first or await self._reader.read(READ_BYTES)
        if data and data[0] != TLS_RECORD:
            if not data.startswith(MAGIC[: len(data)]):
                raise StreamError("it speaks neither TLS nor this protocol")
            self._writer.write(handshake.message(refused=PLAIN))
            await self._linger()
            raise Refused(f"it does not speak TLS, and this leader does: start it with {NODES}-cert")
        while True:
            if not data:
                raise EOFError
            self._in.write(data)
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
            except ssl.SSLError as error:
                self._flush()
                await self._linger()
                raise StreamError(why_not_follower(error)) from None
            else:
                self._flush()
                return
            data = await self._reader.read(READ_BYTES)

    async def read(self, most: int) -> bytes:
        """Return what comes, b"" at the end."""
        while True:
            try:
                return self._tls.read(most)
            except ssl.SSLWantReadError:
                self._flush()
            except ssl.SSLZeroReturnError:
                return b""
            data = await self._reader.read(most)
            if not data:
                return b""
            self._in.write(data)

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        self._flush()

    async def drain(self) -> None:
        await self._writer.drain()

    def _flush(self) -> None:
        if self._out.pending:
            self._writer.write(self._out.read())

    async def _linger(self) -> None:
        """Let the peer read what has been written. What it sends meanwhile is dropped."""
        with contextlib.suppress(OSError):  # also a time-out
            async with asyncio.timeout(LINGER_S):
                self._writer.write_eof()
                while await self._reader.read(READ_BYTES):
                    pass
