"""Writes and applies records of the journal. A record changes several queues atomically: it is written, synced, and then applied.

Records keep their order. A large record is written in slices, one in each piece of a job, and the records behind it wait for its end.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kvitto.base.errors import StoreFull
from kvitto.base.turn_part import TurnPart
from kvitto.broker import walls
from kvitto.store import pieces
from kvitto.store.record import Record

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.queue import Queue

Waiting = tuple[Record, Callable[[], object], Callable[[], None]]

APPLIED_PER_TURN = 150
"""How many messages of journal records one turn applies. Transactions are applied in pieces, other records at once.

This is more than the dead letters that one turn sends. Otherwise ever more records would wait in memory, and make each run of the
garbage collector longer.
"""
APPLIED_PIECE = 40
"""A piece of a transaction counts as this many messages."""


class Records(TurnPart):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stopped = False
        self._held = 0
        """How many records wait until the messages that they settle are durable."""
        self._unwritten: deque[Waiting] = deque()
        """A large record that is being written in slices, and the records behind it."""
        self._begun = False
        """Whether the first of these has been applied in part."""
        self.waiting: deque[tuple[int, Callable[[], object]]] = deque()
        """The announced records that have not been applied yet, in order, each as (number of messages, function that applies it).

        The function returns a true value while the record is not applied to its end.
        """

    def write(self, record: Record, done: Callable[[], object], full: Callable[[], None]) -> None:
        """Write an atomic record. Once it is announced, a turn calls `done`, which applies it. On a full disk drop it and call `full`.

        The messages that a record settles must be durable before the record: a replay finds them by their offsets, and after a power
        cut the offset of a lost message is given to another one. Records stay in order.
        """
        if self._held or self._not_durable(record):
            self._held += 1
            self._broker.store.commits.when_synced(lambda: self._go_on(record, done, full), messages=True)
        else:
            self._write(record, done, full)

    def _go_on(self, record: Record, done: Callable[[], object], full: Callable[[], None]) -> None:
        self._held -= 1
        late = self._not_durable(record)
        if not late:
            self._write(record, done, full)
        elif self._broker.unwritten or any(queue.fault is not None for queue in late):
            full()  # a queue out of service never writes what it has not written yet
        else:  # the sync that has ended had begun before the messages were written
            self.write(record, done, full)

    def _not_durable(self, record: Record) -> list[Queue]:
        """Return the queues with messages that the record settles and that are not durable yet."""
        queues = [(self._broker.queues.get(queue_id), end) for queue_id, end in record.ends.items()]
        return [queue for queue, end in queues if queue is not None and end > queue.log.synced_end]

    def _write(self, record: Record, done: Callable[[], object], full: Callable[[], None]) -> None:
        if record.large and self._stopped:
            return  # nothing is written, so the message stays where it is: a part of a record would look like damage
        if self._unwritten or record.large:
            self._unwritten.append((record, done, full))
            if len(self._unwritten) == 1:
                self._broker.jobs.start(self._write_slices())
            return
        try:
            walls.essential("the journal", self._broker.store.journal.write, record)
        except StoreFull:
            full()
        else:
            self._wrote(record, done)

    def _write_slices(self) -> Iterator[bool]:
        """Write a large record, a slice in each piece, and then the records that have come meanwhile.

        Slices wait for the disk as large batches do: everybody's next sync has what was written.
        """
        store = self._broker.store
        write_some = store.journal.write_some
        while self._unwritten:
            record, done, full = self._unwritten[0]
            try:
                while not walls.essential("the journal", write_some, record, pieces.SLICE_BYTES):
                    store.commits.unsynced += pieces.SLICE_BYTES
                    yield not store.pressed
            except StoreFull:
                walls.run(self._broker.jobs, full)
            else:
                self._wrote(record, done)
            self._unwritten.popleft()

    def _wrote(self, record: Record, done: Callable[[], object]) -> None:
        """Wait for the announcement of a record that is in the file."""
        count = len(record.appends) + sum(run.batch.count for run in record.runs)
        if record.packed is not None:
            count += record.packed.messages
            record.packed = None  # frees the memory
        # The record is applied when it is announced, and not before, because the messages that it moves may be delivered at once. If the
        # record were then lost with this machine, another one would repeat the move and deliver them as if for the first time (A9).
        self._broker.store.commits.when_announced(lambda: self.waiting.append((count, done)), messages=False)

    def apply(self, most: int) -> None:
        """Apply announced records in order: as many as fit into a turn, or all of them if no other turn follows."""
        left = APPLIED_PER_TURN if most < sys.maxsize else most
        while self.waiting and left > 0:
            count, apply = self.waiting[0]
            self._broker.changes_left = 0 if self._begun else self._broker.changes_each
            # a record that is not applied to its end is continued in the next turn, and those behind it wait
            if walls.essential("what the journal has for the queues", apply):
                left -= APPLIED_PIECE
                self._begun = True
            else:
                self._begun = False
                self.waiting.popleft()
                left -= count
            if self._broker.out_of_time():
                return

    def stop(self) -> None:
        """Drop a large record that is not complete, for a clean stop. No peer has been told of it."""
        self._stopped = True
        self._unwritten.clear()
        self._broker.store.journal.stop_writing()
