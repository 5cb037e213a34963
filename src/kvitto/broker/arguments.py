"""Queue arguments: what they mean, what is refused, what policies add, and when two declarations are the same (semantics D1, Q)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.base.limits import SHORTSTR_MAX

MS_MAX = 315_360_000_000
"""Ten years, RabbitMQ's limit for times to live and the like; what is stored must fit into `store.batch.TTL_MAX`."""
RETRY_MAX_MS = 3_600_000
"""Where only x-retry-delay-min is given."""

OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
ON_ALARM = ("block", "nack")
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
    nacks_on_alarm: bool = False
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

    @property
    def dead_letters_to(self) -> tuple[str | None, str | None]:
        """Exchange and routing key."""
        return self.dead_letter_exchange, self.dead_letter_routing_key


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


class InvalidArgument(ValueError):
    """An argument that no queue, or not this queue, can have."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


def queue_settings(queue: str, vhost: str, arguments: dict[str, Any], lasting: bool = True) -> QueueSettings:
    """`read_settings` for a declaration: ChannelError 406 names the wrong argument."""
    try:
        return read_settings(arguments, lasting)
    except InvalidArgument as error:
        text = f"invalid arg '{error.name}' for queue '{queue}' in vhost '{vhost}': {error.why}"
        raise ChannelError(PRECONDITION_FAILED, text) from None


def read_settings(arguments: dict[str, Any], lasting: bool = True) -> QueueSettings:
    """Check the known arguments, InvalidArgument. Unknown ones are kept and ignored.

    `lasting`: the queue is durable, and not exclusive.
    """

    def number(name: str, least: int, most: int = (1 << 63) - 1) -> int:
        value = arguments.get(name)
        if value is None:
            return -1
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgument(name, f"expected an integer, got {value!r}")
        if not least <= value <= most:
            raise InvalidArgument(name, f"{value} is not between {least} and {most}")
        return value

    def text(name: str) -> str | None:
        value = arguments.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidArgument(name, f"expected a string, got {value!r}")
        if value is not None and len(value.encode()) > SHORTSTR_MAX:
            raise InvalidArgument(name, f"longer than {SHORTSTR_MAX} bytes")
        return value

    def flag(name: str) -> bool:
        value = arguments.get(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidArgument(name, f"expected a boolean, got {value!r}")
        return bool(value)

    def age(name: str) -> int:
        value = text(name)
        if value is not None and age_ms(value) < 0:
            raise InvalidArgument(
                name, f"expected a number and one of the units {', '.join(AGE_UNITS_MS)}, got {value!r}"
            )
        return -1 if value is None else age_ms(value)

    overflow = text("x-overflow") or "drop-head"
    if overflow not in OVERFLOWS:
        raise InvalidArgument("x-overflow", f"{overflow!r} is none of {', '.join(OVERFLOWS)}")
    on_alarm = text("x-on-alarm") or "block"
    if on_alarm not in ON_ALARM:
        raise InvalidArgument("x-on-alarm", f"{on_alarm!r} is none of {', '.join(ON_ALARM)}")
    kind = text("x-queue-type") or "classic"
    if kind not in QUEUE_TYPES:
        raise InvalidArgument("x-queue-type", f"{kind!r} is none of {', '.join(QUEUE_TYPES)}")
    exchange, routing_key = text("x-dead-letter-exchange"), text("x-dead-letter-routing-key")
    if routing_key is not None and exchange is None:
        raise InvalidArgument("x-dead-letter-routing-key", "it needs x-dead-letter-exchange")
    retry_min, retry_max = number("x-retry-delay-min", 0, MS_MAX), number("x-retry-delay-max", 0, MS_MAX)
    if retry_max >= 0 and not 0 <= retry_min <= retry_max:
        raise InvalidArgument("x-retry-delay-max", "it needs an x-retry-delay-min that is not larger")
    archive = flag("x-archive")
    for name, why in _out_of_place(arguments, kind, archive, lasting):
        raise InvalidArgument(name, why)
    return QueueSettings(
        ttl_ms=number("x-message-ttl", 0, MS_MAX),
        expires_ms=number("x-expires", 1, MS_MAX),
        max_length=number("x-max-length", 0),
        max_bytes=number("x-max-length-bytes", 0),
        overflow=overflow,
        nacks_on_alarm=on_alarm == "nack",
        dead_letter_exchange=exchange,
        dead_letter_routing_key=routing_key,
        delivery_limit=number("x-delivery-limit", 0),
        max_priority=number("x-max-priority", 0, 255),
        retry_min_ms=retry_min,
        retry_max_ms=retry_max if retry_max >= 0 else max(retry_min, RETRY_MAX_MS),
        single_active_consumer=flag("x-single-active-consumer"),
        consumer_timeout_ms=number("x-consumer-timeout", 1),
        archive=archive,
        archive_max_age_ms=age("x-archive-max-age"),
        archive_max_bytes=number("x-archive-max-length-bytes", 0),
        stream=kind == "stream",
        max_age_ms=age("x-max-age") if kind == "stream" else -1,
        segment_bytes=number(SEGMENT_SIZE, 1, STREAM_SEGMENT_BYTES_MAX) if kind == "stream" else -1,
    )


SMALLER_COUNTS = ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit", "consumer-timeout")
"""Settings of a policy that are limits: of several the smallest counts."""
RETRY_DELAYS = ("retry-delay-min", "retry-delay-max")
QUEUE_POLICY = (
    *SMALLER_COUNTS,
    "max-age",
    "overflow",
    "dead-letter-exchange",
    "dead-letter-routing-key",
    "on-alarm",
    *RETRY_DELAYS,
)
"""What a policy may say of queues: the names of arguments without `x-`."""


def usable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Those that a queue can have: definitions may be of a version that took more. InvalidArgument for an unknown queue type."""
    arguments = dict(arguments)
    while True:
        try:
            read_settings(arguments)
        except InvalidArgument as error:
            if error.name == "x-queue-type":
                raise
            del arguments[error.name]
        else:
            return arguments


def with_policy(arguments: dict[str, Any], policy: Mapping[str, Any]) -> dict[str, Any]:
    """A queue's arguments with what a policy adds: an argument counts before the policy, of two limits the smaller one.

    What this queue cannot have is left out; so `read_settings` takes the result, if it takes the parts.
    """
    merged = {name: value for name, value in arguments.items() if value is not None}
    stream = merged.get("x-queue-type") == "stream"
    for key, value in policy.items():
        name = "x-" + key
        if key not in QUEUE_POLICY or (stream and name in NOT_FOR_STREAMS):
            continue
        if key in RETRY_DELAYS and "x-retry-delay-min" in arguments:
            continue
        own = merged.get(name)
        if own is None:
            merged[name] = value
        elif key in SMALLER_COUNTS:
            merged[name] = min(own, value)
        elif key == "max-age":
            merged[name] = min(own, value, key=age_ms)
    if "x-dead-letter-exchange" not in merged:
        merged.pop("x-dead-letter-routing-key", None)
    return merged


EQUIVALENCE_ARGUMENTS = (  # beside the type
    "x-message-ttl",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-on-alarm",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-delivery-limit",
    "x-max-priority",
    "x-retry-delay-min",
    "x-retry-delay-max",
    "x-single-active-consumer",
    "x-consumer-timeout",
    "x-max-age",
    SEGMENT_SIZE,
    "x-archive",
    *ARCHIVE_BOUNDS,
)
