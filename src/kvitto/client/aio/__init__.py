"""The asyncio client: `async with kvitto.connect(url) as connection`. docs/client.md describes it."""

from kvitto.client.aio.channel import Channel
from kvitto.client.aio.connection import Connection, Opening, connect
from kvitto.client.aio.consumer import Consumer
from kvitto.client.aio.core import IncomingMessage
from kvitto.client.aio.errors import (
    AlreadySettled,
    Closed,
    CommitUnknown,
    ManyFailed,
    Nacked,
    NotSupported,
    PublishFailed,
    PublishUnknown,
    Returned,
)
from kvitto.client.aio.events import (
    Blocked,
    ChannelFailed,
    ConnectAttemptFailed,
    ConsumerFailed,
    Disconnected,
    Event,
    MessageReturned,
    Reconnected,
    TopologyFailed,
    Unblocked,
)
from kvitto.client.aio.groups import Group, Held
from kvitto.client.aio.message import Message
from kvitto.client.aio.queue import Exchange, Queue
from kvitto.client.aio.ranges import Offsets, RangeReader
from kvitto.client.aio.rpc import RPC
from kvitto.client.aio.stages import Stage

__all__ = [
    "AlreadySettled",
    "Blocked",
    "Channel",
    "ChannelFailed",
    "Closed",
    "CommitUnknown",
    "ConnectAttemptFailed",
    "Connection",
    "Consumer",
    "ConsumerFailed",
    "Disconnected",
    "Event",
    "Exchange",
    "Group",
    "Held",
    "IncomingMessage",
    "ManyFailed",
    "Message",
    "MessageReturned",
    "Nacked",
    "NotSupported",
    "Offsets",
    "Opening",
    "PublishFailed",
    "PublishUnknown",
    "Queue",
    "RPC",
    "RangeReader",
    "Reconnected",
    "Returned",
    "Stage",
    "TopologyFailed",
    "Unblocked",
    "connect",
]
