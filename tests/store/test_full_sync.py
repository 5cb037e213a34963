"""A full sync of many settlement logs takes several commits, so that no commit which somebody waits for is long."""

from __future__ import annotations

from random import Random

from kvitto.store.commit import Commit
from tests.support.harness import BrokerHarness

NAMES = [f"q{number}" for number in range(10)]


def settled() -> BrokerHarness:
    """Ten queues, each with a message that is settled and one that is not; no settlement log is synced."""
    harness = BrokerHarness()
    for name in NAMES:
        harness.declare(name)
        harness.publish(name, b"settled")
        harness.publish(name, b"kept")
    harness.settle_down()
    for name in NAMES:
        settle(harness, name)
    return harness


def settle(harness: BrokerHarness, name: str) -> None:
    taken = harness.take(name)
    harness.queue(name).ack(taken[0].offset, 1)
    harness.turn()


def sync(harness: BrokerHarness, everything: bool, most: int) -> Commit:
    commit = harness.store.begin_sync(everything, most)
    commit.run()
    harness.store.end_sync(commit)
    return commit


def logs_of(commit: Commit) -> int:
    return sum(file.path.endswith(".ack") for file in commit.files)


def test_each_commit_has_a_part() -> None:
    """10,000 queues with acks: each second a commit synced 10,000 logs, and confirms waited for that."""
    harness = settled()
    assert logs_of(sync(harness, False, 0)) == 0
    found = [logs_of(sync(harness, True, 4)), logs_of(sync(harness, False, 0)), logs_of(sync(harness, False, 4))]
    assert found == [4, 0, 4] and harness.store.commits.dirty
    assert logs_of(sync(harness, False, 4)) == 2
    assert not harness.store.commits.rest and not harness.store.commits.dirty


def test_what_is_settled_meanwhile_belongs_to_the_next_full_sync() -> None:
    harness = settled()
    sync(harness, True, 4)
    harness.publish("q0", b"more")
    settle(harness, "q0")
    assert logs_of(sync(harness, True, 4)) == 4
    assert logs_of(sync(harness, True, 4)) == 2
    assert harness.store.commits.dirty
    assert logs_of(sync(harness, True, 4)) == 1


def test_a_commit_of_everything_without_a_limit_has_both() -> None:
    """At an end in order."""
    harness = settled()
    sync(harness, True, 4)
    harness.publish("q0", b"more")
    settle(harness, "q0")
    assert logs_of(sync(harness, True, 0)) == 7
    assert not harness.store.commits.dirty


def test_a_name_becomes_durable_with_what_is_in_the_log() -> None:
    """A power cut takes the other logs, so their messages come again; none of the logs is half there."""
    harness = settled()
    sync(harness, True, 4)
    harness.cut(Random(1), hostile=True)
    assert sum(b"settled" not in harness.peek(name) for name in NAMES) >= 4
    assert all(b"kept" in harness.peek(name) for name in NAMES)
    assert not harness.store.alarms


def test_the_journal_goes_when_the_full_sync_is_complete() -> None:
    """What its records have brought to the settlement logs is durable then, and not before."""
    harness = settled()
    written = harness.store.journal.written_out = 7
    commit = sync(harness, True, 4)
    assert (commit.begins, commit.completes, commit.journal_applied) == (True, False, 0)
    harness.store.journal.written_out = 9
    commit = sync(harness, True, 4)
    assert (commit.begins, commit.completes, commit.journal_applied) == (False, False, 0)
    commit = harness.store.begin_sync(False, 4)
    assert (commit.begins, commit.completes, commit.journal_applied) == (False, True, written)


def test_a_queue_that_is_deleted_meanwhile() -> None:
    harness = settled()
    sync(harness, True, 4)
    harness.delete("q9")
    harness.turn()
    harness.settle_down()
    assert not harness.store.commits.rest
    harness.cut(Random(2))
    assert [harness.peek(name) for name in NAMES[:9]] == [[b"kept"]] * 9
