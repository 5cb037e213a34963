"""Methods of an open connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ACCESS_REFUSED, ConnectionError_
from kvitto.wire.methods import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
)

if TYPE_CHECKING:
    from kvitto.protocol.connection import Connection


def close(conn: Connection, _method: ConnectionClose) -> None:
    conn.release()
    conn.send(0, ConnectionCloseOk())
    conn.finish()


def update_secret(conn: Connection, method: ConnectionUpdateSecret) -> None:
    """A new password for this user's session: it must be right."""
    password = method.new_secret.decode("utf-8", "surrogateescape")
    if conn.hub.broker.users.authenticate(conn.user.name, password, conn.loopback) is None:
        raise ConnectionError_(ACCESS_REFUSED, "the new secret was refused")
    conn.send(0, ConnectionUpdateSecretOk())


def nothing(_conn: Connection, _method: Method) -> None:
    """Notices that need no answer."""


HANDLERS: dict[type[Method], Callable[[Any, Any], None]] = {
    ConnectionClose: close,
    ConnectionUpdateSecret: update_secret,
    ConnectionBlocked: nothing,
    ConnectionUnblocked: nothing,
}
