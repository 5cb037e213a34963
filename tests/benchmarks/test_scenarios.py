"""The list of scenarios: every command line in it is one that its generator understands."""

import argparse
from typing import Any

import pytest

from benchmarks import load
from benchmarks.__main__ import arguments
from benchmarks.brokers import parse_peer
from benchmarks.scenarios import FULL, LETTERS, QUICK, Load, Scale, scenarios
from kvitto.perf.cli import add_parser
from kvitto.perf.options import Options


@pytest.mark.parametrize("scale", [FULL, QUICK])
def test_every_letter_has_scenarios_with_keys_of_their_own(scale: Scale) -> None:
    found = scenarios(scale)
    assert {scenario.letter for scenario in found} == set(LETTERS)
    assert len({scenario.key for scenario in found}) == len(found)


@pytest.mark.parametrize("scale", [FULL, QUICK])
def test_every_command_is_understood(scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    perf = argparse.ArgumentParser()
    add_parser(perf.add_subparsers())
    asked: list[Options] = []

    def take(options: Options, queues: int, bindings: int) -> dict[str, Any]:
        asked.append(options)
        return {}

    for kind in load.KINDS:
        monkeypatch.setitem(load.KINDS, kind, take)
    loads = [scenario for scenario in scenarios(scale) if isinstance(scenario, Load)]
    for scenario in loads:
        words = [*scenario.command, "--uri", "amqp://localhost"]
        if words[0] == "perf":
            perf.parse_args(words)
        else:
            assert load.main(words[1:]) == 0
    assert len(asked) == sum(scenario.command[0] == "load" for scenario in loads)


def test_only_takes_letters_with_or_without_commas(capsys: pytest.CaptureFixture[str]) -> None:
    assert arguments(["--only", "a,d"]).only == arguments(["--only", "ad"]).only == "ad"
    with pytest.raises(SystemExit):
        arguments(["--only", "a,z"])
    assert "no scenario z" in capsys.readouterr().err


def test_a_peer_is_a_name_a_uri_and_a_pid() -> None:
    peer = parse_peer("LavinMQ=amqp://guest:guest@localhost:5673/%2f,pid=123")
    assert (peer.name, peer.pid) == ("LavinMQ", 123)
    assert peer.uri == "amqp://guest:guest@localhost:5673/%2f?heartbeat=0"
    assert parse_peer("x=amqp://h/?heartbeat=9,pid=1").uri == "amqp://h/?heartbeat=9"
    for wrong in ("amqp://localhost,pid=1", "x=amqp://localhost", "x=http://localhost,pid=1", "x=amqp://h,pid=me"):
        with pytest.raises(ValueError, match="a peer is given as"):
            parse_peer(wrong)
