"""Says whether an answer has to wait for the disk, because the request has changed definitions (D2).

`Broker.defined` counts changes of definitions. The code that answers a peer compares it before and after the work: `Connection._method`
for every AMQP method, a `Changes` for an HTTP request (`Api.change`) and for a job of several turns (`each`). Nobody waits for other
changes, which come from timers, turns and lost connections.
tests/protocol/test_durable_answers.py and tests/http/test_durable_answers.py check every method and every route.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from kvitto.broker.broker import Broker


class Changes:
    """Notes whether definitions change while it is open, for an answer that may have to wait.

    It may be opened several times, but not within itself. A change within two nested ones is noted in both.
    """

    __slots__ = ("_before", "_broker", "made")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._before = 0
        self.made = False
        """Whether a definition has changed. Then the answer waits until all definitions so far are durable (`Store.when_defined`)."""

    def __enter__(self) -> Changes:
        self._before = self._broker.defined
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.made = self.made or self._broker.defined != self._before

    def each(self, steps: Iterator[object]) -> Iterator[object]:
        """Yield from the steps of a job (broker/jobs.py), and keep this object open during each step."""
        broker = self._broker
        before = broker.defined
        for step in steps:
            self.made = self.made or broker.defined != before
            yield step
            before = broker.defined
        self.made = self.made or broker.defined != before


class Unanswered(Changes):
    """Hides changes from the request that makes them, because its answer does not depend on them and so must not wait."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.defined = self._before
