"""A follower is served by the poller from its acceptance on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

import pytest

from kvitto.base.errors import StoreError
from kvitto.cluster.link import Behind, Link
from kvitto.cluster.records import StreamError
from kvitto.server.direct import PIECES_MAX, Direct
from kvitto.server.poller import Loop
from kvitto.server.poller import run as run_loop
from tests.support.wait import TIMEOUT_S

LARGE = 8 << 20
"""More than a socket takes at once."""


class Wanting:
    """What a link has to send, in steps."""

    def __init__(self) -> None:
        self.steps: list[list[bytes]] = []
        self.replaced = False
        self.error: Exception | None = None

    @property
    def wants(self) -> bool:
        return bool(self.steps)

    def at_once(self) -> list[bytes]:
        if self.error is not None:
            raise self.error
        return self.steps.pop(0) if self.steps else []


class Connected:
    """Both ends of a connection: the leader's is `direct`, the follower's is `sock`."""

    def __init__(self, writer: asyncio.StreamWriter, sock: socket.socket, took: Callable[[bytes], None]) -> None:
        self.writer, self.sock = writer, sock
        self.link = Wanting()
        self.direct = Direct(writer, cast(Link, self.link), took)

    async def receive(self, count: int) -> bytes:
        loop, found = asyncio.get_running_loop(), b""
        while len(found) < count and (data := await loop.sock_recv(self.sock, count - len(found))):
            found += data
        return found


def connected(test: Callable[[Connected], Awaitable[None]], took: Callable[[bytes], None] = print) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        _, writer = await asyncio.open_connection(sock=ours)
        both = Connected(writer, theirs, took)
        try:
            await asyncio.wait_for(cast(Coroutine[Any, Any, None], test(both)), TIMEOUT_S)
        finally:
            both.direct.close()
            both.direct.close()
            assert not loop.poller._served
            both.sock.close()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    run_loop(main())


def test_what_there_is_goes_out_at_once() -> None:
    async def test(both: Connected) -> None:
        both.link.steps = [[b"head", b"", b"payload"]]
        assert both.direct.push() and not both.direct.waits
        assert both.sock.recv(100) == b"headpayload"
        assert both.direct.push(), "there is nothing"

    connected(test)


def test_the_task_goes_on_if_there_is_more_than_one_step() -> None:
    async def test(both: Connected) -> None:
        both.link.steps = [[b"one"], [b"two"]]
        assert not both.direct.push()
        assert both.direct.push()
        assert both.sock.recv(100) == b"onetwo"

    connected(test)


@pytest.mark.parametrize(
    "pieces",
    [[bytes([n]) * LARGE for n in range(3)], [b"%d," % n for n in range(2 * PIECES_MAX + 1)]],
    ids=["large", "many"],
)
def test_what_the_system_does_not_take_is_sent_later_and_nothing_goes_before_it(pieces: list[bytes]) -> None:
    async def test(both: Connected) -> None:
        both.link.steps = [pieces, [b"later"]]
        assert not both.direct.push()
        if both.direct.waits:
            assert not both.direct.push() and both.link.wants, "it would go before what waits"
            drained = asyncio.ensure_future(both.direct.drain())
            await asyncio.sleep(0)
            assert not drained.done()
            both.direct.send([b"behind"])
            assert await both.receive(sum(map(len, pieces)) + 6) == b"".join(pieces) + b"behind"
            await drained
        else:
            assert await both.receive(sum(map(len, pieces))) == b"".join(pieces)
        assert both.direct.push() and not both.direct.waits
        assert await both.receive(5) == b"later"

    connected(test)


def test_who_waits_for_room_is_told_of_the_end() -> None:
    async def test(both: Connected) -> None:
        both.direct.send([bytes(LARGE)])
        drained = asyncio.ensure_future(both.direct.drain())
        await asyncio.sleep(0)
        both.sock.close()
        await drained
        with pytest.raises(OSError):
            await both.direct.over

    connected(test)


def test_what_comes_is_taken_in_order_until_the_end() -> None:
    came: list[bytes] = []

    async def test(both: Connected) -> None:
        for number in range(100):
            both.sock.send(b"%d," % number)
            await asyncio.sleep(0)
        both.sock.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            await both.direct.over
        assert b"".join(came) == b"".join(b"%d," % number for number in range(100))

    connected(test, came.append)


def test_an_error_of_who_takes_it_ends_the_connection_and_not_the_loop() -> None:
    def refuse(data: bytes) -> None:
        raise StreamError("nothing that belongs here")

    async def test(both: Connected) -> None:
        both.sock.send(b"anything")
        with pytest.raises(StreamError, match="belongs here"):
            await both.direct.over
        both.link.steps = [[b"nobody reads this"]]
        assert not both.direct.push() and both.link.wants

    connected(test, refuse)


def test_a_broken_connection_ends_with_the_systems_error() -> None:
    async def test(both: Connected) -> None:
        both.sock.close()
        both.link.steps = [[b"lost"]]
        assert not both.direct.push()
        with pytest.raises(OSError):
            await both.direct.over

    connected(test)


def test_a_follower_that_is_too_far_behind_is_left_to_the_task() -> None:
    async def test(both: Connected) -> None:
        both.link.error = Behind()
        assert not both.direct.push() and not both.direct.over.done()

    connected(test)


def test_what_is_wrong_with_a_connection_stays_there() -> None:
    async def test(both: Connected) -> None:
        both.link.error = StoreError("a file that cannot be read")
        assert not both.direct.push()
        with pytest.raises(StoreError, match="cannot be read"):
            await both.direct.over

    connected(test)


def test_the_task_of_a_connection_that_is_replaced_has_to_end_it() -> None:
    async def test(both: Connected) -> None:
        both.link.replaced = True
        assert not both.direct.push()

    connected(test)
