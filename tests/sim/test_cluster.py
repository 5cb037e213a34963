"""What is left out of elections is found by the simulation (kind `cluster`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pytest

from kvitto.cluster.follower import Follower
from kvitto.cluster.gate import Gate
from kvitto.cluster.link import Link
from kvitto.cluster.membership import Membership
from kvitto.cluster.promotion import begin_epoch
from kvitto.cluster.register import Document, Seen
from kvitto.cluster.state import new_entry, read_history, write_history
from tests.sim import clusters
from tests.sim.clusters import Cluster
from tests.sim.kinds import KINDS

pytestmark = pytest.mark.slow

SEEDS = 60
PART = 0.3

propose, changed, not_changed = Membership.propose, Membership.changed, Membership.not_changed


def a_majority(self: Membership, values: Mapping[str, int], most: int) -> int | None:
    """R1: not all members have to have it."""
    found = sorted((values.get(member, 0) for member in self.waits), reverse=True)
    return found[len(found) // 2 - 1] if len(found) > 1 else min(found, default=most)


def remove_at_once(self: Membership, *found: Collection[str]) -> Any:
    """R2: wait no more for whom the register was asked to remove."""
    document = propose(self, *found)
    if document is not None:
        self.waits = set(document.members) - {self.member}
    return document


def add_behind_the_answer(self: Membership, *found: Collection[str]) -> Document | None:
    """R2: wait for a new member when the register has added it."""
    before = set(self.waits)
    document = propose(self, *found)
    self.waits = before
    return document


def believe_what_is_read(self: Membership, seen: Seen | None) -> None:
    """R2: a request that was lost is forgotten."""
    not_changed(self, seen)
    if seen is not None and seen.document is not None and not self.why_over:
        self.waits = set(seen.document.members) - {self.member}


def give_up(self: Membership, seen: Seen | None) -> None:
    """R2: a request without an answer counts as not made."""
    not_changed(self, seen)
    self.waits = set(self.document.members) - {self.member}


def wait_for_nobody(self: Cluster, leading: Any) -> None:
    """R5: a new leader begins alone."""
    lead(self, leading)
    self.membership.waits.clear()


def add_whoever_follows(self: Cluster, lost: Any = ()) -> None:
    """R6: a new member may lack what was confirmed just now."""
    gate, self.gate = self.gate, None
    ring = self.leading.ring if self.leading is not None else None
    assert ring is not None
    before, ring.next = ring.next, 0
    try:
        manage(self, lost)
    finally:
        self.gate, ring.next = gate, before


def cut_members(self: Membership, member: str) -> bool:
    """R7: a member's directory is changed while it may be elected."""
    return True


def acknowledge_unsynced(self: Follower, files: Sequence[int], directories: Sequence[str]) -> None:
    """R1: a follower acknowledges what it has not synced."""


def begin_quietly(disk: Any, epoch: int, in_order: bool) -> None:
    """R4: the epoch is not stored by who leads in it."""
    history = read_history(disk)
    begin_epoch(disk, epoch, in_order)
    write_history(disk, history or [new_entry(0)])


def begin_in_order(disk: Any, epoch: int, in_order: bool) -> None:
    """Nothing is flagged after an election, although the leader did not end in order."""
    begin_epoch(disk, epoch, True)


def go_on_anywhere(self: Link, found: dict[str, Any]) -> int | None:
    """A follower goes on although it has records that the new leader lacks."""
    place, leader = found.get("place"), self.leader
    known = found.get("session") in (leader.session, (leader.continued or ("",))[0])
    return min(int(place or 0), leader.ring.next) if known and int(place or 0) >= leader.ring.first else None


def go_on_with_any(self: Link, found: dict[str, Any]) -> int | None:
    """A follower of an older leader goes on as if the places were the same."""
    place, ring = found.get("place"), self.leader.ring
    return place if isinstance(place, int) and found.get("session") and ring.first <= place <= ring.next else None


def announce_early(self: Gate, number: int, before: int) -> None:
    self._begun.append((number, before - 1))


lead, manage = Cluster.lead, Cluster.manage


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (Membership, "reached", a_majority),
        (Membership, "propose", remove_at_once),
        (Membership, "propose", add_behind_the_answer),
        (Membership, "not_changed", believe_what_is_read),
        (Membership, "not_changed", give_up),
        (clusters.Cluster, "lead", wait_for_nobody),
        (clusters.Cluster, "manage", add_whoever_follows),
        (Membership, "may_be_cut", cut_members),
        (Follower, "_sync_unsynced", acknowledge_unsynced),
        (clusters, "begin_epoch", begin_quietly),
        (clusters, "begin_epoch", begin_in_order),
        (Link, "_resumes", go_on_anywhere),
        (Link, "_resumes", go_on_with_any),
        (Gate, "begun", announce_early),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_planted_bug_is_found(
    where: object, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken)
    assert any(KINDS["cluster"](seed, PART).findings for seed in range(SEEDS))


@pytest.mark.parametrize("seed", range(12))
def test_whoever_may_be_elected_has_everything(seed: int) -> None:
    assert not KINDS["cluster"](seed, 0.1).findings
