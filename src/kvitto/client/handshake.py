"""What a client says while it logs in and agrees on limits (specification 2.2.4), for both clients."""

from __future__ import annotations

from kvitto.base.version import __version__
from kvitto.client.errors import ConnectFailed, ConnectionLost
from kvitto.client.uri import Address
from kvitto.wire import methods as m
from kvitto.wire.tables import Table

CAPABILITIES: Table = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


def start_ok(address: Address, start: m.ConnectionStart, name: str, platform: str = "") -> m.ConnectionStartOk:
    """Return the login with the address's user and password. Raise ConnectFailed if the server offers no PLAIN."""
    if b"PLAIN" not in start.mechanisms.split():
        offered = start.mechanisms.decode(errors="replace")
        raise ConnectFailed(f"{address}: the server offers no PLAIN login, only {offered}")
    properties: Table = {"product": "Kvitto client", "version": __version__}
    if platform:
        properties["platform"] = platform
    properties["capabilities"] = CAPABILITIES
    if name:
        properties["connection_name"] = name
    response = f"\0{address.user}\0{address.password}".encode()
    return m.ConnectionStartOk(properties, "PLAIN", response, "en_US")


def tune_ok(address: Address, tune: m.ConnectionTune) -> m.ConnectionTuneOk:
    """Return the smaller of both values for each limit; 0 means no limit. The address's heartbeat comes before the server's."""
    wish = address.heartbeat_s
    frame_max = min(address.frame_max or tune.frame_max, tune.frame_max or address.frame_max)
    return m.ConnectionTuneOk(tune.channel_max or 65535, frame_max, tune.heartbeat if wish is None else wish)


def why(address: Address, lost: ConnectionLost) -> str:
    """Say why a handshake was interrupted, with the usual reason."""
    said = lost.text.removeprefix(f"{address}: ")
    if lost.code == 403:
        return f"{address}: login refused ({said}); check user and password"
    if lost.code == 530:
        return f"{address}: no access to the virtual host ({said})"
    if lost.code == 0:
        return f"{lost.text} during the handshake; wrong password, or not an AMQP 0-9-1 port?"
    return str(lost)
