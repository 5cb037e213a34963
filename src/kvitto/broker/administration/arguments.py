"""Queue arguments: their meaning, what is refused, what policies add, and when two declarations are the same (D1, Q).

To add an argument, add a line to ARGUMENTS, a field to `QueueSettings` and a line to `read_settings`; the queue acts on the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.base.limits import KNOWN_KEYS, KNOWN_KEYS_MAX
from kvitto.broker.administration.argument_reader import NUMBER_MAX, ArgumentReader, InvalidArgument, age_ms

MS_MAX = 315_360_000_000
"""Ten years, RabbitMQ's limit for times to live and the like; what is stored must fit into `format.entry.TTL_MAX`."""
RETRY_MAX_MS = 3_600_000
"""The longest delay if only x-retry-delay-min is given."""

OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")
ON_ALARM = ("block", "nack")
QUEUE_TYPES = ("classic", "quorum", "stream")
DELAYED_RETRY = ("x-delayed-retry-type", "x-delayed-retry-min", "x-delayed-retry-max")
"""RabbitMQ 4.3's arguments for the time at which a returned message is delivered again."""
DELAYED_RETRY_TYPES = ("disabled", "all", "failed", "returned")
QUORUM_PRIORITY_MAX = 31
"""The highest priority in a quorum queue, which needs no argument for priorities, as with RabbitMQ 4.3."""
ARCHIVE_BOUNDS = ("x-archive-max-age", "x-archive-max-length-bytes")
DEDUPLICATION = "x-message-deduplication"
DEDUPLICATION_BY, DEDUPLICATION_HEADER = "x-deduplication-by", "x-deduplication-header"
"""Which value is the key of a message, and the name of the header that has it. The default of the name is the argument's own name."""
KEY_KINDS = ("header", "message-id")
WINDOW = ("x-cache-size", "x-cache-ttl")
DEDUPLICATION_ARGUMENTS = (DEDUPLICATION, DEDUPLICATION_BY, DEDUPLICATION_HEADER, *WINDOW)
"""Of queues and of exchanges."""
SEGMENT_SIZE = "x-stream-max-segment-size-bytes"
STREAM_SEGMENT_BYTES_MAX = 3_000_000_000


FIRST, SMALLER, SHORTER = "first", "smaller", "shorter"
"""Which value applies if a queue and its policy both set one: the queue's, the smaller number, or the shorter interval."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of queues, as declarations and policies see it. `read_settings` gives it its meaning.

    `policy`: which value applies if a policy sets it, too (without the `x-`); "" if a policy cannot set it.
    `streams`: whether a stream may have it.
    """

    name: str
    policy: str = ""
    streams: bool = True

    @property
    def key(self) -> str:
        """Its name in policies."""
        return self.name.removeprefix("x-")


ARGUMENTS = (
    Argument("x-message-ttl", SMALLER, streams=False),
    Argument("x-expires", SMALLER, streams=False),
    Argument("x-max-length", SMALLER),
    Argument("x-max-length-bytes", SMALLER),
    Argument("x-overflow", FIRST, streams=False),
    Argument("x-dead-letter-exchange", FIRST, streams=False),
    Argument("x-dead-letter-routing-key", FIRST, streams=False),
    Argument("x-on-alarm", FIRST),
    Argument("x-delivery-limit", SMALLER, streams=False),
    Argument("x-max-priority", streams=False),
    Argument("x-retry-delay-min", FIRST, streams=False),
    Argument("x-retry-delay-max", FIRST, streams=False),
    *(Argument(name, FIRST, streams=False) for name in DELAYED_RETRY),
    Argument("x-single-active-consumer", streams=False),
    Argument("x-consumer-timeout", SMALLER),
    Argument("x-max-age", SHORTER),
    Argument(SEGMENT_SIZE),
    Argument("x-archive"),
    *(Argument(name) for name in ARCHIVE_BOUNDS),
    *(Argument(name, streams=False) for name in DEDUPLICATION_ARGUMENTS),
)
"""All but the type (queue_types.py). Two declarations of a queue are the same only if they agree in each of these."""
EQUIVALENCE_ARGUMENTS = tuple(argument.name for argument in ARGUMENTS)
NOT_FOR_STREAMS = tuple(argument.name for argument in ARGUMENTS if not argument.streams)
"""Arguments that RabbitMQ refuses for a stream, or that would have no meaning there."""
SMALLER_COUNTS = tuple(argument.key for argument in ARGUMENTS if argument.policy == SMALLER)
"""Settings of a policy that are limits. The smallest of several applies."""
SHORTER_COUNTS = tuple(argument.key for argument in ARGUMENTS if argument.policy == SHORTER)
"""Settings of a policy that are intervals. The shortest of several applies."""
QUEUE_POLICY = (
    *SMALLER_COUNTS,
    *SHORTER_COUNTS,
    *(argument.key for argument in ARGUMENTS if argument.policy == FIRST),
)
"""The settings that a policy may have for queues: names of arguments without `x-`."""
RETRIES = ("retry-delay-min", "retry-delay-max", *(name.removeprefix("x-") for name in DELAYED_RETRY))
"""Settings of the retry delay. They apply as a group: if a queue or a policy has one of them, no other is added to it from elsewhere."""


@dataclass(frozen=True)
class Deduplication:
    """How a queue or an exchange recognises a message that it has taken already."""

    header: str | None
    """The header whose value is the key. None: the key is the property message_id."""
    capacity: int
    """How many keys are remembered."""
    ttl_ms: int
    """For how long a key is remembered, -1 for no limit. The header x-cache-ttl of a message overrides it."""


@dataclass(frozen=True)
class QueueSettings:
    """The arguments of a queue that change its behaviour. -1 and None mean "not set"."""

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
    prioritises: bool = False
    """Messages are ordered by priority, up to QUORUM_PRIORITY_MAX, without an argument."""
    retry_min_ms: int = -1
    retry_max_ms: int = -1
    retry_linear: bool = False
    retry_of: str = "all"
    """Which messages are delayed: "failed" (by basic.reject), "returned" (by basic.nack) or "all"."""
    single_active_consumer: bool = False
    consumer_timeout_ms: int = -1
    archive: bool = False
    archive_max_age_ms: int = -1
    archive_max_bytes: int = -1
    deduplication: Deduplication | None = None
    stream: bool = False
    max_age_ms: int = -1
    segment_bytes: int = -1

    @property
    def dead_letters_to(self) -> tuple[str | None, str | None]:
        """The dead-letter exchange and the routing key."""
        return self.dead_letter_exchange, self.dead_letter_routing_key


def _out_of_place(arguments: dict[str, Any], kind: str, archive: bool, lasting: bool) -> Iterator[tuple[str, str]]:
    """Yield (argument, reason) for each argument that a queue like this cannot have."""
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
    """Call `read_settings` for a declaration. Raises ChannelError 406 that names the wrong argument."""
    try:
        return read_settings(arguments, lasting)
    except InvalidArgument as error:
        text = f"invalid arg '{error.name}' for queue '{queue}' in vhost '{vhost}': {error.why}"
        raise ChannelError(PRECONDITION_FAILED, text) from None


def read_settings(arguments: dict[str, Any], lasting: bool = True) -> QueueSettings:
    """Check the known arguments. Unknown ones are kept and ignored. Raises InvalidArgument.

    `lasting`: the queue is durable and not exclusive.
    """
    return _read_settings(arguments, lasting) if arguments else PLAIN


def _read_settings(arguments: dict[str, Any], lasting: bool) -> QueueSettings:
    read = ArgumentReader(arguments)
    overflow, on_alarm = read.one_of("x-overflow", OVERFLOWS), read.one_of("x-on-alarm", ON_ALARM)
    kind = read.one_of("x-queue-type", QUEUE_TYPES)
    exchange, routing_key = read.text("x-dead-letter-exchange"), read.text("x-dead-letter-routing-key")
    if routing_key is not None and exchange is None:
        raise InvalidArgument("x-dead-letter-routing-key", "it needs x-dead-letter-exchange")
    retry_min, retry_max, linear, retry_of = _retry(read)
    archive = read.flag("x-archive")
    for name, why in _out_of_place(arguments, kind, archive, lasting):
        raise InvalidArgument(name, why)
    return QueueSettings(
        ttl_ms=read.number("x-message-ttl", 0, MS_MAX),
        expires_ms=read.number("x-expires", 1, MS_MAX),
        max_length=read.number("x-max-length", 0),
        max_bytes=read.number("x-max-length-bytes", 0),
        overflow=overflow,
        nacks_on_alarm=on_alarm == "nack",
        dead_letter_exchange=exchange,
        dead_letter_routing_key=routing_key,
        delivery_limit=max(read.number("x-delivery-limit", -NUMBER_MAX), -1),
        max_priority=read.number("x-max-priority", 0, 255),
        prioritises=kind == "quorum" and not read.has("x-max-priority"),
        retry_min_ms=retry_min,
        retry_max_ms=retry_max,
        retry_linear=linear,
        retry_of=retry_of,
        single_active_consumer=read.flag("x-single-active-consumer"),
        consumer_timeout_ms=read.number("x-consumer-timeout", 0) or -1,
        archive=archive,
        archive_max_age_ms=read.age("x-archive-max-age"),
        archive_max_bytes=read.number("x-archive-max-length-bytes", 0),
        deduplication=read_deduplication(read),
        stream=kind == "stream",
        max_age_ms=read.age("x-max-age") if kind == "stream" else -1,
        segment_bytes=read.number(SEGMENT_SIZE, 1, STREAM_SEGMENT_BYTES_MAX) if kind == "stream" else -1,
    )


def read_deduplication(read: ArgumentReader) -> Deduplication | None:
    """Return how messages are recognised that came before, None without deduplication. The other arguments need the first one.

    Raises InvalidArgument.
    """
    wanted = read.flag(DEDUPLICATION)
    by, header = read.one_of(DEDUPLICATION_BY, KEY_KINDS), read.text(DEDUPLICATION_HEADER)
    size, ttl = WINDOW
    capacity, ttl_ms = read.number(size, 1, KNOWN_KEYS_MAX), read.number(ttl, 1, MS_MAX)
    for other in (DEDUPLICATION_BY, DEDUPLICATION_HEADER, *WINDOW):
        if read.has(other) and not read.has(DEDUPLICATION):
            raise InvalidArgument(other, f"it needs {DEDUPLICATION}")
    if header is not None and by == "message-id":
        raise InvalidArgument(DEDUPLICATION_HEADER, f"with {DEDUPLICATION_BY}=message-id no header is looked at")
    if not wanted:
        return None
    name = None if by == "message-id" else header or DEDUPLICATION_HEADER
    return Deduplication(name, KNOWN_KEYS if capacity < 0 else capacity, ttl_ms)


def _retry(read: ArgumentReader) -> tuple[int, int, bool, str]:
    """Return the least and the longest delay of a returned message, whether it grows linearly, and which messages are delayed."""
    least, most = read.number("x-retry-delay-min", 0, MS_MAX), read.number("x-retry-delay-max", 0, MS_MAX)
    if most >= 0 and not 0 <= least <= most:
        raise InvalidArgument("x-retry-delay-max", "it needs an x-retry-delay-min that is not larger")
    of, first, last = DELAYED_RETRY
    kind, shortest, longest = (
        read.one_of(of, DELAYED_RETRY_TYPES),
        read.number(first, 0, MS_MAX),
        read.number(last, 0, MS_MAX),
    )
    if longest >= 0 and not 0 <= shortest <= longest:
        raise InvalidArgument(last, f"it needs an {first} that is not larger")
    if kind == "disabled":
        return least, most if most >= 0 else max(least, RETRY_MAX_MS), False, "all"
    if shortest < 0:
        raise InvalidArgument(of, f"it needs {first}")
    if least >= 0:
        raise InvalidArgument(of, "there is an x-retry-delay-min already: only one of the two can say when")
    return shortest, longest if longest >= 0 else MS_MAX, True, kind


def usable(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that a queue can have. The version that stored them may have accepted more.

    Raises InvalidArgument for an unknown queue type.
    """
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


def stricter(key: str, one: int, other: int) -> int:
    """Return the smaller one of two limits. A limit below 0 stands for none, as does a consumer timeout of 0."""
    least = 1 if key == "consumer-timeout" else 0
    return max(one, other) if min(one, other) < least else min(one, other)


def with_policy(arguments: dict[str, Any], policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a queue's arguments with what a policy adds. An argument overrides the policy, but of two limits the smaller one applies.

    Settings that this queue cannot have are left out, so `read_settings` accepts the result if it accepts both parts.
    """
    merged = {name: value for name, value in arguments.items() if value is not None}
    stream = merged.get("x-queue-type") == "stream"
    retries = any("x-" + name in merged for name in RETRIES)
    for key, value in policy.items():
        name = "x-" + key
        if key not in QUEUE_POLICY or (stream and name in NOT_FOR_STREAMS):
            continue
        if key in RETRIES and retries:
            continue
        own = merged.get(name)
        if own is None:
            merged[name] = value
        elif key in SMALLER_COUNTS:
            merged[name] = stricter(key, own, value)
        elif key in SHORTER_COUNTS:
            merged[name] = min(own, value, key=age_ms)
    if "x-dead-letter-exchange" not in merged:
        merged.pop("x-dead-letter-routing-key", None)
    return merged


PLAIN = _read_settings({}, True)
"""The settings of queues without arguments, so that a start does not work them out for each of many queues."""
