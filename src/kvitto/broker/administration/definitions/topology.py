"""Items that are exchanges, queues and bindings. What exists already must be equal, since none of them can be changed.

Each function checks one item against the world after the import, and returns what applies it, or None if there is nothing to do.
`plan.py` calls them. They are applied as the broker itself, through the operations that AMQP uses.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kvitto.base.limits import FILES_PER_QUEUE
from kvitto.broker.administration.arguments import EQUIVALENCE_ARGUMENTS, queue_settings
from kvitto.broker.administration.definitions.fields import Fields, Refused
from kvitto.broker.administration.definitions.settings import Apply, in_vhost, still_there
from kvitto.broker.administration.definitions.world import PlannedExchange, PlannedQueue, World
from kvitto.broker.administration.operations import Kind, Operations
from kvitto.broker.administration.queue_types import TYPE, with_default
from kvitto.broker.broker import Broker
from kvitto.broker.queues.stream import check_stream
from kvitto.broker.routing import exchange as exchanges
from kvitto.broker.routing.delayed import DELAYED_MESSAGE
from kvitto.broker.routing.exchange import Exchange
from kvitto.broker.vhost import GENERATED, VHost

RESERVED = "amq."
LAVINMQ_DELAYED = "x-delayed-exchange"
"""The type under which LavinMQ exports an exchange that delays. It declares it as RabbitMQ's."""


def _operations(broker: Broker, where: str) -> Operations:
    return Operations(still_there(broker, where), None)


# -- exchanges -----------------------------------------------------------------------------------------------


def exchange(world: World, item: Fields, where: VHost | None) -> Apply | None:
    name, vhost = one_line(item.text("name")), in_vhost(world, item, where)
    world.once("exchange", vhost.name, name)
    kind, arguments = item.text("type"), item.table("arguments")
    kind = DELAYED_MESSAGE if kind == LAVINMQ_DELAYED else kind
    flags = item.flag("durable"), item.flag("auto_delete"), item.flag("internal")
    exchanges.check_declare(name, vhost.name, kind, arguments)
    exchanges.check_deduplication(name, vhost.name, kind, arguments)
    existing = vhost.exchanges.get(name)
    if existing is not None and existing not in vhost.going:
        exchanges.check_equivalent(existing, vhost.name, kind, *flags, arguments)
        return None
    if not name:
        raise Refused("name is empty")
    if name.startswith(RESERVED):
        raise Refused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
    count = world.new_exchanges.get(vhost.name, 0) + 1
    if len(vhost.exchanges) + count > world.broker.limits.exchanges_max:
        raise Refused(f"vhost '{vhost.name}' has {world.broker.limits.exchanges_max} exchanges, the limit")
    made = Exchange(name, kind, durable=flags[0], auto_delete=flags[1], internal=flags[2], arguments=arguments)
    world.note_inert("argument of exchanges", arguments, exchanges.honoured_arguments(kind, arguments))
    world.exchanges[vhost.name, name] = PlannedExchange(made)
    world.new_exchanges[vhost.name] = count
    return partial(_declare_exchange, vhost.name, name, kind, flags, arguments)


def _declare_exchange(
    where: str, name: str, kind: str, flags: tuple[bool, bool, bool], arguments: dict[str, Any], broker: Broker
) -> None:
    _operations(broker, where).declare_exchange(name, kind, *flags, arguments)


# -- queues --------------------------------------------------------------------------------------------------


def queue(world: World, item: Fields, where: VHost | None) -> Apply | None:
    name, vhost = one_line(item.name()), in_vhost(world, item, where)
    world.once("queue", vhost.name, name)
    durable, auto_delete, arguments = item.flag("durable"), item.flag("auto_delete"), item.table("arguments")
    if item.flag("exclusive"):
        raise Refused("a queue that is exclusive to a connection cannot be imported")
    generated = name.startswith(GENERATED)
    lasting = durable and not (auto_delete or generated)
    effective = with_default(arguments, world.settings_of(vhost).default_queue_type, lasting)
    existing = vhost.queues.get(name)
    if existing is not None and existing not in vhost.going:
        vhost.check_same(existing, durable, False, auto_delete, effective)
        return None
    if name.startswith(RESERVED) and not generated:
        raise Refused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    queue_settings(name, vhost.name, effective, durable)
    if effective.get("x-queue-type") == "stream":
        check_stream("" if generated else name, vhost.name, durable, False, auto_delete)
    _check_room(world)
    world.note_inert("argument of queues", arguments, (TYPE, *EQUIVALENCE_ARGUMENTS))
    world.queues[vhost.name, name] = PlannedQueue(name, durable, auto_delete, effective)
    return partial(_declare_queue, vhost.name, name, durable, auto_delete, arguments)


def _check_room(world: World) -> None:
    """Raises Refused if no further queue would have room."""
    broker, planned = world.broker, len(world.queues)
    if broker.max_queues is not None and len(broker.queues) + planned >= broker.max_queues:
        raise Refused(f"the limit of {broker.max_queues} queues is reached (--max-queues)")
    if broker.file_room() < FILES_PER_QUEUE * (planned + 1):
        raise Refused("the broker has no file descriptors left for it (ulimit -n)")


def _declare_queue(
    where: str, name: str, durable: bool, auto_delete: bool, arguments: dict[str, Any], broker: Broker
) -> None:
    _operations(broker, where).declare_exported_queue(name, durable, auto_delete, arguments)


# -- bindings ------------------------------------------------------------------------------------------------


def binding(world: World, item: Fields, where: VHost | None) -> Apply | None:
    vhost = in_vhost(world, item, where)
    source, dest, key = one_line(item.text("source")), one_line(item.name("destination")), item.text("routing_key", "")
    arguments = item.table("arguments")
    kind: Kind = "exchange" if item.one_of("destination_type", ("queue", "exchange")) == "exchange" else "queue"
    target: Any = world.queue(vhost, dest) if kind == "queue" else world.exchange(vhost, dest)
    if source == "":
        if kind == "queue" and key == dest and not arguments:
            return None  # LavinMQ exports the binding that each queue has by itself
        raise Refused("nothing can be bound to the default exchange")
    if not world.bind(vhost, source, target, key, arguments):
        return None
    return partial(_bind, vhost.name, source, kind, dest, key, arguments)


def _bind(where: str, source: str, kind: Kind, dest: str, key: str, arguments: dict[str, Any], broker: Broker) -> None:
    _operations(broker, where).bind(source, kind, dest, key, arguments)


def one_line(name: str) -> str:
    """Return a name without line ends, as AMQP declares it."""
    return name.replace("\r", "").replace("\n", "")
