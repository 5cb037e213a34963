"""Exchanges that deduplicate: what a publisher and a consumer see of them, and what a start finds."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from kvitto.base.limits import Limits
from kvitto.broker.queues.passage import Passage
from kvitto.broker.transfers import onward
from kvitto.store.repair.survey import Survey
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Table
from tests.protocol import sessions
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.protocol.test_limits import ask, close_of

DEDUPLICATION: Table = {"x-message-deduplication": True}
Method = m.Method


class House:
    """A broker with a durable exchange that deduplicates, a queue bound to it with the key "k", and a publisher with confirms."""

    def __init__(self, kind: str = "direct", durable: bool = True, **limits: Any) -> None:
        self.harness = ProtocolHarness(limits=Limits(**limits))
        self.wire = self.harness.wire()
        self.declare("e", kind, durable)
        self.ask(m.QueueDeclare("q", durable=True), m.QueueBind("q", "e", "k"))
        self.publisher = self.harness.wire()
        ask(self.publisher, m.ConfirmSelect())

    def ask(self, *methods: Method) -> list[Method]:
        return ask(self.wire, *methods)

    def declare(self, name: str, kind: str = "direct", durable: bool = True, **arguments: Any) -> None:
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        made = self.ask(m.ExchangeDeclare(name, kind, durable=durable, arguments={**DEDUPLICATION, **named}))
        assert made == [m.ExchangeDeclareOk()]

    def passage(self, name: str = "e") -> Passage:
        found = self.harness.broker.vhosts["/"].exchanges[name].passage
        assert found is not None
        return found

    def ready(self, name: str = "q") -> int:
        return self.harness.broker.vhosts["/"].queues[name].ready

    def send(
        self,
        key: object,
        body: bytes = b"",
        routing_key: str = "k",
        exchange: str = "e",
        mandatory: bool = False,
        wire: Wire | None = None,
        **properties: Any,
    ) -> None:
        """Publish a message with this deduplication key, None for none. No turn yet."""
        headers = properties.pop("headers", {}) | ({} if key is None else {"x-deduplication-header": key})
        props = Properties(headers=headers, **properties).encode()
        (wire or self.publisher).feed(
            sessions.content(1, m.BasicPublish(exchange, routing_key, mandatory), props, body)
        )

    def answers(self) -> list[Method]:
        self.settle()
        return self.publisher.methods()

    def settle(self) -> None:
        self.harness.settle_down()

    def wait(self, seconds: float) -> None:
        self.harness.clock.advance(seconds)
        self.harness.broker.tick()
        self.settle()

    def get(self, queue: str = "q") -> tuple[bytes, Properties] | None:
        """Take one message and ack it."""
        wire = self.harness.wire()
        wire.put(1, m.BasicGet(queue, True))
        self.settle()
        frames = wire.frames()
        if len(frames) < 2:
            return None
        return b"".join(payload for kind, _, payload in frames if kind == 3), Properties.decode(frames[1][2][12:])

    def take(self, queue: str = "q") -> list[bytes]:
        return [found[0] for found in iter(lambda: self.get(queue), None)]

    def kill(self) -> None:
        self.begin(ProtocolHarness(self.harness.disk.kill(), self.harness.clock))

    def cut(self, rng: Random, hostile: bool = False) -> None:
        self.begin(ProtocolHarness(self.harness.disk.crash(rng, hostile=hostile), self.harness.clock))

    def begin(self, harness: ProtocolHarness) -> None:
        self.harness = harness
        self.wire, self.publisher = harness.wire(), harness.wire()
        ask(self.publisher, m.ConfirmSelect())
        self.settle()


@pytest.fixture
def house() -> House:
    return House()


def test_a_message_with_a_known_key_is_dropped_and_confirmed(house: House) -> None:
    for key in "abacb":
        house.send(key, key.encode())
    assert house.answers() == [m.BasicAck(5, True)]
    assert house.take() == [b"a", b"b", b"c"]
    assert house.passage().duplicates == 2 and house.passage().messages == 0
    for key in "ab":
        house.send(key)
    house.settle()
    assert house.take() == [], "what was acked is still known"
    house.kill()
    for key in "abcd":
        house.send(key, key.encode())
    house.settle()
    assert house.take() == [b"d"]


def test_all_queues_have_a_message_or_none_at_each_moment_of_a_crash() -> None:
    """The key is in the passage with its message, and one record brings it to all queues."""
    for steps, power in itertools.product(range(12), (False, True)):
        house = House("fanout")
        house.ask(m.QueueDeclare("r", durable=True), m.QueueBind("r", "e", ""))
        house.send("a", b"a")
        for _ in range(steps):
            if house.harness.store.commits.waiting:
                house.harness.sync()
            else:
                house.harness.turn()
        confirmed = house.publisher.methods() != []
        house.cut(Random(steps), hostile=True) if power else house.kill()
        before = house.passage().remembers(Properties(headers={"x-deduplication-header": "a"}).encode())
        house.send("a", b"a")
        house.settle()
        assert (house.take("q"), house.take("r")) == ([b"a"], [b"a"]), (steps, power)
        assert before or not confirmed


def test_a_confirm_means_that_the_message_is_durable_in_the_passage(house: House) -> None:
    for key in "12":  # a commit with new files waits for another one
        house.send(key)
        house.answers()
    house.send("a", b"a")
    house.harness.turn()
    assert house.publisher.methods() == []
    house.harness.sync()
    assert house.publisher.methods() == [m.BasicAck(3, False)] and house.ready() == 2
    house.kill()
    assert house.take() == [b"", b"", b"a"]


def test_a_duplicate_is_confirmed_when_its_original_is_durable(house: House) -> None:
    house.send("a")
    house.harness.turn()
    house.send("a")
    house.harness.turn()
    assert house.publisher.methods() == []
    assert house.answers() == [m.BasicAck(2, True)]


def test_the_type_of_the_plugin_routes_to_all_queues() -> None:
    house = House()
    assert house.ask(m.ExchangeDeclare("p", "x-message-deduplication", durable=True, arguments={"x-cache-size": "5"}))
    house.ask(m.QueueDeclare("r", durable=True), m.QueueBind("q", "p", "x"), m.QueueBind("r", "p", "y"))
    for key in "aab":
        house.send(key, key.encode(), "whatever", "p")
    house.settle()
    assert (house.take("q"), house.take("r")) == ([b"a", b"b"], [b"a", b"b"])
    assert house.passage("p").table.capacity == 5


@pytest.mark.parametrize("kind", ["fanout", "topic", "headers", "x-consistent-hash", "x-random", "x-recent-history"])
def test_every_type_can_deduplicate(kind: str) -> None:
    house = House()
    house.declare("t", kind)
    house.ask(m.QueueDeclare("r", durable=True), m.QueueBind("r", "t", "1" if "hash" in kind else "#", arguments={}))
    for key in "aab":
        house.send(key, key.encode(), "x", "t")
    house.settle()
    assert house.take("r") == [b"a", b"b"]


def test_a_history_keeps_what_nobody_gets_and_has_each_message_once() -> None:
    house = House()
    house.declare("h", "x-recent-history")
    for key in "aab":
        house.send(key, key.encode(), "x", "h")
    house.settle()
    house.ask(m.QueueDeclare("r", durable=True), m.QueueBind("r", "h", ""))
    assert house.take("r") == [b"a", b"b"]


def test_messages_of_all_kinds_keep_their_order() -> None:
    house = House("topic")
    house.ask(m.QueueDeclare("all", durable=True), m.QueueBind("all", "e", "#"))
    sent = []
    for i in range(60):
        body = b"%d" % i + (bytes(3 << 20) if i in (20, 21) else b"")
        more: dict[str, Any] = {"expiration": "100000"} if i % 5 == 0 else {}
        if i % 7 == 0:
            more["headers"] = {"CC": ["y"]}
        key = None if i % 3 == 0 else i
        house.send(key, body, "k" if i % 2 else f"x{i}", delivery_mode=1 + i % 2, **more)
        sent.append(body)
        if i % 10 == 0:
            house.harness.turn()
    assert house.answers()[-1] == m.BasicAck(60, True)
    assert [body[:3].strip(b"\0") for body in house.take("all")] == [body[:3].strip(b"\0") for body in sent]


def test_a_message_that_no_queue_would_get_is_returned_and_leaves_no_key(house: House) -> None:
    house.send("a", b"a", "other", mandatory=True)
    answers = house.answers()
    assert isinstance(answers[0], m.BasicReturn) and answers[1:] == [m.BasicAck(1, False)]
    house.ask(m.QueueBind("q", "e", "other"))
    house.send("a", b"a", "other", mandatory=True)
    house.send("a", b"a", "other", mandatory=True)
    assert house.answers() == [m.BasicAck(3, True)], "a duplicate is not returned"
    assert house.take() == [b"a"]


def test_the_alternate_exchange_gets_what_no_binding_matches() -> None:
    house = House()
    house.ask(m.QueueDeclare("rest", durable=True), m.ExchangeDeclare("alt", "fanout"), m.QueueBind("rest", "alt", ""))
    house.declare("f", alternate_exchange="alt")
    house.ask(m.QueueBind("q", "f", "k"))
    for key in "aab":
        house.send(key, key.encode(), "k" if key == "a" else "nowhere", "f", mandatory=True)
    assert house.answers() == [m.BasicAck(3, True)]
    assert (house.take("q"), house.take("rest")) == ([b"a"], [b"b"])


def test_a_message_whose_queues_have_gone_meanwhile_is_dropped(house: House) -> None:
    house.send("a", b"a")
    house.harness.turn()
    house.wire.put(1, m.QueueUnbind("q", "e", "k"))
    house.settle()
    assert house.passage().messages == 0 and house.take() == []
    assert house.harness.broker.vhosts["/"].exchanges["e"].traffic.dropped == 1


def test_a_full_queue_holds_up_the_exchange_and_further_messages_are_refused() -> None:
    house = House("fanout")
    full: Table = {"x-max-length": 2, "x-overflow": "reject-publish"}
    house.ask(m.QueueDeclare("few", durable=True, arguments=full), m.QueueBind("few", "e", ""))
    for key in "abcd":
        house.send(key, key.encode())
    assert house.answers() == [m.BasicAck(4, True)], "they were in the passage before it was known that a queue is full"
    assert (house.ready("q"), house.ready("few"), house.passage().messages) == (2, 2, 2)
    house.send("e", b"e")
    house.send("a", b"a")
    house.send(None, b"f")
    refused = {method.delivery_tag for method in house.answers() if isinstance(method, m.BasicNack)}
    assert refused == {5, 7}, "and not the duplicate"
    house.kill()
    assert house.get("few") is not None
    house.wait(0.1)
    assert (house.ready("q"), house.ready("few"), house.passage().messages) == (3, 2, 1)
    assert house.take("few")[:2] == [b"b", b"c"]
    house.wait(0.1)
    assert house.take("few") == [b"d"]
    house.send("e", b"e")
    assert house.answers() == [m.BasicAck(1, False)], "what was refused has left no key"
    assert house.take("few") == [b"e"] and house.take("q") == [b"a", b"b", b"c", b"d", b"e"]


def test_a_queue_that_can_never_take_a_message_is_left_out() -> None:
    house = House("fanout")
    tiny: Table = {"x-max-length-bytes": 2, "x-overflow": "reject-publish"}
    house.ask(m.QueueDeclare("tiny", durable=True, arguments=tiny), m.QueueBind("tiny", "e", ""))
    for key in ("a", "long", "b"):
        house.send(key, key.encode())
    house.settle()
    assert (house.take("q"), house.take("tiny")) == ([b"a", b"long", b"b"], [b"a", b"b"])


def test_a_transaction_is_compared_as_a_whole_and_one_that_is_rolled_back_leaves_no_key(house: House) -> None:
    wire = house.harness.wire()
    ask(wire, m.TxSelect())
    for key in "aba":
        house.send(key, key.encode(), wire=wire)
    assert ask(wire, m.TxRollback()) == [m.TxRollbackOk()]
    for key in "bab":
        house.send(key, key.encode(), wire=wire)
        house.send(key, key.encode(), "q", "", wire=wire)
    assert ask(wire, m.TxCommit()) == [m.TxCommitOk()]
    house.kill()
    house.settle()
    assert sorted(house.take()) == sorted([b"b", b"a", b"b", b"b", b"a"])


def test_messages_of_a_stage_are_compared_when_they_are_committed(house: House) -> None:
    wire = house.harness.wire()
    ask(wire, m.StageOpen("w", 1, "t"))
    for key in "aab":
        house.send(key, key.encode(), wire=wire)
    ask(wire, m.StageCommit("w", 1, b"t"))
    house.settle()
    house.wait(0.1)
    assert house.take() == [b"a", b"b"]


def test_copies_go_to_all_keys_and_nobody_sees_bcc(house: House) -> None:
    house.ask(m.QueueDeclare("cc", durable=True), m.QueueDeclare("bcc", durable=True))
    house.ask(m.QueueBind("cc", "e", "c"), m.QueueBind("bcc", "e", "b"))
    for _ in range(2):
        house.send("a", b"a", headers={"CC": ["c"], "BCC": ["b"]})
    house.settle()
    for queue in ("q", "cc", "bcc"):
        found = house.get(queue)
        assert (
            found is not None and found[0] == b"a" and set(found[1].headers or {}) == {"x-deduplication-header", "CC"}
        )
        assert house.get(queue) is None


def test_the_time_to_live_begins_in_the_queue(house: House) -> None:
    house.send("a", b"a", expiration="1000")
    house.settle()
    house.wait(0.9)
    assert house.ready() == 1
    house.wait(0.2)
    assert house.ready() == 0


def test_bindings_between_exchanges_and_circles_of_them(house: House) -> None:
    """Each exchange that deduplicates on the way compares, but a message does not run in circles."""
    house.declare("f", "fanout")
    house.ask(m.ExchangeDeclare("s", "fanout", durable=True), m.QueueDeclare("r", durable=True), m.QueueDeclare("u"))
    house.ask(m.ExchangeBind("e", "s", "k"), m.ExchangeBind("f", "e", "k"), m.ExchangeBind("e", "f", "k"))
    house.ask(m.QueueBind("r", "f", ""), m.QueueBind("u", "s", ""))
    for key in ("a", "a", None):
        house.send(key, b"%a" % key, "k", "s")
    house.settle()
    assert house.take("u") == [b"'a'", b"'a'", b"None"], "not behind an exchange that deduplicates"
    assert (house.take("q"), house.take("r")) == ([b"'a'", b"None"], [b"'a'", b"None"])
    house.send("a", b"again", "k", "f")
    house.settle()
    assert house.passage("e").messages == house.passage("f").messages == 0


def test_exchanges_one_behind_the_other_compare_both(house: House) -> None:
    house.declare("f", "fanout")
    house.ask(m.QueueDeclare("r", durable=True), m.QueueBind("r", "f", ""), m.ExchangeBind("f", "e", "k"))
    house.send("a", b"a", "k", "f")
    house.send("a", b"a", "k", "e")
    house.send("b", b"b", "k", "e")
    house.settle()
    assert (house.take("q"), house.take("r")) == ([b"a", b"b"], [b"a", b"b"])
    assert house.passage("f").duplicates == 1


def test_a_dead_letter_is_not_a_duplicate_of_itself(house: House) -> None:
    """Retry by a queue with a time to live, by way of the same exchange."""
    house.ask(
        m.QueueDeclare(
            "work", durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "later"}
        ),
        m.QueueBind("work", "e", "w"),
        m.QueueDeclare(
            "later",
            durable=True,
            arguments={"x-message-ttl": 100, "x-dead-letter-exchange": "e", "x-dead-letter-routing-key": "w"},
        ),
    )
    house.send("a", b"a", "w")
    house.settle()
    house.wire.put(1, m.BasicGet("work", False), m.BasicReject(1, False))
    house.settle()
    house.wait(0.2)
    assert house.take("work") == [b"a"]
    house.send("a", b"a", "w")
    house.settle()
    assert house.take("work") == []


def test_dead_letters_do_not_run_in_circles(house: House) -> None:
    """X3: a message that expires in a queue does not come back to it without a rejection."""
    arguments: Table = {"x-message-ttl": 0, "x-dead-letter-exchange": "e", "x-dead-letter-routing-key": "c"}
    house.ask(m.QueueDeclare("circle", durable=True, arguments=arguments), m.QueueBind("circle", "e", "c"))
    house.send("a", b"a", "c")
    for _ in range(5):
        house.settle()
        house.wait(0.01)
    assert house.ready("circle") == house.passage().messages == 0
    assert house.harness.broker.vhosts["/"].queues["circle"].published == 1


def test_an_exchange_may_deduplicate_and_delay(house: House) -> None:
    house.ask(
        m.ExchangeDeclare(
            "d", "x-delayed-message", durable=True, arguments={**DEDUPLICATION, "x-delayed-type": "direct"}
        )
    )
    house.ask(m.QueueBind("q", "d", "k"))
    for key in "aab":
        house.send(key, key.encode(), exchange="d", headers={"x-delay": 1000})
    house.send("now", b"now", exchange="d")
    assert house.answers() == [m.BasicAck(4, True)]
    assert house.take() == [b"now"]
    house.kill()
    house.wait(1.0)
    house.wait(0.01)
    assert house.take() == [b"a", b"b"]


def test_an_internal_exchange_is_reached_by_others_only(house: House) -> None:
    house.ask(m.ExchangeDeclare("i", "fanout", durable=True, internal=True, arguments=DEDUPLICATION))
    house.ask(m.ExchangeDeclare("s", "fanout", durable=True), m.ExchangeBind("i", "s", ""), m.QueueBind("q", "i", ""))
    for _ in range(2):
        house.send("a", b"a", "", "s")
    house.settle()
    assert house.take() == [b"a"]
    house.send("a", b"a", "", "i")
    assert close_of(house.answers())[1] == 403


def test_messages_in_the_passage_are_deleted_with_the_exchange(house: House) -> None:
    house.send("a", b"a")
    house.harness.turn()
    house.wire.put(1, m.ExchangeDelete("e"))
    house.settle()
    assert house.take() == [] and house.harness.broker.queues.keys() == {
        queue.log.queue_id for queue in house.harness.broker.listed
    }
    house.kill()
    assert "e" not in house.harness.broker.vhosts["/"].exchanges
    house.declare("e")
    house.ask(m.QueueBind("q", "e", "k"))
    house.send("a", b"a")
    house.settle()
    assert house.take() == [b"a"], "its keys are gone, too"


def test_an_exchange_that_is_not_durable_compares_while_the_broker_runs() -> None:
    house = House(durable=False)
    house.ask(m.QueueDeclare("t"), m.QueueBind("t", "e", "k"))
    for key in "aab":
        house.send(key, key.encode() + bytes(3 << 20))
    house.settle()
    assert [body[:1] for body in house.take("q")] == [body[:1] for body in house.take("t")] == [b"a", b"b"]
    house.kill()
    assert "e" not in house.harness.broker.vhosts["/"].exchanges


def test_queues_that_are_not_durable_get_their_copies(house: House) -> None:
    house.ask(m.QueueDeclare("t"), m.QueueBind("t", "e", "k"))
    for key in "aab":
        house.send(key, key.encode())
    house.send("large", bytes(3 << 20))
    house.settle()
    assert len(house.take("q")) == len(house.take("t")) == 3


def test_a_message_for_very_many_queues_is_moved_in_pieces_and_in_several_records_if_it_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(onward, "LETTER_MAX", 3 << 20)
    house = House("fanout")
    names = [f"m{i}" for i in range(5)]
    for name in names:
        house.ask(m.QueueDeclare(name, durable=True), m.QueueBind(name, "e", ""))
    for key in "aab":
        house.send(key, key.encode() + bytes(1 << 20))
    house.send("c", b"c")
    house.settle()
    for name in [*names, "q"]:
        assert [body[:1] for body in house.take(name)] == [b"a", b"b", b"c"], name


def test_the_key_may_be_the_message_id_or_another_header() -> None:
    house = House()
    house.declare("ids", "fanout", x_deduplication_by="message-id")
    house.declare("named", "fanout", x_deduplication_header="order")
    house.ask(m.QueueBind("q", "ids", ""), m.QueueBind("q", "named", ""))
    for _ in range(2):
        house.send(None, b"id", "", "ids", message_id="1")
        house.send(None, b"order", "", "named", headers={"order": 7})
    house.settle()
    assert sorted(house.take()) == [b"id", b"order"]


def test_a_key_is_known_for_some_time_and_among_so_many() -> None:
    house = House()
    house.declare("short", "fanout", x_cache_ttl=1000, x_cache_size=2)
    house.ask(m.QueueBind("q", "short", ""))

    def taken(key: str) -> bool:
        house.send(key, key.encode(), "", "short")
        house.settle()
        return house.take() == [key.encode()]

    assert [taken(key) for key in "abab"] == [True, True, False, False]
    assert [taken(key) for key in "ca"] == [True, True]
    house.wait(1.0)
    assert taken("a")


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"x-message-deduplication": 1}, "x-message-deduplication"),
        ({**DEDUPLICATION, "x-cache-size": 0}, "x-cache-size"),
        ({**DEDUPLICATION, "x-cache-size": "many"}, "x-cache-size"),
        ({**DEDUPLICATION, "x-cache-ttl": -1}, "x-cache-ttl"),
        ({**DEDUPLICATION, "x-deduplication-by": "body"}, "x-deduplication-by"),
        ({**DEDUPLICATION, "x-deduplication-header": 5}, "x-deduplication-header"),
    ],
)
def test_arguments_are_checked(house: House, arguments: Table, wrong: str) -> None:
    _, code, text = close_of(house.ask(m.ExchangeDeclare("w", "direct", arguments=arguments)))
    assert code == 406 and f"invalid arg '{wrong}' for exchange 'w'" in text
    assert "w" not in house.harness.broker.vhosts["/"].exchanges


@pytest.mark.parametrize(
    "arguments", [{}, {**DEDUPLICATION, "x-cache-size": 5}, {**DEDUPLICATION, "x-deduplication-header": "h"}]
)
def test_a_second_declaration_must_be_equal(house: House, arguments: Table) -> None:
    same = m.ExchangeDeclare("e", "direct", durable=True, arguments={**DEDUPLICATION, "x-cache-persistence": "disk"})
    assert house.ask(same) == [m.ExchangeDeclareOk()]
    close = close_of(house.ask(m.ExchangeDeclare("e", "direct", durable=True, arguments=arguments)))
    assert close[1] == 406 and "inequivalent arg" in close[2]


def test_without_the_argument_nothing_is_compared(house: House) -> None:
    house.ask(m.ExchangeDeclare("off", "fanout", arguments={"x-message-deduplication": False, "x-cache-size": 3}))
    house.ask(m.QueueBind("q", "off", ""))
    for _ in range(2):
        house.send("a", b"a", "", "off")
    house.settle()
    assert house.take() == [b"a", b"a"]
    assert house.harness.broker.vhosts["/"].exchanges["off"].passage is None


def test_what_an_older_version_has_stored_starts(house: House) -> None:
    """It took the arguments without effect."""
    for name, size in (("good", 7), ("bad", -1)):
        house.ask(m.ExchangeDeclare(name, "fanout", durable=True))
        value = {
            "type": "fanout",
            "auto_delete": False,
            "internal": False,
            "arguments": {**DEDUPLICATION, "x-cache-size": size},
        }
        house.harness.broker.define("exchange", ("/", name), value)
    house.settle()
    house.kill()
    exchanges = house.harness.broker.vhosts["/"].exchanges
    assert exchanges["good"].passage is not None and exchanges["bad"].passage is None
    passage = exchanges["good"].passage.log.queue_id
    house.kill()
    assert house.passage("good").log.queue_id == passage


def test_a_passage_is_no_queue_of_a_client(house: House) -> None:
    name = house.passage().name
    assert name not in house.harness.broker.vhosts["/"].queues
    assert house.passage() not in house.harness.broker.listed
    assert close_of(house.ask(m.QueueDeclare(name, passive=True)))[1] == 404


def test_the_limit_of_queues_counts_passages(house: House) -> None:
    house.harness.broker.max_queues = len(house.harness.broker.queues)
    _, code, text = close_of(house.ask(m.ExchangeDeclare("more", "direct", arguments=DEDUPLICATION)))
    assert code == 406 and "passage of exchange 'more'" in text
    assert "more" not in house.harness.broker.vhosts["/"].exchanges


def test_a_check_of_the_directory_knows_the_passage(house: House) -> None:
    house.send("a", b"a")
    house.harness.turn()
    house.harness.sync()
    found = Survey(house.harness.disk.kill())
    assert found.findings == [] and found.notes == []
    assert ("exchange", ("/", "e")) in [folder.defined for folder in found.queues]


def test_an_idle_passage_keeps_no_message_in_memory(house: House) -> None:
    for key in "ab":
        house.send(key, bytes(100_000))
        house.settle()
    window = house.passage().onward._window
    assert house.ready() == 2 and window.chunk.n == window.batch.count == 0


def test_a_passage_out_of_service_takes_nothing(house: House) -> None:
    house.passage().contain(RuntimeError("broken"))
    house.send("a", b"a")
    answers = house.answers()
    assert m.BasicAck(1, False) not in answers and answers
    house.kill()
    house.send("a", b"a")
    house.settle()
    assert house.take() == [b"a"]
