"""What was replaced is removed after a day, and before that if an elected leader is low on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvitto.base.errors import StoreError
from kvitto.cluster.aside import KEPT_MS, name_of
from kvitto.server.replaced import LOOK_S, Replaced
from kvitto.store.disk import RealDisk

NOW_MS = 1_800_000_000_000
OLD, NEW, OF_NOW = name_of(3, NOW_MS - KEPT_MS - 2000), name_of(5, NOW_MS - 2000), name_of(7, NOW_MS - 1000)


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    for name in (OLD, NEW, OF_NOW):
        (tmp_path / name / "queues").mkdir(parents=True)
        (tmp_path / name / "queues" / "0.log").write_bytes(bytes(1000))
    return RealDisk(str(tmp_path))


def left(replaced: Replaced, disk: RealDisk) -> list[str]:
    """Return what is left when the thread has ended."""
    if replaced._thread is not None:
        replaced._thread.join()
    return [f"replaced/{name}" for name in disk.listdir("replaced")]


@pytest.mark.parametrize(
    ("low", "epoch", "kept"),
    [(False, 7, [NEW, OF_NOW]), (False, 0, [NEW, OF_NOW]), (True, 0, [NEW, OF_NOW]), (True, 7, [OF_NOW])],
)
def test_what_is_kept(disk: RealDisk, low: bool, epoch: int, kept: list[str]) -> None:
    replaced = Replaced(disk)
    replaced.look(NOW_MS, low, epoch)
    assert left(replaced, disk) == kept


def test_a_removal_that_fails_is_not_tried_again_at_once(disk: RealDisk, caplog: pytest.LogCaptureFixture) -> None:
    def fail(path: str) -> None:
        raise StoreError(f"cannot remove {path}")

    disk.rmtree = fail  # type: ignore[method-assign]
    replaced = Replaced(disk)
    for _ in range(LOOK_S):
        replaced.look(NOW_MS, True, 7)
        left(replaced, disk)
    assert len(caplog.records) == 1
    replaced.look(NOW_MS, True, 7)
    left(replaced, disk)
    assert len(caplog.records) == 2


def test_it_is_looked_for_again_and_again(disk: RealDisk) -> None:
    replaced = Replaced(disk)
    replaced.look(NOW_MS, False, 7)
    assert left(replaced, disk) == [NEW, OF_NOW]
    for _ in range(LOOK_S):
        assert left(replaced, disk) == [NEW, OF_NOW]
        replaced.look(NOW_MS + KEPT_MS, False, 7)
    assert left(replaced, disk) == []
    replaced.look(NOW_MS, True, 7)
    assert left(replaced, disk) == []
