"""Deletes queues, exchanges and virtual hosts, as jobs (broker/jobs.py), since there may be a million bindings or 100,000 queues.

From the first piece on, `VHost.going` lists the queue or exchange, and nothing can be bound to it any more. It can still be used until
the last piece takes it out of the virtual host. A small deletion is done in the first piece, at once.

The definition of what is to go is deleted last, after those of its bindings or of all that is in the virtual host. Before the first of
these goes, it is written once more, with a mark: if the broker ends in the middle, the next start goes on (`Broker.start`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvitto.broker import walls
from kvitto.broker.administration import delaying
from kvitto.broker.jobs import Cost
from kvitto.broker.routing.exchange import Exchange

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.consumer import Consumer
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.vhost import VHost

BINDING = 20
"""The measured costs of deleting one object of each kind, in the units of jobs.PIECE."""
EXCHANGE = 40
QUEUE = 60
CONSUMER = 15

Steps = Iterator[bool]


def delete_queue(queue: Queue, cost: Cost) -> Steps:
    """Delete the queue and its messages. A separate job cancels its consumers."""
    vhost = queue.vhost
    if vhost.queues.get(queue.name) is queue and vhost.going.get(queue) is None:
        yield from _run(vhost, queue, _delete_queue(vhost, queue, cost))


def _delete_queue(vhost: VHost, queue: Queue, cost: Cost) -> Steps:
    unused: list[Exchange] = []
    yield from _unbind(vhost, queue, cost, unused)
    vhost.remove(queue)
    if cost.spend(QUEUE):
        yield True
    yield from _delete_exchanges(vhost, [], unused, cost)


def delete_queues(queues: list[Queue]) -> Steps:
    """Delete several queues: the exclusive ones of a connection that has ended, or those that were unused for too long."""
    cost = Cost()
    for queue in queues:
        queue.vhost.going.setdefault(queue, None)
    for queue in queues:
        steps = delete_queue(queue, cost)
        while walls.run(queue, next, steps, False):
            yield True


def delete_exchange(vhost: VHost, exchange: Exchange, cost: Cost) -> Steps:
    """Delete the exchange, and then the auto-delete exchanges that have lost their last binding by that, and so on."""
    yield from _delete_exchanges(vhost, [exchange], [], cost)


def _delete_exchanges(vhost: VHost, asked: list[Exchange], unused: list[Exchange], cost: Cost) -> Steps:
    """The exchanges in `unused` lost their last binding in an earlier piece. Those with a new binding since then are kept."""
    while asked or unused:
        if unused:
            exchange = unused.pop()
            if not exchange.unused:
                continue
        else:
            exchange = asked.pop()
        if vhost.exchanges.get(exchange.name) is exchange and vhost.going.get(exchange) is None:
            yield from _run(vhost, exchange, _delete_exchange(vhost, exchange, cost, unused))


def _delete_exchange(vhost: VHost, exchange: Exchange, cost: Cost, unused: list[Exchange]) -> Steps:
    yield from unbind_from(vhost, exchange, cost)
    yield from _unbind(vhost, exchange, cost, unused)
    vhost.remove(exchange)
    if cost.spend(EXCHANGE):
        yield True


def _run(vhost: VHost, thing: Queue | Exchange, steps: Steps) -> Steps:
    """Run the steps, and note them in `going` so that a caller who needs the name can finish them at once."""
    vhost.going[thing] = steps = _or_stay(vhost, thing, steps)
    if vhost.is_bound(thing):
        vhost.define_going(thing)
    yield from steps
    if vhost.is_durable(thing):
        vhost.broker.defined += 1  # the last steps may have been run by a caller that needed the name


def _or_stay(vhost: VHost, thing: Queue | Exchange, steps: Steps) -> Steps:
    """Run the steps. If they fail, whoever runs them, the thing stays and may get messages: the next start must not delete it."""
    try:
        yield from steps
    except Exception:
        del vhost.going[thing]
        if thing in (vhost.queues.get(thing.name), vhost.exchanges.get(thing.name)):
            vhost.define_going(thing)
        raise
    finally:
        vhost.going.pop(thing, None)


def unbind_from(vhost: VHost, exchange: Exchange, cost: Cost) -> Steps:
    """Remove every binding from an exchange."""
    while (dest := exchange.last_dest()) is not None:
        vhost.drop_binding(exchange, dest)
        if cost.spend(BINDING):
            yield True


def _unbind(vhost: VHost, dest: Queue | Exchange, cost: Cost, unused: list[Exchange]) -> Steps:
    """Remove every binding to a destination, and add the auto-delete exchanges that are now unused to `unused`."""
    while (exchange := vhost.last_source(dest)) is not None:
        vhost.drop_binding(exchange, dest)
        if exchange.auto_delete and exchange.unused:
            unused.append(exchange)
        if cost.spend(BINDING):
            yield True


def dismiss(consumers: list[Consumer]) -> Steps:
    """Cancel the consumers of a deleted queue. This comes after the delete-ok, which a consumer's own connection may wait for."""
    yield True
    cost = Cost()
    for consumer in consumers:
        if consumer.active:
            consumer.queue_gone()
        if cost.spend(CONSUMER):
            yield True


def clear_vhost(vhost: VHost) -> Steps:
    """Delete all queues, exchanges and bindings.

    Predeclared exchanges have no definitions, unless they delay, but their bindings do.
    """
    yield from delete_queues(list(vhost.queues.values()))
    cost = Cost()
    exchanges = [x for x in vhost.exchanges.values() if x.name and not x.name.startswith("amq.")]
    yield from _delete_exchanges(vhost, exchanges, [], cost)
    for exchange in list(vhost.exchanges.values()):
        yield from unbind_from(vhost, exchange, cost)
    vhost.clear_policies()
    for exchange in vhost.exchanges.values():
        delaying.release(vhost, exchange)


def begin(vhost: VHost) -> None:
    """Write that the virtual host is being deleted, before anything of it goes."""
    if not vhost.deleting:
        vhost.deleting = True
        vhost.broker.define_vhost(vhost)


def delete_vhost(broker: Broker, vhost: VHost) -> Steps:
    """Delete a virtual host. It cannot be opened from the first piece on, and its name is free after the last one."""
    begin(vhost)
    yield from clear_vhost(vhost)
    broker.stages.forget_vhost(vhost)
    yield from clear_vhost(vhost)  # timers and others may have added something meanwhile
    broker.forget_vhost(vhost)


def at_once(steps: Steps) -> None:
    """Run all steps without a pause."""
    for _ in steps:
        pass
