"""Queue arguments: what they mean, what is refused, and when two declarations are the same (semantics D1, Q)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.base.limits import SHORTSTR_MAX

MS_MAX = (1 << 32) - 1
RETRY_MAX_MS = 3_600_000
"""Where only x-retry-delay-min is given."""

OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
QUEUE_TYPES = ("classic", "quorum", "stream")
DAY_MS = 86_400_000
AGE_UNITS_MS = {"Y": 365 * DAY_MS, "M": 30 * DAY_MS, "D": DAY_MS, "h": 3_600_000, "m": 60_000, "s": 1000}
ARCHIVE_BOUNDS = ("x-archive-max-age", "x-archive-max-length-bytes")
NOT_FOR_STREAMS = (
    "x-message-ttl",
    "x-expires",
    "x-overflow",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-delivery-limit",
    "x-max-priority",
    "x-single-active-consumer",
    "x-retry-delay-min",
    "x-retry-delay-max",
)
"""What RabbitMQ refuses for a stream, and what would mean nothing."""
SEGMENT_SIZE = "x-stream-max-segment-size-bytes"
STREAM_SEGMENT_BYTES_MAX = 3_000_000_000


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
    retry_min_ms: int = -1
    retry_max_ms: int = -1
    single_active_consumer: bool = False
    consumer_timeout_ms: int = -1
    archive: bool = False
    archive_max_age_ms: int = -1
    archive_max_bytes: int = -1
    stream: bool = False
    max_age_ms: int = -1
    segment_bytes: int = -1


def age_ms(text: str) -> int:
    """An interval as stream arguments have it: `7D`, units Y M D h m s. -1 if it is none."""
    found = re.fullmatch(r"([0-9]{1,9})([YMDhms])", text)
    return int(found[1]) * AGE_UNITS_MS[found[2]] if found else -1


def _out_of_place(arguments: dict[str, Any], kind: str, archive: bool, lasting: bool) -> Iterator[tuple[str, str]]:
    """(argument, why) of those that a queue like this cannot have."""
    if archive and not lasting:
        yield "x-archive", "only a durable queue that is not exclusive has an archive"
    if archive and kind == "stream":
        yield "x-archive", "a stream has none: it keeps its messages itself"
    for name in ARCHIVE_BOUNDS:
        if arguments.get(name) is not None and not archive:
            yield name, "it needs x-archive"
    for name in NOT_FOR_STREAMS if kind == "stream" else ():
        if name in arguments:
            yield name, "a stream has no such argument"


def queue_settings(queue: str, vhost: str, arguments: dict[str, Any], lasting: bool = True) -> QueueSettings:
    """Check the known arguments; ChannelError 406 names the wrong one. Unknown ones are kept and ignored.

    `lasting`: the queue is durable, and not exclusive.
    """

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

    def flag(name: str) -> bool:
        value = arguments.get(name)
        if value is not None and not isinstance(value, bool):
            raise refuse(name, f"expected a boolean, got {value!r}")
        return bool(value)

    def age(name: str) -> int:
        value = text(name)
        if value is not None and age_ms(value) < 0:
            raise refuse(name, f"expected a number and one of the units {', '.join(AGE_UNITS_MS)}, got {value!r}")
        return -1 if value is None else age_ms(value)

    overflow = text("x-overflow") or "drop-head"
    if overflow not in OVERFLOWS:
        raise refuse("x-overflow", f"{overflow!r} is none of {', '.join(OVERFLOWS)}")
    kind = text("x-queue-type") or "classic"
    if kind not in QUEUE_TYPES:
        raise refuse("x-queue-type", f"{kind!r} is none of {', '.join(QUEUE_TYPES)}")
    exchange, routing_key = text("x-dead-letter-exchange"), text("x-dead-letter-routing-key")
    if routing_key is not None and exchange is None:
        raise refuse("x-dead-letter-routing-key", "it needs x-dead-letter-exchange")
    retry_min, retry_max = number("x-retry-delay-min", 0, MS_MAX), number("x-retry-delay-max", 0, MS_MAX)
    if retry_max >= 0 and not 0 <= retry_min <= retry_max:
        raise refuse("x-retry-delay-max", "it needs an x-retry-delay-min that is not larger")
    archive = flag("x-archive")
    for name, why in _out_of_place(arguments, kind, archive, lasting):
        raise refuse(name, why)
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
        retry_min_ms=retry_min,
        retry_max_ms=retry_max if retry_max >= 0 else max(retry_min, RETRY_MAX_MS),
        single_active_consumer=flag("x-single-active-consumer"),
        consumer_timeout_ms=number("x-consumer-timeout", 0) or -1,
        archive=archive,
        archive_max_age_ms=age("x-archive-max-age"),
        archive_max_bytes=number("x-archive-max-length-bytes", 0),
        stream=kind == "stream",
        max_age_ms=age("x-max-age") if kind == "stream" else -1,
        segment_bytes=number(SEGMENT_SIZE, 1, STREAM_SEGMENT_BYTES_MAX) if kind == "stream" else -1,
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
    "x-retry-delay-min",
    "x-retry-delay-max",
    "x-queue-type",
    "x-single-active-consumer",
    "x-consumer-timeout",
    "x-max-age",
    SEGMENT_SIZE,
    "x-archive",
    *ARCHIVE_BOUNDS,
)
