"""Exchange type x-recent-history: what a new destination gets first, and what becomes of the history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvitto.broker.administration import histories
from kvitto.broker.queues.look import Look, looks
from kvitto.broker.queues.queue import Queue
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.routing.recent_history import RecentHistoryIndex
from kvitto.broker.transfers.copying import copies
from kvitto.wire import methods as m
from kvitto.wire.methods import frame
from kvitto.wire.spec import FRAME_METHOD
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.protocol.test_stage import answers, ask, bodies, commit, publish, stage


@pytest.fixture
def wire() -> Wire:
    """With a durable exchange x that keeps three messages, and a second channel."""
    wire = ProtocolHarness().wire()
    wire.put(2, m.ChannelOpen())
    exchange(wire, "x", 3)
    return wire


def exchange(wire: Wire, name: str, length: int) -> None:
    arguments: dict[str, Any] = {"x-recent-history-length": length}
    ask(wire, 2, m.ExchangeDeclare(name, "x-recent-history", durable=True, arguments=arguments))


def bound(wire: Wire, queue: str, source: str = "x", **arguments: Any) -> str:
    known = {key.replace("_", "-"): value for key, value in arguments.items()}
    ask(wire, 2, m.QueueDeclare(queue, durable=True, arguments=known))
    assert isinstance(ask(wire, 2, m.QueueBind(queue, source, "")), m.QueueBindOk)
    return queue


def put(wire: Wire, *texts: str, channel: int = 1, **properties: Any) -> None:
    for text in texts:
        publish(wire, channel, "x", "key", text.encode(), **properties)
    wire.harness.settle_down()


def got(wire: Wire, queue: str) -> list[str]:
    return [body.decode() for body in bodies(wire, 2, queue)]


def test_a_new_queue_gets_the_last_messages_in_order(wire: Wire) -> None:
    put(wire, *"abcde")
    bound(wire, "q")
    assert got(wire, "q") == ["c", "d", "e"]
    put(wire, "f")
    assert got(wire, "q") == ["f"]
    assert got(wire, bound(wire, "other")) == ["d", "e", "f"], "the first one has taken nothing away"


def test_the_default_is_twenty_messages() -> None:
    wire = ProtocolHarness().wire()
    wire.put(2, m.ChannelOpen())
    ask(wire, 2, m.ExchangeDeclare("x", "x-recent-history"))
    put(wire, *(str(i) for i in range(30)))
    assert got(wire, bound(wire, "q")) == [str(i) for i in range(10, 30)]


def test_a_second_binding_sends_again_and_a_repeated_one_does_not(wire: Wire) -> None:
    put(wire, *"ab")
    bound(wire, "q")
    ask(wire, 2, m.QueueBind("q", "x", ""))
    assert got(wire, "q") == ["a", "b"]
    ask(wire, 2, m.QueueBind("q", "x", "another"))
    assert got(wire, "q") == ["a", "b"]
    put(wire, "c")
    assert got(wire, "q") == ["c"], "a message comes once, whatever the number of bindings"


def test_a_message_may_ask_not_to_be_kept(wire: Wire) -> None:
    bound(wire, "q")
    for value in (True, False, "true", 1):
        put(wire, repr(value), headers={"x-recent-history-no-store": value})
    assert got(wire, "q") == ["True", "False", "'true'", "1"]
    assert got(wire, bound(wire, "other")) == ["False", "'true'", "1"]


def test_properties_and_keys_are_kept(wire: Wire) -> None:
    put(wire, "a", message_id="7", headers={"h": [1, {"x": "y"}]})
    bound(wire, "q")
    wire.frames()
    wire.put(2, m.BasicGet("q", True))
    wire.harness.settle_down()
    (method, header, _) = [payload for _, _, payload in wire.frames()][:3]
    answer = m.decode(method)
    assert isinstance(answer, m.BasicGetOk) and (answer.exchange, answer.routing_key) == ("x", "key")
    assert not answer.redelivered and b"\x017" in header


def test_an_exchange_that_is_bound_routes_the_history(wire: Wire) -> None:
    put(wire, *"ab")
    ask(wire, 2, m.ExchangeDeclare("y", "direct"))
    ask(wire, 2, m.QueueDeclare("q"))
    ask(wire, 2, m.QueueBind("q", "y", "key"))
    ask(wire, 2, m.QueueDeclare("elsewhere"))
    ask(wire, 2, m.QueueBind("elsewhere", "y", "other"))
    assert isinstance(ask(wire, 2, m.ExchangeBind("y", "x", "")), m.ExchangeBindOk)
    wire.harness.settle_down()
    assert (got(wire, "q"), got(wire, "elsewhere")) == (["a", "b"], [])
    ask(wire, 2, m.ExchangeDeclare("nobody", "direct"))
    assert isinstance(ask(wire, 2, m.ExchangeBind("nobody", "x", "")), m.ExchangeBindOk)


def test_a_history_that_no_queue_gets_is_sent_in_pieces(wire: Wire) -> None:
    """Looking for its queues costs as much, whether there are any or not: 100,000 messages took a second in one piece."""
    exchange(wire, "long", 10_000)
    ask(wire, 2, m.ExchangeDeclare("nobody", "direct"))
    for n in range(1000):
        publish(wire, 1, "long", "key", str(n).encode())
    wire.harness.settle_down()
    wire.put(2, m.ExchangeBind("nobody", "long", ""))
    assert wire.harness.broker.jobs.waiting, "it was sent in one piece"
    wire.harness.settle_down()
    assert not wire.harness.broker.jobs.waiting


def test_sending_a_history_counts_for_the_connection_that_binds(wire: Wire) -> None:
    """The beginning of each history is sent at once, so many bindings in one read held up everybody."""
    exchange(wire, "long", 10_000)
    for n in range(histories.AT_ONCE):
        publish(wire, 1, "long", "key", str(n).encode())
    names = [f"q{n}" for n in range(20)]
    for name in names:
        ask(wire, 2, m.QueueDeclare(name))
    wire.harness.settle_down()
    wire.methods()
    wire.feed(b"".join(frame(FRAME_METHOD, 2, m.QueueBind(name, "long", "").encode()) for name in names))
    assert wire.connection.yielded
    filled = [name for name in names if wire.harness.broker.vhosts["/"].queue(name).ready]
    assert 0 < len(filled) < 5
    wire.harness.settle_down()
    assert sum(isinstance(method, m.QueueBindOk) for method in wire.methods()) == len(names)


@pytest.mark.parametrize("confirm", [False, True])
def test_a_message_that_nobody_gets_is_kept_and_returned(wire: Wire, confirm: bool) -> None:
    if confirm:
        ask(wire, 1, m.ConfirmSelect(False))
    publish(wire, 1, "x", "key", b"a", mandatory=True)
    publish(wire, 1, "x", "key", b"b")
    wire.harness.settle_down()
    found = wire.methods()
    assert isinstance(found[0], m.BasicReturn) and found[0].reply_code == 312
    acks = [method for method in found[1:] if isinstance(method, m.BasicAck)]
    assert len(found) == 1 + len(acks) and bool(acks) == confirm
    assert got(wire, bound(wire, "q")) == ["a", "b"]


def test_the_alternate_exchange_gets_what_nobody_gets() -> None:
    wire = ProtocolHarness().wire()
    wire.put(2, m.ChannelOpen())
    ask(wire, 2, m.ExchangeDeclare("rest", "fanout"))
    bound(wire, "q", "rest")
    arguments: dict[str, Any] = {"alternate-exchange": "rest"}
    ask(wire, 2, m.ExchangeDeclare("x", "x-recent-history", arguments=arguments))
    publish(wire, 1, "x", "key", b"a", mandatory=True)
    wire.harness.settle_down()
    assert not wire.methods()
    assert got(wire, "q") == ["a"] and got(wire, bound(wire, "late")) == ["a"]


def test_further_keys_make_no_copies_of_the_history(wire: Wire) -> None:
    put(wire, "a", headers={"CC": ["b", "c"]})
    assert got(wire, bound(wire, "q")) == ["a"]


def test_messages_from_transactions_stages_and_dead_letters_are_kept(wire: Wire) -> None:
    wire.put(3, m.ChannelOpen())
    ask(wire, 3, m.TxSelect())
    publish(wire, 3, "x", "key", b"tx", mandatory=True)
    wire.harness.settle_down()
    assert not wire.harness.broker.jobs.waiting
    found = answers(wire, 3, m.TxCommit())
    assert [type(method) for method in found] == [m.BasicReturn, m.TxCommitOk]
    ask(wire, 1, m.ConfirmSelect(False))
    stage(wire)
    put(wire, "stage")
    commit(wire)
    assert got(wire, bound(wire, "q")) == ["tx", "stage"]
    dead: dict[str, Any] = {"x-dead-letter-exchange": "x", "x-message-ttl": 0}
    ask(wire, 2, m.QueueDeclare("source", durable=True, arguments=dead))
    publish(wire, 2, "", "source", b"dead")
    for _ in range(5):
        wire.harness.settle_down()
    assert got(wire, "q") == ["dead"] and got(wire, bound(wire, "late")) == ["tx", "stage", "dead"]


@pytest.mark.parametrize("type_", ["x-recent-history", "x-delayed-message"])
def test_a_delayed_message_is_kept_when_it_is_due(type_: str) -> None:
    wire = ProtocolHarness().wire()
    wire.put(2, m.ChannelOpen())
    both: dict[str, Any] = {"x-delayed-exchange": True, "x-delayed-type": "x-recent-history"}
    ask(wire, 2, m.ExchangeDeclare("x", type_, arguments=both))
    put(wire, "late", headers={"x-delay": 5000, "CC": ["other"]})
    put(wire, "early")
    assert got(wire, bound(wire, "q")) == ["early"]
    wire.harness.clock.advance(6.0)
    for _ in range(5):
        wire.harness.broker.tick()
        wire.harness.settle_down()
    assert got(wire, "q") == ["late"] and got(wire, bound(wire, "new")) == ["early", "late"]


def test_a_dead_letter_waits_for_a_queue_and_is_not_lost_to_the_history(wire: Wire) -> None:
    dead: dict[str, Any] = {"x-dead-letter-exchange": "x", "x-message-ttl": 0}
    ask(wire, 2, m.QueueDeclare("source", durable=True, arguments=dead))
    publish(wire, 2, "", "source", b"dead")
    for _ in range(3):
        wire.harness.settle_down()
    assert wire.harness.broker.vhosts["/"].queues["source"].messages == 1
    bound(wire, "q")
    for _ in range(5):
        wire.harness.clock.advance(60.0)
        wire.harness.broker.tick()
        wire.harness.settle_down()
    assert got(wire, "q") == ["dead"]


def test_a_restart_forgets_the_history_and_sends_nothing_again(wire: Wire) -> None:
    put(wire, *"ab")
    bound(wire, "q")
    wire.harness.settle_down()
    again = ProtocolHarness(wire.harness.disk.kill()).wire()
    again.put(2, m.ChannelOpen())
    assert got(again, "q") == ["a", "b"], "what was sent to a durable queue is there, once"
    assert got(again, bound(again, "late")) == []
    put(again, "c")
    assert got(again, "q") == ["c"] and got(again, bound(again, "later")) == ["c"]


def test_no_client_sees_the_history_and_nothing_is_left_of_it(wire: Wire) -> None:
    broker = wire.harness.broker
    vhost, before = broker.vhosts["/"], len(broker.queues)
    put(wire, *"abc")
    index = vhost.exchanges["x"].index
    assert isinstance(index, RecentHistoryIndex) and index.history is not None
    assert not vhost.queues and not broker.listed and len(broker.queues) == before == 1
    name = index.history.name
    [close] = answers(wire, 1, m.BasicGet(name, True))
    assert isinstance(close, m.ChannelClose) and close.reply_code == 404
    assert isinstance(ask(wire, 2, m.ExchangeDelete("x")), m.ExchangeDeleteOk)
    assert not broker.queues and index.history is None
    exchange(wire, "x", 3)
    assert got(wire, bound(wire, "q")) == []
    ask(wire, 2, m.ExchangeDelete("x"))
    wire.harness.settle_down()


def test_expired_messages_are_not_sent(wire: Wire) -> None:
    put(wire, "a", expiration="1000")
    put(wire, "b", expiration="60000")
    put(wire, "c")
    wire.harness.clock.advance(2.0)
    wire.harness.broker.tick()
    wire.harness.settle_down()
    assert got(wire, bound(wire, "q")) == ["b", "c"]


def test_large_messages_push_out_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "HISTORY_BYTES", 25_000)
    wire = ProtocolHarness().wire()
    wire.put(2, m.ChannelOpen())
    exchange(wire, "x", 100)
    put(wire, *(letter * 10_000 for letter in "abcd"))
    assert [body[0] for body in got(wire, bound(wire, "q"))] == ["c", "d"]
    put(wire, "e" * 30_000)
    assert [body[0] for body in got(wire, "q")] == ["e"], "too large to be kept, and delivered"


def test_a_long_history_is_sent_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = ProtocolHarness().wire()
    wire.put(2, m.ChannelOpen())
    exchange(wire, "x", 5000)
    put(wire, *(str(i) for i in range(3000)))
    ask(wire, 2, m.QueueDeclare("q", durable=True))
    wire.put(2, m.QueueBind("q", "x", ""))
    queue = wire.harness.broker.vhosts["/"].queues["q"]
    assert histories.AT_ONCE <= queue.next < 500
    for _ in range(100):
        wire.harness.settle_down()
    assert got(wire, "q") == [str(i) for i in range(3000)]


def test_histories_are_sent_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was begun by its binding and kept a message, of up to 64 MiB, while it waited for all others."""
    begun: list[int] = [0, 0]

    def counting(queue: WorkQueue, most: int) -> Iterator[Look | None]:
        begun[0] += 1
        begun[1] = max(begun)
        try:
            yield from looks(queue, most)
        finally:
            begun[0] -= 1

    monkeypatch.setattr(histories, "AT_ONCE", 1)
    monkeypatch.setattr(histories, "AT_ONCE_BYTES", 1000)
    monkeypatch.setattr(histories, "looks", counting)
    wire = ProtocolHarness().wire()
    wire.put(2, m.ChannelOpen())
    exchange(wire, "x", 20)
    texts = [str(number) * 40_000 for number in range(10, 20)]
    put(wire, *texts)
    names = [f"q{number}" for number in range(30)]
    for name in names:
        ask(wire, 2, m.QueueDeclare(name, durable=True))
    vhost = wire.harness.broker.vhosts["/"]
    for name in names:
        vhost.bind("x", vhost.queue(name), "", {})
    wire.harness.settle_down()
    assert begun[0] == 0 and begun[1] <= 2
    for name in names:
        assert got(wire, name) == texts


def test_a_small_history_does_not_wait_for_others(wire: Wire) -> None:
    exchange(wire, "long", 5000)
    for number in range(3000):
        publish(wire, 1, "long", "key", b"%d" % number)
    put(wire, *"abc")
    for name in ("q", "small"):
        ask(wire, 2, m.QueueDeclare(name, durable=True))
    vhost = wire.harness.broker.vhosts["/"]
    queues = vhost.queues
    vhost.bind("long", queues["q"], "", {})
    vhost.bind("x", queues["small"], "", {})
    assert queues["q"].next < 500 and queues["small"].next == 3
    wire.harness.settle_down()
    assert queues["q"].next == 3000


def test_what_is_published_while_a_history_waits_comes_once(wire: Wire) -> None:
    """The history had it, too, when its turn came."""
    exchange(wire, "long", 5000)
    for number in range(3000):
        publish(wire, 1, "long", "key", b"%d" % number)
    exchange(wire, "large", 4)
    texts = [letter * 10_000 for letter in "abcd"]
    for text in texts:
        publish(wire, 1, "large", "key", text.encode())
    for name in ("q", "other"):
        ask(wire, 2, m.QueueDeclare(name, durable=True))
    vhost = wire.harness.broker.vhosts["/"]
    vhost.bind("long", vhost.queues["other"], "", {})
    vhost.bind("large", vhost.queues["q"], "", {})
    publish(wire, 1, "large", "key", b"new")
    wire.harness.settle_down()
    assert sorted(got(wire, "q")) == [*texts[1:], "new"]


def test_a_history_that_fails_holds_up_no_other(monkeypatch: pytest.MonkeyPatch, wire: Wire) -> None:
    exchange(wire, "long", 5000)
    for number in range(1000):
        publish(wire, 1, "long", "key", b"%d" % number)
    wire.harness.settle_down()
    for name in ("first", "second"):
        ask(wire, 2, m.QueueDeclare(name, durable=True))
    vhost = wire.harness.broker.vhosts["/"]
    queues = vhost.queues
    vhost.bind("long", queues["first"], "", {})
    vhost.bind("long", queues["second"], "", {})

    def failing(to: list[Queue], *rest: Any) -> Iterator[bool]:
        assert to[0].name != "first", "as a mistake would"
        return copies(to, *rest)

    monkeypatch.setattr(histories, "copies", failing)
    wire.harness.settle_down()
    assert queues["first"].next < 1000 and queues["second"].next == 1000 and not vhost.senders.busy


def test_the_destination_goes_while_the_history_is_sent(wire: Wire) -> None:
    exchange(wire, "long", 5000)
    for i in range(2000):
        publish(wire, 1, "long", "key", b"%d" % i)
    wire.harness.settle_down()
    ask(wire, 2, m.QueueDeclare("q"))
    ask(wire, 2, m.QueueDeclare("q2"))
    wire.put(2, m.QueueBind("q", "long", ""))
    wire.put(2, m.QueueDelete("q"))
    wire.put(2, m.QueueBind("q2", "long", ""))
    wire.put(2, m.ExchangeDelete("long"))
    wire.harness.settle_down()
    assert not wire.harness.broker.jobs.waiting
    assert not any(isinstance(method, m.ChannelClose) for method in wire.methods())


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (-3, "-3"), ("5", '<<"5">>'), (2.5, "2.5"), (True, "True"), (None, "None")]
)
def test_a_length_that_cannot_be(value: Any, said: str) -> None:
    arguments = {"x-recent-history-length": value}
    [close] = answers(ProtocolHarness().wire(), 1, m.ExchangeDeclare("x", "x-recent-history", arguments=arguments))
    assert isinstance(close, m.ChannelClose) and close.reply_code == 406
    text = f"Invalid argument {said}, 'x-recent-history-length' must be a positive integer"
    assert close.reply_text == f"PRECONDITION_FAILED - {text}"


def test_a_history_counts_as_a_queue_for_the_limit() -> None:
    harness = ProtocolHarness()
    harness.broker.max_queues = 1
    wire = harness.wire()
    wire.put(2, m.ChannelOpen())
    exchange(wire, "x", 3)
    [close] = answers(wire, 1, m.ExchangeDeclare("y", "x-recent-history"))
    assert isinstance(close, m.ChannelClose) and close.reply_code == 406 and "the limit of 1 queues" in close.reply_text
    assert "y" not in harness.broker.vhosts["/"].exchanges
