"""Samples the counters of all objects every few seconds: rates per second are the difference of the last two samples, and
`history.py` keeps earlier ones.

The broker as a whole, and the first AUTOMATIC objects, have a history from their beginning. Of others it begins when somebody asks
for it, and ends when nobody has for a while. So memory is bounded, and nothing is done per message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add, sub
from typing import Any

from kvitto.base import process
from kvitto.base.limits import HTTP_HISTORIES_MAX
from kvitto.broker.broker import Broker
from kvitto.http.counts import (
    QUEUE_WIDTH,
    Row,
    of_channel,
    of_churn,
    of_connection,
    of_deleted,
    of_exchange,
    of_queue_and_depth,
    of_traffic,
)
from kvitto.http.history import Derive, History, Span, details
from kvitto.http.marks import Marks, forget_others, freed

PIECE = 50
TOTAL = "total"
NODE = "node"
"""The keys of the whole broker, and of its process."""
AUTOMATIC = 300
UNASKED_S = 900.0
"""Histories that nobody has asked for so long are given up if others are asked for."""
CAPACITY_SHARE = 0.2
"""The weight of the last sample in the average of `consumer_capacity`."""


class Rates:
    """An object that the last sample did not have counts from 0. Before the second sample all rates are 0."""

    def __init__(self) -> None:
        self._last: dict[object, tuple[Row, int]] = {}
        """Each object's numbers, and the time in ms when they changed last."""
        self._rates: dict[object, tuple[float, ...]] = {}
        self._histories: dict[object, History] = {TOTAL: History(born=True), NODE: History(born=True)}
        self._capacity: dict[object, float] = {}
        self._at: float | None = None
        self.now_ms = 0
        """The time of the last sample."""
        self.marks = Marks()

    # -- sampling --------------------------------------------------------------------------------------------

    def sample(self, now_s: float, now_ms: int, host: Any, connections: list[Any]) -> Iterator[None]:
        """Take a sample. This yields after each PIECE objects, so that the broker can go on working; the sample is
        complete when it comes to free the one before, which takes long at once, too."""
        last, fresh, rates = self._last, {}, {}
        elapsed = None if self._at is None else now_s - self._at
        for i, (thing, row) in enumerate(self._rows(now_s, host, connections)):
            if i % PIECE == PIECE - 1:
                yield
            before = last.get(thing)
            old = before[0] if before is not None else (0,) * len(row)
            if before is not None and row == old:
                fresh[thing] = before
            else:
                fresh[thing] = row, now_ms
                if elapsed:
                    rates[thing] = tuple([(n - o) / elapsed for n, o in zip(row, old, strict=True)])
            history = self._histories.get(thing)
            if history is None and len(self._histories) < AUTOMATIC and before is None:
                history = self._histories[thing] = History(born=True)
            if history is not None:
                history.add(now_ms, row)
        gone = self._rates
        self._rates, self._last, self._at, self.now_ms = rates, fresh, now_s, now_ms
        yield from forget_others(self._histories, fresh)
        yield from forget_others(self._capacity, fresh)
        yield from self.marks.end()
        yield from freed(last)
        yield from freed(gone)

    def _rows(self, now_s: float, host: Any, connections: list[Any]) -> Iterator[tuple[object, Row]]:
        """Yield (object, its numbers). Channels come first: they count what they have published in its exchange."""
        broker: Broker = host.broker
        for connection in connections:
            yield connection, of_connection(connection)
            for channel in list(connection.channels.values()):
                yield channel, of_channel(channel)
                self.marks.note(channel, now_s)
        vhosts = list(broker.vhosts.values())
        whole = [*of_deleted(broker), 0, 0]
        for vhost in vhosts:  # what remains is that of deleted virtual hosts
            whole = list(map(sub, whole, (*of_deleted(vhost), 0, 0)))
        for vhost in vhosts:
            sums: Sequence[int] = [*of_deleted(vhost), 0, 0]
            for queue in list(vhost.queues.values()):
                row = of_queue_and_depth(queue)
                sums = list(map(add, sums, row))
                self._look_at_consumers(queue, row)
                yield queue, row
            for exchange in list(vhost.exchanges.values()):
                yield exchange, of_exchange(exchange)
            yield vhost, (*sums, *of_traffic(vhost))
            whole = list(map(add, whole, sums))
        yield TOTAL, (*whole, *of_traffic(broker), *of_churn(host.hub, broker))
        yield NODE, of_node(host)

    def _look_at_consumers(self, queue: Any, row: Row) -> None:
        """Note whether the consumers take what comes: `consumer_capacity` is the share of samples in which nothing waits for them."""
        before = self._capacity.get(queue)
        if not queue.consumers:
            if before is not None:
                del self._capacity[queue]
            return
        now = 1.0 if queue.stream or not row[QUEUE_WIDTH - 2] else 0.0
        if before is None and now:
            return
        found = (1.0 if before is None else before) * (1 - CAPACITY_SHARE) + now * CAPACITY_SHARE
        self._capacity[queue] = found
        if found > 0.999:
            del self._capacity[queue]

    def forget(self) -> None:
        """Forget all samples but the last one."""
        self._histories = {thing: History(born=False) for thing in (TOTAL, NODE)}
        self._capacity.clear()

    # -- what it has found -----------------------------------------------------------------------------------

    def of(self, thing: object, count: int) -> tuple[float, ...]:
        """Return the first `count` rates of an object, per second."""
        return (self._rates.get(thing) or (0.0,) * count)[:count]

    def idle_since_ms(self, thing: object) -> int | None:
        """Return when the numbers of an object changed last; None if that was in the last sample, or is not known."""
        found = self._last.get(thing)
        return found[1] if found is not None and found[1] < self.now_ms else None

    def capacity_of(self, queue: Any) -> float:
        """Return the share of the time in which nothing waits for the queue's consumers; 0 without consumers."""
        return self._capacity.get(queue, 1.0) if queue.consumers else 0.0

    def details(
        self, thing: object, width: int, names: Sequence[str], derive: Derive, span: Span | None, now_s: float
    ) -> dict[str, dict[str, Any]]:
        """Return RabbitMQ's `name_details` for each name: its rate, and if a span is asked for, samples and averages.

        The object's rows have `width` numbers.
        """
        found = {
            f"{n}_details": {"rate": round(r, 3)} for n, r in zip(names, derive(self.of(thing, width)), strict=True)
        }
        if span is not None:
            history = self._ask(thing, now_s)
            rows = [] if history is None else list(history.samples(span, self.now_ms))
            if rows:
                for more, more_of in zip(found.values(), details(rows, derive), strict=True):
                    more.update(more_of)
        return found

    def _ask(self, thing: object, now_s: float) -> History | None:
        """Return the history of an object. If it has none, one begins, unless too many others are asked for."""
        found = self._histories.get(thing)
        if found is None:
            if thing not in self._last:
                return None
            if len(self._histories) >= HTTP_HISTORIES_MAX and not self._give_up(now_s):
                return None
            found = self._histories[thing] = History(born=False)
            found.add(self.now_ms, self._last[thing][0])
        found.asked_s = now_s
        return found

    def _give_up(self, now_s: float) -> bool:
        """Forget a history that nobody has asked for. Return whether there was one."""
        for thing, history in self._histories.items():
            if thing not in (TOTAL, NODE) and (not history.asked_s or now_s - history.asked_s > UNASKED_S):
                del self._histories[thing]
                return True
        return False


def of_node(host: Any) -> Row:
    """Return memory, files, sockets, and free bytes on the disk."""
    used = process.resident_bytes(), process.open_files(), len(host.hub.connections)
    return (*used, host.store.disk.free_bytes())
