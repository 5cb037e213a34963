"""Ends a channel: removes its consumers, rolls back its transaction, and returns unacked messages to their queues (A6).

There may be very many messages, so it works in pieces. The queues deliver nothing meanwhile, because the messages that come back
are older than those that wait and must not be overtaken. If one step fails, the others are still done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvitto.base.errors import ChannelError, StoreError
from kvitto.broker import walls

if TYPE_CHECKING:
    from kvitto.protocol.channel import Channel

log = logging.getLogger("kvitto.amqp")

CONSUMERS_PER_PIECE = 100
PIECE = 300
CHANNEL = 20
"""Cost of ending a channel, in units of about a microsecond, beside its consumers and what is unacked."""


def all_steps(ending: list[tuple[Channel, Iterator[None]]]) -> Iterator[None]:
    """End the channels of a connection. No queue delivers before all of them have given their messages back, so that the order holds."""
    left = PIECE
    queues = {consumer.queue for c, _ in ending for consumer in c.slots if consumer is not None}
    for queue in queues:
        queue.begin_return()
    try:
        for c, each in ending:
            left -= CHANNEL + 3 * len(c.consumers) + c.unacked // 10
            yield from each
            if left <= 0:
                left = PIECE
                yield
    finally:
        for queue in queues:
            queue.end_return()


def steps(c: Channel) -> Iterator[None]:
    """What is left to do for a channel that is `closing`."""
    c.count_published()
    consumers, c.consumers = list(c.consumers.values()), {}
    c.connection.consumers -= len(consumers)
    with c.returning():
        for number, consumer in enumerate(consumers, 1):
            consumer.active = False
            consumer.waits_no_more()
            walls.run(consumer.queue, consumer.queue.remove_consumer, consumer)
            if not number % CONSUMERS_PER_PIECE:
                yield
        yield from give_back(c)
        for number, consumer in enumerate(consumers, 1):
            walls.run(consumer.queue, consumer.queue.vhost.consumer_left, consumer.queue)
            if not number % CONSUMERS_PER_PIECE:
                yield
    c.tx = c.crowd = None  # they refer to the channel, and this cycle would wait for the garbage collector


def give_back(c: Channel) -> Iterator[None]:
    """Return all unacked messages. A queue that fails is taken out of service, and the other queues still get theirs."""
    while True:
        try:
            if c.tx is not None:
                yield from c.tx.rollback()
            yield from c.requeue_all()
            return
        except ChannelError:  # a queue has failed in a later piece
            pass
        except Exception as error:
            if c.blame(error) is None:
                if isinstance(error, StoreError):
                    raise
                text = "%s: not all that it held can be given back before a restart"
                log.error(text, c.connection.peer, exc_info=error)
                return
