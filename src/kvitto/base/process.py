"""What the operating system reports about this process, and which other processes are alive. Without /proc, unknown
numbers are 0."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
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
    """Return the memory that this process may use: the machine's, or that of its control group if that is less."""
    return min([os.sysconf("SC_PHYS_PAGES") * _PAGE, *_group_limits()])


def _group_limits() -> list[int]:
    """Return the limits of the control group and those above it, versions 1 and 2. A container sees its own group as the root."""
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
    """Have the C library return free memory to the system, if it can (glibc)."""
    import ctypes  # rarely needed, and slow to import

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_large_memory_apart(size: int) -> None:
    """Have the C library map each block of this size or more separately, if it can (glibc): such a block grows without
    being copied."""
    import ctypes

    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(
            -3, size
        )  # M_MMAP_THRESHOLD; once it is set, the library no longer adapts it to the blocks that are freed
        # M_TRIM_THRESHOLD is not adapted either then: a buffer would be returned to the system, and faulted in again,
        # in each turn
        option(-1, 2 * size)


def page_releaser() -> Callable[[bytearray, int, int], None] | None:
    """Return a function that gives the memory of data[start:end] back to the system; the bytes are lost. None where that cannot be done."""
    import ctypes

    advise = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
    if advise is None:
        return None
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def release(data: bytearray, start: int, end: int) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        first = -(-(address + start) // _PAGE) * _PAGE
        behind = (address + end) // _PAGE * _PAGE
        if behind > first:
            advise(first, behind - first, 4)  # MADV_DONTNEED

    return release


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def open_files() -> int:
    """Return the number of open files of this process. Linux tells it since 6.2; before, they are listed, 1 ms for a thousand."""
    try:
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def open_files_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def files_reserve() -> int:
    """Return the number of file descriptors that are reserved for HTTP, the journal and further segments."""
    return min(limits.FILES_RESERVE, open_files_max() // 8)


def group_members(group: int) -> list[int]:
    """Return the living processes of a process group; none without /proc."""
    return _members(2, group)


def session_members(session: int) -> list[int]:
    """Return the living processes of a session; none without /proc."""
    return _members(3, session)


def _members(column: int, number: int) -> list[int]:
    """Return the processes that are not zombies and have `number` in that column behind their name."""
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
