"""The end of a queue: its messages that are not in the files yet, in memory and in order.

New messages go into one open batch. A batch that is too large for one write is closed and waits, with those that were closed after
it, until all of it is in the file. `Queue` writes the batches and then calls the methods here.

Invariants: `first` is the offset of the first message of the open batch, or `next` if there is none; the closed batches end there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from kvitto.store.batch import Batch


class Tail:
    def __init__(self) -> None:
        self.next = 0
        """The offset of the next message that comes."""
        self.batch: Batch | None = None
        """The open batch."""
        self.first = 0
        self.settled = 0
        """How many messages of the open batch have been settled already."""
        self.closed: deque[Batch] = deque()
        """Batches that wait to be written before the open one. The first of them may be in the file in part."""

    def start_at(self, offset: int) -> None:
        """Begin with an empty tail. The next message gets this offset."""
        self.next = self.first = offset

    def open(self, batch: Batch) -> None:
        """Make `batch`, which may have messages already, the open one."""
        self.batch = batch
        self.first = self.next
        self.settled = 0

    def close(self) -> None:
        """Put the open batch behind the closed ones."""
        if self.batch is not None:
            self.closed.append(self.batch)
            self.end()

    def end(self) -> None:
        """Forget the open batch, because it is in the file or has another owner."""
        self.batch = None
        self.first = self.next
        self.settled = 0

    @property
    def unwritten_from(self) -> int:
        """The first offset whose message is not in the files yet."""
        return self.closed[0].first if self.closed else self.first

    @property
    def batches(self) -> Iterator[Batch]:
        """All batches, in order."""
        yield from self.closed
        if self.batch is not None:
            yield self.batch

    def closed_at(self, offset: int) -> Batch | None:
        """The closed batch that holds the message."""
        for b in self.closed:
            if b.first <= offset < b.first + b.count:
                return b
        return None
