"""The numbers of each kind of object, as rows that `rates.py` samples, and RabbitMQ's names for them.

All counters begin with the process. Those of messages are kept by the broker where it works anyway: per run of deliveries, per
change of a channel's route.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

Row = tuple[int, ...]

of_queue = attrgetter(
    "published", "delivered", "acked", "redelivered", "delivered_auto", "gets", "gets_auto", "gets_empty"
)
"""The counters of a queue, or of broker/counts.py."""
QUEUE_COUNTS = 8
DEPTHS = ("messages", "messages_ready", "messages_unacknowledged")
QUEUE_WIDTH = QUEUE_COUNTS + 2
"""A queue's counters, its ready messages, and those that are away."""

DELIVERIES = ("deliver_get", "ack", "redeliver", "deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty")
QUEUE_STATS = ("publish", *DELIVERIES)
PUBLISHES = ("publish", "confirm", "return_unroutable", "drop_unroutable")
CHANNEL_STATS = (*PUBLISHES, *DELIVERIES)
EXCHANGE_STATS = ("publish_in", "publish_out")
TRAFFIC_WIDTH = 4
CHANNEL_WIDTH = len(CHANNEL_STATS)
VHOST_WIDTH = QUEUE_WIDTH + TRAFFIC_WIDTH
CHURN = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)
TOTAL_WIDTH = VHOST_WIDTH + len(CHURN)
OCTETS = ("recv_oct", "send_oct")
NODE_STATS = ("mem_used", "fd_used", "sockets_used", "disk_free")

of_connection = attrgetter("received_bytes", "sent_bytes")


def of_deleted(owner: Any) -> Row:
    """Return the counters of the deleted queues of the broker or of a virtual host, in the order of `of_queue`."""
    found: Row = of_queue(owner.gone)
    return found


def depth_of(queue: Any) -> Row:
    """Return the numbers in the order of DEPTHS. Held messages, and those on their way to a dead-letter queue or
    waiting for that, count as unacknowledged."""
    ready, away = queue.ready, queue.unacked + queue.held + queue.dead_lettering
    return ready + away, ready, away


def of_queue_and_depth(queue: Any) -> Row:
    return (*of_queue(queue), queue.ready, queue.unacked + queue.held + queue.dead_lettering)


def of_traffic(owner: Any) -> Row:
    """Return what was published to the broker or in a virtual host, confirmed, returned and dropped."""
    traffic = owner.traffic
    return traffic.published, traffic.confirmed, traffic.returned, traffic.dropped


def of_exchange(exchange: Any) -> Row:
    """Return what was published to it, and to how many queues that went: without what came from other exchanges."""
    return exchange.traffic.published, exchange.traffic.routed


def of_churn(hub: Any, broker: Any) -> Row:
    """Return the counts in the order of CHURN."""
    closed = max(hub.channels_made - hub.channels, 0)
    made = hub.connections_made, hub.connections_closed, hub.channels_made, closed
    return (*made, broker.churn.declared, broker.churn.created, broker.churn.deleted)


def of_channel(channel: Any) -> Row:
    """Return the counts in the order of CHANNEL_STATS, after the channel has counted what it has published in its exchange."""
    channel.count_published()
    auto, acked = channel.delivered_auto, channel.delivered
    for consumer in list(channel.consumers.values()):
        if consumer.no_ack:
            auto += consumer.delivered
        else:
            acked += consumer.delivered
    gets, gets_auto = channel.gets, channel.gets_auto
    published = channel.published, channel.answered, channel.returned, channel.dropped
    delivered = acked + auto + gets + gets_auto, channel.acks, channel.redelivered
    return (*published, *delivered, acked, auto, gets, gets_auto, channel.gets_empty)


# -- what people see of a row: of its values, or of their rates ---------------------------------------------------


def deliveries(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values in the order of DELIVERIES. A queue counts as acked what needed no ack, too, but RabbitMQ does not.

    A large body without ack is acked only when all of it has been sent.
    """
    _, delivered, acked, redelivered, auto, gets, gets_auto, empty = row[:QUEUE_COUNTS]
    deliver, ack = delivered - auto - gets, max(acked - auto, 0)
    return delivered, ack, redelivered, deliver, auto - gets_auto, gets, gets_auto, empty


def queue_stats(row: Sequence[Any]) -> tuple[Any, ...]:
    return row[0], *deliveries(row)


def depths(row: Sequence[Any]) -> tuple[Any, ...]:
    ready, away = row[QUEUE_COUNTS:QUEUE_WIDTH]
    return ready + away, ready, away


def vhost_stats(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values in the order of CHANNEL_STATS: a message counts once, whatever its queues."""
    return *row[QUEUE_WIDTH:VHOST_WIDTH], *deliveries(row)


def churn(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(row[VHOST_WIDTH:])


def same(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(row)
