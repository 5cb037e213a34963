"""What the threads of a program hand over to the client's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Handed(Generic[T]):
    """Calls or messages that wait for the loop, in order. The loop is asked once for all that come before it looks.

    There is no lock. A signal handler that has interrupted `add` may wait for the loop, and the loop never waits for a thread.
    """

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask
        """Asks the loop to look soon."""
        self._items: deque[T] = deque()
        self._looks = 0
        """How many times the loop has looked."""
        self._asked = -1
        """The value of `_looks` when the loop was last asked."""

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T) -> None:
        """Add an item, in any thread."""
        self._items.append(item)
        # A signal handler may run between any two of these lines, and raise an exception, or add an item of its own. `_asked` is set last,
        # so the next item asks the loop again in both cases.
        looks = self._looks
        if self._asked != looks:
            self._ask()
            self._asked = looks

    def withdraw(self, item: T) -> bool:
        """Remove an item, in any thread. Return False if the loop has taken it."""
        try:
            self._items.remove(item)
        except ValueError:
            return False
        return True

    def take(self, most: int | None = None) -> Iterator[T]:
        """In the loop: take out the items that are there now, at most so many."""
        self._looks += 1  # first: an item that is added from now on asks the loop again
        here = len(self._items)
        for _ in range(here if most is None else min(here, most)):
            try:
                item = self._items.popleft()
            except IndexError:  # a thread has withdrawn one meanwhile
                return
            yield item
