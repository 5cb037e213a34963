"""What `kvitto migrate` says of a migration: what is new, what needs something to be done, and what it did."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.cli.management import Management
from kvitto.cli.migrate.brokers import Broker
from kvitto.cli.migrate.plan import Item, Plan
from kvitto.cli.migrate.report import planned, summary
from kvitto.client import Connection
from kvitto.client.uri import parse_uri
from kvitto.torture.nodes import Node
from kvitto.wire import methods as m
from tests.http.api import Http
from tests.migrate.test_migrate import declare_with, migrate, publish, queue_of
from tests.migrate.trial import api_of, declare


def plan_of(*items: Item, messages: bool = True) -> Plan:
    uri = "amqp://127.0.0.1"
    broker = Broker(uri, parse_uri(uri), None, Management("http://127.0.0.1:1"), "Kvitto 1")
    return Plan(broker, broker, items=list(items), messages=messages)


def item_of(name: str, **settings: Any) -> Item:
    return Item("/", name, False, 1, 0, 0, 0, True, **settings)


def test_numbers_that_nobody_has_asked_for_are_not_zero() -> None:
    """After an interrupt the report said so of the queue that was at work, and of those that had not been looked at."""
    moving = item_of("begun", state="moves", before=3, once=True)
    moving.tally.moved = 135
    header, begun, waits, last = summary(plan_of(moving, item_of("not begun"))).splitlines()
    assert header.split() == [
        "vhost",
        "queue",
        "state",
        "moved",
        "before",
        "after",
        "arrives",
        "redelivered",
        "doubled",
    ]
    assert begun.split() == ["/", "begun", "moves", "135", "3", "-", "once", "0", "0"]
    assert waits.split() == ["/", "not", "begun", "waits", "0", "-", "-", "-", "0", "0"]
    assert last == "135 messages of 2 queues were moved in this run; 0 queues were empty."


def test_one_is_no_plural() -> None:
    plan = plan_of(item_of("q", state="empty"))
    plan.items[0].tally.moved = 1
    assert summary(plan) == "1 message of 1 queue was moved in this run; 1 queue was empty."
    plan.definitions = {"topic_permissions": [{}], "policies": [{}], "global_parameters": [{}, {}]}
    plan.new = {"topic_permissions": 1, "policies": 0, "global_parameters": 2}
    line = "definitions: 1 topic permission (1 new), 1 policy (0 new), 2 global parameters (2 new)"
    assert planned(plan).splitlines()[1] == line


def test_a_run_without_messages_says_what_it_did() -> None:
    plan = plan_of(messages=False)
    plan.definitions, plan.new = {"queues": [{}, {}]}, {"queues": 1}
    assert (
        summary(plan)
        == "The new broker has the definitions: 2 queues (1 new). No messages were moved (--skip-messages)."
    )


def test_what_is_there_is_not_new(old: Node, new: Node) -> None:
    """Transient things were new each time, and all policies and parameters of one virtual host."""
    for each in (old, new):
        api = Http(api_of(each))
        assert api.call("PUT", "/api/vhosts/count", {}).status == 201
        assert (
            api.call("PUT", "/api/permissions/count/guest", {"configure": ".*", "write": ".*", "read": ".*"}).status
            < 300
        )
        assert api.call("PUT", "/api/policies/count/p", {"pattern": "^q", "definition": {"max-length": 9}}).status < 300
        assert api.call("PUT", "/api/vhost-limits/count/max-queues", {"value": 100}).status < 300
        with Connection(each.uri.replace("%2f", "count")) as connection:
            channel = connection.channel()
            channel.call(m.QueueDeclare("fleeting", False, False, False, False, False, {}), m.QueueDeclareOk)
            channel.call(m.ExchangeDeclare("x", "direct", False, False, False, False, False, {}), m.ExchangeDeclareOk)
            channel.queue_bind("fleeting", "x", "k")
    for where in ({"source": "", "target": ""}, {"source": "/count", "target": "/count"}):
        report = migrate(old, new, "--dry-run", "--queues", "^fleeting$", vhosts=where)
        known = ("exchanges", "bindings", "policies", "parameters") if where["source"] else ("policies", "parameters")
        assert {kind: report["new"].get(kind, 0) for kind in known} == dict.fromkeys(known, 0), report["new"]
        assert not report["new"].get("queues") or not where["source"]
        notes = queue_of(report, "fleeting")["notes"]
        assert notes == ["transient: it and its messages are gone at the next restart of the new broker"]
    assert Http(api_of(new)).call("DELETE", "/api/queues/count/fleeting", None).status < 300
    report = migrate(old, new, "--dry-run", "--skip-definitions", "--queues", "^fleeting$")
    assert "declare it at the new one" in queue_of(report, "fleeting")["notes"][0]


def test_queues_are_in_the_order_of_their_names(old: Node, new: Node) -> None:
    declare(old.uri, ["sorted-c", "sorted-a", "sorted-b"])
    report = migrate(old, new, "--dry-run", "--queues", "^sorted-")
    assert [item["name"] for item in report["queues"]] == ["sorted-a", "sorted-b", "sorted-c"]


def test_a_stream_that_the_new_broker_has_may_come_twice(old: Node, new: Node) -> None:
    for each in (old, new):
        declare_with(each.uri, "both-ways", {"x-queue-type": "stream"}).close()
        publish(each.uri, "both-ways", b"0")
    report = migrate(old, new, "--dry-run", "--queues", "^both-ways$")
    assert "this stream has 1 message at the new broker" in queue_of(report, "both-ways")["notes"][0]


@pytest.mark.parametrize("vhost", ["", "/%2f"])
def test_users_of_the_way_back_who_need_something_are_told_from_the_others(
    vhost: str, old: Node, rabbitmq: Node
) -> None:
    for name in ("anna", "bert"):
        assert Http(api_of(old)).call("PUT", f"/api/users/{name}", {"password": "x", "tags": ""}).status < 300
    assert Http(api_of(rabbitmq)).call("PUT", "/api/users/anna", {"password": "x", "tags": ""}).status < 300
    report = migrate(old, rabbitmq, "--dry-run", "--skip-messages", vhosts={"source": vhost, "target": vhost})
    notes = " ".join(report["notes"])
    if vhost:
        assert "password hash" not in notes, "users are of no virtual host"
        return
    assert "own password hashes stay unchanged at the new broker, which has" in notes or "hash stays unchanged" in notes
    missing = notes.partition("not brought: user")[2].partition(". Only Kvitto knows")[0]
    assert "'bert'" in missing and "'anna'" not in notes
