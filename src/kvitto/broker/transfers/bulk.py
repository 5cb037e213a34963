"""The messages that a transaction adds to its queues. There may be very many, so they are gathered, encoded and applied in pieces.

Each queue gets its messages in one batch, which is made before the record is written. A queue must have all messages of a record in
its files or none, because a batch says which record was applied last. A large batch is handed to the queue and not copied.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from typing import TYPE_CHECKING

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.base.limits import KEYED_COMMIT_MAX
from kvitto.broker import walls
from kvitto.broker.jobs import Cost
from kvitto.broker.routing.index import PIECE_STEPS
from kvitto.broker.transfers.deadletter import LETTER_MAX, weight
from kvitto.broker.transfers.reservation import Reservation
from kvitto.format.entry import DEAD, EXPIRES
from kvitto.format.settlement import DEAD_LETTERED
from kvitto.store import pieces
from kvitto.store.batch import Batch
from kvitto.store.record import Packed, Record
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.queues.work_queue import WorkQueue
    from kvitto.broker.vhost import VHost

COPIES_MAX = 4
"""The copies of all messages of one transaction may take this many times the memory of the largest transaction."""
LETTER_COST = 60
"""The cost of one dead letter, without the search for its route."""
QUEUE_COST, COPY_COST = 10, 4
"""The costs of giving a queue its batch, and of putting one message into the batch."""
DECODE_COST, DECODE_SHIFT = 10, 4
"""The cost of decoding properties: these, and one more for each 2 ** 4 bytes."""
BYTES_SHIFT = 11
"""2 ** 11 bytes cost one unit: about 2 GB are copied in a second."""
SMALL = 16 << 10
"""At most this many bytes of a batch are copied when it is encoded: the buffers of a larger one become part of the record."""


class Bulk:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.batches: dict[Queue, Batch] = {}
        self._flagged: set[Queue] = set()
        """Queues that get messages with a time to live, or dead letters. A run in the journal cannot store these attributes."""
        self.room = Reservation()
        self.size = 0
        self.packed = Packed()
        self.record = Record(packed=self.packed)
        self.cost = Cost()

    def grow(self, size: int) -> None:
        """Count `size` more bytes. Raises ChannelError 406 if that is too much for one record."""
        self.size += size
        most = COPIES_MAX * self._broker.limits.tx_max
        if self.size > most:
            text = f"the copies of this transaction's messages are more than {most} bytes: commit more often"
            raise ChannelError(PRECONDITION_FAILED, text, limit="transaction")

    # -- gather ----------------------------------------------------------------------------------------------

    def put(
        self, queues: Collection[Queue], key: bytes, props: bytes, body: bytes | Buf, ttl_ms: int = -1, flags: int = 0
    ) -> Iterator[None]:
        """Put a message into the batch of each of these queues."""
        self.grow(weight(key, props, body) * len(queues))
        copy_cost = COPY_COST + (0 if isinstance(body, Buf) else len(body) >> BYTES_SHIFT)
        for queue in queues:
            cost = copy_cost
            batch = self.batches.get(queue)
            if batch is None:
                batch = self.batches[queue] = Batch()
                cost += QUEUE_COST
            elif batch.count >= KEYED_COMMIT_MAX and queue.settings.deduplication is not None:
                text = f"a transaction may bring {KEYED_COMMIT_MAX} messages at most to queue '{queue.name}', which deduplicates"
                raise ChannelError(PRECONDITION_FAILED, f"{text}: commit more often", limit="transaction")
            kept_ms = queue.kept_ms(props, ttl_ms)
            if isinstance(body, Buf):
                for copied in batch.put_slices(key, props, body, kept_ms, flags):
                    if self.cost.spend(copied >> BYTES_SHIFT):
                        yield
            else:
                batch.put(key, props, body, kept_ms, flags)
            if kept_ms >= 0 or flags:
                self._flagged.add(queue)
            if queue.routes_later:
                cost += DECODE_COST + (len(props) >> DECODE_SHIFT)
            if self.cost.spend(cost):
                yield

    def put_run(self, queues: Collection[Queue], source: Batch, i: int, n: int, size: int) -> Iterator[None]:
        """Put n messages from index i of another batch, which take `size` bytes, into the batch of each of these queues.

        They have neither flags nor a time to live, and no property that matters to a queue.
        """
        self.grow(size * len(queues))
        cost = (n >> 3) + (size >> BYTES_SHIFT)
        for queue in queues:
            batch = self.batches.get(queue)
            if batch is None:
                batch = self.batches[queue] = Batch()
            source.copy_to(batch, i, n)
            if self.cost.spend(COPY_COST + cost):
                yield

    def keep_room(self) -> Iterator[None]:
        """Reserve room in each queue for its batch. Raises ChannelError 406 if a queue has no room for all of it."""
        for queue, batch in self.batches.items():
            n, size = batch.count, batch.body.n
            if queue.limited and queue.rejects and queue.refuses(n, size):
                text = f"queue '{queue.name}' is full: the transaction was not committed"
                raise ChannelError(PRECONDITION_FAILED, text)
            self.room.keep(queue, n, size)
            if self.cost.spend(1):
                yield

    @staticmethod
    def way(vhost: VHost) -> int:
        """Return the cost of the last piece of a search for a route."""
        return min(vhost.search_cost, PIECE_STEPS) >> 3

    def settle(self, queue: Queue, offset: int, count: int, outcome: int) -> None:
        """Add a settlement of `count` messages of a durable queue to the record."""
        self.packed.settle(queue.log.queue_id, offset, count, outcome)

    def move(self, queue: WorkQueue, offset: int) -> Generator[object, None, bool]:
        """Add the move of a rejected message to its dead-letter queues. Returns False if no queue takes it, or if it was a cycle."""
        letter = yield from self._broker.dead_letters.letter_steps(queue, offset, "rejected")
        if letter is None:
            return False
        key, props, body, targets, _, _ = letter
        if self.cost.spend(LETTER_COST + self.way(queue.vhost)):
            yield None
        if not targets or weight(key, props, body) * len(targets) > LETTER_MAX or queue.deleted:
            return False
        for number, target in enumerate(targets):
            if target.deleted or (target.rejects and walls.run(target, target.is_full, len(body)) is not False):
                for kept in targets[:number]:
                    self.room.release(kept, 1, len(body))
                return False
            self.room.keep(target, 1, len(body))
            if self.cost.spend(1):
                yield None
        yield from self.put(targets, key, props, body, flags=DEAD)
        self.settle(queue, offset, 1, DEAD_LETTERED)
        return True

    @property
    def changed(self) -> bool:
        """Whether one of the queues has been deleted since it was found, or is out of service."""
        return any(queue.deleted for queue in self.batches)

    def encode(self) -> Iterator[None]:
        """Add the batches of durable queues to the record."""
        for queue, batch in self.batches.items():
            if not queue.log.durable:
                continue
            if queue in self._flagged:
                yield from self._encode_each(queue.log.queue_id, batch)
            else:
                self.packed.run(queue.log.queue_id, batch)
                if self.cost.spend(QUEUE_COST + (min(batch.size(), SMALL) >> BYTES_SHIFT)):
                    yield
        self.packed.close()

    def _encode_each(self, queue_id: str, batch: Batch) -> Iterator[None]:
        for i in range(batch.count):
            key, props, body, flags = batch.viewed(i)
            self.packed.append(queue_id, (key, props, body), batch.ttl_of(i), flags & ~EXPIRES)
            if self.cost.spend(COPY_COST + (min(len(body), SMALL) >> BYTES_SHIFT)):
                yield

    # -- apply -----------------------------------------------------------------------------------------------

    def apply(self) -> Iterator[None]:
        """Give each queue its batch, one after the other, once the record is durable.

        A crash in between loses nothing: the journal keeps the record until all queues have their batches in the files.
        """
        broker, sequence = self._broker, self.record.sequence
        queues = list(self.batches)
        try:
            for queue in queues:
                batch = self.batches.pop(queue)
                self._give(queue, batch, sequence if queue.log.durable else 0)
                if self.cost.spend(
                    QUEUE_COST + (batch.count >> 6) + (min(batch.size(), pieces.WHOLE_BYTES) >> BYTES_SHIFT)
                ):
                    yield
        except Exception as error:  # noqa: BLE001 - none of these queues may write half of it: the next start applies the whole record
            for queue in queues:
                queue.contain(error)
        self.room.give_back()
        if sequence:
            broker.store.journal.applied_to(sequence)

    def _give(self, queue: Queue, batch: Batch, sequence: int) -> None:
        broker = self._broker
        self.room.give_back_to(queue)
        if queue.deleted:
            return
        broker.applying = True
        try:
            walls.run(queue, queue.append_journaled_run, batch, sequence)
        finally:
            broker.applying = False
        if queue.tail.batch is not None and queue.tail.batch.size() > pieces.WHOLE_BYTES:
            broker.flush(queue)  # a batch has to hold a whole record, not several large ones
