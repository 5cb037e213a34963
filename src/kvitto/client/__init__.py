"""A small synchronous AMQP 0-9-1 client with a compiled codec: for the load generator, Spark and the examples.

with Connection("amqp://guest:guest@localhost:5672/%2f") as connection:
    channel = connection.channel()
    channel.confirm_select()
    channel.publish(b"hello", routing_key="letters")
    channel.wait_for_confirms()
"""

from kvitto.client.channel import Channel, Returned
from kvitto.client.columns import Batch, Column, Delivery
from kvitto.client.connection import Connection
from kvitto.client.errors import AMQPError, ChannelClosed, ConnectFailed, ConnectionLost, ConsumerCancelled
from kvitto.client.uri import parse_uri
from kvitto.wire.properties import Properties

__all__ = [
    "AMQPError",
    "Batch",
    "Channel",
    "ChannelClosed",
    "Column",
    "ConnectFailed",
    "Connection",
    "ConnectionLost",
    "ConsumerCancelled",
    "Delivery",
    "Properties",
    "Returned",
    "parse_uri",
]
