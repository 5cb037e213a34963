"""Leads connections for port 5672 of this machine to the broker under test (COMPAT_HOST, COMPAT_PORT).

pika's acceptance tests name port 5672 in many places, some in processes that they start: hence a `sitecustomize`,
which Python imports at start when this directory is on PYTHONPATH. Only the address changes; the wire does not.
"""

import os
import socket
from typing import Any

_TARGET = (os.environ["COMPAT_HOST"], int(os.environ["COMPAT_PORT"]))
_LOCAL = {"localhost", "127.0.0.1", "::1"}


def _led(address: Any) -> Any:
    if isinstance(address, tuple) and address[0] in _LOCAL and address[1] == 5672:
        return _TARGET
    return address


class _Socket(socket.socket):
    def connect(self, address: Any) -> None:
        super().connect(_led(address))

    def connect_ex(self, address: Any) -> int:
        return super().connect_ex(_led(address))


_getaddrinfo = socket.getaddrinfo


def _lookup(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
    if host in _LOCAL and str(port) == "5672":
        host, port = _TARGET
    return _getaddrinfo(host, port, *args, **kwargs)


socket.socket = _Socket  # type: ignore[misc]
socket.getaddrinfo = _lookup
