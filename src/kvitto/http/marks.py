"""How long deliveries have been unacked, without a time per delivery: every few seconds the next delivery tag of each channel with
unacked messages is noted, so the age of a tag is known to the distance of two notes. `rates.py` calls this, `unacked.py` asks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from typing import Any

MARKS_MAX = 64
"""Of more notes every second one of the older half is dropped, so that old ages are less exact."""

STEP = 500
"""The objects that one step looks at, or frees."""


def forget_others(found: dict[Any, Any], kept: Collection[Any]) -> Iterator[None]:
    """Remove what is not among these, in steps. Others may add and remove something meanwhile."""
    for number, thing in enumerate(list(found), 1):
        if thing not in kept:
            found.pop(thing, None)
        if number % STEP == 0:
            yield


def freed(things: set[Any] | dict[Any, Any]) -> Iterator[None]:
    """Empty a set or a dict in steps, because it takes long to free very many objects at once."""
    pop = things.popitem if isinstance(things, dict) else things.pop
    while things:
        for _ in range(min(len(things), STEP)):
            pop()
        yield


class Marks:
    def __init__(self) -> None:
        self._marks: dict[Any, tuple[list[int], list[float]]] = {}
        """By channel, next delivery tags in ascending order, and the times when they were noted."""
        self._seen: set[Any] = set()

    def note(self, channel: Any, now_s: float) -> None:
        """Note the next tag of a channel, if it has unacked messages."""
        if not channel.unacked:
            return
        self._seen.add(channel)
        tags, times = self._marks.setdefault(channel, ([], []))
        if tags and tags[-1] == channel.next_tag:
            return
        tags.append(channel.next_tag)
        times.append(now_s)
        if len(tags) > MARKS_MAX:
            del tags[1 : MARKS_MAX // 2 : 2], times[1 : MARKS_MAX // 2 : 2]

    def end(self) -> Iterator[None]:
        """A sample is complete: forget the channels that have gone, or have nothing unacked. This takes steps."""
        seen, self._seen = self._seen, set()
        yield from forget_others(self._marks, seen)
        yield from freed(seen)

    def age_s(self, channel: Any, tag: int, now_s: float) -> float:
        """Return how long ago at least a delivery was made, in seconds."""
        tags, times = self._marks.get(channel, ([], []))
        k = bisect_right(tags, tag)  # the first note after the delivery
        return now_s - times[k] if k < len(times) else 0.0
