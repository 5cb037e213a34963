"""Runs in which the disk fails or is full for a while (C8, D4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random

import pytest

from kvitto.base.errors import StoreError, SyncError
from kvitto.broker.faults import Faults
from kvitto.broker.queues.queue import Queue
from kvitto.broker.transfers.parked import WAIT_MAX_MS
from kvitto.wire import methods as m
from kvitto.wire.methods import BasicDeliver, decode
from kvitto.wire.spec import FRAME_BODY, FRAME_METHOD
from tests.protocol.sansio import ProtocolHarness
from tests.sim.actor import INBOX
from tests.sim.plan import PROBE
from tests.sim.result import Result, finding
from tests.sim.workload import CONFIRMS, content
from tests.sim.world import SeededIds, SimulatedRun, check_state, small_world
from tests.support import stored
from tests.support.simdisk import FillingDisk, SimDisk

CUTS = 3
NEVER = 1 << 60
"""A disk that is to be full from this operation on is never full."""
TICK_MS = 2000
LONGEST = WAIT_MAX_MS // TICK_MS + 5
"""So many ticks after a failed attempt the next one has been made: one look finds that it has failed, and others find what else waits."""


def eio(seed: int, part: float = 1.0) -> Result:
    """A write, a sync and a read fail: the process ends and tells nothing more (C8), or one queue is out of service, and the next
    start is consistent.
    """
    result = Result(seed)
    writes, syncs, reads = operations(seed)
    rng = Random(f"{seed} eio")
    for kind, places in (("write", writes), ("sync", syncs), ("read", reads)):
        at = rng.choice(places)
        error = (SyncError if kind == "sync" else StoreError)(f"the {kind} fails")
        with small_world(seed):
            world = SimulatedRun(seed)
            (world.disk.fail_read_at if kind == "read" else world.disk.fail_at)[at] = error
            with finding(result, f"{kind} {at}"):
                result.tried += 1
                fail(world, error)
                result.notes[kind] += 1
                after(world, rng)
    return result


def operations(seed: int) -> tuple[list[int], list[int], list[int]]:
    """The numbers of the run's writes (and changes of names), of its syncs, and of its reads."""
    with small_world(seed):
        world = SimulatedRun(seed)
        trace: list[str] = []
        world.disk.trace = trace
        world.play()
    numbered = list(enumerate(trace, 1))
    syncs = [i for i, name in numbered if name.startswith("sync")]
    return [i for i, name in numbered if not name.startswith("sync")], syncs, list(range(1, world.disk.reads + 1))


class OutOfService(BaseException):
    """A queue is out of service, and the turn in which that happened is over: no wall may hold this back."""


@contextmanager
def stopping() -> Iterator[list[str]]:
    """Have the broker stop, as if it were killed, at the end of the turn that takes a queue out of service; gives the reasons."""
    taken: list[str] = []
    take_out, turn = Faults.take_out, ProtocolHarness.turn

    def noting(self: Faults, queue: Queue, error: Exception) -> None:
        take_out(self, queue, error)
        taken.append(str(error))

    def stopping_turn(self: ProtocolHarness) -> None:
        if taken:
            raise OutOfService
        turn(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Faults, "take_out", noting)
        patch.setattr(ProtocolHarness, "turn", stopping_turn)
        yield taken


def fail(world: SimulatedRun, error: StoreError) -> None:
    """Play until the broker gives up, or takes a queue out of service."""
    with stopping() as taken:
        try:
            world.play()
            assert taken, "the broker went on as if nothing had happened"
        except StoreError as raised:
            assert error in (raised, raised.__cause__), f"another error: {raised}"
        except (OutOfService, AssertionError):  # the actor does not expect that a channel is closed because of a queue
            if not taken:
                raise
    if taken:
        assert taken == [str(error)], f"other queues are out of service too: {taken}"
        with suppress(AssertionError):
            world.actor.read()
        return
    if world.up:
        actor = getattr(world, "actor", None)
        if actor is not None and actor.harness is world.harness:
            actor.read()
        world.harness.fail(error)
        if actor is not None and actor.harness is world.harness:
            assert not actor.read(), "something was told after the failure"


def after(world: SimulatedRun, rng: Random) -> None:
    """The next start: in the same boot, with the pages that could not be written or without, or after a power cut."""
    for way in range(2 + CUTS):
        found = world.disk.copy()
        if way == 1:
            found.drop_stuck()
        found = found.kill() if way < 2 else found.crash(rng, hostile=rng.random() < 0.5)
        found.fail_at, found.fail_read_at = {}, {}
        with SeededIds.others(rng):
            check_state(found, world.clock, world.ledger)


def enospc(seed: int, part: float = 1.0) -> Result:
    """The disk is full for a while after the first start: acks work, nothing is lost, and it recovers without hands (D4)."""
    result = Result(seed, tried=1)
    with small_world(seed), finding(result, "with room on the disk"):
        whole = SimulatedRun(seed)
        whole.play(ends=0)
    if result.findings:
        return result
    rng = Random(f"{seed} enospc")
    start, length = rng.randint(90, whole.disk.operations), rng.choice((1, 3, 10, 40, 100))
    with small_world(seed), finding(result, f"full from operation {start} on, {length} long"):
        disk = FillingDisk(NEVER, length)
        world = SimulatedRun(seed, disk)
        world.start()
        probe = Probe(world)
        disk.start = max(start, disk.operations + 1)
        world.actor.while_full = probe.ack
        world.play(ends=0)
        recover(world, length)
        assert not world.actor.unconfirmed, "not confirmed"
        assert not world.harness.store.alarms
        world.actor.full_sync()
        result.notes["while full, acks that brought the next message"] += probe.acked
        for way in range(1 + CUTS):
            found: SimDisk = world.disk.survivor(rng, hostile=way % 2 == 1) if way else world.disk.copy().kill()
            with SeededIds.others(rng):
                check_state(found, world.clock, world.ledger)
    return result


def recover(world: SimulatedRun, length: int) -> None:
    """Let time pass until all is written and no dead letter waits for room.

    Such a letter is tried again after 1, 2, 4 ... s, at most WAIT_MAX_MS. While the disk is full each wait has to end with another
    attempt, and there may be `length` of them; once there is room, no wait is longer either.
    """
    harness, disk = world.harness, world.disk
    was_full, tried, left = True, -1, 0
    while harness.broker.full or any(stored.parked(queue) for queue in harness.broker.queues.values()):
        if was_full and disk.operations > tried:
            left = LONGEST if disk.full else min(LONGEST, 2 * length)
            was_full, tried = disk.full, disk.operations
        assert left > 0, "it does not recover"
        left -= 1
        world.actor.let_tick(TICK_MS)
        world.actor.rest()


class Probe:
    """A consumer with a connection of its own and one message at a time: while the disk is full it acks, and gets the next (D4)."""

    MESSAGES = 8

    def __init__(self, world: SimulatedRun) -> None:
        self.harness, self.told = world.harness, world.ledger.queue(PROBE)
        self.acked = 0
        actor = world.actor
        actor.declare(PROBE)
        bodies = [f"probe {i}".encode() for i in range(self.MESSAGES)]
        for body in bodies:
            actor.published += 1
            actor.unconfirmed[actor.published] = ((PROBE,), body)
            self.told.sent.append(body)
            actor.wire.feed(content(CONFIRMS, PROBE, body))
        actor.full_sync()
        self.wire = world.harness.wire()
        self.wire.put(INBOX, m.ChannelOpen(), m.BasicQos(0, 1, False))
        self.wire.put(INBOX, m.BasicConsume(PROBE, PROBE, False, False, False, False, {}))
        actor.rest()
        self.tag, self.body = self.next()

    def next(self) -> tuple[int, bytes]:
        frames = self.wire.frames()
        tags = [decode(payload) for kind, _, payload in frames if kind == FRAME_METHOD]
        bodies = [payload for kind, _, payload in frames if kind == FRAME_BODY]
        assert bodies, "an ack while the disk is full has not brought the next message"
        self.told.delivered.add(bodies[-1])
        return next(method.delivery_tag for method in tags if isinstance(method, BasicDeliver)), bodies[-1]

    def ack(self) -> None:
        if self.acked < self.MESSAGES - 1:
            self.acked += 1
            self.told.settled.add(self.body)
            self.wire.put(INBOX, m.BasicAck(self.tag, False))
            self.harness.turn()
            while self.harness.hub.unfinished():
                self.harness.turn()
            self.tag, self.body = self.next()
