"""The report of a run: what was done, what was found, and how to repeat it."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kvitto.torture.oracle import Oracle
from kvitto.torture.sampling import Sample, Slope, slope

TITLES = {
    "lost": "confirmed, never delivered",
    "invented": "delivered, never published (or rejected)",
    "damaged": "bodies that are not what was published",
    "settled, came back": "acked and synced, came back",
    "order": "order breaks",
    "half transactions": "transactions done by half",
    "half dead letters": "dead letters that are in both queues",
    "confirms": "confirms missing, doubled or for nothing",
    "protocol": "errors that nobody had caused",
    "two epochs": "confirmed by a node that another one had replaced",
    "doubled, not flagged": "doubled, not flagged redelivered",
    "doubled, flagged": "doubled, flagged redelivered",
    "acked, came back": "  of all doubled: acked, not known to be synced",
    "requeued, came back": "requeued by the consumer, came back",
    "flagged, never seen": "flagged redelivered, not seen before",
    "flagged, never delivered": "  of these: more than anybody can have left unread",
    "confirms out of order": "confirms out of order",
}
FAILURES = tuple(TITLES)[:10]
"""Findings that make a run fail for every broker."""
FLAGS = ("doubled, not flagged", "flagged, never delivered")
"""Findings that make a run fail for Kvitto too, because it promises the flag."""
FLAGS_OF_NODES = FLAGS[:1]
"""The same for a cluster: after an election all that waits is flagged."""
TEXT_SAMPLES, JSON_SAMPLES = 5, 20
"""The number of ids of a kind that are shown; the file `findings` has all of them."""
DISK_NOISE_BYTES = 1 << 20
"""The disk space that a broker may use beyond that at the start: logs, the history of its definitions."""


@dataclass
class Outcome:
    """The results of a run, which are filled in while it goes on."""

    broker: str
    seed: int
    again: str
    """The command that repeats the plan."""
    flags: tuple[str, ...]
    """Findings about the flag `redelivered` that make the run fail too."""
    cycles: Counter[str] = field(default_factory=Counter)
    """How many faults of each kind were made."""
    meanwhile: int = 0
    """How many of them hit while another one lasted."""
    recoveries_s: list[float] = field(default_factory=list)
    killed_starts: Counter[str] = field(default_factory=Counter)
    """The state of starts when they were killed: "before its files", "recovering" (files of its directory are open), "listening"."""
    seconds: float = 0.0
    chapters: int = 0
    """How often everything was drained and judged."""
    judged: bool = False
    """Whether that was done at the end."""
    interrupted: bool = False
    broke: str = ""
    """The reason why the run could not go on."""
    connections: int = 0
    place: str = ""
    """The directory with the data of a run that failed."""
    samples: list[Sample] = field(default_factory=list)
    first: Sample | None = None
    drained: Sample | None = None
    deleted: Sample | None = None
    """The use before there were any queues, when they were drained at the end, and after they were deleted."""

    def failures(self, oracle: Oracle) -> dict[str, int]:
        """Return the findings that make the run fail, by kind."""
        found = {kind: oracle.findings[kind] for kind in (*FAILURES, *self.flags) if oracle.findings[kind]}
        memory = self.slope
        if memory is not None and memory.grows:
            found["memory grows"] = 1
        if self.deleted is not None and not self.as_before:
            found["files or disk are left"] = 1
        return found

    @property
    def as_before(self) -> bool:
        """Whether no file is open that was not open at the start, and hardly more is on the disk."""
        first, last = self.first, self.deleted
        if first is None or last is None:
            return False
        return last.files <= first.files and last.disk_bytes <= first.disk_bytes + DISK_NOISE_BYTES

    @property
    def slope(self) -> Slope | None:
        return slope(self.samples)

    def passed(self, oracle: Oracle) -> bool:
        return self.judged and not self.broke and not self.failures(oracle)

    def cut_short(self, oracle: Oracle) -> bool:
        """Return whether it ended before the last judgement, without a finding until then."""
        return self.interrupted and not self.judged and not self.broke and not self.failures(oracle)

    def untouched(self, oracle: Oracle) -> bool:
        """Return whether it was interrupted before the broker had anything to do, so that there is nothing to report."""
        return self.cut_short(oracle) and not oracle.published and not self.cycles


def as_json(outcome: Outcome, oracle: Oracle) -> dict[str, Any]:
    """Return everything, for a file."""
    recovery = outcome.recoveries_s
    memory = outcome.slope
    result: dict[str, Any] = {
        "broker": outcome.broker,
        "passed": outcome.passed(oracle),
        "seed": outcome.seed,
        "again": outcome.again,
        "seconds": round(outcome.seconds, 1),
        "cycles": dict(outcome.cycles),
        "meanwhile": outcome.meanwhile,
        "published": oracle.published,
        "confirmed": oracle.confirmed,
        "delivered": oracle.delivered,
        "transactions": oracle.groups,
        "connections": outcome.connections,
        "drained_and_judged": outcome.chapters,
        "judged_at_end": outcome.judged,
        "interrupted": outcome.interrupted,
        "broke": outcome.broke,
        "findings": {kind: oracle.findings[kind] for kind in TITLES},
        "samples": {kind: found[:JSON_SAMPLES] for kind, found in oracle.findings.samples.items()},
        "recovery_s": {
            "median": round(statistics.median(recovery), 3) if recovery else None,
            "max": round(max(recovery), 3) if recovery else None,
        },
        "killed_starts": dict(outcome.killed_starts),
        "kept": outcome.place,
    }
    if outcome.samples:
        result["soak"] = {
            "rss_bytes_mean": round(statistics.mean(s.rss_bytes for s in outcome.samples)),
            "rss_slope_bytes_per_h": round(memory.bytes_per_h) if memory else None,
            "rss_slope_standard_error": round(memory.error) if memory else None,
            "files": {when: s.files for when, s in ends(outcome)},
            "files_max": max(s.files for s in outcome.samples),
            "disk_bytes": {when: s.disk_bytes for when, s in ends(outcome)},
            "disk_bytes_max": max(s.disk_bytes for s in outcome.samples),
        }
    return result


def ends(outcome: Outcome) -> list[tuple[str, Sample]]:
    given = (("start", outcome.first), ("drained", outcome.drained), ("deleted", outcome.deleted))
    return [(when, s) for when, s in given if s is not None]


def as_text(outcome: Outcome, oracle: Oracle) -> str:
    """Return the report for people."""
    if outcome.untouched(oracle):
        return f"interrupted before the broker was up; again: {outcome.again}"
    cycles = ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.cycles.items())) or "none"
    cycles += f"; {outcome.meanwhile} of them while another one lasted" if outcome.meanwhile else ""
    lines = [
        f"{outcome.broker}: {outcome.cycles.total()} faults in {outcome.seconds:,.0f} s ({cycles})",
        f"  {oracle.published:>12,}  published, over {outcome.connections:,} connections",
        f"  {oracle.confirmed:>12,}  confirmed",
        f"  {oracle.delivered:>12,}  deliveries (each message goes to 2 or 3 queues)",
        f"  {oracle.groups:>12,}  transactions checked",
    ]
    lines += [f"  {oracle.findings[kind]:>12,}  {title}" for kind, title in TITLES.items()]
    if outcome.recoveries_s:
        median, most = statistics.median(outcome.recoveries_s), max(outcome.recoveries_s)
        lines.append(f"  accepts connections after a start: {median:.2f} s median, {most:.2f} s at most")
    if outcome.killed_starts:
        where = ", ".join(f"{count} {at}" for at, count in sorted(outcome.killed_starts.items()))
        lines.append(f"  starts that were killed: {outcome.killed_starts.total()} ({where})")
    lines += soak_lines(outcome)
    for kind in outcome.failures(oracle):
        lines += [f"  {kind}: {text}" for text in oracle.findings.samples.get(kind, [])[:TEXT_SAMPLES]]
    if outcome.broke:
        lines.append(f"  the run broke off: {outcome.broke}")
    if not outcome.judged:
        lines.append("  the queues were not drained at the end, so the last messages are not judged")
    verdict = "passed" if outcome.passed(oracle) else "interrupted" if outcome.cut_short(oracle) else "FAILED"
    lines.append(f"{verdict}; seed {outcome.seed}; again: {outcome.again}")
    if outcome.place:
        lines.append(
            f"kept: {outcome.place} (findings: their ids; journal: the promises for each; the broker's data and log)"
        )
    return "\n".join(lines)


def soak_lines(outcome: Outcome) -> list[str]:
    lines = []
    memory, samples = outcome.slope, outcome.samples
    if memory is not None:
        mean = statistics.mean(s.rss_bytes for s in samples) / 1e6
        text = f"{memory.bytes_per_h / 1e6:+.2f} MB/h, standard error {memory.error / 1e6:.2f}"
        lines.append(f"  resident memory {mean:.1f} MB on average, slope {text}")
    if outcome.deleted is not None and samples:
        files = ", ".join(f"{when} {s.files}" for when, s in ends(outcome))
        disk = ", ".join(f"{when} {s.disk_bytes / 1e6:.2f} MB" for when, s in ends(outcome))
        lines.append(f"  open files: {files}; at most {max(s.files for s in samples)}")
        lines.append(f"  disk: {disk}; at most {max(s.disk_bytes for s in samples) / 1e6:.1f} MB")
    return lines
