"""The end of a listener, with connections that have just come."""

from __future__ import annotations

import asyncio

from kvitto.server.acceptor import Acceptor


def test_a_connection_that_is_accepted_while_it_closes_is_closed_too() -> None:
    """Its task is cancelled before it runs; a socket that is left to the garbage collector is a ResourceWarning, here an error."""

    async def connect() -> bytes:
        loop = asyncio.get_running_loop()

        def room() -> bool:
            loop.call_soon(acceptor.close)
            return True

        acceptor = Acceptor(lambda address: asyncio.BufferedProtocol(), room, lambda: None)
        port = await acceptor.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        got = await reader.read()
        writer.close()
        await writer.wait_closed()
        assert acceptor.beginning == 0
        return got

    assert asyncio.run(asyncio.wait_for(connect(), 10)) == b""
