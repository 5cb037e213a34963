"""The power goes at every write, sync, rename, unlink and create of a client's day (tests/sim/workload.py)."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from random import Random

import pytest

from kvitto.store import definitions, journal, log
from tests.protocol.sansio import ProtocolHarness
from tests.sim.ledger import Ledger
from tests.sim.workload import Client, churn, day
from tests.support.harness import BrokerHarness, Taker
from tests.support.simdisk import PowerCut, SimDisk

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
STEP = 1
SEEDS = 20 if THOROUGH else 4


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments and journal files that fill, roll and go within a day."""
    monkeypatch.setattr(log, "SEGMENT_BYTES", 1500)
    monkeypatch.setattr(log, "ROLL_WHEN_SETTLED_BYTES", 600)
    monkeypatch.setattr(journal, "ROTATE_BYTES", 500)


def run(cut_at: int | None, day: Callable[[Client], None] = day) -> tuple[SimDisk, Ledger]:
    """The day up to operation `cut_at`."""
    disk, ledger = SimDisk(), Ledger()
    disk.cut_at = cut_at
    try:
        harness = ProtocolHarness(disk)
        day(Client(harness, ledger))
    except PowerCut:
        pass
    else:
        assert cut_at is None
    return disk, ledger


Found = dict[str, list[tuple[bytes, bool]]]


def contents(harness: BrokerHarness) -> Found:
    """Every message of every queue with its redelivered flag; takes them."""
    found: Found = {}
    for name, queue in harness.broker.vhosts["/"].queues.items():
        taker = Taker(queue, no_ack=True)
        while queue.get(taker):
            pass
        found[name] = [(d.body, d.redelivered) for d in taker.got]
    return found


def look(disk: SimDisk, ends: dict[str, int] | None = None) -> Found:
    """What a start from this disk would serve; the disk itself is left alone. `ends`: no offset below these is used again."""
    harness = BrokerHarness(copy.deepcopy(disk))
    assert not harness.store.alarms
    for incarnation, end in (ends or {}).items():
        queue = harness.broker.queues.get(incarnation)
        assert queue is None or queue.next >= queue.log.announced_end >= end, (
            f"{queue.name}: {queue.next} is told again"
        )
    return contents(harness)


def names(messages: list[tuple[bytes, bool]]) -> list[bytes]:
    return [body for body, _ in messages]


def flagged(messages: list[tuple[bytes, bool]]) -> set[bytes]:
    return {body for body, again in messages if again}


def operations() -> int:
    disk, ledger = run(None)
    ledger.check(look(disk.kill(), ledger.ends))
    return disk.operations


def test_nothing_confirmed_is_lost_and_nothing_is_half_wherever_the_power_goes() -> None:
    """C2, P2, A11, T4, X4, D2, D3: also what was told to be gone stays gone, order is kept, what was delivered is flagged."""
    for cut_at in range(1, operations() + 1, STEP):
        disk, ledger = run(cut_at)
        for seed in range(SEEDS):
            rng = Random(cut_at * 1000 + seed)
            found = copy.deepcopy(disk).crash(rng, hostile=seed % 2 == 1)
            try:
                ledger.check(look(found, ledger.ends))
            except BaseException as error:
                raise AssertionError(f"cut at {cut_at}, seed {seed}") from error


def test_no_definition_is_lost_wherever_the_power_goes_while_their_log_is_written_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D2, P2."""
    monkeypatch.setattr(definitions, "COMPACT_BYTES", 1000)
    compacted: list[int] = []
    replace = definitions.Definitions.replace
    monkeypatch.setattr(
        definitions.Definitions, "replace", lambda self, durable: compacted.append(1) or replace(self, durable)
    )
    disk, _ = run(None, churn)
    assert len(compacted) > 1
    for cut_at in range(1, disk.operations + 1):
        disk, ledger = run(cut_at, churn)
        for seed in range(SEEDS):
            try:
                ledger.check(look(copy.deepcopy(disk).crash(Random(seed), hostile=seed % 2 == 1), ledger.ends))
            except BaseException as error:
                raise AssertionError(f"cut at {cut_at}, seed {seed}") from error


def test_a_second_start_is_the_same_as_the_first() -> None:
    """P2: a start that is itself cut or killed changes nothing that the next one finds."""
    for cut_at in range(2, operations() + 1, STEP * 4):
        disk, ledger = run(cut_at)
        rng = Random(cut_at)
        found = copy.deepcopy(disk).crash(rng, hostile=True)
        first = look(found, ledger.ends)
        again = copy.deepcopy(found)
        BrokerHarness(again)
        assert look(again.kill(), ledger.ends) == first, f"cut at {cut_at}: killed after the start"
        starting = copy.deepcopy(found)
        starting.cut_at = starting.operations + rng.randint(1, again.operations - found.operations)
        with pytest.raises(PowerCut):
            BrokerHarness(starting)
        second = look(starting.crash(rng, hostile=True), ledger.ends)
        ledger.check(second)
        assert [names(m) for m in second.values()] == [names(m) for m in first.values()], (
            f"cut at {cut_at}: cut in the start"
        )
        assert all(flagged(first[name]) <= flagged(second[name]) for name in first)


def test_life_goes_on_after_a_power_cut() -> None:
    """C2: what is confirmed after a start from a torn directory survives the next cut beside what was confirmed before."""
    for cut_at in range(3, operations() + 1, STEP * 4):
        disk, ledger = run(cut_at)
        rng = Random(cut_at)
        harness = BrokerHarness(copy.deepcopy(disk).crash(rng, hostile=True))
        for name in harness.broker.vhosts["/"].queues:
            told = ledger.queue(name)
            told.exists = True
            fresh = [f"{name}-fresh-{i}".encode() for i in range(3)]
            told.sent += fresh
            told.confirmed |= set(fresh)
            for body in fresh:
                harness.publish(name, body)
        harness.turn()
        if rng.random() < 0.5:
            harness.kill()
        harness.settle_down()
        for _ in range(3):
            ledger.check(look(copy.deepcopy(harness.disk).crash(rng, hostile=True)))
            harness.kill()
