"""P2, C2, Q: a stream under load, a real broker, and SIGKILL again and again."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvitto.client import AMQPError, Connection
from tests.crash.serve import Served

CYCLES = int(os.environ.get("KVITTO_KILLS", "20")) // 4
LIFE_S = 0.6
ARGUMENTS: dict[str, Any] = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 200_000}


@dataclass
class Oracle:
    sent: int = 0
    confirmed: list[int] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    """Offset -> number of the message that was delivered with it."""
    problems: list[str] = field(default_factory=list)


def publish(port: int, oracle: Oracle) -> None:
    try:
        with Connection(f"amqp://guest:guest@127.0.0.1:{port}/") as connection:
            channel = connection.channel()
            channel.confirm_select()
            while True:
                numbers = range(oracle.sent, oracle.sent + 50)
                oracle.sent += 50
                for number in numbers:
                    channel.publish(b"%d" % number, routing_key="s")
                if channel.wait_for_confirms(20):
                    oracle.confirmed += numbers
    except (AMQPError, OSError):
        pass


def read(port: int, oracle: Oracle, first: bool) -> None:
    """A consumer that is remembered: it goes on where it had acked."""
    try:
        with Connection(f"amqp://guest:guest@127.0.0.1:{port}/") as connection:
            channel = connection.channel()
            channel.qos(500)
            arguments: dict[str, Any] = {"x-stream-offset": "first", "x-stream-automatic-offset-tracking": True}
            channel.consume("s", consumer_tag="reader", arguments=arguments)
            last = None
            while True:
                batch = channel.receive(20)
                for delivery in batch:
                    offset, number = (delivery.properties.headers or {})["x-stream-offset"], int(delivery.body)
                    assert isinstance(offset, int)
                    if last is None and not first and offset > len(oracle.seen):
                        oracle.problems.append(f"it goes on at {offset}, having seen {len(oracle.seen)}")
                    if last is not None and offset != last + 1:
                        oracle.problems.append(f"{offset} after {last}")
                    if oracle.seen.setdefault(offset, number) != number:
                        oracle.problems.append(f"{offset} was {oracle.seen[offset]}, and is {number}")
                    last = offset
                channel.ack(int(batch.delivery_tags()[-1]), multiple=True)
    except (AMQPError, OSError):
        pass


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_kill_under_load(tmp_path: Path) -> None:
    """What was confirmed or read is there with the same offset; a reader that comes back misses nothing."""
    random.seed(4)
    oracle = Oracle()
    for life in range(CYCLES):
        with Served(tmp_path / "data") as broker:
            if not life:
                with Connection(f"amqp://guest:guest@127.0.0.1:{broker.port}/") as connection:
                    connection.channel().queue_declare("s", durable=True, arguments=ARGUMENTS)
            before = len(oracle.confirmed), len(oracle.seen)
            threads = [
                threading.Thread(target=publish, args=(broker.port, oracle)),
                threading.Thread(target=read, args=(broker.port, oracle, not life)),
            ]
            for thread in threads:
                thread.start()
            until = time.monotonic() + 20
            while (len(oracle.confirmed) == before[0] or len(oracle.seen) == before[1]) and time.monotonic() < until:
                threads[0].join(0.01)
            threads[0].join(LIFE_S * random.random())  # that is the load itself
            broker.kill()
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive()
            assert oracle.problems == []
            assert len(oracle.confirmed) > before[0] and len(oracle.seen) > before[1]
    with Served(tmp_path / "data") as broker:
        stored = everything(broker.port)
        assert broker.stop() == 0
    assert set(oracle.confirmed) <= set(stored)
    assert all(stored[offset] == number for offset, number in oracle.seen.items())
    print(f"{oracle.sent} sent, {len(oracle.confirmed)} confirmed, {len(oracle.seen)} read, {len(stored)} stored")


def everything(port: int) -> list[int]:
    with Connection(f"amqp://guest:guest@127.0.0.1:{port}/") as connection:
        channel = connection.channel()
        found = channel.log_inspect("s")
        assert found.first == 0
        return [int(body) for batch in channel.log_batches("s", 0, found.next) for body in batch.bodies.tolist()]
