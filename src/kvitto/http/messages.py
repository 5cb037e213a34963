"""Publishing messages over HTTP, one or a batch: the answer comes when they are durable."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.base.limits import HTTP_BATCH_MAX
from kvitto.broker import walls
from kvitto.broker.administration.histories import Unseen
from kvitto.http import fields
from kvitto.http.api import Api
from kvitto.http.request import Problem, Text, bad_request
from kvitto.http.slices import Slices
from kvitto.wire.buf import LARGE, Buf
from kvitto.wire.properties import FIELDS, Properties

if TYPE_CHECKING:
    from kvitto.broker.administration.operations import Operations, Publishing
    from kvitto.broker.queues.queue import Queue

FULL_S = 1.0
"""A publish that waits for its sync checks at this interval whether the disk is full."""
MESSAGES_PER_PIECE = 20
"""Messages of a batch that are routed and appended at once: about 1 ms."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of a message: `error` is why a queue did not take it, or why it could not be routed."""

    routed: bool
    error: ChannelError | None = None


async def publish(api: Api, message: Publishing) -> bool:
    """Store a message, and return whether it reached a queue when it is durable there. Raise ChannelError 404, 406, Problem 503."""
    [outcome] = await publish_all(api, [message])
    if outcome.error is not None:
        raise outcome.error
    return outcome.routed


async def publish_all(api: Api, messages: Sequence[Publishing]) -> list[Outcome]:
    """Store messages in this order, and return what has become of each when all are durable. Raise Problem 503: then it is not known."""
    if api.host.hub.alarms.blocked is not None:
        raise Problem(503, "blocked", f"publishing is blocked: {api.host.hub.alarms.blocked}")
    errors: dict[Publishing, ChannelError] = {}
    await api.perform(_steps(messages, errors))
    outcomes, stored = {message: Outcome(False, error) for message, error in errors.items()}, []
    for message in messages:
        if message in outcomes:
            continue
        if not message.route.count and message.route.out_of_service is None:
            outcomes[message] = Outcome(_reply(api, message))
        elif isinstance(message.route, Unseen):
            message.route.traffic.miss(False)
            outcomes[message] = Outcome(False)
        else:
            stored.append(message)
    if stored:
        await _durable(api, dict.fromkeys(q for m in stored for q in m.route.queues if q.log.durable))
    outcomes |= {message: _outcome(message) for message in stored}
    return [outcomes[message] for message in messages]


def _steps(messages: Sequence[Publishing], errors: dict[Publishing, ChannelError]) -> Iterator[object]:
    for number, message in enumerate(messages, 1):
        try:
            yield from message.steps()
        except ChannelError as error:
            errors[message] = error
        if not number % MESSAGES_PER_PIECE:
            yield True


def _reply(api: Api, message: Publishing) -> bool:
    """Hand a message without a queue to the channel that waits for it as a direct reply. Return whether there is one."""
    replied = bool(api.host.hub.replies.deliver(message.route, message.props, message.body))
    if not replied:
        message.route.traffic.miss(False)
    return replied


async def _durable(api: Api, queues: Collection[Queue]) -> None:
    """Wait until these queues have all that they were given on the disk. Raise Problem 503 if it is full."""
    stored = asyncio.Event()
    if queues:
        api.host.hub.confirms.when_written(list(queues), stored.set, lambda _: stored.set())
    await api.write()
    while queues and not stored.is_set() and not api.broker.unwritten:
        with suppress(TimeoutError):
            await asyncio.wait_for(stored.wait(), FULL_S)
    if api.broker.unwritten and not stored.is_set():
        raise Problem(
            503, "disk_full", "the disk is full: the message is not stored yet, and is lost if the broker stops"
        )


def _outcome(message: Publishing) -> Outcome:
    route, refused = message.route, message.refused
    lost = route.out_of_service or next((q for q in route.queues if q.fault is not None), None)
    if lost is not None:
        return Outcome(False, walls.out_of_service(lost))
    if refused:
        text = f"queue '{refused[0].name}' is full and refused the message"
        return Outcome(len(refused) < route.count, ChannelError(PRECONDITION_FAILED, text))
    return Outcome(True)


# -- from JSON -----------------------------------------------------------------------------------------------


async def message_of(slices: Slices, operations: Operations, exchange: str, body: dict[str, Any]) -> Publishing:
    """Return the message in a body, with all its values checked. Raise Problem 400, ChannelError 403, 406."""
    values = body.get("properties") or {}
    if not isinstance(values, dict):
        raise bad_request("properties must be an object")
    key = fields.short(fields.text(body, "routing_key"), "routing key")
    properties = properties_of(values)
    operations.admit(properties)
    return operations.publish(exchange, key, properties, await payload_of(slices, body))


async def batch_of(slices: Slices, operations: Operations, exchange: str, bodies: Any) -> list[Publishing]:
    """Return the messages of a batch. Raise what `message_of` raises, with the number of the message in the text."""
    if not isinstance(bodies, list) or not all(isinstance(body, dict) for body in bodies):
        raise bad_request("messages must be a list of objects")
    if not 0 < len(bodies) <= HTTP_BATCH_MAX:
        raise bad_request(f"messages must have 1 to {HTTP_BATCH_MAX} messages, not {len(bodies)}")
    found = []
    for number, body in enumerate(bodies):
        try:
            found.append(await message_of(slices, operations, exchange, body))
        except Problem as problem:
            raise bad_request(f"messages[{number}]: {problem.reason}") from None
        except ChannelError as error:
            raise bad_request(f"messages[{number}]: {error.code} {error.reply_text}") from None
        await slices.rest()
    return found


def properties_of(values: dict[str, Any]) -> Properties:
    """Return basic properties from JSON. Raise Problem 400 that names the wrong one."""
    unknown = set(values) - {name for name, _ in FIELDS}
    if unknown:
        raise bad_request(f"there is no property {min(unknown)!r}; there are {', '.join(name for name, _ in FIELDS)}")
    properties = Properties()
    for name, kind in FIELDS:
        if values.get(name) is None:
            continue
        if kind == "str":
            value: Any = fields.short(fields.text(values, name), f"property {name}")
        elif kind == "table":
            value = fields.table(values, name)
        else:
            value = fields.number(values, name, 0, 255 if kind == "octet" else (1 << 64) - 1, 0)
        setattr(properties, name, value)
    return properties


async def payload_of(slices: Slices, body: dict[str, Any]) -> bytes | Buf:
    """Return the payload. A large one is in a buffer, which queues take without a copy. Raise Problem 400."""
    encoding = fields.text(body, "payload_encoding", "string")
    if encoding not in ("string", "base64"):
        raise bad_request("payload_encoding must be string or base64")
    given = body.get("payload")
    texts = given.parts if isinstance(given, Text) else (fields.text(body, "payload"),)
    parts, left = [], ""
    for text in texts:
        if encoding == "string":
            parts.append(text.encode("utf-8", "surrogatepass"))
        else:
            whole = left + text
            cut = len(whole) - len(whole) % 4
            parts.append(_base64(whole[:cut], text is texts[-1]))
            left = whole[cut:]
        await slices.rest()
    if left:
        raise no_base64()
    size = sum(map(len, parts))
    if size <= LARGE:
        return b"".join(parts)
    whole_body = Buf(size)
    parts.reverse()
    while parts:  # the memory is touched for the first time here, which takes milliseconds for all of it
        whole_body.add(parts.pop())
        await slices.rest()
    return whole_body


def _base64(text: str, last: bool) -> bytes:
    if "=" in text and not last:
        raise no_base64()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise no_base64() from None


def no_base64() -> Problem:
    return bad_request("the payload is not base64")
