"""How HTTP connections are accepted: a few in each round of the loop."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import ExitStack

import pytest

from kvitto.base.process import open_files
from kvitto.http import accepting
from kvitto.http.accepting import Accepting
from kvitto.http.server import ROUNDS
from tests.support.wait import TIMEOUT_S

WAITING = 60


def listening() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


@pytest.mark.parametrize("at_once", [1, 4])
def test_peers_that_are_closed_at_once_take_few_descriptors(at_once: int) -> None:
    """asyncio accepted as many at once as could wait, again and again: there was no descriptor left, and queues went out of service."""

    async def main() -> None:
        closed = most = 0

        def connected(_address: object, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal closed
            closed += 1
            writer.transport.abort()

        sock = listening()
        accepts = Accepting(sock, connected, at_once, 1024)
        with ExitStack() as peers:
            for _ in range(WAITING):
                peers.enter_context(socket.create_connection(sock.getsockname()))
            before = open_files()
            while closed < WAITING:
                await asyncio.sleep(0)
                most = max(most, open_files() - before)
            accepts.close()
        assert 0 < most <= at_once * ROUNDS

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))


def test_what_cannot_be_accepted_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no descriptor for it now."""
    monkeypatch.setattr(accepting, "RETRY_S", 0.0)

    class Poor(socket.socket):
        refused = 0

        def accept(self) -> tuple[socket.socket, object]:
            if self.refused < 2:
                self.refused += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    async def main() -> None:
        came = asyncio.Event()
        sock = Poor()
        sock.bind(("127.0.0.1", 0))

        def connected(_address: object, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set()
            writer.transport.abort()

        accepts = Accepting(sock, connected, 4, 1024)
        with socket.create_connection(sock.getsockname()):
            await came.wait()
        accepts.close()

    asyncio.run(asyncio.wait_for(main(), TIMEOUT_S))
    assert caplog.text.count("cannot accept a connection") == 2
