"""queue.declare, bind, unbind, purge, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import NOT_FOUND, ChannelError
from kvitto.broker import walls
from kvitto.broker.administration.admission import DIRECT_REPLY_TO
from kvitto.wire.methods import (
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.protocol.channel import Channel
    from kvitto.protocol.connection import Connection


def one_line(name: str) -> str:
    """A name as RabbitMQ takes it where it is declared, bound or deleted: without CR and LF."""
    return name.replace("\r", "").replace("\n", "")


def named(chan: Channel, name: str) -> str:
    """ "" means the queue that this channel declared last."""
    if name:
        return name
    if not chan.last_queue:
        raise ChannelError(NOT_FOUND, "no previously declared queue")
    return chan.last_queue


def declare(conn: Connection, chan: Channel, m: QueueDeclare) -> None:
    m.queue = one_line(m.queue)
    if m.queue == DIRECT_REPLY_TO or conn.hub.replies.is_address(m.queue):
        conn.send(chan.number, QueueDeclareOk(m.queue, 0, 1))
        return
    if m.passive:
        queue = conn.vhost.queue(named(chan, m.queue), conn)
        queue.used_ms = conn.broker.timers.now_ms
    else:
        name = m.queue or None
        queue, new = conn.operations.declare_queue(name, m.durable, m.exclusive, m.auto_delete, m.arguments)
        if m.exclusive and new:
            conn.queues[queue] = None
    chan.last_queue = queue.name
    walls.within(queue, _count, queue)
    if not m.no_wait:
        conn.send(chan.number, QueueDeclareOk(queue.name, queue.ready, len(queue.consumers)))


def _count(queue: Queue) -> None:
    """Deliver to the present consumers and drop expired messages, so that `ready` counts what a new consumer could get."""
    queue.pump()
    if queue.may_expire:
        queue.expire()


def bind(conn: Connection, chan: Channel, m: QueueBind) -> None:
    name, key = _target(chan, m.queue, m.routing_key)
    conn.spend(conn.operations.bind(one_line(m.exchange), "queue", name, key, m.arguments))
    if not m.no_wait:
        conn.send(chan.number, QueueBindOk())


def unbind(conn: Connection, chan: Channel, m: QueueUnbind) -> None:
    name, key = _target(chan, m.queue, m.routing_key)
    conn.operations.unbind(one_line(m.exchange), "queue", name, key, m.arguments)
    conn.send(chan.number, QueueUnbindOk())


def _target(chan: Channel, queue: str, routing_key: str) -> tuple[str, str]:
    """Name of the queue, and the binding's key."""
    queue = one_line(queue)
    name = named(chan, queue)
    # No queue and no key: the key is the last queue's name (AMQP 0-9-1, queue.bind).
    return name, routing_key or ("" if queue else name)


def purge(conn: Connection, chan: Channel, m: QueuePurge) -> None:
    count, steps = conn.operations.purge_queue(named(chan, m.queue))

    def answer() -> None:
        if not m.no_wait:
            conn.send(chan.number, QueuePurgeOk(count))

    conn.perform(steps, answer, channel=chan, method=m)


def delete(conn: Connection, chan: Channel, m: QueueDelete) -> None:
    count, steps = conn.operations.delete_queue(named(chan, one_line(m.queue)), m.if_unused, m.if_empty)

    def answer() -> None:
        if not m.no_wait:
            conn.send(chan.number, QueueDeleteOk(count))

    conn.perform(steps, answer, channel=chan, method=m)


HANDLERS: dict[type[Method], Callable[[Any, Any, Any], None]] = {
    QueueDeclare: declare,
    QueueBind: bind,
    QueueUnbind: unbind,
    QueuePurge: purge,
    QueueDelete: delete,
}
