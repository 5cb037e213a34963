"""P2, C2, Q: a stream under load, a real broker, and SIGKILL again and again."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvitto.client import AMQPError, Connection
from tests.crash.serve import Served

CYCLES = int(os.environ.get("KVITTO_KILLS", "20")) // 4
LIFE_S = 0.6
ARGUMENTS = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 200_000}


@dataclass
class Books:
    sent: int = 0
    confirmed: list[int] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    """Offset -> number of the message that was delivered with it."""
    problems: list[str] = field(default_factory=list)


def publish(port: int, books: Books) -> None:
    try:
        with Connection(f"amqp://guest:guest@127.0.0.1:{port}/") as connection:
            channel = connection.channel()
            channel.confirm_select()
            while True:
                numbers = range(books.sent, books.sent + 50)
                books.sent += 50
                for number in numbers:
                    channel.publish(b"%d" % number, routing_key="s")
                if channel.wait_for_confirms(20):
                    books.confirmed += numbers
    except (AMQPError, OSError):
        pass


def read(port: int, books: Books, first: bool) -> None:
    """A consumer that is remembered: it goes on where it had acked."""
    try:
        with Connection(f"amqp://guest:guest@127.0.0.1:{port}/") as connection:
            channel = connection.channel()
            channel.qos(500)
            arguments = {"x-stream-offset": "first", "x-stream-automatic-offset-tracking": True}
            channel.consume("s", consumer_tag="reader", arguments=arguments)
            last = None
            while True:
                batch = channel.receive(20)
                for delivery in batch:
                    offset, number = (delivery.properties.headers or {})["x-stream-offset"], int(delivery.body)
                    if last is None and not first and offset > len(books.seen):
                        books.problems.append(f"it goes on at {offset}, having seen {len(books.seen)}")
                    if last is not None and offset != last + 1:
                        books.problems.append(f"{offset} after {last}")
                    if books.seen.setdefault(offset, number) != number:
                        books.problems.append(f"{offset} was {books.seen[offset]}, and is {number}")
                    last = offset
                channel.ack(int(batch.delivery_tags()[-1]), multiple=True)
    except (AMQPError, OSError):
        pass


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_kill_under_load(tmp_path: Path) -> None:
    """What was confirmed or read is there with the same offset; a reader that comes back misses nothing."""
    random.seed(4)
    books = Books()
    for life in range(CYCLES):
        with Served(tmp_path / "data") as broker:
            if not life:
                with Connection(f"amqp://guest:guest@127.0.0.1:{broker.port}/") as connection:
                    connection.channel().queue_declare("s", durable=True, arguments=ARGUMENTS)
            before = len(books.confirmed), len(books.seen)
            threads = [
                threading.Thread(target=publish, args=(broker.port, books)),
                threading.Thread(target=read, args=(broker.port, books, not life)),
            ]
            for thread in threads:
                thread.start()
            until = time.monotonic() + 20
            while (len(books.confirmed) == before[0] or len(books.seen) == before[1]) and time.monotonic() < until:
                threads[0].join(0.01)
            threads[0].join(LIFE_S * random.random())  # that is the load itself
            broker.kill()
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive()
            assert books.problems == []
            assert len(books.confirmed) > before[0] and len(books.seen) > before[1]
    with Served(tmp_path / "data") as broker:
        stored = everything(broker.port)
        assert broker.stop() == 0
    assert set(books.confirmed) <= set(stored)
    assert all(stored[offset] == number for offset, number in books.seen.items())
    print(f"{books.sent} sent, {len(books.confirmed)} confirmed, {len(books.seen)} read, {len(stored)} stored")


def everything(port: int) -> list[int]:
    with Connection(f"amqp://guest:guest@127.0.0.1:{port}/") as connection:
        channel = connection.channel()
        found = channel.log_inspect("s")
        assert found.first == 0
        return [int(body) for batch in channel.log_batches("s", 0, found.next) for body in batch.bodies.tolist()]
