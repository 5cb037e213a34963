"""Filters of a stream's consumers: which messages one of them wants, by headers (docs/protocol-extensions.md, Filters).

A filter is exact. To skip messages quickly it searches the bytes of a whole batch for texts that a message must contain to match, and
decodes only the messages with one of them. Called by `Stream`, which gives all filters together the steps of a `Budget` in one turn.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ConnectionError_
from kvitto.base.limits import FILTERS_MAX
from kvitto.format import entry
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Value

if TYPE_CHECKING:
    from kvitto.store.batch import Batch

FILTER, UNFILTERED, MATCH_TYPE = "x-stream-filter", "x-stream-match-unfiltered", "x-filter-match-type"
ARGUMENTS = (FILTER, UNFILTERED, MATCH_TYPE)
"""The arguments of a consumer. The first two are RabbitMQ's, tables in the first one and the last one are LavinMQ's."""
VALUE = "x-stream-filter-value"
"""The header of a message that a filter compares."""
STEPS_PER_TURN = 2000
"""The steps of all filters in one turn. A step takes about a microsecond."""
SHARE_MIN = 50
"""The fewest steps that a stream gets in one turn, if any."""
SLICE = 500
"""The steps of one consumer before the next one is served."""
BATCH_STEPS, CHUNK_STEPS, CANDIDATE_STEPS, RUN_STEPS = 10, 100, 10, 6
"""What it costs to open a batch, to read from the file, to find and decode a message that may match, and the next one behind a match."""
DECODED, DECODE_SHIFT = 128, 4
"""Properties with more bytes than this take one more step for each 2 ** 4 further ones."""
UNKNOWN = -2
_VALUE = VALUE.encode()
_LIKE_NUMBERS = re.compile(r"-?[0-9]+|true|false")


class InvalidFilter(Exception):
    """An argument that is no filter: its name, and what is wrong with it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why


def text_of(value: Value) -> str | None:
    """Return the text by which a header is compared. None: it equals nothing."""
    match value:
        case str():
            return value
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case bool():
            return str(value).lower()
        case int():
            return str(int(value))
    return None


def filter_of(arguments: Mapping[str, Any]) -> Filter | None:
    """Return the filter that a consumer's arguments ask for, or None. Raises InvalidFilter."""
    unfiltered = arguments.get(UNFILTERED)
    if unfiltered is not None and not isinstance(unfiltered, bool):
        raise InvalidFilter(UNFILTERED, f"expected a boolean, got {unfiltered!r}")
    how = arguments.get(MATCH_TYPE)
    if how is not None and (not isinstance(how, str) or how.lower() not in ("all", "any")):
        raise InvalidFilter(MATCH_TYPE, f"expected all or any, got {how!r}")
    values: dict[str, None] = {}
    pairs: dict[tuple[str, str], None] = {}
    given = arguments.get(FILTER)
    for part in given if isinstance(given, list) else [given]:
        _read(part, values, pairs)
    if len(values) + len(pairs) > FILTERS_MAX:
        raise InvalidFilter(FILTER, f"it has {len(values) + len(pairs)} conditions, and {FILTERS_MAX} are possible")
    if not values and not pairs:
        return None
    return Filter(tuple(values), tuple(pairs), bool(unfiltered), None if how is None else how.lower())


def _read(part: Any, values: dict[str, None], pairs: dict[tuple[str, str], None]) -> None:
    """Add the conditions of the argument, or of one item if it is a list."""
    match part:
        case None:
            return
        case str() | bytes():
            values.update(dict.fromkeys(text.strip() for text in str(text_of(part)).split(",")))
        case dict():
            for name, value in part.items():
                text = text_of(value)
                if text is None or name.startswith("geo-"):
                    raise InvalidFilter(FILTER, f"the header {name!r} cannot be compared with {value!r}")
                if name == FILTER:
                    _read(text, values, pairs)
                else:
                    pairs[name, text] = None
        case _:
            raise InvalidFilter(FILTER, f"expected a string, a table or a list of them, got {part!r}")


class Filter:
    """`values`: of VALUE. `pairs`: names and texts of other headers. `unfiltered`: messages without VALUE match, too.

    `how` is "all" if each condition must hold, "any" if one is enough, and None if one of the values and each of the pairs must hold.
    """

    def __init__(
        self, values: tuple[str, ...], pairs: tuple[tuple[str, str], ...], unfiltered: bool, how: str | None
    ) -> None:
        self.values = frozenset(values)
        self.pairs = pairs
        self.unfiltered = unfiltered
        self.how = how
        texts = [VALUE if _LIKE_NUMBERS.fullmatch(value) else value for value in values]
        names = [name for name, _ in pairs]
        wanted = [*texts, *names] if how == "any" else (texts or names)
        self._needles = tuple({text.encode("utf-8", "surrogateescape") for text in wanted})
        """A message that contains none of them does not match, unless it is an unfiltered one."""
        self._searched = (-1, 0)
        self._next: list[int] = []
        """By needle, where it is next in the batch `_searched`, counted from the batch's first message; -1 if nowhere, or UNKNOWN."""

    def matches(self, headers: Mapping[str, Value]) -> bool:
        own = headers.get(VALUE)
        if own is None and self.unfiltered:
            return True
        text = text_of(own)
        has = set() if text is None else {text, *(part.strip() for part in text.split(","))}
        if self.how == "any":
            return not has.isdisjoint(self.values) or any(text_of(headers.get(n)) == t for n, t in self.pairs)
        if self.how == "all":
            if not self.values <= has:
                return False
        elif self.values and has.isdisjoint(self.values):
            return False
        return all(text_of(headers.get(name)) == wanted for name, wanted in self.pairs)

    def next_run(self, batch: Batch, i: int, end: int, most: int, steps: int) -> tuple[int, int, int]:
        """Look for the next message that matches among those from index `i` up to `end`, and for those that match directly behind it.

        Returns how many messages there are before it, how many match (at most `most`), and the steps that this took. If these are
        `steps` or more, it may have ended early, and have found none.
        """
        first, left = i, steps
        while i < end and left > 0:
            at, cost = self._candidate(batch, i, end, left)
            left -= cost
            if at < 0:
                break
            if at >= end:
                i = end
                break
            fits, cost = self._fits(batch, at)
            left -= CANDIDATE_STEPS + cost
            if fits:
                n = 1
                while n < most and at + n < end and left > 0:
                    fits, cost = self._fits(batch, at + n)
                    left -= RUN_STEPS + cost
                    if not fits:
                        break
                    n += 1
                return at - first, n, steps - left
            i = at + 1
        return i - first, 0, steps - left

    def _fits(self, batch: Batch, i: int) -> tuple[bool, int]:
        """Return whether a message matches, and what its length adds to the steps of looking at it."""
        _, props = batch.key_and_props(i)
        if self.unfiltered and _VALUE not in props:
            return True, 0
        cost = max(len(props) - DECODED, 0) >> DECODE_SHIFT
        try:
            return self.matches(Properties.decode(props).headers or {}), cost
        except ConnectionError_:  # what an older version has let in
            return False, cost

    def _candidate(self, batch: Batch, i: int, end: int, steps: int) -> tuple[int, int]:
        """Return the first index from `i` on whose message may match, or `end`, and the steps of the search.

        The index is -1 if there are too few `steps` to search for everything. The next call goes on.
        """
        if self.unfiltered or b"" in self._needles:
            return i, 0
        index, at, size = batch.index.data, batch.index_at, entry.SIZE
        base = batch.meta_at + entry.meta(index, at)
        start = batch.meta_at + entry.meta(index, at + size * i)
        last = entry.read(index, at + size * (batch.count - 1))
        stop = batch.meta_at + last.meta + last.key_len + last.props_len
        if self._searched != (batch.first, batch.count):
            self._searched, self._next = (batch.first, batch.count), [UNKNOWN] * len(self._needles)
        cost, found = 0, -1
        for k, needle in enumerate(self._needles):
            place = self._next[k]
            if place == UNKNOWN or 0 <= place < start - base:
                if cost >= steps:
                    return -1, cost
                place = batch.meta.data.find(needle, start, stop)
                cost += ((stop if place < 0 else place) - start >> 10) + 1
                place = self._next[k] = place - base if place >= 0 else -1
            if place >= 0 and (found < 0 or place < found):
                found = place
        if found < 0:
            return end, cost
        wanted = base - batch.meta_at + found
        return bisect_right(range(batch.count), wanted, i, key=lambda m: entry.meta(index, at + size * m)) - 1, cost
