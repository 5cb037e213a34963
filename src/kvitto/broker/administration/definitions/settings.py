"""Items that are settings: virtual hosts, users, permissions, policies and parameters. Later ones replace earlier ones, as with RabbitMQ.

Each function checks one item against the world after the import, and returns what applies it, or None if there is nothing to do.
`plan.py` calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from kvitto.base.limits import KIB
from kvitto.broker.administration import parameters
from kvitto.broker.administration.auth import Hash, Permission
from kvitto.broker.administration.definitions.fields import Fields, Refused
from kvitto.broker.administration.definitions.world import World
from kvitto.broker.administration.parameters import OF_USERS, InvalidParameter, check_limits
from kvitto.broker.administration.policies import HONOURED_POLICY, policy
from kvitto.broker.administration.policing import check_room, set_policy
from kvitto.broker.administration.topics import TopicPermission
from kvitto.broker.broker import Broker
from kvitto.broker.routing.patterns import PATTERN_MAX
from kvitto.broker.vhost import OPERATOR_POLICY, POLICY, VHost
from kvitto.broker.vhost_settings import QUEUE_TYPES, VHostSettings

Apply = Callable[[Broker], Iterable[object] | None]
"""Applies an item at once, or returns the steps of a job that does."""
DESCRIPTION_MAX = 4 * KIB


def vhost(world: World, item: Fields, _where: VHost | None) -> Apply | None:
    name = item.name()
    world.once("vhost", name)
    known = world.vhosts.get(name)
    if known is None and name in world.broker.vhosts:
        raise Refused(f"vhost '{name}' is being deleted")
    before = VHostSettings() if known is None else known.settings
    settings = _vhost_settings(item, Fields(item.object("metadata")), before)
    world.add_vhost(name, settings)
    return partial(_apply_vhost, name, settings)


def _vhost_settings(item: Fields, metadata: Fields, before: VHostSettings) -> VHostSettings:
    """Read what RabbitMQ has on top level since 3.8, and in `metadata` since 3.10 too. What is not given stays as it is."""
    description = item.text(
        "description", metadata.text("description", before.description, DESCRIPTION_MAX), DESCRIPTION_MAX
    )
    tags = item.names("tags") if item.has("tags") else metadata.names("tags") if metadata.has("tags") else before.tags
    kind = item.text("default_queue_type", metadata.text("default_queue_type", ""))
    if kind in ("", "undefined"):
        kind = before.default_queue_type
    kind = kind.removeprefix("rabbit_").removesuffix(
        "_queue"
    )  # RabbitMQ 3.10 and 3.11 write the name of an Erlang module
    if kind not in QUEUE_TYPES:
        raise Refused(f"default_queue_type must be one of {', '.join(QUEUE_TYPES)}, not {kind!r}")
    protected = item.flag("protected_from_deletion", metadata.flag("protected_from_deletion", before.protected))
    return VHostSettings(description, tags, kind, item.flag("tracing", before.tracing), protected)


def _apply_vhost(name: str, settings: VHostSettings, broker: Broker) -> None:
    if name in broker.vhosts:
        still_there(broker, name)
    broker.add_vhost(name, settings)


def still_there(broker: Broker, name: str) -> VHost:
    """Return a virtual host. Raises Refused if it has gone since the document was checked, or is going: nothing may outlive it."""
    found = broker.vhosts.get(name)
    if found is None or found.deleting:
        raise Refused(f"there is no vhost '{name}' any more")
    return found


def user(world: World, item: Fields, _where: VHost | None) -> Apply:
    name = item.name()
    world.once("user", name)
    if not item.has("password_hash") and item.has("password"):
        raise Refused("a document has password_hash, not password: kvitto ctl add_user adds a user with a password")
    given = Hash.of(item.text("password_hash", "", KIB), item.text("hashing_algorithm", ""))
    given.check(world.broker.users.foreign_hashes)
    tags = item.names("tags")
    try:
        limits = check_limits(item.object("limits"), OF_USERS)
    except InvalidParameter as error:
        raise Refused(str(error)) from None
    world.users.add(name)
    return partial(_apply_user, name, given, tags, limits)


def _apply_user(name: str, given: Hash, tags: tuple[str, ...], limits: dict[str, int], broker: Broker) -> None:
    users = broker.users
    found = users.get(name)
    if found is None:
        users.add_with_hash(name, given, tags, limits)
        return
    users.set_hash(name, given)
    if found.tags != tags:
        users.set_tags(name, tags)
    users.set_limits(name, limits)


def permission(world: World, item: Fields, _where: VHost | None) -> Apply | None:
    name, where = world.user(item.name("user")), world.vhost(item.name("vhost")).name
    world.once("permission", name, where)
    configure, write, read = (item.text(operation, most=PATTERN_MAX) for operation in ("configure", "write", "read"))
    made = Permission.of(configure, write, read)
    known = world.broker.users.get(name)
    if known is not None and known.permissions.get(where) == made:
        return None
    return partial(_apply_permission, name, where, made)


def _apply_permission(name: str, where: str, made: Permission, broker: Broker) -> None:
    broker.users.set_permission(name, still_there(broker, where).name, made.configure, made.write, made.read)


def topic_permission(world: World, item: Fields, _where: VHost | None) -> Apply | None:
    name, where = world.user(item.name("user")), world.vhost(item.name("vhost")).name
    exchange = item.text("exchange")
    world.once("topic permission", name, where, exchange)
    write, read = item.text("write", most=PATTERN_MAX), item.text("read", most=PATTERN_MAX)
    made = TopicPermission.of(name, where, write, read)
    known = world.broker.users.get(name)
    if known is not None and known.topics.get(where, {}).get(exchange) == made:
        return None
    return partial(_apply_topic_permission, name, where, exchange, write, read)


def _apply_topic_permission(name: str, where: str, exchange: str, write: str, read: str, broker: Broker) -> None:
    broker.users.set_topic_permission(name, still_there(broker, where).name, exchange, write, read)


def in_vhost(world: World, item: Fields, where: VHost | None) -> VHost:
    """Return the virtual host of an item: that of the whole document, or the one that the item names."""
    return where if where is not None else world.vhost(item.name("vhost"))


def a_policy(world: World, item: Fields, where: VHost | None) -> Apply | None:
    value = {name: item.any(name) for name in ("pattern", "definition", "apply-to", "priority") if item.has(name)}
    return _policy(world, in_vhost(world, item, where), POLICY, item.name(), value)


def _policy(world: World, where: VHost, kind: str, name: str, value: Any) -> Apply | None:
    world.once(kind, where.name, name)
    made = policy(name, Fields(value).whole(), kind == OPERATOR_POLICY)
    planned = world.policy_costs.get(where.name, 0)
    world.policy_costs[where.name] = planned + check_room(where, kind, made, planned)
    world.note_inert("policy setting", made.definition, HONOURED_POLICY)
    known = where.policies_by_name(kind).get(name)
    if known is not None and known.value() == made.value():
        return None
    return partial(_apply_policy, where.name, kind, name, made.value())


def _apply_policy(where: str, kind: str, name: str, value: dict[str, Any], broker: Broker) -> Iterator[object]:
    return set_policy(still_there(broker, where), kind, policy(name, value, kind == OPERATOR_POLICY))


def parameter(world: World, item: Fields, where: VHost | None) -> Apply | None:
    component, name, owner = item.name("component"), item.name(), in_vhost(world, item, where)
    value = item.any("value")
    if component in (OPERATOR_POLICY, POLICY):
        return _policy(world, owner, component, name, _with_object(value))
    world.once("parameter", owner.name, component, name)
    if component == parameters.VHOST_LIMITS and value == []:  # how Erlang's JSON writes an empty object
        value = {}
    world.broker.parameters.check(owner.name, component, name, value)
    world.note_inert("component", (component,), world.broker.parameters.components)
    if parameters.is_same(world.broker.parameters.get(owner.name, component, name), value):
        return None
    return partial(_apply_parameter, owner.name, component, name, value)


def _with_object(value: Any) -> Any:
    """Return a policy whose definition is an object. `rabbitmqctl` of RabbitMQ 3.10 writes those of operators as pairs."""
    pairs = value.get("definition") if isinstance(value, dict) else None
    if not isinstance(pairs, list):
        return value
    if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs):
        return value
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Refused("a setting is twice in its definition")
    return {**value, "definition": made}


def _apply_parameter(where: str, component: str, name: str, value: Any, broker: Broker) -> None:
    broker.parameters.set(still_there(broker, where).name, component, name, value)


def global_parameter(world: World, item: Fields, _where: VHost | None) -> Apply | None:
    name = item.name()
    world.once("global parameter", name)
    value = item.any("value")
    if name == "cluster_name":
        return partial(_apply_cluster_name, Fields({"cluster_name": value}).name("cluster_name"))
    if value is None:
        raise Refused("value is missing")
    return partial(_apply_global, name, value)


def _apply_global(name: str, value: Any, broker: Broker) -> None:
    broker.parameters.set_global(name, value)


def _apply_cluster_name(name: str, broker: Broker) -> None:
    if broker.cluster_name != name:
        broker.set_cluster_name(name)
