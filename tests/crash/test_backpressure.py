"""W8 and the promise of backpressure: what one side does not take never becomes the broker's memory."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from kvitto.wire import methods as m
from tests.crash.serve import Served
from tests.protocol.raw import NO_PROPERTIES, Raw, content
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow

MIB = 1 << 20
BODY = bytes(4000)
MESSAGES = 140_000
"""560 MB."""
RSS_MAX = 150 * MIB


def pour(port: int, queue: str, count: int) -> None:
    """A publisher that never stops for anything but the broker's own backpressure."""
    burst = content(1, m.BasicPublish("", queue), b"\x10\x00\x02", BODY) * 100
    with Raw(port) as raw:
        raw.socket.settimeout(60)
        raw.channel(1)
        for _ in range(count // 100):
            raw.send(burst)
        raw.call(1, m.BasicQos(), m.BasicQosOk)


@pytest.mark.parametrize("durable", [True, False])
def test_a_flood_with_a_consumer_that_does_not_read(tmp_path: Path, durable: bool) -> None:
    """More than 500 MB go in, nothing comes out: the broker stays below 150 MB."""
    with Served(tmp_path / "data") as broker:
        with Raw(broker.port) as deaf, Raw(broker.port) as watch:
            for raw in (deaf, watch):
                raw.channel(1)
            watch.declare("q", durable=durable)
            deaf.put(1, m.BasicConsume("q", "deaf", no_ack=True))
            pour(broker.port, "q", MESSAGES)
            sent = MESSAGES - watch.count("q")
            assert 0 < sent < 5000, "what fits into the buffers of one socket, no more"
            assert broker.rss_max() < RSS_MAX
            deaf.drop()
            watch.call(1, m.QueueDelete("q"), m.QueueDeleteOk)
        assert broker.stop() == 0


def test_a_flood_of_unacked_deliveries(tmp_path: Path) -> None:
    """A consumer that reads all and acks nothing costs its records, not the messages."""
    with Served(tmp_path / "data") as broker:
        with Raw(broker.port) as raw:
            raw.channel(1)
            raw.declare("q", durable=True)
            raw.consume("q")
            thread = threading.Thread(target=pour, args=(broker.port, "q", MESSAGES))
            thread.start()
            raw.socket.settimeout(60)
            left = MESSAGES * (len(content(1, m.BasicPublish("", "q"), b"\x10\x00\x02", BODY)) - 8)
            buffer = bytearray(MIB)
            while left > 0:
                left -= raw._input.readinto(buffer)
            thread.join(60)
            assert broker.rss_max() < RSS_MAX
        with Raw(broker.port) as raw:
            raw.channel(1)
            assert wait_until(lambda: raw.count("q") == MESSAGES)
        assert broker.rss_max() < RSS_MAX


def test_many_connections_that_only_ask(tmp_path: Path) -> None:
    """Peers that ask and never read are left waiting, all of them."""
    ask = content(1, m.BasicPublish("amq.direct", "nobody", True), NO_PROPERTIES, bytes(1000)) * 100
    with Served(tmp_path / "data") as broker:
        clients = [Raw(broker.port) for _ in range(4)]
        stuck = 0
        for raw in clients:
            raw.channel(1)
            raw.socket.settimeout(0.4)
            deadline = time.monotonic() + 20
            try:
                while time.monotonic() < deadline:
                    raw.send(ask)
            except TimeoutError:
                stuck += 1
        assert stuck == len(clients)
        assert broker.rss_max() < RSS_MAX + len(clients) * 10 * MIB
        with Raw(broker.port) as raw:
            raw.channel(1)
            raw.declare("still served", durable=True)
        for raw in clients:
            raw.drop()
