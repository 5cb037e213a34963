"""What the journal brings to a queue, and a power cut that takes one of the queue's segments and leaves the next (P4, P2, T4, X4)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kvitto.store import log
from tests.support.archived import entries
from tests.support.harness import BrokerHarness, Taker

SEEDS = 60


@pytest.fixture(autouse=True)
def segments_go_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "ROLL_WHEN_SETTLED_BYTES", 100)


def move(harness: BrokerHarness) -> None:
    """Have a dead letter arrive in `dead`: its record is durable, and its batch there is not."""
    work = harness.queue("work")
    taker = Taker(work)
    assert work.get(taker)
    work.reject(taker.got[0].offset, 1)
    harness.turn()
    harness.sync(everything=False)  # the journal's file
    harness.sync(everything=False)  # the inventory, which knows it then


def consumed_and_followed(follow: Callable[[BrokerHarness], object], **arguments: Any) -> BrokerHarness:
    """`dead` has got a dead letter, which was consumed, and another message behind it; nothing of that is synced there."""
    harness = BrokerHarness()
    harness.declare("dead", **arguments)
    harness.declare("work", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    for body in (b"first", b"second"):
        harness.publish("work", body)
    harness.settle_down()
    move(harness)
    assert harness.drain("dead") == [b"first"]
    harness.turn()
    follow(harness)
    harness.turn()
    return harness


def test_what_the_journal_brings_back_is_not_behind_later_messages() -> None:
    """P4: a new segment was begun while the one before it, whose messages were settled, had a record that no sync had covered."""
    found = set()
    for seed in range(SEEDS):
        harness = consumed_and_followed(lambda harness: harness.publish("dead", b"third"))
        harness.cut(Random(seed), hostile=True)
        found.add(tuple(harness.peek("dead")))
    assert found <= {(), (b"first",), (b"first", b"third"), (b"third",)}, found


def test_a_record_is_not_taken_for_applied_because_a_later_one_is() -> None:
    """P2: the later segment knew of the later record, so a start did not bring the earlier one back; the archive went without it."""
    for seed in range(SEEDS):
        harness = consumed_and_followed(move, x_archive=True)
        harness.cut(Random(seed), hostile=True)
        harness.settle_down()
        archived = entries(harness.disk.files(), harness.queue("dead").log.queue_id).values()
        assert {entry.body for entry in archived} == {b"first", b"second"}, seed


def test_the_segment_goes_once_the_record_is_durable() -> None:
    """The roll that had to wait is made up for, although nothing more is settled in the queue."""
    harness = consumed_and_followed(lambda harness: None)
    directory = harness.queue("dead").log.directory
    for _ in range(4):
        harness.settle_down()
    harness.sync()
    harness.settle_down()
    assert not any(b"first" in data for path, data in harness.disk.files().items() if path.startswith(directory))
