"""`kvitto` without room when it begins to lead, if a file beside its directory says so: `python -m tests.cluster.roomless serve ...`."""

import os
import sys

from kvitto.base.errors import StoreFull
from kvitto.cli import candidate
from kvitto.cli.main import main
from kvitto.cluster.promotion import begin_epoch
from kvitto.server.followers import Followers
from kvitto.store.commit import GroupCommit
from kvitto.store.disk import Disk

begin = Followers.begin
STARTS, IS_ELECTED = "-starts", "-is-elected"
"""When there is no room. The name of the file is that of the directory with this behind it."""


def refuse(disk: Disk, when: str) -> None:
    if os.path.exists(f"{getattr(disk, 'root', '')}{when}"):
        raise StoreFull("cannot write to boot: No space left on device (free some space on this file system)")


def begin_if_there_is_room(self: Followers, commits: GroupCommit) -> None:
    refuse(self.disk, STARTS)
    begin(self, commits)


def begin_epoch_if_there_is_room(disk: Disk, epoch: int, in_order: bool) -> None:
    refuse(disk, IS_ELECTED)
    begin_epoch(disk, epoch, in_order)


if __name__ == "__main__":
    Followers.begin = begin_if_there_is_room  # type: ignore[method-assign]
    candidate.begin_epoch = begin_epoch_if_there_is_room  # type: ignore[attr-defined]
    sys.exit(main())
