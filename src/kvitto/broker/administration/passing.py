"""Gives an exchange that deduplicates its passage, and takes it away with the exchange (broker/queues/passage.py). `VHost` calls it.

The definition of a durable exchange says which queue it is, so a start finds it again before it replays the journal.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from kvitto.broker.administration.argument_reader import InvalidArgument
from kvitto.broker.administration.arguments import Deduplication, QueueSettings
from kvitto.broker.administration.equivalence import describe
from kvitto.broker.queues.passage import Passage
from kvitto.broker.routing.deduplicated import deduplication_of

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.routing.exchange import Exchange
    from kvitto.broker.vhost import VHost

log = logging.getLogger("kvitto.broker")


def _wanted(vhost: VHost, exchange: Exchange) -> Deduplication | None:
    """Return how the exchange compares messages, None if it does not. An older version may have stored arguments that it cannot have."""
    try:
        return deduplication_of(exchange.type, exchange.arguments)
    except InvalidArgument as error:
        log.error("%s does not deduplicate: %s", describe("exchange", exchange.name, vhost.name), error)
        return None


def check(vhost: VHost, exchange: Exchange) -> None:
    """Raises ChannelError 406 if a new exchange deduplicates, and no other queue may be made for it."""
    if not vhost.broker.restoring and _wanted(vhost, exchange) is not None:
        vhost.broker.check_queues(f"passage of exchange '{exchange.name}'", vhost.name)


def follow(vhost: VHost, exchange: Exchange) -> None:
    """Give a new exchange its passage, if it deduplicates. The caller writes its definition."""
    if not vhost.broker.restoring:
        attach(vhost, exchange, secrets.token_hex(16))


def attach(vhost: VHost, exchange: Exchange, queue_id: str) -> bool:
    """Make the passage of an exchange, for a new one or for a start. Returns False if the exchange does not deduplicate."""
    wanted = _wanted(vhost, exchange)
    if wanted is None:
        return False
    opened = vhost.broker.open_log(queue_id, exchange.durable)
    exchange.passage = Passage(vhost.broker, vhost, opened, QueueSettings(deduplication=wanted), exchange)
    vhost.broker.queues[queue_id] = exchange.passage
    vhost.changed()
    return True


def started(broker: Broker) -> None:
    """Give passages to exchanges that an older version has stored with the argument, which had no effect there."""
    for vhost in broker.vhosts.values():
        for exchange in vhost.exchanges.values():
            if exchange.passage is None and attach(vhost, exchange, secrets.token_hex(16)):
                vhost.define_exchange(exchange)


def detach(vhost: VHost, exchange: Exchange) -> None:
    """Delete the passage with its messages. The caller has deleted the definition of the exchange before."""
    queue, exchange.passage = exchange.passage, None
    if queue is not None:
        vhost.broker.drop_hidden(queue)
