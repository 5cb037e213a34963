"""What is defined, in the form of RabbitMQ's management API, with the same field names, so that its tools can read it. `shown.py` adds
what changes by itself."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import xxhash

from kvitto.broker.administration.auth import Permission, User
from kvitto.broker.administration.policies import Policy
from kvitto.broker.routing.exchange import Binding, Exchange
from kvitto.broker.vhost import VHost
from kvitto.http.api import Api
from kvitto.http.request import plain
from kvitto.wire import tables


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


def channel_name(api: Api, channel: Any) -> str:
    return f"{connection_name(api, channel.connection)} ({channel.number})"


def user(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.algorithm,
        "tags": [*user.tags],
        "limits": user.limits,
    }


def permission(user: User, vhost: str, given: Permission) -> dict[str, Any]:
    return {
        "user": user.name,
        "vhost": vhost,
        "configure": given.configure,
        "write": given.write,
        "read": given.read,
    }


def topic_permissions(user: User, vhost: str | None = None) -> list[dict[str, Any]]:
    """Return a user's topic permissions, in all virtual hosts or in one."""
    return [
        {"user": user.name, "vhost": where, "exchange": exchange, "write": given.write, "read": given.read}
        for where, found in sorted(user.topics.items())
        if vhost in (None, where)
        for exchange, given in sorted(found.items())
    ]


def vhost_definition(vhost: VHost) -> dict[str, Any]:
    settings = vhost.settings
    described = {
        "description": settings.description,
        "tags": [*settings.tags],
        "default_queue_type": settings.default_queue_type,
        **({"protected_from_deletion": True} if settings.protected else {}),
    }
    return {"name": vhost.name, **described, "tracing": settings.tracing, "metadata": described}
