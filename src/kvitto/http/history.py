"""The numbers of one object over the last hour, and RabbitMQ's parameters that ask for them (`msg_rates_age=60&msg_rates_incr=5`).

`rates.py` adds a row of numbers every SAMPLE_S. A history has 121 rows of the last 10 minutes and 61 of the last hour, so its
memory is bounded: about 16 KB for a queue.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvitto.base.limits import HTTP_SAMPLES_MAX
from kvitto.http.request import bad_request

Row = tuple[int, ...]
Derive = Callable[[Sequence[Any]], Sequence[Any]]
"""Makes the numbers that people see from a row, or their rates from the rates of a row: it only adds and subtracts."""

SAMPLE_S = 5.0
RINGS = ((5_000, 121), (60_000, 61))
"""The milliseconds between two rows, and how many there are."""
KINDS = ("lengths", "msg_rates", "data_rates", "node_stats")


@dataclass(frozen=True, slots=True)
class Span:
    """What a request asks for: a sample every `step_ms`, from now back to `age_ms` ago."""

    age_ms: int
    step_ms: int


@dataclass(frozen=True, slots=True)
class Spans:
    """What a request asks for of each kind of numbers; None if it does not."""

    lengths: Span | None = None
    msg_rates: Span | None = None
    data_rates: Span | None = None
    node_stats: Span | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Spans:
        """Read the parameters. Raise Problem 400."""
        return cls(**{kind: _span(query, kind) for kind in KINDS})

    @property
    def asked(self) -> bool:
        return self != NO_SPANS


NO_SPANS = Spans()


def _span(query: Mapping[str, str], kind: str) -> Span | None:
    given = [query.get(f"{kind}_{name}", "") for name in ("age", "incr")]
    if not all(given):
        return None
    if not all(text.isascii() and text.isdigit() and len(text) < 10 and int(text) for text in given):
        raise bad_request(f"{kind}_age and {kind}_incr must be numbers of seconds above 0")
    age, step = map(int, given)
    if age // step >= HTTP_SAMPLES_MAX:
        raise bad_request(f"{kind}_age and {kind}_incr ask for {age // step + 1} samples, at most {HTTP_SAMPLES_MAX}")
    return Span(age * 1000, step * 1000)


class Ring:
    """The last rows at a distance of `step_ms`, the oldest first. A row that comes sooner replaces the last one."""

    def __init__(self, step_ms: int, size: int) -> None:
        self.step_ms = step_ms
        self._size = size
        self._times = array("q")
        self._rows = array("q")
        self._next = 0
        """Where the next row goes, once there are `size` of them."""

    def add(self, now_ms: int, row: Row) -> None:
        time_ms, width = now_ms - now_ms % self.step_ms, len(row)
        count = len(self._times)
        last = (self._next or count) - 1
        if count and self._times[last] == time_ms:
            self._rows[last * width : (last + 1) * width] = array("q", row)
        elif count < self._size:
            self._times.append(time_ms)
            self._rows.extend(row)
        else:
            at = self._next
            self._times[at] = time_ms
            self._rows[at * width : (at + 1) * width] = array("q", row)
            self._next = (at + 1) % self._size

    def newest_first(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield (time in ms, row)."""
        count = len(self._times)
        width = len(self._rows) // count if count else 0
        for k in range(count):
            at = (self._next - 1 - k) % count
            yield self._times[at], self._rows[at * width : (at + 1) * width]


class History:
    """`born`: its object is as old as the history, so all its numbers were 0 before."""

    def __init__(self, born: bool) -> None:
        self._born = born
        self.asked_s = 0.0
        """When it was asked for last, by the loop's clock."""
        self._rings = [Ring(*ring) for ring in RINGS]

    def add(self, now_ms: int, row: Row) -> None:
        for ring in self._rings:
            ring.add(now_ms, row)

    def samples(self, span: Span, now_ms: int) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield (time in ms, row) at the asked distances, the newest first. It ends where nothing is known."""
        fine, coarse = self._rings
        found = (fine if span.age_ms <= RINGS[0][0] * (RINGS[0][1] - 1) else coarse).newest_first()
        held = next(found, None)
        if held is None:
            return
        first = min(held[0], now_ms)
        first -= first % span.step_ms
        width = len(held[1])
        for time_ms in range(first, first - span.age_ms - 1, -span.step_ms):
            while held is not None and held[0] > time_ms:
                held = next(found, None)
            if held is not None:
                yield time_ms, held[1]
            elif self._born:
                yield time_ms, (0,) * width
            else:
                return


def details(rows: list[tuple[int, Sequence[int]]], derive: Derive) -> list[dict[str, Any]]:
    """Return RabbitMQ's `samples`, `avg` and `avg_rate` for each number that `derive` makes. `rows` are the newest first, and not empty."""
    times = [time_ms for time_ms, _ in rows]
    elapsed_s = (times[0] - times[-1]) / 1000
    found = []
    for values in zip(*(derive(row) for _, row in rows), strict=True):
        samples = [{"sample": value, "timestamp": at} for at, value in zip(times, values, strict=True)]
        rate = (values[0] - values[-1]) / elapsed_s if elapsed_s else 0.0
        found.append({"samples": samples, "avg": sum(values) / len(values), "avg_rate": rate})
    return found
