"""Deleting queues, exchanges and virtual hosts, as jobs (broker/jobs.py): there may be a million bindings, or 100,000 queues.

What is being deleted is in `VHost.going` from the first piece on: nothing can be bound to it any more. It can be used until its last
piece, which takes it out of the virtual host; its definition goes with that, after those of its bindings, so that after a crash there
is either the thing with some of its bindings or nothing. What has little to be taken away is gone with the first piece, at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvitto.broker import walls
from kvitto.broker.jobs import Cost
from kvitto.broker.routing.exchange import Exchange

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.consumer import Consumer
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.vhost import VHost

BINDING = 20
"""The costs of deleting one thing of each kind, in the units of jobs.PIECE; they were measured."""
EXCHANGE = 40
QUEUE = 60
CONSUMER = 15

Steps = Iterator[bool]


def delete_queue(queue: Queue, cost: Cost) -> Steps:
    """Take the queue away from everybody, and its messages with it. Those who consume from it hear of it in a job of its own."""
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
    """The exclusive queues of a connection that has ended, or those that nobody has used for too long."""
    cost = Cost()
    for queue in queues:
        queue.vhost.going.setdefault(queue, None)
    for queue in queues:
        steps = delete_queue(queue, cost)
        while walls.run(queue, next, steps, False):
            yield True


def delete_exchange(vhost: VHost, exchange: Exchange, cost: Cost) -> Steps:
    """Also the exchanges that delete themselves when nothing is bound to them any more, and so on."""
    yield from _delete_exchanges(vhost, [exchange], [], cost)


def _delete_exchanges(vhost: VHost, asked: list[Exchange], unused: list[Exchange], cost: Cost) -> Steps:
    """`unused` lost their last binding in an earlier piece: those that somebody has bound again since then stay."""
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
    """Note in `going` how to end this at once."""
    vhost.going[thing] = steps
    try:
        yield from steps
    finally:
        vhost.going.pop(thing, None)
    if vhost.is_durable(thing):
        vhost.broker.defined += 1  # somebody else may have done the last of the steps, to have the name


def unbind_from(vhost: VHost, exchange: Exchange, cost: Cost) -> Steps:
    """Remove every binding from an exchange."""
    while (dest := exchange.last_dest()) is not None:
        vhost.drop_binding(exchange, dest)
        if cost.spend(BINDING):
            yield True


def _unbind(vhost: VHost, dest: Queue | Exchange, cost: Cost, unused: list[Exchange]) -> Steps:
    """Remove every binding to a destination; `unused` gets the exchanges that are to delete themselves now."""
    while (exchange := vhost.last_source(dest)) is not None:
        vhost.drop_binding(exchange, dest)
        if exchange.auto_delete and exchange.unused:
            unused.append(exchange)
        if cost.spend(BINDING):
            yield True


def dismiss(consumers: list[Consumer]) -> Steps:
    """Tell the consumers of a deleted queue. Who has deleted it, and consumes from it, hears the answer first."""
    yield True
    cost = Cost()
    for consumer in consumers:
        if consumer.active:
            consumer.queue_gone()
        if cost.spend(CONSUMER):
            yield True


def clear_vhost(vhost: VHost) -> Steps:
    """Everything in it, and every binding: the predeclared exchanges have no definition, but bindings of theirs have."""
    yield from delete_queues(list(vhost.queues.values()))
    cost = Cost()
    exchanges = [x for x in vhost.exchanges.values() if x.name and not x.name.startswith("amq.")]
    yield from _delete_exchanges(vhost, exchanges, [], cost)
    for exchange in list(vhost.exchanges.values()):
        yield from unbind_from(vhost, exchange, cost)
    vhost.clear_policies()


def delete_vhost(broker: Broker, vhost: VHost) -> Steps:
    """Nobody opens it any more from the first piece on; its name is free after the last one."""
    vhost.deleting = True
    yield from clear_vhost(vhost)
    broker.stages.forget_vhost(vhost)
    yield from clear_vhost(vhost)  # what timers and others have made meanwhile
    broker.forget_vhost(vhost)


def at_once(steps: Steps) -> None:
    """Where there is no need, or no time, for pieces."""
    for _ in steps:
        pass
