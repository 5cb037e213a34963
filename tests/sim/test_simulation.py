"""Some runs of the simulation with fresh seeds, on part of what they could try; `make sim` does all (docs/simulation.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from kvitto.broker.administration import policing
from kvitto.broker.administration.argument_reader import ArgumentReader
from kvitto.broker.administration.definitions.plan import Plan
from kvitto.protocol.channel import Channel
from kvitto.protocol.timeouts import Watch
from kvitto.store.commit import Commit, GroupCommit
from kvitto.store.cut import Cut
from kvitto.store.journal import Journal
from kvitto.store.log import Log
from kvitto.store.reading import LogReader, Window
from kvitto.store.recovery import Recovery
from kvitto.store.segment import Segment
from kvitto.store.store import OF_BACKUP, Store
from kvitto.store.taking import Taking
from tests.sim.__main__ import WANTED
from tests.sim.kinds import KINDS
from tests.sim.world import SimulatedRun, small_world
from tests.support.recording import RecordingDisk
from tests.support.simdisk import SimFile

SEED = int(os.environ["KVITTO_SEED"])
"""From the operating system, for all processes of a test run, which shows it at its end (tests/conftest.py)."""
PARTS = {
    "power": 0.02,
    "tx": 0.02,
    "consumers": 0.02,
    "policies": 0.02,
    "torn": 0.02,
    "bitflip": 0.1,
    "eio": 1.0,
    "enospc": 1.0,
    "prefix": 0.1,
    "replica": 0.1,
    "backup": 1.0,
    "standby": 0.03,
    "cluster": 0.1,
}
RUNS = 2

LIVES = 200
"""A mistake that is planted has to be found in one of so many lives. Most are found in the first ten."""


@pytest.mark.parametrize("number", range(RUNS))
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_from_a_fresh_seed_finds_nothing(kind: str, number: int) -> None:
    """P2, C2, C8, A9, A11, D2, D3, D4, T4, X4: as far as this seed goes. `make sim KIND=... SEED=...` tries everything of it."""
    result = KINDS[kind](SEED + number, PARTS[kind])
    assert not result.findings, f"KVITTO_SEED={SEED}, make sim KIND={kind} SEED={SEED + number}: {result.findings}"


def test_the_same_seed_is_the_same_run() -> None:
    """Operation by operation, whatever is looked at on the way."""
    traces = []
    for watch in (False, True):
        with small_world(SEED):
            world = SimulatedRun(SEED)
            trace: list[str] = []
            world.disk.trace = trace
            if watch:
                world.disk.watch = lambda world=world: world.disk.copy() and None
            world.play(steps=30)
            traces.append(trace)
    assert traces[0] == traces[1] and len(traces[0]) > 100


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (SimFile, "sync", lambda self: None),
        (Journal, "replay", lambda self, floor: iter(())),
    ],
    ids=["a sync that does nothing", "a journal that is not read"],
)
def test_a_broker_that_forgets_is_found_out(
    where: type, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger sees what is missing."""
    replace(monkeypatch, where, name, broken)
    assert any(KINDS["power"](seed, 0.3).findings for seed in range(LIVES))


def replace(monkeypatch: pytest.MonkeyPatch, where: type, name: str, broken: Any) -> None:
    """Replace a method. Methods of compiled classes cannot be replaced, so the stores of tests are of a class built on it."""
    if where not in (Store, Log, GroupCommit):
        monkeypatch.setattr(where, name, broken)
        return
    if where is Log:
        monkeypatch.setattr("kvitto.broker.broker.Log", type("Broken", (Log,), {name: broken}))
        return

    class Broken(Store):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            part = self if where is Store else self.commits
            setattr(part, name, partial(broken, part))

    for module in ("tests.support.harness", "tests.protocol.sansio"):
        monkeypatch.setattr(f"{module}.Store", Broken)


def pass_over_all(self: LogReader, window: Window, segment: Segment, position: int, offset: int) -> bool:
    """Serve nothing of a segment behind damage."""
    self.lost.append((offset, segment.end - offset))
    self._source.quarantine(segment, "damaged")
    return False


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (Store, "quarantine", lambda self, log, segment, why: None),
        (LogReader, "_damaged", pass_over_all),
        (Recovery, "_lacks_settlements", lambda self: False),
    ],
    ids=["says nothing of damage", "loses more than the damaged batch", "forgets what had been delivered"],
)
def test_a_broker_that_makes_damage_worse_is_found_out(
    where: type, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3, A9: what `bitflip` allows after damage is no more than what the damage costs."""
    replace(monkeypatch, where, name, broken)
    assert any(KINDS["bitflip"](seed, 0.2).findings for seed in range(LIVES))


def announce_all(self: GroupCommit, commit: Commit) -> None:
    self.allowed, allowed = None, self.allowed
    announce(self, commit)
    self.allowed = allowed


announce = GroupCommit.announce


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (GroupCommit, "announce", announce_all),
        (RecordingDisk, "record_sync", lambda self, files, dirs: None),
        (Log, "announced_end", property(lambda self: self.synced_end)),
        (Store, "when_defined", lambda self, callback, announced=False: self.commits.when_synced(callback)),
    ],
    ids=[
        "announces what no replica has",
        "announces what no replica has synced",
        "tells offsets that no replica has",
        "answers at stage one",
    ],
)
def test_a_broker_that_tells_too_early_is_found_out(
    where: type, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(monkeypatch, where, name, broken)
    assert any(KINDS["replica"](seed, 0.3).findings for seed in range(LIVES))


def keep_late(self: Cut, log: Log) -> None:
    """Note nothing before it changes."""


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (Cut, "keep", keep_late),
        (Cut, "going", lambda self, path: None),
        (Cut, "_stage_offsets", lambda self, offsets: len(offsets.content())),
        (Taking, "_is_sealed", lambda self, path, entry: True),
        (Store, "boot_of_backup", lambda self: OF_BACKUP),
    ],
    ids=[
        "a moment for each queue",
        "files that are gone",
        "offsets that are not copied",
        "links to files that grow",
        "flags that are owed are forgotten",
    ],
)
def test_a_backup_of_several_moments_is_found_out(
    where: type, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(monkeypatch, where, name, broken)
    assert any(KINDS["backup"](seed).findings for seed in range(LIVES))


flag = ArgumentReader.flag
look, watch = Watch.look, Watch.__init__
apply = Plan.apply


def look_away(self: Watch, channel: Channel, longest_ms: int) -> int | None:
    """Notice nothing that is late."""
    return None if len(self.seen) == self.seen.maxlen else look(self, channel, longest_ms)


def apply_most(self: Plan) -> Iterator[object]:
    """Leave out the last item of a document."""
    if len(self._todo) > 1:
        self._todo.pop()
    return apply(self)


@pytest.mark.parametrize(
    ("kind", "where", "name", "broken"),
    [
        ("consumers", ArgumentReader, "flag", lambda self, name: "single" not in name and flag(self, name)),
        ("consumers", Watch, "look", look_away),
        ("consumers", Watch, "__init__", lambda self, looks: watch(self, looks // 2)),
        ("policies", policing, "_take", lambda vhost, queue: None),
        ("policies", Plan, "_refuse", lambda self, *words: None),
        ("policies", Plan, "apply", apply_most),
        ("policies", Store, "when_defined", lambda self, callback, announced=False: callback()),
    ],
    ids=[
        "all consumers are active",
        "late deliveries stay",
        "deliveries are late too early",
        "policies change no queue",
        "refused items are no matter",
        "the last item is left out",
        "answers before the sync",
    ],
)
def test_a_broker_that_does_not_do_what_is_set_is_found_out(
    kind: str, where: Any, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q, A16, D2: who is served and for how long, and what policies and imports bring."""
    replace(monkeypatch, where, name, broken)
    assert any(KINDS[kind](seed, 0.003).findings for seed in range(LIVES))


def test_a_full_run_has_a_goal_for_each_kind() -> None:
    assert WANTED.keys() == KINDS.keys()
