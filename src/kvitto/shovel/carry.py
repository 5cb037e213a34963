"""Carries loads from a source to a target, one after the other: the target has a load before the source settles it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from kvitto.shovel.load import LOAD_MAX, UNSURE_MAX, Load
from kvitto.shovel.pair import Pair

REMEMBERED = 200_000
"""How many messages are remembered, to tell how many of those that come again had arrived before."""
POLL_S = 0.25


class Tally:
    """What was carried, over all connections."""

    def __init__(self) -> None:
        self.moved = 0
        """Messages that the target has taken over."""
        self.redelivered = 0
        """Messages that the source had delivered before, to somebody."""
        self.doubled = 0
        """Messages that had arrived before and came again, because the source had forgotten or not seen the ack."""
        self.interruptions = 0
        self._recent: deque[int] = deque(maxlen=REMEMBERED)
        self._again: set[int] = set()

    def interrupted(self) -> None:
        """Note that a connection was lost. What comes flagged from now on may have arrived before."""
        self.interruptions += 1
        self._again.update(self._recent)

    def note(self, load: Load, once: bool) -> None:
        """Note a load that has arrived."""
        self.moved += len(load.messages)
        if once:
            return
        for message in load.messages:
            print_ = hash((message.raw_properties, message.body))
            self._recent.append(print_)
            if message.redelivered:
                self.redelivered += 1
                if print_ in self._again:
                    self._again.discard(print_)
                    self.doubled += 1


class Pace:
    """Limits the messages per second, over all queues. 0 is no limit."""

    def __init__(self, rate: float = 0.0) -> None:
        self.rate = rate
        self._free_at = 0.0

    @property
    def most(self) -> int:
        """The most messages of a load, so that a load is not a burst."""
        return min(LOAD_MAX, max(1, int(self.rate / 10))) if self.rate else LOAD_MAX

    async def wait(self, count: int) -> None:
        """Wait behind `count` messages as long as the rate asks for."""
        if self.rate:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + count / self.rate
            await asyncio.sleep(max(0.0, self._free_at - now))


async def carry(pair: Pair, tally: Tally, pace: Pace, *, on_load: Callable[[Load], None] | None = None) -> None:
    """Carry until the source says that nothing is left, or stands still with messages that it does not give."""
    while True:
        load = await pair.source.take(min(pace.most, LOAD_MAX if pair.once else UNSURE_MAX), POLL_S)
        if not load.messages:
            return
        await pair.target.put(load)
        tally.note(load, pair.once)
        await pair.source.settle(load)
        if on_load is not None:
            on_load(load)
        await pace.wait(len(load.messages))
