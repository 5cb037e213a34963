"""Exchange type `x-recent-history`: each message goes to all destinations, and a new destination first gets the last messages.

The last messages are in a hidden queue of the exchange (administration/histories.py). The index names it together with the destinations
that it finds; it does not count as one of them, so a message that only the history gets is unroutable.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.routing.index import Arguments, Dest, Index
from kvitto.wire.properties import Properties

if TYPE_CHECKING:
    from kvitto.broker.queues.work_queue import WorkQueue

LENGTH = "x-recent-history-length"
NO_STORE = "x-recent-history-no-store"
"""A message with this header set to true is not kept."""
LENGTH_DEFAULT = 20


class WithHistory(list[Any]):
    """Destinations, and a hidden queue that gets the message, too."""

    def __init__(self, dests: Collection[Dest], history: WorkQueue) -> None:
        super().__init__(dests)
        self.history = history


class RecentHistoryIndex(Index):
    """The destinations of a recent history exchange. `history` is set while the exchange exists."""

    description = "Routes to all destinations, and sends the last messages to a new one"
    arguments = (LENGTH,)
    needs_properties = True
    first_key_only = True

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self.history: WorkQueue | None = None
        self._dests: dict[Dest, int] = {}

    @classmethod
    def check_exchange(cls, _thing: str, arguments: Arguments) -> None:
        value = arguments.get(LENGTH)
        if LENGTH in arguments and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
            said = f'<<"{value}">>' if isinstance(value, str) else repr(value)  # as RabbitMQ shows it
            text = f"Invalid argument {said}, '{LENGTH}' must be a positive integer"
            raise ChannelError(PRECONDITION_FAILED, text)

    def add(self, _routing_key: str, dest: Dest, _hashed: object) -> None:
        self._dests[dest] = self._dests.get(dest, 0) + 1

    def remove(self, _routing_key: str, dest: Dest, _digest: object) -> None:
        self._dests[dest] -= 1
        if not self._dests[dest]:
            del self._dests[dest]

    def route(self, _routing_key: str, properties: Properties) -> Collection[Dest]:
        if self.history is None or (properties.headers or {}).get(NO_STORE) is True:
            return self._dests
        return WithHistory(self._dests, self.history)
