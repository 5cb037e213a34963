"""Queues with x-message-deduplication: what counts as a duplicate, for how long, and what a start knows of it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from kvitto.base.errors import ChannelError
from kvitto.broker.queues import later_writes
from kvitto.broker.queues.deduplicating import FORGOTTEN_PER_TURN, DeduplicatingQueue
from kvitto.format.entry import DEAD
from kvitto.store import log
from kvitto.wire import methods as m
from kvitto.wire.buf import Buf
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Table
from tests.protocol import sessions
from tests.protocol.sansio import ProtocolHarness
from tests.protocol.test_limits import ask
from tests.support.harness import BrokerHarness, address

DEDUPLICATION: dict[str, Any] = {"x_message_deduplication": True}


def keyed(key: object, **headers: object) -> bytes:
    return Properties(headers={"x-deduplication-header": key, **headers}).encode()  # type: ignore[dict-item]


def put(harness: BrokerHarness, key: object, body: bytes = b"", name: str = "q", ttl: int | None = None) -> int:
    """Publish a message with this key. Returns how many messages the queue has got by that."""
    return put_raw(harness, keyed(key) if ttl is None else keyed(key, **{"x-cache-ttl": ttl}), body, name)


def put_raw(harness: BrokerHarness, props: bytes, body: bytes = b"", name: str = "q", flags: int = 0) -> int:
    queue = harness.queue(name)
    before = queue.published
    assert queue.append_bytes(address(name), props, body, -1, flags)
    return queue.published - before


def dedup(harness: BrokerHarness, name: str = "q") -> DeduplicatingQueue:
    queue = harness.queue(name)
    assert isinstance(queue, DeduplicatingQueue)
    return queue


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness()
    made.declare("q", **DEDUPLICATION)
    made.settle_down()
    return made


def test_a_message_with_a_known_key_is_dropped_and_counts_as_taken(harness: BrokerHarness) -> None:
    assert [put(harness, key, key.encode()) for key in ("a", "b", "a", "a")] == [1, 1, 0, 0]
    assert dedup(harness).duplicates == 2
    assert harness.drain("q") == [b"a", b"b"]
    harness.settle_down()
    assert put(harness, "a") == 0, "a message that was acked is still known"


def test_messages_without_a_key_are_never_dropped(harness: BrokerHarness) -> None:
    for props in (b"\0\0", keyed(None), keyed(""), keyed(b""), Properties(message_id="1", headers={"a": "1"}).encode()):
        assert [put_raw(harness, props) for _ in "ab"] == [1, 1]


@pytest.mark.parametrize(
    "value",
    [
        *("text", b"bytes", 0, -1, 1 << 40, True, False, 1.5, Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC)),
        *([1, "a"], {"a": {"b": [None]}}, "x" * 10_000),
    ],
)
def test_a_key_may_have_any_type(harness: BrokerHarness, value: object) -> None:
    assert [put(harness, value) for _ in "ab"] == [1, 0]
    assert put(harness, "another") == 1
    harness.kill()


def test_values_that_mean_the_same_are_the_same_key(harness: BrokerHarness) -> None:
    def number(kind: bytes) -> bytes:
        field = b"\x16x-deduplication-header" + kind
        return b"\x20\x00" + len(field).to_bytes(4, "big") + field

    assert put_raw(harness, number(b"I\0\0\0\5")) == 1
    for same in (b"b\5", b"B\5", b"s\0\5", b"u\0\5", b"i\0\0\0\5", b"l" + bytes(7) + b"\5"):
        assert put_raw(harness, number(same)) == 0
    assert put_raw(harness, number(b"b\xff")) == 1
    assert put_raw(harness, number(b"B\xff")) == 1, "-1 and 255"
    assert put(harness, "same") == 1
    assert put(harness, b"same") == 0
    assert put(harness, "5") == 1, "a string is no number"


def test_the_header_has_the_name_that_the_queue_says(harness: BrokerHarness) -> None:
    harness.declare("named", x_deduplication_header="order", **DEDUPLICATION)
    assert [put_raw(harness, Properties(headers={"order": 1}).encode(), name="named") for _ in "ab"] == [1, 0]
    assert [put(harness, 1, name="named") for _ in "ab"] == [1, 1]


def test_the_key_may_be_the_message_id(harness: BrokerHarness) -> None:
    harness.declare("ids", x_deduplication_by="message-id", **DEDUPLICATION)
    full = Properties("a", "b", {"x": 1}, 2, 3, "c", "d", "1000", message_id="one", app_id="e").encode()
    assert [put_raw(harness, full, name="ids") for _ in "ab"] == [1, 0]
    assert put_raw(harness, Properties(message_id="one").encode(), name="ids") == 0
    assert put_raw(harness, Properties(message_id="two").encode(), name="ids") == 1
    for without in (Properties(message_id=""), Properties(headers={"x-deduplication-header": "one"})):
        assert [put_raw(harness, without.encode(), name="ids") for _ in "ab"] == [1, 1]


def test_only_so_many_keys_are_remembered(harness: BrokerHarness) -> None:
    harness.declare("few", x_cache_size=2, **DEDUPLICATION)
    assert [put(harness, key, name="few") for key in "abab"] == [1, 1, 0, 0], (
        "a duplicate is no reason to remember longer"
    )
    assert [put(harness, key, name="few") for key in "cba"] == [1, 0, 1]


def test_keys_are_remembered_for_some_time(harness: BrokerHarness) -> None:
    harness.declare("short", x_cache_ttl=1000, **DEDUPLICATION)
    assert [put(harness, "a", name="short"), put(harness, "b", name="short", ttl=5000)] == [1, 1]
    harness.clock.advance(0.999)
    harness.broker.tick()
    assert [put(harness, "a", name="short"), put(harness, "b", name="short")] == [0, 0]
    harness.clock.advance(0.001)
    harness.broker.tick()
    assert [put(harness, "a", name="short"), put(harness, "b", name="short")] == [1, 0]
    harness.clock.advance(4)
    harness.broker.tick()
    assert put(harness, "b", name="short") == 1
    harness.clock.advance(10)
    harness.broker.tick()
    harness.settle_down()
    assert dedup(harness, "short").table.count == 0, "keys whose time is over take no memory"


@pytest.mark.parametrize("end", ["kill", "restart", "cut"])
def test_a_start_knows_the_keys(harness: BrokerHarness, end: str) -> None:
    for key in ("a", "b"):
        put(harness, key, key.encode())
    assert harness.drain("q") == [b"a", b"b"], "acked before they are written"
    put(harness, "c", b"c")
    harness.settle_down()
    harness.cut(Random(1)) if end == "cut" else getattr(harness, end)()
    assert [put(harness, key) for key in "abc"] == [0, 0, 0]
    assert put(harness, "d") == 1


def test_a_start_knows_for_how_long(harness: BrokerHarness) -> None:
    harness.declare("short", x_cache_ttl=1000, **DEDUPLICATION)
    put(harness, "a", name="short")
    put(harness, "b", name="short", ttl=1 << 40)
    harness.settle_down()
    harness.clock.advance(0.6)
    harness.restart()
    assert [put(harness, key, name="short") for key in "ab"] == [0, 0]
    harness.clock.advance(0.4)
    harness.broker.tick()
    assert [put(harness, key, name="short") for key in "ab"] == [1, 0]


def test_what_is_not_stored_leaves_no_key(harness: BrokerHarness) -> None:
    harness.declare("full", x_max_length=1, x_overflow="reject-publish", **DEDUPLICATION)
    queue = harness.queue("full")
    assert put(harness, "a", name="full") == 1
    for body in (b"", Buf(0)):
        assert not queue.append_bytes(address("full"), keyed("b"), body, -1, 0)
    assert put(harness, "a", name="full") == 0, "a duplicate is taken although the queue is full"
    harness.drain("full")
    assert put(harness, "b", name="full") == 1


def test_a_message_that_leaves_from_the_head_leaves_its_key(harness: BrokerHarness) -> None:
    harness.declare("short", x_max_length=1, **DEDUPLICATION)
    assert [put(harness, key, name="short") for key in "aba"] == [1, 1, 0]
    harness.queue("short").purge()
    harness.settle_down()
    assert put(harness, "b", name="short") == 0


def test_large_messages_are_compared_too(harness: BrokerHarness) -> None:
    body = Buf(0)
    body.add(bytes(3 << 20))
    queue = harness.queue("q")
    for _ in "ab":
        assert queue.append_bytes(address("q"), keyed("large"), body, -1, 0)
    assert put(harness, "large") == 0
    harness.settle_down()
    harness.kill()
    assert harness.queue("q").ready == 1 and put(harness, "large") == 0


def test_segments_stay_while_their_keys_are_needed(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 3000)
    harness.declare("few", x_cache_size=5, **DEDUPLICATION)
    queue = harness.queue("few")
    for i in range(100):
        put(harness, i, bytes(300), "few")
        harness.drain("few")
        harness.settle_down()
        assert len(queue.log.segments) <= 3
        if i % 10 == 0:
            harness.kill()
            queue = harness.queue("few")
            harness.settle_down()
            assert [put(harness, k, name="few") for k in range(max(i - 4, 0), i + 1)] == [0] * min(5, i + 1)
    for _ in range(100):  # without keys
        put_raw(harness, b"\0\0", bytes(300), "few")
        harness.drain("few")
        harness.settle_down()
    assert len(queue.log.segments) <= 4, "only segments with keys that are needed stay"
    harness.kill()
    assert [put(harness, k, name="few") for k in range(95, 100)] == [0] * 5


def test_a_segment_goes_when_the_time_of_its_keys_is_over(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 1000)
    harness.declare("short", x_cache_ttl=5000, **DEDUPLICATION)
    for i in range(20):
        put(harness, i, bytes(300), "short")
        harness.settle_down()
    harness.drain("short")
    harness.settle_down()
    queue = harness.queue("short")
    assert len(queue.log.segments) > 5
    for _ in range(8):
        harness.clock.advance(1)
        harness.broker.tick()
        harness.settle_down()
    assert len(queue.log.segments) == 1


def test_a_letter_that_comes_back_is_no_duplicate_of_itself(harness: BrokerHarness) -> None:
    harness.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="later", **DEDUPLICATION)
    harness.declare("later", x_message_ttl=100, x_dead_letter_exchange="", x_dead_letter_routing_key="work")
    put(harness, "a", b"once", "work")
    delivery = harness.take("work")
    harness.queue("work").reject(delivery[0].offset, 1)
    harness.settle_down()
    harness.clock.advance(0.2)
    harness.broker.tick()
    harness.settle_down()
    assert harness.peek("work") == [b"once"]
    harness.kill()
    assert put(harness, "a", name="work") == 0


def test_a_letter_from_elsewhere_is_compared(harness: BrokerHarness) -> None:
    """Some delay messages by a queue with a time to live: what was published twice must not arrive twice."""
    harness.declare("delay", x_message_ttl=100, x_dead_letter_exchange="", x_dead_letter_routing_key="q")
    for body in (b"1", b"2"):
        put(harness, "a", body, "delay")
    harness.settle_down()
    harness.clock.advance(0.2)
    harness.broker.tick()
    harness.settle_down()
    assert harness.peek("q") == [b"1"] and harness.queue("delay").messages == 0
    harness.kill()
    harness.settle_down()
    assert harness.peek("q") == [b"1"]


def test_a_record_whose_message_was_dropped_is_not_applied_later(harness: BrokerHarness) -> None:
    """The journal keeps records for a while. When the key has left the window, a start must not take the message for a new one."""
    harness.declare("few", x_cache_size=2, **DEDUPLICATION)
    harness.declare("delay", x_message_ttl=100, x_dead_letter_exchange="", x_dead_letter_routing_key="few")
    put(harness, "a", b"first", "few")
    put(harness, "a", b"second", "delay")
    harness.settle_down()
    harness.clock.advance(0.2)
    harness.broker.tick()
    harness.turn()
    harness.sync()
    harness.sync()
    assert dedup(harness, "few").duplicates == 1
    for key in "bc":
        put(harness, key, key.encode(), "few")
    harness.turn()
    harness.kill()
    harness.settle_down()
    assert harness.peek("few") == [b"first", b"b", b"c"]


def test_the_arguments_are_checked(harness: BrokerHarness) -> None:
    for arguments, wrong in (
        ({"x_message_deduplication": 1}, "x-message-deduplication"),
        ({"x_cache_size": 10}, "x-cache-size"),
        ({"x_cache_ttl": 10}, "x-cache-ttl"),
        ({"x_deduplication_header": "a"}, "x-deduplication-header"),
        ({"x_deduplication_by": "message-id"}, "x-deduplication-by"),
        ({"x_cache_size": 0, **DEDUPLICATION}, "x-cache-size"),
        ({"x_cache_size": 10_000_001, **DEDUPLICATION}, "x-cache-size"),
        ({"x_cache_ttl": 0, **DEDUPLICATION}, "x-cache-ttl"),
        ({"x_deduplication_by": "id", **DEDUPLICATION}, "x-deduplication-by"),
        (
            {"x_deduplication_by": "message-id", "x_deduplication_header": "a", **DEDUPLICATION},
            "x-deduplication-header",
        ),
        ({"x_queue_type": "stream", **DEDUPLICATION}, "x-message-deduplication"),
    ):
        with pytest.raises(ChannelError, match=f"invalid arg '{wrong}'"):
            harness.declare("wrong", **arguments)
    harness.declare("off", x_message_deduplication=False, x_cache_size=10)
    assert not isinstance(harness.queue("off"), DeduplicatingQueue)
    with pytest.raises(ChannelError, match="x-cache-size"):
        harness.declare("q", x_cache_size=10, **DEDUPLICATION)


def test_a_client_cannot_pass_for_a_letter(harness: BrokerHarness) -> None:
    death = {"count": 1, "reason": "rejected", "queue": "q"}
    assert put(harness, "a") == 1
    forged = keyed("a", **{"x-death": [death]})
    assert put_raw(harness, forged) == 0
    assert put_raw(harness, forged, flags=DEAD) == 1


def test_a_queue_that_is_not_durable_remembers_too(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 1000)
    harness.declare("transient", durable=False, **DEDUPLICATION)
    for i in range(20):
        assert [put(harness, i, bytes(300), "transient") for _ in "ab"] == [1, 0]
        harness.settle_down()
    harness.drain("transient")
    harness.settle_down()
    assert len(harness.queue("transient").log.segments) <= 2, "no start needs its files"


def test_a_record_relies_only_on_what_is_durable(harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may take the message because of which that of a record was dropped, while a later segment survives.

    That must not say that the record was applied: the journal brings the message then.
    """
    monkeypatch.setattr(log, "SEGMENT_BYTES", 600)
    for seed in range(30):
        harness.declare(name := f"q{seed}", x_dead_letter_exchange="none", **DEDUPLICATION)
        harness.declare("source", x_dead_letter_exchange="", x_dead_letter_routing_key=name)
        put(harness, "a", b"letter", "source")
        harness.settle_down()
        harness.queue("source").reject(harness.take("source")[0].offset, 1)
        harness.turn()  # the record is in the journal
        put(harness, "a", b"plain" + bytes(400), name)
        harness.turn()
        while not dedup(harness, name).duplicates:
            harness.sync(everything=False)  # the record becomes durable, and is applied, but the message does not
        for i in range(3):
            put(harness, i, bytes(400), name)
            harness.turn()
        harness.cut(Random(seed), hostile=True)
        harness.settle_down()
        assert sum(body.startswith((b"letter", b"plain")) for body in harness.peek(name)) == 1, seed
        assert put(harness, "a", name=name) == 0
        harness.delete("source")
        harness.settle_down()


def test_nothing_is_delivered_before_it_may_be_written(harness: BrokerHarness) -> None:
    """A9: a batch waited until the message on which a dropped letter relies was durable, and was delivered meanwhile.

    A kill in between brought its messages back without a flag.
    """
    harness.declare("late", x_dead_letter_exchange="none", **DEDUPLICATION)
    harness.declare("source", x_dead_letter_exchange="", x_dead_letter_routing_key="late")
    put(harness, "a", b"letter", "source")
    harness.settle_down()
    harness.queue("source").reject(harness.take("source")[0].offset, 1)
    harness.turn()
    put(harness, "a", b"plain", "late")
    harness.turn()
    while not dedup(harness, "late").duplicates:
        harness.sync(everything=False)
    put(harness, "b", b"new", "late")
    assert harness.take("late") == []
    harness.turn()
    assert harness.take("late") == []
    harness.settle_down()
    assert [delivery.body for delivery in harness.take("late")] == [b"plain", b"new"]
    harness.turn()
    harness.kill()
    harness.settle_down()
    assert [(delivery.body, delivery.redelivered) for delivery in harness.take("late")] == [
        (b"plain", True),
        (b"new", True),
    ]


def rejected(harness: BrokerHarness) -> None:
    """A dead letter with the key "a" is about to come to the queue "late"; its record is durable and not applied yet."""
    harness.declare("late", x_dead_letter_exchange="none", **DEDUPLICATION)
    harness.declare("source", x_dead_letter_exchange="", x_dead_letter_routing_key="late")
    put(harness, "a", b"letter", "source")
    harness.settle_down()
    harness.queue("source").reject(harness.take("source")[0].offset, 1)
    harness.turn()
    while not harness.broker.records.waiting:
        harness.broker.sync_files()


def test_deliveries_go_on_when_the_message_that_a_letter_relies_on_is_written_later(harness: BrokerHarness) -> None:
    """The sync that was asked for when the letter was dropped did not have that message, and nobody asked for another one."""
    rejected(harness)
    put(harness, "a", bytes(3_000_000), "late")
    harness.queue("late")._close_tail()  # as a large body does
    sizes: list[int] = []
    for _ in range(30):
        harness.turn()
        harness.broker.sync_files()
        sizes += [len(delivery.body) for delivery in harness.take("late")]  # it is checked in pieces first
    assert dedup(harness, "late").duplicates == 1 and sizes == [3_000_000]


def test_deliveries_go_on_behind_a_first_write_that_has_waited(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later_writes, "NEW_FILES_PER_COMMIT", 1)
    rejected(harness)
    due = list(harness.broker.records.waiting)
    harness.broker.records.waiting.clear()
    harness.declare("other")
    harness.publish("other", b"takes the room for one file")
    put(harness, "a", b"plain", "late")
    harness.broker.turn(10_000)
    assert harness.queue("late").waits_for_commit
    harness.broker.records.waiting.extend(due)
    for _ in range(5):
        harness.broker.turn(10_000)
        harness.broker.sync_files()
    assert dedup(harness, "late").duplicates == 1
    harness.broker.turn(10_000)
    assert [delivery.body for delivery in harness.take("late")] == [b"plain"]


def test_all_queues_together_forget_a_limited_number_of_keys_in_one_turn() -> None:
    """Each forgot 10,000 in a turn: with 500 queues whose keys ended together, one turn took seconds."""
    harness = BrokerHarness()
    names = [f"q{i}" for i in range(4)]
    for name in names:
        harness.declare(name, **DEDUPLICATION, x_cache_size=100_000, x_cache_ttl=1000)
        for i in range(4000):
            put(harness, i, name=name)
    harness.settle_down()
    left = before = 16_000
    harness.clock.advance(2)
    for _ in range(10):
        harness.clock.advance(0.001)
        harness.broker.tick()
        harness.turn()
        left = sum(dedup(harness, name).table.count for name in names)
        assert before - left <= FORGOTTEN_PER_TURN
        before = left
        if not left:
            break
    assert not left


def test_a_transaction_has_a_limited_number_of_messages_for_such_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compared in one step, which took 0.2 s for 300,000 of them."""
    monkeypatch.setattr("kvitto.broker.transfers.bulk.KEYED_COMMIT_MAX", 10)
    harness = ProtocolHarness()
    wire = harness.wire()
    arguments: Table = {"x-message-deduplication": True}
    ask(wire, m.QueueDeclare("q", durable=True, arguments=arguments), m.QueueDeclare("other", durable=True))
    ask(wire, m.TxSelect())
    for count in (10, 11):
        for i in range(count):
            wire.feed(sessions.content(1, m.BasicPublish("", "other"), b"\0\0", b""))
            wire.feed(sessions.content(1, m.BasicPublish("", "q"), keyed(f"{count} {i}"), b""))
        wire.put(1, m.TxCommit())
        harness.settle_down()
    answers = wire.methods()
    assert any(isinstance(method, m.TxCommitOk) for method in answers)
    [closed] = [method for method in answers if isinstance(method, m.ChannelClose)]
    assert closed.reply_code == 406 and "commit more often" in closed.reply_text
    assert [harness.broker.vhosts["/"].queues[name].ready for name in ("q", "other")] == [10, 10]
