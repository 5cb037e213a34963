"""What a data directory remembers of elections: a digit that flips is noticed, and what an earlier Kvitto has written is read."""

from __future__ import annotations

import pytest

from kvitto.base.errors import StoreError
from kvitto.cluster.state import epoch_of, new_entry, read_history, write_history
from kvitto.store import paths
from kvitto.store.disk import replace_small
from tests.support.simdisk import SimDisk

EARLIER = ["13bda36c989e2aada7f08cc2a72771a3", "7:13bda36c989e2aada7f08cc2a72771a3"]


def test_entries_are_read_as_they_were_written() -> None:
    disk = SimDisk()
    history = [*EARLIER, new_entry(), new_entry(0), new_entry(8)]
    write_history(disk, history)
    assert read_history(disk) == history and epoch_of(history) == 8


@pytest.mark.parametrize("epochs", [[None], [None, 1], [0, 1, 4711]])
def test_each_bit_that_changes_and_each_end_that_is_missing_is_noticed(epochs: list[int | None]) -> None:
    disk = SimDisk()
    write_history(disk, [new_entry(epoch) for epoch in epochs])
    data = disk.read_file(paths.HISTORY)
    spoilt = [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]
    for found in [*spoilt, *(data[:length] for length in range(1, len(data)))]:
        replace_small(disk, paths.HISTORY, found)
        if not data.startswith(found) or not found.endswith(b"\n"):
            with pytest.raises(StoreError):
                read_history(disk)


def test_a_history_that_is_damaged_is_refused_with_advice() -> None:
    disk = SimDisk()
    write_history(disk, [new_entry(1).replace("1:k", "2:k")])
    with pytest.raises(
        StoreError, match=f"{paths.HISTORY} cannot be read: let this node follow with an empty directory"
    ):
        read_history(disk)
