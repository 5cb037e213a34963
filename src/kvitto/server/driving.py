"""Runs the turns of a server, and the syncs between them (docs/adr/0009, 0012, 0040). `Server` is built on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvitto.base import ticks
from kvitto.base.limits import NEW_FILES_PER_COMMIT, SETTLEMENT_LOGS_PER_COMMIT
from kvitto.protocol.driver import Driver
from kvitto.protocol.hub import Hub
from kvitto.server.garbage import collect_young
from kvitto.server.gathering import Gathering
from kvitto.server.pacing import Pacing
from kvitto.store.commit import SMALL_BYTES, Commit

if TYPE_CHECKING:
    from kvitto.base.clock import Clock
    from kvitto.broker.broker import Broker
    from kvitto.server.poller import Loop, Poller, Rounds
    from kvitto.server.syncer import Syncer
    from kvitto.server.tenure import Tenure
    from kvitto.store.store import Store

LAZY_SYNC_S = 0.2
"""Writes that nobody waits for (settlements, publishes without confirms) are synced this long after they were written."""
IDLE_BYTES = 4096
"""A turn with less input than this leaves the loop time for a short sync."""
FAR_MS = 86_400_000
"""A timer that is due later than this is looked at again after this time. It may be due so late that no integer of C holds the time."""
QUICK = 2
"""If somebody waits, so many quick commits follow one with settlement logs before there is another one."""
WITHOUT = 7
"""After so many commits without settlement logs, the next one that is full of new files, and slow anyway, has some too. Otherwise there
would be one commit per second with some, as long as every other commit is full of new files."""
LARGE_COMMIT = 16
"""After a commit with more files than this the turn is a piece of work of its own."""
TURN_S = 0.002
"""After this time each half of a turn leaves what it can leave to the next one."""
SYNCS_S = 0.002
"""After this time a turn starts no further sync in the loop: behind the sync there is another turn, in the same piece."""


def nothing() -> None:
    """The callback of a sync that nobody waits for."""


class Driving(Driver):
    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.broker: Broker = None  # type: ignore[assignment]
        """Like the hub, the poller and the loop it is there once the server has started."""
        self.hub: Hub = None  # type: ignore[assignment]
        self.poller: Poller = None  # type: ignore[assignment]
        self.rounds: Rounds = None  # type: ignore[assignment]
        self._loop: Loop = None  # type: ignore[assignment]
        self._syncer: Syncer = None  # type: ignore[assignment]
        self._due: asyncio.Handle | None = None
        """The handle of the next turn, which has been scheduled in the loop."""
        self._turn_wanted = False
        """Whether the turn that follows the input of the peers has work."""
        self._lazy: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._full_sync_at = 0.0
        self._quick = 0
        """How many commits there were since the last slow one. A slow one has settlement logs of a full sync, or all new files that fit."""
        self._without = 0
        """How many commits there were since the last one with settlement logs, up to WITHOUT."""
        self.pacing = Pacing()
        self.gathering = Gathering()
        self.tenure: Tenure | None = None
        """The time for which this node leads its cluster, None if it belongs to none."""
        self.lagging = False
        """Whether the followers for which confirms wait are far behind."""
        self.received = 0
        """The bytes received since the last turn."""
        self._heard = 0
        """The bytes received in this second."""
        self._error: Exception | None = None
        self._left = False
        """Whether the data directory is being left, or has been, so that no further turn may touch it."""

    def fail(self, error: Exception) -> None:
        """Stop without confirming anything, because the disk cannot be trusted any more (C8)."""
        raise NotImplementedError

    def step_down(self, why: str) -> None:
        """End at once, as if the process were killed: another node leads, or may. Nothing more is confirmed."""
        raise NotImplementedError

    def schedule(self) -> None:
        """Schedule a turn to run after all sockets that are readable now."""
        if self.rounds.serving:
            self._turn_wanted = True
        elif self._due is None:
            self._due = self._loop.call_soon(self._turn)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Have the loop call back in its next round."""
        self._loop.call_soon(callback)

    def guard(self, action: Callable[..., object], *args: Any) -> None:
        """Run an action for the loop. If it fails the broker stops, because it must not confirm work that it cannot finish (C8)."""
        if self._error is None and not self._left:
            try:
                action(*args)
            except Exception as error:  # noqa: BLE001 - top of the loop
                self.fail(error)

    def _turn_behind_input(self) -> None:
        """Run a turn if the input of the peers has asked for one."""
        if self._turn_wanted:
            self._turn_wanted = False
            if self._error is None and not self._left:
                try:  # as `guard` does, which takes any function, and so costs more
                    self._do_turn()
                except Exception as error:  # noqa: BLE001 - top of the loop
                    self.fail(error)

    def _turn(self) -> None:
        """Run the turn that `schedule` has scheduled."""
        self._due = None
        self.guard(self._do_turn)

    def _do_turn(self) -> None:
        if self._due is not None:
            # this turn does its work: if both ran, each would schedule another one, and every sync would add one for good
            self._due.cancel()
            self._due = None
        if self.tenure is not None and not self.tenure.holds():
            self.step_down("its lease has ended, and another node may lead")
            return
        began = ticks.seconds()
        self.hub.turn()
        if self.broker.jobs.waiting:
            collect_young()
        now = ticks.seconds()
        self.broker.latencies.turn.add(int((now - began) * 1e6), 1)
        self._drive_sync(now, now - began > SYNCS_S)
        self._arm_timer()

    def _drive_sync(self, now: float, slow: bool) -> None:
        """Begin the syncs that somebody waits for, and pause and resume publishers. `slow`: the turn has taken long already."""
        store = self.store
        self._heard += self.received
        idle, self.received = self.received < IDLE_BYTES and not slow, 0
        if store.commits.waiting:
            self.pacing.waited(now)
        while (store.commits.waiting or store.commits.rest) and store.commits.running is None and store.failed is None:
            if idle and self._waits_for_more(now):
                break
            everything = now - self._full_sync_at > 5 * LAZY_SYNC_S
            if everything:
                self._full_sync_at = now
            if not self._begin(everything, idle):
                break
            if ticks.seconds() - now > SYNCS_S:  # callers that waited have asked for another sync again and again
                self.schedule()
                break
        pacing = self.pacing
        # there is nothing to pause or resume: checked here, because this is so in most turns of applications that
        # publish one by one
        calm = not (store.commits.unsynced or pacing.fast or pacing.throttled or store.pressed or self.lagging)
        if not calm and store.syncing and store.failed is None:
            if pacing.over_budget(store.commits.unsynced, now) and store.commits.running is None:
                store.commits.when_synced(nothing, True)
                self._begin(False, False)
            pressed = pacing.look(store.commits.unsynced, now, self.lagging)
            if pressed != store.pressed:
                self.broker.press(pressed)
                self.schedule()
        if store.commits.dirty and store.commits.running is None and self._lazy is None:
            self._lazy = self._loop.call_later(LAZY_SYNC_S, self._lazy_sync)

    def _waits_for_more(self, now: float) -> bool:
        """Return whether a small sync waits for other publishers (adr/0040). If so, `rounds.due` says until when."""
        commits = self.store.commits
        if not commits.awaited or commits.urgent or commits.unsynced > SMALL_BYTES or not self.rounds.fine:
            return False
        # If syncs are off, a wait saves no sync. With followers no wait is needed, because more messages come while the followers sync.
        if not commits.syncing or commits.allowed is not None:
            return False
        self.rounds.due = self.gathering.until(now, commits.awaited, self._syncer.usual)
        return self.rounds.due > 0.0

    def _lazy_sync(self) -> None:
        self._lazy = None
        self.guard(self.sync_rest)

    def sync_rest(self) -> None:
        """Begin to sync everything, unless a sync runs."""
        if self.store.commits.running is None and self.store.commits.dirty:
            self._full_sync_at = ticks.seconds()
            if self._begin(True, False):
                self.schedule()  # the turn asks who waits for the next sync

    def _begin(self, everything: bool, idle: bool) -> bool:
        """Begin a sync. Return True if it has ended already: in an idle loop a short sync delays nobody, and a hop to
        the thread costs more (adr/0009)."""
        commits = self.store.commits
        self.gathering.begun(ticks.seconds(), commits.awaited)
        self.rounds.due = 0.0
        # Nobody waits for settlement logs. A confirm waits for the rest of one commit, for its own, and for a third one if that has new
        # files: at most one of these is slow.
        full = commits.messages_wanted and commits.new_files >= NEW_FILES_PER_COMMIT
        may_be_slow = not commits.waiting or self._quick >= QUICK or (full and self._without >= WITHOUT)
        settlements = everything or bool(commits.rest and may_be_slow)
        commit = self.store.begin_sync(everything, SETTLEMENT_LOGS_PER_COMMIT if settlements else 0)
        self._quick = 0 if settlements or full else min(self._quick + 1, QUICK)
        self._without = 0 if settlements else min(self._without + 1, WITHOUT)
        if commits.allowed is not None:
            idle = False  # while this machine syncs, the loop sends to the followers what they have to sync
        if (commit.files or commit.dirs) and not (idle and self._syncer.is_short(commit)):
            self._syncer.submit(commit)
            return False
        self._syncer.run(commit)
        self._end_sync(commit)
        self.hub.after_sync()
        self.broker.end_time()
        return True

    def _synced(self, commit: Commit) -> None:
        self.guard(self._end_sync, commit)
        if len(commit.files) > LARGE_COMMIT:
            self.broker.end_time()
            self.schedule()
        else:
            self.guard(self._do_turn)

    def _end_sync(self, commit: Commit) -> None:
        self.broker.begin_time()  # input that has waited for this goes on in the turn if there is much of it
        allowed = self.store.commits.allowed
        if allowed is None or commit.number <= allowed:
            self.broker.somebody_waits = True
        self.store.end_sync(commit)
        if self.store.failed is not None:
            raise self.store.failed
        self.pacing.measured(commit.size, commit.seconds)
        if commit.files or commit.dirs:
            self.broker.latencies.sync.add(int(commit.seconds * 1e6), 1)

    def allow(self, number: int) -> None:
        """Announce the commits up to this number, which enough followers have synced (`GroupCommit.allow`)."""
        self.guard(self._allow, number)

    def pause(self, lagging: bool) -> None:
        """Pause fast publishers if followers are far behind, and resume them if not. That happens in the next turn."""
        self.lagging = lagging
        self.schedule()

    def _allow(self, number: int) -> None:
        self.broker.begin_time()  # as in `_end_sync`
        self.broker.somebody_waits = True
        self.store.commits.allow(number)
        self.broker.end_time()
        self.schedule()

    def _arm_timer(self) -> None:
        due = self.broker.timers.next_ms
        if due is None or (self._timer is not None and self._timer_ms <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        now_ms = self.clock.monotonic_ms()
        self._timer_ms = min(due, now_ms + FAR_MS)
        self._timer = self._loop.call_later(max(self._timer_ms - now_ms, 0) / 1000 + 0.001, self._timers_due)

    def _timers_due(self) -> None:
        self._timer = None
        self.guard(self._run_timers)

    def _run_timers(self) -> None:
        self.broker.tick()
        self._do_turn()
