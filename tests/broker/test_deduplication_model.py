"""A queue with deduplication against a simple model, through restarts, kills and power cuts.

The model has a note for each message that was stored with a key. A key is known if its last note is among the last `size` last notes,
and its time is not over. A kill takes what no turn has written; a power cut may take what was not synced, key and message together.
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
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvitto.broker.queues.deduplicating import DeduplicatingQueue
from kvitto.store import journal, log
from kvitto.wire.properties import Properties
from tests.support.harness import BrokerHarness, Taker, address
from tests.support.stored import in_segments

FOREVER = 1 << 62
keys = st.integers(0, 9)
WRITTEN, SYNCED = 1, 2


@dataclass
class Note:
    key: int
    body: bytes
    until_ms: int
    """By the wall clock."""
    state: int = 0
    """0: in memory only."""
    settled: bool = False


class DeduplicationModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(log, "SEGMENT_BYTES", 1500)
        self.patch.setattr(log, "ROLL_WHEN_SETTLED_BYTES", 500)
        self.patch.setattr(journal, "ROTATE_BYTES", 400)
        ids = count(1)
        self.patch.setattr(secrets, "token_hex", lambda n: f"{next(ids):0{2 * n}x}")
        self.harness = BrokerHarness()
        self.notes: list[Note] = []
        self.number = 0

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(
        size=st.sampled_from([1, 2, 3, 5, 20]), ttl=st.sampled_from([-1, -1, 3000]), length=st.sampled_from([-1, 2])
    )
    def declare(self, size: int, ttl: int, length: int) -> None:
        self.size, self.ttl, self.length = size, ttl, length
        arguments: dict[str, Any] = {"x_message_deduplication": True, "x_cache_size": size}
        if ttl >= 0:
            arguments["x_cache_ttl"] = ttl
        if length >= 0:
            arguments |= {"x_max_length": length, "x_overflow": "reject-publish"}
        self.harness.declare("q", **arguments)
        self.harness.declare("source", x_dead_letter_exchange="", x_dead_letter_routing_key="q")
        self.harness.settle_down()

    # -- the model -------------------------------------------------------------------------------------------

    @property
    def q(self) -> DeduplicatingQueue:
        queue = self.harness.queue("q")
        assert isinstance(queue, DeduplicatingQueue)
        return queue

    @property
    def last(self) -> dict[int, Note]:
        """The last notes that are remembered, by key, the oldest first."""
        found: dict[int, Note] = {}
        for note in self.notes:
            found.pop(note.key, None)
            found[note.key] = note
        return dict(list(found.items())[-self.size :])

    def knows(self, key: int) -> bool:
        return key in self.last and self.last[key].until_ms > self.harness.clock.wall_ms

    def until(self, ttl: int) -> int:
        ttl = self.ttl if ttl < 0 else ttl
        return FOREVER if ttl < 0 else self.harness.clock.wall_ms + ttl

    def properties(self, key: int, ttl: int) -> bytes:
        headers: dict[str, Any] = {"x-deduplication-header": key}
        if ttl >= 0:
            headers["x-cache-ttl"] = ttl
        return Properties(headers=headers).encode()

    def body(self, size: int) -> bytes:
        self.number += 1
        return b"%06d" % self.number + bytes(size)

    # -- what happens ----------------------------------------------------------------------------------------

    @rule(key=keys, ttl=st.sampled_from([-1, -1, -1, 0, 1000, 10_000]), size=st.sampled_from([0, 50, 400]))
    def publish(self, key: int, ttl: int, size: int) -> None:
        body, known, before = self.body(size), self.knows(key), self.q.published
        full = 0 <= self.length <= self.q.ready
        taken = self.q.append_bytes(address("q"), self.properties(key, ttl), body, -1, 0)
        assert bool(taken) == (known or not full)
        assert self.q.published - before == (taken and not known)
        if taken and not known:
            self.notes.append(Note(key, body, self.until(ttl)))

    @rule(size=st.sampled_from([0, 200]))
    def publish_without_key(self, size: int) -> None:
        if not 0 <= self.length <= self.q.ready:
            before = self.q.published
            self.q.append_bytes(address("q"), b"\0\0", self.body(size), -1, 0)
            assert self.q.published == before + 1
            self.drain()

    @rule(key=keys, steps=st.integers(0, 4), kill=st.booleans())
    def letter(self, key: int, steps: int, kill: bool) -> None:
        """A dead letter from another queue: by a record of the journal, that a kill may leave to the start."""
        if 0 <= self.length <= self.q.ready:
            return
        self.settle_down()
        body, known, until = self.body(0), self.knows(key), self.until(-1)
        source = self.harness.queue("source")
        source.append_bytes(address("source"), self.properties(key, -1), body, -1, 0)
        self.settle_down()
        (delivery,) = self.harness.take("source")
        source.reject(delivery.offset, 1)
        self.harness.turn()
        for step in range(steps):
            if step % 2 and self.harness.store.commits.dirty:
                self.harness.sync()
            else:
                self.harness.turn()
        if kill:
            self.harness.kill()
            again = self.harness.take("source")
            if again:
                self.harness.queue("source").reject(again[0].offset, 1)
        self.harness.settle_down()
        assert self.harness.peek("source") == []
        if not known:
            self.notes.append(Note(key, body, until, SYNCED))

    @rule()
    def drain(self) -> None:
        got = self.harness.drain("q")
        for note in self.notes:
            note.settled = note.settled or note.body in got

    @rule(first=st.booleans())
    def take_one(self, first: bool) -> None:
        taker = Taker(self.q)
        if self.q.get(taker):
            delivery = taker.got[0]
            if first:
                self.q.ack(delivery.offset, 1)
                for note in self.notes:
                    note.settled = note.settled or note.body == delivery.body
            else:
                self.q.requeue(delivery.offset, 1, len(delivery.body))

    @rule()
    def purge(self) -> None:
        self.q.purge()
        for note in self.notes:
            note.settled = True

    @rule()
    def turn(self) -> None:
        self.harness.turn()
        for note in self.notes:
            note.state = max(note.state, WRITTEN)

    @rule()
    def settle_down(self) -> None:
        self.harness.settle_down()
        for note in self.notes:
            note.state = SYNCED

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.turn()
        self.harness.clock.advance(seconds)
        self.harness.broker.tick()
        self.turn()

    @rule()
    def restart(self) -> None:
        self.settle_down()
        self.harness.restart()

    @rule()
    def kill(self) -> None:
        self.harness.kill()
        self.notes = [note for note in self.notes if note.state]

    @rule(seed=st.integers(0, 1 << 30))
    def cut(self, seed: int) -> None:
        self.harness.cut(Random(seed))
        survived = {n: note for n, note in enumerate(self.notes) if note.state == SYNCED}
        bodies = set(self.harness.peek("q"))
        for n, note in enumerate(self.notes):
            if note.state == WRITTEN and (note.body in bodies or self.is_stored(note)):
                survived[n] = note
        self.notes = [note for _, note in sorted(survived.items())]
        for note in self.notes:
            if note.state == WRITTEN:
                note.state = SYNCED
            note.settled = note.body not in bodies if note.settled else note.settled

    def is_stored(self, note: Note) -> bool:
        """Whether the segments have a message that is settled."""
        return in_segments(self.harness.disk, self.q, note.body)

    # -- what holds ------------------------------------------------------------------------------------------

    @invariant()
    def the_messages_are_there_once(self) -> None:
        if not hasattr(self, "size"):
            return
        bodies = self.harness.peek("q")
        assert len(bodies) == len(set(bodies))
        assert {note.body for note in self.notes if not note.settled} <= set(bodies)

    @invariant()
    def the_segments_count_their_keys(self) -> None:
        if not hasattr(self, "size") or self.q.tail.batch is not None:
            return
        assert sum(segment.keys for segment in self.q.log.segments) == self.q.table.count
        assert self.q.table.count <= self.size


TestDeduplicationModel = DeduplicationModel.TestCase
TestDeduplicationModel.settings = settings(
    max_examples=3000 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 150,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
)
