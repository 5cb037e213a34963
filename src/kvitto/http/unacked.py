"""/api/queues/{vhost}/{name}/unacked: who holds which messages, and since when; and cancelling a consumer that holds too many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvitto.broker import walls
from kvitto.broker.queues.queue import Queue
from kvitto.http import views
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import answer_list
from kvitto.http.request import NO_CONTENT, Response, not_authorised, not_found


async def list_unacked(call: Call) -> Response:
    queue, api = call.queue(), call.api

    def view(found: Any) -> dict[str, Any]:
        return {
            "delivery_tag": found.tag,
            "consumer_tag": found.consumer_tag,
            "channel_name": views.channel_name(api, found.channel),
            "connection_name": views.connection_name(api, found.channel.connection),
            "user": found.channel.connection.user.name,
            "unacked_for_seconds": int(api.rates.marks.age_s(found.channel, found.tag, call.now_s)),
            "offset": found.offset,
            "payload_bytes": found.body_bytes,
        }

    return await answer_list(call, _held(call, queue), view)


def _held(call: Call, queue: Queue) -> Iterator[Any]:
    for connection in call.api.connections:
        if connection.vhost is queue.vhost:
            for channel in list(connection.channels.values()):
                if channel.unacked and not channel.closing:
                    yield from call.api.host.held(channel, queue)
        yield None


async def cancel_consumer(call: Call) -> Response:
    """Cancel a consumer as if its queue had gone. What it holds stays with it."""
    consumer = await _consumer(call)
    queue, vhost = consumer.queue, call.vhost()

    def cancel() -> None:
        walls.within(queue, queue.remove_consumer, consumer)
        consumer.queue_gone()
        queue.mark_dirty()
        vhost.consumer_left(queue)

    await call.api.change(cancel)
    return NO_CONTENT


async def _consumer(call: Call) -> Any:
    """Return the consumer that the path names. Raise Problem 404 or 401."""
    vhost, number = call.vhost(), call.args["channel"]
    for connection in call.api.connections:
        if connection.vhost is vhost and views.connection_name(call.api, connection) == call.args["connection"]:
            if connection.user is not call.user and not call.user.is_administrator:
                raise not_authorised("only an administrator cancels other users' consumers")
            channel = connection.channels.get(int(number)) if _is_number(number) else None
            consumer = None if channel is None or channel.closing else channel.consumers.get(call.args["tag"])
            if consumer is None:
                raise not_found(f"there is no consumer '{call.args['tag']}' on channel {number} of this connection")
            return consumer
        await call.api.slices.rest()
    raise not_found(f"there is no connection '{call.args['connection']}' in vhost '{vhost.name}'")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 6


ROUTES = (
    ("GET", "/api/queues/{vhost}/{name}/unacked", Access.MANAGEMENT, list_unacked),
    ("DELETE", "/api/consumers/{vhost}/{connection}/{channel}/{tag}", Access.MANAGEMENT, cancel_consumer),
)
