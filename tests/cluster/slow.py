"""`kvitto` on disks that take 0.4 s to read a MiB when files are compared: `python -m tests.cluster.slow serve ...`."""

import sys
import time
from collections.abc import Iterator

from kvitto.cli.main import main
from kvitto.cluster.follower import Follower
from kvitto.server import followers

MIB_S = 0.4
read_ahead, checksums = followers.read_ahead, Follower._sums


def read_slowly(full: str, at: int) -> None:
    time.sleep(MIB_S)
    read_ahead(full, at)


def sums_slowly(self: Follower) -> Iterator[bytes]:
    for answer in checksums(self):
        if not answer:
            time.sleep(MIB_S)
        yield answer


followers.read_ahead = read_slowly
Follower._sums = sums_slowly  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
