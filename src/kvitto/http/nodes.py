"""/api/overview and /api/nodes: the broker as a whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

from kvitto.base import log, process
from kvitto.base.build import compiled
from kvitto.base.version import __version__
from kvitto.broker.routing.exchange import TYPES
from kvitto.broker.vhost import VHost
from kvitto.http import cluster, counts, fields, rates, shown, totals
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.history import RINGS
from kvitto.http.listing import no_items
from kvitto.http.rates import NODE, TOTAL
from kvitto.http.request import NO_CONTENT, Response, answer, bad_request, not_found

API_LEVEL = "3.13.0"
"""The RabbitMQ version whose management API this one follows: tools use it to decide what they ask for."""


KEPT_S = [step_ms * (size - 1) // 1000 for step_ms, size in RINGS]
"""How far samples go back."""


def listeners(call: Call) -> list[dict[str, Any]]:
    host, config = call.api.host, call.api.host.config
    found = (
        *(("amqp", address, host.port) for address in config.hosts),
        *(("amqp/ssl", address, host.tls_port) for address in config.hosts),
        *(("http", address, host.http_port) for address in config.http_hosts),
        *(("https", address, host.https_port) for address in config.http_hosts),
    )
    return [
        {"node": call.api.node, "protocol": protocol, "ip_address": address, "port": port}
        for protocol, address, port in found
        if port
    ]


async def overview(call: Call) -> Response:
    """Answer with totals over the objects that the caller may see. As with RabbitMQ, only who may see nodes sees where this one is."""
    api = call.api
    vhosts = call.vhosts()
    await totals.count_published(api.slices, api.connections)
    seen = await seen_by(call, vhosts)
    names = {vhost.name for vhost in vhosts}
    connections = [c for c in api.connections if c.vhost.name in names]
    return answer(
        {
            "management_version": API_LEVEL,
            "rabbitmq_version": API_LEVEL,
            "erlang_version": "",
            "erlang_full_version": "",
            "product_name": "Kvitto",
            "product_version": __version__,
            "cluster_name": name_of_cluster(call),
            "node": api.node,
            "rates_mode": "basic",
            "sample_retention_policies": dict.fromkeys(("global", "basic", "detailed"), KEPT_S),
            "disable_stats": False,
            "enable_queue_totals": False,
            "statistics_db_event_queue": 0,
            "exchange_types": exchange_types(),
            "message_stats": seen.stats,
            "churn_rates": churn(call),
            "queue_totals": seen.depth,
            "object_totals": {
                "connections": len(connections),
                "channels": sum(len(c.channels) for c in connections),
                "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
                "queues": sum(len(vhost.queues) for vhost in vhosts),
                "consumers": seen.consumers,
            },
            "listeners": listeners(call) if call.sees_all else [],
            "contexts": contexts(call) if call.sees_all else [],
            "kvitto": kvitto(call),
        }
    )


def exchange_types() -> list[dict[str, Any]]:
    return [{"name": name, "description": index.description, "enabled": True} for name, index in TYPES.items()]


@dataclass(frozen=True, slots=True)
class Seen:
    """The sums over the virtual hosts that a caller may see."""

    consumers: int
    stats: dict[str, Any]
    depth: dict[str, Any]


async def seen_by(call: Call, vhosts: list[VHost]) -> Seen:
    """Return the sums. Samples and deleted virtual hosts are known for the whole broker only, so they are for those who see all of it."""
    api, spans = call.api, call.spans
    if call.sees_all:
        whole = await totals.of_broker(api.slices, api.broker)
        row = (*whole.row, *counts.of_traffic(api.broker), *counts.of_churn(api.host.hub, api.broker))
        return Seen(
            whole.consumers,
            shown.numbers(call, TOTAL, row, counts.CHANNEL_STATS, counts.vhost_stats, spans.msg_rates),
            shown.numbers(call, TOTAL, row, counts.DEPTHS, counts.depths, spans.lengths),
        )
    consumers, sums, rates = 0, [0] * counts.VHOST_WIDTH, [0.0] * counts.VHOST_WIDTH
    for vhost in vhosts:
        found = await totals.of_vhost(api.slices, vhost)
        consumers += found.consumers
        sums = list(map(add, sums, (*found.row, *counts.of_traffic(vhost))))
        rates = list(map(add, rates, api.rates.of(vhost, counts.VHOST_WIDTH)))
    return Seen(
        consumers,
        with_rates(counts.CHANNEL_STATS, counts.vhost_stats(sums), counts.vhost_stats(rates)),
        with_rates(counts.DEPTHS, counts.depths(sums), counts.depths(rates)),
    )


def with_rates(names: Sequence[str], values: Sequence[int], rates: Sequence[float]) -> dict[str, Any]:
    details = {f"{name}_details": {"rate": round(rate, 3)} for name, rate in zip(names, rates, strict=True)}
    return {**dict(zip(names, values, strict=True)), **details}


def kvitto(call: Call) -> dict[str, Any]:
    """Return values for which RabbitMQ has no name. If `sync` is false, a confirmed message may not survive a crash of
    the machine (C2)."""
    host = call.api.host
    return {
        "version": __version__,
        "sync": host.config.sync,
        "log_level": log.level(),
        "log_json": log.is_json(),
        "compiled": compiled(),
        **({"data_dir": os.path.abspath(host.config.data_dir), "pid": os.getpid()} if call.sees_all else {}),
        "uptime_ms": host.uptime_ms,
        "syncs": host.store.commits.syncs,
        "alarms": len(call.api.alarms),
        "publishers_blocked": host.hub.alarms.blocked is not None,
        **(replication(call) if call.sees_all and host.followers is not None else {}),
    }


def replication(call: Call) -> dict[str, Any]:
    """Return the followers and, in a cluster that elects its leader, the content of its document."""
    host = call.api.host
    followers = [
        {
            "address": link.where,
            "member": link.member,
            "state": link.state,
            "lag_bytes": link.lag_bytes,
            "lag_ms": host.followers.lag_ms(link),
            "free_bytes": link.free_bytes,
        }
        for link in host.followers.links
    ]
    tenure = host.followers.tenure
    if tenure is None:
        return {"min_in_sync": host.config.min_in_sync, "followers": followers}
    document = tenure.membership.document
    found = {
        "name": host.config.cluster,
        "id": document.cluster,
        "epoch": document.epoch,
        "leader": document.leader,
        "level": document.level,
        "members": list(document.members),
        "nodes": cluster.nodes(call.api),
    }
    return {"min_in_sync": document.minimum, "followers": followers, "cluster": found}


def node(call: Call) -> dict[str, Any]:
    host = call.api.host
    return {
        "name": call.api.node,
        "type": "disc",
        "running": True,
        "being_drained": False,
        "os_pid": str(os.getpid()),
        "uptime": host.uptime_ms,
        **shown.numbers(call, NODE, rates.of_node(host), counts.NODE_STATS, counts.same, call.spans.node_stats),
        **churn(call),
        "mem_limit": host.config.memory_limit,
        "mem_alarm": "memory" in host.hub.alarms.reasons,
        "disk_free_limit": host.config.disk_free_limit,
        "disk_free_alarm": bool({"disk", "room"} & host.hub.alarms.reasons.keys()),
        "fd_total": process.open_files_max(),
        "sockets_total": process.open_files_max(),
        "proc_used": 1,
        "proc_total": 1,
        "run_queue": 0,
        "processors": os.cpu_count() or 1,
        "mem_calculation_strategy": "rss",
        "net_ticktime": 0,
        "enabled_plugins": [],
        "auth_mechanisms": [{"name": name, "description": "", "enabled": True} for name in ("PLAIN", "AMQPLAIN")],
        "exchange_types": exchange_types(),
        "contexts": contexts(call),
        "log_files": [],
        "config_files": [],
        "db_dir": os.path.abspath(host.config.data_dir),
        "partitions": [],
        "rates_mode": "basic",
        "applications": [{"name": "kvitto", "description": "Kvitto", "version": __version__}],
    }


def list_nodes(call: Call) -> Response:
    return answer([node(call), *cluster.other_nodes(call.api)])


def get_node(call: Call) -> Response:
    if call.name == call.api.node:
        return answer(node(call))
    others = cluster.other_nodes(call.api)
    for found in others:
        if found["name"] == call.name:
            return answer(found)
    names = [call.api.node, *(found["name"] for found in others)]
    raise not_found(f"there is no such node: {', '.join(names)}" if others else f"this is the only node: {names[0]}")


def name_of_cluster(call: Call) -> str:
    return call.api.broker.cluster_name or call.api.node


def cluster_name(call: Call) -> Response:
    return answer({"name": name_of_cluster(call)})


async def put_cluster_name(call: Call) -> Response:
    name = fields.new_name(fields.text(call.request.json(), "name"), "cluster")
    if not name:
        raise bad_request("name is empty")
    await call.api.change(lambda: call.api.broker.set_cluster_name(name))
    return NO_CONTENT


FEATURES = {
    "implicit_default_bindings": "Bindings of the default exchange are not stored",
    "quorum_queue": "Queues of type quorum",
    "stream_queue": "Queues of type stream",
    "virtual_host_metadata": "Descriptions and tags of virtual hosts",
}
"""The flags of RabbitMQ for features that Kvitto has too."""


def feature_flags(_call: Call) -> Response:
    same = {"state": "enabled", "stability": "stable", "provided_by": "kvitto", "doc_url": ""}
    return answer([{"name": name, "desc": text, **same} for name, text in FEATURES.items()])


def contexts(call: Call) -> list[dict[str, Any]]:
    """Return the HTTP listeners."""
    host = call.api.host
    address = {"ip": str(host.config.http_host), "port": str(host.http_port)}
    return [{"node": call.api.node, "description": "Kvitto management", "path": "/", "ssl_opts": [], **address}]


def churn(call: Call) -> dict[str, Any]:
    hub, broker = call.api.host.hub, call.api.broker
    row = (*(0,) * counts.VHOST_WIDTH, *counts.of_churn(hub, broker))
    return shown.numbers(call, TOTAL, row, counts.CHURN, counts.churn, call.spans.msg_rates)


def start(_call: Call) -> Response:
    return answer({"product": "Kvitto", "version": __version__, "api": "/api/overview", "metrics": "/metrics"})


MISSING = ("extensions",)
"""Kinds of objects that RabbitMQ has and Kvitto does not; their lists are empty."""

ROUTES = (
    ("GET", "/", Access.ANYBODY, start),
    ("GET", "/api/overview", Access.MANAGEMENT, overview),
    ("GET", "/api/nodes", Access.MONITORING, list_nodes),
    ("GET", "/api/nodes/{name}", Access.MONITORING, get_node),
    ("GET", "/api/cluster-name", Access.MANAGEMENT, cluster_name),
    ("PUT", "/api/cluster-name", Access.ADMINISTRATOR, put_cluster_name),
    ("GET", "/api/feature-flags", Access.MANAGEMENT, feature_flags),
    *(("GET", f"/api/{name}", Access.MANAGEMENT, no_items) for name in MISSING),
)
