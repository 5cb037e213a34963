"""The loads that `kvitto perf` has no flags for, and one bench from end to end, both tiny."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

import kvitto
from benchmarks import brokers, load
from benchmarks.results import load as load_results
from kvitto.client import ChannelClosed, Connection
from kvitto.perf.options import Options

ROOT = Path(__file__).parents[2]


class HasUrl(Protocol):
    url: str


@pytest.mark.parametrize(
    "words",
    [
        "latency -r 500 -p -c 100 -a 1 -P 100",
        "pairs --queues 2",
        "fanout --queues 3",
        "topic --queues 2 --bindings 20",
        "trickle --queues 5 -p -c 10",
        "churn",
        "churn -p",
    ],
)
def test_a_load_counts_and_cleans_up(kvitto_broker: HasUrl, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert load.main([*words.split(), "--uri", kvitto_broker.url, "-z", "0.5", "-s", "2000"]) == 0
    result = json.loads(capsys.readouterr().out)
    kind = words.split()[0]
    counted = {"churn": "operations", "trickle": "confirmed"}.get(kind, "consumed")
    assert result[counted] > 0
    if kind == "latency":
        assert 0 < result["latency_us"]["p50"] <= result["latency_us"]["p95"] <= result["latency_us"]["max"]
    with Connection(kvitto_broker.url) as connection, pytest.raises(ChannelClosed, match="404"):
        connection.channel().queue_declare(load.QUEUE.format(0), passive=True)


def test_idle_connections_send_heartbeats(kvitto_broker: HasUrl, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["idle", "--connections", "20", "--pid", str(os.getpid()), "--uri", f"{kvitto_broker.url}?heartbeat=0"]
    assert load.main([*words, "-z", "0.3"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["elapsed_seconds"] >= 0.3 and result["broker_cpu_seconds"] >= 0


def test_messages_are_published_over_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        words = ["http", "--uri", broker.http_url, "-z", "0.3", "-s", "100", "--pid", str(os.getpid())]
        assert load.main(words) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["operations"] > 0 and result["latency_us"]["p95"] > 0
        with Connection(broker.url) as connection, pytest.raises(ChannelClosed, match="404"):
            connection.channel().queue_declare(load.QUEUE.format(0), passive=True)


def test_a_message_of_a_rotation_goes_to_each_queue_in_turn(kvitto_broker: HasUrl) -> None:
    with load.declared(kvitto_broker.url, 3) as (channel, names):
        options = Options(uri=kvitto_broker.url, publish_count=8)
        publisher = load.rotating(options, names)
        publisher.quota.left = 8
        load.drive(options, [publisher], [])
        counts = [channel.queue_declare(name, passive=True).message_count for name in names]
    assert counts == [3, 3, 2]


def test_a_load_without_a_broker_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert load.main(["churn", "--uri", "amqp://guest:guest@127.0.0.1:1/"]) == 1
    assert "Connection refused" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not kvitto.compiled(), reason="a bench wants the compiled form")
def test_a_bench_from_end_to_end(tmp_path: Path) -> None:
    words = ["--only", "a,i", "--quick", "--seconds", "0.3", "--no-rabbitmq"]
    places = ["--place", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "benchmarks", *words, *places]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    results = load_results(tmp_path / "out" / "results.json")
    assert {run.broker for run in results.runs} == {"Kvitto"}
    assert results.figure("a", "Kvitto", "consumed_per_s") is not None
    assert results.figure("a", "Kvitto", "cpu_us") is not None
    waiting = results.figure("i-backlog-1M", "Kvitto", "missing")
    assert waiting is not None
    assert waiting.most == 0
    assert "(i) What waits" in (tmp_path / "out" / "results.md").read_text()
    assert not any((tmp_path / "data").glob("*-kvitto"))


def test_the_kvitto_of_another_checkout_is_started_as_ours_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="make build"):
        brokers.kvitto_of(tmp_path)
    command = tmp_path / ".venv" / "bin" / "kvitto"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec {shlex.join(brokers.kvitto_command())} "$@"\n')
    command.chmod(0o755)
    broker = brokers.kvitto_of(tmp_path)(tmp_path / "place", frozenset(os.sched_getaffinity(0)), None)
    try:
        broker.start()
        assert broker.name == "other" and brokers.version(broker) == f"Kvitto {kvitto.__version__}"
    finally:
        broker.stop()
