"""The two stages of a group commit (docs/adr/0020-a-commit-has-two-stages.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import kvitto
from kvitto.store.commit import Commit
from tests.store.logs import LogHarness
from tests.support.harness import BrokerHarness

ORDER_HERE = {
    "broker/queues/deduplicating.py",
    "broker/queues/later_writes.py",
    "broker/transfers/in_order.py",
    "broker/transfers/onward.py",
    "broker/transfers/records.py",
    "broker/transfers/stages.py",
    "server/driving.py",
}
"""Outside of the store, these may ask for an order on this machine. All others tell peers something."""


def gated() -> LogHarness:
    """A log whose commits are announced when a test says so."""
    harness = LogHarness()
    harness.write(b"the inventory knows the segment")
    harness.settle_down()
    harness.store.commits.allow(harness.store.commits.syncs)
    return harness


def test_what_is_synced_here_is_told_once_it_may_be_announced() -> None:
    harness = gated()
    commits, told = harness.store.commits, list[str]()
    harness.write(b"a")
    commits.when_announced(lambda: told.append("announced"))
    commits.when_synced(lambda: told.append("synced"), messages=True)
    harness.sync()
    assert told == ["synced"] and commits.behind and not commits.waiting
    commits.allow(commits.syncs)
    assert told == ["synced", "announced"] and not commits.behind


def test_several_commits_wait_and_are_announced_in_order() -> None:
    """Stage one of the next commit does not wait for stage two of the one before."""
    harness = gated()
    commits, told, first = harness.store.commits, list[int](), harness.store.commits.syncs
    for number in range(1, 5):
        harness.write(b"%d" % number)
        commits.when_announced(lambda number=number: told.append(number))  # type: ignore[misc]
        harness.sync()
    assert told == []
    commits.allow(first + 1)
    assert told == [1]
    commits.allow(first + 3)
    assert told == [1, 2, 3]
    commits.allow(first + 4)
    assert told == [1, 2, 3, 4]


def test_a_commit_is_announced_when_both_have_synced_it_whoever_is_first() -> None:
    harness = gated()
    commits, told, begun = harness.store.commits, list[str](), list[Commit]()
    commits.begun = begun.append
    harness.write(b"a")
    commits.when_announced(lambda: told.append("a"))
    commit = harness.store.begin_sync(everything=False)
    assert begun == [commit] and commit.files and commit.number == commits.syncs + 1
    commits.allow(commit.number)
    assert told == []
    commit.run()
    harness.store.end_sync(commit)
    assert told == ["a"]


def test_without_replicas_what_waits_is_announced() -> None:
    harness = gated()
    commits, told = harness.store.commits, list[str]()
    for text in "ab":
        harness.write(text.encode())
        commits.when_announced(lambda text=text: told.append(text))  # type: ignore[misc]
        harness.sync()
    assert told == []
    commits.allow(None)
    assert told == ["a", "b"] and not commits.behind
    harness.write(b"c")
    commits.when_announced(lambda: told.append("c"))
    harness.sync()
    assert told == ["a", "b", "c"]


def test_a_reader_is_told_of_no_offset_that_has_not_been_announced() -> None:
    harness = gated()
    end = harness.log.announced_end
    harness.write(b"a")
    harness.sync()
    assert (harness.log.synced_end, harness.log.announced_end) == (end + 1, end)
    harness.store.commits.allow(harness.store.commits.syncs)
    assert harness.log.announced_end == end + 1


def test_what_is_announced_of_a_queue_never_goes_back() -> None:
    """Its segments may all be settled and go: a new one begins at the next offset, and has announced nothing."""
    harness = BrokerHarness()
    queue = harness.declare("q")
    queue.log.segment_bytes = 1
    for number in range(5):
        harness.publish("q", b"%d" % number)
        harness.settle_down()
    end = queue.log.announced_end
    harness.drain("q")
    harness.settle_down()
    assert queue.log.announced_end >= end == 5
    harness.restart()
    assert harness.queue("q").log.announced_end >= end


def test_a_new_segment_is_announced_when_the_inventory_names_it() -> None:
    """A start takes a missing file for one that never was, unless the inventory names it: that needs a sync of its own."""
    harness = LogHarness()
    told: list[str] = []
    harness.write(b"a")
    harness.store.commits.when_announced(lambda: told.append("a"))
    harness.sync()
    assert told == [] and harness.log.announced_end == 0 and harness.store.commits.waiting
    harness.sync()
    assert told == ["a"] and harness.log.announced_end == 1


def test_nobody_above_the_store_tells_a_peer_at_stage_one() -> None:
    """Confirms, answers, offsets: what leaves the process and cannot be taken back waits for `when_announced` and `announced_end`."""
    root = Path(kvitto.__file__).parent
    found = []
    for path in sorted(root.rglob("*.py")):
        name = str(path.relative_to(root))
        if name.startswith("store/") or name in ORDER_HERE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("when_synced", "after_a_sync", "synced_end"):
                found.append(f"{name}:{node.lineno} {node.attr}")
    assert not found
