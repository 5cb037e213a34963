"""Direct reply-to: messages for a name amq.rabbitmq.reply-to.* go straight to the channel that waits for them, through no queue."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from kvitto.broker.routing.route import Route
from kvitto.wire.buf import Buf
from kvitto.wire.methods import BasicDeliver

if TYPE_CHECKING:
    from kvitto.protocol.channel import Channel

REPLY_PREFIX = "amq.rabbitmq.reply-to."
REPLIES_MAX = 8 << 20
"""Above this number of bytes that wait for a socket, direct replies to it are unroutable, because they have no queue to wait in."""


class Replies:
    def __init__(self) -> None:
        self.unroutable = 0
        """The number of messages without a queue or a channel that waits for them."""
        self._repliers: dict[str, Channel] = {}
        self._addresses: dict[Channel, str] = {}

    def address_of(self, channel: Channel) -> str:
        """Return the name of the reply queue that stands for this channel's consumer of direct reply-to."""
        name = self._addresses.get(channel)
        if name is None:
            name = self._addresses[channel] = REPLY_PREFIX + secrets.token_urlsafe(24)
            self._repliers[name] = channel
        return name

    def is_address(self, name: str) -> bool:
        """Whether some channel waits for replies under this name."""
        return name in self._repliers

    def deliver(self, route: Route, props: bytes, body: bytes | Buf) -> bool:
        """Hand a message for a direct reply-to name to the channel that waits for it."""
        channel = None if route.exchange else self._repliers.get(route.routing_key)
        if (
            channel is None
            or channel.closing
            or channel.reply_tag is None
            or channel.output.backlog() > REPLIES_MAX
            or len(props) > channel.output.properties_max
        ):
            self.unroutable += 1
            return False
        tag, channel.next_tag = channel.next_tag, channel.next_tag + 1
        method = BasicDeliver(channel.reply_tag, tag, False, "", route.routing_key)
        channel.output.put_method(channel.number, method.encode())
        channel.output.put_content_bytes(channel.number, props, body)
        return True

    def forget(self, channel: Channel) -> None:
        """Forget a channel that is closed, or no longer waits for replies."""
        name = self._addresses.pop(channel, None)
        if name is not None:
            del self._repliers[name]
