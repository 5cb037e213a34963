"""A queue against a simple model, through restarts, kills, power cuts and full disks.

The model knows each message: whether it is in the queue, with whom, how often it was delivered, whether the client was told that it
is safe, and whether its settlement was synced. Without a power cut the queue must do exactly what the model says; after one, what
was confirmed must be there, what was settled and synced must not, the rest may (A5, A8, A9, A11, A12, C2, D3, D4, P2-P4, Q, X4).
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvitto.broker.queues import hold, leaving, waiting
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.transfers import deadletter
from kvitto.store import journal, log
from kvitto.store.batch import Stored
from kvitto.wire.buf import Buf
from tests.support.harness import BrokerHarness, Delivery, Taker

READY, HELD, UNACKED, MOVING, DEAD, GONE = "ready", "held", "unacked", "moving", "dead", "gone"
"""HELD: for a group that reads by range. MOVING: to the dead-letter queue, or parked since that is not there or full. GONE: settled,
wherever it was."""


@dataclass
class Message:
    offset: int
    body: bytes
    expires: int
    place: str = READY
    deliveries: int = 0
    vague: bool = False
    """A power cut has taken the number of deliveries: `deliveries` is the least."""
    unflagged: bool = False
    """A kill on a full disk has taken even whether it was delivered."""
    confirmed: bool = False
    forgotten: bool = False
    """GONE, and that was synced."""
    died: bool = False
    """It has left for the dead-letter queue for good: the source has it no more, whatever happens."""


class Witness(Taker):
    """Writes deliveries into a list that all consumers share, so that their order is seen."""

    def __init__(self, queue: WorkQueue, seen: list[tuple[Witness, Delivery]], room: int, priority: int = 0) -> None:
        super().__init__(queue, room=room, priority=priority)
        self.seen = seen
        self.holds: list[Message] = []

    def deliver(self, batch, i, n, redelivered):  # type: ignore[no-untyped-def]
        n = super().deliver(batch, i, n, redelivered)
        self._tell()
        return n

    def deliver_again(self, key: bytes, props: bytes, body: bytes | Buf | Stored, offset: int) -> None:
        super().deliver_again(key, props, body, offset)
        self._tell()

    def _tell(self) -> None:
        self.seen += [(self, delivery) for delivery in self.got]
        self.got.clear()


class QueueModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(log, "SEGMENT_BYTES", 2000)
        self.patch.setattr(log, "ROLL_WHEN_SETTLED_BYTES", 700)
        self.patch.setattr(journal, "ROTATE_BYTES", 600)
        for name, value in (("LETTERS_PER_TURN", 3), ("SLICE", 2), ("RECORD_BYTES", 500), ("IN_FLIGHT_BYTES", 900)):
            self.patch.setattr(deadletter, name, value)
        self.patch.setattr(leaving, "LEAVING_PER_TURN", 2)
        ids = count(1)  # the same run must be the same again
        self.patch.setattr(secrets, "token_hex", lambda n: f"{next(ids):0{2 * n}x}")
        self.harness = BrokerHarness()
        self.messages: list[Message] = []
        self.seen: list[tuple[Witness, Delivery]] = []
        self.consumers: list[Witness] = []
        self.number = 0
        self.dead_exists = False
        self.estimate = False

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(
        dead=st.sampled_from([True, True, False]),
        dead_length=st.sampled_from([-1, 0, 1, 2]),
        limit=st.sampled_from([-1, -1, 0, 1]),
        length=st.sampled_from([-1, -1, 3, 8]),
        overflow=st.sampled_from(["drop-head", "reject-publish"]),
        ttl=st.sampled_from([-1, -1, 3000]),
        count_bytes=st.booleans(),
        single=st.sampled_from([False, False, True]),
    )
    def declare(
        self,
        dead: bool,
        dead_length: int,
        limit: int,
        length: int,
        overflow: str,
        ttl: int,
        count_bytes: bool,
        single: bool,
    ) -> None:
        self.dead, self.limit, self.length, self.ttl = dead, limit, length, ttl
        self.dead_length = dead_length
        self.rejects = overflow != "drop-head"
        self.arguments: dict[str, Any] = {"x_overflow": overflow}
        if dead:
            self.arguments |= {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
        for name, value in (("x_delivery_limit", limit), ("x_max_length", length), ("x_message_ttl", ttl)):
            if value >= 0:
                self.arguments[name] = value
        self.count_bytes = count_bytes
        if count_bytes:
            self.arguments["x_max_length_bytes"] = 1 << 30
        self.single = single
        if single:
            self.arguments["x_single_active_consumer"] = True
        self.make_dead()
        self.harness.declare("main", **self.arguments)
        self.getter = Witness(self.q, self.seen, 1 << 30)
        self.harness.settle_down()

    def make_dead(self) -> None:
        if self.dead and not self.dead_exists:
            full: dict[str, Any] = (
                {"x_max_length": self.dead_length, "x_overflow": "reject-publish"} if self.dead_length >= 0 else {}
            )
            self.harness.declare("dead", **full)
            self.dead_exists, self.dead_most = True, self.dead_length

    # -- the model -------------------------------------------------------------------------------------------

    @property
    def q(self) -> WorkQueue:
        return self.harness.queue("main")

    @property
    def now(self) -> int:
        return self.harness.clock.now_ms()

    def at(self, *places: str) -> list[Message]:
        return [m for m in self.messages if m.place in places]

    def leave(self, m: Message) -> None:
        """Dropped, expired, rejected: to the dead-letter queue if there is one for it."""
        m.place = MOVING if self.dead else GONE

    def leaves_unseen(self, m: Message) -> bool:
        """The queue drops it when it comes to the head, or when somebody would get it."""
        return 0 <= m.expires <= self.now

    def over_limit(self, m: Message) -> bool:
        return 0 <= self.limit < m.deliveries and m.deliveries > 1

    @property
    def served(self) -> list[Witness]:
        """All, or the single active one: the first in `consumers`."""
        return self.consumers[:1] if self.single else self.consumers

    def watch(self) -> None:
        """Follow what consumers got."""
        for consumer, delivery in self.seen:
            assert consumer in (*self.served, self.getter), "it waits for the end of the active one"
            ready = self.at(READY)
            while (
                ready and ready[0].body != delivery.body and (self.leaves_unseen(ready[0]) or self.over_limit(ready[0]))
            ):
                self.leave(ready.pop(0))
            assert ready, f"{delivery} is not ready"
            m = ready[0]
            assert (delivery.body, delivery.offset) == (m.body, m.offset), "out of order"
            assert not self.leaves_unseen(m)
            if m.vague:
                assert delivery.redelivered or not m.deliveries or m.unflagged, (
                    "a delivery before the power cut is not flagged"
                )
            else:
                assert delivery.redelivered == (m.deliveries > 0), f"{delivery}: delivered {m.deliveries} times before"
                assert delivery.count == (m.deliveries or None)
            if delivery.count is not None:
                m.deliveries, m.vague, m.unflagged = delivery.count, False, False
            m.deliveries += 1
            m.place = UNACKED
            consumer.holds.append(m)
        self.seen.clear()

    def turn(self) -> None:
        """The end of every rule: one turn with those that it asks for, and what they must have done."""
        self.harness.turn()
        self.more_turns()
        self.watch()
        ready = self.at(READY)
        before = -1
        while before != len(ready):  # what a limit takes may uncover an expired message, which goes in the same turn
            before = len(ready)
            while ready and self.leaves_unseen(ready[0]):
                self.leave(ready.pop(0))
            while not self.rejects and 0 <= self.length < len(ready):
                self.leave(ready.pop(0))
        if any(c.credit() > 0 for c in self.served):
            for m in ready:
                assert self.over_limit(m) or self.leaves_unseen(m), "a consumer has credit, and messages wait"
                self.leave(m)
        if not self.harness.broker.unwritten:
            told = [m for m in self.messages if not m.confirmed]

            def confirm() -> None:
                for message in told:
                    message.confirmed = True

            self.harness.store.commits.when_announced(confirm)

    def more_turns(self) -> None:
        while (due := self.harness.broker.timers.next_ms) is not None and due <= self.harness.clock.monotonic_ms():
            self.harness.broker.tick()
            self.harness.turn()

    def runs(self, chosen: list[Message]) -> list[tuple[int, list[Message]]]:
        """Neighbours together, as the protocol settles them."""
        found: list[tuple[int, list[Message]]] = []
        for m in chosen:
            if found and found[-1][0] + len(found[-1][1]) == m.offset:
                found[-1][1].append(m)
            else:
                found.append((m.offset, [m]))
        return found

    # -- publish and consume ---------------------------------------------------------------------------------

    @rule(count=st.integers(1, 6), size=st.sampled_from([10, 60, 400]), ttl=st.sampled_from([-1, -1, -1, 500, 2000]))
    def publish(self, count: int, size: int, ttl: int) -> None:
        for _ in range(count):
            self.number += 1
            body = f"m{self.number}".ljust(size, ".").encode()
            offset = self.q.next
            taken = self.harness.publish("main", body, ttl)
            if self.rejects:
                self.watch()  # it asked consumers first
                assert taken == (self.length < 0 or len(self.at(READY)) < self.length), "reject-publish"
            assert taken or self.rejects
            both = [t for t in (ttl, self.ttl) if t >= 0]
            if taken:
                self.messages.append(Message(offset, body, self.harness.broker.now_ms + min(both) if both else -1))
            self.watch()
            ready = self.at(READY)
            while not self.rejects and 0 <= self.length < len(ready):
                self.leave(ready.pop(0))
        self.turn()

    @precondition(lambda self: len(self.consumers) < 3)
    @rule(room=st.integers(1, 5), priority=st.sampled_from([0, 0, 1]))
    def consume(self, room: int, priority: int) -> None:
        self.release_held()
        consumer = Witness(self.q, self.seen, room, priority)
        self.consumers.append(consumer)
        self.q.add_consumer(consumer)
        self.turn()

    @precondition(lambda self: self.consumers)
    @rule(which=st.integers(0, 2))
    def end_consumer(self, which: int) -> None:
        """A6: its channel is gone. If it was the single active one, the next is the first of those with the highest priority."""
        at = which % len(self.consumers)
        consumer = self.consumers.pop(at)
        if at == 0 and self.consumers:
            self.consumers.insert(0, self.consumers.pop(self.consumers.index(max(self.consumers, key=priority_of))))
        self.q.remove_consumer(consumer)
        self.give_back(consumer, list(consumer.holds))
        self.turn()

    @rule()
    def get(self) -> None:
        self.release_held()
        ready = [m for m in self.at(READY) if not self.leaves_unseen(m)]
        while not (got := self.q.get(self.getter)) and self.q.ready:
            self.harness.turn()  # what has expired leaves in portions
        assert got == any(not self.over_limit(m) for m in ready) or (got and any(m.vague for m in ready))
        for m in [] if got else ready:
            self.leave(m)
        self.watch()
        self.turn()

    # -- settle ----------------------------------------------------------------------------------------------

    def chosen(self, which: int, index: int, multiple: bool) -> tuple[Witness, list[Message]] | None:
        holders = [c for c in [*self.consumers, self.getter] if c.holds]
        if not holders:
            return None
        c = holders[which % len(holders)]
        i = index % len(c.holds)
        return c, c.holds[: i + 1] if multiple else [c.holds[i]]

    def let_go(self, c: Witness, run: list[Message]) -> None:
        c.holds = [m for m in c.holds if m not in run]
        c.unacked -= len(run)
        self.q.resume(c)

    @rule(which=st.integers(0, 3), index=st.integers(0, 8), multiple=st.booleans())
    def ack(self, which: int, index: int, multiple: bool) -> None:
        if found := self.chosen(which, index, multiple):
            c, messages = found
            for offset, run in self.runs(messages):
                self.let_go(c, run)
                self.q.ack(offset, len(run))
                for m in run:
                    m.place = GONE
        self.turn()

    @rule(which=st.integers(0, 3), index=st.integers(0, 8), multiple=st.booleans())
    def reject(self, which: int, index: int, multiple: bool) -> None:
        if found := self.chosen(which, index, multiple):
            c, messages = found
            for offset, run in self.runs(messages):
                self.let_go(c, run)
                self.q.reject(offset, len(run))
                for m in run:
                    self.leave(m)
        self.turn()

    @rule(which=st.integers(0, 3), index=st.integers(0, 8), multiple=st.booleans())
    def requeue(self, which: int, index: int, multiple: bool) -> None:
        if found := self.chosen(which, index, multiple):
            self.give_back(*found)
        self.turn()

    def give_back(self, c: Witness, messages: list[Message]) -> None:
        for offset, run in self.runs(messages):
            self.let_go(c, run)
            self.q.requeue(offset, len(run), sum(len(m.body) for m in run))
            for m in run:
                m.place = READY
                if 0 <= self.limit < m.deliveries and not (m.vague and m.offset in self.q.backlog.requeued):
                    self.leave(m)
        self.q.mark_dirty()

    @rule()
    def purge(self) -> None:
        parked = [o for start, n in self.q.parked for o in range(start, start + n)]
        assert self.q.purge() == len(self.at(READY, HELD))
        for m in self.messages:
            if m.place in (READY, HELD) or (m.place == MOVING and m.offset in parked):
                m.place = GONE
        self.turn()

    @precondition(lambda self: not self.at(UNACKED) and not self.consumers)
    @rule(which=st.integers(0, 10))
    def settle_range(self, which: int) -> None:
        ready = self.at(READY, HELD)
        end = ready[which % len(ready)].offset + 1 if ready else self.q.next
        self.q.settle_until(end)
        self.estimate = self.estimate or not self.count_bytes
        for m in ready:
            if m.offset < end:
                m.place = GONE
        self.turn()

    @precondition(lambda self: not self.at(UNACKED) and not self.consumers)
    @rule(which=st.integers(0, 10))
    def hold_range(self, which: int) -> None:
        """A group plans a batch; nothing but it, or a purge, takes that away, not over any end and start either."""
        self.space()
        self.harness.settle_down()
        self.turn()
        ready = self.at(READY)
        if ready:
            end = ready[which % len(ready)].offset + 1
            for _ in hold.hold(self.q, end, self):
                pass
            self.estimate = self.estimate or not self.count_bytes
            for m in ready:
                m.place = HELD if m.offset < end else READY
            self.harness.settle_down()
        self.turn()

    @rule()
    def release_held(self) -> None:
        """The group has gone for good; it may have read what it held."""
        for _ in hold.release(self.q):
            pass
        self.estimate = self.estimate or not self.count_bytes
        for m in self.at(HELD):
            m.place, m.deliveries = READY, max(m.deliveries, 1)
        self.turn()

    # -- time, space and syncs -------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([100, 600, 1500]))
    def wait(self, ms: int) -> None:
        self.harness.clock.advance(ms / 1000)
        self.harness.broker.tick()
        self.turn()

    @rule()
    def sync_messages(self) -> None:
        self.harness.sync(everything=False)
        self.turn()

    @rule()
    def sync_all(self) -> None:
        settled = self.at(GONE) if not self.harness.broker.unwritten else []
        self.harness.sync(everything=True)
        for m in settled:
            m.forgotten = True
        self.turn()

    @rule()
    def come_to_rest(self) -> None:
        """Every move has arrived that has a target with room for it (X4)."""
        self.space()
        if self.dead_exists:
            for _ in range(60):
                self.harness.clock.advance(1.0)
                self.harness.broker.tick()
                self.harness.settle_down()
                if not self.q.parked or self.dead_is_full:
                    break
            self.turn()
            self.harness.settle_down()
            for m in self.at(GONE):
                m.forgotten = True
            arrived = self.harness.peek("dead")
            for m in self.at(MOVING):
                if m.body in arrived:
                    m.place, m.died = DEAD, True
                else:
                    assert m.offset in self.q.parked and self.dead_is_full, f"{m} has not arrived"
            self.check_dead()

    @property
    def dead_is_full(self) -> bool:
        return 0 <= self.dead_length <= self.harness.queue("dead").ready

    def check_dead(self) -> None:
        expected = sorted(m.body for m in self.at(DEAD))
        assert sorted(self.harness.peek("dead")) == expected

    @precondition(lambda self: self.dead_exists)
    @rule()
    def drain_dead(self) -> None:
        """Reservation for letters that are parked."""
        self.come_to_rest()
        self.harness.drain("dead")
        for m in self.at(DEAD):
            m.place = GONE
        self.turn()
        self.come_to_rest()

    @precondition(lambda self: self.dead_exists)
    @rule()
    def delete_dead(self) -> None:
        """X4: from now on the dead letters stay where they are."""
        self.come_to_rest()
        self.harness.delete("dead")
        self.dead_exists = False
        self.harness.settle_down()
        for m in self.at(DEAD):
            m.place, m.forgotten = GONE, True
        self.turn()

    @precondition(lambda self: self.dead and not self.dead_exists)
    @rule()
    def declare_dead(self) -> None:
        self.space()
        self.make_dead()
        self.harness.settle_down()
        self.turn()

    @rule()
    def no_space(self) -> None:
        """D4: from now on nothing can be written."""
        self.harness.disk.full = True
        self.turn()

    @rule()
    def space(self) -> None:
        self.harness.disk.full = False
        self.harness.broker.retry_writes()
        self.turn()
        assert not self.harness.broker.unwritten

    # -- ends and starts -------------------------------------------------------------------------------------

    @rule()
    def redeclare(self) -> None:
        """Another queue of the same name: nothing comes over from the first."""
        self.come_to_rest()
        self.harness.delete("main")
        self.harness.settle_down()
        self.harness.declare("main", **self.arguments)
        self.harness.settle_down()
        for m in self.at(READY, HELD, UNACKED, MOVING):
            m.place, m.forgotten, m.offset = GONE, True, -1
        self.consumers.clear()
        self.getter = Witness(self.q, self.seen, 1 << 30)
        self.turn()

    def come_back(self) -> None:
        """What was unacked or parked is ready again."""
        self.consumers.clear()
        self.getter = Witness(self.q, self.seen, 1 << 30)
        for m in self.at(UNACKED):
            m.place = READY

    @rule()
    def restart(self) -> None:
        """P4, A9: in order."""
        self.space()
        self.come_to_rest()
        self.harness.restart()
        self.reconcile(exact=True)

    @rule()
    def kill(self) -> None:
        """P2, A9: kill -9; what was written is still there, in order and with its counts. A full disk has not let them be written."""
        exact = not self.harness.broker.unwritten
        for m in [] if exact else self.messages:
            m.unflagged = True
        self.harness.disk.full = False
        self.harness.kill()
        self.reconcile(exact)

    @rule(seed=st.integers(0, 1 << 32), hostile=st.booleans())
    def power_cut(self, seed: int, hostile: bool) -> None:
        """C2, A11, D3."""
        self.harness.disk.full = False
        self.harness.cut(Random(seed), hostile=hostile)
        self.reconcile(exact=False)

    def reconcile(self, exact: bool) -> None:
        """Compare what the new process found with what may be there, and go on from what is."""
        self.harness.settle_down()
        self.seen.clear()
        main, dead = self.harness.peek("main"), self.harness.peek("dead") if self.dead_exists else []
        self.dead_most = max(self.dead_length, len(dead))  # what was drained may have come back
        known = {m.body: m for m in self.messages}
        assert set(main) | set(dead) <= set(known), "a message that never was, or of another queue"
        order = [known[body].offset for body in main]
        assert order == sorted(order), "out of order"
        assert len({*main, *dead}) == len(main) + len(dead), "twice"
        self.come_back()
        # what came back may have pushed out what was first, also where what came back has left since
        crowd = [
            m.offset
            for m in self.messages
            if m.body in main or (m.place == READY and (self.leaves_unseen(m) or self.over_limit(m)))
        ]
        crowded = not self.rejects and 0 <= self.length <= len(crowd)
        for m in self.messages:
            pushed = crowded and sum(offset > m.offset for offset in crowd) >= self.length
            self.place_after(m, m.body in main, m.body in dead, exact, pushed)
        if self.at(HELD):  # a start reads the sizes of what is held only where a limit hangs on them
            self.estimate = self.estimate or not self.count_bytes
        self.watch()
        self.turn()

    def place_after(self, m: Message, in_main: bool, in_dead: bool, exact: bool, pushed: bool) -> None:
        where = f"{m} is {'in main' if in_main else 'in dead' if in_dead else 'nowhere'}"
        may_die = m.place in (READY, MOVING) and (
            self.leaves_unseen(m) or self.over_limit(m) or m.place == MOVING or pushed
        )
        if m.forgotten:
            assert not in_main and not in_dead, f"{where}: it was settled and synced"
        elif m.died or m.place == DEAD:
            assert not in_main, f"{where}: it had left"
            assert in_dead or m.place == GONE, where
        elif m.place == GONE:
            assert not in_dead or self.dead, where
            assert not (exact and in_main), f"{where}: it was settled"
        elif m.confirmed or exact:
            assert in_main or (may_die and (in_dead or not self.dead)), f"{where}: it was confirmed"
        assert not in_dead or may_die or m.died or m.place in (DEAD, GONE), where
        if in_main:
            m.vague = (
                m.vague or not exact or m.place == MOVING
            )  # what had left the head comes back as if it had been delivered
            held = self.q.hold is not None and m.offset in self.q.hold
            assert held or not (m.place == HELD and m.confirmed), f"{where}, and not held any more"
            m.place = MOVING if m.offset in self.q.parked else HELD if held else READY
        elif in_dead:
            m.place, m.died = DEAD, True
        else:
            m.place, m.forgotten = GONE, True
        m.confirmed = True

    @invariant()
    def books(self) -> None:
        if not hasattr(self, "dead"):
            return
        q, ready = self.q, self.at(READY)
        assert q.ready == len(ready) == q.next - q.cursor + len(q.backlog.requeued)
        assert q.unacked == len(self.at(UNACKED)) == sum(len(c.holds) for c in [*self.consumers, self.getter])
        held = self.at(HELD)
        assert q.held == len(held) == waiting.count(q, 0, q.next) - len(ready)
        for m in held:
            found = waiting.run_from(q, m.offset)
            assert found is not None
            assert found[0] == m.offset
            assert found[2] or m.deliveries == 0 or m.vague, "it had been delivered before"
        if not ready and not held and not self.harness.broker.unwritten:
            self.estimate = False
        assert self.estimate or q.ready_bytes == sum(len(m.body) for m in ready)
        assert q.moving + len(q.parked) <= len(self.at(MOVING))
        if self.dead_exists and self.dead_length >= 0:
            dead = self.harness.queue("dead")
            assert dead.ready <= self.dead_most, "a dead letter went past the limit of its queue"
            self.dead_most = max(self.dead_length, dead.ready)
            assert q.moving or not dead.coming
        assert not self.harness.store.alarms


def priority_of(consumer: Witness) -> int:
    return consumer.priority


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(
    max_examples=1500 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 150,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
)
