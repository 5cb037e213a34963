"""Kvitto: a durable AMQP 0-9-1 message broker for Python people, and a client for any AMQP 0-9-1 broker.

`async with kvitto.connect(url) as connection:` is the client, `with kvitto.Broker() as broker:` runs a real broker in
this process. Both are imported on first use, so that `import kvitto` alone costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

from kvitto.base.version import __version__

if TYPE_CHECKING:
    from kvitto.client.aio import Channel, Connection, Consumer, Exchange, IncomingMessage, Message, Queue, connect
    from kvitto.client.blocking import connect_sync
    from kvitto.client.intercept import Interceptor
    from kvitto.server.embedded import Broker

__all__ = [
    "Broker",
    "Channel",
    "Connection",
    "Consumer",
    "Exchange",
    "IncomingMessage",
    "Interceptor",
    "Message",
    "Queue",
    "__version__",
    "compiled",
    "connect",
    "connect_sync",
]

_CLIENT = frozenset(__all__) - {"Broker", "Interceptor", "__version__", "compiled", "connect_sync"}


def compiled() -> bool:
    """Return whether the data plane runs compiled. False means the slower interpreted form of the same source."""
    from kvitto.base.build import compiled as answer

    return answer()


def __getattr__(name: str) -> Any:
    if name == "Broker":
        from kvitto.server.embedded import Broker

        return Broker
    if name == "connect_sync":
        from kvitto.client.blocking import connect_sync

        return connect_sync
    if name == "Interceptor":
        from kvitto.client.intercept import Interceptor

        return Interceptor
    if name in _CLIENT:
        from kvitto.client import aio

        return getattr(aio, name)
    raise AttributeError(f"module 'kvitto' has no attribute {name!r}")
