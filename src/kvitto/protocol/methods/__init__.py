"""Every method that is not handled in place by the scan: one function each, found by the method's class.

A handler gets (connection, channel, method), answers with `connection.send`, and raises ChannelError or ConnectionError_.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import CHANNEL_ERROR, COMMAND_INVALID, ConnectionError_
from kvitto.protocol.methods import basic, channel, connection, exchange, log, queue, stage, tx
from kvitto.wire.methods import ChannelCloseOk, ChannelOpen, Method

if TYPE_CHECKING:
    from kvitto.protocol.channel import Channel
    from kvitto.protocol.connection import Connection

Handler = Callable[[Any, Any, Any], None]

HANDLERS: dict[type[Method], Handler] = {
    **channel.HANDLERS,
    **exchange.HANDLERS,
    **queue.HANDLERS,
    **basic.HANDLERS,
    **tx.HANDLERS,
    **log.HANDLERS,
    **stage.HANDLERS,
}


def dispatch(conn: Connection, number: int, chan: Channel | None, method: Method) -> None:
    """Call the handler of a method that came in on channel `number`."""
    kind = type(method)
    if number == 0:
        handler = connection.HANDLERS.get(kind)
        if handler is None:
            raise ConnectionError_(COMMAND_INVALID, f"{method.NAME} is not allowed on channel 0")
        handler(conn, method)
        return
    if kind is ChannelOpen:
        channel.open_(conn, number, chan)
        return
    if chan is None:
        if kind is ChannelCloseOk:
            return
        raise ConnectionError_(CHANNEL_ERROR, f"expected 'channel.open' on channel {number}, got {method.NAME}")
    handler_ = HANDLERS.get(kind)
    if handler_ is None:
        raise ConnectionError_(COMMAND_INVALID, f"{method.NAME} is not allowed from a client")
    handler_(conn, chan, method)
