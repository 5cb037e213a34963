"""Channel life, flow, and confirm.select."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import (
    CHANNEL_ERROR,
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    ChannelError,
    ConnectionError_,
)
from kvitto.broker.administration.parameters import MAX_CHANNELS, bounded
from kvitto.protocol.channel import Channel
from kvitto.wire.methods import (
    AccessRequest,
    AccessRequestOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    Method,
)

if TYPE_CHECKING:
    from kvitto.protocol.connection import Connection


WOKEN_PER_US = 8
"""How many consumers are woken in a microsecond."""


def open_(conn: Connection, number: int, chan: Channel | None) -> None:
    if chan is not None:
        raise ConnectionError_(CHANNEL_ERROR, f"second 'channel.open' seen on channel {number}")
    # channel_max limits how many there are, whatever their numbers, as with RabbitMQ.
    if len(conn.channels) >= conn.channel_max:
        text = f"number of channels opened ({len(conn.channels)}) has reached the negotiated channel_max ({conn.channel_max})"
        raise ConnectionError_(NOT_ALLOWED, text, limit="channels")
    if conn.hub.channels >= conn.broker.limits.channels_max:
        text = f"all connections together have {conn.broker.limits.channels_max} channels, the limit"
        raise ConnectionError_(RESOURCE_ERROR, text, limit="channels")
    _check_user_limit(conn)
    conn.channels[number] = Channel(conn, number)
    conn.hub.channels += 1
    conn.hub.channels_made += 1
    conn.forget_last()
    conn.send(number, ChannelOpenOk())


def _check_user_limit(conn: Connection) -> None:
    """Raises ConnectionError_ 530 if the user has as many channels, on all connections, as an administrator allows."""
    most = bounded(conn.user.limits, MAX_CHANNELS)
    if most is None:
        return
    opened = conn.hub.connections
    conn.spend(len(opened) // WOKEN_PER_US)
    if sum(len(c.channels) for c in opened if c.user is conn.user) >= most:
        text = f"number of channels opened for user '{conn.user.name}' has reached the maximum allowed user limit of ({most})"
        raise ConnectionError_(NOT_ALLOWED, text, limit="channels")


def close(conn: Connection, chan: Channel, _method: ChannelClose) -> None:
    def done() -> None:
        conn.forget_channel(chan.number)
        conn.send(chan.number, ChannelCloseOk())

    conn.perform(conn.close_channel(chan), done)


def flow(conn: Connection, chan: Channel, method: ChannelFlow) -> None:
    chan.flow = method.active
    if chan.flow:
        chan.wake()
        conn.spend(len(chan.consumers) // WOKEN_PER_US)
    conn.send(chan.number, ChannelFlowOk(method.active))


def confirm_select(conn: Connection, chan: Channel, method: ConfirmSelect) -> None:
    if chan.tx is not None:
        raise ChannelError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    chan.confirm = True
    if not method.no_wait:
        conn.send(chan.number, ConfirmSelectOk())


def access_request(conn: Connection, chan: Channel, _method: AccessRequest) -> None:
    """Answer access.request, which AMQP 0-9-1 no longer has but old clients send."""
    conn.send(chan.number, AccessRequestOk(1))


def nothing(_conn: Connection, _chan: Channel, _method: Method) -> None:
    """Answers that need no answer."""


HANDLERS: dict[type[Method], Callable[[Any, Any, Any], None]] = {
    ChannelClose: close,
    ChannelCloseOk: nothing,
    ChannelFlow: flow,
    ChannelFlowOk: nothing,
    ConfirmSelect: confirm_select,
    AccessRequest: access_request,
}
