"""A load: the messages that travel together, and what is changed in a message on its way.

Everything that is not named in `Dress` keeps its bytes: properties are not decoded and encoded again, because that would
change the types of headers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvitto.client.aio import IncomingMessage
from kvitto.client.errors import AMQPError
from kvitto.wire.properties import Properties, edit_headers, join, split
from kvitto.wire.tables import Long, Table

OF_DELIVERY = ("x-delivery-count", "x-acquired-count", "x-stream-offset")
"""Headers that a broker adds when it delivers. They say something about the queue that is left, not about the message."""
_MARKS = tuple(name.encode() for name in OF_DELIVERY)
LOAD_MAX = 2000
"""The most messages of a load."""
UNSURE_MAX = 500
"""The same where a load may arrive twice."""
HOPS_MAX = 30
"""The most shovels that the header `x-shovelled` names beside the last one."""
LOAD_BYTES = 8 << 20
"""A load ends with the message with which it has so many bytes."""


class Refused(AMQPError):
    """The target will not take a message, and trying again does not help. The text says what to do."""


class Load(NamedTuple):
    """Messages in their order. `end` is the offset behind the last one, 0 if the source has no offsets."""

    messages: list[IncomingMessage]
    end: int = 0


class Source(Protocol):
    """Where messages come from."""

    async def take(self, most: int, wait_s: float) -> Load:
        """Return the next messages, none if none have come for so long. They stay at the source until `settle`."""

    def check(self) -> None:
        """Raise AMQPError if the source has ended, or sends more than it was asked for. Called while the target takes its time."""

    async def settle(self, load: Load) -> None:
        """Note that the load has arrived."""

    async def left(self) -> int:
        """Return the number of messages that wait at the source and were not settled here."""

    async def close(self) -> None:
        """End it. What was not settled stays at the source."""


class Target(Protocol):
    """Where messages go."""

    @property
    def waits(self) -> str:
        """Why it takes no messages now, "" if it does."""

    @property
    def refused(self) -> int:
        """The number of messages that it has refused for now."""

    async def put(self, load: Load) -> None:
        """Return when the target has the whole load and is responsible for it."""

    async def close(self) -> None:
        """End it."""


class Parcel:
    """A message as it is published at the target. `Channel.publish_many` takes it like a `Message`."""

    __slots__ = ("body", "exchange", "routing_key", "properties")

    def __init__(self, body: bytes, exchange: str, routing_key: str, properties: bytes) -> None:
        self.body = body
        self.exchange = exchange
        self.routing_key = routing_key
        self.properties = properties

    def encoded(self) -> bytes:
        """Return the encoded properties."""
        return self.properties


@dataclass
class Dress:
    """What becomes of each message. None keeps the message's own exchange or routing key."""

    exchange: str | None = None
    routing_key: str | None = None
    direct: set[tuple[str, str]] = field(default_factory=set)
    """Exchanges with routing keys whose messages keep them, because they lead to the same queue without `exchange`."""
    headers: Table = field(default_factory=dict)
    """Headers that are added."""
    forwarded: Table = field(default_factory=dict)
    """An entry that is put in front of the list in the header `x-shovelled`."""
    fields: dict[str, bytes] = field(default_factory=dict)
    """Properties that replace the message's own, encoded as `split` gives them."""
    timestamps: bool = False
    """Whether the header `x-shovelled-timestamp` says when a message was carried."""
    age_from_timestamp: bool = False
    """Whether an `expiration` is shortened by the time since the message's `timestamp`."""
    counted: int = 0
    """The number of messages that had been delivered before, according to the header that was removed."""
    expiring: int = 0
    """The number of messages with an `expiration`."""

    def parcels(self, load: Load) -> list[Parcel]:
        """Return the messages as they are published. Raise Refused for one that no AMQP client can publish again."""
        return [self.parcel(message) for message in load.messages]

    def parcel(self, message: IncomingMessage) -> Parcel:
        key = message.routing_key
        if not key.isascii() and key.encode(errors="replace").decode() != key:
            raise Refused(f"a message has the routing key {key!r}, which is not UTF-8: take it out of the queue")
        stays = self.exchange is None or self._is_direct(message)
        return Parcel(
            message.body,
            message.exchange if stays else str(self.exchange),
            key if self.routing_key is None else self.routing_key,
            self.properties(message.raw_properties),
        )

    def _is_direct(self, message: IncomingMessage) -> bool:
        """Whether the message's own exchange brings it to its queue, and nowhere else: `CC` would be routed, too."""
        if (message.exchange, message.routing_key) not in self.direct:
            return False
        data = message.raw_properties
        return b"CC" not in data or not {"CC", "BCC"} & (Properties.decode(data).headers or {}).keys()

    def properties(self, data: bytes) -> bytes:
        """Return the encoded properties for the target."""
        expires = data[0] & 0x01  # the flag of `expiration`
        added = bool(self.headers or self.forwarded or self.fields or self.timestamps)
        if not (added or expires or any(mark in data for mark in _MARKS)):
            return data
        fields = split(data)
        if b"x-delivery-count" in fields.get("headers", b""):
            self.counted += 1
        if "headers" in fields or added:
            edit_headers(fields, self._headers(data), OF_DELIVERY)
        fields.update(self.fields)
        if expires:
            self.expiring += 1
            if self.age_from_timestamp and "timestamp" in fields:
                fields["expiration"] = _shortened(fields["expiration"], fields["timestamp"])
        return join(fields)

    def _headers(self, data: bytes) -> Table:
        """Return the headers that are put into a message."""
        if not (self.forwarded or self.timestamps):
            return self.headers
        headers = dict(self.headers)
        if self.forwarded:
            before = (Properties.decode(data).headers or {}).get("x-shovelled") if b"x-shovelled" in data else None
            headers["x-shovelled"] = [self.forwarded, *(before[:HOPS_MAX] if isinstance(before, list) else ())]
        if self.timestamps:
            headers["x-shovelled-timestamp"] = Long(time.time() * 1000)
        return headers


def _shortened(expiration: bytes, timestamp: bytes) -> bytes:
    """Return the encoded expiration, less the time since the timestamp; 0 lets the target expire the message at once."""
    try:
        ms = int(expiration[1:])
    except ValueError:
        return expiration
    age_ms = max(0, int(time.time() - int.from_bytes(timestamp, "big"))) * 1000
    text = str(max(0, ms - age_ms)).encode()
    return bytes((len(text),)) + text
