"""Queues that have no files yet, and wait until a commit has room for new ones.

A new file costs a sync far more than bytes in a file that is there, because its name has to be durable too, and every confirm waits for the
commit that is being synced. So a commit has few new files, and the queues that want one wait for it in order. What is published to them
meanwhile stays in memory, and nothing of it is delivered. A queue asks before its first write; `Turning` writes those that have waited.

Invariants: a queue that waits has no segment, at most WAITING_BYTES in its open batch after a turn, and no message on its way to a peer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvitto.base.limits import NEW_FILES_PER_COMMIT

if TYPE_CHECKING:
    from kvitto.broker.queues.queue import Queue
    from kvitto.store.commit import GroupCommit

WAITING_BYTES = 64 << 10
"""A queue with more bytes than this is written at once: to write them takes about as long as to make the file."""


class FirstWrites:
    def __init__(self, commits: GroupCommit) -> None:
        self.waiting: deque[Queue] = deque()
        self.done = 0
        """How many of the queues that were ever put off have left `waiting`."""
        self.limited = False
        """Whether queues have to wait. They do not in the turns of a start or an end, which have to write everything."""
        self._commits = commits
        self._chosen: Queue | None = None
        """The queue that is being written."""

    @property
    def end(self) -> int:
        """What `done` will be once all queues that wait now have been written."""
        return self.done + len(self.waiting)

    @property
    def may_go_on(self) -> bool:
        """Whether a queue waits that may be written now."""
        return bool(self.waiting) and (not self.limited or self._has_room())

    def must_wait(self, queue: Queue, delivered: int) -> bool:
        """Whether the first write of a queue has to wait. Messages below the offset `delivered` may be on their way to a peer (A9)."""
        tail = queue.tail.batch
        if tail is None or not queue.durable or queue is self._chosen or not self.limited or queue.broker.full:
            return False
        if not self.waiting and self._has_room():
            return False
        if (
            queue.tail.closed
            or delivered > tail.first
            or tail.size() > WAITING_BYTES
            or queue.tail.settled == tail.count
        ):
            return False
        if not queue.waits_for_file:
            queue.waits_for_file = True
            self.waiting.append(queue)
            self._ask()
        return True

    def next(self) -> Queue | None:
        """Return the next queue that may be written now, or None if there is none. Its next write does not have to wait."""
        self._chosen = None
        if self.waiting:
            self._ask()  # again in each turn: a commit may have got its files elsewhere since it began, as from logs that begin a new one
        if self.may_go_on:
            self._chosen = self.waiting.popleft()
            self._chosen.waits_for_file = False
            self.done += 1
        return self._chosen

    def _has_room(self) -> bool:
        """Whether the next commit may have another new file. Behind a commit that is full of them it may not, so that it is quick, and
        who waits for it does not wait for two such commits.
        """
        return max(self._commits.new_files, self._commits.new_before) < NEW_FILES_PER_COMMIT

    def _ask(self) -> None:
        """Ask for a commit of messages. Perhaps nobody else does, since these messages need no confirm."""
        if not self._commits.messages_wanted:
            self._commits.when_synced(nothing, messages=True)


def nothing() -> None:
    """The callback of a commit that is asked for so that the next one may have new files."""
