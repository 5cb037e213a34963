"""The texts that the register holds: what this Kvitto, an earlier one and nobody has written."""

from __future__ import annotations

import json

import pytest

from kvitto.cluster.register import Complaint, RegisterError, Seat, complaint_from, seat_from

EARLIER = json.dumps({"member": "m", "process": "p", "address": "a:1", "clients": "c:2"})


def test_the_seat_of_an_earlier_kvitto_is_read_and_written_as_it_was() -> None:
    """It is compared with what etcd holds when another node takes it."""
    found = seat_from(EARLIER)
    assert found == Seat("m", "p", "a:1", "c:2") and found.since_ms == 0
    assert found.encoded() == EARLIER


def test_an_earlier_kvitto_can_read_a_seat() -> None:
    """It looks at four fields, and at nothing else."""
    seat = Seat("m", "p", "a:1", "c:2", 1_795_763_956_501, "before", "it has ended")
    assert seat_from(seat.encoded()) == seat
    assert json.loads(EARLIER).items() <= json.loads(seat.encoded()).items()


@pytest.mark.parametrize("wrong", [{"since_ms": "today"}, {"why": 1}, {"before": None}, {"address": 5}])
def test_a_seat_that_something_else_has_written_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RegisterError, match="cannot be read"):
        seat_from(json.dumps({**json.loads(EARLIER), **wrong}))


@pytest.mark.parametrize("text", ["", "{", "[" * 20_000, "[]", "{}", '{"member": 1, "process": "p"}'])
def test_a_complaint_that_something_else_has_written_is_none(text: str) -> None:
    assert complaint_from(text) is None
    assert complaint_from(Complaint("m", "p").encoded()) == Complaint("m", "p")
