"""Unlinking large files takes milliseconds, so it is spread over turns."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from kvitto.store import log, paths, removals
from tests.support.rig import Rig

FILES = 12


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Every file counts as large, and one may be unlinked in a turn."""
    monkeypatch.setattr(log, "LARGE_BYTES", 0)
    monkeypatch.setattr(removals, "REMOVED_PER_TURN", 1)
    return Rig()


def fill(rig: Rig, name: str, durable: bool) -> None:
    """A queue of FILES segments."""
    queue = rig.declare(name, durable=durable)
    queue.log.segment_bytes = 1
    for number in range(FILES):
        rig.publish(name, b"%d" % number)
        rig.turn()
    rig.settle_down()


def segments(rig: Rig) -> int:
    return sum(path.endswith(".log") and "/" in path for path in rig.disk.files())


def delete(rig: Rig) -> None:
    rig.delete("q")


def purge(rig: Rig) -> None:
    rig.queue("q").purge()


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("end", [delete, purge])
def test_a_turn_unlinks_few_files(rig: Rig, durable: bool, end: Callable[[Rig], None]) -> None:
    """A queue with 1.5 GB held up everybody for 0.1 s when it was deleted or purged."""
    fill(rig, "q", durable)
    left = [segments(rig)]
    assert left[0] >= FILES
    end(rig)
    for _ in range(4 * FILES):
        if rig.store.commits.dirty:
            rig.sync()
        else:
            rig.turn()
        left.append(segments(rig))
    assert max(before - after for before, after in pairwise(left)) <= 2
    assert left[-1] <= 1 and not rig.store.removals.waiting


@pytest.mark.parametrize("end", [delete, purge])
@pytest.mark.parametrize("turns", range(1, FILES, 3))
def test_a_kill_in_the_middle_leaves_no_file_behind(rig: Rig, end: Callable[[Rig], None], turns: int) -> None:
    fill(rig, "q", True)
    end(rig)
    rig.turn()
    rig.sync()
    for _ in range(turns):
        rig.turn()
    rig.kill()
    rig.settle_down()
    assert segments(rig) <= 1 and not rig.store.alarms


@pytest.mark.parametrize("end", [delete, purge])
def test_an_end_in_order_leaves_no_file_behind(rig: Rig, end: Callable[[Rig], None]) -> None:
    fill(rig, "q", True)
    end(rig)
    rig.turn()
    rig.sync()
    assert rig.store.removals.waiting
    rig.broker.finish()
    rig.store.shut()
    assert segments(rig) <= 1
    rig.disk = rig.disk.kill()
    rig.start()
    assert segments(rig) <= 1 and not rig.store.alarms


def test_a_full_queue_that_is_declared_again_while_its_files_go_is_empty(rig: Rig) -> None:
    fill(rig, "q", False)
    rig.delete("q")
    fill(rig, "q", False)
    rig.settle_down()
    assert rig.queue("q").ready == FILES and segments(rig) >= FILES
    assert rig.drain("q") == [b"%d" % number for number in range(FILES)]


def test_a_file_that_somebody_has_removed_by_hand_is_not_missed(rig: Rig) -> None:
    """The deletion of a queue went through that before, and goes on doing so."""
    fill(rig, "q", True)
    path = next(path for path in rig.disk.files() if path.endswith("2.log"))
    rig.delete("q")
    rig.disk.unlink(path)
    rig.settle_down()
    assert segments(rig) == 0


def test_files_and_directories_wait_while_the_bytes_of_others_are_freed(rig: Rig) -> None:
    """A directory that holds a file which is being freed keeps the kernel spinning until the file is gone."""
    fill(rig, "q", True)
    rig.disk.freeing = removals.FREEING + 1
    delete(rig)
    for _ in range(4):
        rig.turn()
        rig.sync()
    assert segments(rig) >= FILES
    rig.disk.freeing = 1
    for _ in range(4 * FILES):
        rig.turn()
    assert segments(rig) == 0 and len(rig.store.removals.waiting) == 1, "the directory is there"
    rig.disk.freeing = 0
    rig.settle_down()
    assert not rig.store.removals.waiting
    assert not any(path.startswith(f"{paths.QUEUES}/") for path in rig.disk.files())


def test_what_is_settled_goes_with_the_next_sync_and_asks_for_none(rig: Rig) -> None:
    """A flood fills segments one after the other: a sync of its own for each of them took a tenth of the broker's time."""
    done: list[str] = []
    rig.store.commits.after_a_sync(lambda: done.append("later"))
    assert rig.store.commits.dirty and not rig.store.commits.waiting
    rig.store.commits.when_synced(lambda: done.append("now"))
    rig.store.commits.when_announced(lambda: done.append("told"))
    rig.sync()
    assert done == ["now", "later", "told"]
    rig.store.commits.in_haste = True
    rig.store.commits.after_a_sync(lambda: done.append("soon"))
    assert rig.store.commits.waiting, "there is little room: what frees some does not wait"
