"""A small disk of its own for the directory of a node, which the torture fills up and frees again.

It is a file system in a file, mounted where only the torture and the processes that it starts see it (`network.set_apart`), so the system
removes the mount when these have ended, however they ended. The file stays: `mount -o loop` shows what was on the disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

SIZE_BYTES = 1 << 30
"""More than the load ever has in its queues, with what nodes keep of their former directories."""
PIECE_BYTES = 1 << 24
BALLAST = "ballast"


def refusal() -> str:
    """Return why no disk can be made here; "" if one can."""
    if os.geteuid() != 0:
        return "disks of their own need root"
    if shutil.which("mkfs.ext4") is None:
        return "mkfs.ext4 is not installed; install it with: sudo apt-get install -y e2fsprogs"
    return "" if Path("/dev/loop-control").exists() else "this system has no loop devices"


class SmallDisk:
    """A disk that is mounted at `top`."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self._image = top.with_suffix(".img")
        top.mkdir(parents=True)
        with self._image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        image = str(self._image)
        for command in (["mkfs.ext4", "-q", "-m", "0", image], ["mount", "-o", "loop", image, str(top)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise OSError(f"{command[0]} failed: {done.stderr.strip()}")
        shutil.rmtree(top / "lost+found")

    def fill(self) -> None:
        """Take all space that is left."""
        fd = os.open(self.top / BALLAST, os.O_WRONLY | os.O_CREAT)
        try:
            at, piece = 0, PIECE_BYTES
            while piece:
                try:
                    os.posix_fallocate(fd, at, piece)
                    at += piece
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    piece //= 2
        finally:
            os.close(fd)

    @property
    def full(self) -> bool:
        """Whether it has been filled, and not freed since."""
        return (self.top / BALLAST).exists()

    def free(self) -> None:
        """Give the space back."""
        (self.top / BALLAST).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it. No process may use it any more."""
        subprocess.run(["umount", str(self.top)], check=False)
