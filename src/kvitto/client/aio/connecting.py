"""Makes a link of an address: name, socket, TLS, handshake. Each failure is a ConnectFailed that says what to check.

The sockets are made here, because a process that is forked meanwhile has to let go of them from their first moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from kvitto.client import disown, handshake
from kvitto.client.aio.link import Link, LinkOwner
from kvitto.client.errors import ConnectFailed, ConnectionLost
from kvitto.client.uri import Address


async def open_link(address: Address, owner: LinkOwner, name: str) -> Link:
    """Return an open link. ConnectFailed names the server, the reason, and what to check."""
    loop = asyncio.get_running_loop()
    link = Link(address, loop, owner)
    try:
        async with asyncio.timeout(address.connect_timeout_s):
            context = address.ssl_context() if address.tls else None
            host = address.host if address.tls else None
            sock = await _reach(address, loop)
            await loop.create_connection(lambda: link, sock=sock, ssl=context, server_hostname=host)
            await link.handshake(name)
    except TimeoutError:
        error: Exception = ConnectFailed(
            f"{address}: no answer within {address.connect_timeout_s:g} s; is it an AMQP 0-9-1 port?"
        )
    except ConnectionLost as lost:
        error = ConnectFailed(handshake.why(address, lost), lost.code)
    except OSError as failed:
        error = ConnectFailed(
            f"{address}: {failed}; is the broker running, the port right, and its TLS as the URI says?"
        )
    except ValueError as failed:
        error = ConnectFailed(f"{address}: {failed}")
    except BaseException:
        _give_up(link)
        raise
    else:
        return link
    _give_up(link)
    raise error from None


async def _reach(address: Address, loop: asyncio.AbstractEventLoop) -> socket.socket:
    """Return a socket that is connected to the first address of the host that answers."""
    failed: list[OSError] = []
    for family, kind, protocol, _, where in await _look_up(address, loop):
        sock = socket.socket(family, kind, protocol)
        disown.own_socket(sock)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, where)
        except OSError as error:
            sock.close()
            failed.append(error)
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed[0] if len(failed) == 1 else OSError("; ".join(map(str, failed)))


async def _look_up(address: Address, loop: asyncio.AbstractEventLoop) -> list[Any]:
    """Return the addresses of the host. One that is a number needs no thread."""
    with contextlib.suppress(socket.gaierror):
        return socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        )
    return await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)


def _give_up(link: Link) -> None:
    link.fail(ConnectionLost(f"{link.address}: the connection was given up during the handshake"))
    if link.transport is not None:
        link.transport.abort()
