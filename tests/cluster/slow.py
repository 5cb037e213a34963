"""`kvitto` on disks that take 0.4 s to read a MiB when files are compared: `python -m tests.cluster.slow serve ...`."""

import sys
import time
from collections.abc import Iterator

from kvitto.cli.main import main
from kvitto.cluster.follower import Follower
from kvitto.cluster.link import Read

MIB_S = 0.4
run, checksums = Read.run, Follower._sums


def read_slowly(self: Read) -> None:
    time.sleep(MIB_S)
    run(self)


def sums_slowly(self: Follower) -> Iterator[bytes]:
    for answer in checksums(self):
        if not answer:
            time.sleep(MIB_S)
        yield answer


Read.run = read_slowly  # type: ignore[method-assign]
Follower._sums = sums_slowly  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
