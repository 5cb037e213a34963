"""Calls of RabbitMQ's management API that look after nodes. One node has little to do for them, but tools read the answers."""

from __future__ import annotations

import asyncio

from kvitto.base import process
from kvitto.base.limits import PASSWORD_MAX
from kvitto.base.version import __version__
from kvitto.http import definitions, fields, settings, shown
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import no_items
from kvitto.http.nodes import FEATURES
from kvitto.http.request import NO_CONTENT, Response, answer, bad_request, not_found

CHANNEL_BYTES = 1_500
"""The memory of an idle channel (docs/limits.md)."""
UNUSED_MEMORY = (
    *("connection_readers", "connection_writers", "queue_slave_procs", "quorum_queue_procs"),
    *("quorum_queue_dlx_procs", "stream_queue_procs", "stream_queue_replica_reader_procs"),
    *("stream_queue_coordinator_procs", "plugins", "metrics", "mgmt_db", "mnesia", "quorum_ets", "other_ets"),
    *("metadata_store", "metadata_store_ets", "binary", "msg_index", "code", "atom", "other_system"),
    *("allocated_unused", "reserved_unallocated"),
)
"""Kinds of memory that only Erlang has."""


def version(_call: Call) -> Response:
    return answer(__version__)


def effective_config(call: Call) -> Response:
    """Answer with all settings and limits, those that are the default included."""
    return answer({name: value for name, value, _ in settings.effective(call)})


def this_node(call: Call) -> None:
    """Raise Problem 404 unless the path names this node."""
    if call.args["node"] != call.api.node:
        raise not_found(f"this is the only node: {call.api.node}")


def memory(call: Call) -> Response:
    """Answer with RabbitMQ's kinds of memory. Those of queues and channels are estimates, the rest is in `other_proc`."""
    this_node(call)
    host, resident = call.api.host, process.resident_bytes()
    known = {
        "queue_procs": shown.QUEUE_BYTES * len(call.api.broker.queues),
        "connection_channels": CHANNEL_BYTES * host.hub.channels,
        "connection_other": host.hub.buffered.total,
    }
    total = {"rss": resident, "allocated": resident, "erlang": 0}
    rest = max(resident - sum(known.values()), 0)
    parts = {**dict.fromkeys(UNUSED_MEMORY, 0), **known, "other_proc": rest}
    if "relative" in call.request.path.rpartition("/")[2]:
        whole = max(resident, 1)
        percent = {name: max(round(100 * size / whole), int(size > 0)) for name, size in parts.items()}
        return answer({"memory": {**percent, "total": 100}})
    return answer({"memory": {**parts, "total": total, "strategy": "rss"}})


def auth(_call: Call) -> Response:
    """Answer that there is no OAuth."""
    return answer({"oauth_enabled": False, "enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})


def attempts(call: Call) -> Response:
    this_node(call)
    found = call.api.broker.attempts
    return answer(
        [
            {
                "protocol": protocol,
                "auth_attempts": count.succeeded + count.failed,
                "auth_attempts_failed": count.failed,
                "auth_attempts_succeeded": count.succeeded,
            }
            for protocol, count in found.items()
        ]
    )


def attempts_by_source(call: Call) -> Response:
    """Answer without sources: like RabbitMQ as it comes, Kvitto does not keep them. The log has each refusal."""
    this_node(call)
    return answer([])


def forget_attempts(call: Call) -> Response:
    this_node(call)
    for count in call.api.broker.attempts.values():
        count.succeeded = count.failed = 0
    return NO_CONTENT


async def hash_password(call: Call) -> Response:
    """Answer with the hash that Kvitto would store: scrypt, with a salt of its own in each answer."""
    password = fields.short(call.args["password"], "password", PASSWORD_MAX)
    return answer({"ok": await asyncio.to_thread(call.api.broker.users.hash, password)})


def start_vhost(call: Call) -> Response:
    """Answer that the virtual host runs, as all of them do."""
    call.vhost()
    if call.args["node"] != call.api.node:
        raise bad_request(f"this is the only node: {call.api.node}")
    return NO_CONTENT


def enable_feature(call: Call) -> Response:
    """Answer that the flag is enabled: all of Kvitto's are."""
    if call.name not in FEATURES:
        raise not_found(f"there is no feature flag '{call.name}'")
    return NO_CONTENT


def nothing_to_move(_call: Call) -> Response:
    """Rebalance the queues over one node."""
    return NO_CONTENT


def reset(call: Call) -> Response:
    """Forget the samples of the past, as RabbitMQ does. Counters go on: programs rely on that they never fall."""
    if "node" in call.args:
        this_node(call)
    call.api.rates.forget()
    return NO_CONTENT


NODE = "/api/nodes/{node}/memory"
ATTEMPTS = "/api/auth/attempts/{node}"

ROUTES = (
    ("GET", "/api/version", Access.MANAGEMENT, version),
    ("GET", "/api/config/effective", Access.ADMINISTRATOR, effective_config),
    ("GET", "/api/all-configuration", Access.ADMINISTRATOR, definitions.get_definitions),
    ("GET", NODE, Access.MONITORING, memory),
    ("GET", f"{NODE}/relative", Access.MONITORING, memory),
    ("GET", "/api/auth", Access.ANYBODY, auth),
    ("GET", ATTEMPTS, Access.MONITORING, attempts),
    ("DELETE", ATTEMPTS, Access.ADMINISTRATOR, forget_attempts),
    ("GET", f"{ATTEMPTS}/source", Access.MONITORING, attempts_by_source),
    ("DELETE", f"{ATTEMPTS}/source", Access.ADMINISTRATOR, forget_attempts),
    ("GET", "/api/auth/hash_password/{password}", Access.ADMINISTRATOR, hash_password),
    ("POST", "/api/vhosts/{vhost}/start/{node}", Access.ADMINISTRATOR, start_vhost),
    ("PUT", "/api/feature-flags/{name}/enable", Access.ADMINISTRATOR, enable_feature),
    ("GET", "/api/deprecated-features", Access.MANAGEMENT, no_items),
    ("GET", "/api/deprecated-features/used", Access.MANAGEMENT, no_items),
    ("POST", "/api/rebalance/queues", Access.ADMINISTRATOR, nothing_to_move),
    ("DELETE", "/api/reset", Access.ADMINISTRATOR, reset),
    ("DELETE", "/api/reset/{node}", Access.ADMINISTRATOR, reset),
)
