"""How long things take and how large messages are, counted in buckets: `/metrics` shows them as histograms.

An observation is made once per batch, run, sync or turn, never per message; its weight says for how many messages it stands.
docs/monitoring.md says what each histogram measures. The parts of the broker that observe call `add`, and `http/metrics.py` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvitto.wire import bits
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.base.clock import Clock
    from kvitto.store.batch import Batch

STEPS_US = (50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000)
WORK_US = (*STEPS_US, 1_000_000, 2_500_000, 5_000_000, 10_000_000)
"""Bounds for what the broker does itself, in microseconds."""
WAIT_US = (*WORK_US, 30_000_000, 60_000_000, 300_000_000, 1_800_000_000, 3_600_000_000)
"""Bounds for what waits for applications."""
SIZES = (100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
"""Bounds for bodies in bytes. They are RabbitMQ's."""
SAMPLES = 16
"""The most messages of one batch whose sizes are looked at. They stand for the others."""
CELL = 16
"""Bytes of a bucket: its bound and its count. The last bucket has no bound."""
ENDLESS = (1 << 63) - 1

TIMED_MAX_US = 1_800_000_000
"""A delivery that waits longer than this for its ack is timed no more."""

_CELL = CELL  # C variables when compiled
_SAMPLES = SAMPLES
_TIMED_MAX_US = TIMED_MAX_US


class Histogram:
    def __init__(self, bounds: Sequence[int]) -> None:
        self.sum = 0
        self._cells = Buf(0)
        for bound in (*bounds, ENDLESS):
            self._cells.add(bound.to_bytes(8, "little") + bytes(8))

    def add(self, value: int, weight: int) -> None:
        """Count a value `weight` times. A value below 0, which a wall clock that was set back gives, counts as 0."""
        if value < 0:
            value = 0
        p = self._cells.p
        at = 0
        while value > bits.le64(p, at):
            at += _CELL
        bits.put_le64(p, at + 8, bits.le64(p, at + 8) + weight)
        self.sum += value * weight

    def buckets(self) -> list[tuple[int | None, int]]:
        """Return (bound, number of values up to it) in ascending order. The last bound is None."""
        found: list[tuple[int | None, int]] = []
        count = 0
        cells = self._cells.tobytes(0, self._cells.n)
        for at in range(0, len(cells), CELL):
            bound, n = (int.from_bytes(cells[i : i + 8], "little") for i in (at, at + 8))
            count += n
            found.append((None if bound == ENDLESS else bound, count))
        return found


class Latencies:
    """All histograms of a broker. Times are in microseconds."""

    def __init__(self) -> None:
        self.confirm = Histogram(WORK_US)
        self.deliver = Histogram(WAIT_US)
        self.ack = Histogram(WAIT_US)
        self.sync = Histogram(WORK_US)
        self.turn = Histogram(WORK_US)
        self.peers = Histogram(WORK_US)
        self.callbacks = Histogram(WORK_US)
        self.sizes = Histogram(SIZES)
        self.now_us = 0
        """The monotonic clock when the queue that is delivering began to do so. A channel that times a delivery takes it from here."""
        self._random = 1

    def note_sizes(self, batch: Batch) -> None:
        """Count the bodies of a tail that has been written. Of a large batch one message of each part stands for the part."""
        total = self.sizes.sum + batch.body.n
        left = batch.count
        parts = left if left < _SAMPLES else _SAMPLES
        at = 0
        while parts > 0:
            n = left // parts
            self._random = (
                self._random * 1103515245 + 12345
            ) & 0x7FFFFFFF  # sizes may alternate: any of them must come
            self.sizes.add(batch.body_len(at + (self._random >> 8) % n), n)
            at += n
            left -= n
            parts -= 1
        self.sizes.sum = total

    def held_by_peers(self, seconds: float) -> None:
        """Note how long the loop served peers, with the turn behind their input."""
        self.peers.add(int(seconds * 1e6), 1)

    def held_by_callbacks(self, seconds: float) -> None:
        """Note how long the loop ran other callbacks: HTTP, timers, ends of syncs."""
        self.callbacks.add(int(seconds * 1e6), 1)


class Timed:
    """The one delivery of a channel whose time until its ack is being measured. The others have no time of their own."""

    def __init__(self, latencies: Latencies, clock: Clock) -> None:
        self.tag = 0
        """Its delivery tag, 0 if there is none."""
        self._since_us = 0
        self._latencies = latencies
        self._clock = clock

    def begin(self, tag: int) -> None:
        """Measure this delivery, unless another one is being measured.

        One that has waited for TIMED_MAX_US makes way. It counts as if it had been acknowledged now.
        """
        now_us = self._latencies.now_us
        if self.tag:
            if now_us - self._since_us < _TIMED_MAX_US:
                return
            self._latencies.ack.add(now_us - self._since_us, 1)
        self.tag = tag
        self._since_us = now_us

    def end(self, acked: bool) -> None:
        """Note that the delivery has been settled, by an ack or otherwise."""
        self.tag = 0
        if acked:
            self._latencies.ack.add(self._clock.monotonic_us() - self._since_us, 1)
