"""Queue arguments: what they mean, what is refused, and when two declarations are the same (semantics D1, Q)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.base.limits import SHORTSTR_MAX

MS_MAX = (1 << 32) - 1

OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
QUEUE_TYPES = ("classic", "quorum")


@dataclass(frozen=True)
class QueueSettings:
    """The arguments of a queue that change what it does; -1 and None mean "not set"."""

    ttl_ms: int = -1
    expires_ms: int = -1
    max_length: int = -1
    max_bytes: int = -1
    overflow: str = "drop-head"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    delivery_limit: int = -1
    max_priority: int = -1


def queue_settings(queue: str, vhost: str, arguments: dict[str, Any]) -> QueueSettings:
    """Check the known arguments; ChannelError 406 names the wrong one. Unknown ones are kept and ignored."""

    def refuse(name: str, why: str) -> ChannelError:
        text = f"invalid arg '{name}' for queue '{queue}' in vhost '{vhost}': {why}"
        return ChannelError(PRECONDITION_FAILED, text)

    def number(name: str, least: int, most: int = (1 << 63) - 1) -> int:
        value = arguments.get(name)
        if value is None:
            return -1
        if isinstance(value, bool) or not isinstance(value, int):
            raise refuse(name, f"expected an integer, got {value!r}")
        if not least <= value <= most:
            raise refuse(name, f"{value} is not between {least} and {most}")
        return value

    def text(name: str) -> str | None:
        value = arguments.get(name)
        if value is not None and not isinstance(value, str):
            raise refuse(name, f"expected a string, got {value!r}")
        if value is not None and len(value.encode()) > SHORTSTR_MAX:
            raise refuse(name, f"longer than {SHORTSTR_MAX} bytes")
        return value

    overflow = text("x-overflow") or "drop-head"
    if overflow not in OVERFLOWS:
        raise refuse("x-overflow", f"{overflow!r} is none of {', '.join(OVERFLOWS)}")
    kind = text("x-queue-type") or "classic"
    if kind not in QUEUE_TYPES:
        raise refuse("x-queue-type", f"{kind!r} is none of {', '.join(QUEUE_TYPES)}")
    exchange, routing_key = text("x-dead-letter-exchange"), text("x-dead-letter-routing-key")
    if routing_key is not None and exchange is None:
        raise refuse("x-dead-letter-routing-key", "it needs x-dead-letter-exchange")
    number("x-consumer-timeout", 0)
    single = arguments.get("x-single-active-consumer")
    if single is not None and not isinstance(single, bool):
        raise refuse("x-single-active-consumer", f"expected a boolean, got {single!r}")
    return QueueSettings(
        ttl_ms=number("x-message-ttl", 0, MS_MAX),
        expires_ms=number("x-expires", 1, MS_MAX),
        max_length=number("x-max-length", 0),
        max_bytes=number("x-max-length-bytes", 0),
        overflow=overflow,
        dead_letter_exchange=exchange,
        dead_letter_routing_key=routing_key,
        delivery_limit=number("x-delivery-limit", 0),
        max_priority=number("x-max-priority", 0, 255),
    )


EQUIVALENCE_ARGUMENTS = (
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-delivery-limit",
    "x-max-priority",
    "x-queue-type",
    "x-single-active-consumer",
    "x-consumer-timeout",
)
