"""Queues that wait until a commit has room for them, so that nobody else's confirm waits for a commit of thousands of files.

Two kinds of queues wait, in one line. A queue without files would make one, whose name has to be durable too, which costs a sync far more
than bytes in a file that is there. A queue that `yields` was changed by a source that had changed many others before it: a message to
thousands of queues, or a page of publishes to as many. What comes to the queues meanwhile stays in memory, and nothing of it is
delivered. A queue asks before it is written; `Turning` has those written that have waited.

If another source changes a queue that yields, it is written at once. Its place in the line stays, and is empty then.

Invariants: after a turn, no unwritten message of a queue in the line is on its way to a peer; one that does not yield has at most
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


class LaterWrites:
    def __init__(self, commits: GroupCommit) -> None:
        self.waiting: deque[Queue] = deque()
        self.done = 0
        """How many of the queues that were ever put off have left `waiting`."""
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
    def end(self) -> int:
        """What `done` will be once all queues that wait now have been written."""
        return self.done + len(self.waiting)

    @property
    def may_go_on(self) -> bool:
        """Whether a queue waits that may be written now."""
        return bool(self.waiting) and (not self.limited or self._has_room(self.waiting[0]))

    def must_wait(self, queue: Queue, delivered: int) -> bool:
        """Whether the first write of a queue has to wait. Messages below the offset `delivered` may be on their way to a peer (A9)."""
        tail = queue.tail.batch
        if tail is None or not queue.durable or queue is self._chosen or not self.limited or queue.broker.full:
            return False
        if not self.waiting and self._has_room(queue):
            self._commits.load += _load(queue)
            return False
        if (
            queue.tail.closed
            or delivered > tail.first
            or tail.size() > WAITING_BYTES
            or queue.tail.settled == tail.count
        ):
            return False
        self._put_off(queue)
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
        self._put_off(queue)
        return True

    def _put_off(self, queue: Queue) -> None:
        if not queue.waits_for_commit:
            queue.waits_for_commit = True
            self.waiting.append(queue)
            self._ask()

    def next(self) -> Queue | None:
        """Return the next queue that may be written now, or None if there is none."""
        self._chosen = None
        if self.waiting:
            self._ask()  # again in each turn: a commit may have got its files elsewhere since it began, as from logs that begin a new one
        if not self.may_go_on:
            return None
        queue = self.waiting.popleft()
        queue.waits_for_commit = False
        self.bytes -= self._sizes.pop(queue, 0)
        self.done += 1
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
