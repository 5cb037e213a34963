"""The real broker core on a simulated disk: turns, syncs, restarts, kills and power cuts by hand."""

from __future__ import annotations

from random import Random
from typing import Any, cast

from kvitto.broker.broker import Broker
from kvitto.broker.queues.consumer import Consumer
from kvitto.broker.queues.queue import Queue
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.store.batch import Batch, Body, Stored
from kvitto.store.store import Store
from kvitto.wire import tables
from kvitto.wire.buf import Buf
from kvitto.wire.properties import Properties
from tests.support import stored
from tests.support.clock import ManualClock
from tests.support.simdisk import SimDisk

NO_PROPERTIES = b"\0\0"


class BrokerHarness:
    """A broker that is started, with `disk` under it; a restart of any kind replaces both."""

    def __init__(self, disk: SimDisk | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.disk = disk or SimDisk()
        self.start()

    def start(self) -> None:
        self.store = Store(self.disk, self.clock)
        self.store.open()
        self.broker = Broker(self.store, self.clock)
        self.broker.start()

    # -- what the server does --------------------------------------------------------------------------------

    def turn(self) -> None:
        self.broker.jobs.run()
        self.broker.turn()

    def sync(self, everything: bool = True) -> None:
        """One group commit, and the turn that the callbacks ask for. Raises what the disk raised (C8)."""
        job = self.store.begin_sync(everything=everything)
        job.run()
        self.store.end_sync(job)
        if self.store.failed is not None:
            raise self.store.failed
        self.turn()

    def settle_down(self) -> None:
        """Turn and sync until nothing is left to do."""
        self.turn()
        for _ in range(2000):
            if self.store.commits.dirty:
                self.sync()
            elif self.broker.dead_letters.waiting or self.broker.jobs.waiting or self.store.has_work():
                self.turn()
            else:
                return
        raise AssertionError("the store never comes to rest")

    # -- how it may end --------------------------------------------------------------------------------------

    def restart(self) -> None:
        """In order: everything is synced."""
        self.settle_down()
        self.broker.finish()
        self.store.shut()
        self.disk = self.disk.kill()
        self.start()

    def kill(self) -> None:
        """The process dies, the machine lives."""
        self.disk = self.disk.kill()
        self.start()

    def cut(self, rng: Random, *, hostile: bool = False) -> None:
        """The power goes, and comes back."""
        self.disk = self.disk.crash(rng, hostile=hostile)
        self.start()

    # -- shorthands ------------------------------------------------------------------------------------------

    def declare(self, name: str, durable: bool = True, **arguments: Any) -> WorkQueue:
        """`x_max_length=3` stands for "x-max-length": 3."""
        known = {key.replace("_", "-"): value for key, value in arguments.items()}
        # tests of streams have a helper of their own
        return cast(WorkQueue, self.broker.vhosts["/"].declare_queue(name, durable, False, False, known, None))

    def queue(self, name: str) -> WorkQueue:
        return cast(WorkQueue, self.broker.vhosts["/"].queues[name])

    def delete(self, name: str) -> None:
        self.broker.vhosts["/"].delete_queue(self.queue(name))

    def publish(self, name: str, body: bytes, ttl_ms: int = -1) -> bool:
        return bool(self.queue(name).append_bytes(address(name), NO_PROPERTIES, body, ttl_ms, 0))

    def drain(self, name: str) -> list[bytes]:
        """Take and settle everything that is ready, in order."""
        queue = self.queue(name)
        taker = Taker(queue, no_ack=True)
        while queue.get(taker):
            pass
        return [delivery.body for delivery in taker.got]

    def take(self, name: str) -> list[Delivery]:
        """Deliver everything that is ready to somebody who never acks."""
        queue = self.queue(name)
        taker = Taker(queue)
        while queue.get(taker):
            pass
        return taker.got

    def peek(self, name: str) -> list[bytes]:
        """The messages that are ready or held, or wait for a dead-letter queue, in order; nothing is changed."""
        return [body for _, body in stored.bodies(self.queue(name), held=True)]

    def bodies(self, name: str) -> list[bytes]:
        """What a drain would give now; the messages are left unacked."""
        return [delivery.body for delivery in self.take(name)]


def address(queue: str) -> bytes:
    """Exchange "" and the queue's name as they come in with a publish."""
    return b"\0" + tables.encode_shortstr(queue)


def as_bytes(body: Body) -> bytes:
    """A body wherever it is."""
    if isinstance(body, Buf):
        return body.tobytes()
    return body.read() if isinstance(body, Stored) else body


class Delivery:
    def __init__(self, offset: int, body: bytes, redelivered: bool, props: bytes) -> None:
        self.offset = offset
        self.body = body
        self.redelivered = redelivered
        self.headers = dict(Properties.decode(props).headers or {})

    @property
    def count(self) -> Any:
        """x-delivery-count."""
        return self.headers.get("x-delivery-count")

    def __repr__(self) -> str:
        return f"<{self.offset} {self.body!r}{' again' if self.redelivered else ''}>"


class Taker(Consumer):
    """A consumer with `room` for that many unacked messages; it keeps what it `got`."""

    def __init__(
        self, queue: Queue, no_ack: bool = False, room: int = 1 << 30, burst: int = 1 << 30, priority: int = 0
    ) -> None:
        super().__init__(queue, "taker", no_ack, False, priority, {})
        self.room = room
        self.burst = burst
        self.got: list[Delivery] = []
        self.gone = False

    def credit(self) -> int:
        return min(self.room - self.unacked, self.burst)

    def deliver(self, batch: Batch, i: int, n: int, redelivered: int) -> int:
        for k in range(i, i + n):
            _, props, body, _ = batch.message(k)
            self.got.append(Delivery(batch.first + k, body, bool(redelivered), props))
        return n

    def deliver_again(self, key: bytes, props: bytes, body: Body, offset: int) -> None:
        self.got.append(Delivery(offset, as_bytes(body), True, props))

    def queue_gone(self) -> None:
        self.gone = True


def work_queue(broker: Broker, name: str) -> WorkQueue:
    """The queue in the vhost "/", which is no stream."""
    found = broker.vhosts["/"].queues[name]
    assert isinstance(found, WorkQueue)
    return found
