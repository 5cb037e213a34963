"""A run of the simulation: one seed makes the client, its days, and what a failure leaves (docs/simulation.md)."""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random

import pytest
import xxhash

from kvitto.broker import jobs
from kvitto.broker import state as broker_state
from kvitto.broker.broker import Broker
from kvitto.broker.queues import later_writes
from kvitto.broker.queues.deduplicating import DeduplicatingQueue
from kvitto.broker.queues.queue import Queue
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.transfers import deadletter, onward, stages
from kvitto.protocol import hub
from kvitto.store import definitions, journal, log, paths, pieces, reading, segment, store, stream
from kvitto.store.repair.survey import Survey
from tests.protocol.sansio import NO_TIME_S, ProtocolHarness
from tests.sim.actor import Actor
from tests.sim.ledger import Ledger
from tests.sim.plan import COMPARING, PASSING, POSTPONED, POSTPONING, Plan, keyed, plan
from tests.sim.setup import IMPORTED, Effective, Setup, observed, settings_of
from tests.support import stored
from tests.support.archived import entries
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness, Taker
from tests.support.simdisk import SimDisk

Found = dict[str, list[tuple[bytes, bool]]]
Keys = dict[str, set[bytes]]
ENDS = ("order", "kill", "power", "power")
"""How a broker may end before the next one starts."""


class SeededIds:
    """Where ids and salts come from."""

    rng = Random()

    @classmethod
    def bits(cls, n: int) -> int:
        return cls.rng.getrandbits(n)

    @classmethod
    def bytes(cls, n: int) -> bytes:
        return cls.rng.randbytes(n)

    @classmethod
    @contextmanager
    def others(cls, rng: Random) -> Iterator[None]:
        """What begins here does not change what comes after it."""
        before, cls.rng = cls.rng, rng
        try:
            yield
        finally:
            cls.rng = before


@contextmanager
def small_world(seed: int) -> Iterator[None]:
    """Files that fill, roll and go within a run; ids, salts and delays that the seed decides; nothing is logged."""
    rng, patch, state = Random(f"{seed} world"), pytest.MonkeyPatch(), random.getstate()
    logger = logging.getLogger("kvitto")
    patch.setattr(logger, "propagate", False)
    patch.setattr(logger, "handlers", [logging.NullHandler()])
    patch.setattr(ProtocolHarness, "turn_s", Random(f"{seed} time").choice((0.0, NO_TIME_S)))
    patch.setattr(log, "SEGMENT_BYTES", rng.choice((700, 1500, 4000)))
    patch.setattr(log, "ROLL_WHEN_SETTLED_BYTES", 600)
    patch.setattr(log, "ROLL_WHEN_SETTLED_MS", 2000)
    patch.setattr(reading, "CHUNK_BYTES", 512)
    patch.setattr(journal, "ROTATE_BYTES", rng.choice((500, 500, 4000)))
    patch.setattr(journal, "RESERVE_BYTES", 300)
    patch.setattr(segment, "RESERVE_LEAST", 100)
    patch.setattr(segment, "RESERVE_MOST", 400)
    patch.setattr(segment, "SPARSE_BYTES", 200)
    patch.setattr(stream, "SEGMENT_BYTES_MIN", 1)
    patch.setattr(stages, "RECORD_BYTES", 400)
    patch.setattr(deadletter, "RECORD_BYTES", 500)
    patch.setattr(onward, "RECORD_BYTES", 400)
    patch.setattr(onward, "ALONE_BYTES", Random(f"{seed} alone").choice((200, 1 << 20)))
    patch.setattr(store, "SPARE_BYTES", 500)  # most of the time would go by with copies of 1 MiB of zeros
    patch.setattr(definitions, "COMPACT_BYTES", rng.choice((1000, 1 << 20)))
    patch.setattr(definitions, "WRITTEN_LINES", 3)
    patch.setattr(pieces, "WHOLE_BYTES", rng.choice((0, 150, 400, 2 << 20)))
    patch.setattr(pieces, "SLICE_BYTES", rng.choice((150, 600, 1 << 20)))
    patch.setattr(jobs, "PIECE", rng.choice((20, 100, 500)))
    patch.setattr(hub, "WRITE_COST", rng.choice((1, 60, 3000)))
    patch.setattr(later_writes, "NEW_FILES_PER_COMMIT", Random(f"{seed} files").choice((1, 2, 32)))
    patch.setattr(later_writes, "LOAD_PER_COMMIT", Random(f"{seed} load").choice((1, 10, 256)))
    patch.setattr(broker_state, "CHANGES_OF_ONE", Random(f"{seed} changes").choice((0, 1, 32)))
    patch.setattr(secrets, "randbits", SeededIds.bits)
    patch.setattr(secrets, "token_bytes", SeededIds.bytes)
    patch.setattr(secrets, "token_hex", lambda n: SeededIds.bytes(n).hex())
    random.seed(seed)
    try:
        with SeededIds.others(rng):
            yield
    finally:
        random.setstate(state)
        patch.undo()


class SimulatedRun:
    """A broker on a simulated disk, its client, and the client's ledger; every end is followed by a start from what is left."""

    def __init__(self, seed: int, disk: SimDisk | None = None, about: str = "") -> None:
        self.seed = seed
        self.rng = Random(f"{seed} client")
        self.queues: Plan = plan(self.rng, about)
        self.disk = disk or SimDisk()
        self.disk.linking = self.rng.random() < 0.7
        self.clock = ManualClock()
        self.ledger = Ledger()
        self._numbers = count(1)
        self.up = False
        self.harness: ProtocolHarness
        self.actor: Actor

    def play(self, steps: int = 60, ends: int = 2) -> None:
        """Live, die and live again."""
        if not self.up:
            self.start()
        when = {self.rng.randrange(1, steps) for _ in range(ends)}
        for i in range(steps):
            if i in when:
                self.end(self.rng.choice(ENDS))
                self.start()
            self.actor.step()
        self.actor.rest()

    def start(self) -> None:
        self.up = False
        self.harness = self.open_harness()
        self.up = True
        if self.ledger.queues:
            self.harness.settle_down()
            found = waiting(self.harness.broker)
            self.ledger.check(found)
            setup = observed(self.harness.broker)
            self.ledger.check_setup(setup, settings_of(self.harness.broker))
            self.ledger.setups = [setup]
            self.ledger.check_keys(keys := remembered(self.harness.broker, self.ledger))
            self.ledger.adopt(found)
            self.ledger.forget_lost(keys)
        self.actor = Actor(self.harness, self.ledger, self.rng, self.queues, self._numbers)

    def open_harness(self) -> ProtocolHarness:
        """Start a broker on the disk."""
        return ProtocolHarness(self.disk, self.clock)

    def begin(self, disk: SimDisk) -> BrokerHarness:
        """A start at this time, on another disk."""
        return BrokerHarness(disk, ManualClock(self.clock.wall_ms, self.clock.seconds))

    def end(self, kind: str) -> None:
        """In order, by a kill, or by a power cut; the disk is the next one's."""
        old = self.disk
        if kind == "order":
            self.actor.rest()
            for wire in self.actor.wires:
                wire.connection.lost()
            self.harness.turn()
            self.harness.broker.finish()
            self.harness.store.shut()
        old.watch, watch = None, old.watch
        self.disk = self.found_after(old, kind)
        self.disk.watch, self.disk.trace, self.disk.operations, self.disk.reads = (
            watch,
            old.trace,
            old.operations,
            old.reads,
        )
        self.disk.fail_at, self.disk.fail_read_at = old.fail_at, old.fail_read_at

    def found_after(self, old: SimDisk, kind: str) -> SimDisk:
        """The disk that the next broker finds."""
        return old.crash(self.rng, hostile=self.rng.random() < 0.5) if kind == "power" else old.kill()


# -- what is there ---------------------------------------------------------------------------------------------


def waiting(broker: Broker) -> Found:
    """Every message of every queue and whether it is flagged; nothing is taken."""
    return {name: list(_waiting(queue)) for name, queue in used(broker).items()} | hidden(broker)


def used(broker: Broker) -> dict[str, Queue]:
    """The queues that a client uses: not those that an import has brought."""
    return {name: queue for name, queue in broker.vhosts["/"].queues.items() if not name.startswith(IMPORTED)}


def hidden(broker: Broker) -> Found:
    """What waits in the hidden queues of exchanges, as if they were queues that flag everything: nobody gets a message from there."""
    found = {}
    for name, queue in hidden_queues(broker).items():
        offsets = [*stored.waiting(queue), *(o for start, n in queue.delayed for o in range(start, start + n))]
        messages = [queue.read(offset) for offset in sorted(offsets)]
        found[name] = [(message[2], True) for message in messages if message is not None]
    return found


def hidden_queues(broker: Broker) -> dict[str, WorkQueue]:
    """The queue of the exchange that delays, and that of the one that deduplicates, by the names that the oracle has for them."""
    exchanges = broker.vhosts["/"].exchanges
    found: dict[str, WorkQueue | None] = {}
    if POSTPONING in exchanges:
        found[POSTPONED] = exchanges[POSTPONING].waiting
    if COMPARING in exchanges:
        found[PASSING] = exchanges[COMPARING].passage
    return {name: queue for name, queue in found.items() if queue is not None}


def _waiting(queue: Queue) -> Iterator[tuple[bytes, bool]]:
    return ((body, stored.flagged(queue, offset)) for offset, body in stored.bodies(queue))


def remembered(broker: Broker, ledger: Ledger) -> Keys:
    """By queue with deduplication, which of the bodies that it was sent it would take for duplicates."""
    named = broker.vhosts["/"].queues | hidden_queues(broker)
    return {
        name: {body for body in ledger.queue(name).sent if queue.remembers(keyed(body))}
        for name, queue in named.items()
        if isinstance(queue, DeduplicatingQueue)
    }


def moving(harness: BrokerHarness) -> bool:
    """Whether anything is on its way from one queue to another."""
    letters, writers = harness.broker.dead_letters, harness.broker.stages.writers.values()
    passing = hidden_queues(harness.broker).get(PASSING)
    passes = passing is not None and passing.messages > 0
    return bool(letters.waiting or letters.in_flight or passes or any(writer.moving for writer in writers))


def rest(harness: BrokerHarness) -> None:
    """Until everything has arrived."""
    harness.turn()
    for _ in range(200):
        if not moving(harness):
            return
        harness.settle_down()
        harness.broker.tick()  # no time goes by: no message may expire, or become due, while the others arrive
    raise AssertionError("something never arrives")


def served(harness: BrokerHarness) -> Found:
    """Every message as a consumer gets it, in order, with its flag."""
    rest(harness)
    takers: dict[str, Taker] = {}
    streams = {name: list(_waiting(q)) for name, q in used(harness.broker).items() if q.stream}
    while True:
        for name, queue in used(harness.broker).items():
            if not queue.stream:
                taker = takers.setdefault(name, Taker(queue, no_ack=True))
                while queue.get(taker) or queue.ready:
                    if not queue.get(taker):
                        harness.turn()
        if not moving(harness):
            break
        rest(harness)
    found = {name: [(d.body, d.redelivered) for d in taker.got] for name, taker in takers.items()} | streams
    found |= hidden(harness.broker)
    for name, queue in used(harness.broker).items():
        parked = [stored.read(queue, offset) for offset in stored.parked(queue)]
        found[name] += [(message[2], True) for message in parked if message is not None]
    return found


@dataclass
class Begun:
    """What a start from some disk has come to, whatever a client knows."""

    queues: dict[str, tuple[str, int, int]]
    """By incarnation: the queue's name, the next offset, and the end that may be announced."""
    ends: dict[str, int]
    """By incarnation: the next offset when everything has arrived and has been served. A start that replays the journal syncs, and so
    forwards some messages at once. Another start forwards them in its first turns only."""
    archives: dict[str, dict[bytes, int]]
    """By queue with an archive: the bodies that its files have, and their outcomes."""
    found: Found
    """What is served."""
    keys: Callable[[Ledger], Keys]
    """`remembered`, once a client's ledger is there."""
    setup: Setup
    """Policies, users and whatever an import brings."""
    settings: dict[str, Effective]
    """Of the queues that policies are about."""


def begin(disk: SimDisk, clock: ManualClock) -> Begun:
    """Start from a disk, which is used up, and serve everything."""
    harness = BrokerHarness(disk, ManualClock(clock.wall_ms, clock.seconds))
    assert not harness.store.alarms, harness.store.alarms
    queues = {key: (queue.name, queue.next, queue.log.announced_end) for key, queue in harness.broker.queues.items()}
    setup, settings = observed(harness.broker), settings_of(harness.broker)
    found = served(harness)
    ends = {key: queue.next for key, queue in harness.broker.queues.items()}
    return Begun(queues, ends, archived(harness), found, partial(remembered, harness.broker), setup, settings)


def archived(harness: BrokerHarness) -> dict[str, dict[bytes, int]]:
    """The bodies and outcomes in the files of each queue with an archive, its live segments included."""
    queues = [queue for queue in harness.broker.vhosts["/"].queues.values() if queue.archived]
    files = harness.disk.files() if queues else {}
    return {
        queue.name: {entry.body: entry.outcome for entry in entries(files, queue.log.queue_id).values()}
        for queue in queues
    }


def check_begun(begun: Begun, ledger: Ledger) -> Found:
    """Hold what a start has come to against the ledger. Returns what is served."""
    for incarnation, end in ledger.ends.items():
        if incarnation in begun.queues:
            name, next_, announced_end = begun.queues[incarnation]
            assert next_ >= announced_end >= end, f"{name}: {next_} is told again"
    check_archives(begun, ledger)
    ledger.check_setup(begun.setup, begun.settings)
    ledger.check(begun.found)
    ledger.check_keys(begun.keys(ledger))
    return begun.found


def check_state(disk: SimDisk, clock: ManualClock, ledger: Ledger) -> Found:
    """Start from a disk and hold what is served against the ledger; gives that, and the disk is used up."""
    return check_begun(begin(disk, clock), ledger)


def check_start(disk: SimDisk, clock: ManualClock, ledger: Ledger) -> Found:
    """Check the disk with `kvitto check`, then start from it and hold what is served against the ledger. The disk is used up."""
    check_sound(disk.seen())
    return check_state(disk, clock, ledger)


def check_sound(disk: SimDisk) -> None:
    """D3: `kvitto check` takes what a power cut leaves for no damage; reading it cuts torn tails, so the disk is used up."""
    if disk.exists(paths.DEFINITIONS):  # else there is no data directory yet
        findings = Survey(disk).findings
        assert not findings, [str(finding) for finding in findings]


def check_archives(begun: Begun, ledger: Ledger) -> None:
    """P2: of a queue with an archive every confirmed message is in the files, with its outcome if that had been synced."""
    for name, outcomes in begun.archives.items():
        told = ledger.queue(name)
        lost = told.confirmed - set(outcomes)
        assert not lost, f"{name}: neither waiting nor archived: {lost}"
        open_ = {body for body in told.gone & told.confirmed if not outcomes[body]}
        assert not open_, f"{name}: receipts are lost: {open_}"


def digest(disk: SimDisk) -> int:
    """Of everything that a process would find."""
    state = xxhash.xxh3_64()
    for path, content in disk.files().items():
        state.update(path.encode())
        state.update(content)
    return state.intdigest()
