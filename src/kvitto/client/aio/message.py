"""Messages to publish, and properties as keywords."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from kvitto.wire.properties import Properties
from kvitto.wire.tables import Table

if TYPE_CHECKING:
    from kvitto.client.aio.core import IncomingMessage

PERSISTENT = 2


class Fields(TypedDict, total=False):
    """Properties of a message, as keywords of `publish` and `Message`. `delivery_mode` is 2 (persistent) if not given."""

    content_type: str
    content_encoding: str
    headers: Table
    delivery_mode: int
    priority: int
    correlation_id: str
    reply_to: str
    expiration: str | int | float
    """Milliseconds as text, as on the wire, or seconds as a number."""
    message_id: str
    timestamp: int | datetime
    """Seconds since 1970, or a datetime."""
    type: str
    user_id: str
    app_id: str


def properties_of(fields: Fields) -> Properties:
    """Return these properties; a message is persistent if they do not say otherwise."""
    given: dict[str, Any] = dict(fields)
    given.setdefault("delivery_mode", PERSISTENT)
    expiration = given.get("expiration")
    if isinstance(expiration, int | float):
        given["expiration"] = str(round(expiration * 1000))
    timestamp = given.get("timestamp")
    if isinstance(timestamp, datetime):
        aware = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
        given["timestamp"] = int(aware.timestamp())
    return Properties(**given)


DEFAULT = properties_of({}).encode()
"""The encoded properties of a message without any: persistent."""


def encode(fields: Fields, *, identify: bool = False) -> bytes:
    """Return encoded properties, with `identify` with a new `message_id` if there is none. Raise ValueError or TypeError
    for what does not fit."""
    if identify and "message_id" not in fields:
        fields = {**fields, "message_id": new_id()}
    return properties_of(fields).encode() if fields else DEFAULT


def new_id() -> str:
    """Return an id that no other message has: 32 hexadecimal digits."""
    return os.urandom(16).hex()


class Message:
    """A message to publish: `Message(b"hello", "letters", headers={"from": "me"})`.

    body: bytes. routing_key, exchange: where it goes; "" leaves it to the call that publishes it. The other arguments
    are properties (see `Fields`).
    """

    __slots__ = ("body", "exchange", "properties", "routing_key", "_encoded")

    def __init__(self, body: bytes, routing_key: str = "", *, exchange: str = "", **fields: Unpack[Fields]) -> None:
        self.body = body
        self.routing_key = routing_key
        self.exchange = exchange
        self.properties = properties_of(fields) if fields else None
        self._encoded = b"" if fields else DEFAULT

    @property
    def headers(self) -> Table:
        """The headers, a dict that can be changed."""
        if self.properties is None:
            self.properties, self._encoded = Properties(delivery_mode=PERSISTENT), b""
        if self.properties.headers is None:
            self.properties.headers = {}
        return self.properties.headers

    def encoded(self) -> bytes:
        """Return the encoded properties."""
        return self._encoded or (self.properties or Properties(delivery_mode=PERSISTENT)).encode()

    def __repr__(self) -> str:
        return f"Message({self.body[:40]!r}, {self.routing_key!r}, exchange={self.exchange!r}, {self.properties})"


def reply_to(message: IncomingMessage, fields: Fields) -> tuple[str, Fields]:
    """Return routing key and properties of an answer. ValueError: the message asks for none."""
    properties = message.properties
    if not properties.reply_to:
        raise ValueError("this message asks for no reply: it has no reply_to")
    if properties.correlation_id is not None:
        fields.setdefault("correlation_id", properties.correlation_id)
    return properties.reply_to, fields
