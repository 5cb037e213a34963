"""Messages as kombu has them: what is published, and what is delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kombu.transport import base

if TYPE_CHECKING:
    from kvitto.kombu.channel import Channel

NAMES = (
    "content_type",
    "content_encoding",
    "application_headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
"""The properties by py-amqp's names, in the order of their flags."""


class Prepared:
    """A message to publish: a body and properties by name."""

    __slots__ = ("body", "properties")

    def __init__(self, body: str | bytes, properties: dict[str, Any]) -> None:
        self.body = body
        self.properties = properties


class Received(base.Message):
    """A delivered, gotten or returned message. Its text is decoded if its content encoding is one of text."""

    def __init__(self, channel: Channel | None, info: dict[str, Any], properties: dict[str, Any], body: Any) -> None:
        encoding = properties.get("content_encoding")
        if encoding and encoding != "binary":
            body = decoded(body, encoding)
        headers = properties.get("application_headers") or {}
        if "compression" in headers:
            super().__init__(
                body,
                info.get("delivery_tag"),
                properties.get("content_type"),
                encoding,
                info,
                properties,
                headers,
                channel=channel,
            )
            return
        # as the base class does without compression, which is most of the time
        self.errors: list[Any] = []
        self.channel = channel
        self.delivery_tag = info.get("delivery_tag")
        self.content_type = properties.get("content_type")
        self.content_encoding = encoding
        self.delivery_info = info
        self.headers = headers
        self.properties = properties
        self._decoded_cache = None
        self._state = "RECEIVED"
        self.accept = None
        self.body = body


def decoded(body: bytes, encoding: str) -> bytes | str:
    """Return the text, or the bytes if they are none: of base64 and the like, or of a wrong encoding."""
    try:
        return str(body, encoding)
    except (LookupError, ValueError):
        return body
