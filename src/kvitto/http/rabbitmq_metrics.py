"""RabbitMQ's metrics under RabbitMQ's names, for dashboards and alerts that were made for it.

`/metrics?prefix=rabbitmq` has sums over all objects, `/metrics/per-object` a line for each object, and `/metrics/detailed` the families
that the request names. docs/monitoring.md lists them, and says which of RabbitMQ's metrics are missing and why.
"""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kvitto.base import process
from kvitto.base.version import __version__
from kvitto.broker.administration.queue_types import type_of
from kvitto.broker.queues.queue import Queue
from kvitto.broker.routing.patterns import InvalidPattern, Pattern, compile_pattern
from kvitto.http import views
from kvitto.http.access import Access
from kvitto.http.api import Api, Call
from kvitto.http.counts import of_traffic
from kvitto.http.exposition import CONTENT_TYPE, Metric, Number, encoded, head, histogram, labels, of_each, single
from kvitto.http.nodes import API_LEVEL, name_of_cluster
from kvitto.http.rabbitmq_families import (
    ABSENT,
    ATTEMPTS,
    CHANNELS,
    CONNECTIONS,
    COUNTER,
    EVERYTHING,
    EXCHANGES,
    GAUGE,
    INFO,
    NAME,
    NODE,
    QUEUES,
    distinct,
)
from kvitto.http.request import Response, bad_request

T = TypeVar("T")
AMQP = labels(protocol="amqp091")
COUNTED = 100
"""Bindings that are counted between two looks at the time."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks for."""

    endpoint: str
    """RabbitMQ's name for the path, which its dashboards select by."""
    prefix: str = "rabbitmq_"
    families: frozenset[str] = EVERYTHING
    vhosts: frozenset[str] | None = None
    pattern: Pattern | None = None
    totals: bool = True
    """Whether the counts of the whole broker are wanted, too."""

    def has(self, queue: Queue) -> bool:
        return (self.vhosts is None or queue.vhost.name in self.vhosts) and (
            self.pattern is None or self.pattern.found_in(queue.name)
        )


def aggregated(call: Call) -> Response:
    return Response(content_type=CONTENT_TYPE, pieces=_text(call.api, Wanted("aggregated"), name_of_cluster(call)))


def per_object(call: Call) -> Response:
    return Response(content_type=CONTENT_TYPE, pieces=_text(call.api, Wanted("per-object"), name_of_cluster(call)))


def detailed(call: Call) -> Response:
    """Answer with the families that `family` names, of the virtual hosts and the queues that `vhost` and `queue` name."""
    families = frozenset(call.request.values("family"))
    unknown = families - EVERYTHING - ABSENT
    if unknown:
        raise bad_request(f"no family {sorted(unknown)[0]!r}; there are {', '.join(sorted(EVERYTHING))}")
    vhosts, patterns = call.request.values("vhost"), call.request.values("queue")
    if len(patterns) > 1:
        raise bad_request("give queue once: a regular expression that is searched for in the names of queues")
    try:
        pattern = compile_pattern(patterns[0]) if patterns and patterns[0] else None
    except InvalidPattern as error:
        raise bad_request(str(error)) from None
    wanted = Wanted(
        "detailed", "rabbitmq_detailed_", families, frozenset(vhosts) if vhosts else None, pattern, totals=False
    )
    return Response(content_type=CONTENT_TYPE, pieces=_text(call.api, wanted, name_of_cluster(call)))


async def _text(api: Api, wanted: Wanted, cluster: str) -> AsyncIterator[bytes]:
    queues = api.broker.listed
    publishers = await settled(api)
    yield encoded(identity(api, wanted.endpoint, cluster))
    yield encoded(line for group in of_node(api, wanted) for line in group)
    if wanted.totals:
        found = await summed(api, queues)
        yield encoded(line for group in of_broker(api, found, publishers) for line in group)
    if wanted.endpoint == "aggregated":
        yield encoded(line for group in of_sums(found) for line in group)
        return
    async for piece in of_objects(api, wanted, queues):
        yield piece


async def settled(api: Api) -> int:
    """Have all channels count what they have published. Return the number of those that have published anything."""
    publishers = 0
    for connection in list(api.host.hub.connections):
        for channel in list(connection.channels.values()):
            if channel.route is not None:
                channel.count_published()
                publishers += 1
        await api.slices.rest()
    return publishers


# -- the whole broker ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sums:
    """Sums over all queues, by the name of the metric. Counters include deleted queues."""

    values: dict[str, Number] = field(default_factory=dict)
    queues: int = 0
    published: int = 0
    delivered: int = 0


async def summed(api: Api, queues: Sequence[Queue]) -> Sums:
    gone = api.broker.gone
    metrics = distinct(QUEUES, QUEUES)
    counters = [metric for metric in metrics if metric.kind == COUNTER]
    values: dict[str, Number] = dict.fromkeys((metric.name for metric in metrics), 0)
    values |= {metric.name: metric.value(gone) for metric in counters}  # type: ignore[arg-type]
    sums = Sums(values, len(queues), gone.published, gone.delivered)
    for queue in queues:
        for metric in metrics:
            values[metric.name] += metric.value(queue)
        sums.published += queue.published
        sums.delivered += queue.delivered
        await api.slices.rest()
    return sums


def identity(api: Api, endpoint: str, cluster: str) -> list[str]:
    """Return RabbitMQ's two metrics by which its dashboards find brokers. The version of Erlang is Python's here."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    build = labels(
        rabbitmq_version=API_LEVEL, erlang_version=python, product_name="Kvitto", product_version=__version__
    )
    who = labels(rabbitmq_node=api.node, rabbitmq_cluster=cluster, rabbitmq_endpoint=endpoint)
    return [
        *single("rabbitmq_build_info", "gauge", "The version of RabbitMQ that Kvitto is like, and its own.", 1, build),
        *single("rabbitmq_identity_info", "gauge", "Which broker this is.", 1, who),
    ]


def of_node(api: Api, wanted: Wanted) -> Iterable[list[str]]:
    host, hub, churn, prefix = api.host, api.host.hub, api.broker.churn, wanted.prefix

    def lines(kind: str, **values: Number) -> Iterable[list[str]]:
        for name, value in values.items():
            yield single(prefix + name, kind, NODE[name], value)

    if "connection_churn_metrics" in wanted.families:
        yield from lines(
            COUNTER,
            connections_opened_total=hub.connections_made,
            connections_closed_total=hub.connections_closed,
            channels_opened_total=hub.channels_made,
            channels_closed_total=hub.channels_made - hub.channels,
            queues_declared_total=churn.declared,
            queues_created_total=churn.created,
            queues_deleted_total=churn.deleted,
        )
    if "node_coarse_metrics" in wanted.families:
        yield from lines(
            GAUGE,
            process_open_fds=process.open_files(),
            process_resident_memory_bytes=process.resident_bytes(),
            disk_space_available_bytes=host.store.disk.free_bytes(),
        )
    if "node_metrics" in wanted.families:
        yield from lines(
            GAUGE,
            process_max_fds=process.open_files_max(),
            resident_memory_limit_bytes=host.config.memory_limit,
            disk_space_available_limit_bytes=host.config.disk_free_limit,
            erlang_uptime_seconds=host.uptime_ms / 1000,
        )
    if "node_persister_metrics" in wanted.families:
        sync = api.broker.latencies.sync
        yield from lines(
            COUNTER, io_sync_ops_total=sync.buckets()[-1][1], io_sync_time_seconds_total=round(sync.sum * 1e-6, 6)
        )

    if "auth_attempt_metrics" in wanted.families:
        for name, text, value in ATTEMPTS:
            full = f"{prefix}auth_attempts_{name}"
            made = [
                f"{full}{labels(protocol=protocol)} {value(count)}" for protocol, count in api.broker.attempts.items()
            ]
            yield [*head(full, COUNTER, text), *made]


def of_broker(api: Api, sums: Sums, publishers: int) -> Iterable[list[str]]:
    hub, broker, alarms = api.host.hub, api.broker, api.host.hub.alarms.reasons
    published, confirmed, returned, dropped = of_traffic(broker)
    yield single("rabbitmq_connections", GAUGE, "Open connections.", len(hub.connections))
    yield single("rabbitmq_channels", GAUGE, "Open channels.", hub.channels)
    yield single("rabbitmq_consumers", GAUGE, "Consumers.", sums.values["queue_consumers"])
    yield single("rabbitmq_queues", GAUGE, "Queues.", sums.queues)
    low_disk, low_memory = int(bool({"disk", "room"} & alarms.keys())), int("memory" in alarms)
    yield single("rabbitmq_alarms_free_disk_space_watermark", GAUGE, "1: publishers wait for disk space.", low_disk)
    yield single("rabbitmq_alarms_memory_used_watermark", GAUGE, "1: publishers wait for memory.", low_memory)
    values = sums.values
    for name, kind, text, value in (
        ("publishers", GAUGE, "Channels that have published.", publishers),
        ("consumers", GAUGE, "Consumers.", values["queue_consumers"]),
        ("messages_received_total", COUNTER, "Messages published.", published),
        ("messages_received_confirm_total", COUNTER, "Messages published with confirms.", hub.confirms.received),
        ("messages_routed_total", COUNTER, "Messages routed, once for each queue.", broker.traffic.routed),
        ("messages_confirmed_total", COUNTER, "Messages confirmed.", confirmed),
        ("messages_unroutable_returned_total", COUNTER, "Mandatory messages that no queue took.", returned),
        ("messages_unroutable_dropped_total", COUNTER, "Other messages that no queue took.", dropped),
        ("messages_delivered_total", COUNTER, "Deliveries of all kinds.", sums.delivered),
        (
            "messages_delivered_consume_manual_ack_total",
            COUNTER,
            "Deliveries to consumers, with acks.",
            values["queue_messages_delivered_ack_total"],
        ),
        (
            "messages_delivered_consume_auto_ack_total",
            COUNTER,
            "Deliveries to consumers, without acks.",
            values["queue_messages_delivered_total"],
        ),
        (
            "messages_delivered_get_manual_ack_total",
            COUNTER,
            "Messages by basic.get, with acks.",
            values["queue_get_ack_total"],
        ),
        (
            "messages_delivered_get_auto_ack_total",
            COUNTER,
            "Messages by basic.get, without acks.",
            values["queue_get_total"],
        ),
        (
            "messages_get_empty_total",
            COUNTER,
            "Calls of basic.get that found nothing.",
            values["queue_get_empty_total"],
        ),
        ("messages_redelivered_total", COUNTER, "Repeated deliveries.", values["queue_messages_redelivered_total"]),
        ("messages_acknowledged_total", COUNTER, "Messages settled by an ack.", values["queue_messages_acked_total"]),
    ):
        yield single(f"rabbitmq_global_{name}", kind, text, value, AMQP)
    sizes = [('protocol="amqp091"', broker.latencies.sizes)]
    yield histogram("rabbitmq_message_size_bytes", "Bodies of the messages that queues wrote.", sizes, 1)


def of_sums(sums: Sums) -> Iterable[list[str]]:
    for metric in distinct(QUEUES, QUEUES):
        yield single(f"rabbitmq_{metric.name}", metric.kind, metric.text, sums.values[metric.name])


# -- each object -----------------------------------------------------------------------------------------------


async def of_objects(api: Api, wanted: Wanted, listed: Sequence[Queue]) -> AsyncIterator[bytes]:
    """Yield the metrics of each queue, channel, connection and exchange. What has none of the wanted families is not looked at."""
    slices, prefix, families = api.slices, wanted.prefix, wanted.families
    if families & QUEUES.keys():
        queues = await chosen(api, listed, wanted.has)
        for metrics, named in ([INFO], info_labels), (distinct(QUEUES, families), queue_labels):
            async for piece in of_each(slices, metrics, prefix, queues, named):
                yield piece
    connections = await chosen(api, list(api.host.hub.connections), lambda c: c.vhost is not None)
    if families & CONNECTIONS.keys():
        async for piece in of_each(
            slices,
            distinct(CONNECTIONS, families),
            prefix,
            connections,
            lambda c: labels(connection=views.connection_name(api, c)),
        ):
            yield piece
    if families & CHANNELS.keys():
        channels = [channel for connection in connections for channel in list(connection.channels.values())]
        async for piece in of_each(
            slices, distinct(CHANNELS, families), prefix, channels, lambda c: labels(channel=views.channel_name(api, c))
        ):
            yield piece
    vhosts = [v for v in api.broker.vhosts.values() if wanted.vhosts is None or v.name in wanted.vhosts]
    if families & (EXCHANGES.keys() | {"exchange_bindings", "exchange_names"}):
        exchanges = [(vhost, exchange) for vhost in vhosts for exchange in list(vhost.exchanges.values())]
        async for piece in of_each(slices, distinct(EXCHANGES, families), prefix, exchanges, exchange_labels):
            yield piece
        if not wanted.totals:
            async for piece in of_cluster(api, families, exchanges):
                yield piece
    if "vhost_status" in families and not wanted.totals:
        lines = head("rabbitmq_cluster_vhost_status", GAUGE, "1: the virtual host is running.")
        yield encoded([*lines, *(f"rabbitmq_cluster_vhost_status{labels(vhost=v.name)} 1" for v in vhosts)])


async def of_cluster(api: Api, families: frozenset[str], exchanges: Sequence[tuple[Any, Any]]) -> AsyncIterator[bytes]:
    """Yield what RabbitMQ shows of exchanges in detail only."""
    prefix = "rabbitmq_cluster_"
    if "exchange_names" in families:
        async for piece in of_each(api.slices, [NAME], prefix, exchanges, exchange_labels):
            yield piece
    if "exchange_bindings" in families:
        count = {}
        for _, exchange in exchanges:
            count[exchange] = 0
            for _ in exchange.bindings():
                count[exchange] += 1
                if count[exchange] % COUNTED == 0:
                    await api.slices.rest()
        shown: Metric[Any] = Metric("exchange_bindings", GAUGE, "Bindings of an exchange.", lambda e: count[e[1]])
        async for piece in of_each(api.slices, [shown], prefix, exchanges, exchange_labels):
            yield piece


async def chosen(api: Api, things: Iterable[T], wanted: Callable[[T], bool]) -> list[T]:
    found = []
    for thing in things:
        if wanted(thing):
            found.append(thing)
        await api.slices.rest()
    return found


def queue_labels(queue: Queue) -> str:
    return labels(vhost=queue.vhost.name, queue=queue.name)


def info_labels(queue: Queue) -> str:
    kind = f"rabbit_{type_of(queue.arguments)}_queue"
    return labels(vhost=queue.vhost.name, queue=queue.name, queue_type=kind, membership="leader")


def exchange_labels(pair: tuple[Any, Any]) -> str:
    vhost, exchange = pair
    return labels(vhost=vhost.name, exchange=exchange.name)


ROUTES = (
    ("GET", "/metrics/per-object", Access.LOOPBACK, per_object),
    ("GET", "/metrics/detailed", Access.LOOPBACK, detailed),
)
