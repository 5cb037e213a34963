"""What a bench found, as kept in results.json: all runs as they were, medians made on reading."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1


@dataclass(slots=True)
class Run:
    """One measurement of one broker. `disturbed` says what else ran meanwhile; empty = nothing worth mention."""

    scenario: str
    broker: str
    values: dict[str, float]
    disturbed: str = ""
    fdatasync_us: float | None = None
    """This disk's own sync just before, where the scenario waits for it."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Median and extremes of the runs that count."""

    median: float
    least: float
    most: float
    runs: int
    disturbed: bool
    """No undisturbed run was to be had: all runs count, and all are doubtful."""


@dataclass(slots=True)
class Described:
    """A scenario as the report shows it; copied here so that results.json stands alone."""

    key: str
    letter: str
    title: str
    command: str
    series: str = ""
    x: float = 0.0


@dataclass(slots=True)
class Results:
    started: str
    machine: dict[str, str | int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    """By broker, in the order of the columns; Kvitto first."""
    settings: dict[str, str | float] = field(default_factory=dict)
    scenarios: list[Described] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def figure(self, scenario: str, broker: str, metric: str) -> Figure | None:
        """None if it was not measured."""
        runs = [r for r in self.runs if r.scenario == scenario and r.broker == broker and metric in r.values]
        clean = [run.values[metric] for run in runs if not run.disturbed]
        values = clean or [run.values[metric] for run in runs]
        return figure(values, disturbed=not clean) if values else None

    def ratio(self, scenario: str, metric: str, broker: str, to: str) -> float | None:
        """Median of one broker over that of another."""
        one, other = self.figure(scenario, broker, metric), self.figure(scenario, to, metric)
        return one.median / other.median if one and other and other.median else None

    def fdatasync_us(self, scenario: str | None = None) -> float | None:
        """Median over all runs of the scenario, or of all."""
        found = [r.fdatasync_us for r in self.runs if r.fdatasync_us and scenario in (None, r.scenario)]
        return statistics.median(found) if found else None

    def replace(self, newer: Results) -> None:
        """Take over what `newer` measured again; what it did not is kept."""
        again = {scenario.key for scenario in newer.scenarios}
        self.runs = [run for run in self.runs if run.scenario not in again] + newer.runs
        merged = {scenario.key: scenario for scenario in [*self.scenarios, *newer.scenarios]}
        self.scenarios = sorted(merged.values(), key=lambda scenario: scenario.letter)
        self.machine, self.settings, self.notes = newer.machine, newer.settings, newer.notes
        self.failed = [*newer.failed]
        self.versions |= newer.versions

    def save(self, path: Path) -> None:
        """Written beside and renamed: an interrupted bench leaves the last whole state."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1, ensure_ascii=False) + "\n")
        draft.replace(path)


def figure(values: Iterable[float], disturbed: bool = False) -> Figure:
    found = sorted(values)
    return Figure(statistics.median(found), found[0], found[-1], len(found), disturbed)


def load(path: Path) -> Results:
    """ValueError if it is no such file, or of another format."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        if data.pop("format") != FORMAT:
            raise ValueError(f"{path} has another format; measure again")
        runs = [Run(**run) for run in data.pop("runs")]
        described = [Described(**scenario) for scenario in data.pop("scenarios")]
        return Results(**data, scenarios=described, runs=runs)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a result of `make bench`: {error!r}") from None
