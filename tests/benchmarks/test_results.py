"""Medians, disturbed runs, and results.json."""

from pathlib import Path

import pytest

from benchmarks.results import Described, Results, Run, load


def results(*runs: Run) -> Results:
    found = Results("now", versions={"Kvitto": "Kvitto 1", "RabbitMQ": "RabbitMQ 3"}, runs=list(runs))
    found.scenarios = [Described(key, key[0], f"title of {key}", "") for key in sorted({run.scenario for run in runs})]
    return found


def run(value: float, broker: str = "Kvitto", disturbed: str = "", scenario: str = "a") -> Run:
    return Run(scenario, broker, {"consumed_per_s": value}, disturbed, 100.0 * value)


def test_disturbed_runs_do_not_count_where_there_are_others() -> None:
    found = results(run(1), run(3), run(2), run(50, disturbed="others")).figure("a", "Kvitto", "consumed_per_s")
    assert found is not None
    assert (found.median, found.least, found.most, found.runs, found.disturbed) == (2, 1, 3, 3, False)


def test_a_figure_from_disturbed_runs_alone_says_so() -> None:
    found = results(run(4, disturbed="others"), run(6, disturbed="others")).figure("a", "Kvitto", "consumed_per_s")
    assert found is not None
    assert (found.median, found.runs, found.disturbed) == (5, 2, True)


def test_what_was_not_measured_is_none() -> None:
    found = results(run(1))
    assert found.figure("a", "RabbitMQ", "consumed_per_s") is None
    assert found.figure("b", "Kvitto", "consumed_per_s") is None
    assert found.ratio("a", "consumed_per_s", "Kvitto", "RabbitMQ") is None


def test_ratios_are_of_medians() -> None:
    found = results(run(30), run(10), run(20), run(4, "RabbitMQ"))
    assert found.ratio("a", "consumed_per_s", "Kvitto", "RabbitMQ") == 5


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    found = results(run(1), run(2, "RabbitMQ", "others"))
    found.save(tmp_path / "out" / "results.json")
    assert load(tmp_path / "out" / "results.json") == found


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for text in ("", "{}", '{"format": 0}', '{"format": 1, "surprise": 1, "runs": [], "scenarios": []}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"results\.json"):
            load(path)


def test_an_update_replaces_what_was_measured_again() -> None:
    older = results(run(1), run(2, scenario="b"))
    older.replace(results(run(7), run(3, scenario="c")))
    medians = {key: older.figure(key, "Kvitto", "consumed_per_s") for key in "abc"}
    assert {key: found.median for key, found in medians.items() if found} == {"a": 7, "b": 2, "c": 3}
    assert [scenario.key for scenario in older.scenarios] == ["a", "b", "c"]
    assert older.fdatasync_us("a") == 700
