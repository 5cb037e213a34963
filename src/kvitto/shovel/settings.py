"""The settings of a shovel: RabbitMQ's keys of the parameter component `shovel`, checked before one is stored or started.

A value is what JSON can express, from a policymaker. `read` knows each key and says what is wrong with a value, and never
shows a password: `shown` and `without_password` are what may be seen.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from kvitto.client.uri import parse_uri
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Table, encode

COMPONENT = "shovel"
"""The component of the parameters that are shovels."""
URIS_MAX = 16
TEXT_MAX = 4096
PREFETCH, PREFETCH_MAX = 1000, 65535
RECONNECT_S, RECONNECT_MAX_S = 5.0, 3600.0
BATCH_MAX = 1000
CONCURRENCY, CONCURRENCY_MAX = 4, 64
TIMEOUT_S, TIMEOUT_MAX_S = 30.0, 600.0
ATTEMPTS_MAX = 1_000_000

AckMode = Literal["on-confirm", "on-publish", "no-ack", "on-commit"]
ACK_MODES: tuple[AckMode, ...] = ("on-confirm", "on-publish", "no-ack", "on-commit")
"""`on-commit` is Kvitto's own: each message arrives once. The other three wait for the confirm."""
END = {"end": True}
"""What the broker tells the process of its shovels when all have to end in order."""
OLDER = {
    "prefetch-count": "src-prefetch-count",
    "delete-after": "src-delete-after",
    "add-forward-headers": "dest-add-forward-headers",
    "add-timestamp-header": "dest-add-timestamp-header",
    "publish-properties": "dest-publish-properties",
}
"""Names of earlier versions of RabbitMQ."""
WITHOUT_EFFECT = ("protocols", "internal", "internal_owner", "src-predeclared", "dest-predeclared")
OF_WEBHOOKS = (
    "dest-secret",
    "dest-headers",
    "dest-batch",
    "dest-concurrency",
    "dest-ordered",
    "dest-attempts",
    "dest-timeout",
    "dest-cacertfile",
)
KEYS = (
    "src-protocol",
    "src-uri",
    "src-queue",
    "src-queue-args",
    "src-exchange",
    "src-exchange-key",
    "src-prefetch-count",
    "src-delete-after",
    "src-consumer-args",
    "dest-protocol",
    "dest-uri",
    "dest-queue",
    "dest-queue-args",
    "dest-exchange",
    "dest-exchange-key",
    "dest-publish-properties",
    "dest-add-forward-headers",
    "dest-add-timestamp-header",
    "ack-mode",
    "reconnect-delay",
    "paused",
    *OF_WEBHOOKS,
)


class SettingsError(ValueError):
    """A value is not that of a shovel. The text says why."""


@dataclass(frozen=True)
class Webhook:
    """What a shovel to an HTTP server does beyond `dest-uri`."""

    secret: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    batch: int = 1
    concurrency: int = CONCURRENCY
    ordered: bool = False
    attempts: int = 0
    """The attempts after which a message is rejected; 0 is no limit."""
    timeout_s: float = TIMEOUT_S
    cacertfile: str | None = None


@dataclass(frozen=True)
class Settings:
    """A shovel. A URI without a host stands for this broker."""

    src_uris: tuple[str, ...]
    dest_uris: tuple[str, ...]
    src_queue: str = ""
    src_queue_args: Table = field(default_factory=dict)
    src_exchange: str = ""
    src_exchange_key: str = ""
    src_consumer_args: Table = field(default_factory=dict)
    prefetch: int = PREFETCH
    delete_after: int | Literal["never", "queue-length"] = "never"
    dest_queue: str = ""
    dest_queue_args: Table = field(default_factory=dict)
    dest_exchange: str | None = None
    dest_exchange_key: str | None = None
    publish_properties: Table = field(default_factory=dict)
    forward_headers: bool = False
    timestamp_header: bool = False
    ack_mode: AckMode = "on-confirm"
    reconnect_s: float = RECONNECT_S
    webhook: Webhook | None = None
    paused: bool = False


def read(value: Any) -> Settings:
    """Return the settings in a parameter's value. Raise SettingsError."""
    if not isinstance(value, Mapping):
        raise SettingsError("a shovel is an object with src-uri, dest-uri and more")
    given = {OLDER.get(str(key), str(key)): item for key, item in value.items() if key not in WITHOUT_EFFECT}
    for key in given:
        if key not in KEYS:
            alike = difflib.get_close_matches(key, KEYS, 1)
            raise SettingsError(f"a shovel has no key {key!r}" + (f"; is it {alike[0]!r}?" if alike else ""))
    got = Given(given)
    for key in ("src-protocol", "dest-protocol"):
        if got.choice(key, ("amqp091", "amqp10", "local"), "amqp091") != "amqp091":
            raise SettingsError(f"{key}: shovels speak AMQP 0-9-1 (amqp091) only")
    dest_uris = got.uris("dest-uri")
    web = [uri for uri in dest_uris if uri.startswith(("http://", "https://"))]
    if web and len(dest_uris) > 1:
        raise SettingsError("dest-uri: a shovel to an HTTP server has one URI")
    source_uris = got.uris("src-uri")
    if any(uri.startswith("http") for uri in source_uris):
        raise SettingsError("src-uri starts with amqp:// or amqps://")
    settings = Settings(
        source_uris,
        dest_uris,
        got.text("src-queue"),
        got.table("src-queue-args"),
        got.text("src-exchange"),
        got.text("src-exchange-key"),
        got.table("src-consumer-args"),
        int(got.number("src-prefetch-count", 0, PREFETCH_MAX, PREFETCH)) or PREFETCH_MAX,  # 0 is no limit
        got.delete_after(),
        got.text("dest-queue"),
        got.table("dest-queue-args"),
        got.text_or_none("dest-exchange"),
        got.text_or_none("dest-exchange-key"),
        got.table("dest-publish-properties"),
        got.flag("dest-add-forward-headers"),
        got.flag("dest-add-timestamp-header"),
        got.choice("ack-mode", ACK_MODES, "on-confirm"),
        got.number("reconnect-delay", 0, RECONNECT_MAX_S, RECONNECT_S),
        got.webhook() if web else None,
        got.flag("paused"),
    )
    check_together(settings, given)
    try:
        properties_of(settings.publish_properties)
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from None
    return settings


def check_together(settings: Settings, given: Mapping[str, Any]) -> None:
    """Raise SettingsError for keys that do not go together."""
    if bool(settings.src_queue) == bool(settings.src_exchange):
        raise SettingsError("a shovel has either src-queue or src-exchange")
    if settings.dest_queue and settings.dest_exchange is not None:
        raise SettingsError("a shovel has either dest-queue or dest-exchange")
    if settings.webhook is None:
        foreign = [key for key in OF_WEBHOOKS if key in given]
    else:
        foreign = [key for key in KEYS if key.startswith(("dest-queue", "dest-exchange", "dest-add", "dest-publish"))]
        foreign = [key for key in foreign if key in given]
    if foreign:
        which = "an AMQP broker" if settings.webhook is None else "an HTTP server"
        raise SettingsError(f"{foreign[0]} means nothing where dest-uri is {which}")
    if settings.ack_mode == "on-commit":
        if settings.webhook is not None or not settings.src_queue:
            raise SettingsError(
                "ack-mode on-commit is for a queue of Kvitto (src-queue), and Kvitto as the destination"
            )
        if settings.delete_after != "never":
            raise SettingsError("src-delete-after does not go with ack-mode on-commit")


def properties_of(given: Mapping[str, Any]) -> Properties:
    """Return properties by RabbitMQ's names for them. Raise TypeError or ValueError for properties that cannot be sent."""
    named = {name.replace("-", "_"): value for name, value in given.items()}
    unknown = [name for name in named if not hasattr(Properties(), name)]
    if unknown:
        raise ValueError(f"dest-publish-properties: messages have no property {unknown[0]!r}")
    for name, value in named.items():
        try:
            Properties(**{name: value}).encode()
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise ValueError(f"dest-publish-properties: the property {name!r} cannot be {value!r}") from error
    return Properties(**named)


class Given:
    """The keys of a value, each checked when it is read."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given

    def text(self, key: str) -> str:
        return self.text_or_none(key) or ""

    def text_or_none(self, key: str) -> str | None:
        value = self._given.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or len(value.encode(errors="replace")) > TEXT_MAX:
            raise SettingsError(f"{key} is a text of at most {TEXT_MAX} bytes")
        limit = 255 if key.endswith(("queue", "exchange", "key")) else TEXT_MAX
        if len(value.encode(errors="replace")) > limit:
            raise SettingsError(f"{key} has more than {limit} bytes")
        return value

    def flag(self, key: str) -> bool:
        value = self._given.get(key, False)
        if not isinstance(value, bool):
            raise SettingsError(f"{key} is true or false")
        return value

    def number(self, key: str, least: float, most: float, default: float) -> float:
        value = self._given.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise SettingsError(f"{key} is a number from {least:g} to {most:g}")
        return value

    def choice(self, key: str, choices: tuple[Any, ...], default: Any) -> Any:
        value = self._given.get(key, default)
        if value not in choices:
            raise SettingsError(f"{key} is one of {', '.join(choices)}")
        return value

    def table(self, key: str) -> Table:
        value = self._given.get(key, {})
        if isinstance(value, list) and not value:  # RabbitMQ exports an empty table so
            return {}
        if not isinstance(value, dict):
            raise SettingsError(f"{key} is an object")
        try:
            encode(value)
        except (ValueError, UnicodeEncodeError) as error:
            raise SettingsError(f"{key}: {error}") from None
        return value

    def delete_after(self) -> int | Literal["never", "queue-length"]:
        value = self._given.get("src-delete-after", "never")
        if value == "never" or value == "queue-length":
            return "never" if value == "never" else "queue-length"
        return int(self.number("src-delete-after", 0, 1e15, 1))

    def uris(self, key: str) -> tuple[str, ...]:
        value = self._given.get(key)
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not 1 <= len(found) <= URIS_MAX or not all(isinstance(u, str) for u in found):
            raise SettingsError(f"{key} is a URI, or a list of up to {URIS_MAX}")
        for uri in found:
            try:
                check_uri(uri)
            except ValueError as error:
                raise SettingsError(f"{key}: {error}") from None
        return tuple(found)

    def webhook(self) -> Webhook:
        headers = self.table("dest-headers")
        for name, value in headers.items():
            if not isinstance(value, str) or not f"{name}{value}".isprintable() or not f"{name}{value}".isascii():
                raise SettingsError(f"dest-headers: {name!r} is a printable ASCII text")
            if not name.replace("-", "").isalnum() or name.lower() in ("host", "content-length", "transfer-encoding"):
                raise SettingsError(f"dest-headers: {name!r} cannot be set")
        ordered = self.flag("dest-ordered")
        return Webhook(
            self.text("dest-secret"),
            {name: str(value) for name, value in headers.items()},
            int(self.number("dest-batch", 1, BATCH_MAX, 1)),
            1 if ordered else int(self.number("dest-concurrency", 1, CONCURRENCY_MAX, CONCURRENCY)),
            ordered,
            int(self.number("dest-attempts", 0, ATTEMPTS_MAX, 0)),
            self.number("dest-timeout", 1, TIMEOUT_MAX_S, TIMEOUT_S),
            self.text("dest-cacertfile") or None,
        )


def check_uri(uri: str) -> None:
    """Raise ValueError for a URI that cannot be used. The text of the error contains no password."""
    if len(uri) > TEXT_MAX or not uri.isprintable():
        raise ValueError(f"a URI has at most {TEXT_MAX} printable characters")
    if not uri.startswith(("http://", "https://")):
        parse_uri(uri)
        return
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise ValueError("a malformed URL") from None
    if not parts.hostname or port == 0 or parts.fragment or not uri.isascii():
        raise ValueError("a URL is http(s)://host[:port]/path in ASCII, without #")


def is_local(uri: str) -> bool:
    """Whether a URI stands for this broker: `amqp://` or `amqp:///vhost`, without host and user."""
    return uri.startswith(("amqp://", "amqps://")) and urlsplit(uri).netloc == ""


def without_password(uri: str) -> str:
    """Return a URI that may be shown. Of an HTTP server it is the host alone: path and query often are the secret."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "..."
    netloc = parts.netloc.rpartition("@")[2]
    if not netloc:  # this broker, which needs no password
        return uri
    if parts.scheme in ("http", "https"):
        return f"{parts.scheme}://{netloc}/" + ("..." if parts.path.strip("/") or parts.query else "")
    return urlunsplit(parts._replace(netloc=netloc))


def shown(value: Any) -> dict[str, Any]:
    """Return a value without passwords and secrets, for lists of shovels. It may be one that `read` refuses."""
    found = {}
    for key, item in value.items() if isinstance(value, Mapping) else ():
        if key in ("src-uri", "dest-uri"):
            uris = item if isinstance(item, list) else [item]
            safe = [without_password(uri) for uri in uris if isinstance(uri, str)]
            found[key] = safe if isinstance(item, list) else "".join(safe)
        elif (key in KEYS or key in OLDER) and key not in ("dest-secret", "dest-headers"):
            found[key] = item
    return found
