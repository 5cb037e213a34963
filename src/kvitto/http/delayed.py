"""/api/exchanges/{vhost}/{name}/delayed: the messages that wait in an exchange that delays. They can be listed, run now and cancelled.

Neither RabbitMQ nor LavinMQ has this. A message is named by its property message_id. Whoever may read from the exchange may see its
messages, since a binding would bring them; whoever may write to it may run and cancel them. What was run or cancelled is durable
before the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from typing import Any

from kvitto.broker.administration.auth import Operation
from kvitto.broker.administration.operations import exchange_name
from kvitto.broker.queues.delay_queue import DelayQueue, Done
from kvitto.http import fields
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import array, as_it_is
from kvitto.http.request import NO_CONTENT, Problem, Response, answer, not_found, plain
from kvitto.wire import tables
from kvitto.wire.properties import FIELDS, Properties

COUNT = 100
COUNT_MAX = 10_000
LOOK_S = 0.5
"""A request that waits for the end of a message looks at this interval whether its queue is still there."""

Action = Callable[[DelayQueue, int, int, str, Done], bool]
"""`DelayQueue.run_now` or `DelayQueue.drop`: offset, size, message id, and what is called at the end."""


async def list_delayed(call: Call) -> Response:
    """Show messages that wait, the first one that is due first. Bodies are not shown."""
    queue, count = _permitted(call, "read"), _count(call)
    found = [pair async for pair in _first(call, queue, count)]
    shown = (_view(call, queue, *pair) for pair in found)
    return Response(pieces=array(call.api.slices, shown, as_it_is))


async def purge_delayed(call: Call) -> Response:
    queue = _permitted(call, "write")
    _, steps = queue.purging()
    await call.api.perform(steps)
    return NO_CONTENT


async def run_delayed(call: Call) -> Response:
    return await _act(call, "run", DelayQueue.run_now)


async def cancel_delayed(call: Call) -> Response:
    return await _act(call, "cancelled", DelayQueue.drop)


def _queue(call: Call) -> DelayQueue:
    """Return the queue of the path's exchange. Raise Problem 404."""
    vhost = call.vhost()
    exchange = vhost.exchange(exchange_name(call.name))
    if exchange.waiting is None:
        raise not_found(f"exchange '{exchange.name}' in vhost '{vhost.name}' delays no messages")
    return exchange.waiting


def _permitted(call: Call, operation: Operation) -> DelayQueue:
    call.operations().authorise(operation, "exchange", exchange_name(call.name))
    return _queue(call)


def _count(call: Call) -> int:
    return fields.number(dict(call.request.query), "count", 1, COUNT_MAX, COUNT)


async def _first(call: Call, queue: DelayQueue, count: int) -> AsyncIterator[tuple[int, int]]:
    for number, pair in enumerate(queue.retries.delays.in_order()):
        if number == count:
            return
        yield pair
        await call.api.slices.rest()


def _view(call: Call, queue: DelayQueue, due_ms: int, offset: int) -> dict[str, Any] | None:
    found = queue.backlog.find_outline(offset) if offset in queue.retries.delays.offsets else None
    if found is None:
        return None
    batch, i = found
    key, props = batch.key_and_props(i)
    exchange, at = tables.read_shortstr(key, 0)
    properties = Properties.decode(props)
    timers = call.api.broker.timers
    given = ((name, getattr(properties, name)) for name, _ in FIELDS)
    return {
        "message_id": properties.message_id,
        "due": call.api.broker.now_ms + due_ms - timers.now_ms,
        "due_in_ms": max(due_ms - timers.now_ms, 0),
        "exchange": exchange,
        "routing_key": tables.read_shortstr(key, at)[0],
        "payload_bytes": batch.body_len(i),
        "properties": {name: plain(value) for name, value in given if value is not None},
    }


async def _act(call: Call, what: str, action: Action) -> Response:
    """Run or cancel all messages with the path's message id. Answer how many these were. Raise Problem 404, 503."""
    queue = _permitted(call, "write")
    message_id = fields.short(call.args["message_id"], "message id")
    ended: asyncio.Queue[bool] = asyncio.Queue()
    count = 0
    for offset, size in await _find(call, queue, message_id):
        count += action(queue, offset, size, message_id, ended.put_nowait)
        await call.api.slices.rest()
    if not count:
        raise not_found(f"no message with the id '{message_id}' waits in exchange '{call.name}'")
    call.api.host.schedule()
    gone = await _until_ended(queue, ended, count)
    if gone < count and queue.deleted:
        text = f"exchange '{call.name}' was deleted or delays no longer: {gone} of {count} messages are {what}"
        raise not_found(text)
    if gone < count:
        raise Problem(503, "not_done", f"{gone} of {count} messages are {what}: the others stay, see the alarms")
    return answer({what: count})


async def _find(call: Call, queue: DelayQueue, message_id: str) -> list[tuple[int, int]]:
    """Return (offset, size) of the messages with this id that wait.

    If another request has begun to run or cancel some, wait until that is durable, or has failed: an answer that none is there says the
    same as that request's. Messages may begin to end, or come back, while this looks for those that wait.
    """
    ended: asyncio.Queue[bool] = asyncio.Queue()
    found: list[tuple[int, int]] = []

    def search() -> Generator[bool, None, None]:
        found.extend((yield from queue.find_steps(message_id)))

    while True:
        await _until_ended(queue, ended, queue.join(message_id, ended.put_nowait))
        if queue.fault is not None:
            raise Problem(503, "not_done", f"exchange '{call.name}' is out of service, see the alarms")
        await call.api.perform(search())
        if found or message_id not in queue.ending:
            return found


async def _until_ended(queue: DelayQueue, ended: asyncio.Queue[bool], count: int) -> int:
    """Wait for the end of so many messages. Return how many have left. It ends early if the queue is deleted or out of service."""
    gone = 0
    while count and (not ended.empty() or (not queue.deleted and queue.fault is None)):
        with suppress(TimeoutError):
            gone += await asyncio.wait_for(ended.get(), LOOK_S)
            count -= 1
    return gone


PATH = "/api/exchanges/{vhost}/{name}/delayed"
ROUTES = (
    ("GET", PATH, Access.MANAGEMENT, list_delayed),
    ("DELETE", PATH, Access.MANAGEMENT, purge_delayed),
    ("DELETE", PATH + "/{message_id}", Access.MANAGEMENT, cancel_delayed),
    ("POST", PATH + "/{message_id}/run", Access.MANAGEMENT, run_delayed),
)
