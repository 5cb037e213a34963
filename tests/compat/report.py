"""Judges outcomes against what RabbitMQ does with the same tests, and prints a table.

baseline.json holds, by suite, how many tests RabbitMQ passes and the ids of those that it fails; and, under
`deviations`, the ids that Kvitto fails on purpose, each with its reason (docs/compatibility.md tells the story).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.compat.execute import Outcome
from tests.compat.suites import HERE

BASELINE = HERE / "baseline.json"


@dataclass
class Verdict:
    """`new`: failures that RabbitMQ does not have and nobody wrote down. `problem`: the run itself is no good."""

    new: dict[str, str]
    problem: str = ""

    @property
    def good(self) -> bool:
        return not self.new and not self.problem


def load_baseline() -> dict[str, Any]:
    return json.loads(BASELINE.read_text()) if BASELINE.exists() else {"broker": "none", "suites": {}, "deviations": {}}


def judge(name: str, outcome: Outcome, baseline: dict[str, Any], *, quick: bool, partial: bool) -> Verdict:
    known = baseline["suites"].get(name, {})
    allowed = set(known.get("failed", ())) | set(baseline.get("deviations", {}).get(name, {}))
    new = {test: text for test, text in outcome.failed.items() if test not in allowed}
    expected = known.get("quick" if quick else "full", {}).get("tests", 1)
    count = len(outcome.passed) + len(outcome.failed)
    problem = outcome.trouble
    if not problem and not partial and count < expected:
        problem = f"only {count} of {expected} tests ran"
    return Verdict(new, problem)


def table(results: dict[str, tuple[Outcome, Verdict]], baseline: dict[str, Any], *, quick: bool) -> str:
    """One line per suite: passed, failed, skipped; the same for RabbitMQ; failures of its own."""
    head = f"{'suite':<14}{'passed':>8}{'failed':>8}{'skipped':>9}{'time':>8}   | {baseline['broker']}: passed / failed"
    lines = [head + "  | new failures", "-" * (len(head) + 16)]
    for name, (outcome, verdict) in results.items():
        then = baseline["suites"].get(name, {}).get("quick" if quick else "full")
        before = f"{then['tests'] - then['failed']:>6} / {then['failed']}" if then else "     - / -"
        counts = f"{len(outcome.passed):>8}{len(outcome.failed):>8}{len(outcome.skipped):>9}{outcome.seconds:>7.0f}s"
        lines.append(f"{name:<14}{counts}   | {before:<{len(baseline['broker']) + 17}}  | {len(verdict.new)}")
    return "\n".join(lines)


def details(results: dict[str, tuple[Outcome, Verdict]]) -> str:
    lines: list[str] = []
    for name, (outcome, verdict) in results.items():
        if verdict.problem:
            lines.append(f"{name}: {verdict.problem}" + (f" (see {outcome.log})" if outcome.log else ""))
        for test, text in verdict.new.items():
            summary = text.splitlines()[0][:300] if text else "no message"
            lines.append(f"{name}: {test}\n    {summary}")
        for test in outcome.unsteady:
            lines.append(f"{name}: passed only when run again: {test}")
    return "\n".join(lines)


def record(results: dict[str, tuple[Outcome, Verdict]], broker: str, *, quick: bool) -> None:
    """Writes these results into baseline.json: for runs against the reference broker."""
    baseline = load_baseline()
    baseline["broker"] = broker
    for name, (outcome, _) in results.items():
        entry = baseline["suites"].setdefault(name, {"failed": []})
        count = len(outcome.passed) + len(outcome.failed)
        entry["quick" if quick else "full"] = {"tests": count, "failed": len(outcome.failed)}
        entry["failed"] = sorted({*entry["failed"], *outcome.failed})
    BASELINE.write_text(json.dumps(baseline, indent=1, sort_keys=True) + "\n")
