"""The model of a queue (test_queue_model.py) where everything is large: each batch is written, checked and read in many slices.

Messages come one by one, with bodies that are not copied, and in transactions; they are read by offset, looked at, and the broker may
end between any two slices (A5, A8, A9, C2, D3, D4, P2-P4, T4, X4).
"""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvitto.base.errors import ChannelError
from kvitto.broker.queues import queue
from kvitto.broker.queues.look import Look, looks
from kvitto.broker.queues.reader import RangeReader
from kvitto.broker.transfers.bulk import Bulk
from kvitto.store import pieces, reading
from kvitto.wire.buf import Buf
from tests.broker import test_queue_model
from tests.broker.test_queue_model import DEAD, GONE, HELD, READY, Message, QueueModel
from tests.support.harness import NO_PROPERTIES, Taker, address, as_bytes

LAST = object()
SIZES = st.sampled_from([5, 10, 60, 150, 151, 400])


class LargeModel(QueueModel):
    def __init__(self) -> None:
        super().__init__()
        self.hurry = False
        for module, name, value in (
            (reading, "STREAMED_BYTES", 150),
            (reading, "PART_MESSAGES", 2),
            (reading, "CHUNK_BYTES", 100),
            (pieces, "SLICE_BYTES", 40),
            (pieces, "WHOLE_BYTES", 100),
            (queue, "ADOPTED", 100),
        ):
            self.patch.setattr(module, name, value)

    # -- slices ----------------------------------------------------------------------------------------------

    def more_turns(self) -> None:
        super().more_turns()
        broker = self.harness.broker
        for _ in range(5000):
            if not (broker.unfinished() or self.q.checking or (self.q.tail.closed and not broker.unwritten)):
                return
            self.harness.turn()
            super().more_turns()
        raise AssertionError("the turns never end")

    def turn(self) -> None:
        if self.hurry and not any(self.leaves_unseen(m) for m in self.at(READY)):  # what expires leaves in any turn
            self.harness.broker.turn(1)
            self.watch()
        else:
            super().turn()

    @precondition(lambda self: self.length < 0 and self.ttl < 0)
    @rule()
    def hasten(self) -> None:
        """The next rules do not wait for what they have begun."""
        self.hurry = True

    def wait_for_all(self) -> None:
        self.hurry = False
        self.turn()

    @rule()
    def come_to_rest(self) -> None:
        self.wait_for_all()
        super().come_to_rest()

    @rule()
    def get(self) -> None:
        self.wait_for_all()
        super().get()

    def reconcile(self, exact: bool) -> None:
        self.hurry = False
        self.harness.settle_down()
        at = {message[2]: o for o in range(self.q.next) if (message := self.q.read(o)) is not None}
        for m in self.messages:  # what the journal brings again may come behind offsets that were used before
            m.offset = at.get(m.body, m.offset)
        super().reconcile(exact)

    def place_after(self, m: Message, in_main: bool, in_dead: bool, exact: bool, pushed: bool) -> None:
        super().place_after(m, in_main, in_dead, exact, pushed)
        found = self.q.backlog.find(m.offset, False) if in_main else None
        if found is not None:  # the journal has no time: what a start applies again lives from then on
            expires = found[0].expires_at(found[1])
            assert expires >= m.expires
            m.expires = expires

    def books(self) -> None:
        if not self.hurry:
            super().books()

    @rule()
    def kill(self) -> None:
        self.wait_for_all()
        super().kill()

    # -- what is large ---------------------------------------------------------------------------------------

    def body(self, size: int) -> bytes:
        self.number += 1
        return f"m{self.number}".ljust(size, ".").encode()

    def note(self, offset: int, body: bytes, ttl: int) -> None:
        both = [t for t in (ttl, self.ttl) if t >= 0]
        self.messages.append(Message(offset, body, self.harness.broker.now_ms + min(both) if both else -1))

    def push_out(self) -> None:
        self.watch()
        ready = self.at(READY)
        while not self.rejects and 0 <= self.length < len(ready):
            self.leave(ready.pop(0))

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=3), ttl=st.sampled_from([-1, -1, -1, 500, 2000]))
    def publish_whole(self, sizes: list[int], ttl: int) -> None:
        """Bodies that are not copied."""
        for size in sizes:
            body = self.body(size)
            offset = self.q.next
            taken = self.q.append_whole(address("main"), NO_PROPERTIES, whole(body), ttl, 0)
            assert taken or self.rejects
            if taken:
                self.note(offset, body, ttl)
            self.push_out()
        self.turn()

    @rule(
        messages=st.lists(
            st.tuples(SIZES, st.booleans(), st.sampled_from([-1, -1, -1, -1, 2000])), min_size=1, max_size=7
        ),
    )
    def commit(self, messages: list[tuple[int, bool, int]]) -> None:
        """T4: it goes through the journal."""
        self.wait_for_all()
        self.space()
        bulk, put = Bulk(self.harness.broker), []
        for size, large, ttl in messages:
            body = self.body(size)
            put.append((body, ttl))
            for _ in bulk.put([self.q], address("main"), NO_PROPERTIES, whole(body) if large else body, ttl):
                pass
        try:
            list(bulk.keep_room())
        except ChannelError:
            assert self.rejects
            bulk.room.give_back()
            self.turn()
            return
        for _ in bulk.encode():
            pass
        steps = bulk.apply()
        done: list[bool] = []

        def apply() -> bool:
            first = self.q.next
            more = next(steps, LAST) is None
            if not done:
                done.append(True)
                for at, (body, ttl) in enumerate(put):
                    self.note(first + at, body, ttl)
                self.watch()
            return more

        self.harness.broker.records.write(bulk.record, apply, lambda: done.append(False))
        for _ in range(2000):
            if done:
                break
            self.harness.turn()
            if self.harness.store.commits.dirty:
                self.harness.sync(everything=False)
        assert done == [True]
        self.push_out()
        self.turn()

    # -- reads -----------------------------------------------------------------------------------------------

    @rule(start=st.integers(0, 60), end=st.integers(0, 60), steps=st.sampled_from([1, 400]))
    def read(self, start: int, end: int, steps: int) -> None:
        """By offset."""
        self.wait_for_all()
        self.space()
        self.harness.settle_down()
        self.turn()
        low = min((m.offset for m in self.messages), default=0)
        taker = Taker(self.q)
        reader = RangeReader(self.q, taker, low + start, low + start + end, lambda _: None, None)
        for _ in range(5000):
            reader.pump(steps)
            if reader.finished:
                break
        assert reader.finished
        expected = [m for m in self.at(READY, HELD) if low + start <= m.offset < reader.end]
        assert [(d.offset, d.body) for d in taker.got] == [(m.offset, m.body) for m in expected]

    @rule(most=st.integers(1, 10))
    def look(self, most: int) -> None:
        self.wait_for_all()
        found = [one for one in looks(self.q, 1000) if isinstance(one, Look)]
        expected = [m for m in self.at(READY) if not self.leaves_unseen(m) and not self.over_limit(m)]
        vague = {m.offset for m in self.at(READY) if m.vague}
        assert [(o.offset, as_bytes(o.body)) for o in found if o.offset not in vague] == [
            (m.offset, m.body) for m in expected if not m.vague
        ]
        self.turn()

    @precondition(lambda self: self.dead_exists)
    @rule()
    def drain_dead(self) -> None:
        self.come_to_rest()
        while self.harness.queue("dead").ready:
            self.harness.drain("dead")
            self.harness.settle_down()
        for m in self.at(DEAD):
            m.place = GONE
        self.turn()
        self.come_to_rest()

    # -- ends ------------------------------------------------------------------------------------------------

    @rule(
        turns=st.integers(0, 30),
        every=st.integers(1, 8),
        seed=st.integers(0, 1 << 32),
        cut=st.sampled_from([None, False, True]),
        everything=st.booleans(),
    )
    def end_between(self, turns: int, every: int, seed: int, cut: bool | None, everything: bool) -> None:
        """In the middle of what the rules before have begun."""
        self.harness.disk.full = False
        for turn in range(turns):
            self.harness.broker.jobs.run()
            self.harness.broker.turn(1)
            self.watch()
            if turn % every == 0 and self.harness.store.commits.dirty:
                job = self.harness.store.begin_sync(everything=everything)
                job.run()
                self.harness.store.end_sync(job)
        for m in self.messages:
            m.unflagged = True
        if cut is None:
            self.harness.kill()
        else:
            self.harness.cut(Random(seed), hostile=cut)
        self.reconcile(exact=False)


def whole(body: bytes) -> Buf:
    buf = Buf(0)
    buf.add(body)
    return buf


TestLargeModel = LargeModel.TestCase
TestLargeModel.settings = settings(test_queue_model.TestQueueModel.settings)
