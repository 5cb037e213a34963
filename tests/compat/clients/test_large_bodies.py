"""Clients that fill a frame's payload up to frame_max: RabbitMQ takes these 8 bytes, so a broker in its place must."""

import os

import amqpstorm
import pytest
import rabbitpy

HOST, PORT = os.environ["COMPAT_HOST"], int(os.environ["COMPAT_PORT"])
SIZES = [131_063, 131_064, 131_065, 131_072, 131_073, 200_000, 1_000_000]


@pytest.mark.parametrize("size", SIZES)
def test_amqpstorm_publishes_and_gets(name: str, size: int) -> None:
    body = os.urandom(size)
    with amqpstorm.Connection(HOST, "guest", "guest", port=PORT) as connection, connection.channel() as channel:
        channel.confirm_deliveries()
        channel.queue.declare(name, auto_delete=False, exclusive=True)
        assert channel.basic.publish(body, name) is True
        message = channel.basic.get(name, auto_decode=False)
        assert message is not None and message.body == body
        message.ack()


@pytest.mark.parametrize("size", SIZES)
def test_rabbitpy_publishes_and_gets(url: str, name: str, size: int) -> None:
    body = os.urandom(size)
    with rabbitpy.Connection(url) as connection, connection.channel() as channel:
        channel.enable_publisher_confirms()
        queue = rabbitpy.Queue(channel, name, exclusive=True)
        queue.declare()
        assert rabbitpy.Message(channel, body).publish("", name)
        message = queue.get()
        assert message is not None and bytes(message.body) == body
        message.ack()
