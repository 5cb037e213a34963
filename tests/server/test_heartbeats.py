"""When connections beat, by a clock of the test's own."""

from __future__ import annotations

import heapq
import itertools
import weakref
from collections.abc import Callable
from typing import Any

from kvitto.protocol.states import CLOSING, RUNNING
from kvitto.server.heartbeats import BEATS_PER_TURN, TOGETHER_S, Heartbeats


class Loop:
    """What Heartbeats need of an event loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Any:
        handle = Handle()
        entry = (when, next(self._numbers), lambda: None if handle.cancelled else callback())
        heapq.heappush(self.timers, entry)
        return handle

    def turn(self) -> None:
        """The first timer."""
        when, _, callback = heapq.heappop(self.timers)
        self.now = max(self.now, when)
        callback()

    def run(self, until: float) -> None:
        while self.timers and self.timers[0][0] <= until:
            self.turn()
        self.now = until


class Handle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Peer:
    """A connection, as far as heartbeats go: it is silent after so many beats."""

    def __init__(self, loop: Loop, heartbeat: int, beats: int = 1 << 30) -> None:
        self.loop, self.heartbeat, self.left = loop, heartbeat, beats
        self.state, self.peer = RUNNING, "peer"
        self.beats: list[float] = []
        self.ended = 0.0
        self.transport = self

    def beat(self) -> bool:
        self.beats.append(round(self.loop.now, 3))
        self.left -= 1
        return self.left >= 0

    def abort(self) -> None:
        self.ended = self.loop.now


def heartbeats(loop: Loop) -> Any:
    return Heartbeats(loop, lambda action: action())  # type: ignore[arg-type]


def test_each_connection_beats_every_half_of_its_own_interval() -> None:
    loop = Loop()
    beats, fast, slow = heartbeats(loop), Peer(loop, 1), Peer(loop, 60)
    beats.watch(slow)
    beats.watch(fast)
    loop.run(61)
    assert fast.beats[:5] == [0.5, 1, 1.5, 2, 2.5] and len(fast.beats) == 122
    assert slow.beats == [30, 60]


def test_who_has_gone_silent_is_ended_and_who_is_closing_is_left_alone() -> None:
    loop = Loop()
    beats, silent, closing = heartbeats(loop), Peer(loop, 2, beats=4), Peer(loop, 2)
    beats.watch(silent)
    beats.watch(closing)
    loop.run(1.5)
    closing.state = CLOSING
    loop.run(60)
    assert (silent.beats, silent.ended) == ([1, 2, 3, 4, 5], 5)
    assert (closing.beats, closing.ended) == ([1], 0)
    assert not loop.timers


def test_many_that_are_due_at_one_time_beat_some_at_a_time() -> None:
    loop = Loop()
    beats, peers = heartbeats(loop), [Peer(loop, 10) for _ in range(3 * BEATS_PER_TURN)]
    for peer in peers:
        beats.watch(peer)
    counts = []
    while not all(peer.beats for peer in peers):
        loop.turn()
        counts.append(sum(len(peer.beats) for peer in peers))
    assert counts[-3:] == [BEATS_PER_TURN, 2 * BEATS_PER_TURN, 3 * BEATS_PER_TURN]


def test_connections_that_are_due_soon_after_each_other_share_a_timer() -> None:
    """Thousands of idle connections wake the broker ten times a second, not thousands of times."""
    loop = Loop()
    beats, peers = heartbeats(loop), [Peer(loop, 10) for _ in range(100)]
    for i, peer in enumerate(peers):
        loop.now = i / 100
        beats.watch(peer)
    turns = 0
    while not all(peer.beats for peer in peers):
        loop.turn()
        turns += 1
    assert turns <= 1.1 / TOGETHER_S + 1
    assert all(5 <= peer.beats[0] - i / 100 <= 5 + TOGETHER_S + 0.001 for i, peer in enumerate(peers))


def test_a_halt_of_the_machine_costs_nobody_more_than_one_beat() -> None:
    loop = Loop()
    beats, peer = heartbeats(loop), Peer(loop, 1)
    beats.watch(peer)
    loop.now = 100
    loop.turn()
    loop.run(101.2)
    assert peer.beats == [100, 100.5, 101]


def test_a_connection_that_is_gone_takes_no_memory_until_its_next_beat() -> None:
    loop = Loop()
    beats, peer = heartbeats(loop), Peer(loop, 600)
    gone = weakref.ref(peer)
    beats.watch(peer)
    peer.transport = None  # type: ignore[assignment]
    del peer
    assert gone() is None
    loop.run(300)
    assert not loop.timers


def test_connections_that_come_and_go_take_no_memory_until_they_would_have_been_due() -> None:
    """A peer may agree to 18 hours, and come again a thousand times in a second."""
    loop = Loop()
    beats, there = heartbeats(loop), [Peer(loop, 1 + k % 60) for k in range(300)]
    for peer in there:
        beats.watch(peer)
    for k in range(20_000):
        peer = Peer(loop, 65_535)
        beats.watch(peer)
        peer.state = CLOSING
        assert len(beats._due) <= 2 * (len(there) + 200), k
        if k % 3:
            del peer
    loop.run(10)
    assert all(len(peer.beats) == 20 // peer.heartbeat for peer in there)
