"""Shares what one turn may do of some kind of work among the queues that have it: `filtering`, `waking` and `forgetting` of `Broker`."""

from __future__ import annotations


class Budget:
    """The steps that are left in this turn, for all queues together."""

    def __init__(self, steps: int, least: int) -> None:
        """`steps`: how many there are in one turn. `least`: the fewest that a queue gets in one turn, if any."""
        self._steps = steps
        self._least = least
        self._turn = -1
        self._left = self._share = steps
        self._asked = 0
        """How many queues have asked in this turn."""

    def share(self, turn: int) -> int:
        """Return how many steps one more queue may take. It is less if others have asked in the turn before, so all of them go on."""
        if turn != self._turn:
            self._share = max(self._steps // max(self._asked, 1), self._least)
            self._turn, self._left, self._asked = turn, self._steps, 0
        self._asked += 1
        return max(min(self._share, self._left), 0)

    def spend(self, steps: int) -> None:
        self._left -= steps
