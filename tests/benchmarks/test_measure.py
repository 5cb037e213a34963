"""Turns: alternating, repeated while disturbed, up to a bound."""

from pathlib import Path

from benchmarks.measure import MeasureFailed, Settings, alternate, disturbance
from benchmarks.proc import Others, Pins
from benchmarks.results import Run
from benchmarks.scenarios import Load

SCENARIO = Load("a", "", ())


def settings(runs: int, repeats: int) -> Settings:
    return Settings(runs, repeats, Pins(frozenset({0}), frozenset({0})), Path())


def test_brokers_take_turns_and_disturbed_runs_are_repeated() -> None:
    order: list[str] = []

    def turn(name: str, disturbed: list[str]) -> Run:
        order.append(name)
        return Run("a", name, {}, disturbed.pop(0))

    first, second = ["", "others", ""], ["", ""]
    turns = {"Kvitto": lambda: turn("Kvitto", first), "RabbitMQ": lambda: turn("RabbitMQ", second)}
    runs, failed = alternate(SCENARIO, turns, settings(2, 3), lambda text: None)
    assert order == ["Kvitto", "RabbitMQ", "RabbitMQ", "Kvitto", "Kvitto"]
    assert [run.disturbed for run in runs if run.broker == "Kvitto"] == ["", "others", ""]
    assert failed == []


def test_repeats_are_bounded() -> None:
    turns = {"Kvitto": lambda: Run("a", "Kvitto", {}, "others")}
    runs, _ = alternate(SCENARIO, turns, settings(2, 3), lambda text: None)
    assert len(runs) == 5


def test_a_broker_that_fails_does_not_stop_the_other() -> None:
    def fail() -> Run:
        raise MeasureFailed("no answer")

    turns = {"Kvitto": lambda: Run("a", "Kvitto", {}), "RabbitMQ": fail}
    runs, failed = alternate(SCENARIO, turns, settings(2, 0), lambda text: None)
    assert [run.broker for run in runs] == ["Kvitto", "Kvitto"]
    assert failed == ["a, RabbitMQ failed: no answer"]


def test_what_disturbed_a_run_is_said() -> None:
    assert disturbance(Others(0.02, 0.0)) == ""
    assert disturbance(Others(0.5, 0.2)) == "others used 0.50 cores, the hypervisor took 0.20 cores"
