"""What the operating system says about this process. Where there is no /proc, what cannot be known is 0."""

from __future__ import annotations

import os
import resource

_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    return _statm(1)


def virtual_bytes() -> int:
    return _statm(0)


def _statm(column: int) -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[column]) * _PAGE
    except OSError:
        # ru_maxrss is in KiB on Linux, where /proc is; in bytes on macOS, where this line runs
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if column == 1 else 0


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def open_files_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
