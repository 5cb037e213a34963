"""An exchange with deduplication and two queues against a simple model, through restarts, kills and power cuts.

A message that was taken is in the passage or in both queues, never in both places, and comes to each queue once and in order. A key is
known if its last message is among the last `size` messages with keys. A kill takes what no turn has written; a power cut may take what
was not synced, key and copies together.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvitto.broker.queues.passage import Passage
from kvitto.broker.transfers import onward
from kvitto.store import journal, log
from kvitto.wire import tables
from kvitto.wire.buf import Buf
from kvitto.wire.properties import Properties
from tests.support import stored
from tests.support.harness import BrokerHarness
from tests.support.stored import in_segments

keys = st.integers(0, 9)
WRITTEN, SYNCED = 1, 2
KEY = tables.encode_shortstr("e") + tables.encode_shortstr("k")
QUEUES = ("one", "two")


@dataclass
class Note:
    key: int | None
    body: bytes
    state: int = 0
    """0: in memory only."""
    gone: set[str] = field(default_factory=set)
    """The queues from which it was taken and acked."""


class PassageModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(log, "SEGMENT_BYTES", 1500)
        self.patch.setattr(log, "ROLL_WHEN_SETTLED_BYTES", 500)
        self.patch.setattr(journal, "ROTATE_BYTES", 400)
        self.patch.setattr(onward, "RECORD_BYTES", 600)
        self.patch.setattr(onward, "ALONE_BYTES", 700)
        self.patch.setattr(onward, "SHARED_BYTES", 300)
        ids = count(1)
        self.patch.setattr(secrets, "token_hex", lambda n: f"{next(ids):0{2 * n}x}")
        self.harness = BrokerHarness()
        self.notes: list[Note] = []
        self.number = 0

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(
        size=st.sampled_from([1, 2, 3, 5, 20]),
        kind=st.sampled_from(["direct", "fanout", "headers"]),
        length=st.sampled_from([-1, -1, 2]),
        durable=st.booleans(),
    )
    def declare(self, size: int, kind: str, length: int, durable: bool) -> None:
        self.size = size
        vhost = self.harness.broker.vhosts["/"]
        arguments = {"x-message-deduplication": True, "x-cache-size": size}
        vhost.declare_exchange("e", kind, True, False, False, arguments)
        more: dict[str, Any] = {"x_max_length": length, "x_overflow": "reject-publish"} if length >= 0 else {}
        self.harness.declare("one")
        self.harness.declare("two", **more)
        for name in QUEUES:
            vhost.bind("e", self.harness.queue(name), "k", {})
        self.harness.declare("source", x_dead_letter_exchange="e", x_dead_letter_routing_key="k")
        self.harness.settle_down()

    # -- the model -------------------------------------------------------------------------------------------

    @property
    def passage(self) -> Passage:
        found = self.harness.broker.vhosts["/"].exchanges["e"].passage
        assert found is not None
        return found

    def knows(self, key: int) -> bool:
        found: dict[int, None] = {}
        for note in self.notes:
            if note.key is not None:
                found.pop(note.key, None)
                found[note.key] = None
        return key in list(found)[-self.size :]

    def body(self, size: int) -> bytes:
        self.number += 1
        return b"%06d" % self.number + bytes(size)

    def inside(self) -> list[bytes]:
        """The messages in the passage."""
        return [body for _, body in stored.bodies(self.passage, held=True)]

    # -- what happens ----------------------------------------------------------------------------------------

    @rule(
        key=keys | st.none(),
        size=st.sampled_from([0, 50, 400, 1000]),
        whole=st.booleans(),
        mattering=st.booleans(),
    )
    def publish(self, key: int | None, size: int, whole: bool, mattering: bool) -> None:
        body, before = self.body(size), self.passage.published
        known = key is not None and self.knows(key)
        refuses = self.passage.rejects
        headers: dict[str, Any] = {} if key is None else {"x-deduplication-header": key}
        if mattering:
            headers["CC"] = ["k"]
        given: bytes | Buf = body
        if whole:
            given = Buf(0)
            given.add(body)
        taken = self.passage.append_bytes(KEY, Properties(headers=headers).encode(), given, 5000, 0)
        assert bool(taken) == (known or not refuses)
        assert self.passage.published - before == (taken and not known)
        if taken and not known:
            self.notes.append(Note(key, body))

    @rule(key=keys)
    def letter(self, key: int) -> None:
        """A dead letter is not compared, and leaves its key."""
        self.settle_down()
        if self.passage.rejects:
            return
        source, body = self.harness.queue("source"), self.body(0)
        source.append_bytes(KEY, Properties(headers={"x-deduplication-header": key}).encode(), body, -1, 0)
        self.settle_down()
        (delivery,) = self.harness.take("source")
        source.reject(delivery.offset, 1)
        self.settle_down()
        assert self.harness.peek("source") == []
        self.notes.append(Note(key, body, SYNCED))

    @rule(name=st.sampled_from(QUEUES))
    def drain(self, name: str) -> None:
        got = set(self.harness.drain(name))
        for note in self.notes:
            if note.body in got:
                note.gone.add(name)

    @rule()
    def turn(self) -> None:
        self.harness.turn()
        if not self.passage.tail.closed and self.passage.tail.batch is None:
            for note in self.notes:
                note.state = max(note.state, WRITTEN)

    @rule()
    def sync(self) -> None:
        self.turn()
        if self.harness.store.commits.dirty:
            self.harness.sync(everything=False)

    @rule(
        key=keys | st.none(),
        size=st.sampled_from([0, 400, 1000]),
        steps=st.integers(1, 7),
        seed=st.none() | st.integers(0, 1 << 30),
    )
    def fail_on_the_way(self, key: int | None, size: int, steps: int, seed: int | None) -> None:
        """A kill or a power cut while a message moves from the passage to its queues."""
        self.publish(key, size, False, False)
        for step in range(steps):
            if step % 2 and self.harness.store.commits.dirty:
                self.harness.broker.sync_files()
            else:
                self.turn()
        if seed is None:
            self.kill()
        else:
            self.cut(seed, False)
        self.settle_down()

    @rule()
    def settle_down(self) -> None:
        self.harness.settle_down()
        for note in self.notes:
            note.state = SYNCED

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0]))
    def pass_time(self, seconds: float) -> None:
        self.settle_down()
        self.harness.clock.advance(seconds)
        self.harness.broker.tick()
        self.settle_down()

    @rule()
    def restart(self) -> None:
        self.settle_down()
        self.harness.restart()

    @rule()
    def kill(self) -> None:
        self.harness.kill()
        self.survive(WRITTEN)

    @rule(seed=st.integers(0, 1 << 30), hostile=st.booleans())
    def cut(self, seed: int, hostile: bool) -> None:
        self.harness.cut(Random(seed), hostile=hostile)
        self.survive(SYNCED)

    def survive(self, state: int) -> None:
        """Learn what has become of messages of which it was not sure, and which acks were lost."""
        there = {name: set(self.harness.peek(name)) for name in QUEUES}
        inside = set(self.inside())
        kept = []
        for note in self.notes:
            found = note.body in inside or any(note.body in bodies for bodies in there.values())
            if note.state < state and not found and not self.is_stored(note):
                continue
            note.state = max(note.state, state)
            note.gone = {name for name in note.gone if note.body not in there[name]}
            kept.append(note)
        self.notes = kept

    def is_stored(self, note: Note) -> bool:
        """Whether the segments have a message that has left the passage."""
        return in_segments(self.harness.disk, self.passage, note.body[:6])

    # -- what holds ------------------------------------------------------------------------------------------

    @invariant()
    def each_message_is_in_the_passage_or_in_all_queues(self) -> None:
        if not hasattr(self, "size"):
            return
        inside = self.inside()
        there = {name: self.harness.peek(name) for name in QUEUES}
        for bodies in (inside, *there.values()):
            numbers = [body[:6] for body in bodies]
            assert numbers == sorted(set(numbers)), "once, and in order"
        records = bool(self.harness.broker.records.waiting) or self.passage.onward.busy
        for note in self.notes:
            out = {name for name in QUEUES if note.body in there[name] or name in note.gone}
            if note.body in inside:
                assert not out or records
            else:
                assert out == set(QUEUES) or not note.state or records, (note, out)

    @invariant()
    def what_waits_has_arrived_when_nothing_is_in_its_way(self) -> None:
        if not hasattr(self, "size"):
            return
        harness = self.harness
        under_way = harness.store.commits.dirty or harness.broker.dirty or harness.broker.jobs.waiting
        if not (under_way or self.passage.onward.busy or self.passage.rejects):
            assert all(note.state == 0 or note.body not in set(self.inside()) for note in self.notes)

    @invariant()
    def the_segments_count_their_keys(self) -> None:
        if not hasattr(self, "size") or self.passage.tail.batch is not None or self.passage.tail.closed:
            return
        assert sum(segment.keys for segment in self.passage.log.segments) == self.passage.table.count <= self.size


TestPassageModel = PassageModel.TestCase
TestPassageModel.settings = settings(
    max_examples=2000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 120,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
)
