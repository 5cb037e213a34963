"""A Log by itself on a simulated disk: batches in, offsets out, settlements, syncs and starts by hand."""

from __future__ import annotations

from functools import cache
from random import Random

from kvitto.broker.queues.queue import Queue
from kvitto.format.settlement import ACKED, REDELIVERED
from kvitto.store.batch import Batch
from kvitto.store.log import Log
from kvitto.store.reading import Window
from kvitto.store.recovery import Recovered
from kvitto.store.settlements import Settlements
from kvitto.store.store import Store
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness
from tests.support.simdisk import SimDisk

QUEUE = "ab" * 16
DIRECTORY = f"queues/{QUEUE}"


@cache
def batch_maker() -> Queue:
    """A queue whose tails become the batches of any log: only it can add messages when compiled."""
    return BrokerHarness().declare("maker", durable=False)


def batch_of(*bodies: bytes) -> Batch:
    maker = batch_maker()
    maker.tail.end()
    for body in bodies:
        maker.append_bytes(b"\0\1k", b"\0\0", body, -1, 0)
    assert maker.tail.batch is not None
    return maker.tail.batch


def forged(first: int, *bodies: bytes, durable: int = 0, salt: int = 0) -> bytes:
    """A whole batch, as any peer may put it into a body."""
    batch = batch_of(*bodies)
    batch.first = first
    return b"".join(bytes(part) for part in batch.seal(durable, salt))


class LogHarness:
    """One durable log. `written` is what should be in it: offset -> body."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk(reserving=False)
        self.clock = ManualClock()
        self.written: dict[int, bytes] = {}
        self.settled: set[int] = set()
        self.start()

    def start(self) -> None:
        self.store = Store(self.disk, self.clock)
        self.store.open()
        if not self.store.load_definitions():
            self.store.definitions.put("queue", ("/", "harness"), {"id": QUEUE, "auto_delete": False, "arguments": ""})
            self.store.definitions.sync()
        self.log = Log(self.store, QUEUE, True)
        self.found: Recovered = self.log.recover()
        for _ in self.store.journal.replay(self.log.journal):
            pass
        self.store.started()

    def write(self, *bodies: bytes, journal: int = 0) -> int:
        """One batch at the next offset; returns that."""
        first = self.log.next
        batch = batch_of(*bodies)
        batch.first, batch.journal = first, journal
        self.log.write(batch)
        self.written |= {first + i: body for i, body in enumerate(bodies)}
        return first

    def settle(self, *offsets: int, mark: int = 0, outcome: int = ACKED) -> None:
        pending = Settlements()
        for offset in offsets:
            pending.add(offset, 1, outcome, 0)
        self.log.settle(pending, mark or max(offsets) + 1)
        self.settled |= set(offsets)

    def redeliver(self, offset: int, deliveries: int) -> None:
        pending = Settlements()
        pending.add(offset, 1, REDELIVERED, deliveries)
        self.log.settle(pending, max(self.log.delivered_mark, offset + 1))

    def sync(self) -> None:
        job = self.store.begin_sync(everything=True)
        job.run()
        self.store.end_sync(job)
        assert self.store.failed is None

    def settle_down(self) -> None:
        while self.store.commits.dirty or self.store.has_work():
            self.store.work()
            self.sync()

    def kill(self) -> Recovered:
        """Killed and started."""
        self.disk = self.disk.kill()
        self.start()
        return self.found

    def cut(self, rng: Random, hostile: bool = False) -> Recovered:
        self.disk = self.disk.crash(rng, hostile=hostile)
        self.start()
        return self.found

    def body(self, offset: int) -> bytes | None:
        """The stored body at an offset, None if there is none."""
        window = Window()
        if not self.log.reader.load(window, offset) or window.batch.first > offset:
            return None
        return window.batch.message(offset - window.batch.first)[2]

    def served(self) -> dict[int, bytes]:
        """Offset -> body of all that is unsettled, as a start finds it."""
        offsets = [o for start, count in self.found.requeued for o in range(start, start + count)]
        bodies = {o: self.body(o) for o in [*offsets, *range(self.found.cursor, self.log.next)]}
        return {o: body for o, body in bodies.items() if body is not None}

    @property
    def expected(self) -> dict[int, bytes]:
        return {o: body for o, body in self.written.items() if o not in self.settled}

    def names(self, suffix: str) -> list[str]:
        return [n for n in self.disk.listdir(DIRECTORY) if n.endswith(suffix)]
