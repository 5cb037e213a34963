"""What there is at the old broker, what of it the new one has, and what cannot be brought. The definitions are posted here, too."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvitto.base.table import counted
from kvitto.broker.administration import inert
from kvitto.cli.management import IMPORT_S, NOT_ALLOWED, SHOWN_MAX, USAGE, Failure, Management
from kvitto.cli.migrate.brokers import Broker, check_apis
from kvitto.shovel.carry import Tally

KINDS = {
    "vhosts": ("name",),
    "users": ("name",),
    "permissions": ("user", "vhost"),
    "topic_permissions": ("user", "vhost", "exchange"),
    "parameters": ("component", "vhost", "name"),
    "global_parameters": ("name",),
    "policies": ("vhost", "name"),
    "exchanges": ("vhost", "name"),
    "queues": ("vhost", "name"),
    "bindings": ("vhost", "source", "destination", "destination_type", "routing_key"),
}
"""The parts of a definitions document, and what tells two of their objects apart."""
TRANSIENT = ("exchanges", "queues", "bindings")
"""The kinds of which some may be gone after a restart."""
SAME_START_MS = 6000
"""RabbitMQ counts its uptime every five seconds."""
TEMPORARY = "kvitto.migrate."
"""How the names of exchanges begin that exist while the messages of a queue are moved."""


@dataclass
class Item:
    """A queue with messages to move."""

    vhost: str
    name: str
    stream: bool
    ready: int
    unacked: int
    consumers: int
    bytes_each: int
    """The mean size of a message, 0 if it is not known."""
    moves: bool
    """Whether its messages are moved: it is in the pattern, and not exclusive."""
    problem: str = ""
    """Why messages are left, or the counts differ."""
    notes: list[str] = field(default_factory=list)
    once: bool | None = None
    """Whether its messages arrive once, None as long as nobody knows."""
    state: str = "waits"
    before: int | None = None
    """Messages at the target when this run began, and behind it when it had ended. None if nobody has asked."""
    after: int | None = None
    tally: Tally = field(default_factory=Tally)

    @property
    def label(self) -> str:
        return f"queue '{self.name}' in vhost '{self.vhost}'"


@dataclass
class Plan:
    source: Broker
    target: Broker
    definitions: dict[str, Any] = field(default_factory=dict)
    """What is posted."""
    new: dict[str, int] = field(default_factory=dict)
    """How many objects of each kind the target lacks."""
    items: list[Item] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    messages: bool = True
    """Whether messages are moved, too."""

    def target_vhost(self, vhost: str) -> str:
        return self.target.vhost or vhost


def make_plan(source: Broker, target: Broker, pattern: re.Pattern[str], *, definitions: bool, messages: bool) -> Plan:
    """Ask both brokers. Nothing is changed."""
    plan = Plan(source, target, messages=messages)
    for each in (source, target):
        overview = _overview(each)
        product = "Kvitto" if "kvitto" in overview else overview.get("product_name", "RabbitMQ")
        version = overview["kvitto"]["version"] if "kvitto" in overview else overview.get("product_version", "")
        each.product = f"{product} {version or overview.get('rabbitmq_version', '')}".strip()
    if target.vhost is not None and source.vhost is None:
        raise Failure(USAGE, "--to names a virtual host: name the one of the old broker, too")
    if target.vhost in (None, source.vhost) and _is_same(source.api, target.api):
        raise Failure(USAGE, "the old and the new broker are the same, under two addresses")
    _check_vhost(source)
    plan.notes += check_apis(source, target, required=messages)
    if definitions:
        _plan_definitions(plan)
    if messages:
        _plan_queues(plan, pattern)
    return plan


def _overview(broker: Broker) -> Any:
    try:
        return broker.api.get("overview")
    except Failure as failure:
        if failure.code != NOT_ALLOWED:
            raise
        hint = broker.no_password or f"is it the API of {broker.address.server}?"
        raise Failure(NOT_ALLOWED, f"{failure}; {hint}") from None


def _check_vhost(broker: Broker) -> None:
    """Raise Failure if the virtual host that is meant is not there."""
    known = [item["name"] for item in broker.api.get("vhosts")]
    if broker.vhost is not None and broker.vhost not in known:
        shown = ", ".join(f"'{name}'" for name in sorted(known)[:SHOWN_MAX]) or "none"
        more = f", and {len(known) - SHOWN_MAX} more" if len(known) > SHOWN_MAX else ""
        text = f"there is no vhost '{broker.vhost}' at {broker.address.server}; user '{broker.api.user}' sees {shown}{more}"
        raise Failure(USAGE, text)


def _is_same(one: Management, other: Management) -> bool:
    """Whether two addresses lead to one broker, whose messages would go around for ever: both have the same process, with one start."""
    try:
        (first, began), (second, begun) = _process(one), _process(other)
    except Failure:  # this user may not see the nodes
        return False
    return first == second and abs(began - begun) < SAME_START_MS


def _process(api: Management) -> tuple[dict[str, Any], float]:
    """Return what tells a broker's process from others, and the time of its start."""
    now_ms = time.monotonic() * 1000
    nodes = api.get("nodes")
    up_ms = max((node.get("uptime", 0) for node in nodes), default=0)
    return {node["name"]: (node.get("os_pid"), node.get("db_dir")) for node in nodes}, now_ms - up_ms


def _plan_definitions(plan: Plan) -> None:
    where = () if plan.source.vhost is None else (plan.source.vhost,)
    found: dict[str, Any] = plan.source.api.get("definitions", *where)
    _leave_out_users(plan, found)
    _leave_out_temporary(found)
    plan.definitions = found
    _count_new(plan)
    _name_inert(plan)


def _leave_out_users(plan: Plan, found: dict[str, Any]) -> None:
    """The command's own user at the target keeps its password. Only Kvitto takes the password hashes of Kvitto."""
    own, foreign = plan.target.address.user, not plan.target.product.startswith("Kvitto")
    users = found.get("users", [])
    kept = [user for user in users if user.get("name") != own]
    if len(kept) != len(users):
        plan.notes.append(f"user '{own}' stays as it is at the new broker, because this command uses it")
    hashed = {user["name"] for user in kept if foreign and str(user.get("hashing_algorithm")).startswith("kvitto")}
    if hashed:
        _note_hashed(plan, hashed)
    if users:
        found["users"] = [user for user in kept if user["name"] not in hashed]
    for kind in ("permissions", "topic_permissions"):
        if kind in found:
            found[kind] = [item for item in found[kind] if item.get("user") not in hashed]


def _note_hashed(plan: Plan, hashed: set[str]) -> None:
    """Tell users that the target has, for whom nothing needs to be done, from those who need a password."""
    there = hashed & {user["name"] for user in plan.target.api.get("users")}
    if there:
        one = len(there) == 1
        plan.notes.append(
            f"{counted(len(there), 'user')} with Kvitto's own password {'hash stays' if one else 'hashes stay'} unchanged at the "
            f"new broker, which has {'this user' if one else 'these users'} already: password and permissions are those of there"
        )
    if new := sorted(hashed - there):
        names = ", ".join(f"'{name}'" for name in new)
        users, hashes = ("user", "hash") if len(new) == 1 else ("users", "hashes")
        plan.notes.append(
            f"not brought: {users} {names}. Only Kvitto knows the password {hashes}: add the {users} at "
            "the new broker with a password, and with the permissions, which are not brought either"
        )


def _leave_out_temporary(found: dict[str, Any]) -> None:
    """Exchanges of a migration that came here and was interrupted are not brought on."""
    for kind, name in (("exchanges", "name"), ("bindings", "source")):
        if kind in found:
            found[kind] = [item for item in found[kind] if not str(item.get(name, "")).startswith(TEMPORARY)]


def _count_new(plan: Plan) -> None:
    has: dict[str, Any] = {}
    vhost = plan.target.vhost or plan.source.vhost
    if vhost is None or any(item["name"] == vhost for item in plan.target.api.get("vhosts")):
        has = plan.target.api.get("definitions", *(() if vhost is None else (vhost,)))
    for kind, all_names in KINDS.items():
        # in a document of one virtual host, which may have another name at the target, nothing names it
        names = [name for name in all_names if vhost is None or name != "vhost"]
        there = _keys(has.get(kind, []), names)
        new = [key for key in _keys(plan.definitions.get(kind, []), names) if key not in there]
        if new and has and kind in TRANSIENT:  # transient ones are not among the definitions of each broker
            query = f"?columns={','.join(all_names)}"
            there = _keys(plan.target.api.get(kind, *(() if vhost is None else (vhost,)), query=query), names)
            new = [key for key in new if key not in there]
        if plan.definitions.get(kind):
            plan.new[kind] = len(new)


def _keys(items: list[dict[str, Any]], names: Iterable[str]) -> set[tuple[str, ...]]:
    """Return the values that identify each of these objects among those of its kind."""
    return {tuple(str(item.get(name)) for name in names) for item in items}


def _name_inert(plan: Plan) -> None:
    """Name what the new broker keeps without effect, and what is known to be refused."""
    if not plan.target.product.startswith("Kvitto"):
        return
    for policy in plan.definitions.get("policies", []):
        keys = [key for key in policy.get("definition", {}) if key in inert.POLICY]
        if keys:
            plan.notes.append(f"policy '{policy.get('name')}': {', '.join(keys)} has no effect on one node")
    for parameter in plan.definitions.get("parameters", []):
        if parameter.get("component") not in ("shovel", "policy", "operator_policy", "vhost-limits"):
            plan.notes.append(f"parameter '{parameter.get('name')}' of {parameter.get('component')} has no effect")


def post_definitions(plan: Plan) -> None:
    """Post the definitions, and see to it that the user of the target may move messages there."""
    api, vhost = plan.target.api, plan.target.vhost or plan.source.vhost
    if vhost is not None and not any(item["name"] == vhost for item in api.get("vhosts")):
        api.put("vhosts", vhost)
    try:
        where = () if vhost is None else (vhost,)
        content = json.dumps(plan.definitions).encode()
        answer = api.upload("definitions", *where, content=content, timeout_s=IMPORT_S)
    except Failure as failure:
        raise Failure(
            failure.code, f"the definitions were not taken: {failure} (--skip-definitions moves messages only)"
        ) from None
    if isinstance(answer, dict):
        plan.notes.extend(f"definitions, taken without effect: {text}" for text in texts(answer))
    user = plan.target.address.user
    for name in {plan.target_vhost(item.vhost) for item in plan.items if item.moves}:
        if api.get("permissions", name, user, accept=(404,)).get("configure") is None:
            api.put("permissions", name, user, body={"configure": ".*", "write": ".*", "read": ".*"})
            plan.notes.append(
                f"user '{user}' has got permissions in vhost '{name}' of the new broker, to bring messages; "
                f"take them away with: kvitto ctl clear_permissions -p {name} {user}"
            )


def texts(answer: dict[str, Any]) -> list[str]:
    """Return the sentences of a report on an import, whatever its keys are."""
    found: list[str] = []
    for value in answer.values():
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            found.extend(str(item) for item in value if isinstance(item, str))
    return found


def _plan_queues(plan: Plan, pattern: re.Pattern[str]) -> None:
    where = () if plan.source.vhost is None else (plan.source.vhost,)
    for queue in plan.source.api.get("queues", *where):
        if not pattern.search(queue["name"]):
            continue
        item = Item(
            queue["vhost"],
            queue["name"],
            queue.get("type") == "stream" or queue.get("arguments", {}).get("x-queue-type") == "stream",
            queue.get("messages_ready", 0),
            queue.get("messages_unacknowledged", 0),
            queue.get("consumers", 0),
            queue.get("message_bytes", 0) // max(1, queue.get("messages", 0)),
            not queue.get("exclusive"),
        )
        if not item.moves:
            item.state = "left"
            item.notes.append("exclusive: it ends with its connection, which has to declare it anew")
        elif not queue.get("durable", True):
            item.notes += _note_transient(plan, item)
        if item.moves and item.consumers:
            item.notes.append(
                f"{counted(item.consumers, 'consumer')} may take messages, too: stop them, else both sides work on them"
            )
        if item.unacked and not item.stream:
            item.notes.append(_note_unacked(plan, item))
        if item.stream and item.ready:
            item.notes += _note_stream(plan, item)
        plan.items.append(item)
    plan.items.sort(key=lambda item: (item.vhost, item.name))
    for exchange in plan.source.api.get("exchanges", *where):
        label = f"exchange '{exchange['name']}' in vhost '{exchange['vhost']}'"
        if delayed := exchange.get("messages_delayed"):
            plan.notes.append(
                f"{label} holds {counted(delayed, 'delayed message')}, which AMQP cannot read: wait until all are due"
            )
        if passing := exchange.get("messages_passing"):
            plan.notes.append(
                f"{label} has {counted(passing, 'message')} on the way to its queues: wait until all have arrived"
            )


def _at_target(plan: Plan, item: Item) -> dict[str, Any]:
    """Return what the new broker says of the queue with an item's name, nothing if there is none."""
    found = plan.target.api.get("queues", plan.target_vhost(item.vhost), item.name, accept=(404,))
    return found if isinstance(found, dict) and found.get("name") == item.name else {}


def _note_transient(plan: Plan, item: Item) -> list[str]:
    found = _at_target(plan, item)
    brought = any(
        queue.get("name") == item.name and queue.get("vhost", item.vhost) == item.vhost
        for queue in plan.definitions.get("queues", [])
    )
    if not found and not brought:
        return ["transient, and not in the definitions of the old broker: declare it at the new one"]
    if found.get("durable"):
        return []
    return ["transient: it and its messages are gone at the next restart of the new broker"]


def _note_unacked(plan: Plan, item: Item) -> str:
    unacked = counted(item.unacked, "message")
    verb = "is" if item.unacked == 1 else "are"
    if item.consumers or not plan.source.product.startswith("Kvitto"):
        return f"{unacked} {verb} unacked: a consumer keeps its messages until it ends"
    return (
        f"{unacked} {verb} unacked, without a consumer: what an interrupted run has reserved is taken over by the next one, and "
        "what somebody got with basic.get stays until that connection ends"
    )


def _note_stream(plan: Plan, item: Item) -> list[str]:
    there = _at_target(plan, item).get("messages", 0)
    if not there:
        return []
    return [
        f"this stream has {counted(there, 'message')} at the new broker: what an earlier run in the same direction brought is not "
        "brought again, and all else is. Leave the stream out with --queues if they would come twice, as on the way back"
    ]
