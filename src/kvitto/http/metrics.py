"""/metrics: the broker's numbers in Prometheus' text format. Names end with their unit; counters start with the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from kvitto.base.build import compiled
from kvitto.base.version import __version__
from kvitto.broker.latencies import Latencies
from kvitto.broker.queues.queue import Queue
from kvitto.http import cluster, rabbitmq_metrics
from kvitto.http.access import Access
from kvitto.http.api import Api, Call
from kvitto.http.counts import depth_of
from kvitto.http.exposition import (
    CONTENT_TYPE,
    Metric,
    counter,
    encoded,
    gauge,
    head,
    histogram,
    labels,
    of_each,
    single,
)
from kvitto.http.request import Response, bad_request
from kvitto.http.totals import Totals, of_broker

US = 1e-6

QUEUE_METRICS: tuple[Metric[Queue], ...] = (
    Metric("messages_ready", "gauge", "Messages that wait for a consumer.", lambda q: q.ready),
    Metric(
        "messages_unacknowledged",
        "gauge",
        "Messages that were delivered and not settled, or are on their way to a dead-letter queue.",
        lambda q: depth_of(q)[2],
    ),
    Metric("messages_ready_bytes", "gauge", "Bytes of the bodies of waiting messages.", lambda q: q.ready_bytes),
    Metric("consumers", "gauge", "Consumers.", lambda q: len(q.consumers)),
    Metric("messages_published_total", "counter", "Messages added to the queue.", lambda q: q.published),
    Metric("messages_delivered_total", "counter", "Deliveries, repeated ones included.", lambda q: q.delivered),
    Metric("messages_redelivered_total", "counter", "Repeated deliveries.", lambda q: q.redelivered),
    Metric("messages_acknowledged_total", "counter", "Messages settled by an ack.", lambda q: q.acked),
)


async def metrics(call: Call) -> Response:
    prefix = call.request.query.get("prefix", "kvitto")
    if prefix == "rabbitmq":
        return rabbitmq_metrics.aggregated(call)
    if prefix != "kvitto":
        raise bad_request("prefix must be kvitto or rabbitmq: with it the metrics have RabbitMQ's names")
    slices = call.api.slices
    totals = await of_broker(slices, call.api.broker)
    return Response(content_type=CONTENT_TYPE, pieces=_text(call.api, totals, call.api.broker.listed))


async def _text(api: Api, totals: Totals, queues: list[Queue]) -> AsyncIterator[bytes]:
    groups = (
        *of_server(api, totals),
        *cluster.metrics(api),
        *of_latencies(api.broker.latencies),
        *cluster.of_process(api.host.started_ms / 1000),
    )
    yield encoded(line for group in groups for line in group)
    async for piece in of_each(api.slices, QUEUE_METRICS, "kvitto_queue_", queues, queue_labels):
        yield piece


def queue_labels(queue: Queue) -> str:
    return labels(vhost=queue.vhost.name, queue=queue.name)


def of_server(api: Api, totals: Totals) -> Iterable[list[str]]:
    host, hub, broker = api.host, api.host.hub, api.broker
    build = f'{{version="{__version__}",compiled="{str(compiled()).lower()}"}}'
    yield single("kvitto_build_info", "gauge", "The version of Kvitto, and whether it is compiled.", 1, build)
    uptime_s = host.uptime_ms / 1000
    yield gauge("kvitto_uptime_seconds", "Seconds since the broker started.", uptime_s)
    yield gauge("kvitto_connections", "Open AMQP connections.", len(hub.connections))
    yield counter("kvitto_connections_opened_total", "AMQP connections accepted.", hub.connections_made)
    yield counter("kvitto_connections_closed_total", "AMQP connections ended.", hub.connections_closed)
    yield gauge("kvitto_channels", "Open channels.", hub.channels)
    yield counter("kvitto_channels_opened_total", "Channels opened.", hub.channels_made)
    yield counter("kvitto_logins_refused_total", "Logins with a wrong name or password.", host.logins.refused)
    yield counter(
        "kvitto_logins_delayed_total",
        "Refused logins whose answer was delayed after many failures.",
        host.logins.delayed,
    )
    yield gauge("kvitto_vhosts", "Virtual hosts.", len(broker.vhosts))
    yield gauge("kvitto_exchanges", "Exchanges.", sum(len(v.exchanges) for v in broker.vhosts.values()))
    yield gauge("kvitto_queues", "Queues.", totals.queues)
    yield gauge("kvitto_consumers", "Consumers.", totals.consumers)
    depth = totals.depth
    yield gauge("kvitto_messages_ready", "Messages that wait for a consumer, all queues.", depth["messages_ready"])
    away = depth["messages_unacknowledged"]
    yield gauge("kvitto_messages_unacknowledged", "Messages delivered and not settled, all queues.", away)
    published, delivered, acked, redelivered = totals.row[:4]
    yield counter("kvitto_messages_published_total", "Messages added to queues, once for each queue.", published)
    yield counter("kvitto_messages_delivered_total", "Deliveries, repeated ones included.", delivered)
    yield counter("kvitto_messages_redelivered_total", "Repeated deliveries.", redelivered)
    yield counter("kvitto_messages_acknowledged_total", "Messages settled by an ack.", acked)
    yield counter("kvitto_messages_unroutable_total", "Messages that were routed to no queue.", hub.replies.unroutable)
    yield counter(
        "kvitto_messages_confirmed_total", "Publishes that were answered with an ack or a nack.", hub.confirms.answered
    )
    yield counter(
        "kvitto_store_syncs_total", "Syncs to disk, each for all messages that waited.", host.store.commits.syncs
    )
    yield gauge(
        "kvitto_sync_enabled", "1: confirms wait for the disk. 0: they do not (--sync off).", int(host.config.sync)
    )
    yield gauge(
        "kvitto_store_failed", "1: the disk has failed, the broker is stopping.", int(host.store.failed is not None)
    )
    yield gauge("kvitto_alarms", "Current alarms.", len(api.alarms))
    yield [
        *head("kvitto_refused_total", "counter", "Refusals, by the limit that a peer exceeded."),
        *(f'kvitto_refused_total{{limit="{name}"}} {count}' for name, count in broker.refused.items()),
    ]
    yield gauge(
        "kvitto_publishers_blocked",
        "1: publishers wait, for disk, memory or followers.",
        int(hub.alarms.blocked is not None),
    )
    yield gauge("kvitto_memory_alarm", "1: publishers wait for memory.", int("memory" in hub.alarms.reasons))
    low = bool({"disk", "room"} & hub.alarms.reasons.keys())
    yield gauge("kvitto_disk_alarm", "1: publishers wait for disk space.", int(low))
    yield gauge(
        "kvitto_disk_free_bytes", "Free bytes on the file system of the data directory.", host.store.disk.free_bytes()
    )
    yield gauge("kvitto_disk_free_limit_bytes", "--disk-free-limit.", host.config.disk_free_limit)
    yield gauge("kvitto_memory_limit_bytes", "--memory-limit.", host.config.memory_limit)


def of_latencies(found: Latencies) -> Iterable[list[str]]:
    """docs/monitoring.md says what each of them measures, and how exactly."""
    for name, text, values in (
        ("publish_to_confirm", "From the arrival of published messages until their confirm.", found.confirm),
        ("publish_to_deliver", "How long messages were in a work queue before their first delivery.", found.deliver),
        ("deliver_to_ack", "From a delivery until its ack, for one delivery of each channel at a time.", found.ack),
        ("sync", "Syncs to disk.", found.sync),
        ("turn", "Turns of the broker.", found.turn),
    ):
        yield histogram(f"kvitto_{name}_seconds", text, [("", values)], US)
    parts = [('by="peers"', found.peers), ('by="callbacks"', found.callbacks)]
    yield histogram(
        "kvitto_loop_held_seconds", "How long the event loop was held by one thing after another.", parts, US
    )
    yield histogram("kvitto_message_size_bytes", "Bodies of the messages that queues wrote.", [("", found.sizes)], 1)


ROUTES = (("GET", "/metrics", Access.LOOPBACK, metrics), *rabbitmq_metrics.ROUTES)
