"""Topic permissions are enforced as RabbitMQ does: publishing checks write on the routing key, binding and unbinding checks read."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.broker.administration.auth import Users
from kvitto.broker.administration.topics import TopicPermission
from kvitto.broker.routing.patterns import InvalidPattern
from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from kvitto.wire.properties import Properties
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.protocol.sessions import content


def harness_with(write: str, read: str, exchange: str = "amq.topic") -> ProtocolHarness:
    harness = ProtocolHarness()
    harness.broker.users.set_topic_permission("guest", "/", exchange, write, read)
    harness.broker.vhosts["/"].declare_queue("q", False, False, False, {}, None)
    return harness


def said(wire: Wire, harness: ProtocolHarness) -> list[Method]:
    harness.settle_down()
    return wire.methods()


def publish(wire: Wire, key: str, exchange: str = "amq.topic", headers: dict[str, Any] | None = None) -> None:
    properties = Properties(headers=headers) if headers else Properties()
    wire.feed(content(1, m.BasicPublish(exchange, key), properties.encode(), b"body"))


def refusal(found: list[Method]) -> str:
    (close,) = (method for method in found if isinstance(method, m.ChannelClose))
    assert close.reply_code == 403
    return close.reply_text


def test_publishing_checks_write_on_the_routing_key() -> None:
    harness = harness_with("^a\\.", ".*")
    wire = harness.wire()
    publish(wire, "a.b")
    publish(wire, "a.c")
    assert not [x for x in said(wire, harness) if isinstance(x, m.ChannelClose)]
    publish(wire, "b.a")
    assert refusal(said(wire, harness)) == (
        "ACCESS_REFUSED - write access to topic 'b.a' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"
    )


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_copies_need_the_permission_too(header: str) -> None:
    harness = harness_with("^a", ".*")
    wire = harness.wire()
    publish(wire, "a", headers={header: ["a.1"]})
    assert not [x for x in said(wire, harness) if isinstance(x, m.ChannelClose)]
    publish(wire, "a", headers={header: ["a", "b"]})
    assert "write access to topic 'b'" in refusal(said(wire, harness))


def test_binding_and_unbinding_check_read() -> None:
    for method in (m.QueueBind("q", "amq.topic", "b"), m.QueueUnbind("q", "amq.topic", "b"),
                   m.ExchangeBind("amq.fanout", "amq.topic", "b"), m.ExchangeUnbind("amq.fanout", "amq.topic", "b")):  # fmt: skip
        harness = harness_with(".*", "^a$")
        wire = harness.wire()
        wire.put(1, m.QueueBind("q", "amq.topic", "a"), method)
        assert "read access to topic 'b' in exchange 'amq.topic'" in refusal(said(wire, harness))


def test_other_exchanges_and_other_users_are_free() -> None:
    harness = harness_with("^$", "^$", "amq.direct")
    wire = harness.wire()
    publish(wire, "x", "amq.direct")
    publish(wire, "x", "amq.topic")
    wire.put(1, m.QueueBind("q", "amq.direct", "x"), m.QueueBind("q", "amq.topic", "x"))
    assert not [x for x in said(wire, harness) if isinstance(x, m.ChannelClose)]


def test_an_open_channel_sees_a_change_at_once() -> None:
    harness = harness_with(".*", ".*")
    wire = harness.wire()
    publish(wire, "k")
    harness.broker.users.set_topic_permission("guest", "/", "amq.topic", "^other$", ".*")
    publish(wire, "k")
    assert "write access to topic 'k'" in refusal(said(wire, harness))
    harness.broker.users.clear_topic_permissions("guest", "/")
    wire = harness.wire()
    publish(wire, "k")
    assert not [x for x in said(wire, harness) if isinstance(x, m.ChannelClose)]


@pytest.mark.parametrize(
    ("user", "pattern", "key", "granted"),
    [
        ("ann", "^{username}\\.", "ann.x", True),
        ("ann", "^{username}\\.", "bob.x", False),
        ("a.n", "^{username}$", "abn", False),
        (".*", "^{username}$", "anything", False),
        (".*", "^{username}$", ".*", True),
        ("ann", "^{vhost}-{username}$", "/-ann", True),
        ("{vhost}", "^{username}$", "/", False),
        ("ann", "", "", True),
        ("ann", "", "x", False),
        ("ann", "{client_id}", "x", False),
    ],
)
def test_variables_stand_for_themselves(user: str, pattern: str, key: str, granted: bool) -> None:
    assert TopicPermission.of(user, "/", pattern, pattern).grants("write", key) is granted


def test_an_expression_that_cannot_be_searched_is_refused_and_a_stored_one_grants_nothing() -> None:
    with pytest.raises(InvalidPattern):
        TopicPermission.of("u", "/", "(", "")
    assert not TopicPermission.of("u", "/", "(", "", stored=True).grants("write", "(")


def test_they_are_definitions_and_go_with_the_user_and_the_vhost() -> None:
    harness = harness_with("^a", "^b")
    users: Users = harness.broker.users
    users.add("u", None)
    users.set_topic_permission("u", "/", "x", "", "")
    users.set_topic_permission("u", "v", "x", "", "")

    def stored() -> set[tuple[Any, ...]]:
        return {key for kind, key, _ in harness.store.definitions._list() if kind == "topic_permission"}

    assert stored() == {("/", "guest", "amq.topic"), ("/", "u", "x"), ("v", "u", "x")}
    users.forget_vhost("/")
    assert stored() == {("v", "u", "x")}
    users.delete("u")
    assert stored() == set()
