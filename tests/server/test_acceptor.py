"""The end of a listener, with connections that have just come."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest

from kvitto.server import acceptor as module
from kvitto.server.acceptor import Acceptor


def test_a_connection_that_is_accepted_while_it_closes_is_closed_too() -> None:
    """Its task is cancelled before it runs; a socket that is left to the garbage collector is a ResourceWarning, here an error."""

    async def connect() -> bytes:
        loop = asyncio.get_running_loop()

        def room() -> bool:
            loop.call_soon(acceptor.close)
            return True

        def peer(sock: socket.socket, address: Any) -> None:
            raise AssertionError("there was no handshake")

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        acceptor = Acceptor(peer, room, lambda: None, 10, lambda: context)
        port = await acceptor.listen(["127.0.0.1"], 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        got = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert acceptor.beginning == 0
        return got

    assert asyncio.run(asyncio.wait_for(connect(), 10)) == b""


def test_a_listener_survives_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in the log, the peer is closed, and the next one is asked in."""
    monkeypatch.setattr(module, "RETRY_S", 0)
    answers = iter((RuntimeError("of its own"), False, True))

    def room() -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def greet(sock: socket.socket, address: Any) -> None:
        sock.send(b"come in")
        sock.close()

    async def connect() -> list[bytes]:
        acceptor = Acceptor(greet, room, lambda: None, 10)
        port = await acceptor.listen(["127.0.0.1"], 0)
        heard = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            heard.append(await reader.read())
            writer.close()
            await writer.wait_closed()
        acceptor.close()
        return heard

    assert asyncio.run(asyncio.wait_for(connect(), 10)) == [b"", b"", b"come in"]
    assert "cannot accept a connection: of its own" in caplog.text
