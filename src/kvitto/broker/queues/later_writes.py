"""Queues that wait until a commit has room for them, so that nobody else's confirm waits for a commit of thousands of files.

Two kinds of queues wait, each in a line of its own. A queue without files would make one, whose name has to be durable too, which costs
a sync far more than bytes in a file that is there. A queue that `yields` was changed by a source that had changed many others before it: a
message to thousands of queues, or a page of publishes to as many. What comes to the queues meanwhile stays in memory, and nothing of it is
delivered. A queue asks before it is written; `Turning` has those written that have waited, in turn one of each line, so that a client with
one new queue does not wait for a message to thousands.

If another source changes a queue that yields, it is written at once, or waits in the other line if it has no files. Its place in the line
of those that yield stays, and is empty then.

Invariants: after a turn, no unwritten message of a queue in a line is on its way to a peer; one that does not yield has at most
WAITING_BYTES, and those that yield have at most LINE_BYTES together.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvitto.base.limits import LOAD_PER_COMMIT, NEW_FILES_PER_COMMIT
from kvitto.broker import walls

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.store.commit import GroupCommit

WAITING_BYTES = 64 << 10
"""A queue without files that has more bytes than this is written at once: to write them takes about as long as to make the file."""
LINE_BYTES = 32 << 20
"""While queues that yield have more bytes than this in memory, further ones are written at once."""
LARGE_BYTES = 1 << 20
"""A batch with more bytes than this does not wait here: batches of that size wait for the disk by themselves (`Turning.press`)."""
NEW_LOAD = LOAD_PER_COMMIT // NEW_FILES_PER_COMMIT
"""What a new file counts, in units of a small write to a file that is there."""
LOAD_SHIFT = 14
"""Each 16 KiB count as one more, since to sync them takes about as long as to sync another file."""


Places = tuple[int, int]
"""How many queues have left each line, or will have left it: first that of new queues, then that of queues that yield."""


class Line:
    """Queues that wait, in the order in which they came."""

    def __init__(self) -> None:
        self.queues: deque[Queue] = deque()
        self.left = 0
        """How many queues have ever left it."""


class LaterWrites:
    def __init__(self, commits: GroupCommit) -> None:
        self._new, self._yielding = Line(), Line()
        self._next_first = [self._new, self._yielding]
        """Both lines. The one from which the last queue was taken stands behind the other."""
        self.waiting = 0
        """The number of queues in both lines."""
        self.limited = False
        """Whether queues have to wait. They do not in the turns of a start or an end, which have to write everything."""
        self._commits = commits
        self.bytes = 0
        """The bytes in memory of the queues that yield and wait."""
        self._sizes: dict[Queue, int] = {}
        """How many of these each of them had when it was last put off."""
        self._chosen: Queue | None = None
        """The queue whose first write is made now."""

    @property
    def end(self) -> Places:
        """What `reached` has to be asked for to hear whether all queues that wait now have been written."""
        new, yielding = self._new, self._yielding
        return new.left + len(new.queues), yielding.left + len(yielding.queues)

    def reached(self, end: Places) -> bool:
        """Whether all queues have been written that waited when `end` was noted."""
        return end[0] <= self._new.left and end[1] <= self._yielding.left

    @property
    def may_go_on(self) -> bool:
        """Whether a queue waits that may be written now."""
        return self._line_with_room() is not None

    def _line_with_room(self) -> Line | None:
        if not self.waiting:  # as in nearly every turn
            return None
        for line in self._next_first:
            if line.queues and (not self.limited or self._has_room(line.queues[0])):
                return line
        return None

    def must_wait(self, queue: Queue, delivered: int) -> bool:
        """Whether the first write of a queue has to wait. Messages below the offset `delivered` may be on their way to a peer (A9)."""
        tail = queue.tail.batch
        if tail is None or not queue.durable or queue is self._chosen or not self.limited or queue.broker.full:
            return False
        if not self._new.queues and self._has_room(queue):
            self._commits.load += _load(queue)
            return False
        if (
            queue.tail.closed
            or delivered > tail.first
            or tail.size() > WAITING_BYTES
            or queue.tail.settled == tail.count
        ):
            return False
        if queue in self._sizes:  # it has yielded, and does so no more
            self.bytes -= self._sizes.pop(queue)
            queue.waits_for_commit = False
        self._put_off(queue, self._new)
        return True

    def lets_others_first(self, queue: Queue) -> bool:
        """Whether a queue that yields, and has nothing but messages to write, has to wait with them."""
        if not self.limited or queue.broker.full or not queue.durable:
            return False
        if not 0 < queue.unwritten_bytes <= LARGE_BYTES:
            return False
        size = queue.own_bytes
        others = self.bytes - self._sizes.get(queue, 0)
        if others + size > LINE_BYTES:
            return False
        self._sizes[queue], self.bytes = size, others + size
        self._put_off(queue, self._yielding)
        return True

    def _put_off(self, queue: Queue, line: Line) -> None:
        if not queue.waits_for_commit:
            queue.waits_for_commit = True
            line.queues.append(queue)
            self.waiting += 1
            self._ask()

    def next(self) -> Queue | None:
        """Return the next queue that may be written now, or None if there is none."""
        self._chosen = None
        if self.waiting:
            self._ask()  # again in each turn: a commit may have got its files elsewhere since it began, as from logs that begin a new one
        line = self._line_with_room()
        if line is None:
            return None
        if line is self._next_first[0]:
            self._next_first.reverse()
        queue = line.queues.popleft()
        line.left += 1
        self.waiting -= 1
        queue.waits_for_commit = False
        self.bytes -= self._sizes.pop(queue, 0)
        self._commits.load += walls.run(queue, _load, queue) or 0
        self._chosen = None if queue.has_files else queue
        return queue

    def _has_room(self, queue: Queue) -> bool:
        """Whether the next commit may have the queue. Behind a commit that is full it may not, so that it is quick, and who waits for it
        does not wait for two such commits.
        """
        commits = self._commits
        if max(commits.load, commits.load_before) >= LOAD_PER_COMMIT:
            return False
        return queue.has_files or max(commits.new_files, commits.new_before) < NEW_FILES_PER_COMMIT

    def _ask(self) -> None:
        """Ask for a commit of messages. Perhaps nobody else does, since these messages need no confirm."""
        if not self._commits.messages_wanted:
            self._commits.when_synced(nothing, messages=True)


def _load(queue: Queue) -> int:
    return (1 if queue.has_files else NEW_LOAD) + (queue.unwritten_bytes >> LOAD_SHIFT)


def nothing() -> None:
    """The callback of a commit that is asked for so that the next one may have more files."""
