"""From the protocol header to connection.open-ok (W1, W2, W7): one method at a time, nothing else is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvitto.base import limits
from kvitto.base.errors import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    FRAME_ERROR,
    NOT_ALLOWED,
    RESOURCE_ERROR,
    SYNTAX_ERROR,
    ConnectionError_,
)
from kvitto.base.version import __version__
from kvitto.broker.administration.auth import Attempt
from kvitto.broker.administration.parameters import MAX_CONNECTIONS, bounded
from kvitto.protocol.states import CLOSED, HEADER, OPEN, RUNNING, START, TUNE
from kvitto.wire import tables
from kvitto.wire.buf import Buf
from kvitto.wire.methods import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    decode,
)
from kvitto.wire.spec import FRAME_METHOD, PROTOCOL_HEADER

if TYPE_CHECKING:
    from kvitto.broker.administration.auth import User
    from kvitto.broker.vhost import VHost
    from kvitto.protocol.connection import Connection

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
    "kvitto_log": True,
    "kvitto_log_hold": True,
    "kvitto_stage": True,
    "kvitto_offset_header": True,
}


def receive(connection: Connection, box: Buf, n: int, at: int) -> int:
    """Take the part of box[at:n] that belongs to the handshake; returns where it ends. Raises ConnectionError_."""
    while at < n and connection.state < RUNNING and not connection.stalled:
        if connection.state == HEADER:
            if n - at < 8 and PROTOCOL_HEADER.startswith(box.tobytes(at, n)):
                return at
            if box.tobytes(at, at + 8) != PROTOCOL_HEADER:
                connection.transport.write(memoryview(PROTOCOL_HEADER))
                connection.state = CLOSED
                connection.transport.close()
                return n
            at += 8
            connection._at = at
            connection.state = START
            connection.send(0, ConnectionStart(0, 9, server_properties(), mechanisms(connection), b"en_US"))
            if connection.refusal:
                raise ConnectionError_(RESOURCE_ERROR, connection.refusal, limit="connections")
            continue
        if n - at < 8:
            return at
        size = int.from_bytes(box.data[at + 3 : at + 7], "big")
        most = connection.broker.limits.handshake_frame_max
        if size > most:
            connection._at = n
            text = f"a frame with {size} bytes of payload before the connection is open, at most {most} are taken"
            raise ConnectionError_(FRAME_ERROR, text, limit="frame")
        end = at + size + 8
        if end > n:
            return at
        connection._at = end
        if box.data[end - 1] != 0xCE:
            raise ConnectionError_(FRAME_ERROR, "wrong frame end")
        if box.data[at] == FRAME_METHOD:
            if box.data[at + 1] or box.data[at + 2]:
                raise ConnectionError_(COMMAND_INVALID, "expected a method on channel 0")
            _method(connection, decode(box.tobytes(at + 7, end - 1)))
        elif box.data[at] != 8:
            raise ConnectionError_(FRAME_ERROR, "unexpected frame before the connection is open")
        at = end
    return at


def _method(connection: Connection, method: object) -> None:
    if isinstance(method, ConnectionClose):
        connection.send(0, ConnectionCloseOk())
        connection.finish()
    elif isinstance(method, ConnectionStartOk) and connection.state == START:
        _start_ok(connection, method)
    elif isinstance(method, ConnectionTuneOk) and connection.state == TUNE:
        _tune_ok(connection, method)
        connection.state = OPEN
    elif isinstance(method, ConnectionOpen) and connection.state == OPEN:
        _open(connection, method)
    else:
        raise ConnectionError_(COMMAND_INVALID, f"{getattr(method, 'NAME', '?')} is not allowed in this state")


def server_properties() -> dict[str, Any]:
    return {
        "product": "Kvitto",
        "version": __version__,
        "platform": "Python",
        "copyright": "Kvitto contributors",
        "information": "Licensed under Apache-2.0",
        "capabilities": dict(CAPABILITIES),
    }


def mechanisms(connection: Connection) -> bytes:
    """The ways to log in; EXTERNAL only for a peer that has shown a certificate of an authority that we trust."""
    return b"PLAIN AMQPLAIN EXTERNAL" if connection.external is not None else b"PLAIN AMQPLAIN"


def _start_ok(connection: Connection, method: ConnectionStartOk) -> None:
    connection.client = dict(method.client_properties)
    connection.can_cancel = can(connection, "consumer_cancel_notify")
    connection.can_block = can(connection, "connection.blocked")
    connection.wants_offsets = can(connection, "kvitto_offset_header")
    users = connection.broker.users
    if method.mechanism == "EXTERNAL" and connection.external is not None:
        name = connection.external
        same = method.response in (b"", name.encode("utf-8", "surrogateescape"))
        _logged_in(connection, "EXTERNAL", name, users.known(name, connection.loopback) if same else None)
        return
    name, password = credentials(method.mechanism, method.response)
    address = connection.peer.rpartition(":")[0]
    attempt = Attempt(users, name, password, address, connection.loopback, lambda: connection.state == START)

    def checked(user: User | None) -> None:
        if connection.state == START:
            try:
                _logged_in(connection, method.mechanism, name, user if users.get(name) is user else None)
            except ConnectionError_ as error:
                connection.fail(error)
            connection.unstall()
            connection.driver.schedule()

    if attempt.is_remembered or not connection.driver.log_in(attempt, checked):
        user = attempt.check()
        if user is not None:
            users.replace_foreign(user)
        _logged_in(connection, method.mechanism, name, user)
    else:
        connection.stall()


def _logged_in(connection: Connection, mechanism: str, name: str, user: User | None) -> None:
    connection.hub.broker.attempts["amqp091"].count(user is not None)
    if user is None:
        text = f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
        connection.why_refused(name)
        if not can(connection, "authentication_failure_close"):
            connection.finish()
        raise ConnectionError_(ACCESS_REFUSED, text)
    connection.user = user
    connection.send(0, ConnectionTune(connection.hub.max_channels, limits.FRAME_MAX, limits.HEARTBEAT_S))
    connection.state = TUNE


def can(connection: Connection, capability: str) -> bool:
    """Whether the client said so in start-ok."""
    capabilities = connection.client.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get(capability) is True


def credentials(mechanism: str, response: bytes) -> tuple[str, str]:
    """Name and password of a PLAIN or AMQPLAIN response."""
    if mechanism == "PLAIN":
        parts = response.split(b"\0")
        if len(parts) == 3:
            return parts[1].decode("utf-8", "surrogateescape"), parts[2].decode("utf-8", "surrogateescape")
    elif mechanism == "AMQPLAIN":
        table = tables.decode(len(response).to_bytes(4, "big") + response)
        name, password = table.get("LOGIN"), table.get("PASSWORD")
        if isinstance(name, str) and isinstance(password, str):
            return name, password
    else:
        text = f"mechanism {mechanism!r} is not offered to this connection; use PLAIN or AMQPLAIN"
        raise ConnectionError_(NOT_ALLOWED, text)
    raise ConnectionError_(SYNTAX_ERROR, f"malformed {mechanism} response")


def _tune_ok(connection: Connection, method: ConnectionTuneOk) -> None:
    frame_max = method.frame_max or limits.FRAME_MAX
    if not limits.FRAME_MIN <= frame_max <= limits.FRAME_MAX:
        text = f"negotiated frame_max = {frame_max} is not between {limits.FRAME_MIN} and {limits.FRAME_MAX}"
        raise ConnectionError_(NOT_ALLOWED, text)
    most = connection.hub.max_channels
    channel_max = method.channel_max or most
    if channel_max > most:
        text = f"negotiated channel_max = {channel_max} is higher than the maximum allowed value ({most})"
        raise ConnectionError_(NOT_ALLOWED, text)
    connection.frame_max = frame_max
    connection.output.limit_frames(frame_max)
    connection.channel_max = channel_max
    connection.heartbeat = method.heartbeat
    if connection.heartbeat:
        connection.driver.watch_heartbeats(connection)


def _check_limits(connection: Connection, vhost: VHost) -> None:
    """Raises ConnectionError_ 530 if the virtual host or the user has as many connections as an administrator allows."""
    user, opened = connection.user, connection.hub.connections
    most = connection.broker.parameters.limit(vhost.name, MAX_CONNECTIONS)
    if most is not None and sum(c.vhost is vhost for c in opened) >= most:
        text = f"access to vhost '{vhost.name}' refused for user '{user.name}': connection limit ({most}) is reached"
        raise ConnectionError_(NOT_ALLOWED, text, 10, 40, limit="connections")
    most = bounded(user.limits, MAX_CONNECTIONS)
    if most is not None and sum(c.vhost is not None and c.user is user for c in opened) >= most:
        text = f"connection refused for user '{user.name}': user connection limit ({most}) is reached"
        raise ConnectionError_(NOT_ALLOWED, text, 10, 40, limit="connections")


def _open(connection: Connection, method: ConnectionOpen) -> None:
    vhost = connection.broker.vhosts.get(method.virtual_host)
    if vhost is not None and vhost.deleting:
        vhost = None
    if vhost is None:
        raise ConnectionError_(NOT_ALLOWED, f"vhost {method.virtual_host} not found", 10, 40)
    if not connection.user.may_open(vhost.name):
        text = f"access to vhost '{vhost.name}' refused for user '{connection.user.name}'"
        raise ConnectionError_(NOT_ALLOWED, text, 10, 40)
    _check_limits(connection, vhost)
    connection.vhost = vhost
    connection.state = RUNNING
    connection.opened()
    connection.send(0, ConnectionOpenOk())
