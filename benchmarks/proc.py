"""What Linux's /proc says about processes and the machine: CPU seconds, resident memory, who else was busy.

A broker is a process with all its descendants: RabbitMQ's Erlang machine has helpers beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
KERNEL_THREADS = 2
"""The parent of all kernel threads. They flush the disk for whoever wrote: never counted as other load."""


@dataclass(frozen=True, slots=True)
class Stat:
    """One process. `cpu_s` includes children that ended, so that sums over a tree never lose any."""

    pid: int
    parent: int
    name: str
    cpu_s: float
    rss_bytes: int


def parse_stat(text: str) -> Stat:
    """A line of /proc/PID/stat; the name stands in parentheses and may hold any character."""
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()  # fields[0] is field 3 of proc(5)
    ticks = sum(int(fields[i]) for i in (11, 12, 13, 14))  # utime, stime, cutime, cstime
    return Stat(int(pid), int(fields[1]), name, ticks / TICKS_PER_S, int(fields[21]) * PAGE)


def processes() -> dict[int, Stat]:
    """All that can be seen, by pid."""
    found: dict[int, Stat] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = parse_stat(Path(f"/proc/{entry.name}/stat").read_text(errors="replace"))
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            found[stat.pid] = stat
    return found


def tree(root: int, among: dict[int, Stat]) -> list[Stat]:
    """`root` and its descendants, parents first."""
    if root not in among:
        return []
    members, known = [among[root]], {root}
    for member in members:
        for stat in among.values():
            if stat.parent == member.pid and stat.pid not in known:
                known.add(stat.pid)
                members.append(stat)
    return members


def cpu_s(root: int) -> float:
    """CPU seconds of a process and its descendants so far."""
    return sum(stat.cpu_s for stat in tree(root, processes()))


def rss_bytes(root: int) -> int:
    """Resident memory of a process and its descendants."""
    return sum(stat.rss_bytes for stat in tree(root, processes()))


def parse_busy(text: str) -> tuple[float, float]:
    """(user + nice + system, stolen by the hypervisor) seconds over all cores, from /proc/stat."""
    fields = [int(field) for field in text.split("\n", 1)[0].split()[1:]]
    user, nice, system = fields[:3]
    steal = fields[7] if len(fields) > 7 else 0
    return (user + nice + system) / TICKS_PER_S, steal / TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The machine at one moment, for `others_between`."""

    at_s: float
    busy_s: float
    steal_s: float
    stats: dict[int, Stat]


def snapshot() -> Snapshot:
    busy, steal = parse_busy(Path("/proc/stat").read_text())
    return Snapshot(time.monotonic(), busy, steal, processes())


@dataclass(frozen=True, slots=True)
class Others:
    """Load that was not ours, in cores (0.1 = a tenth of one core all the time)."""

    cores: float
    steal: float


def others_between(before: Snapshot, after: Snapshot, alone: Iterable[int], trees: Iterable[int]) -> Others:
    """Two looks at the same thing, the larger counts: the machine's busy time less ours, and the others' own CPU.

    Ours are the processes `alone` (with the children that they waited for: the generator) and the brokers' `trees`.
    The first look sees what happens outside of this container; the second is exact where interrupts hide in the first.
    """
    elapsed = max(after.at_s - before.at_s, 1e-9)
    alone, roots = set(alone), {KERNEL_THREADS, *trees}
    mine = _sum(after, alone, roots) - _sum(before, alone, roots)
    everyone = sum(s.cpu_s for s in after.stats.values()) - sum(s.cpu_s for s in before.stats.values())
    hidden = after.busy_s - before.busy_s - mine
    return Others(
        cores=max(0.0, hidden, everyone - mine) / elapsed,
        steal=max(0.0, after.steal_s - before.steal_s) / elapsed,
    )


def _sum(at: Snapshot, alone: set[int], roots: set[int]) -> float:
    members = {stat.pid: stat for root in roots for stat in tree(root, at.stats)}
    members |= {pid: at.stats[pid] for pid in alone if pid in at.stats}
    return sum(stat.cpu_s for stat in members.values())


@dataclass(frozen=True, slots=True)
class Pins:
    """Which cores the load generator and the brokers may use."""

    generator: frozenset[int]
    broker: frozenset[int]


def pins(available: Iterable[int]) -> Pins:
    """The generator has the last core. A broker has all others, but never less than two: RabbitMQ can use them."""
    cores = sorted(available)
    if len(cores) < 2:
        return Pins(frozenset(cores), frozenset(cores))
    others = cores[:-1] if len(cores) > 2 else cores
    return Pins(frozenset(cores[-1:]), frozenset(others))


@contextmanager
def on(cores: frozenset[int]) -> Iterator[None]:
    """What is started inside the block runs on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def machine() -> dict[str, str | int]:
    """What figures depend on."""
    cpu = _field("/proc/cpuinfo", "model name")
    memory_kib = int((_field("/proc/meminfo", "MemTotal") or "0").split()[0])
    uname = os.uname()
    return {
        "cpu": cpu or uname.machine,
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory_kib / 2**20),
        "kernel": f"{uname.sysname} {uname.release}",
    }


def filesystem(path: Path) -> str:
    """Type of the file system that holds `path`: on tmpfs a sync costs nothing."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        mount, type_ = line.split()[1:3]
        mount = mount.encode().decode("unicode_escape")
        inside = str(path.resolve()) == mount or str(path.resolve()).startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, type_
    return kind


def _field(file: str, name: str) -> str:
    for line in Path(file).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
