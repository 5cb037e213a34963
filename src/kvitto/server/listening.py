"""Makes the sockets of a listener: every address of every host, on one port. `acceptor.py` and the HTTP listener call it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from typing import Any

ANY_IPV6, ANY_IPV4 = "::", "0.0.0.0"
TRIES = 10
"""The number of tries if the system picks a port that is in use on another address."""

CUT_S = 15
"""A connection between nodes is ended if the other machine has answered nothing for this time."""
PROBES = 3
"""The number of keepalive probes that are sent in that time, if nothing else is sent."""


def in_url(host: str) -> str:
    """Return a host as it is written before a colon and a port."""
    return f"[{host}]" if ":" in host else host


def without_delay(sock: socket.socket) -> None:
    """Send small writes at once. asyncio does this only for sockets that were made with the number of their protocol."""
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def end_if_cut(sock: socket.socket, seconds: int) -> None:
    """Have the system end a connection if the other machine has answered nothing for this time, even if nothing is sent meanwhile.

    The kernel of the other machine answers. So a process there that is busy, or stopped, does not end the connection.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * seconds)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds // PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds // PROBES)


async def bind(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Return bound sockets that do not listen yet. Port 0 picks a port that is free on all of them. OSError names an
    address that cannot be used.

    `::` takes IPv4 too, as in RabbitMQ, unless `0.0.0.0` is given beside it.
    """
    addresses = await _addresses(hosts, port)
    for left in reversed(range(TRIES)):
        try:
            return _bind_all(addresses, ANY_IPV4 not in hosts)
        except OSError as error:
            if port or not left or error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError("the last try returns or raises")


async def _addresses(hosts: Sequence[str], port: int) -> list[tuple[int, tuple[str, int]]]:
    """Return (family, address) of each host, without repetitions."""
    found: dict[tuple[int, tuple[str, int]], None] = {}
    for host in hosts:
        try:
            known = await resolve(host, port)
        except OSError as error:
            raise Unavailable(error.errno, error.strerror, f"{in_url(host)}:{port}") from None
        for family, _, _, _, address in known:
            found[int(family), address] = None
    return list(found)


async def resolve(host: str, port: int) -> Any:
    """Resolve a host. A name is resolved in a thread; an address needs no thread."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)


def _bind_all(addresses: Sequence[tuple[int, tuple[str, int]]], both: bool) -> list[socket.socket]:
    """Bind all addresses. `both`: the IPv6 address for all interfaces takes IPv4 too."""
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            if sockets and not address[1]:
                address = (address[0], sockets[0].getsockname()[1])
            sockets.append(_bind_one(family, address, both and address[0] == ANY_IPV6))
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind_one(family: int, address: tuple[object, ...], both: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both))
        sock.bind(address)
    except OSError as error:
        sock.close()
        where = f"{in_url(str(address[0]))}:{address[1]}"
        raise Unavailable(error.errno or 0, os.strerror(error.errno or 0), where) from None
    return sock


class Unavailable(OSError):
    """An address that cannot be used. `filename` has the address and the port."""
