"""/api/queues: shows, declares, deletes and purges queues, and takes messages out of them."""

from __future__ import annotations

import asyncio
from typing import Any

from kvitto.base.errors import ChannelError
from kvitto.broker import walls
from kvitto.broker.administration.operations import OUTSIDER, Operations
from kvitto.broker.queues.look import Look, looks
from kvitto.broker.queues.queue import Queue
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.http import fields, get, messages, shown
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import answer_list, array, with_array
from kvitto.http.request import CREATED, NO_CONTENT, Response, answer, bad_request
from kvitto.http.slices import Slices
from kvitto.wire.properties import Properties


async def list_queues(call: Call) -> Response:
    found = (queue for vhost in call.vhosts() for queue in list(vhost.queues.values()))
    return await answer_list(call, found, lambda queue: shown.queue(call, queue), lambda queue: queue.name)


async def get_queue(call: Call) -> Response:
    api, queue = call.api, call.queue()
    consumers = array(api.slices, list(queue.consumers), lambda consumer: shown.consumer(api, queue, consumer))
    head = {**shown.queue(call, queue), "head_message_timestamp": await head_timestamp(api.slices, queue)}
    return Response(pieces=with_array(head, "consumer_details", consumers))


async def head_timestamp(slices: Slices, queue: Queue) -> int | None:
    """Return the timestamp among the properties of the message that is delivered next, None without one."""
    seen = looks(queue, 1) if isinstance(queue, WorkQueue) else iter(())
    for _ in range(HEAD_STEPS):
        message = walls.within(queue, next, seen, False)
        if not isinstance(message, Look):
            if message is False:
                break
            await slices.rest()
            continue
        given = Properties.decode(message.props).timestamp
        return None if given is None else int(given)
    return None


async def put_queue(call: Call) -> Response:
    body, operations = call.request.json(), call.operations()
    new = await call.api.change(lambda: declare(operations, call.name, body))
    return CREATED if new else NO_CONTENT


def declare(operations: Operations, name: str, body: dict[str, Any]) -> bool:
    """Declare a queue from a body. Return whether it is new. Raise Problem 400, ChannelError 403, 405, 406."""
    name = fields.declared_name(name, "queue")
    durable, auto_delete = fields.flag(body, "durable"), fields.flag(body, "auto_delete")
    arguments = fields.table(body, "arguments")
    _, new = operations.declare_queue(name, durable, False, auto_delete, arguments)
    return new


async def delete_queue(call: Call) -> Response:
    queue = _reachable(call)
    if_unused, if_empty = (call.request.asks(name) for name in ("if-unused", "if-empty"))
    _, steps = call.operations().delete_queue(queue.name, if_unused, if_empty)
    await call.api.perform(steps)
    return NO_CONTENT


async def purge_queue(call: Call) -> Response:
    queue = _reachable(call)
    _, steps = call.operations().purge_queue(queue.name)
    await call.api.perform(steps)
    return NO_CONTENT


async def get_messages(call: Call) -> Response:
    queue, wanted = _reachable(call), get.Wanted.of(call.request.json())
    call.operations().authorise("read", "queue", queue.name)
    got = await get.get(call.api.slices, queue, wanted)
    call.api.host.schedule()
    return Response(pieces=get.rendered(call.api.slices, got, wanted))


def act(call: Call) -> Response:
    """Answer RabbitMQ's actions for mirrors of a queue, which are always in sync here: there are none."""
    _reachable(call)
    action = fields.text(call.request.json(), "action")
    if action not in ("sync", "cancel_sync"):
        raise bad_request(f"there is no action {action!r}; there are sync and cancel_sync")
    return NO_CONTENT


async def aliveness_test(call: Call) -> Response:
    """Declare a durable queue, publish, wait for the disk, and take the message out again."""
    operations, name, payload = call.operations(), "aliveness-test", b"test_message"
    for operation, kind, thing in (("configure", "queue", name), ("read", "queue", name), ("write", "exchange", "")):
        operations.authorise(operation, kind, thing)  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(ALIVE_S):
            queue, _ = await call.api.change(lambda: operations.declare_queue(name, True, False, False, {}))
            await messages.publish(call.api, operations.publish("", name, Properties(), payload))
            taken = await get.get(call.api.slices, queue, ONE)
    except TimeoutError:
        return answer({"status": "failed", "reason": f"the disk did not answer within {ALIVE_S:g} s"}, 500)
    except ChannelError as error:
        return answer({"status": "failed", "reason": error.reply_text}, 500)
    call.api.host.schedule()
    if not taken:
        return answer({"status": "failed", "reason": f"queue '{name}' did not give the message back"}, 500)
    return answer({"status": "ok"})


HEAD_STEPS = 100
"""Pieces of work to find the first message. It takes more of them behind very many that have expired."""
ALIVE_S = 10.0
ONE = get.Wanted(1, "ack_requeue_false", "auto", get.BODY_MAX)


def _reachable(call: Call) -> Queue:
    """Return the queue to be changed or read. Raise ChannelError 404 or 405."""
    return call.own_vhost().queue(call.name, OUTSIDER)


ROUTES = (
    ("GET", "/api/queues", Access.MANAGEMENT, list_queues),
    ("GET", "/api/queues/detailed", Access.MANAGEMENT, list_queues),
    ("GET", "/api/queues/{vhost}", Access.MANAGEMENT, list_queues),
    ("GET", "/api/queues/{vhost}/{name}", Access.MANAGEMENT, get_queue),
    ("PUT", "/api/queues/{vhost}/{name}", Access.MANAGEMENT, put_queue),
    ("DELETE", "/api/queues/{vhost}/{name}", Access.MANAGEMENT, delete_queue),
    ("DELETE", "/api/queues/{vhost}/{name}/contents", Access.MANAGEMENT, purge_queue),
    ("POST", "/api/queues/{vhost}/{name}/get", Access.MANAGEMENT, get_messages),
    ("POST", "/api/queues/{vhost}/{name}/actions", Access.ADMINISTRATOR, act),
    ("GET", "/api/aliveness-test/{vhost}", Access.MANAGEMENT, aliveness_test),
)
