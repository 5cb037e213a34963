"""Gives an exchange that delays its hidden queue, and takes it away with the exchange (broker/queues/delay_queue.py). `VHost` calls it.

The definition of a durable exchange says which queue it is, so a start finds it again before it replays the journal.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from kvitto.base.errors import ChannelError
from kvitto.broker.queues.delay_queue import DelayQueue
from kvitto.broker.routing.delayed import DelayedIndex

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.routing.exchange import Exchange
    from kvitto.broker.vhost import VHost


log = logging.getLogger("kvitto.broker")


def follow(vhost: VHost, exchange: Exchange) -> bool:
    """Do what the arguments and the policy of an exchange ask for now. Returns whether its definition was written for that.

    If a policy was deleted, no further message waits, and those that wait are routed when they are due.
    """
    fresh = exchange.delays and exchange.waiting is None and not vhost.broker.restoring
    if fresh and exchange.policy is not None and not exchange.declared_to_delay:
        try:
            check(vhost, exchange)
        except ChannelError as error:
            log.error("exchange %r in vhost %r does not delay: %s", exchange.name, vhost.name, error.reply_text)
            exchange.delays = False
            return False
    if fresh:
        attach(vhost, exchange, secrets.token_hex(16))
        vhost.define_exchange(exchange)
    index = exchange.index
    if exchange.delays and not isinstance(index, DelayedIndex):
        index = exchange.index = DelayedIndex(index)
        vhost.changed()
    if isinstance(index, DelayedIndex):
        index.queue = exchange.waiting if exchange.delays else None
    return fresh


def started(broker: Broker) -> None:
    """Give exchanges that delay their queues, if the broker ended between a change of a policy and the change of their definitions.

    Predeclared exchanges get their policies here, since nothing restores them.
    """
    for vhost in broker.vhosts.values():
        for exchange in vhost.exchanges.values():
            if exchange.name.startswith("amq."):
                exchange.take_policy(vhost.policy_of_exchange(exchange.name))
            if exchange.delays:
                follow(vhost, exchange)


def check(vhost: VHost, exchange: Exchange) -> None:
    """Raises ChannelError 406 if the exchange delays, and no other queue may be made for it."""
    if exchange.delays and not vhost.broker.restoring:
        vhost.broker.check_queues(f"delayed messages of exchange '{exchange.name}'", vhost.name)


def attach(vhost: VHost, exchange: Exchange, queue_id: str) -> None:
    """Make the queue, for a new exchange or for a start."""
    log = vhost.broker.open_log(queue_id, exchange.durable)
    queue = exchange.waiting = DelayQueue(vhost.broker, vhost, log, exchange)
    vhost.broker.queues[queue_id] = queue


def release(vhost: VHost, exchange: Exchange) -> None:
    """Take the queue away from a predeclared exchange, whose definition says nothing else, because the virtual host is being deleted."""
    if exchange.waiting is not None:
        vhost.broker.undefine("exchange", (vhost.name, exchange.name))
        detach(vhost, exchange)


def detach(vhost: VHost, exchange: Exchange) -> None:
    """Delete the queue with the messages that wait. The definition of the exchange has been deleted before."""
    queue = exchange.waiting
    if queue is None:
        return
    exchange.waiting = None
    if isinstance(exchange.index, DelayedIndex):
        exchange.index.queue = None
    vhost.broker.drop_hidden(queue)
