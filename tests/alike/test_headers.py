"""Field types of what the broker writes into a message's headers: Java's clients cast them."""

from kvitto.wire import methods as m
from tests.protocol.raw import Raw
from tests.support.wait import wait_until


def raw_headers(raw: Raw, queue: str) -> bytes:
    """The content header of the next message of a queue, as it came."""
    raw.put(1, m.BasicGet(queue, True))
    raw.expect(m.BasicGetOk)
    _, _, header = raw.next()
    raw.next()
    return header


def test_the_count_in_x_death_is_a_long(raw: Raw, name: str) -> None:
    raw.declare(name + ".dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name + ".dead"}
    raw.declare(name, arguments=arguments)
    raw.put_in(name, b"x")
    raw.get(name)
    raw.put(1, m.BasicReject(1, False))
    assert wait_until(lambda: raw.count(name + ".dead") == 1)
    assert b"\x05countl" + (1).to_bytes(8, "big") in raw_headers(raw, name + ".dead")


def test_every_count_in_x_death_is_a_long(raw: Raw, name: str) -> None:
    """Also of a death that is not the last one, which the broker has read from the message."""
    first, second, dead = f"{name}.1", f"{name}.2", f"{name}.dead"
    raw.declare(dead)
    raw.declare(second, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    raw.declare(first, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second})
    raw.put_in(first, b"x")
    raw.get(first)
    raw.put(1, m.BasicReject(1, False))
    assert wait_until(lambda: raw.count(second) == 1)
    raw.get(second)
    raw.put(1, m.BasicReject(2, False))
    assert wait_until(lambda: raw.count(dead) == 1)
    assert raw_headers(raw, dead).count(b"\x05countl" + (1).to_bytes(8, "big")) == 2


def test_x_delivery_count_is_a_long(raw: Raw, name: str) -> None:
    raw.declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    raw.put_in(name, b"x")
    raw.get(name)
    raw.put(1, m.BasicNack(1, False, True))
    assert wait_until(lambda: raw.count(name) == 1)
    assert b"\x10x-delivery-countl" + (1).to_bytes(8, "big") in raw_headers(raw, name)
