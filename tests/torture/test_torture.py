"""`kvitto torture` against real brokers: it passes one that keeps its promises and finds out one that does not."""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import kvitto
from kvitto.base.process import group_members
from kvitto.cli.main import main
from kvitto.torture import cli, load, plan
from kvitto.torture.nodes import Command, Kvitto, Node, free_port, kvitto_command
from kvitto.torture.oracle import Journal
from kvitto.torture.proxy import Proxy
from kvitto.torture.report import as_json, as_text
from kvitto.torture.run import DOES, Run, Wanted, through
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow
QUIET_S = 0.5


def torture(node: Node, wanted: Wanted) -> Run:
    run = Run(node, wanted, "", lambda text: None)
    run.go()
    return run


class Forgetful(Kvitto):
    """Loses its files of messages with every kill."""

    def kill(self) -> None:
        super().kill()
        for path in self.data.glob("queues/*/0*.*"):
            path.unlink()


def test_a_broker_that_forgets_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P2: the oracle is worth something."""
    monkeypatch.setattr("kvitto.torture.run.LATE_S", QUIET_S)
    run = torture(Forgetful(tmp_path), Wanted(("kill",), 1, cycles=1))
    assert run.oracle.findings["lost"] > 0
    assert not run.outcome.passed(run.oracle)
    report = as_json(run.outcome, run.oracle)
    assert not report["passed"] and report["samples"]["lost"]
    assert (tmp_path / "findings").read_text().startswith("lost: torture.")
    assert "FAILED; seed 1" in as_text(run.outcome, run.oracle)


def test_confirms_that_never_come_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: the connection lives, and nothing that the broker says arrives."""
    monkeypatch.setattr(load, "CONFIRM_S", QUIET_S)
    proxy, journal = Proxy(), Journal(tmp_path / "journal")
    proxy.start()
    with kvitto.Broker() as broker:
        proxy.target = (parts := urlsplit(broker.url)).hostname or "", parts.port or 0
        target = load.Target()
        work = load.Load(journal, target)
        load.declare(broker.url)
        target.uri = through(broker.url, proxy.port)
        target.up.set()
        publisher = work.publishers[0]
        publisher.behind = lambda: 0  # nobody consumes, and it has to go on publishing
        publisher.start()
        assert wait_until(lambda: publisher.moves > 0)
        assert work.oracle.findings["confirms"] == 0
        proxy.half_open(lambda: True, from_client=False)
        assert wait_until(lambda: work.oracle.findings["confirms"] > 0)
        target.ended.set()
        proxy.cut_half_open()
        publisher.join()
    proxy.close()
    journal.close()
    (text,) = work.oracle.findings.samples["confirms"]
    assert text.startswith("publisher p: ") and "no confirm after" in text


def test_an_error_that_nobody_has_caused_is_found(tmp_path: Path) -> None:
    """Here a queue is gone."""
    journal = Journal(tmp_path / "journal")
    with kvitto.Broker() as broker:
        target = load.Target()
        work = load.Load(journal, target)
        target.uri = broker.url
        target.up.set()
        work.consumers[0].start()
        assert wait_until(lambda: work.oracle.findings["protocol"] > 0)
        target.ended.set()
        work.consumers[0].join()
    journal.close()
    assert "404" in work.oracle.findings.samples["protocol"][0]


def test_cut_connections_and_a_frozen_broker_lose_nothing(tmp_path: Path) -> None:
    """P2, A6, C5, T4."""
    run = torture(Kvitto(tmp_path), Wanted(("cut", "stop", "half-open"), 6, cycles=3))
    assert run.outcome.passed(run.oracle), as_text(run.outcome, run.oracle)
    assert run.outcome.cycles == {"cut": 2, "stop": 1}


def test_any_broker_by_its_start_command(tmp_path: Path) -> None:
    """Here Kvitto as a stranger would start it, for a number of publishes (C5). What answers already is not taken for it."""
    port = free_port()
    words = [
        *kvitto_command(),
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--port",
        str(port),
        "--http-port",
        "off",
    ]
    node = Command(tmp_path / "place", " ".join(words), f"amqp://localhost:{port}")
    run = torture(node, Wanted((), 1, publishes=500))
    assert run.outcome.passed(run.oracle), as_text(run.outcome, run.oracle)
    p, q, _ = run.oracle.flows
    assert (p.confirmed, q.confirmed, p.next, q.next) == (250,) * 4
    assert run.oracle.findings["confirms out of order"] == run.oracle.findings["order"] == 0
    assert run.outcome.broker.startswith("Kvitto ") and not node.running
    with kvitto.Broker() as broker:
        late = torture(Command(tmp_path / "late", "false", broker.url), Wanted((), 1, publishes=500))
    assert "answers already" in late.outcome.broke and not late.outcome.passed(late.oracle)


def test_an_interrupted_kill_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the broker is down: it is started once more, drained and judged."""

    def interrupted(run: Run, fault: plan.Fault) -> None:
        run.down()
        run.node.kill()
        raise KeyboardInterrupt

    monkeypatch.setitem(DOES, plan.KILL, interrupted)
    run = torture(Kvitto(tmp_path), Wanted(("kill",), 1, cycles=5))
    assert run.outcome.interrupted and run.outcome.judged
    assert run.outcome.passed(run.oracle), as_text(run.outcome, run.oracle)


def test_an_interrupt_before_the_broker_is_up_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It printed a table of zeros, and FAILED."""
    before = signal.getsignal(signal.SIGTERM)

    def interrupted(_: Run) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "_prepare", interrupted)
    try:
        assert main(["torture", "--place", str(tmp_path / "place"), "--seed", "9", "--cycles", "1"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    [said] = capsys.readouterr().out.splitlines()
    assert said.startswith("interrupted before the broker was up; again: kvitto torture --seed=9")


@pytest.fixture
def heeded() -> Iterator[None]:
    """Ctrl-C counts in what is started: a shell that does not wait for the tests has them, and all below, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded")
def test_the_command_ends_with_ctrl_c_and_leaves_no_broker_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kvitto.cli.main", "torture", "--place", str(tmp_path / "place")]
    report = tmp_path / "report.json"
    with subprocess.Popen(
        [*command, "--faults", "none", "--seconds", "600", "--seed", "9", "--report", str(report)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        assert any("seed 9" in line for line in process.stderr)
        assert "published" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read()
        errors = process.stderr.read()
        assert process.wait(60) == 0, errors
    assert "interrupted" in errors and "Traceback" not in errors
    assert "passed; seed 9; again: kvitto torture --seed=9" in printed
    found = json.loads(report.read_text())
    assert found["interrupted"] and found["judged_at_end"] and found["confirmed"] > 0
    assert (tmp_path / "place" / "journal").exists()
    left = [pid for pid in group_members(os.getpgid(0)) if str(tmp_path) in Path(f"/proc/{pid}/cmdline").read_text()]
    assert left == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--start", "x"], "belong together"),
        (["--start", "x", "--uri", "amqps://h"], "has to be amqp://"),
        (["--start", "x", "--uri", "http://h"], "starts with amqp://"),
        (["--start", "x", "--uri", "amqp://h", "--nodes", "3"], "for Kvitto and RabbitMQ only"),
        (["--nodes", "2"], "at least 3"),
        (["--place", "."], "is not empty"),
        (["--place", "/dev/null"], "--place /dev/null: File exists"),
        (["--place", "/dev/null/x"], "--place /dev/null/x: Not a directory"),
        (["--report", "/nowhere/report.json"], "no directory for"),
    ],
)
def test_arguments_that_make_no_sense(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["torture", *words])
    assert args.run(args) == 2
    assert said in capsys.readouterr().err
