"""Runs work that is too long for one turn. It is cut into pieces, and a few pieces run in each turn.

A job is an iterator. Each step does one piece, which takes at most about half a millisecond of CPU, so that a turn stays below
5 ms whatever a peer has asked for. A job adds up the estimated cost of its steps (`Cost`), so that its pieces are the same on every
machine and in every simulation. Anything may change between two pieces, so a job must check its state again after each.

The server calls `run` once per turn, by way of `Hub.turn`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from kvitto.base.turn_part import TurnPart
from kvitto.broker import walls

PIECES_PER_TURN = 4
"""The most pieces that run in one turn, of all jobs together. They take about 2 ms."""
PIECE = 500
"""The cost of one piece, in units of about a microsecond."""


class Cost:
    """Adds up the cost of a job's current piece, in the units of PIECE. The job says what each of its steps costs."""

    def __init__(self) -> None:
        self._left = PIECE

    def spend(self, cost: int) -> bool:
        """Add the cost of a step. Returns whether the piece ends with it."""
        self._left -= cost
        if self._left > 0:
            return False
        self._left = PIECE
        return True


def nothing() -> None:
    """The `done` of a job that nobody waits for."""


class Jobs(walls.Routine, TurnPart):
    """The jobs of a broker, served in rotation, one piece of each."""

    def __init__(self, out_of_time: Callable[[], bool] = lambda: False) -> None:
        """`out_of_time`: whether the turn has no time for another piece."""
        self._out_of_time = out_of_time
        self.waiting: deque[_Job] = deque()
        """The unfinished jobs that can go on."""
        self._parked: list[_Job] = []
        """The jobs that cannot go on before the disk has caught up."""

    def start(self, steps: Iterator[object], done: Callable[[], None] = nothing, owner: object = None) -> None:
        """Run the first piece now, and the others in later turns; then call `done`.

        A job of one piece is done when this returns, and what it raises reaches the caller. Later there is no caller: an error then is
        contained by `owner`, the connection or queue whose work this is (broker/walls.py); without an owner the log has it. The rest
        of the job is not done then.
        """
        job = _Job(steps, done, owner)
        if not job.step():
            self.waiting.append(job)

    def run(self) -> None:
        """Run the pieces of one turn."""
        for _ in range(PIECES_PER_TURN):
            if not self.waiting:
                return
            job = self.waiting.popleft()
            if walls.run(job.owner, job.step) is False:
                (self._parked if job.parked else self.waiting).append(job)
            if self._out_of_time():
                return

    def resume(self) -> None:
        """Continue the jobs that have waited for the disk."""
        self.waiting += self._parked
        self._parked = []


class _Job:
    def __init__(self, steps: Iterator[object], done: Callable[[], None], owner: object) -> None:
        self._steps = steps
        self._done = done
        self.owner = owner
        self.parked = False
        """Whether the last step has yielded False: the job then waits until `Jobs.resume` is called."""

    def step(self) -> bool:
        """Run one piece; True if it was the last one, and `done` was called."""
        for yielded in self._steps:
            self.parked = yielded is False
            return False
        self._done()
        return True
