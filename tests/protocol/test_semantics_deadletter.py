"""Dead-lettering, X1-X4 of the contract, on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from kvitto.base.limits import PROPERTIES_MAX
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from tests.protocol.raw import NO_PROPERTIES, Message, Raw, content
from tests.protocol.sansio import ProtocolHarness
from tests.support.wait import wait_until


def dead_queue(raw: Raw, name: str) -> str:
    """A queue for dead letters, with a consumer on it."""
    raw.declare(name + ".dead", durable=True)
    raw.consume(name + ".dead", consumer_tag="dead", no_ack=True)
    return name + ".dead"


def to(queue: str, **arguments: Any) -> dict[str, Any]:
    """Arguments that send dead letters to a queue; `x_max_length=1` for "x-max-length"."""
    more = {key.replace("_", "-"): value for key, value in arguments.items()}
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, **more}


def die(raw: Raw, name: str, reason: str) -> Message:
    """Have a message die in the queue for that reason; gives the dead letter."""
    dead = dead_queue(raw, name)
    match reason:
        case "rejected":
            raw.declare(name, durable=True, arguments=to(dead))
        case "expired":
            raw.declare(name, durable=True, arguments=to(dead, x_message_ttl=0))
        case "maxlen":
            raw.declare(name, durable=True, arguments=to(dead, x_max_length=0))
        case "delivery_limit":
            arguments: dict[str, Any] = to(dead, x_delivery_limit=0) | {"x-queue-type": "quorum"}
            raw.declare(name, durable=True, arguments=arguments)
    raw.put_in(name, b"body", message_id="7", headers={"own": 1}) if reason in ("rejected", "delivery_limit") else (
        raw.publish(1, "", name, b"body", message_id="7", headers={"own": 1})
    )
    if reason == "rejected":
        raw.get(name)
        raw.put(1, m.BasicReject(1, False))
    elif reason == "delivery_limit":
        raw.get(name)
        raw.put(1, m.BasicReject(1, True))
    return raw.message()


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen", "delivery_limit"])
def test_the_reasons(raw: Raw, name: str, reason: str) -> None:
    """X1, X2: what the headers say; everything else of the message is as it was."""
    letter = die(raw, name, reason)
    assert (letter.body, letter.properties.message_id, letter.headers["own"]) == (b"body", "7", 1)
    assert (letter.method.exchange, letter.method.routing_key) == ("", name + ".dead")
    (death,) = letter.headers["x-death"]
    assert isinstance(death.pop("time"), datetime)
    assert death == {"count": 1, "reason": reason, "queue": name, "exchange": "", "routing-keys": [name]}
    first = {key: letter.headers[f"x-first-death-{key}"] for key in ("reason", "queue", "exchange")}
    assert first == {"reason": reason, "queue": name, "exchange": ""}


def test_last_death(raw: Raw, name: str) -> None:
    """X2: x-last-death-* beside x-first-death-* (RabbitMQ since 3.13)."""
    letter = die(raw, name, "maxlen")
    last = {key: letter.headers[f"x-last-death-{key}"] for key in ("reason", "queue", "exchange")}
    assert last == {"reason": "maxlen", "queue": name, "exchange": ""}


def test_a_routing_key_needs_the_exchange(raw: Raw, name: str) -> None:
    """X1."""
    raw.put(1, m.QueueDeclare(name, arguments={"x-dead-letter-routing-key": "k"}))
    raw.channel_error(406)


def test_without_a_key_the_messages_own_is_used(raw: Raw, name: str) -> None:
    """X1: through a topic exchange."""
    raw.call(1, m.ExchangeDeclare(name, "topic"), m.ExchangeDeclareOk)
    dead = dead_queue(raw, name)
    raw.call(1, m.QueueBind(dead, name, "a.#"), m.QueueBindOk)
    raw.declare(name, arguments={"x-dead-letter-exchange": name, "x-message-ttl": 0})
    raw.call(1, m.QueueBind(name, "amq.topic", f"a.{name}"), m.QueueBindOk)
    raw.publish(1, "amq.topic", f"a.{name}", b"x")
    letter = raw.message()
    assert (letter.method.exchange, letter.method.routing_key) == (name, f"a.{name}")
    assert letter.headers["x-death"][0]["exchange"] == "amq.topic"


def test_expiration_goes_into_the_death(raw: Raw, name: str) -> None:
    """X2: else the letter would expire again."""
    dead = dead_queue(raw, name)
    raw.declare(name, arguments=to(dead))
    raw.publish(1, "", name, b"x", expiration="0")
    letter = raw.message()
    assert letter.properties.expiration is None
    assert letter.headers["x-death"][0]["original-expiration"] == "0"


def test_deaths_are_counted_newest_first(raw: Raw, name: str) -> None:
    """X2: one entry per queue and reason."""
    second = name + ".second"
    dead = dead_queue(raw, name)
    raw.declare(name, arguments=to(second))
    raw.declare(second, arguments=to(name, x_message_ttl=0))
    raw.put_in(name, b"x")
    for tag in (1, 2):
        assert wait_until(lambda: raw.get(name)) is not None
        raw.put(1, m.BasicReject(tag, False))
    letter = wait_until(lambda: raw.get(name))
    deaths = [(d["queue"], d["reason"], d["count"]) for d in letter.headers["x-death"]]
    assert deaths == [(second, "expired", 2), (name, "rejected", 2)]
    assert letter.headers["x-first-death-queue"] == name
    assert dead


def test_a_cycle_without_a_rejection_ends(raw: Raw, name: str) -> None:
    """X3: dropped for the queue that it has been in; a rejection in it lets it go round (see above)."""
    raw.declare(name, arguments=to(name, x_message_ttl=0))
    raw.put_in(name, b"x")
    assert wait_until(lambda: raw.count(name) == 0)
    raw.put(1, m.QueueDelete(name, if_empty=True))
    assert raw.expect(m.QueueDeleteOk).message_count == 0


def test_a_client_cannot_forge_deaths(raw: Raw, name: str) -> None:
    """X3: what a publisher puts into x-death counts for nothing."""
    dead = dead_queue(raw, name)
    raw.declare(name, arguments=to(dead, x_message_ttl=0))
    forged = [{"count": 9, "reason": "expired", "queue": dead, "exchange": "", "routing-keys": [name]}]
    raw.publish(1, "", name, b"x", headers={"x-death": forged})
    letter = raw.message()
    assert [(d["queue"], d["count"]) for d in letter.headers["x-death"]] == [(name, 1)]


def test_a_client_cannot_forge_the_first_and_last_death(raw: Raw, name: str) -> None:
    """X2, X3: it was kept, since the broker found it there."""
    dead = dead_queue(raw, name)
    raw.declare(name, arguments=to(dead, x_message_ttl=0))
    forged = {f"x-{which}-death-{what}": "forged" for which in ("first", "last") for what in ("queue", "reason")}
    raw.publish(1, "", name, b"x", headers={**forged, "x-first-death-queue": 5})
    headers = raw.message().headers
    for which in ("first", "last"):
        assert (headers[f"x-{which}-death-queue"], headers[f"x-{which}-death-reason"]) == (name, "expired")


def test_a_death_leaves_the_other_headers_as_they_came(raw: Raw, name: str) -> None:
    """X2: types too: a letter with an array of bytes came out several times as large."""
    dead = dead_queue(raw, name)
    raw.declare(name, arguments=to(dead, x_message_ttl=0))
    small = b"\x05smallA\0\0\0\x04b\x01b\x02" + b"\x04textx\0\0\0\x01\xff" + b"\x02\xff\xfeV"
    props = b"\x20\0" + len(small).to_bytes(4, "big") + small
    raw.send(content(1, m.BasicPublish("", name), props, b"x"))
    raw.expect(m.BasicDeliver)
    assert small in raw.next()[2]


def test_dead_letters_copy_to_all_bound_queues_once(raw: Raw, name: str) -> None:
    """X1: an exchange with several bindings."""
    raw.call(1, m.ExchangeDeclare(name, "fanout"), m.ExchangeDeclareOk)
    for queue in ("1", "2"):
        raw.declare(name + queue)
        for key in ("a", "b"):
            raw.call(1, m.QueueBind(name + queue, name, key), m.QueueBindOk)
    raw.declare(name, arguments={"x-dead-letter-exchange": name, "x-message-ttl": 0})
    raw.publish(1, "", name, b"x")
    for queue in ("1", "2"):
        assert wait_until(lambda q=queue: raw.drain(name + q)) == [b"x"]  # type: ignore[misc]


def test_drop_head_sends_the_oldest(raw: Raw, name: str) -> None:
    """X1, Q."""
    dead = dead_queue(raw, name)
    raw.declare(name, arguments=to(dead, x_max_length=2))
    for number in range(4):
        raw.publish(1, "", name, b"%d" % number)
    assert [raw.message().body for _ in range(2)] == [b"0", b"1"]
    assert raw.drain(name) == [b"2", b"3"]


def test_reject_publish_dlx_sends_the_newest(raw: Raw, name: str) -> None:
    """X1, C6: the publisher gets a nack, the message a grave."""
    dead = dead_queue(raw, name)
    raw.declare(name, arguments=to(dead, x_max_length=1, x_overflow="reject-publish-dlx"))
    raw.channel(2)
    raw.call(2, m.ConfirmSelect(), m.ConfirmSelectOk)
    raw.publish(2, "", name, b"0")
    assert raw.expect(m.BasicAck).delivery_tag == 1
    raw.publish(2, "", name, b"1")
    seen: list[Any] = []
    while len(seen) < 2:
        method = raw.method()[1]
        seen.append(method)
        if isinstance(method, m.BasicDeliver):
            raw.next()
            assert raw.next()[2] == b"1"
    assert {type(method) for method in seen} == {m.BasicNack, m.BasicDeliver}
    assert raw.drain(name) == [b"0"]


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_each_queue_keeps_a_refused_message_or_its_grave_does(length: int) -> None:
    """C6: a queue that took the message and is full from now on had refused it, too, if another queue did."""
    harness = ProtocolHarness()
    wire = harness.wire()
    full: dict[str, Any] = {"x-max-length": length, "x-overflow": "reject-publish-dlx"}
    small: dict[str, Any] = {**full, "x-max-length": 1}
    graves = [("one", to("one.dead"), full), ("two", to("two.dead"), small)]
    for name, dead, limits in graves:
        wire.put(1, m.QueueDeclare(name + ".dead"), m.QueueDeclare(name, arguments=dead | limits))
        wire.put(1, m.QueueBind(name, "amq.fanout", ""))
    wire.put(1, m.ConfirmSelect())
    harness.settle_down()
    for _ in range(3):
        wire.feed(content(1, m.BasicPublish("amq.fanout", "k"), NO_PROPERTIES, b"x"))
        harness.settle_down()
    queues = harness.broker.vhosts["/"].queues
    for name, _, limits in graves:
        kept = min(limits["x-max-length"], 3)
        assert (queues[name].ready, queues[name + ".dead"].ready) == (kept, 3 - kept)


def test_reject_publish_dlx_without_an_exchange_only_refuses(raw: Raw, name: str) -> None:
    """C6, X1: the message went to whatever queue was named like its routing key."""
    raw.declare(name)
    raw.declare(name + ".full", arguments={"x-max-length": 0, "x-overflow": "reject-publish-dlx"})
    raw.call(1, m.QueueBind(name + ".full", "amq.direct", name), m.QueueBindOk)
    raw.call(1, m.ConfirmSelect(), m.ConfirmSelectOk)
    raw.publish(1, "amq.direct", name, b"x")
    assert raw.expect(m.BasicNack).delivery_tag == 1
    assert raw.count(name) == 0


def test_copies_of_the_message_are_in_the_routing_keys(raw: Raw, name: str) -> None:
    """X2: CC counts as routing key."""
    dead = dead_queue(raw, name)
    raw.declare(name, arguments=to(dead, x_message_ttl=0))
    raw.publish(1, "", name, b"x", headers={"CC": [name + ".other"]})
    assert raw.message().headers["x-death"][0]["routing-keys"] == [name, name + ".other"]


def test_a_letter_that_nobody_can_take_stays() -> None:
    """X4: it is not dropped, consumers do not see it, and it goes as soon as there is a target."""
    harness = ProtocolHarness()
    wire = harness.wire()
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "later"}
    wire.put(1, m.QueueDeclare("q", durable=True, arguments=arguments), m.QueueDeclare("dead", durable=True))
    harness.settle_down()
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x"))
    harness.settle_down()
    wire.put(1, m.BasicGet("q"), m.BasicReject(1, False), m.BasicGet("q"))
    harness.settle_down()
    queue = harness.broker.vhosts["/"].queues["q"]
    assert isinstance(wire.methods()[-1], m.BasicGetEmpty) and queue.messages == 1
    wire.put(1, m.ExchangeDeclare("later", "fanout", durable=True))
    harness.settle_down()
    wire.put(1, m.QueueBind("dead", "later", ""))
    harness.settle_down()
    harness.clock.advance(5.0)
    harness.broker.tick()
    harness.settle_down()
    assert (queue.messages, harness.broker.vhosts["/"].queues["dead"].ready) == (0, 1)


def test_a_letter_that_fits_no_frame_any_more_stays() -> None:
    """X4: in the dead-letter queue it would hold up all that is behind it, for nobody could be sent its properties."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("dead"), m.QueueDeclare("q", arguments=to("dead")))
    harness.settle_down()
    for size in (PROPERTIES_MAX - 100, 100):
        props = Properties(headers={"own": b"x" * size}).encode()
        wire.feed(content(1, m.BasicPublish("", "q"), props, b"x"))
    wire.put(1, m.BasicGet("q"), m.BasicGet("q"), m.BasicNack(2, True, False))
    harness.settle_down()
    harness.turn()  # a timer asks for it: long properties take the steps of a whole turn
    harness.settle_down()
    queues = harness.broker.vhosts["/"].queues
    assert (queues["q"].messages, queues["q"].ready, queues["dead"].ready) == (1, 0, 1)


def test_a_full_target_keeps_the_letter_in_its_source() -> None:
    """X4."""
    harness = ProtocolHarness()
    wire = harness.wire()
    full: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    source: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-message-ttl": 0}
    wire.put(1, m.QueueDeclare("dead", durable=True, arguments=full))
    harness.settle_down()
    wire.put(1, m.QueueDeclare("q", durable=True, arguments=source))
    harness.settle_down()
    for _ in range(3):
        wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"x"))
        harness.settle_down()
    queues = harness.broker.vhosts["/"].queues
    assert (queues["dead"].ready, queues["q"].messages) == (1, 2)
    for _ in range(2):
        wire.put(1, m.BasicGet("dead", True))
        harness.settle_down()
        harness.clock.advance(5.0)
        harness.broker.tick()
        harness.settle_down()
    assert (queues["dead"].ready, queues["q"].messages) == (1, 0)
