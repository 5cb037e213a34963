"""Files with secrets, which other users of the machine must not be able to read. Whatever reads such a file calls this.

The rule is PostgreSQL's: a file of this process's user is that user's alone. One of root's may be read by its group too, because that is
how Kubernetes and systemd hand secrets to a process that is not root.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kvitto.base.config import ConfigError

OTHERS = stat.S_IRWXG | stat.S_IRWXO
OTHERS_OF_ROOTS = OTHERS & ~stat.S_IRGRP


def read(option: str, path: Path, bytes_max: int) -> bytes:
    """Return the first bytes of a file that an option names. Raises ConfigError if it cannot be read, or if others may read it."""
    try:
        with open(path, "rb") as file:
            found, content = os.fstat(file.fileno()), file.read(bytes_max)
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror or error}") from error
    refuse_readable(option, path, found)
    return content


def refuse_readable(option: str, path: Path, found: os.stat_result) -> None:
    """Raise ConfigError if others than this process's user may read or change a file."""
    roots = found.st_uid == 0 != os.geteuid()
    if found.st_mode & (OTHERS_OF_ROOTS if roots else OTHERS):
        raise ConfigError(f"{option} {path} can be read by other users of this machine: chmod 600 {path}")
