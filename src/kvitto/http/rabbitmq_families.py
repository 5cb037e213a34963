"""The metrics of RabbitMQ that Kvitto has, by the families that `/metrics/detailed` may name. `rabbitmq_metrics.py` writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kvitto.broker.counts import Attempts
from kvitto.broker.queues.queue import Queue
from kvitto.http.counts import depth_of
from kvitto.http.exposition import Metric

T = TypeVar("T")

GAUGE, COUNTER = "gauge", "counter"


def consumed(queue: Any) -> tuple[int, int]:
    """Return the deliveries to consumers: with acks, and without. `queue` may also be the counts of deleted queues."""
    auto = queue.delivered_auto - queue.gets_auto
    return queue.delivered - queue.delivered_auto - queue.gets, auto


def acked(queue: Any) -> int:
    """Return the messages that were acknowledged, without those that needed no ack."""
    return max(int(queue.acked - queue.delivered_auto), 0)


QUEUES: dict[str, tuple[Metric[Queue], ...]] = {
    "queue_coarse_metrics": (
        Metric("queue_messages_ready", GAUGE, "Messages that wait for a consumer.", lambda q: q.ready),
        Metric("queue_messages_unacked", GAUGE, "Messages delivered and not settled.", lambda q: depth_of(q)[2]),
        Metric("queue_messages", GAUGE, "Messages that are ready or unacknowledged.", lambda q: depth_of(q)[0]),
    ),
    "queue_consumer_count": (Metric("queue_consumers", GAUGE, "Consumers of a queue.", lambda q: len(q.consumers)),),
    "queue_metrics": (
        Metric("queue_consumers", GAUGE, "Consumers of a queue.", lambda q: len(q.consumers)),
        Metric("queue_messages_bytes", GAUGE, "Bytes of all bodies.", lambda q: q.ready_bytes + q.unacked_bytes),
        Metric(
            "queue_messages_ready_bytes", GAUGE, "Bytes of the bodies of waiting messages.", lambda q: q.ready_bytes
        ),
        Metric("queue_messages_unacked_bytes", GAUGE, "Bytes of unacknowledged bodies.", lambda q: q.unacked_bytes),
    ),
    "queue_delivery_metrics": (
        Metric("queue_get_ack_total", COUNTER, "Messages by basic.get, with acks.", lambda q: q.gets),
        Metric("queue_get_total", COUNTER, "Messages by basic.get, without acks.", lambda q: q.gets_auto),
        Metric("queue_messages_delivered_ack_total", COUNTER, "Deliveries with acks.", lambda q: consumed(q)[0]),
        Metric("queue_messages_delivered_total", COUNTER, "Deliveries without acks.", lambda q: consumed(q)[1]),
        Metric("queue_messages_redelivered_total", COUNTER, "Repeated deliveries.", lambda q: q.redelivered),
        Metric("queue_messages_acked_total", COUNTER, "Messages settled by an ack.", acked),
        Metric("queue_get_empty_total", COUNTER, "Calls of basic.get that found nothing.", lambda q: q.gets_empty),
    ),
}
CHANNELS: dict[str, tuple[Metric[Any], ...]] = {
    "channel_metrics": (
        Metric("channel_consumers", GAUGE, "Consumers of a channel.", lambda c: len(c.consumers)),
        Metric("channel_messages_unacked", GAUGE, "Deliveries that are not settled.", lambda c: c.unacked),
        Metric(
            "channel_messages_unconfirmed",
            GAUGE,
            "Publishes that are not confirmed.",
            lambda c: c.sequence - c.confirmed if c.confirm else 0,
        ),
        Metric("consumer_prefetch", GAUGE, "The limit for each new consumer.", lambda c: c.prefetch),
        Metric("channel_prefetch", GAUGE, "The limit for the whole channel.", lambda c: c.prefetch_all),
    ),
    "channel_exchange_metrics": (
        Metric("channel_messages_published_total", COUNTER, "Messages published.", lambda c: c.published),
        Metric("channel_messages_confirmed_total", COUNTER, "Messages confirmed.", lambda c: c.answered),
        Metric("channel_messages_unroutable_returned_total", COUNTER, "Messages returned.", lambda c: c.returned),
        Metric("channel_messages_unroutable_dropped_total", COUNTER, "Messages dropped.", lambda c: c.dropped),
    ),
}
CONNECTIONS: dict[str, tuple[Metric[Any], ...]] = {
    "connection_coarse_metrics": (
        Metric("connection_incoming_bytes_total", COUNTER, "Bytes received.", lambda c: c.received_bytes),
        Metric("connection_outgoing_bytes_total", COUNTER, "Bytes sent.", lambda c: c.sent_bytes),
    ),
    "connection_metrics": (
        Metric("connection_channels", GAUGE, "Channels of a connection.", lambda c: len(c.channels)),
    ),
}
EXCHANGES: dict[str, tuple[Metric[Any], ...]] = {
    "exchange_metrics": (
        Metric("exchange_messages_published_total", COUNTER, "Messages published.", lambda e: e[1].traffic.published),
        Metric(
            "exchange_messages_unroutable_returned_total",
            COUNTER,
            "Mandatory messages that no queue took.",
            lambda e: e[1].traffic.returned,
        ),
        Metric(
            "exchange_messages_unroutable_dropped_total",
            COUNTER,
            "Other messages that no queue took.",
            lambda e: e[1].traffic.dropped,
        ),
    ),
}
"""An exchange comes with its virtual host."""
OTHERS = frozenset(
    (
        "auth_attempt_metrics",
        "connection_churn_metrics",
        "node_coarse_metrics",
        "node_metrics",
        "node_persister_metrics",
        "vhost_status",
        "exchange_bindings",
        "exchange_names",
    )
)
"""Further families that a request may name."""
ABSENT = frozenset(
    (
        "auth_attempt_detailed_metrics",
        "channel_process_metrics",
        "channel_queue_metrics",
        "channel_queue_exchange_metrics",
        "queue_exchange_metrics",
        "ra_metrics",
        "stream_consumer_metrics",
    )
)
"""Families of RabbitMQ that have no meaning here, or are not counted. A request may name them: they are empty."""
EVERYTHING = frozenset((*QUEUES, *CHANNELS, *CONNECTIONS, *EXCHANGES, *OTHERS))
INFO: Metric[Queue] = Metric("queue_info", GAUGE, "The type of a queue is in the labels.", lambda q: 1)
NAME: Metric[Any] = Metric("exchange_name", GAUGE, "1 for each exchange.", lambda e: 1)


def distinct(families: dict[str, tuple[Metric[T], ...]], wanted: Iterable[str]) -> list[Metric[T]]:
    """Return the metrics of these families, each once."""
    chosen = set(wanted)
    return [*{metric.name: metric for name, group in families.items() if name in chosen for metric in group}.values()]


ATTEMPTS: tuple[tuple[str, str, Callable[[Attempts], int]], ...] = (
    ("total", "Logins.", lambda count: count.succeeded + count.failed),
    ("succeeded_total", "Logins that succeeded.", lambda count: count.succeeded),
    ("failed_total", "Logins that were refused.", lambda count: count.failed),
)
NODE = {
    "connections_opened_total": "Connections opened.",
    "connections_closed_total": "Connections ended.",
    "channels_opened_total": "Channels opened.",
    "channels_closed_total": "Channels ended.",
    "queues_declared_total": "Declarations of queues, also of those that were there.",
    "queues_created_total": "Queues created.",
    "queues_deleted_total": "Queues deleted.",
    "process_open_fds": "Open files.",
    "process_resident_memory_bytes": "Resident memory.",
    "disk_space_available_bytes": "Free bytes on the file system of the data directory.",
    "process_max_fds": "The limit of open files.",
    "resident_memory_limit_bytes": "Above this memory publishers are blocked.",
    "disk_space_available_limit_bytes": "Below this free space publishers are blocked.",
    "erlang_uptime_seconds": "Seconds since the broker started.",
    "io_sync_ops_total": "Syncs to disk.",
    "io_sync_time_seconds_total": "The time that these syncs took.",
}
