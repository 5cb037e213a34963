"""How long a leader may serve clients: its lease, the promises of its followers, and nobody else who could lead."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kvitto.cluster.link import Link
from kvitto.cluster.register import Document, Seat
from kvitto.server import tenure as module
from kvitto.server.lease import MARGIN_S
from kvitto.server.tenure import PROMISE_S, Election, Tenure


class FakeLink:
    state, replaced, waits = "following", False, False

    def __init__(self, member: str, acknowledged: int) -> None:
        self.member = member
        self.acknowledged = acknowledged


class FakeLease:
    until = 0.0


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


def led(*members: str) -> Tenure:
    document = Document("c", 3, "A", ("A", *members), 1)
    election = Election(cast("Any", None), document, 1, Seat("A", "p", "h:1"), cast("Any", FakeLease()), None, "")
    return Tenure(election, lambda link: 0.0)


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
