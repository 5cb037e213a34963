"""The broker's objects in the form of RabbitMQ's management API, with the same field names, so that its tools can read them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import xxhash

from kvitto.broker.administration.auth import Permission, User
from kvitto.broker.administration.policies import Policy, in_effect
from kvitto.broker.queues.queue import Queue
from kvitto.broker.routing.exchange import Binding, Exchange
from kvitto.broker.vhost import VHost
from kvitto.http.api import Api
from kvitto.http.rates import DEPTHS, QUEUE_COUNTS, Counts, depth_of, of_queue
from kvitto.http.request import plain
from kvitto.wire import tables


def message_stats(counts: Counts, rates: tuple[float, ...]) -> dict[str, Any]:
    stats: dict[str, Any] = {}
    for name, count, rate in zip(QUEUE_COUNTS, counts, rates, strict=True):
        stats[name] = count
        stats[f"{name}_details"] = {"rate": round(rate, 3)}
    return stats


def queue(api: Api, queue: Queue) -> dict[str, Any]:
    owner: Any = queue.owner
    exclusive = queue.consumers[0].tag if queue.consumers and queue.consumers[0].exclusive else None
    active = queue.single_active
    return {
        "name": queue.name,
        "vhost": queue.vhost.name,
        "type": queue.arguments.get("x-queue-type", "classic"),
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive,
        "owner_pid_details": {"name": connection_name(api, owner)} if owner is not None else None,
        "arguments": plain(queue.arguments),
        "effective_policy_definition": in_effect(queue.policy, queue.operator_policy),
        "policy": queue.policy and queue.policy.name,
        "operator_policy": queue.operator_policy and queue.operator_policy.name,
        "node": api.node,
        "state": "running" if queue.fault is None else "crashed",
        **dict(zip(DEPTHS, depth_of(queue), strict=True)),
        **api.rates.of_depth(queue),
        "message_bytes_ready": queue.ready_bytes,
        "messages_moving": queue.dead_lettering,
        "consumers": len(queue.consumers),
        "exclusive_consumer_tag": exclusive,
        "single_active_consumer_tag": None if active is None else active.tag,
        "message_stats": message_stats(of_queue(queue), api.rates.of(queue, len(QUEUE_COUNTS))),
    }


def exchange(vhost: VHost, exchange: Exchange) -> dict[str, Any]:
    return {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(exchange.arguments),
        "policy": exchange.policy and exchange.policy.name,
        **({} if exchange.waiting is None else {"messages_delayed": exchange.waiting.messages}),
    }


def policy(vhost: VHost, policy: Policy) -> dict[str, Any]:
    return {"vhost": vhost.name, "name": policy.name, **policy.value()}


def binding(vhost: VHost, binding: Binding) -> dict[str, Any]:
    dest: Any = binding.dest
    return {
        "source": binding.source.name,
        "vhost": vhost.name,
        "destination": dest.name,
        "destination_type": "exchange" if isinstance(dest, Exchange) else "queue",
        "routing_key": binding.routing_key,
        "arguments": plain(binding.arguments),
        "properties_key": properties_key(binding),
    }


def properties_key(binding: Binding) -> str:
    """Return the part of a path that distinguishes the bindings between two objects: the key, and a digest of the arguments."""
    key = quote(binding.routing_key, safe="").replace("~", "%7E")
    if not binding.arguments:
        return key or "~"
    return f"{key}~{xxhash.xxh3_64_hexdigest(tables.encode(binding.arguments))}"


def connection_name(api: Api, connection: Any) -> str:
    host = api.host
    return f"{connection.peer} -> {host.config.host}:{host.tls_port if connection.tls else host.port}"


def peer(connection: Any) -> tuple[str, int]:
    host, _, port = connection.peer.rpartition(":")
    return host, int(port) if port.isdigit() else 0


def connection(api: Api, connection: Any) -> dict[str, Any]:
    host = api.host
    peer_host, peer_port = peer(connection)
    rates = api.rates.of(connection, 2)
    given = connection.client.get("connection_name")
    return {
        "name": connection_name(api, connection),
        "user_provided_name": given if isinstance(given, str) else None,
        "vhost": connection.vhost.name,
        "user": connection.user.name,
        "node": api.node,
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "state": connection_state(connection),
        "ssl": connection.tls,
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
        "recv_oct": connection.received_bytes,
        "recv_oct_details": {"rate": round(rates[0], 3)},
        "send_oct": connection.sent_bytes,
        "send_oct_details": {"rate": round(rates[1], 3)},
    }


def connection_state(connection: Any) -> str:
    return "blocked" if connection.held_back else "running"


def channel_name(api: Api, channel: Any) -> str:
    return f"{connection_name(api, channel.connection)} ({channel.number})"


def channel(api: Api, channel: Any) -> dict[str, Any]:
    connection = channel.connection
    peer_host, peer_port = peer(connection)
    name, tx = connection_name(api, connection), channel.tx
    return {
        "name": channel_name(api, channel),
        "number": channel.number,
        "vhost": connection.vhost.name,
        "user": connection.user.name,
        "node": api.node,
        "state": "running" if channel.flow else "flow",
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
    }


def consumer(api: Api, queue: Queue, consumer: Any) -> dict[str, Any]:
    channel = consumer.channel
    connection = channel.connection
    peer_host, peer_port = peer(connection)
    name = connection_name(api, connection)
    waits = queue.single_active not in (None, consumer)
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": queue.vhost.name},
        "ack_required": not consumer.no_ack,
        "active": consumer.active and not waits,
        "activity_status": "waiting" if waits else "single_active" if queue.single else "up",
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "priority": consumer.priority,
        "consumer_timeout": max(queue.consumer_timeout_ms, 0),
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


def user(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": "kvitto_scrypt",
        "tags": [*user.tags],
        "limits": {},
    }


def permission(user: User, vhost: str, given: Permission) -> dict[str, Any]:
    return {
        "user": user.name,
        "vhost": vhost,
        "configure": given.configure,
        "write": given.write,
        "read": given.read,
    }


def vhost(api: Api, vhost: VHost, depth: dict[str, int]) -> dict[str, Any]:
    return {**vhost_definition(vhost), "cluster_state": {api.node: "running"}, **depth}


def vhost_definition(vhost: VHost) -> dict[str, Any]:
    settings = vhost.settings
    described = {
        "description": settings.description,
        "tags": [*settings.tags],
        "default_queue_type": settings.default_queue_type,
    }
    return {"name": vhost.name, **described, "tracing": settings.tracing, "metadata": described}
