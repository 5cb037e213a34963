"""Publishing single messages over HTTP. It is made for people and probes, not for traffic."""

from __future__ import annotations

import asyncio
import base64
import binascii
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker import walls
from kvitto.broker.administration.histories import Unseen
from kvitto.http import fields
from kvitto.http.api import Api
from kvitto.http.request import Problem, Text, bad_request
from kvitto.http.slices import Slices
from kvitto.wire.buf import LARGE, Buf
from kvitto.wire.properties import FIELDS, Properties

if TYPE_CHECKING:
    from kvitto.broker.administration.operations import Publishing

FULL_S = 1.0
"""A publish that waits for its sync checks at this interval whether the disk is full."""


async def publish(api: Api, message: Publishing) -> bool:
    """Store a message, and return whether it reached a queue when it is durable there. Raise ChannelError 404, 406, Problem 503."""
    if api.host.hub.alarms.blocked is not None:
        raise Problem(503, "blocked", f"publishing is blocked: {api.host.hub.alarms.blocked}")
    await api.perform(message.steps())
    route, refused = message.route, message.refused
    if not route.count and route.out_of_service is None:
        replied = bool(api.host.hub.replies.deliver(route, message.props, message.body))
        if not replied:
            route.traffic.miss(False)
        return replied
    if isinstance(route, Unseen):
        route.traffic.miss(False)
        return False
    stored = asyncio.Event()
    durable = [queue for queue in route.queues if queue.log.durable]
    if durable:
        api.host.hub.confirms.when_written(durable, stored.set, lambda _: stored.set())
    await api.write()
    while durable and not stored.is_set() and not api.broker.unwritten:
        with suppress(TimeoutError):
            await asyncio.wait_for(stored.wait(), FULL_S)
    if api.broker.unwritten and not stored.is_set():
        raise Problem(
            503, "disk_full", "the disk is full: the message is not stored yet, and is lost if the broker stops"
        )
    lost = route.out_of_service or next((q for q in route.queues if q.fault is not None), None)
    if lost is not None:
        raise walls.out_of_service(lost)
    if refused:
        raise ChannelError(PRECONDITION_FAILED, f"queue '{refused[0].name}' is full and refused the message")
    return True


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
