"""Queues, exchanges, virtual hosts and clients with their numbers, in the form of RabbitMQ's management API.

`views.py` has what is defined; this adds what changes by itself: counters, rates, and samples of them if the request asks for some.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from operator import add
from typing import Any

from kvitto.broker.administration.policies import in_effect
from kvitto.broker.queues.deduplicating import DeduplicatingQueue
from kvitto.broker.queues.queue import Queue
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.routing.exchange import Exchange
from kvitto.broker.vhost import VHost
from kvitto.http import counts, views
from kvitto.http.api import Api, Call
from kvitto.http.history import Derive, Span
from kvitto.http.request import plain

QUEUE_BYTES = 6_000
"""The memory of a queue without messages (docs/performance.md)."""


def numbers(
    call: Call, thing: object, row: Sequence[int], names: Sequence[str], derive: Derive, span: Span | None
) -> dict[str, Any]:
    """Return fields `name` and `name_details` for each name: the values that `derive` makes of a row, and their rates."""
    found: dict[str, Any] = dict(zip(names, derive(row), strict=True))
    found.update(call.api.rates.details(thing, len(row), names, derive, span, call.now_s))
    return found


def time_text(at_ms: int | None) -> str | None:
    """Return a time as RabbitMQ writes it, None without one."""
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


# -- queues --------------------------------------------------------------------------------------------------


def queue(call: Call, queue: Queue) -> dict[str, Any]:
    api, spans = call.api, call.spans
    owner: Any = queue.owner
    exclusive = queue.consumers[0].tag if queue.consumers and queue.consumers[0].exclusive else None
    active = queue.single_active
    row = counts.of_queue_and_depth(queue)
    capacity = round(api.rates.capacity_of(queue), 3)
    return {
        "name": queue.name,
        "vhost": queue.vhost.name,
        "type": queue.arguments.get("x-queue-type", "classic"),
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive,
        "owner_pid_details": {"name": views.connection_name(api, owner)} if owner is not None else None,
        "arguments": plain(queue.arguments),
        "effective_policy_definition": in_effect(queue.policy, queue.operator_policy),
        "policy": queue.policy and queue.policy.name,
        "operator_policy": queue.operator_policy and queue.operator_policy.name,
        "node": api.node,
        "state": "running" if queue.fault is None else "crashed",
        "idle_since": time_text(api.rates.idle_since_ms(queue)),
        **numbers(call, queue, row, counts.DEPTHS, counts.depths, spans.lengths),
        **bytes_of(queue),
        "head_message_timestamp": None,
        "messages_moving": queue.dead_lettering,
        "consumers": len(queue.consumers),
        "consumer_capacity": capacity,
        "consumer_utilisation": capacity,
        "exclusive_consumer_tag": exclusive,
        "single_active_consumer_tag": None if active is None else active.tag,
        "message_stats": numbers(call, queue, row, counts.QUEUE_STATS, counts.queue_stats, spans.msg_rates),
        **deduplication(queue),
    }


def deduplication(queue: Queue) -> dict[str, Any]:
    """Return how many keys a queue with deduplication knows, and how many duplicates it has dropped since the start."""
    if not isinstance(queue, DeduplicatingQueue):
        return {}
    return {"deduplication": {"keys": queue.table.count, "duplicates": queue.duplicates}}


def bytes_of(queue: Queue) -> dict[str, int]:
    """Return the bytes of the bodies, and of the memory that the queue takes: messages that wait are only on disk."""
    ready, unacked = queue.ready_bytes, queue.unacked_bytes if queue.unacked else 0
    batches, messages = in_memory(queue), queue.messages
    in_ram = min(sum(batch.count for batch in batches), messages)
    return {
        "message_bytes": ready + unacked,
        "message_bytes_ready": ready,
        "message_bytes_unacknowledged": unacked,
        "message_bytes_persistent": ready + unacked if queue.durable else 0,
        "message_bytes_ram": min(sum(batch.body.n for batch in batches), ready + unacked),
        "messages_persistent": messages if queue.durable else 0,
        "message_bytes_paged_out": 0,
        "messages_ram": in_ram,
        "messages_ready_ram": min(in_ram, queue.ready),
        "messages_unacknowledged_ram": 0,
        "messages_paged_out": 0,
        "memory": QUEUE_BYTES + sum(batch.size() for batch in batches),
    }


def in_memory(queue: Queue) -> list[Any]:
    """Return the batches that are in memory: those that are not written yet, and the next one to be delivered."""
    front = queue.backlog.front if isinstance(queue, WorkQueue) else None
    found = {id(batch): batch for batch in (*queue.tail.closed, queue.tail.batch, front) if batch is not None}
    return list(found.values())


# -- exchanges and virtual hosts -----------------------------------------------------------------------------


def exchange(call: Call, vhost: VHost, exchange: Exchange) -> dict[str, Any]:
    row = counts.of_exchange(exchange)
    stats = numbers(call, exchange, row, counts.EXCHANGE_STATS, counts.same, call.spans.msg_rates)
    return {**views.exchange(vhost, exchange), **hidden(exchange), "message_stats": stats}


def hidden(exchange: Exchange) -> dict[str, Any]:
    """Return how many messages wait in an exchange that delays, and what an exchange that deduplicates knows and moves."""
    found: dict[str, Any] = {}
    if exchange.waiting is not None:
        found["messages_delayed"] = exchange.waiting.messages
    if exchange.passage is not None:
        found |= {"messages_passing": exchange.passage.messages, **deduplication(exchange.passage)}
    return found


def vhost(call: Call, vhost: VHost, of_queues: Sequence[int]) -> dict[str, Any]:
    """`of_queues`: the sums over its queues, and over deleted ones."""
    row = (*of_queues, *counts.of_traffic(vhost))
    return {
        **views.vhost_definition(vhost),
        "cluster_state": {call.api.node: "running"},
        **numbers(call, vhost, row, counts.DEPTHS, counts.depths, call.spans.lengths),
        "message_stats": numbers(call, vhost, row, counts.CHANNEL_STATS, counts.vhost_stats, call.spans.msg_rates),
    }


# -- clients -------------------------------------------------------------------------------------------------


def connection(call: Call, connection: Any) -> dict[str, Any]:
    api, host = call.api, call.api.host
    peer_host, peer_port = views.peer(connection)
    row = counts.of_connection(connection)
    given = connection.client.get("connection_name")
    return {
        "name": views.connection_name(api, connection),
        "user_provided_name": given if isinstance(given, str) else None,
        "vhost": connection.vhost.name,
        "user": connection.user.name,
        "user_who_performed_action": connection.user.name,
        "node": api.node,
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": "PLAIN" if connection.external is None else "EXTERNAL",
        "state": "blocked" if connection.held_back else "running",
        **tls(connection),
        "host": host.config.host,
        "port": host.tls_port if connection.tls else host.port,
        "peer_host": peer_host,
        "peer_port": peer_port,
        "channels": len(connection.channels),
        "channel_max": connection.channel_max,
        "frame_max": connection.frame_max,
        "timeout": connection.heartbeat,
        "connected_at": connection.started_ms,
        "client_properties": plain(connection.client),
        **numbers(call, connection, row, counts.OCTETS, counts.same, call.spans.data_rates),
        "send_pend": connection.output.backlog(),
    }


def tls(connection: Any) -> dict[str, Any]:
    unknown = ("ssl_protocol", "ssl_cipher", "ssl_hash", "ssl_key_exchange", "peer_cert_issuer", "peer_cert_validity")
    return {"ssl": connection.tls, **dict.fromkeys(unknown), "peer_cert_subject": connection.external}


async def stats_of_channels(call: Call, channels: Sequence[Any]) -> dict[str, Any]:
    """Return the sums over the open channels of a connection, which may be some thousands."""
    row: list[int] = [0] * counts.CHANNEL_WIDTH
    rates: list[float] = [0.0] * counts.CHANNEL_WIDTH
    for channel in channels:
        row = list(map(add, row, counts.of_channel(channel)))
        rates = list(map(add, rates, call.api.rates.of(channel, counts.CHANNEL_WIDTH)))
        await call.api.slices.rest()
    stats: dict[str, Any] = {}
    for name, count, rate in zip(counts.CHANNEL_STATS, row, rates, strict=True):
        stats[name] = count
        stats[f"{name}_details"] = {"rate": round(rate, 3)}
    return stats


def channel(call: Call, channel: Any) -> dict[str, Any]:
    api = call.api
    connection = channel.connection
    peer_host, peer_port = views.peer(connection)
    name, tx = views.connection_name(api, connection), channel.tx
    row = counts.of_channel(channel)
    return {
        "name": views.channel_name(api, channel),
        "number": channel.number,
        "vhost": connection.vhost.name,
        "user": connection.user.name,
        "user_who_performed_action": connection.user.name,
        "node": api.node,
        "state": "running" if channel.flow else "flow",
        "idle_since": time_text(api.rates.idle_since_ms(channel)),
        "connection_details": {"name": name, "peer_host": peer_host, "peer_port": peer_port},
        "confirm": channel.confirm,
        "transactional": tx is not None,
        "consumer_count": len(channel.consumers),
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.prefetch_all,
        "messages_unacknowledged": channel.unacked,
        "messages_unconfirmed": channel.sequence - channel.confirmed if channel.confirm else 0,
        "messages_uncommitted": len(tx.publishes) if tx is not None else 0,
        "acks_uncommitted": tx.acks if tx is not None else 0,
        "message_stats": numbers(call, channel, row, counts.CHANNEL_STATS, counts.same, call.spans.msg_rates),
    }


def consumer(api: Api, queue: Queue, consumer: Any) -> dict[str, Any]:
    channel = consumer.channel
    connection = channel.connection
    peer_host, peer_port = views.peer(connection)
    name = views.connection_name(api, connection)
    waits = queue.single_active not in (None, consumer)
    timeout_ms = consumer.timeout_ms if consumer.timeout_ms >= 0 else queue.consumer_timeout_ms
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": queue.vhost.name},
        "ack_required": not consumer.no_ack,
        "active": consumer.active and not waits,
        "activity_status": "waiting" if waits else "single_active" if queue.single else "up",
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "priority": consumer.priority,
        "consumer_timeout": max(timeout_ms, 0),
        "arguments": plain(consumer.arguments),
        "messages_unacknowledged": consumer.unacked,
        "messages_delivered": consumer.delivered,
        "channel_details": {
            "name": f"{name} ({channel.number})",
            "number": channel.number,
            "connection_name": name,
            "peer_host": peer_host,
            "peer_port": peer_port,
            "user": connection.user.name,
            "node": api.node,
        },
    }
