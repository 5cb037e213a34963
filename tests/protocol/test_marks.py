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
from tests.protocol.sansio import House, Wire
from tests.support.rig import Rig, Taker
from tests.support.simdisk import SimDisk


class Watched(Wire):
    """Keeps what the next process would find on the disk, had this one been killed right after each write to the socket."""

    def __init__(self, house: House) -> None:
        self.killed: list[tuple[bytes, SimDisk]] = []
        super().__init__(house)

    def write(self, data: memoryview) -> bool:
        self.killed.append((bytes(data), self.house.disk.copy().kill()))
        return super().write(data)


def house_with(messages: int, **arguments: Any) -> tuple[House, Watched, Watched]:
    house = House()
    publisher, consumer = Watched(house), Watched(house)
    for wire in (publisher, consumer):
        wire.login()
    publisher.put(1, m.QueueDeclare("q", durable=True, arguments=arguments))
    house.settle()
    for n in range(messages):
        publisher.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"message %d" % n))
    house.turn()
    house.sync()
    house.settle()
    return house, publisher, consumer


def check(wire: Watched) -> int:
    """Every delivery that was written comes again flagged; gives how many there were."""
    seen = 0
    for n in range(1, len(wire.killed) + 1):
        sent = b"".join(data for data, _ in wire.killed[:n])
        rig = Rig(wire.killed[n - 1][1])
        taker = Taker(rig.queue("q"))
        while rig.queue("q").get(taker):
            pass
        for delivery in taker.got:
            if delivery.body + b"\xce" in sent:
                assert delivery.redelivered, delivery.body
                seen += 1
    return seen


def close(house: House, publisher: Watched, consumer: Watched) -> None:
    """A get, and the connection's close right behind it."""
    frames = [m.BasicGet("q"), m.BasicGet("q")]
    consumer.feed(
        b"".join(frame(FRAME_METHOD, 1, f.encode()) for f in frames)
        + frame(FRAME_METHOD, 0, m.ConnectionClose(200, "", 0, 0).encode())
    )


def choke(house: House, publisher: Watched, consumer: Watched) -> None:
    """So many answers that the input has to wait until the socket has taken them."""
    consumer.put(1, *(m.BasicGet("q") for _ in range(3)))


def writable(house: House, publisher: Watched, consumer: Watched) -> None:
    """A queue looks whether consumers make room in it, and the consumer's socket takes something again before the turn."""
    consumer.put(1, m.BasicConsume("q", "c"))
    house.settle()
    publisher.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"one"))
    publisher.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"two"))
    consumer.connection.writable(True)


@pytest.mark.parametrize("act", [close, choke, writable])
def test_a_delivery_is_marked_before_the_socket_has_it(
    act: Callable[[House, Watched, Watched], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "INPUT_PAUSE", 10)
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"} if act is writable else {}
    house, publisher, consumer = house_with(0 if limits else 3, **limits)
    consumer.killed.clear()
    act(house, publisher, consumer)
    assert check(consumer), "nothing was delivered before the turn"
