"""A shovel in a thread of its own, and a broker's queues as tests need them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvitto.client import Connection
from kvitto.shovel.settings import read
from kvitto.shovel.worker import Shovel
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Table


@contextmanager
def shovelling(**value: Any) -> Iterator[Shovel]:
    """A shovel with these settings (with _ for -), until the end of the block."""
    settings = read({"reconnect-delay": 0.05, **{key.replace("_", "-"): item for key, item in value.items()}})
    shovel = Shovel("/", "s", settings, lambda uri: uri, lambda status: None)
    loop = asyncio.new_event_loop()
    task = loop.create_task(shovel.run())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])))
    thread.start()
    try:
        yield shovel
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()
        loop.close()
    if not task.cancelled():
        task.result()


def declare(uri: str, queue: str, **arguments: Any) -> None:
    given: Table = {name.replace("_", "-"): value for name, value in arguments.items()}
    with Connection(uri) as connection:
        connection.channel().call(m.QueueDeclare(queue, False, True, False, False, False, given), m.QueueDeclareOk)


def publish(uri: str, key: str, *bodies: bytes, exchange: str = "", properties: Properties | None = None) -> None:
    with Connection(uri) as connection:
        channel = connection.channel()
        channel.confirm_select()
        for body in bodies:
            channel.publish(body, exchange, key, properties or Properties(delivery_mode=2))
        assert channel.wait_for_confirms(10.0)


def count(uri: str, queue: str) -> int:
    """The ready messages of a queue, -1 if there is no such queue."""
    with Connection(uri) as connection:
        try:
            declare_ok = connection.channel().call(
                m.QueueDeclare(queue, True, False, False, False, False, {}), m.QueueDeclareOk
            )
        except Exception:  # noqa: BLE001 - there is no such queue
            return -1
        return int(declare_ok.message_count)


def bodies(uri: str, queue: str) -> list[bytes]:
    """The messages of a queue, which is empty then."""
    with Connection(uri) as connection:
        channel, found = connection.channel(), []
        while (got := channel.get(queue, no_ack=True)) is not None:
            found.append(got.body)
        return found
