"""A9: what a socket has been given is known to the files before: a process that is killed at that moment forgets no delivery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvitto.protocol import connection
from kvitto.wire import methods as m
from kvitto.wire.methods import frame
from kvitto.wire.spec import FRAME_METHOD
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.support.harness import BrokerHarness, Taker
from tests.support.simdisk import SimDisk


class Watched(Wire):
    """Keeps what the next process would find on the disk, had this one been killed right after each write to the socket."""

    def __init__(self, harness: ProtocolHarness) -> None:
        self.killed: list[tuple[bytes, SimDisk]] = []
        super().__init__(harness)

    def write(self, data: memoryview) -> bool:
        self.killed.append((bytes(data), self.harness.disk.copy().kill()))
        return super().write(data)


def harness_with(messages: int, **arguments: Any) -> tuple[ProtocolHarness, Watched, Watched]:
    harness = ProtocolHarness()
    publisher, consumer = Watched(harness), Watched(harness)
    for wire in (publisher, consumer):
        wire.login()
    publisher.put(1, m.QueueDeclare("q", durable=True, arguments=arguments))
    harness.settle_down()
    for n in range(messages):
        publisher.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"message %d" % n))
    harness.turn()
    harness.sync()
    harness.settle_down()
    return harness, publisher, consumer


def check(wire: Watched) -> int:
    """Every delivery that was written comes again flagged; gives how many there were."""
    seen = 0
    for n in range(1, len(wire.killed) + 1):
        sent = b"".join(data for data, _ in wire.killed[:n])
        harness = BrokerHarness(wire.killed[n - 1][1])
        taker = Taker(harness.queue("q"))
        while harness.queue("q").get(taker):
            pass
        for delivery in taker.got:
            if delivery.body + b"\xce" in sent:
                assert delivery.redelivered, delivery.body
                seen += 1
    return seen


def close(harness: ProtocolHarness, publisher: Watched, consumer: Watched) -> None:
    """A get, and the connection's close right behind it."""
    frames = [m.BasicGet("q"), m.BasicGet("q")]
    consumer.feed(
        b"".join(frame(FRAME_METHOD, 1, f.encode()) for f in frames)
        + frame(FRAME_METHOD, 0, m.ConnectionClose(200, "", 0, 0).encode())
    )


def choke(harness: ProtocolHarness, publisher: Watched, consumer: Watched) -> None:
    """So many answers that the input has to wait until the socket has taken them."""
    consumer.put(1, *(m.BasicGet("q") for _ in range(3)))


def writable(harness: ProtocolHarness, publisher: Watched, consumer: Watched) -> None:
    """A queue looks whether consumers make room in it, and the consumer's socket takes something again before the turn."""
    consumer.put(1, m.BasicConsume("q", "c"))
    harness.settle_down()
    publisher.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"one"))
    publisher.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"two"))
    consumer.connection.writable(True)


@pytest.mark.parametrize("act", [close, choke, writable])
def test_a_delivery_is_marked_before_the_socket_has_it(
    act: Callable[[ProtocolHarness, Watched, Watched], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "INPUT_PAUSE", 10)
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"} if act is writable else {}
    harness, publisher, consumer = harness_with(0 if limits else 3, **limits)
    consumer.killed.clear()
    act(harness, publisher, consumer)
    assert check(consumer), "nothing was delivered before the turn"
