"""queue.declare, bind, unbind, purge, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ACCESS_REFUSED, NOT_FOUND, ChannelError
from kvitto.broker import walls
from kvitto.broker.admission import DIRECT_REPLY_TO
from kvitto.broker.removal import Steps
from kvitto.broker.vhost import generated_name
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
    from kvitto.broker.queue import Queue
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
    if m.queue == DIRECT_REPLY_TO or conn.hub.is_reply_address(m.queue):
        conn.send(chan.number, QueueDeclareOk(m.queue, 0, 1))
        return
    vhost = conn.vhost
    if m.passive:
        queue = vhost.queue(named(chan, m.queue), conn)
        queue.used_ms = conn.hub.broker.timers.now_ms
    else:
        name = m.queue or generated_name()
        conn.authorise("configure", name, "queue")
        known = name in vhost.queues
        exchange = m.arguments.get("x-dead-letter-exchange")
        if isinstance(exchange, str) and not known:
            conn.authorise("read", name, "queue")
            conn.authorise("write", exchange, "exchange")
        queue = vhost.declare_queue(
            name, m.durable, m.exclusive, m.auto_delete, m.arguments, conn, generated=not m.queue
        )
        if m.exclusive and not known:
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
    name, exchange, key = _target(conn, chan, m.queue, m.exchange, m.routing_key)
    conn.vhost.bind(exchange, conn.vhost.queue(name, conn), key, m.arguments)
    if not m.no_wait:
        conn.send(chan.number, QueueBindOk())


def unbind(conn: Connection, chan: Channel, m: QueueUnbind) -> None:
    name, exchange, key = _target(conn, chan, m.queue, m.exchange, m.routing_key)
    # What is not there is not bound: fine, as with RabbitMQ. Clients unbind what was deleted automatically.
    if name in conn.vhost.queues and exchange in conn.vhost.exchanges:
        conn.vhost.unbind(exchange, conn.vhost.queue(name, conn), key, m.arguments)
    conn.send(chan.number, QueueUnbindOk())


def _target(conn: Connection, chan: Channel, queue: str, exchange: str, routing_key: str) -> tuple[str, str, str]:
    """Names of the queue and of the exchange, and the binding's key, once this user may touch both ends."""
    queue, exchange = one_line(queue), one_line(exchange)
    name = named(chan, queue)
    if exchange == "":
        raise ChannelError(ACCESS_REFUSED, "operation not permitted on the default exchange")
    conn.authorise("write", name, "queue")
    conn.authorise("read", exchange, "exchange")
    # No queue and no key: the key is the last queue's name (AMQP 0-9-1, queue.bind).
    return name, exchange, routing_key or ("" if queue else name)


def purge(conn: Connection, chan: Channel, m: QueuePurge) -> None:
    name = named(chan, m.queue)
    conn.authorise("read", name, "queue")
    queue = conn.vhost.queue(name, conn)
    count, steps = walls.within(queue, queue.purging)

    def answer() -> None:
        if not m.no_wait:
            conn.send(chan.number, QueuePurgeOk(count))

    conn.perform(steps, answer, channel=chan, method=m)


def delete(conn: Connection, chan: Channel, m: QueueDelete) -> None:
    name = named(chan, one_line(m.queue))
    conn.authorise("configure", name, "queue")
    count = 0
    steps: Steps = iter(())
    if name in conn.vhost.queues:
        queue = conn.vhost.queue(name, conn)
        count, steps = queue.ready, conn.vhost.queue_deletion(queue, m.if_unused, m.if_empty)

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
