"""Whether an answer has to wait for the disk, because what it is the answer to has changed definitions (D2).

`Broker.defined` counts the changes of definitions. Whoever answers a peer looks at it before and after the work: `Connection._method`
does so for every AMQP method, and a `Changes` for what an HTTP request changes (`Api.change`) and for a job of several turns (`each`).
What changes otherwise has nobody who waits for it: timers, a turn, a connection that has been lost.
tests/protocol/test_durable_answers.py and tests/http/test_durable_answers.py show for every method and every route that no answer
goes out too early.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from kvitto.broker.broker import Broker


class Changes:
    """Notes whether definitions change while it is open, on behalf of somebody who is waiting for the answer.

    It may be opened again and again, but not within itself. Within another one, both have what changes.
    """

    __slots__ = ("_before", "_broker", "made")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._before = 0
        self.made = False
        """Whether something has changed: the answer waits until all definitions made so far are durable (`Store.when_defined`)."""

    def __enter__(self) -> Changes:
        self._before = self._broker.defined
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.made = self.made or self._broker.defined != self._before

    def each(self, steps: Iterator[object]) -> Iterator[object]:
        """The steps of a job (broker/jobs.py), with this open during each of them."""
        broker = self._broker
        before = broker.defined
        for step in steps:
            self.made = self.made or broker.defined != before
            yield step
            before = broker.defined
        self.made = self.made or broker.defined != before


class Unanswered(Changes):
    """For changes within the work of somebody whose answer does not tell of them, and so must not wait: nobody notes them."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.defined = self._before
