"""What the operating system says about this process, and of others which are alive. Where there is no /proc, what cannot be known is 0."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from kvitto.base import limits

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


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or less where its control group says so."""
    return min([os.sysconf("SC_PHYS_PAGES") * _PAGE, *_group_limits()])


def _group_limits() -> list[int]:
    """Of the control group and those above it, versions 1 and 2; a container sees its own as the root."""
    found = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = Path("/sys/fs/cgroup", controllers)
        place = root / path.lstrip("/")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        for folder in (place, *place.parents):
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                text = "max"
            if text.isdigit():
                found.append(int(text))
            if folder == root:
                break
    return found


def give_back_memory() -> None:
    """Have the C library return what is free inside it to the system, where it can (glibc)."""
    import ctypes  # rarely needed, and slow to import

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_large_memory_apart(size: int) -> None:
    """Have the C library map each block of this size or more by itself, where it can (glibc): such a block grows without being copied."""
    import ctypes

    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(-3, size)  # M_MMAP_THRESHOLD; once it is set it does not follow what has been freed
        # M_TRIM_THRESHOLD does not follow either then: a buffer would be returned, and faulted in again, in each turn
        option(-1, 2 * size)


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


def files_reserve() -> int:
    """Of those, how many are left to what there is."""
    return min(limits.FILES_RESERVE, open_files_max() // 8)


def group_members(group: int) -> list[int]:
    """The living processes of a process group; nothing where there is no /proc."""
    return _members(2, group)


def session_members(session: int) -> list[int]:
    """The living processes of a session; nothing where there is no /proc."""
    return _members(3, session)


def _members(column: int, number: int) -> list[int]:
    """Processes that are not zombies and have `number` in that column behind their name."""
    members: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # pid (name, may hold anything) state ppid pgrp session ...
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[column]) == number and fields[0] != "Z":
            members.append(int(entry.parent.name))
    return members
