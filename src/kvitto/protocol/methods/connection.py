"""Methods of an open connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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


def update_secret(conn: Connection, _method: ConnectionUpdateSecret) -> None:
    """Accept any new secret. Kvitto's passwords do not expire, so it needs none."""
    conn.send(0, ConnectionUpdateSecretOk())


def nothing(_conn: Connection, _method: Method) -> None:
    """Notices that need no answer."""


HANDLERS: dict[type[Method], Callable[[Any, Any], None]] = {
    ConnectionClose: close,
    ConnectionUpdateSecret: update_secret,
    ConnectionBlocked: nothing,
    ConnectionUnblocked: nothing,
}
