"""The import of definitions: all is checked before anything changes, it can be repeated, and a crash leaves a beginning of it."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

import pytest

from kvitto.base import limits
from kvitto.broker.administration.definitions.document import Document, Malformed
from kvitto.broker.administration.definitions.plan import KINDS, Plan
from kvitto.broker.administration.definitions.world import FREED, Keys, World
from kvitto.broker.administration.policies import policy
from kvitto.broker.vhost import POLICY
from tests.support.definitions import bound, everything, imported, planned, refused, salted
from tests.support.harness import BrokerHarness

COUNT = sum(len(value) for value in everything().values() if isinstance(value, list))


def defined(harness: BrokerHarness) -> dict[tuple[Any, ...], Any]:
    """All definitions, without the ids of queues and the salts of guest's password, which are made by chance."""
    found: dict[tuple[Any, ...], Any] = {}
    for kind, key, value in harness.store.definitions._list():
        if (kind, key) == ("user", ("guest",)):
            value = {}
        found[kind, key] = {k: v for k, v in value.items() if k != "id"}
    return found


def test_everything_of_an_export_arrives_and_survives_a_restart() -> None:
    harness = BrokerHarness()
    plan = imported(harness.broker, everything())
    assert not plan.refused and plan.taken == COUNT
    for _ in range(2):
        broker = harness.broker
        orders = broker.vhosts["orders"]
        assert orders.settings.description == "orders" and orders.settings.tags == ("red",)
        assert orders.queues["q1"].arguments == {"x-queue-type": "quorum"}, "the vhost's default type"
        assert orders.queues["q2"].arguments["x-max-priority"] == 5
        assert orders.queues["q2"].settings.max_length == 5 and orders.queues["q1"].settings.max_length == 5
        assert "amq.gen-1" in broker.vhosts["/"].queues
        assert orders.exchanges["x"].alternate == "y" and orders.exchanges["y"].internal
        assert orders.bindings == 4
        assert [b.arguments for b in orders.exchanges["y"].bindings()] == [{"x-match": "any", "size": 10, "red": True}]
        ann, bob = broker.users.get("ann"), broker.users.get("bob")
        assert ann is not None and bob is not None and ann.tags == ("administrator",) and bob.tags == ()
        assert ann.limits == {"max-connections": 10, "max-channels": 20}
        assert ann.permissions["orders"].write == "^x" and ann.topics["orders"]["x"].write == "^{username}\\."
        assert broker.parameters.limit("orders", "max-queues") == 1000
        assert broker.parameters.get("orders", "federation-upstream", "move") == {"src-uri": "amqp://"}
        assert broker.parameters.globals == {"internal_cluster_id": "rabbitmq-cluster-id-1"}
        assert broker.cluster_name == "rabbit@lund"
        assert orders.operator_policies["small"].definition == {"max-length": 9}
        harness.settle_down()
        harness.restart()
    assert plan.inert == [
        "component 'federation-upstream'",
        "policy setting 'ha-mode'",
        "argument of queues 'x-queue-mode'",
    ]


def test_a_second_import_of_the_same_document_changes_nothing() -> None:
    harness = BrokerHarness()
    imported(harness.broker, everything())
    before = harness.broker.defined
    plan = imported(harness.broker, everything())
    assert not plan.refused and plan.taken == COUNT and harness.broker.defined == before


def test_what_can_be_changed_follows_the_document_and_the_rest_must_be_equal() -> None:
    harness = BrokerHarness()
    imported(harness.broker, everything())
    changed = everything()
    changed["policies"][0]["definition"] = {"max-length": 7}
    changed["permissions"][0]["write"] = "^y"
    changed["vhosts"][0].update(description="other", metadata={})
    changed["users"][1]["tags"] = "monitoring,management"
    changed["parameters"][0]["value"] = {"max-queues": -1}
    assert not imported(harness.broker, changed).refused
    broker = harness.broker
    orders, ann, bob = broker.vhosts["orders"], broker.users.get("ann"), broker.users.get("bob")
    assert orders.queues["q2"].settings.max_length == 7 and orders.settings.description == "other"
    assert ann is not None and bob is not None and ann.permissions["orders"].write == "^y"
    assert bob.tags == ("monitoring", "management") and broker.parameters.limit("orders", "max-queues") is None
    changed["queues"][1]["arguments"] = {"x-queue-type": "classic"}
    changed["exchanges"][0]["type"] = "fanout"
    plan = planned(broker, changed)
    assert refused(plan) == [("exchange", "x"), ("queue", "q2")]
    assert "inequivalent arg 'x-max-priority' for queue 'q2'" in plan.refused[1].reason


def broken() -> dict[str, Any]:
    """One item of each kind that cannot be taken, among good ones."""
    document = everything()
    document["vhosts"].append({"name": "v", "default_queue_type": "wooden"})
    document["users"].append({"name": "eve", "password_hash": "x", "hashing_algorithm": "rot13"})
    document["permissions"].append({"user": "eve", "vhost": "orders", "configure": "", "write": "", "read": ""})
    document["topic_permissions"].append({"user": "ann", "vhost": "v", "exchange": "x", "write": "", "read": ""})
    document["parameters"].append({"vhost": "orders", "component": "shuvel", "name": "s", "value": {}})
    document["global_parameters"].append({"name": "nothing", "value": None})
    document["policies"].append(
        {
            "vhost": "orders",
            "name": "p",
            "pattern": "x",
            "definition": {"max-lenght": 1},
            "apply-to": "all",
            "priority": 0,
        }
    )
    document["exchanges"].append({**document["exchanges"][0], "name": "strange", "type": "x-strange"})
    document["queues"].append({**document["queues"][0], "name": "short", "arguments": {"x-max-length": -5}})
    document["bindings"].append(bound("strange", "q1", "k"))
    return document


REFUSED = [
    ("vhost", "v", "default_queue_type must be one of classic, quorum, stream, not 'wooden'"),
    ("user", "eve", "hashing algorithm 'rot13' is none of"),
    ("permission", "eve", "there is no user 'eve'"),
    ("topic permission", "ann at x", "there is no vhost 'v'"),
    ("parameter", "s", "component 'shuvel' not found; is it 'shovel'?"),
    ("global parameter", "nothing", "value is missing"),
    ("policy", "p", "'max-lenght' is no setting of policies, is it 'max-length'?"),
    ("exchange", "strange", "invalid exchange type 'x-strange'"),
    ("queue", "short", "invalid arg 'x-max-length'"),
    ("binding", "strange -> q1 (k)", "there is no exchange 'strange' in vhost 'orders'"),
]


def test_one_bad_item_is_enough_to_change_nothing_and_all_of_them_are_reported() -> None:
    harness = BrokerHarness()
    before, generation = defined(harness), harness.broker.defined
    plan = imported(harness.broker, broken())
    assert [(r.kind, r.name) for r in plan.refused] == [(kind, name) for kind, name, _ in REFUSED]
    for refusal, (_, _, reason) in zip(plan.refused, REFUSED, strict=True):
        assert refusal.reason.startswith(reason), refusal
    assert harness.broker.defined == generation and defined(harness) == before
    assert set(harness.broker.vhosts) == {"/"}
    assert plan.summary().startswith("10 of 31 definitions cannot be taken: vhost 'v': default_queue_type must be")


def test_with_skip_errors_each_other_item_arrives_whole() -> None:
    one, other = BrokerHarness(), BrokerHarness()
    plan = imported(one.broker, broken(), skip=True)
    assert len(plan.refused) == len(REFUSED) and plan.taken == COUNT
    imported(other.broker, everything())
    assert defined(one) == defined(other)


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
@pytest.mark.parametrize(
    "value", [None, 1, "x", [], {}, {"name": []}, {"name": 1, "vhost": {}}, {"name": "x" * 300}, True]
)
def test_an_item_of_any_form_is_refused_with_words(kind: str, value: Any) -> None:
    plan = imported(BrokerHarness().broker, {kind: [value]}, skip=True)
    assert len(plan.refused) == 1 and plan.refused[0].reason


WRONG: tuple[Any, ...] = (None, 17, "text", ["text"], {"a": {"b": []}}, True, "\ud800", "x" * 70_000, 1e300)


def test_wrong_types_in_any_field_are_refused_or_taken_whole() -> None:
    """Each field of each item in turn becomes a value of another type."""
    good = everything()
    for kind in KINDS:
        for field in good[kind.name][0]:
            for value in WRONG:
                document = copy.deepcopy(good)
                document[kind.name][0][field] = value
                plan = imported(BrokerHarness().broker, document, skip=True)
                assert plan.taken + plan.refusals == COUNT
                assert all(refusal.reason and refusal.name.encode() is not None for refusal in plan.refused)


def test_lists_that_nobody_knows_are_not_lost_in_silence() -> None:
    broker = BrokerHarness().broker
    plan = planned(broker, {"queuse": [{"name": "q"}], "limits": [1], "empty": [], "users": {}, "exchanges": None})
    assert [(r.kind, r.name, r.reason) for r in plan.refused] == [
        ("list", "queuse", "there are no such definitions here; is it 'queues'?"),
        ("list", "users", "it must be a list"),
    ]


def test_a_document_without_any_list_is_refused_with_what_a_broker_said_in_it() -> None:
    """`curl` writes the answer to a wrong password into the file in which the definitions should be."""
    answer = b'{"error":"not_authorized","reason":"Login failed"}'
    with pytest.raises(Malformed, match=r"no definitions.*error 'not_authorized', reason 'Login failed'"):
        planned(BrokerHarness().broker, json.loads(answer))
    with pytest.raises(Malformed, match="no definitions"):
        planned(BrokerHarness().broker, {"rabbit_version": "3.10.8"})
    assert planned(BrokerHarness().broker, {}).taken == 0


def test_an_operator_policy_may_have_its_definition_as_pairs() -> None:
    """`rabbitmqctl export_definitions` of RabbitMQ 3.10 writes it so."""
    value = {"pattern": ".*", "apply-to": "queues", "priority": 0}

    def document(definition: object) -> dict[str, Any]:
        made = {"component": "operator_policy", "vhost": "/", "name": "cap"}
        return {"parameters": [{**made, "value": {**value, "definition": definition}}]}

    harness = BrokerHarness()
    assert not imported(harness.broker, document([["max-length", 9], ["expires", 7]])).refused
    assert harness.broker.vhosts["/"].operator_policies["cap"].definition == {"max-length": 9, "expires": 7}
    for wrong in ([["max-length", 9], ["max-length", 8]], [["max-length"]], [[["max-length"], 9]], ["ab"], []):
        assert planned(harness.broker, document(wrong)).refused


def test_the_same_object_twice_is_refused_the_same_binding_is_not() -> None:
    document = everything()
    document["queues"].append(document["queues"][0])
    document["bindings"] += document["bindings"]
    plan = imported(BrokerHarness().broker, document, skip=True)
    assert refused(plan) == [("queue", "q1")]


def test_a_document_for_one_vhost_goes_into_that_one_whatever_its_items_say() -> None:
    harness = BrokerHarness()
    vhost = harness.broker.add_vhost("here")
    document = {
        key: value for key, value in everything().items() if key in ("queues", "exchanges", "bindings", "policies")
    }
    document["parameters"] = everything()["parameters"]
    for item in document["queues"]:
        del item["vhost"]
    assert not imported(harness.broker, document, vhost).refused
    assert set(vhost.queues) == {"q1", "q2", "amq.gen-1"} and vhost.bindings == 4
    assert harness.broker.parameters.limit("here", "max-queues") == 1000
    plan = planned(harness.broker, {"users": everything()["users"]}, vhost)
    assert [r.reason for r in plan.refused] == [
        "these do not belong to one vhost: import the document for the whole broker"
    ]


def lavinmq() -> dict[str, Any]:
    """What LavinMQ exports: its predeclared exchanges and own bindings too, no policies for operators, tags in one string."""
    exchange = {"vhost": "/", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}
    names = (("", "direct"), ("amq.direct", "direct"), ("amq.fanout", "fanout"), ("amq.topic", "topic"))
    more = (("amq.headers", "headers"), ("amq.match", "headers"), ("events", "fanout"))
    return {
        "lavinmq_version": "2.9.1",
        "users": [
            {"hashing_algorithm": "rabbit_password_hashing_sha256", "name": "liz", "password_hash": salted("x"), "tags": "administrator"},
            {"hashing_algorithm": "rabbit_password_hashing_md5", "name": "old", "password_hash": salted("y", "md5"), "tags": ""},
        ],
        "vhosts": [{"name": "/", "dir": "/var/lib/lavinmq/42099b4a"}],
        "permissions": [{"user": "liz", "vhost": "/", "configure": ".*", "read": ".*", "write": ".*"}],
        "queues": [
            {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-message-ttl": 5}},
            {"name": "passing", "vhost": "/", "durable": False, "auto_delete": True, "arguments": {}},
        ],
        "exchanges": [{**exchange, "name": name, "type": kind} for name, kind in (*names, *more)],
        "bindings": [
            {**bound("", "q", "q", "/"), "properties_key": "q"},
            {**bound("events", "q", "", "/"), "properties_key": "~"},
            {**bound("events", "passing", "", "/"), "arguments": None},
        ],
        "policies": [],
        "parameters": [{"component": "vhost-limits", "vhost": "/", "name": "limits", "value": {"max-queues": 5}}],
        "global_parameters": [],
    }  # fmt: skip


def test_what_lavinmq_exports_arrives() -> None:
    harness = BrokerHarness()
    assert not imported(harness.broker, lavinmq()).refused
    vhost = harness.broker.vhosts["/"]
    assert set(vhost.queues) == {"q", "passing"} and vhost.bindings == 2
    assert harness.broker.parameters.limit("/", "max-queues") == 5


@pytest.mark.parametrize(
    ("kind", "arguments", "key"),
    [
        ("x-delayed-exchange", {"x-delayed-type": "topic"}, "a.#"),
        ("x-delayed-message", {"x-delayed-type": "headers"}, ""),
        ("x-consistent-hash", {"hash-header": "h"}, "3"),
        ("x-modulus-hash", {}, ""),
        ("x-random", {}, ""),
        ("x-recent-history", {"x-recent-history-length": 3}, ""),
    ],
)
def test_exchanges_of_further_types_arrive(kind: str, arguments: dict[str, Any], key: str) -> None:
    common = {"vhost": "/", "durable": True, "auto_delete": False}
    exchange = {"name": "x", **common, "type": kind, "internal": False, "arguments": arguments}
    document = {
        "exchanges": [exchange],
        "queues": [{"name": "q", **common, "arguments": {}}],
        "bindings": [bound("x", "q", key, "/")],
    }
    harness = BrokerHarness()
    assert not imported(harness.broker, document).refused
    assert harness.broker.vhosts["/"].bindings == 1
    assert not imported(harness.broker, document).refused
    if kind == "x-consistent-hash":
        document["bindings"] = [bound("x", "q", "no weight", "/")]
        assert refused(imported(harness.broker, document)) == [("binding", "x -> q (no weight)")]


def test_what_rabbitmq_3_8_exports_arrives() -> None:
    document = everything()
    document["users"] = [
        {
            "name": "ann",
            "password_hash": salted("pw"),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": "administrator",
        }
    ]
    document["vhosts"] = [{"name": "orders"}, {"name": "/"}]
    document["topic_permissions"][0]["write"] = ""
    document["parameters"][0]["value"] = []  # Erlang's JSON of an empty object
    document["queues"][0]["arguments"] = []
    assert not imported(BrokerHarness().broker, document).refused


def test_limits_of_the_broker_are_checked_before_anything_changes() -> None:
    harness = BrokerHarness()
    broker = harness.broker
    broker.max_queues = 2
    plan = imported(broker, everything())
    assert refused(plan) == [("queue", "amq.gen-1")] and "(--max-queues)" in plan.refused[0].reason
    assert not broker.queues
    broker.max_queues, broker.limits = None, limits.of({"bindings_max": 3})
    assert refused(planned(broker, everything())) == [("binding", "amq.direct -> q2 (k)")]
    broker.limits = limits.of({"exchanges_max": 16})
    many = [{**everything()["exchanges"][0], "name": str(number)} for number in range(20)]
    plan = planned(broker, {"vhosts": [{"name": "orders"}], "exchanges": many})
    assert len(plan.refused) == 20 - (16 - len(broker.vhosts["/"].exchanges))
    broker.limits = limits.of({"route_steps_max": 1000})
    headers = [bound("amq.headers", "q", "", "/", arguments={"x-match": "all", "n": n}) for n in range(600)]
    queue = {"name": "q", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    plan = imported(broker, {"queues": [queue], "bindings": headers})
    assert 0 < len(plan.refused) < 600 and "more than 1000 steps" in plan.refused[0].reason and not broker.queues


def test_limits_of_a_vhost_do_not_refuse_what_is_imported_with_them() -> None:
    document = everything()
    document["parameters"][0]["value"] = {"max-queues": 1, "max-connections": 0}
    assert not imported(BrokerHarness().broker, document).refused


def test_an_object_that_goes_away_between_check_and_import_is_reported() -> None:
    harness = BrokerHarness()
    harness.declare("q")
    binding = {"bindings": [bound("amq.direct", "q", "a", "/"), bound("amq.direct", "q", "b", "/")]}
    plan = planned(harness.broker, binding)
    harness.delete("q")
    for _ in plan.apply():
        pass
    assert plan.taken == 0 and len(plan.refused) == 2
    assert plan.refused[0].reason == "no queue 'q' in vhost '/' (since the document was checked)"


@pytest.mark.parametrize("going", [True, False])
def test_nothing_outlives_a_vhost_that_is_deleted_between_check_and_import(going: bool) -> None:
    """A permission that was left behind would be that in the next virtual host of this name."""
    harness = BrokerHarness()
    imported(harness.broker, {"vhosts": everything()["vhosts"], "users": everything()["users"]})
    before = defined(harness)
    plan = planned(harness.broker, everything())
    if going:
        harness.broker.vhosts["orders"].deleting = True
    else:
        harness.broker.delete_vhost("orders")
    for _ in plan.apply():
        pass
    gone = {refusal.kind for refusal in plan.refused if "no vhost 'orders' any more" in refusal.reason}
    there = {"permission", "topic permission", "parameter", "policy", "exchange", "queue", "binding"}
    assert gone >= there if going else gone == set(), plan.refused
    if going:
        left = [key for key in defined(harness).keys() - before.keys() if "orders" in key[1]]
        assert left == []
    else:  # the document has the virtual host, too, so it is there again
        assert not plan.refused and "orders" in harness.broker.vhosts


def test_permissions_in_a_vhost_that_has_gone_are_refused() -> None:
    harness = BrokerHarness()
    harness.broker.add_vhost("v")
    of_vhost = {"user": "guest", "vhost": "v", "configure": "", "write": "", "read": ""}
    document = {
        "permissions": [of_vhost],
        "topic_permissions": [{"user": "guest", "vhost": "v", "exchange": "x", "write": "", "read": ""}],
        "parameters": [{"vhost": "v", "component": "shovel", "name": "s", "value": {}}],
    }
    plan = planned(harness.broker, document)
    harness.broker.delete_vhost("v")
    for _ in plan.apply():
        pass
    assert plan.taken == 0 and len(plan.refused) == 3
    guest = harness.broker.users.get("guest")
    assert (
        guest is not None
        and not guest.may_open("v")
        and not guest.topics
        and not list(harness.broker.parameters.list())
    )


def test_arguments_that_are_nested_too_deeply_are_refused_for_their_item() -> None:
    nested: Any = 1
    for _ in range(limits.TABLE_DEPTH_MAX + 2):
        nested = {"a": nested}
    deep = {"name": "deep", "vhost": "/", "type": "direct", "arguments": nested}
    plan = planned(BrokerHarness().broker, {"exchanges": [deep, {**deep, "name": "flat", "arguments": {}}]})
    assert plan.taken == 1 and [refusal.name for refusal in plan.refused] == ["deep"]
    assert "nested deeper than 32" in plan.refused[0].reason


def test_large_items_are_checked_and_applied_in_pieces_of_their_own() -> None:
    """Ten tables with 1,900 arguments were one piece, and held the loop for 50 ms."""
    arguments = {f"x{number}": number for number in range(1900)}
    items = [{"name": f"e{n}", "vhost": "/", "type": "direct", "arguments": arguments} for n in range(20)]
    plan = Plan(BrokerHarness().broker, Document(json.dumps({"exchanges": items}).encode()))
    assert sum(1 for _ in plan.read()) > len(items)
    assert not plan.refused and sum(1 for _ in plan.apply()) > 4 * len(items)


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_in_the_middle_leaves_a_beginning_and_a_second_import_does_the_rest(seed: int) -> None:
    rng = Random(seed)
    whole = BrokerHarness()
    imported(whole.broker, everything())
    order = list(defined(whole))
    harness = BrokerHarness()
    harness.settle_down()
    plan = planned(harness.broker, everything())
    end = rng.randrange(COUNT)
    while len(plan._todo) > end:
        apply = plan._todo.popleft()[-1]
        for _ in apply(harness.broker) or ():
            pass
        if rng.random() < 0.2:
            harness.settle_down()
    if rng.random() < 0.5:
        harness.cut(rng)
    else:
        harness.kill()
    found = list(defined(harness))
    assert sorted(map(repr, found)) == sorted(map(repr, order[: len(found)])), "a beginning, in the order of the import"
    assert not imported(harness.broker, everything()).refused
    assert defined(harness) == defined(whole)


def test_an_existing_policy_is_replaced_in_place_and_applied_to_existing_queues() -> None:
    harness = BrokerHarness()
    queue = harness.declare("q")
    harness.broker.vhosts["/"].set_policy(POLICY, policy("p", {"pattern": "q", "definition": {"max-length": 1}}))
    item = {
        "vhost": "/",
        "name": "p",
        "pattern": "q",
        "definition": {"max-length": 2},
        "apply-to": "all",
        "priority": 0,
    }
    assert not imported(harness.broker, {"policies": [item]}).refused
    assert queue.settings.max_length == 2


def test_keys_of_a_large_document_are_spread_over_small_sets() -> None:
    """A set that grows moves all its keys in one step, which held the loop for milliseconds."""
    keys, given = Keys(), [("/", "amq.topic", object(), f"key.{number}", ()) for number in range(50_000)]
    for key in given[::2]:
        keys.add(key)
    assert [key in keys for key in given] == [True, False] * 25_000
    assert max(map(len, keys.parts)) < 3 * 25_000 / len(keys.parts)


def test_an_exchange_that_deduplicates_is_taken_once_and_with_arguments_that_it_can_have() -> None:
    harness = BrokerHarness()
    document = everything()
    arguments = {"x-message-deduplication": True, "x-cache-size": 5}
    document["exchanges"].append({**document["exchanges"][0], "name": "once", "arguments": arguments})
    assert not imported(harness.broker, document).refused
    vhost = harness.broker.vhosts[document["exchanges"][0]["vhost"]]
    passage = vhost.exchanges["once"].passage
    assert passage is not None and passage.table.capacity == 5
    assert not imported(harness.broker, document).refused and vhost.exchanges["once"].passage is passage
    for wrong, reason in (
        (6, "inequivalent arg 'x-cache-size'"),
        (0, "invalid arg 'x-cache-size' for exchange 'once'"),
    ):
        document["exchanges"][-1]["arguments"] = {**arguments, "x-cache-size": wrong}
        [refusal] = imported(harness.broker, document).refused
        assert refusal.reason.startswith(reason)


def test_the_pieces_of_an_import_do_not_depend_on_hashes() -> None:
    """Each part of its keys was freed in a piece of its own, so that the same seed of the simulation had 1,223 or 1,625 operations."""
    world = World(BrokerHarness().broker)
    for number in range(3 * FREED):
        world.seen.add(("queue", f"q{number}"))
    assert len(list(world.empty())) == 3 and not any(world.seen.parts)
