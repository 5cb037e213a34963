"""What happens to a connection beside the calls of the program: `kvitto.connect(on_event=...)` is called with one of these."""

from __future__ import annotations

from dataclasses import dataclass

from kvitto.client.aio.errors import Returned
from kvitto.client.errors import AMQPError


@dataclass(frozen=True)
class Event:
    """Base of all events."""


@dataclass(frozen=True)
class Disconnected(Event):
    """The connection is lost, and the client connects again. `unconfirmed` is the number of publishes without a confirm."""

    error: AMQPError
    unconfirmed: int


@dataclass(frozen=True)
class ConnectAttemptFailed(Event):
    """No host could be reached. The next attempt begins in `retry_s` seconds."""

    error: AMQPError
    retry_s: float


@dataclass(frozen=True)
class Reconnected(Event):
    """The connection is back: channels are open, the topology is declared, consumers run. `address` has no password."""

    address: str


@dataclass(frozen=True)
class Blocked(Event):
    """The broker takes no publishes now (connection.blocked), for this reason. Publishes wait."""

    reason: str


@dataclass(frozen=True)
class Unblocked(Event):
    """The broker takes publishes again."""


@dataclass(frozen=True)
class TopologyFailed(Event):
    """After a reconnect the broker refused to declare `what` again."""

    what: str
    error: AMQPError


@dataclass(frozen=True)
class ConsumerFailed(Event):
    """The broker ended a consumer (basic.cancel), or refused it after a reconnect. Its `async for` raises the same error."""

    consumer_tag: str
    error: AMQPError


@dataclass(frozen=True)
class ChannelFailed(Event):
    """The broker closed a channel (channel.close). Its calls raise the same error."""

    error: AMQPError


@dataclass(frozen=True)
class MessageReturned(Event):
    """A mandatory message was returned for which no caller waits, because its channel has no confirms."""

    returned: Returned
