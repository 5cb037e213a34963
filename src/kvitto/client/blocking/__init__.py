"""The asyncio client for threads: `with kvitto.connect_sync(url) as connection:`, with the same names.

Each connection has a thread with an event loop, in which `kvitto.client.aio` does all work; so heartbeats, confirms and
reconnects depend on no thread of the program. Calls of the program hand over what they want and wait for its outcome.
Any number of threads may use one connection, channel or consumer.
"""

from kvitto.client.blocking.channel import SyncChannel, SyncRPC, SyncStage
from kvitto.client.blocking.connection import SyncConnection, connect_sync
from kvitto.client.blocking.groups import SyncGroup
from kvitto.client.blocking.messages import SyncConsumer, SyncMessage, SyncRangeReader
from kvitto.client.blocking.queue import SyncExchange, SyncQueue

__all__ = [
    "SyncChannel",
    "SyncConnection",
    "SyncConsumer",
    "SyncExchange",
    "SyncGroup",
    "SyncMessage",
    "SyncQueue",
    "SyncRPC",
    "SyncRangeReader",
    "SyncStage",
    "connect_sync",
]
