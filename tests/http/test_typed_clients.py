"""The fields without which the typed client of rabbitmqadmin 2 (the crate rabbitmq_http_client) cannot decode an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

import kvitto
from kvitto.client import Connection
from tests.http.api import Http

Fields = dict[str, Any]
MEMORY = (
    *("connection_readers", "connection_writers", "connection_channels", "connection_other", "queue_procs"),
    *("quorum_queue_procs", "stream_queue_procs", "stream_queue_replica_reader_procs"),
    *("stream_queue_coordinator_procs", "plugins", "metadata_store", "other_proc", "metrics", "mgmt_db", "mnesia"),
    *("quorum_ets", "metadata_store_ets", "other_ets", "binary", "msg_index", "code", "atom", "other_system"),
    *("allocated_unused", "reserved_unallocated"),
)
REQUIRED: dict[str, Fields] = {
    "/api/nodes": {
        **dict.fromkeys(("name", "rates_mode", "os_pid"), str),
        **dict.fromkeys(("uptime", "run_queue", "processors", "fd_total", "proc_total"), int),
        **dict.fromkeys(("mem_limit", "disk_free_limit"), int),
        **dict.fromkeys(("mem_alarm", "disk_free_alarm", "being_drained"), bool),
        "enabled_plugins": list,
    },
    "/api/nodes/{node}/memory": {
        "memory": {
            **dict.fromkeys(MEMORY, int),
            "strategy": str,
            "total": dict.fromkeys(("rss", "allocated", "erlang"), int),
        }
    },
    "/api/overview": {
        **dict.fromkeys(("cluster_name", "node", "rabbitmq_version", "product_name", "product_version"), str),
        "listeners": [{"node": str, "protocol": str, "port": int, "ip_address": str}],
        "churn_rates": dict.fromkeys(
            ("connection_created", "connection_closed", "queue_declared", "queue_created", "queue_deleted"), int
        ),
    },
    "/api/queues": {
        **dict.fromkeys(("name", "vhost", "type", "node", "state"), str),
        **dict.fromkeys(("durable", "auto_delete", "exclusive"), bool),
        **dict.fromkeys(("memory", "consumers", "messages", "messages_persistent", "messages_ram"), int),
        **dict.fromkeys(("message_bytes", "message_bytes_persistent", "message_bytes_ram", "message_bytes_ready"), int),
        "message_bytes_unacknowledged": int,
        "consumer_utilisation": float,
        "arguments": dict,
    },
    "/api/connections": {
        **dict.fromkeys(("name", "node", "protocol", "user"), str),
        "connected_at": int,
        "channels": int,
        "client_properties": dict,
    },
    "/api/connections/username/guest": dict.fromkeys(("name", "node", "user", "vhost"), str),
    "/api/consumers": {
        "consumer_tag": str,
        **dict.fromkeys(("active", "ack_required", "exclusive"), bool),
        **dict.fromkeys(("prefetch_count", "consumer_timeout"), int),
        "arguments": dict,
        "queue": {"name": str, "vhost": str},
        "channel_details": {"name": str, "number": int, "connection_name": str, "node": str, "user": str},
    },
    "/api/auth/attempts/{node}": {
        "protocol": str,
        **dict.fromkeys(("auth_attempts", "auth_attempts_failed", "auth_attempts_succeeded"), int),
    },
    "/api/cluster-name": {"name": str},
}


@pytest.fixture(scope="module")
def used(broker: kvitto.Broker) -> Iterator[Http]:
    """A broker with one thing of each kind."""
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("typed", durable=True)
        channel.consume("typed")
        yield Http(broker.http_url)


def wrong(value: Any, wanted: Any, where: str) -> Iterator[str]:
    """Yield what is missing or of another type."""
    if isinstance(wanted, dict):
        for name, inner in wanted.items():
            if not isinstance(value, dict) or name not in value:
                yield f"{where}.{name} is missing"
            else:
                yield from wrong(value[name], inner, f"{where}.{name}")
    elif isinstance(wanted, list):
        assert value, f"{where} is empty"
        for item in value:
            yield from wrong(item, wanted[0], f"{where}[]")
    elif type(value) is not wanted or (wanted is int and value < 0):
        yield f"{where} is {value!r}"


@pytest.mark.parametrize("path", REQUIRED)
def test_answers_have_what_typed_clients_need(used: Http, path: str) -> None:
    node = quote(used.get("/api/overview")["node"], safe="")
    answer = used.get(path.replace("{node}", node))
    items = answer if isinstance(answer, list) else [answer]
    assert items
    assert [text for item in items for text in wrong(item, REQUIRED[path], path)] == []
