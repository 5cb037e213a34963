"""Targets are checked against measured figures only."""

import pytest

from benchmarks.metrics import METRICS
from benchmarks.plots import BARS
from benchmarks.report import SUMMARY
from benchmarks.results import Described, Results, Run
from benchmarks.scenarios import FULL, scenarios
from benchmarks.targets import TARGETS, at_least, at_most, ratio, slower, sync_plus, value


def measured(scenario: str, broker: str, metric: str, found: float, sync_us: float | None = None) -> Run:
    return Run(scenario, broker, {metric: found}, "", sync_us)


def test_a_ratio_is_met_or_missed_or_unknown() -> None:
    target = at_least("a", "", ratio("a", "consumed_per_s"), 15, "x")
    found = Results("now", runs=[measured("a", "Kvitto", "consumed_per_s", 1500)])
    assert target.met(found) is None
    found.runs.append(measured("a", "RabbitMQ", "consumed_per_s", 100))
    assert target.met(found) is True
    found.runs[-1].values["consumed_per_s"] = 101
    assert target.met(found) is False


def test_a_bound_may_depend_on_the_disk() -> None:
    target = at_most("e", "", value("e", "receipt_us"), sync_plus("e", 150, 1), "µs")
    found = Results("now", runs=[measured("e", "Kvitto", "receipt_us", 340, sync_us=200)])
    assert target.met(found) is True
    found.runs[0].fdatasync_us = 180
    assert target.met(found) is False


def test_slower_compares_the_ends_of_a_series() -> None:
    found = Results("now")
    found.scenarios = [Described(f"j-{x}", "j", "", "", "j", x) for x in (1000, 10, 100)]
    rates = {10: 200.0, 100: 500.0, 1000: 150.0}
    found.runs = [measured(f"j-{x}", "Kvitto", "confirmed_per_s", rate) for x, rate in rates.items()]
    assert slower("j", "confirmed_per_s")(found) == pytest.approx(25)
    assert slower("k", "confirmed_per_s")(found) is None


def test_targets_summary_and_plots_name_scenarios_and_metrics_that_exist() -> None:
    """Figures for everything that can be measured: then each target has one."""
    full = scenarios(FULL)
    found = Results("now", versions={"Kvitto": "", "RabbitMQ": ""})
    for scenario in full:
        series, x = getattr(scenario, "series", ""), getattr(scenario, "x", 0)
        found.scenarios.append(Described(scenario.key, scenario.letter, scenario.title, "", series, x))
        for broker in found.versions:
            found.runs.append(Run(scenario.key, broker, dict.fromkeys(METRICS, 1.0), "", 100.0))
    assert all(target.met(found) is not None for target in TARGETS)
    keys = {scenario.key for scenario in full}
    named = [*SUMMARY, *(row for _, rows in BARS.values() for row in rows)]
    assert {key for key, _ in named} <= keys
    assert {metric for _, metric in named} <= set(METRICS)
