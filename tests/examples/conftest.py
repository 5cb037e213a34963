"""The broker that the examples talk to: Kvitto, or the one that EXAMPLES_URL names (to compare with another broker)."""

import os
from collections.abc import Iterator

import pika
import pytest

QUEUES = ("image_resize_queue_1", "notifications", "confirmed_messages")


@pytest.fixture
def broker_url(request: pytest.FixtureRequest) -> Iterator[str]:
    url = os.environ.get("EXAMPLES_URL") or request.getfixturevalue("kvitto_broker").url
    yield url
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        for queue in QUEUES:
            connection.channel().queue_delete(queue)


def messages_in(url: str, queue: str) -> int:
    """Messages ready in a queue."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        declared = connection.channel().queue_declare(queue, passive=True)
        return int(declared.method.message_count)
