"""How long a leader may serve clients: its lease, the promises of its followers, and nobody else who could lead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from kvitto.cluster.link import Link
from kvitto.cluster.register import Complaint, Document, Seat, Seen
from kvitto.server import tenure as module
from kvitto.server.lease import MARGIN_S
from kvitto.server.tenure import CHANGING_S, PROMISE_S, Election, Tenure


class FakeLink:
    state, replaced, waits, files_done, prefetch = "following", False, False, 0, None

    def __init__(self, member: str, acknowledged: int) -> None:
        self.member = member
        self.acknowledged = acknowledged


class FakeLease:
    until = 0.0
    gives_up = False


class Hand:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Hand:
    found = Hand()
    monkeypatch.setattr(module, "boottime", found)
    return found


def led(*members: str, minimum: int = 1, silent_s: Callable[[Link], float] = lambda link: 0.0) -> Tenure:
    document = Document("c", 3, "A", ("A", *members), minimum)
    election = Election(cast("Any", None), document, 1, Seat("A", "p", "h:1"), cast("Any", FakeLease()), None, "")
    return Tenure(election, silent_s)


def links(**acknowledged: int) -> list[Link]:
    return cast("list[Link]", [FakeLink(member, place) for member, place in acknowledged.items()])


def test_a_lease_holds_until_its_end(clock: Hand) -> None:
    tenure = led("B")
    assert not tenure.holds()
    tenure.lease.until = 105.0
    assert tenure.holds()
    clock.now = 105.0
    assert not tenure.holds()


def test_who_is_alone_needs_no_lease(clock: Hand) -> None:
    assert led().holds()


def test_all_members_promise_by_what_they_got_after_a_moment(clock: Hand) -> None:
    """An acknowledgement of what was sent before a moment says nothing about that moment."""
    tenure = led("B", "C")
    tenure.mark(10)
    tenure.heard(links(B=10, C=10))
    assert not tenure.holds()
    tenure.heard(links(B=11))
    assert not tenure.holds(), "one of them has not said anything"
    tenure.heard(links(B=11, C=12))
    assert tenure.holds()
    clock.now += PROMISE_S - MARGIN_S - 0.1
    assert tenure.holds()
    tenure.mark(12)
    tenure.heard(links(B=11, C=12))
    clock.now += 0.2
    assert not tenure.holds()


def test_a_new_member_has_promised_nothing_yet(clock: Hand) -> None:
    tenure = led("B")
    tenure.mark(10)
    tenure.heard(links(B=11))
    assert tenure.holds()
    tenure.membership.propose(["C"], [])
    tenure.heard(links(B=11))
    assert not tenure.holds()


def test_a_member_that_acknowledges_nothing_more_is_late(clock: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose disk is full connects again and again."""
    monkeypatch.setattr("kvitto.server.tenure.time.monotonic", clock)
    tenure = led("B", "C")
    for place in range(10, 30):
        tenure.mark(place)
        tenure._note_missing(links(B=5, C=place))
        clock.now += 0.25
    assert list(tenure._missing) == ["B"]


COMPLAINS = Complaint("B", "p")


@pytest.mark.parametrize(
    ("members", "minimum", "complaint", "connected", "missing_s", "gives_up"),
    [
        ("BC", 2, COMPLAINS, "", 3.0, True),
        ("BC", 2, None, "", 60.0, False),  # perhaps nobody else is alive
        ("BC", 2, COMPLAINS, "", 2.0, False),  # there was no time to connect yet
        ("BC", 2, COMPLAINS, "C", 60.0, False),  # C is enough
        ("BC", 3, COMPLAINS, "C", 60.0, True),
        ("BC", 2, COMPLAINS, "B", 60.0, False),  # it has connected since
        ("BC", 1, COMPLAINS, "", 60.0, False),  # the others are removed
        ("C", 2, COMPLAINS, "", 60.0, False),  # B lacks something, and could not lead
        ("BC", 2, Complaint("B", "q"), "", 60.0, False),  # that was another leader
    ],
)
def test_a_leader_gives_its_seat_up_if_a_member_complains_and_it_is_not_enough_without(
    members: str,
    minimum: int,
    complaint: Complaint | None,
    connected: str,
    missing_s: float,
    gives_up: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    tenure = led(*members, minimum=minimum)
    document = tenure.membership.document
    tenure.membership.not_changed(None)  # the register does not answer when it is asked to change members
    tenure._again_at = float("inf")
    over: list[str] = []
    tenure.on_end = over.append
    tenure.look(links(**dict.fromkeys(connected, 10)), 0)
    now += missing_s
    tenure.look(links(**dict.fromkeys(connected, 10)), 0)
    tenure._saw(Seen("r", document, 1, tenure.seat, complaint))
    assert bool(over) == gives_up == tenure.lease.gives_up


@pytest.mark.parametrize(
    ("state", "gives_up"), [("following", True), ("comparing", False), ("copying", False), ("beginning", True)]
)
def test_a_member_may_be_silent_while_its_files_are_compared(
    state: str, gives_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    tenure = led("B", "C", minimum=2, silent_s=lambda link: 60.0)
    tenure._again_at = float("inf")
    over: list[str] = []
    tenure.on_end = over.append
    (link,) = links(B=10)
    link.state = state
    tenure.look([link], 0)
    now += 60.0
    tenure.look([link], 0)
    tenure._saw(Seen("r", tenure.membership.document, 1, tenure.seat, COMPLAINS))
    assert bool(over) == gives_up


@pytest.mark.parametrize(
    ("members", "minimum", "state", "stands_s", "gives_up"),
    [
        (
            "B",
            2,
            "comparing",
            0.0,
            False,
        ),  # C has everything soon, and B could confirm nothing without a third node either
        ("B", 2, "copying", 0.0, False),
        ("B", 2, "copying", CHANGING_S, True),  # it hangs, or is cut off, too
        ("B", 2, "beginning", 0.0, True),
        ("BD", 2, "copying", 0.0, True),  # B and D may reach each other
        ("BD", 3, "copying", 0.0, True),  # C would not be enough
        ("BDE", 4, "copying", 0.0, True),
    ],
)
def test_a_leader_does_not_give_its_seat_up_while_it_is_going_to_have_enough_nodes(
    members: str, minimum: int, state: str, stands_s: float, gives_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes with everything that were cut off from each other took turns, and the third one began to compare its files each time."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    tenure = led(*members, minimum=minimum, silent_s=lambda link: stands_s)
    tenure._again_at = float("inf")
    over: list[str] = []
    tenure.on_end = over.append
    (link,) = links(C=0)
    link.state, link.prefetch = state, ("queues/q/1.log", 0)
    tenure.look([link], 0)
    now += 60.0
    if not stands_s:
        link.prefetch = "queues/q/1.log", 1 << 20
    tenure.look([link], 0)
    tenure._saw(Seen("r", tenure.membership.document, 1, tenure.seat, COMPLAINS))
    assert bool(over) == gives_up


def test_others_wait_for_a_node_whose_files_are_changed_as_long_as_it_gets_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, silent_s = 100.0, 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    tenure = led("B", "C", minimum=2, silent_s=lambda link: silent_s)
    (link,) = links(B=10)
    link.state, link.files_done = "copying", 1
    assert tenure._advancing([link], now) == ["B"]
    now, silent_s = now + CHANGING_S, 2 * CHANGING_S
    assert tenure._advancing([link], now) == [], "it hangs"
    link.files_done = 2
    assert tenure._advancing([link], now) == ["B"]
    now += CHANGING_S
    assert tenure._advancing([link], now) == []
    link.prefetch = "queues/q/1.log", 1 << 20
    assert tenure._advancing([link], now) == ["B"], "the file is large"
