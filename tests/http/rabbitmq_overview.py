"""What RabbitMQ's dashboard "RabbitMQ-Overview" (Grafana 10991) asks Prometheus for: names, and what it does with them."""

from __future__ import annotations

from itertools import pairwise

SUMMED = (
    "queue_messages_ready",
    "queue_messages_unacked",
    "global_publishers",
    "global_consumers",
    "connections",
    "channels",
    "queues",
)
RATES = (
    "global_messages_received_total",
    "global_messages_received_confirm_total",
    "global_messages_routed_total",
    "global_messages_confirmed_total",
    "global_messages_unroutable_dropped_total",
    "global_messages_unroutable_returned_total",
    "global_messages_delivered_total",
    "global_messages_delivered_consume_auto_ack_total",
    "global_messages_delivered_consume_manual_ack_total",
    "global_messages_delivered_get_auto_ack_total",
    "global_messages_delivered_get_manual_ack_total",
    "global_messages_get_empty_total",
    "global_messages_redelivered_total",
    "global_messages_acknowledged_total",
    "queues_declared_total",
    "queues_created_total",
    "queues_deleted_total",
    "channels_opened_total",
    "channels_closed_total",
    "connections_opened_total",
    "connections_closed_total",
)
DIFFERENCES = (
    ("resident_memory_limit_bytes", "process_resident_memory_bytes"),
    ("disk_space_available_bytes", "disk_space_available_limit_bytes"),
    ("process_max_fds", "process_open_fds"),
)
BOUNDS = ("100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf")
"""The labels `le` that it selects."""
OTHERS = ("erlang_uptime_seconds", "build_info", "identity_info")
SIZES = ("message_size_bytes_bucket", "message_size_bytes_count", "message_size_bytes_sum")
NAMES = {f"rabbitmq_{name}" for name in (*SUMMED, *RATES, *sum(DIFFERENCES, ()), *OTHERS, *SIZES)}


def of_broker(expression: str, cluster: str, brings: str = "rabbitmq_cluster, rabbitmq_node") -> str:
    """Keep the values of the brokers of a cluster, as each of its panels does."""
    who = f'rabbitmq_cluster="{cluster}", namespace="", rabbitmq_endpoint="aggregated"'
    return f"{expression} * on(instance, job) group_left({brings}) rabbitmq_identity_info{{{who}}}"


def expressions(cluster: str, window: str) -> list[str]:
    """Expressions with the functions and joins of its panels, over all of its names."""
    found = [f"sum({of_broker('rabbitmq_' + name, cluster)}) by(rabbitmq_node)" for name in SUMMED]
    for function in ("rate", "irate"):
        for name in RATES:
            found.append(f"sum({of_broker(f'{function}(rabbitmq_{name}[{window}])', cluster)}) by(rabbitmq_node)")
    for more, less in DIFFERENCES:
        found.append(f"({of_broker('rabbitmq_' + more, cluster)}) - ({of_broker('rabbitmq_' + less, cluster)})")
        found.append(of_broker(f"(rabbitmq_{more} - rabbitmq_{less})", cluster))
    received, confirmed = (
        f"rate(rabbitmq_global_messages_{each}_total[{window}])" for each in ("received_confirm", "confirmed")
    )
    found.append(f"sum({of_broker(received, cluster)} - {of_broker(confirmed, cluster)}) by(rabbitmq_node)")
    auto, manual = (
        f"rate(rabbitmq_global_messages_delivered_consume_{each}_ack_total[{window}])" for each in ("auto", "manual")
    )
    found.append(f"sum(({of_broker(auto, cluster)}) + ({of_broker(manual, cluster)})) by(rabbitmq_node)")
    whole, count = (f"increase(rabbitmq_message_size_bytes_{each}[{window}])" for each in ("sum", "count"))
    found.append(f"sum({of_broker(whole, cluster)}) / sum({of_broker(count, cluster)})")
    every = f'increase(rabbitmq_message_size_bytes_bucket{{le="+Inf"}}[{window}])'
    for low, high in pairwise(BOUNDS):
        up, down = (f'increase(rabbitmq_message_size_bytes_bucket{{le="{le}"}}[{window}])' for le in (high, low))
        part = f"(sum({of_broker(up, cluster)}) - sum({of_broker(down, cluster)}))"
        found.append(f"{part} / sum({of_broker(every, cluster)})")
    versions = of_broker("rabbitmq_build_info", cluster)
    found.append(
        f"rabbitmq_erlang_uptime_seconds * on(instance, job) group_left(rabbitmq_version, erlang_version) {versions}"
    )
    found.append(
        f'count(rabbitmq_identity_info{{namespace="",rabbitmq_cluster="{cluster}",rabbitmq_endpoint="aggregated"}})'
    )
    return found
