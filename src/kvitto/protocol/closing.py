"""The end of a channel: its consumers go, a transaction is rolled back, and what is unacked goes back to its queues (A6).

That may be very much, so it is done in pieces. Meanwhile the queues deliver nothing: what comes back is older than what waits,
and would otherwise be overtaken by it. When one step fails, the others are still done.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreError
from kvitto.broker import walls

if TYPE_CHECKING:
    from kvitto.protocol.channel import Channel

log = logging.getLogger("kvitto.amqp")

CONSUMERS_PER_PIECE = 100


def steps(c: Channel) -> Iterator[None]:
    """What is left to do for a channel that is `closing`."""
    consumers, c.consumers = list(c.consumers.values()), {}
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
    c.tx = c.crowd = None  # they lead back to the channel, and would wait for the garbage collector


def give_back(c: Channel) -> Iterator[None]:
    """Everything unacked goes back. A queue that does not take its messages is out of service, and the others have theirs."""
    while True:
        try:
            if c.tx is not None:
                c.tx.rollback()
            yield from c.requeue_all()
            return
        except StoreError:
            raise
        except Exception as error:
            if c.blame(error) is None:
                text = "%s: not all that it held can be given back before a restart"
                log.error(text, c.connection.peer, exc_info=error)
                return
