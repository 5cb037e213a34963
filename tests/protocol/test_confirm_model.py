"""Confirms, unacked tags and transactions against models: bytes in, bytes out, turns and syncs by hand."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvitto.base.errors import StoreError
from kvitto.store.commit import Commit
from kvitto.wire import methods as m
from kvitto.wire.methods import Method, decode, frame
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from tests.protocol.sansio import ProtocolHarness, Wire

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
SETTINGS = settings(
    max_examples=1000 if THOROUGH else 40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
)


def publish(channel: int, queue: str, body: bytes, mandatory: bool = False, exchange: str = "") -> bytes:
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x00\x00"
    data = frame(FRAME_METHOD, channel, m.BasicPublish(exchange, queue, mandatory, False).encode())
    return data + frame(FRAME_HEADER, channel, header) + (frame(FRAME_BODY, channel, body) if body else b"")


def declare(wire: Wire, name: str, durable: bool = True, **arguments: Any) -> None:
    known = {key.replace("_", "-"): value for key, value in arguments.items()}
    wire.put(1, m.QueueDeclare(name, False, durable, False, False, False, known))
    wire.harness.settle_down()


# -- confirms ----------------------------------------------------------------------------------------------------

WHERE = ["durable", "brief", "both", "full", "some-full", "nowhere", "returned"]


@dataclass
class Publish:
    where: str
    end: int
    """Of its bytes in all that the client sends."""
    state: str = "fed"
    """fed -> written (its turn is over) -> syncing (a sync that covers it runs) -> safe."""
    returned: bool = False
    answer: str = ""


@dataclass
class Publisher:
    number: int
    publishes: list[Publish] = field(default_factory=list)
    highest: int = 0


class ConfirmModel(RuleBasedStateMachine):
    """C1-C8: each publish is answered exactly once, no sooner than it is safe, with the right word."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = ProtocolHarness()
        self.wire = self.harness.wire()
        self.admin = self.harness.wire()
        self.job: Commit | None = None
        self.rest = b""
        self.sent = self.fed = 0
        self.publishers = [Publisher(1), Publisher(2)]
        self.failed = False

    @initialize()
    def prepare(self) -> None:
        declare(self.admin, "durable")
        declare(self.admin, "brief", durable=False)
        declare(self.admin, "full", x_max_length=0, x_overflow="reject-publish")
        for exchange, queues in (("both", ("durable", "brief")), ("some-full", ("durable", "full"))):
            self.admin.put(1, m.ExchangeDeclare(exchange, "fanout", False, True, False, False, False, {}))
            self.harness.settle_down()
            for queue in queues:
                self.admin.put(1, m.QueueBind(queue, exchange, "", False, {}))
                self.harness.settle_down()
        self.wire.put(2, m.ChannelOpen())
        for publisher in self.publishers:
            self.wire.put(publisher.number, m.ConfirmSelect(False))
        self.harness.settle_down()
        self.wire.frames()

    @rule(
        which=st.integers(0, 1),
        where=st.lists(st.sampled_from(WHERE), min_size=1, max_size=5),
        cut=st.integers(0, 400),
        empty=st.booleans(),
    )
    def publish(self, which: int, where: list[str], cut: int, empty: bool) -> None:
        """Any number of bytes of it arrive now, the rest with what comes next."""
        publisher = self.publishers[which]
        for name in where:
            queue, exchange = name, ""
            if name in ("both", "some-full"):
                queue, exchange = "", name
            body = b"" if empty else f"{which} {len(publisher.publishes)}".encode()
            data = publish(publisher.number, queue, body, name == "returned", exchange)
            self.rest += data
            self.sent += len(data)
            publisher.publishes.append(Publish(name, self.sent))
        self.feed(cut)

    def feed(self, count: int) -> None:
        if self.wire.reading:
            self.wire.feed(self.rest[:count])
            self.fed += len(self.rest[:count])
            self.rest = self.rest[count:]

    def harness_turn(self) -> None:
        arrived = self.fed - len(self.wire.connection.rest)
        self.harness.turn()
        for publisher in self.publishers:
            for p in publisher.publishes:
                if p.state == "fed" and p.end <= arrived and not self.harness.broker.unwritten:
                    p.state = "written"
        self.read()

    @rule()
    def turn(self) -> None:
        self.feed(1 << 20)
        self.harness_turn()

    def advance(self, old: str, new: str) -> None:
        for publisher in self.publishers:
            for p in publisher.publishes:
                if p.state == old:
                    p.state = new

    @precondition(lambda self: self.job is None and not self.failed)
    @rule(everything=st.booleans())
    def begin_sync(self, everything: bool) -> None:
        if everything or self.harness.store.commits.waiting:
            self.job = self.harness.store.begin_sync(everything=everything)
            self.advance("written", "syncing")

    @precondition(lambda self: self.job is not None)
    @rule()
    def end_sync(self) -> None:
        assert self.job is not None
        self.job.run()
        self.advance("syncing", "safe")
        self.harness.store.end_sync(self.job)
        self.job = None
        self.harness_turn()

    @precondition(lambda self: self.job is not None and self.job.files)
    @rule()
    def fail_sync(self) -> None:
        """C8: from now on nothing that waits is acked, whatever the loop still does."""
        assert self.job is not None
        self.harness.disk.fail_at[self.harness.disk.operations + 1] = StoreError("gone")
        self.job.run()
        self.harness.store.end_sync(self.job)
        self.job, self.failed = None, True
        self.harness_turn()

    @precondition(lambda self: self.job is None and not self.failed and not self.harness.disk.full)
    @rule()
    def lose_queue(self) -> None:
        """C7: what waits for a queue that goes, or is purged, is acked all the same."""
        self.room()
        self.admin.put(1, m.QueueDelete("durable", False, False, False))
        self.harness.settle_down()
        declare(self.admin, "durable")
        for exchange in ("both", "some-full"):
            self.admin.put(1, m.QueueBind("durable", exchange, "", False, {}))
            self.harness.settle_down()
        for state in ("fed", "written", "syncing"):
            self.advance(state, "safe")
        self.read()

    @rule()
    def no_room(self) -> None:
        self.harness.disk.full = True

    @rule()
    def room(self) -> None:
        self.harness.disk.full = False
        self.harness.broker.retry_writes()
        self.turn()

    def read(self) -> None:
        for kind, number, payload in self.wire.frames():
            if kind != FRAME_METHOD:
                continue
            method, publisher = decode(payload), self.publishers[number - 1]
            if isinstance(method, m.BasicReturn):
                first = next(p for p in publisher.publishes if p.where == "returned" and not p.returned)
                assert not first.answer, "C4: the return comes before the ack"
                first.returned = True
            elif isinstance(method, m.BasicAck):
                self.answered(publisher, method.delivery_tag, method.multiple, "ack")
            elif isinstance(method, m.BasicNack):
                self.answered(publisher, method.delivery_tag, method.multiple, "nack")
            else:
                raise AssertionError(method)

    def answered(self, publisher: Publisher, tag: int, multiple: bool, word: str) -> None:
        assert 0 < tag <= len(publisher.publishes), "C1: a number that was never given"
        chosen = [p for p in publisher.publishes[:tag] if not p.answer] if multiple else [publisher.publishes[tag - 1]]
        assert not publisher.publishes[tag - 1].answer, "C5: answered twice"
        if word == "ack":
            assert tag > publisher.highest, "C5: an ack has overtaken another"
            publisher.highest = tag
        for p in chosen:
            assert word == ("nack" if p.where in ("full", "some-full") else "ack"), f"C6: {word} of {p}"
            if p.where in ("durable", "both"):
                assert p.state == "safe", f"C2: {p} is not safe yet"
            assert p.where != "returned" or p.returned, "C4"
            p.answer = word

    def teardown(self) -> None:
        if self.failed:
            return
        if self.job is not None:
            self.end_sync()
        self.room()
        for _ in range(4):
            self.turn()
            if self.harness.store.commits.waiting:
                self.begin_sync(True)
                self.end_sync()
        assert not self.rest
        for publisher in self.publishers:
            assert all(p.answer for p in publisher.publishes), "C5: never answered"


TestConfirms = ConfirmModel.TestCase
TestConfirms.settings = SETTINGS


# -- unacked tags and transactions ---------------------------------------------------------------------------------


class TagModel(RuleBasedStateMachine):
    """A3, A4, A6 and T1-T6: what the client holds, what waits, what a transaction has staged."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = ProtocolHarness()
        self.admin = self.harness.wire()
        self.number = 0
        self.ready: list[bytes] = []
        self.order: dict[bytes, int] = {}
        self.redelivered: set[bytes] = set()
        self.full: list[bytes] = []
        declare(self.admin, "q")
        declare(self.admin, "limited", x_max_length=2, x_overflow="reject-publish")

    @initialize(transactional=st.booleans(), prefetch=st.sampled_from([0, 0, 1, 3]))
    def start(self, transactional: bool, prefetch: int) -> None:
        self.transactional, self.prefetch = transactional, prefetch
        self.open()

    def open(self) -> None:
        """A channel with a consumer."""
        self.wire = self.harness.wire()
        self.tags: dict[int, bytes] = {}
        self.next = 1
        self.pending: list[Method] = []
        self.staged: list[tuple[str, bytes]] = []
        self.held: list[tuple[str, list[int]]] = []
        if self.transactional:
            self.wire.put(1, m.TxSelect())
        self.wire.put(1, m.BasicQos(0, self.prefetch, False), m.BasicConsume("q", "c", False, False, False, False, {}))
        self.run()

    def run(self) -> list[Method]:
        """Turns and syncs until all is said; deliveries go into the model in the order in which they come."""
        self.harness.settle_down()
        said: list[Method] = []
        for kind, number, payload in self.wire.frames():
            if kind == FRAME_METHOD:
                method = decode(payload)
                said.append(method)
                if isinstance(method, m.BasicDeliver):
                    self.pending.append(method)
            elif kind == FRAME_BODY:
                delivery = self.pending.pop(0)
                assert isinstance(delivery, m.BasicDeliver) and number == 1
                assert self.ready and payload == self.ready.pop(0), "out of order"
                assert delivery.redelivered == (payload in self.redelivered)
                assert delivery.delivery_tag == self.next
                self.next += 1
                self.tags[delivery.delivery_tag] = payload
                self.redelivered.add(payload)
        return [s for s in said if not isinstance(s, m.BasicDeliver)]

    def back(self, bodies: list[bytes]) -> None:
        """To their original positions."""
        self.ready = sorted([*self.ready, *bodies], key=self.order.__getitem__)

    def enqueue(self, body: bytes) -> None:
        self.order[body] = len(self.order)
        self.ready.append(body)

    def new(self) -> bytes:
        self.number += 1
        return f"{self.number:06d}".encode()

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        """Somebody else publishes."""
        for _ in range(count):
            body = self.new()
            self.admin.feed(publish(1, "q", body))
            self.enqueue(body)
        self.run()

    def free(self) -> list[int]:
        """Tags that are not held by the transaction."""
        held = {tag for _, tags in self.held for tag in tags}
        return [tag for tag in self.tags if tag not in held]

    @rule(
        back=st.integers(-2, 6),
        multiple=st.booleans(),
        what=st.sampled_from(["ack", "nack", "requeue", "reject"]),
    )
    def settle(self, back: int, multiple: bool, what: str) -> None:
        """Known tags, unknown ones, repeated ones, and 0 = all."""
        tag = max(self.next - 1 - back, 0)
        multiple = multiple and what != "reject"
        method: Method = {
            "ack": m.BasicAck(tag, multiple),
            "nack": m.BasicNack(tag, multiple, False),
            "requeue": m.BasicNack(tag, multiple, True),
            "reject": m.BasicReject(tag, False),
        }[what]
        known = tag in self.free() or (multiple and tag == 0)
        chosen = [t for t in self.free() if t == tag or (multiple and (t < tag or tag == 0))]
        self.wire.put(1, method)
        if known and self.transactional:
            self.held.append((what, chosen))
        elif known:
            self.apply(what, chosen)
        said = self.run()
        if known:
            assert said == []
        else:
            self.closed(said, f"unknown delivery tag {tag}")

    def apply(self, what: str, tags: list[int]) -> None:
        bodies = [self.tags.pop(tag) for tag in tags]
        if what == "requeue":
            self.back(bodies)

    def closed(self, said: list[Method], text: str) -> None:
        """406, everything is back in the queue, staged things are gone (A4, A6, T6); a new connection goes on."""
        assert [type(s) for s in said] == [m.ChannelClose]
        assert isinstance(said[0], m.ChannelClose) and said[0].reply_code == 406 and text in said[0].reply_text
        self.lose()

    def lose(self) -> None:
        self.back(list(self.tags.values()))
        self.wire.connection.lost()
        self.harness.settle_down()
        self.open()

    @rule()
    def connection_lost(self) -> None:
        """A6."""
        self.lose()

    @rule()
    def channel_closed(self) -> None:
        """A6."""
        self.wire.put(1, m.ChannelClose(200, "", 0, 0))
        self.back(list(self.tags.values()))
        self.tags.clear()
        assert [type(s) for s in self.run()] == [m.ChannelCloseOk]
        self.wire.connection.lost()
        self.open()

    @rule()
    def recover(self) -> None:
        """A13: everything that is unacked comes again; what a transaction holds stays held."""
        self.wire.put(1, m.BasicRecover(True))
        free = self.free()
        self.back([self.tags.pop(tag) for tag in free])
        assert [type(s) for s in self.run()] == [m.BasicRecoverOk]

    # -- transactions ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.transactional)
    @rule(count=st.integers(1, 3), queue=st.sampled_from(["q", "q", "limited"]))
    def stage(self, count: int, queue: str) -> None:
        for _ in range(count):
            body = self.new()
            self.staged.append((queue, body))
            self.wire.feed(publish(1, queue, body))
        assert self.run() == [], "T1: nothing happens before the commit"

    @precondition(lambda self: self.transactional)
    @rule()
    def commit(self) -> None:
        """T4, T5."""
        self.wire.put(1, m.TxCommit())
        limited = [body for queue, body in self.staged if queue == "limited"]
        if limited and len(self.full) + len(limited) > 2:
            self.closed(self.run(), "the transaction was not committed")
            return
        self.full += limited
        for body in [body for queue, body in self.staged if queue == "q"]:
            self.enqueue(body)
        for what, tags in self.held:
            self.apply(what, tags)
        self.staged, self.held = [], []
        assert [type(s) for s in self.run()] == [m.TxCommitOk]

    @precondition(lambda self: self.transactional)
    @rule()
    def rollback(self) -> None:
        """T6: deliveries stay unacked, publishes are gone."""
        self.wire.put(1, m.TxRollback())
        self.staged, self.held = [], []
        assert [type(s) for s in self.run()] == [m.TxRollbackOk]

    @rule()
    def drain_limited(self) -> None:
        self.admin.put(1, m.QueuePurge("limited", False))
        self.harness.settle_down()
        self.full = []

    @invariant()
    def books(self) -> None:
        if hasattr(self, "tags"):
            queue = self.harness.broker.vhosts["/"].queues["q"]
            assert (queue.ready, queue.unacked) == (len(self.ready), len(self.tags))
            assert self.harness.broker.vhosts["/"].queues["limited"].ready == len(self.full)
            assert not self.ready or (self.prefetch and len(self.tags) >= self.prefetch), (
                "messages wait, and there is credit"
            )


TestTags = TagModel.TestCase
TestTags.settings = SETTINGS


def test_confirm_and_tx_do_not_mix() -> None:
    """C10: either order is 406."""
    for first, second in ((m.ConfirmSelect(False), m.TxSelect()), (m.TxSelect(), m.ConfirmSelect(False))):
        harness = ProtocolHarness()
        wire = harness.wire()
        wire.put(1, first)
        wire.put(1, second)
        harness.settle_down()
        last = wire.methods()[-1]
        assert isinstance(last, m.ChannelClose) and last.reply_code == 406


@pytest.mark.parametrize("method", [m.TxCommit(), m.TxRollback()])
def test_commit_without_select_is_refused(method: Method) -> None:
    """T1."""
    harness = ProtocolHarness()
    wire = harness.wire()
    wire.put(1, method)
    harness.settle_down()
    last = wire.methods()[-1]
    assert isinstance(last, m.ChannelClose) and last.reply_code == 406


def test_confirms_cost_the_same_however_many_are_outstanding() -> None:
    """C9: one ack covers all of them, and nothing is kept for each."""
    harness = ProtocolHarness()
    wire = harness.wire()
    declare(wire, "q")
    wire.put(1, m.ConfirmSelect(False))
    harness.settle_down()
    wire.frames()
    one = publish(1, "q", b"x")
    for _ in range(20):
        wire.feed(one * 500)
        harness.turn()
    harness.settle_down()
    acks = wire.methods()
    assert acks == [m.BasicAck(10_000, True)]


def test_a_reject_in_a_transaction_moves_its_message_with_the_commit() -> None:
    """T2, T4: the dead letter came after commit-ok, in a record of its own: a power cut between them undid the reject."""
    harness = ProtocolHarness()
    wire = harness.wire()
    declare(wire, "dead")
    declare(wire, "work", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    wire.feed(publish(1, "work", b"m"))
    harness.settle_down()
    wire.put(1, m.TxSelect(), m.BasicGet("work", False))
    harness.settle_down()
    job = harness.store.begin_sync(everything=True)
    job.run()
    harness.store.end_sync(job)
    wire.put(1, m.BasicReject(1, False), m.TxCommit())
    harness.turn()
    while not any(isinstance(method, m.TxCommitOk) for method in wire.methods()):
        harness.sync()
    for seed in range(10):
        queues = ProtocolHarness(harness.disk.copy().crash(Random(seed), hostile=True)).broker.vhosts["/"].queues
        assert (queues["work"].messages, queues["dead"].messages) == (0, 1)


def test_unblocking_does_not_start_a_connection_that_waits_for_its_commit() -> None:
    """Room on the disk let in what came behind a commit before the commit was answered."""
    harness = ProtocolHarness()
    wire = harness.wire()
    declare(wire, "q")
    wire.put(1, m.TxSelect())
    wire.feed(publish(1, "q", b"m"))
    wire.put(1, m.TxCommit())
    wire.frames()
    assert not wire.reading
    harness.hub.alarms.block("test")
    harness.hub.alarms.block(None)
    assert not wire.reading
    harness.settle_down()
    assert wire.reading
    assert any(isinstance(method, m.TxCommitOk) for method in wire.methods())


def test_a_commit_that_finds_no_room_closes_the_channel_and_undoes_its_acks() -> None:
    """T5, D4: also when the room is missed later, because what it settles had to be synced first."""
    harness = ProtocolHarness()
    wire = harness.wire()
    declare(wire, "q")
    wire.feed(publish(1, "q", b"m"))
    wire.put(1, m.TxSelect(), m.BasicGet("q", False))
    harness.turn()
    wire.frames()
    wire.put(1, m.BasicAck(1, False), m.TxCommit())
    harness.disk.full = True
    harness.settle_down()
    closes = [method for method in wire.methods() if isinstance(method, m.ChannelClose)]
    assert closes and closes[0].reply_code == 406 and "full" in closes[0].reply_text
    queue = harness.broker.vhosts["/"].queues["q"]
    assert (queue.ready, queue.unacked) == (1, 0)
    assert wire.reading
