"""/api/connections, /api/channels, /api/consumers: lists of them, and closing a connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvitto.base.errors import CONNECTION_FORCED, ConnectionError_
from kvitto.http import shown, views
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import answer_list, array, with_array
from kvitto.http.request import NO_CONTENT, Response, answer, not_authorised, not_found

REASON_BYTES = 200
"""The text of a Close has 255 bytes, and begins with a text of ours."""


def visible(call: Call) -> list[Any]:
    """Administrators and monitoring see all connections, others their own."""
    vhosts = {vhost.name for vhost in call.vhosts()}
    own = call.api.connections if call.sees_all else [c for c in call.api.connections if c.user is call.user]
    return [c for c in own if c.vhost.name in vhosts]


async def list_connections(call: Call) -> Response:
    api = call.api
    return await answer_list(
        call, visible(call), lambda c: shown.connection(call, c), lambda c: views.connection_name(api, c)
    )


def of_user(call: Call) -> list[Any]:
    """Return the connections of the user in the path. Raise Problem 401 if that is another user, and the caller may see
    only its own."""
    name = call.args["username"]
    if name != call.user.name and not call.sees_all:
        raise not_authorised(f"the connections belong to user '{name}'")
    return [c for c in visible(call) if c.user.name == name]


async def list_connections_of_user(call: Call) -> Response:
    api = call.api
    return await answer_list(
        call, of_user(call), lambda c: shown.connection(call, c), lambda c: views.connection_name(api, c)
    )


async def delete_connections_of_user(call: Call) -> Response:
    name = call.args["username"]
    if name != call.user.name and not call.user.is_administrator:
        raise not_authorised("only an administrator closes other users' connections")
    for connection in of_user(call):
        close(call, connection)
        await call.api.slices.rest()
    return NO_CONTENT


async def find(call: Call) -> Any:
    """Return the connection that the path names. Raise Problem 404 or 401."""
    for connection in call.api.connections:
        if views.connection_name(call.api, connection) == call.name:
            if connection.user is not call.user and not call.sees_all:
                raise not_authorised(f"the connection belongs to user '{connection.user.name}'")
            return connection
        await call.api.slices.rest()
    raise not_found(f"there is no connection '{call.name}'")


async def get_connection(call: Call) -> Response:
    found = await find(call)
    stats = await shown.stats_of_channels(call, list(found.channels.values()))
    return answer({**shown.connection(call, found), "message_stats": stats})


async def delete_connection(call: Call) -> Response:
    connection = await find(call)
    if connection.user is not call.user and not call.user.is_administrator:
        raise not_authorised("only an administrator closes other users' connections")
    close(call, connection)
    return NO_CONTENT


def close(call: Call, connection: Any) -> None:
    """Close an AMQP connection with the reason that the caller gives."""
    given = call.request.headers.get("x-reason", "Closed via management plugin").encode("latin-1")
    reason = given[:REASON_BYTES].decode(errors="ignore")
    connection.close(ConnectionError_(CONNECTION_FORCED, reason))
    call.api.host.schedule()


def _channels(connections: list[Any]) -> Iterator[Any]:
    return (channel for c in connections for channel in list(c.channels.values()) if not channel.closing)


async def list_channels(call: Call) -> Response:
    return await _list_channels(call, visible(call))


async def channels_of(call: Call) -> Response:
    return await _list_channels(call, [await find(call)])


async def _list_channels(call: Call, connections: list[Any]) -> Response:
    api = call.api
    return await answer_list(
        call, _channels(connections), lambda c: shown.channel(call, c), lambda c: views.channel_name(api, c)
    )


async def get_channel(call: Call) -> Response:
    api = call.api
    for channel in _channels(visible(call)):
        if views.channel_name(api, channel) == call.name:
            consumers = array(api.slices, list(channel.consumers.values()), lambda c: shown.consumer(api, c.queue, c))
            return Response(pieces=with_array(shown.channel(call, channel), "consumer_details", consumers))
        await api.slices.rest()
    raise not_found(f"there is no channel '{call.name}'")


async def list_consumers(call: Call) -> Response:
    queues = (queue for vhost in call.vhosts() for queue in list(vhost.queues.values()))
    found = ((queue, consumer) for queue in queues for consumer in list(queue.consumers))
    return await answer_list(call, found, lambda pair: shown.consumer(call.api, *pair), lambda pair: pair[1].tag)


ROUTES = (
    ("GET", "/api/connections", Access.MANAGEMENT, list_connections),
    ("GET", "/api/connections/{name}", Access.MANAGEMENT, get_connection),
    ("DELETE", "/api/connections/{name}", Access.MANAGEMENT, delete_connection),
    ("GET", "/api/connections/username/{username}", Access.MANAGEMENT, list_connections_of_user),
    ("DELETE", "/api/connections/username/{username}", Access.MANAGEMENT, delete_connections_of_user),
    ("GET", "/api/connections/{name}/channels", Access.MANAGEMENT, channels_of),
    ("GET", "/api/vhosts/{vhost}/connections", Access.MANAGEMENT, list_connections),
    ("GET", "/api/vhosts/{vhost}/channels", Access.MANAGEMENT, list_channels),
    ("GET", "/api/channels", Access.MANAGEMENT, list_channels),
    ("GET", "/api/channels/{name}", Access.MANAGEMENT, get_channel),
    ("GET", "/api/consumers", Access.MANAGEMENT, list_consumers),
    ("GET", "/api/consumers/{vhost}", Access.MANAGEMENT, list_consumers),
)
