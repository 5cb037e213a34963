"""Calls that the threads of a program hand over to the client's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator


class Calls:
    """Calls that wait for the loop, in order. The loop is asked once for all that come before it looks."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        """Asks the loop to look soon."""
        self._calls: deque[Callable[[], object]] = deque()
        self._looks = 0
        """How many times the loop has looked."""
        self._asked = -1
        """The value of `_looks` when the loop was last asked."""

    def add(self, call: Callable[[], object]) -> None:
        """Add a call, in any thread."""
        self._calls.append(call)
        # A signal handler may run between any two of these lines, and raise an exception, or add a call of its own. `_asked` is set last,
        # so the next call asks the loop again in both cases.
        looks = self._looks
        if self._asked != looks:
            self._ask()
            self._asked = looks

    def take(self) -> Iterator[Callable[[], object]]:
        """In the loop: take out the calls that are there now."""
        self._looks += 1  # first: a call that is added from now on asks the loop again
        for _ in range(len(self._calls)):
            yield self._calls.popleft()
