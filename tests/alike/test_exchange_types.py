"""Exchange types that are plugins of RabbitMQ: arguments, errors, shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvitto.wire import methods as m
from tests.http.api import Http
from tests.protocol.raw import Raw
from tests.support.wait import wait_until

HASH = "x-consistent-hash"


@pytest.fixture
def exchange(raw: Raw, name: str) -> Iterator[str]:
    """The name of an exchange that is deleted behind the test."""
    yield name + ".x"
    raw.channel(90)
    raw.call(90, m.ExchangeDelete(name + ".x"), m.ExchangeDeleteOk)


def declare(raw: Raw, exchange: str, type_: str, **arguments: Any) -> None:
    known = {key.replace("_", "-"): value for key, value in arguments.items()}
    raw.call(1, m.ExchangeDeclare(exchange, type_, arguments=known), m.ExchangeDeclareOk)


def bind(raw: Raw, exchange: str, queue: str, key: str = "1", **arguments: Any) -> None:
    raw.call(1, m.QueueBind(queue, exchange, key, arguments=arguments), m.QueueBindOk)


def queues(raw: Raw, name: str, n: int) -> list[str]:
    names = [f"{name}.{i}" for i in range(n)]
    for each in names:
        raw.declare(each)
    return names


def shares(raw: Raw, names: list[str], total: int) -> list[int]:
    """How many messages each queue has, once all have come."""
    assert wait_until(lambda: sum(raw.count(each) for each in names) == total)
    return [raw.count(each) for each in names]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"hash-header": "a", "hash-property": "message_id"},
            "PRECONDITION_FAILED - hash-header and hash-property are mutually exclusive",
        ),
        ({"hash-property": "app_id"}, "PRECONDITION_FAILED - Unsupported property: app_id"),
    ],
)
def test_arguments_that_are_refused(raw: Raw, name: str, arguments: dict[str, Any], text: str) -> None:
    raw.put(1, m.ExchangeDeclare(name, HASH, arguments=arguments))
    assert raw.channel_error(406).reply_text == text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("", "The binding key must be an integer: <<>>"),
        ("a", 'The binding key must be an integer: <<"a">>'),
        ("1.0", 'The binding key must be an integer: <<"1.0">>'),
        ("1_0", 'The binding key must be an integer: <<"1_0">>'),
        (" 1", 'The binding key must be an integer: <<" 1">>'),
        ("0", "The binding key must be greater than 0"),
        ("-5", "The binding key must be greater than 0"),
    ],
)
def test_binding_keys_that_are_refused(raw: Raw, name: str, exchange: str, key: str, text: str) -> None:
    declare(raw, exchange, HASH)
    raw.declare(name)
    raw.put(1, m.QueueBind(name, exchange, key))
    assert raw.channel_error(406).reply_text == f"PRECONDITION_FAILED - {text}"


@pytest.mark.parametrize("key", ["1", "+7", "007", "10000"])
def test_binding_keys_that_are_taken(raw: Raw, name: str, exchange: str, key: str) -> None:
    declare(raw, exchange, HASH)
    raw.declare(name)
    bind(raw, exchange, name, key)


@pytest.mark.parametrize("hashed", ["key", "header", "message_id", "correlation_id", "timestamp"])
def test_equal_values_go_to_one_queue(raw: Raw, name: str, exchange: str, hashed: str) -> None:
    arguments = {"key": {}, "header": {"hash-header": "h"}}.get(hashed, {"hash-property": hashed})
    declare(raw, exchange, HASH, **arguments)
    names = queues(raw, name, 4)
    for each in names:
        bind(raw, exchange, each)
    for i in range(200):
        value = str(i % 40)
        if hashed == "key":
            raw.publish(1, exchange, value, b"%d" % (i % 40))
        else:
            of_message: dict[str, Any] = {hashed: int(value) if hashed == "timestamp" else value}
            properties = {"headers": {"h": value}} if hashed == "header" else of_message
            raw.publish(1, exchange, str(i), b"%d" % (i % 40), **properties)
    counts = shares(raw, names, 200)
    seen: dict[bytes, str] = {}
    for each, count in zip(names, counts, strict=True):
        for _ in range(count):
            found = raw.get(each, no_ack=True)
            assert found is not None and seen.setdefault(found.body, each) == each
    assert len(set(seen.values())) > 1


def test_weights(raw: Raw, name: str, exchange: str) -> None:
    declare(raw, exchange, HASH)
    names = queues(raw, name, 2)
    for each, weight in zip(names, ("1", "4"), strict=True):
        bind(raw, exchange, each, weight)
    for i in range(1000):
        raw.publish(1, exchange, f"k{i}", b"")
    light, _ = shares(raw, names, 1000)
    assert 130 < light < 270


def test_of_two_bindings_of_a_queue_the_first_one_counts(raw: Raw, name: str, exchange: str) -> None:
    declare(raw, exchange, HASH)
    names = queues(raw, name, 2)
    for each, weight in ((names[0], "1"), (names[0], "9"), (names[1], "1")):
        bind(raw, exchange, each, weight)
    for i in range(1000):
        raw.publish(1, exchange, f"k{i}", b"")
    first, _ = shares(raw, names, 1000)
    assert 400 < first < 600


@pytest.mark.parametrize("type_", ["x-random", "x-modulus-hash"])
def test_each_binding_gets_its_share(raw: Raw, name: str, exchange: str, type_: str) -> None:
    declare(raw, exchange, type_)
    names = queues(raw, name, 2)
    for each, key in ((names[0], "a"), (names[0], "b"), (names[1], "a")):
        bind(raw, exchange, each, key)
    for i in range(900):
        raw.publish(1, exchange, f"k{i}", b"")
    twice, _ = shares(raw, names, 900)
    assert 500 < twice < 700


@pytest.mark.parametrize("type_", [HASH, "x-random", "x-modulus-hash"])
def test_further_keys_make_no_copies(raw: Raw, name: str, exchange: str, type_: str) -> None:
    declare(raw, exchange, type_)
    names = queues(raw, name, 3)
    for each in names:
        bind(raw, exchange, each)
    for i in range(60):
        raw.publish(1, exchange, f"k{i}", b"", headers={"CC": ["a", "b"], "BCC": ["c", "d"]})
    raw.publish(1, "", names[0], b"last")
    shares(raw, names, 61)


@pytest.mark.parametrize("type_", [HASH, "x-random", "x-modulus-hash"])
def test_unroutable_without_bindings(raw: Raw, exchange: str, type_: str) -> None:
    declare(raw, exchange, type_)
    raw.publish(1, exchange, "k", b"m", mandatory=True)
    assert raw.message(m.BasicReturn).method.reply_code == 312


# -- x-recent-history ----------------------------------------------------------------------------------------

HISTORY = "x-recent-history"


@pytest.mark.parametrize(("length", "said"), [(0, "0"), (-3, "-3"), ("5", '<<"5">>'), (2.5, "2.5")])
def test_lengths_that_are_refused(raw: Raw, name: str, length: Any, said: str) -> None:
    raw.put(1, m.ExchangeDeclare(name, HISTORY, arguments={"x-recent-history-length": length}))
    text = f"PRECONDITION_FAILED - Invalid argument {said}, 'x-recent-history-length' must be a positive integer"
    assert raw.channel_error(406).reply_text == text


def publish(raw: Raw, exchange: str, *bodies: bytes, **properties: Any) -> None:
    """On a channel with confirms, so that the exchange has them."""
    raw.channel(70, confirm=True)
    for body in bodies:
        raw.publish(70, exchange, "key", body, **properties)
    while raw.expect(m.BasicAck).delivery_tag < len(bodies):
        pass
    raw.call(70, m.ChannelClose(200, "done"), m.ChannelCloseOk)


@pytest.mark.parametrize("length", [None, 3])
def test_a_new_queue_gets_the_last_messages(raw: Raw, name: str, exchange: str, length: int | None) -> None:
    declare(raw, exchange, HISTORY, **({} if length is None else {"x_recent_history_length": length}))
    kept = length or 20
    bodies = [b"%d" % i for i in range(30)]
    publish(raw, exchange, *bodies)
    publish(raw, exchange, b"not this one", headers={"x-recent-history-no-store": True})
    raw.declare(name)
    bind(raw, exchange, name, "any")
    assert wait_until(lambda: raw.count(name) == kept)
    assert raw.drain(name) == bodies[-kept:]
    publish(raw, exchange, b"later", headers={"x-recent-history-no-store": True})
    assert wait_until(lambda: raw.count(name) == 1)
    bind(raw, exchange, name, "another")
    assert wait_until(lambda: raw.count(name) == 1 + kept)


def test_an_exchange_that_is_bound_routes_the_history(raw: Raw, name: str, exchange: str) -> None:
    declare(raw, exchange, HISTORY)
    publish(raw, exchange, b"a", b"b")
    raw.call(1, m.ExchangeDeclare(name + ".y", "direct", auto_delete=True), m.ExchangeDeclareOk)
    raw.declare(name)
    bind(raw, name + ".y", name, "key")
    raw.call(1, m.ExchangeBind(name + ".y", exchange, "any"), m.ExchangeBindOk)
    assert wait_until(lambda: raw.count(name) == 2)
    assert sorted(raw.drain(name)) == [b"a", b"b"]  # RabbitMQ sends the newest one first here


def test_what_nobody_gets_is_returned_and_kept(raw: Raw, name: str, exchange: str) -> None:
    declare(raw, exchange, HISTORY)
    raw.publish(1, exchange, "key", b"a", mandatory=True, headers={"CC": ["b"]})
    assert raw.message(m.BasicReturn).method.reply_code == 312
    raw.declare(name)
    bind(raw, exchange, name, "any")
    assert wait_until(lambda: raw.count(name) == 1)
    assert raw.drain(name) == [b"a"]


def test_the_types_are_listed(api: Http) -> None:
    listed = {each["name"] for each in api.get("/api/overview")["exchange_types"]}
    assert {"direct", "fanout", "topic", "headers", HASH, HISTORY, "x-modulus-hash", "x-random"} <= listed
