"""The two stages of a group commit (docs/adr/0020-a-commit-has-two-stages.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import kvitto
from tests.store.logs import Shelf
from tests.support.rig import Rig

ORDER_HERE = {"broker/records.py", "broker/stages.py", "server/server.py"}
"""Outside of the store, these may ask for an order on this machine. All others tell peers something."""


def gated() -> Shelf:
    """A log whose commits are announced when a test says so."""
    shelf = Shelf()
    shelf.write(b"the inventory knows the segment")
    shelf.rest()
    shelf.store.commits.allow(shelf.store.commits.syncs)
    return shelf


def test_what_is_synced_here_is_told_once_it_may_be_announced() -> None:
    shelf = gated()
    commits, told = shelf.store.commits, list[str]()
    shelf.write(b"a")
    commits.when_announced(lambda: told.append("announced"))
    commits.when_synced(lambda: told.append("synced"), messages=True)
    shelf.sync()
    assert told == ["synced"] and commits.behind and not commits.waiting
    commits.allow(commits.syncs)
    assert told == ["synced", "announced"] and not commits.behind


def test_several_commits_wait_and_are_announced_in_order() -> None:
    """Stage one of the next commit does not wait for stage two of the one before."""
    shelf = gated()
    commits, told, first = shelf.store.commits, list[int](), shelf.store.commits.syncs
    for number in range(1, 5):
        shelf.write(b"%d" % number)
        commits.when_announced(lambda number=number: told.append(number))  # type: ignore[misc]
        shelf.sync()
    assert told == []
    commits.allow(first + 1)
    assert told == [1]
    commits.allow(first + 3)
    assert told == [1, 2, 3]
    commits.allow(first + 4)
    assert told == [1, 2, 3, 4]


def test_a_reader_is_told_of_no_offset_that_has_not_been_announced() -> None:
    shelf = gated()
    end = shelf.log.announced_end
    shelf.write(b"a")
    shelf.sync()
    assert (shelf.log.synced_end, shelf.log.announced_end) == (end + 1, end)
    shelf.store.commits.allow(shelf.store.commits.syncs)
    assert shelf.log.announced_end == end + 1


def test_what_is_announced_of_a_queue_never_goes_back() -> None:
    """Its segments may all be settled and go: a new one begins at the next offset, and has announced nothing."""
    rig = Rig()
    queue = rig.declare("q")
    queue.log.segment_bytes = 1
    for number in range(5):
        rig.publish("q", b"%d" % number)
        rig.settle_down()
    end = queue.log.announced_end
    rig.drain("q")
    rig.settle_down()
    assert queue.log.announced_end >= end == 5
    rig.restart()
    assert rig.queue("q").log.announced_end >= end


def test_a_new_segment_is_announced_when_the_inventory_names_it() -> None:
    """A start takes a missing file for one that never was, unless the inventory names it: that needs a sync of its own."""
    shelf = Shelf()
    told: list[str] = []
    shelf.write(b"a")
    shelf.store.commits.when_announced(lambda: told.append("a"))
    shelf.sync()
    assert told == [] and shelf.log.announced_end == 0 and shelf.store.commits.waiting
    shelf.sync()
    assert told == ["a"] and shelf.log.announced_end == 1


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
