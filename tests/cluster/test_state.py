"""What a data directory remembers of elections: a digit that flips is noticed, and what an earlier Kvitto has written is read."""

from __future__ import annotations

import pytest

from kvitto.base.errors import StoreError
from kvitto.cluster.state import epoch_of, is_whole, new_entry, read_history, write_history
from kvitto.store import paths
from tests.support.simdisk import SimDisk

EARLIER = ["13bda36c989e2aada7f08cc2a72771a3", "7:13bda36c989e2aada7f08cc2a72771a3"]


def test_entries_are_read_as_they_were_written() -> None:
    disk = SimDisk()
    history = [*EARLIER, new_entry(), new_entry(0), new_entry(8)]
    write_history(disk, history)
    assert read_history(disk) == history and epoch_of(history) == 8


@pytest.mark.parametrize("epoch", [None, 1, 4711])
def test_each_character_that_changes_is_noticed(epoch: int | None) -> None:
    entry = new_entry(epoch)
    for at, character in enumerate(entry):
        for other in "0123456789abcdefk:x":
            if other != character:
                assert not is_whole(entry[:at] + other + entry[at + 1 :]), (entry, at, other)


def test_a_history_that_is_damaged_is_refused_with_advice() -> None:
    disk = SimDisk()
    write_history(disk, [new_entry(1).replace("1:k", "2:k")])
    with pytest.raises(
        StoreError, match=f"{paths.HISTORY} cannot be read: let this node follow with an empty directory"
    ):
        read_history(disk)
