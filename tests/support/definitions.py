"""A document of definitions with every kind of object, as other brokers export it, and what brings one into a broker without sockets."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from kvitto.broker.administration.definitions.document import Document
from kvitto.broker.administration.definitions.plan import Plan
from kvitto.broker.broker import Broker
from kvitto.broker.vhost import VHost


def salted(password: str, digest: str = "sha256", salt: bytes = b"salt") -> str:
    """RabbitMQ's hash of a password."""
    return base64.b64encode(salt + hashlib.new(digest, salt + password.encode()).digest()).decode()


def everything() -> dict[str, Any]:
    """What RabbitMQ 4.x exports, with each kind of object once or twice."""
    described = {"description": "orders", "tags": ["red"], "default_queue_type": "quorum"}
    return {
        "rabbit_version": "4.1.0",
        "rabbitmq_version": "4.1.0",
        "product_name": "RabbitMQ",
        "product_version": "4.1.0",
        "rabbitmq_definition_format": "cluster",
        "original_cluster_name": "rabbit@lund",
        "explanation": "Definitions of cluster 'rabbit@lund'",
        "users": [
            {
                "name": "ann",
                "password_hash": salted("pw-ann"),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": ["administrator"],
                "limits": {"max-connections": 10, "max-channels": 20},
            },
            {
                "name": "bob",
                "password_hash": salted("pw-bob", "sha512"),
                "hashing_algorithm": "rabbit_password_hashing_sha512",
                "tags": [],
                "limits": {},
            },
        ],
        "vhosts": [
            {"name": "orders", "limits": [], "metadata": described, **described},
            {"name": "/", "limits": [], "metadata": {"description": "Default virtual host", "tags": []}},
        ],
        "permissions": [{"user": "ann", "vhost": "orders", "configure": ".*", "write": "^x", "read": ".*"}],
        "topic_permissions": [
            {"user": "ann", "vhost": "orders", "exchange": "x", "write": "^{username}\\.", "read": ".*"}
        ],
        "parameters": [
            {"value": {"max-queues": 1000}, "vhost": "orders", "component": "vhost-limits", "name": "limits"},
            {
                "value": {"pattern": "^q", "definition": {"max-length": 9}, "priority": 0, "apply-to": "queues"},
                "vhost": "orders",
                "component": "operator_policy",
                "name": "small",
            },
            {"value": {"src-uri": "amqp://"}, "vhost": "orders", "component": "federation-upstream", "name": "move"},
        ],
        "global_parameters": [
            {"name": "cluster_name", "value": "rabbit@lund"},
            {"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-1"},
        ],
        "policies": [
            {
                "vhost": "orders",
                "name": "ha",
                "pattern": "^q",
                "apply-to": "queues",
                "definition": {"ha-mode": "all", "max-length": 5},
                "priority": 1,
            }
        ],
        "queues": [
            {"name": "q1", "vhost": "orders", "durable": True, "auto_delete": False, "type": "quorum", "arguments": {}},
            {
                "name": "q2",
                "vhost": "orders",
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-queue-type": "classic", "x-queue-mode": "lazy", "x-max-priority": 5},
            },
            {
                "name": "amq.gen-1",
                "vhost": "/",
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-queue-type": "classic"},
            },
        ],
        "exchanges": [
            {
                "name": "x",
                "vhost": "orders",
                "type": "topic",
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {"alternate-exchange": "y"},
            },
            {
                "name": "y",
                "vhost": "orders",
                "type": "headers",
                "durable": True,
                "auto_delete": False,
                "internal": True,
                "arguments": {},
            },
        ],
        "bindings": [
            bound("x", "q1", "a.*"),
            bound("x", "y", "#", kind="exchange"),
            bound("y", "q2", "", arguments={"x-match": "any", "size": 10, "red": True}),
            bound("amq.direct", "q2", "k"),
        ],
    }


def bound(
    source: str,
    dest: str,
    key: str,
    vhost: str = "orders",
    kind: str = "queue",
    arguments: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {
        "source": source,
        "vhost": vhost,
        "destination": dest,
        "destination_type": kind,
        "routing_key": key,
        "arguments": arguments or {},
    }


def planned(broker: Broker, document: Any, vhost: VHost | None = None) -> Plan:
    """Read and check a document: an object, or bytes as they are."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    plan = Plan(broker, Document(body), vhost)
    for _ in plan.read():
        pass
    return plan


def imported(broker: Broker, document: Any, vhost: VHost | None = None, skip: bool = False) -> Plan:
    """Import a document as a whole, or item by item."""
    plan = planned(broker, document, vhost)
    if not plan.refusals or skip:
        for _ in plan.apply():
            pass
    return plan


def refused(plan: Plan) -> list[tuple[str, str]]:
    return [(refusal.kind, refusal.name) for refusal in plan.refused]
