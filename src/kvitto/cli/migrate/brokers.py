"""The two brokers of a migration: URI, password and management API of each, and whether that API belongs to that broker.

A password comes from the URI, a file or the environment, so that the list of processes need not show it. `command` reads the
brokers, and `plan` has their APIs checked before anything is changed.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from kvitto.base.config import ConfigError, password_in
from kvitto.cli.management import NOT_ALLOWED, UNREACHABLE, USAGE, Failure, Management
from kvitto.client import Connection
from kvitto.client.errors import AMQPError, ConnectFailed
from kvitto.client.uri import Address, parse_uri

SEEN_S = 10.0
"""The longest time until a management API names a connection that was just opened. RabbitMQ does that every five seconds."""
LOOK_S, LOOK_MAX_S = 0.1, 1.0
"""The pause between two looks, which doubles."""
VHOSTS_MAX = 10
"""The most virtual hosts that are tried until one lets the user in."""
SEES_ALL = {"administrator", "monitoring"}
"""The tags of users to whom the management API names all connections, and not just their own."""
NO_VHOST = 530
NO_LOGIN = 403
API_HINT = (
    "RabbitMQ has its management API with `rabbitmq-plugins enable rabbitmq_management`, Kvitto with the --http-port of "
    "`kvitto serve`."
)


@dataclass
class Broker:
    """One of the two brokers. `vhost` is None for all virtual hosts. `no_password` says what to do if a password is needed and none was
    given."""

    uri: str
    address: Address
    vhost: str | None
    api: Management
    product: str = ""
    no_password: str = ""

    @property
    def place(self) -> str:
        """Return the address and the virtual hosts that are meant, for messages."""
        which = "all virtual hosts" if self.vhost is None else f"vhost '{self.vhost}'"
        return f"{self.address.server} ({which})"

    def uri_of(self, vhost: str) -> str:
        """Return the URI for one virtual host."""
        parts = urlsplit(self.uri)
        return urlunsplit(parts._replace(path="/" + quote(vhost, safe="")))


def read_broker(which: str, side: str, uri: str, url: str | None, file: Path | None, env: Mapping[str, str]) -> Broker:
    """Return a broker from its URI, the URL of its management API, and the file with its password. `which` names the URI, and
    `side`, source or target, the options and the variable."""
    try:
        option, variable = f"--{side}-pass-file", f"KVITTO_{side.upper()}_PASS"
        uri = with_password(uri, option, file, env.get(variable, ""))
        address = parse_uri(uri)
    except ValueError as error:
        raise Failure(USAGE, f"{which}: {error}") from None
    parts = urlsplit(uri)
    vhost = address.vhost if parts.path not in ("", "/") else None
    api = Management(api_url(address, url), f"--{side}-api", API_HINT)
    if api.host_and_port == (address.host, address.port):
        raise Failure(
            USAGE,
            f"{which}: {address.host}:{address.port} is the port of the management API, too: give the port for AMQP in the "
            f"URI (5672 by default), and the other one with {api.option}",
        )
    no_password = "" if parts.password is not None else f"no password was given: {option} FILE or {variable} gives one"
    return Broker(uri, address, vhost, api, no_password=no_password)


def take_name(target: Broker, source: Broker) -> None:
    """Let a target without a virtual host have one with the name of the source's."""
    if target.vhost is None and source.vhost is not None:
        target.uri, target.vhost = target.uri_of(source.vhost), source.vhost
        target.address = parse_uri(target.uri)


def with_password(uri: str, option: str, file: Path | None, variable: str) -> str:
    """Return the URI with the password from the file, or else from the variable if there is none in the URI."""
    address = parse_uri(uri)
    parts = urlsplit(uri)
    if file is None and (parts.password is not None or not variable):
        return uri
    if parts.password is not None:
        raise Failure(USAGE, f"{option}: the URI has a password, too: take it out there")
    try:
        password = variable if file is None else password_in(file, option)
        password.encode()
    except ConfigError as error:
        raise Failure(USAGE, str(error)) from None
    except UnicodeError:
        raise Failure(USAGE, f"the password in {file or 'the environment'} is not UTF-8") from None
    login = f"{quote(address.user, safe='')}:{quote(password, safe='')}"
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}"))


def api_url(address: Address, url: str | None) -> str:
    """Return the URL of a management API with a login: what is missing in the URL is that of the broker."""
    if url is None:
        scheme, port = ("https", 15671) if address.tls else ("http", 15672)
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = f"{scheme}://{host}:{port}"
    scheme, double, rest = url.rpartition("//")
    place, slash, path = rest.partition("/")
    login, _, host = place.rpartition("@")
    if ":" not in login:
        login = f"{login or quote(address.user, safe='')}:{quote(address.password, safe='')}"
    return f"{scheme or 'http:'}{double or '//'}{login}@{host}{slash}{path}"


@dataclass
class Trace:
    """A connection to a broker, with a name that no other connection has."""

    broker: Broker
    name: str
    connection: Connection


def check_apis(source: Broker, target: Broker, *, required: bool) -> list[str]:
    """Connect to each broker, and raise Failure unless its management API names that connection. Return sentences on what could not
    be checked. `required`: whether a broker that refuses the connection is a failure, since it will be needed.
    """
    notes: list[str] = []
    traces: list[Trace] = []
    with contextlib.ExitStack() as stack:
        for broker in (source, target):
            try:
                name = f"kvitto migrate {secrets.token_hex(8)}"
                connection, why = _connect(broker, name)
            except Failure as failure:
                if required:
                    raise
                connection, why = None, str(failure)
            if connection is not None:
                stack.callback(_close, connection)
                if why := _blind(broker):
                    connection = None
            if connection is None:
                notes.append(f"it was not checked whether {broker.api.where} belongs to {broker.address.server}: {why}")
            else:
                traces.append(Trace(broker, name, connection))
        _find(traces)
    return notes


def _connect(broker: Broker, name: str) -> tuple[Connection | None, str]:
    """Connect to a virtual host that lets the user in. Return None and the reason if there is none; raise Failure for all else."""
    first, known = broker.address.vhost, [item["name"] for item in broker.api.get("vhosts")]
    # a virtual host that is not there yet will be made at the new broker, and any other one tells as well whose API it is
    others = [vhost for vhost in known if vhost != first] if broker.vhost is None or first not in known else []
    why = ""
    for vhost in (first, *others)[:VHOSTS_MAX]:
        uri = broker.uri_of(vhost)
        try:
            return Connection(uri, name=name), ""
        except ConnectFailed as error:
            if error.code == NO_VHOST:
                why = str(error)
                continue
            text = f"{broker.place}: {str(error).removeprefix(f'{parse_uri(uri)}: ')}"
            if error.code == NO_LOGIN and broker.no_password:
                text += f"; {broker.no_password}"
            raise Failure(NOT_ALLOWED if error.code else UNREACHABLE, text) from None
        except (AMQPError, OSError) as error:
            raise Failure(UNREACHABLE, f"{broker.place}: {error}") from None
    return None, why


def _close(connection: Connection) -> None:
    with contextlib.suppress(AMQPError, OSError):
        connection.close()


def _blind(broker: Broker) -> str:
    """Return why a management API does not name this broker's connections to this user, "" if it does."""
    if broker.api.user != broker.address.user:
        tags = broker.api.get("whoami").get("tags", [])
        if not SEES_ALL & set(tags.split(",") if isinstance(tags, str) else tags):
            return f"user '{broker.api.user}' sees connections of its own only"
    try:
        _named(broker)
    except Failure as failure:
        if failure.code == UNREACHABLE:
            raise
        return str(failure)
    return ""


def _named(broker: Broker) -> set[str]:
    """Return the names of the connections that the management API knows."""
    found = broker.api.get("connections", query="?columns=user_provided_name,client_properties.connection_name")
    names = (
        (item.get("user_provided_name"), (item.get("client_properties") or {}).get("connection_name")) for item in found
    )
    return {name for pair in names for name in pair if isinstance(name, str)}


def _find(traces: list[Trace]) -> None:
    """Wait until each connection is named by its own broker's API. Raise Failure if another API names it, or none."""
    left, deadline, pause_s = list(traces), time.monotonic() + SEEN_S, LOOK_S
    while left:
        seen = {trace.name: _named(trace.broker) for trace in left}
        left = [trace for trace in left if trace.name not in seen[trace.name]]
        for trace in left:
            for other in traces:
                if other is not trace and other.name in seen[trace.name]:
                    raise _foreign(trace.broker, f"it is that of {other.broker.address.server}. Are both APIs swapped?")
        if left and time.monotonic() > deadline:
            _raise_if_lost(left[0])
            raise _foreign(left[0].broker, "it does not know a connection to it.")
        if left:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_MAX_S)


def _raise_if_lost(trace: Trace) -> None:
    """Raise Failure if the broker has died meanwhile."""
    try:
        trace.connection.channel()
    except (AMQPError, OSError) as error:
        raise Failure(UNREACHABLE, f"{trace.broker.place}: {error}") from None


def _foreign(broker: Broker, why: str) -> Failure:
    api = broker.api
    return Failure(
        USAGE,
        f"{api.option}: {api.where} is not the management API of {broker.address.server}, since {why} Nothing was changed",
    )
