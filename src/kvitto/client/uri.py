"""`amqp://user:password@host:port/vhost?heartbeat=60` and `amqps://`, after RabbitMQ's URI specification."""

import ssl
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from kvitto.base import limits

DEFAULT_URI = "amqp://guest:guest@localhost:5672/%2f"
PORTS = {"amqp": 5672, "amqps": 5671}
ENCODE = "percent-encode / ? # [ ] @ in the password"


@dataclass(frozen=True, slots=True)
class Address:
    """The parts of a URI. `heartbeat_s` None means the server's suggestion, 0 means off."""

    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: bool
    heartbeat_s: int | None
    connect_timeout_s: float
    frame_max: int
    cacertfile: str | None
    certfile: str | None
    keyfile: str | None
    verify: Literal["verify_peer", "verify_none"]

    def __str__(self) -> str:
        """Return a text for messages, without the password."""
        return f"{self.server} (vhost {self.vhost!r})"

    @property
    def server(self) -> str:
        """Return the same without the virtual host."""
        return f"amqp{'s' if self.tls else ''}://{self.user}@{self.host}:{self.port}"

    def ssl_context(self) -> ssl.SSLContext:
        """Return the context for an amqps connection, verified against `cacertfile` or the system's authorities."""
        context = ssl.create_default_context(cafile=self.cacertfile)
        if self.verify == "verify_none":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certfile:
            context.load_cert_chain(self.certfile, self.keyfile)
        return context


def parse_uri(uri: str) -> Address:
    """Return the address. ValueError names the wrong part, never the password."""
    if "#" in uri:
        raise ValueError(f"an AMQP URI has no #: {behind_password(uri)!r}; {ENCODE}")
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise ValueError(f"malformed AMQP URI {behind_password(uri)!r}; {ENCODE}") from None
    if parts.scheme not in PORTS:
        raise ValueError(f"an AMQP URI starts with amqp:// or amqps://, this one with {parts.scheme!r}")
    try:
        port = parts.port or PORTS[parts.scheme]
    except ValueError:
        where = behind_password(uri)
        raise ValueError(f"the port in the AMQP URI is not a number from 1 to 65535: {where!r}; {ENCODE}") from None
    given = dict(parse_qsl(parts.query))
    heartbeat = given.pop("heartbeat", None)
    verify = given.pop("verify", "verify_peer")
    if verify not in ("verify_peer", "verify_none"):
        raise ValueError(f"URI parameter verify is verify_peer or verify_none, not {verify!r}")
    address = Address(
        host=parts.hostname or "localhost",
        port=port,
        user=unquote(parts.username) if parts.username is not None else "guest",
        password=unquote(parts.password) if parts.password is not None else "guest",
        vhost=unquote(parts.path[1:]) or "/",
        tls=parts.scheme == "amqps",
        heartbeat_s=None if heartbeat is None else int(_number("heartbeat", heartbeat, 65535)),
        connect_timeout_s=_number("connection_timeout", given.pop("connection_timeout", "10000"), 1e9) / 1000,
        frame_max=int(_number("frame_max", given.pop("frame_max", str(limits.FRAME_MAX)), 1 << 24)),
        cacertfile=given.pop("cacertfile", None),
        certfile=given.pop("certfile", None),
        keyfile=given.pop("keyfile", None),
        verify="verify_peer" if verify == "verify_peer" else "verify_none",
    )
    if given:
        raise ValueError(
            f"unknown URI parameter {', '.join(sorted(given))}; known are heartbeat (s), connection_timeout (ms), "
            "frame_max, cacertfile, certfile, keyfile, verify"
        )
    return address


def behind_password(uri: str) -> str:
    """Return the part of a malformed URI that may be shown."""
    return uri.rpartition("@" if "@" in uri else "//")[2]


def _number(name: str, text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"URI parameter {name} is a number, not {text!r}") from None
    if not 0 <= value <= most:
        raise ValueError(f"URI parameter {name} is between 0 and {most:g}, not {text}")
    return value
