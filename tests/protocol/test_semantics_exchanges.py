"""Exchanges and bindings: D1 and Q of the contract, on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from tests.protocol.raw import Raw

More = Callable[..., Raw]


def refused(raw: Raw, method: Method, code: int, says: str = "") -> None:
    """The method closes channel 1 with this code; it is opened again."""
    raw.put(1, method)
    close = raw.channel_error(code)
    assert says in close.reply_text, close.reply_text
    assert (close.class_id, close.method_id) == (method.CLASS_ID, method.METHOD_ID)
    raw.channel(1)


def exchange(raw: Raw, name: str, kind: str = "direct", **options: Any) -> str:
    raw.call(1, m.ExchangeDeclare(name, kind, **options), m.ExchangeDeclareOk)
    return name


def bind(raw: Raw, queue: str, source: str, key: str = "", **arguments: Any) -> None:
    known = {name.replace("_", "-"): value for name, value in arguments.items()}
    raw.call(1, m.QueueBind(queue, source, key, arguments=known), m.QueueBindOk)


def unbind(raw: Raw, queue: str, source: str, key: str = "", **arguments: Any) -> None:
    known = {name.replace("_", "-"): value for name, value in arguments.items()}
    raw.call(1, m.QueueUnbind(queue, source, key, known), m.QueueUnbindOk)


def reaches(raw: Raw, source: str, key: str, *queues: str, **headers: Any) -> list[int]:
    """Publish once; how many copies came into each of the queues, which are emptied."""
    if 98 not in raw.__dict__.setdefault("opened", set()):
        raw.channel(98, confirm=True)
        raw.__dict__["opened"].add(98)
    known = {name.replace("_", "-"): value for name, value in headers.items()}
    properties: dict[str, Any] = {"headers": known} if known else {}
    raw.publish(98, source, key, b"x", **properties)
    raw.expect(m.BasicAck)
    return [len(raw.drain(queue)) for queue in queues]


@pytest.mark.parametrize("kind", ["direct", "fanout", "headers", "topic"])
def test_the_same_declaration_again_is_fine(raw: Raw, name: str, kind: str) -> None:
    """D1."""
    for _ in range(2):
        exchange(raw, name, kind, durable=True, arguments={"alternate-exchange": "amq.fanout"})


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("type", {"type": "topic"}),
        ("durable", {"durable": False}),
        ("auto_delete", {"auto_delete": True}),
        ("internal", {"internal": True}),
        ("alternate-exchange", {"arguments": {}}),
        ("alternate-exchange", {"arguments": {"alternate-exchange": "amq.direct"}}),
    ],
)
def test_another_declaration_is_refused(raw: Raw, name: str, field: str, change: dict[str, Any]) -> None:
    """D1."""
    same: dict[str, Any] = {"type": "direct", "durable": True, "arguments": {"alternate-exchange": "amq.fanout"}}
    raw.call(1, m.ExchangeDeclare(name, **same), m.ExchangeDeclareOk)
    refused(raw, m.ExchangeDeclare(name, **(same | change)), 406, f"inequivalent arg '{field}' for exchange '{name}'")


def test_what_there_is_from_the_start(raw: Raw) -> None:
    """Q: the default exchange and amq.*."""
    for name in ("amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic"):
        raw.call(1, m.ExchangeDeclare(name, "direct", passive=True), m.ExchangeDeclareOk)
    exchange(raw, "amq.direct", "direct", durable=True)


def test_the_exchange_of_traces(raw: Raw, name: str) -> None:
    """Q: queues can be bound to `amq.rabbitmq.trace`, and clients cannot publish to it."""
    raw.call(1, m.ExchangeDeclare("amq.rabbitmq.trace", "topic", passive=True), m.ExchangeDeclareOk)
    raw.call(1, m.QueueDeclare(name), m.QueueDeclareOk)
    bind(raw, name, "amq.rabbitmq.trace", "#")
    raw.publish(1, "amq.rabbitmq.trace", "publish.x", b"x")
    raw.channel_error(403)


def test_passive_looks(raw: Raw, name: str) -> None:
    """Q."""
    refused(raw, m.ExchangeDeclare(name, "direct", passive=True), 404, f"no exchange '{name}' in vhost '/'")


def test_what_cannot_be_declared(raw: Raw, name: str) -> None:
    """Q: unknown types, arguments of the wrong type, the default exchange."""
    refused(raw, m.ExchangeDeclare(name, "direct", arguments={"alternate-exchange": 5}), 406)
    refused(raw, m.ExchangeDeclare("", "direct"), 403)
    raw.put(1, m.ExchangeDeclare(name, "x-none"))
    method = raw.method()[1]
    assert isinstance(method, m.ChannelClose | m.ConnectionClose) and method.reply_code in (406, 503)


def test_the_default_exchange_is_not_to_be_touched(raw: Raw, name: str) -> None:
    """Q: 403."""
    raw.declare(name)
    for method in (
        m.QueueBind(name, "", "k"),
        m.QueueUnbind(name, "", name),
        m.ExchangeDelete(""),
        m.ExchangeBind("", "amq.direct"),
        m.ExchangeBind("amq.direct", ""),
        m.ExchangeDelete("amq.direct"),
    ):
        refused(raw, method, 403)


def test_direct(raw: Raw, name: str) -> None:
    """Q: the key must be the same; one copy per queue however many bindings match."""
    exchange(raw, name)
    raw.declare(name)
    for key in ("a", "b", "a"):
        bind(raw, name, name, key)
    bind(raw, name, name, "a", other=1)
    assert reaches(raw, name, "a", name) == [1]
    assert reaches(raw, name, "A", name) == [0]
    unbind(raw, name, name, "a")
    assert reaches(raw, name, "a", name) == [1]
    unbind(raw, name, name, "a", other=1)
    assert reaches(raw, name, "a", name) == [0]
    assert reaches(raw, name, "b", name) == [1]


def test_fanout(raw: Raw, name: str) -> None:
    """Q: the key does not matter."""
    exchange(raw, name, "fanout")
    for queue in ("1", "2"):
        raw.declare(name + queue)
        bind(raw, name + queue, name, "ignored")
    assert reaches(raw, name, "any", name + "1", name + "2") == [1, 1]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "", "A.B"]),
        ("*", ["a"], ["", "a.b", "."]),
        ("*.b", ["a.b", ".b"], ["b", "a.a.b"]),
        ("#", ["", "a", "a.b.c", "."], []),
        ("a.#", ["a", "a.b", "a.b.c"], ["", "b", "ab"]),
        ("#.c", ["c", "a.c", "a.b.c"], ["", "c.a"]),
        ("a.#.c", ["a.c", "a.b.c", "a.b.b.c"], ["a", "c", "a.b"]),
        ("#.b.#", ["b", "a.b", "b.c", "a.b.c"], ["", "a", "ab.c"]),
        ("#.*", ["a", "a.b"], [""]),
        ("*.#.*", ["a.b", "a.b.c"], ["a"]),
        ("", [""], ["a"]),
    ],
)
def test_topic(raw: Raw, name: str, pattern: str, yes: list[str], no: list[str]) -> None:
    """Q: * is one word, # any number."""
    exchange(raw, name, "topic")
    raw.declare(name)
    bind(raw, name, name, pattern)
    for key in yes:
        assert reaches(raw, name, key, name) == [1], key
    for key in no:
        assert reaches(raw, name, key, name) == [0], key
    unbind(raw, name, name, pattern)
    for key in yes:
        assert reaches(raw, name, key, name) == [0], key


@pytest.mark.parametrize(
    ("mode", "yes", "no"),
    [
        ("all", [{"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 0}], [{"a": 1}, {"a": 2, "b": "x"}, {}]),
        ("any", [{"a": 1}, {"b": "x"}, {"a": 2, "b": "x"}], [{"a": 2}, {"c": 1}, {"x-c": 3}, {}]),
        ("all-with-x", [{"a": 1, "b": "x", "x-c": 3}], [{"a": 1, "b": "x"}]),
        ("any-with-x", [{"x-c": 3}, {"a": 1}], [{"x-c": 4}, {}]),
    ],
)
def test_headers(raw: Raw, name: str, mode: str, yes: list[dict[str, Any]], no: list[dict[str, Any]]) -> None:
    """Q: all four modes; x- arguments count only in those that say so."""
    exchange(raw, name, "headers")
    raw.declare(name)
    bind(raw, name, name, "", x_match=mode, a=1, b="x", x_c=3)
    for headers in yes:
        assert reaches(raw, name, "", name, **headers) == [1], headers
    for headers in no:
        assert reaches(raw, name, "", name, **headers) == [0], headers


def test_headers_without_a_mode_and_without_a_value(raw: Raw, name: str) -> None:
    """Q: all is the default, a void argument asks for presence only."""
    exchange(raw, name, "headers")
    raw.declare(name)
    bind(raw, name, name, "", a=None, b=1)
    assert reaches(raw, name, "", name, a="whatever", b=1) == [1]
    assert reaches(raw, name, "", name, b=1) == [0]


def test_an_unknown_mode_is_refused(raw: Raw, name: str) -> None:
    """Q: 406."""
    exchange(raw, name, "headers")
    raw.declare(name)
    refused(raw, m.QueueBind(name, name, "", arguments={"x-match": "some"}), 406)
    refused(raw, m.QueueBind(name, name, "", arguments={"x-match": 1}), 406)


def test_bindings_need_both_ends(raw: Raw, name: str) -> None:
    """Q: 404."""
    refused(raw, m.QueueBind(name, "amq.direct"), 404)
    raw.declare(name)
    refused(raw, m.QueueBind(name, name + ".none"), 404)
    refused(raw, m.ExchangeBind(name + ".none", "amq.direct"), 404)
    refused(raw, m.ExchangeBind("amq.direct", name + ".none"), 404)
    unbind(raw, name, "amq.direct", "never bound")


def test_a_route_is_right_when_bindings_change(raw: Raw, name: str) -> None:
    """Q: the second publish of the same key knows of the change before it."""
    exchange(raw, name, "topic")
    raw.declare(name)
    for _ in range(3):
        assert reaches(raw, name, "k", name) == [0]
        bind(raw, name, name, "#")
        assert reaches(raw, name, "k", name) == [1]
        unbind(raw, name, name, "#")
    bind(raw, name, name, "#")
    raw.call(1, m.QueueDelete(name), m.QueueDeleteOk)
    raw.declare(name)
    assert reaches(raw, name, "k", name) == [0]


def test_exchange_to_exchange(raw: Raw, name: str) -> None:
    """Q: over several steps, with a cycle, one copy."""
    first, second, third = (exchange(raw, name + n, "topic") for n in ("1", "2", "3"))
    raw.declare(name)
    for destination, source in ((second, first), (third, second), (first, third), (third, first)):
        raw.call(1, m.ExchangeBind(destination, source, "#"), m.ExchangeBindOk)
    bind(raw, name, third, "a.*")
    assert reaches(raw, first, "a.b", name) == [1]
    assert reaches(raw, first, "b.b", name) == [0]
    raw.call(1, m.ExchangeUnbind(third, second, "#"), m.ExchangeUnbindOk)
    assert reaches(raw, second, "a.b", name) == [0]
    raw.call(1, m.ExchangeDelete(third), m.ExchangeDeleteOk)
    assert reaches(raw, first, "a.b", name) == [0]


def test_an_alternate_gets_what_finds_no_way(raw: Raw, name: str) -> None:
    """Q: chains of them; mandatory is content with it; one that does not exist is passed over."""
    last = exchange(raw, name + ".last", "fanout")
    middle = exchange(raw, name + ".middle", "direct", arguments={"alternate-exchange": last})
    first = exchange(raw, name, "direct", arguments={"alternate-exchange": middle})
    raw.declare(name)
    raw.declare(name + ".other")
    bind(raw, name, last)
    bind(raw, name + ".other", first, "known")
    assert reaches(raw, first, "known", name, name + ".other") == [0, 1]
    assert reaches(raw, first, "unknown", name, name + ".other") == [1, 0]
    raw.publish(98, first, "unknown", b"x", mandatory=True)
    raw.expect(m.BasicAck)
    raw.call(1, m.ExchangeDelete(middle), m.ExchangeDeleteOk)
    raw.publish(98, first, "unknown", b"x", mandatory=True)
    assert raw.message(m.BasicReturn).method.reply_code == 312
    raw.expect(m.BasicAck)


def test_internal_is_not_for_publishers(raw: Raw, name: str) -> None:
    """W5: 403; through a binding it is reached."""
    inner = exchange(raw, name + ".inner", "fanout", internal=True)
    outer = exchange(raw, name, "fanout")
    raw.declare(name)
    raw.call(1, m.ExchangeBind(inner, outer), m.ExchangeBindOk)
    bind(raw, name, inner)
    assert reaches(raw, outer, "", name) == [1]
    raw.publish(1, inner, "", b"x")
    raw.channel_error(403)


def test_auto_delete_goes_with_its_last_binding(raw: Raw, name: str) -> None:
    """Q: unbound, or its queue deleted; not before it has had one."""
    raw.declare(name)
    for way in (m.QueueUnbind(name, name, "b"), m.QueueDelete(name)):
        exchange(raw, name, auto_delete=True)
        bind(raw, name, name, "a")
        bind(raw, name, name, "b")
        unbind(raw, name, name, "a")
        raw.call(1, m.ExchangeDeclare(name, "direct", passive=True), m.ExchangeDeclareOk)
        raw.put(1, way)
        assert isinstance(raw.method()[1], m.QueueUnbindOk | m.QueueDeleteOk)
        refused(raw, m.ExchangeDeclare(name, "direct", passive=True), 404)


def test_delete(raw: Raw, name: str) -> None:
    """W5: if_unused; again is fine."""
    exchange(raw, name)
    raw.declare(name)
    bind(raw, name, name)
    refused(raw, m.ExchangeDelete(name, if_unused=True), 406)
    unbind(raw, name, name)
    for _ in range(2):
        raw.call(1, m.ExchangeDelete(name, if_unused=True), m.ExchangeDeleteOk)


def test_publish_needs_the_exchange(raw: Raw, name: str) -> None:
    """W5: 404, also when it went a moment ago."""
    exchange(raw, name, "fanout")
    assert reaches(raw, name, "") == []
    raw.call(1, m.ExchangeDelete(name), m.ExchangeDeleteOk)
    raw.publish(1, name, "", b"x")
    close = raw.channel_error(404)
    assert close.reply_text == f"NOT_FOUND - no exchange '{name}' in vhost '/'"
    assert (close.class_id, close.method_id) == (60, 40)


def test_many_publishes_behind_a_failed_one_are_ignored(raw: Raw, name: str) -> None:
    """W3: until the peer has seen the channel close; the connection lives on."""
    raw.declare(name)
    raw.publish(1, name + ".none", "", b"x")
    for _ in range(50):
        raw.publish(1, "", name, b"x" * 100)
    raw.put(1, m.BasicGet(name), m.BasicAck(5))
    raw.channel_error(404)
    raw.channel(1)
    assert raw.count(name) == 0
