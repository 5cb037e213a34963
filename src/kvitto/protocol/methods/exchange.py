"""exchange.declare, delete, bind, unbind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ACCESS_REFUSED, ChannelError
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
    _refuse_default(m.exchange)
    if m.passive:
        conn.vhost.exchange(m.exchange)
    else:
        conn.authorise("configure", m.exchange, "exchange")
        alternate = m.arguments.get("alternate-exchange")
        if isinstance(alternate, str) and m.exchange not in conn.vhost.exchanges:
            conn.authorise("read", m.exchange, "exchange")
            conn.authorise("write", alternate, "exchange")
        conn.vhost.declare_exchange(m.exchange, m.type, m.durable, m.auto_delete, m.internal, m.arguments)
    if not m.no_wait:
        conn.send(chan.number, ExchangeDeclareOk())


def delete(conn: Connection, chan: Channel, m: ExchangeDelete) -> None:
    m.exchange = one_line(m.exchange)
    conn.authorise("configure", m.exchange, "exchange")

    def answer() -> None:
        if not m.no_wait:
            conn.send(chan.number, ExchangeDeleteOk())

    conn.perform(conn.vhost.exchange_deletion(m.exchange, m.if_unused), answer, channel=chan, method=m)


def bind(conn: Connection, chan: Channel, m: ExchangeBind) -> None:
    m.destination, m.source = one_line(m.destination), one_line(m.source)
    _refuse_default(m.destination, m.source)
    conn.authorise("write", m.destination, "exchange")
    conn.authorise("read", m.source, "exchange")
    conn.vhost.bind(m.source, conn.vhost.exchange(m.destination), m.routing_key, m.arguments)
    if not m.no_wait:
        conn.send(chan.number, ExchangeBindOk())


def unbind(conn: Connection, chan: Channel, m: ExchangeUnbind) -> None:
    m.destination, m.source = one_line(m.destination), one_line(m.source)
    _refuse_default(m.destination, m.source)
    conn.authorise("write", m.destination, "exchange")
    conn.authorise("read", m.source, "exchange")
    # What is not there is not bound: fine, as with RabbitMQ.
    if m.destination in conn.vhost.exchanges and m.source in conn.vhost.exchanges:
        conn.vhost.unbind(m.source, conn.vhost.exchange(m.destination), m.routing_key, m.arguments)
    if not m.no_wait:
        conn.send(chan.number, ExchangeUnbindOk())


def _refuse_default(*names: str) -> None:
    if "" in names:
        raise ChannelError(ACCESS_REFUSED, "operation not permitted on the default exchange")


HANDLERS: dict[type[Method], Callable[[Any, Any, Any], None]] = {
    ExchangeDeclare: declare,
    ExchangeDelete: delete,
    ExchangeBind: bind,
    ExchangeUnbind: unbind,
}
