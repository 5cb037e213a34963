"""Unlinking large files takes milliseconds, so it is spread over turns."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from kvitto.store import log, paths, removals
from tests.support.harness import BrokerHarness

FILES = 12


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> BrokerHarness:
    """Every file counts as large, and one may be unlinked in a turn."""
    monkeypatch.setattr(log, "LARGE_BYTES", 0)
    monkeypatch.setattr(removals, "REMOVED_PER_TURN", 1)
    return BrokerHarness()


def fill(harness: BrokerHarness, name: str, durable: bool) -> None:
    """A queue of FILES segments."""
    queue = harness.declare(name, durable=durable)
    queue.log.segment_bytes = 1
    for number in range(FILES):
        harness.publish(name, b"%d" % number)
        harness.turn()
    harness.settle_down()


def segments(harness: BrokerHarness) -> int:
    return sum(path.endswith(".log") and "/" in path for path in harness.disk.files())


def delete(harness: BrokerHarness) -> None:
    harness.delete("q")


def purge(harness: BrokerHarness) -> None:
    harness.queue("q").purge()


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("end", [delete, purge])
def test_a_turn_unlinks_few_files(harness: BrokerHarness, durable: bool, end: Callable[[BrokerHarness], None]) -> None:
    """A queue with 1.5 GB held up everybody for 0.1 s when it was deleted or purged."""
    fill(harness, "q", durable)
    left = [segments(harness)]
    assert left[0] >= FILES
    end(harness)
    for _ in range(4 * FILES):
        if harness.store.commits.dirty:
            harness.sync()
        else:
            harness.turn()
        left.append(segments(harness))
    assert max(before - after for before, after in pairwise(left)) <= 2
    assert left[-1] <= 1 and not harness.store.removals.waiting


@pytest.mark.parametrize("end", [delete, purge])
@pytest.mark.parametrize("turns", range(1, FILES, 3))
def test_a_kill_in_the_middle_leaves_no_file_behind(
    harness: BrokerHarness, end: Callable[[BrokerHarness], None], turns: int
) -> None:
    fill(harness, "q", True)
    end(harness)
    harness.turn()
    harness.sync()
    for _ in range(turns):
        harness.turn()
    harness.kill()
    harness.settle_down()
    assert segments(harness) <= 1 and not harness.store.alarms


@pytest.mark.parametrize("end", [delete, purge])
def test_an_end_in_order_leaves_no_file_behind(harness: BrokerHarness, end: Callable[[BrokerHarness], None]) -> None:
    fill(harness, "q", True)
    end(harness)
    harness.turn()
    harness.sync()
    assert harness.store.removals.waiting
    harness.broker.finish()
    harness.store.shut()
    assert segments(harness) <= 1
    harness.disk = harness.disk.kill()
    harness.start()
    assert segments(harness) <= 1 and not harness.store.alarms


def test_a_full_queue_that_is_declared_again_while_its_files_go_is_empty(harness: BrokerHarness) -> None:
    fill(harness, "q", False)
    harness.delete("q")
    fill(harness, "q", False)
    harness.settle_down()
    assert harness.queue("q").ready == FILES and segments(harness) >= FILES
    assert harness.drain("q") == [b"%d" % number for number in range(FILES)]


def test_a_file_that_somebody_has_removed_by_hand_is_not_missed(harness: BrokerHarness) -> None:
    """The deletion of a queue went through that before, and goes on doing so."""
    fill(harness, "q", True)
    path = next(path for path in harness.disk.files() if path.endswith("2.log"))
    harness.delete("q")
    harness.disk.unlink(path)
    harness.settle_down()
    assert segments(harness) == 0


def test_files_and_directories_wait_while_the_bytes_of_others_are_freed(harness: BrokerHarness) -> None:
    """A directory that holds a file which is being freed keeps the kernel spinning until the file is gone."""
    fill(harness, "q", True)
    harness.disk.freeing = removals.FREEING + 1
    delete(harness)
    for _ in range(4):
        harness.turn()
        harness.sync()
    assert segments(harness) >= FILES
    harness.disk.freeing = 1
    for _ in range(4 * FILES):
        harness.turn()
    assert segments(harness) == 0 and len(harness.store.removals.waiting) == 1, "the directory is there"
    harness.disk.freeing = 0
    harness.settle_down()
    assert not harness.store.removals.waiting
    assert not any(path.startswith(f"{paths.QUEUES}/") for path in harness.disk.files())


def test_what_is_settled_goes_with_the_next_sync_and_asks_for_none(harness: BrokerHarness) -> None:
    """A flood fills segments one after the other: a sync of its own for each of them took a tenth of the broker's time."""
    done: list[str] = []
    harness.store.commits.after_a_sync(lambda: done.append("later"))
    assert harness.store.commits.dirty and not harness.store.commits.waiting
    harness.store.commits.when_synced(lambda: done.append("now"))
    harness.store.commits.when_announced(lambda: done.append("told"))
    harness.sync()
    assert done == ["now", "later", "told"]
    harness.store.commits.in_haste = True
    harness.store.commits.after_a_sync(lambda: done.append("soon"))
    assert harness.store.commits.waiting, "there is little room: what frees some does not wait"
