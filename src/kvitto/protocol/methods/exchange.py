"""exchange.declare, delete, bind, unbind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvitto.broker.administration.operations import refuse_default
from kvitto.protocol.methods.queue import one_line
from kvitto.wire.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
)

if TYPE_CHECKING:
    from kvitto.protocol.channel import Channel
    from kvitto.protocol.connection import Connection


def declare(conn: Connection, chan: Channel, m: ExchangeDeclare) -> None:
    m.exchange = one_line(m.exchange)
    if m.passive:
        refuse_default(m.exchange)
        conn.vhost.exchange(m.exchange)
    else:
        conn.operations.declare_exchange(m.exchange, m.type, m.durable, m.auto_delete, m.internal, m.arguments)
    if not m.no_wait:
        conn.send(chan.number, ExchangeDeclareOk())


def delete(conn: Connection, chan: Channel, m: ExchangeDelete) -> None:
    steps = conn.operations.delete_exchange(one_line(m.exchange), m.if_unused)

    def answer() -> None:
        if not m.no_wait:
            conn.send(chan.number, ExchangeDeleteOk())

    conn.perform(steps, answer, channel=chan, method=m)


def bind(conn: Connection, chan: Channel, m: ExchangeBind) -> None:
    source, dest = one_line(m.source), one_line(m.destination)
    conn.spend(conn.operations.bind(source, "exchange", dest, m.routing_key, m.arguments))
    if not m.no_wait:
        conn.send(chan.number, ExchangeBindOk())


def unbind(conn: Connection, chan: Channel, m: ExchangeUnbind) -> None:
    source, dest = one_line(m.source), one_line(m.destination)
    conn.operations.unbind(source, "exchange", dest, m.routing_key, m.arguments)
    if not m.no_wait:
        conn.send(chan.number, ExchangeUnbindOk())


HANDLERS: dict[type[Method], Callable[[Any, Any, Any], None]] = {
    ExchangeDeclare: declare,
    ExchangeDelete: delete,
    ExchangeBind: bind,
    ExchangeUnbind: unbind,
}
