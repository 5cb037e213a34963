"""`kvitto perf throughput` against a real broker: it counts right, and stops when told."""

import argparse
import json
import select
from typing import Any, Protocol

import pytest

from kvitto.client import Connection
from kvitto.perf.cli import add_parser
from kvitto.perf.options import Options
from kvitto.perf.throughput import measure


class HasUrl(Protocol):
    url: str


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["perf", *arguments])
    code = args.run(args)
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"max_unconfirmed": 10},
        {"ack_every": 1, "prefetch": 50},
        {"ack_every": 7},
        {"publish_tx": 30},
        {"ack_tx": 30},
        {"latency": True, "persistent": True},
        {"size": 0},
        {"size": 200_000, "publish_count": 20},
        {"publishers": 3, "consumers": 2, "rate": 2000.0},
    ],
)
def test_all_that_is_published_is_consumed(kvitto_broker: HasUrl, extra: dict[str, Any]) -> None:
    options = Options(**{"uri": kvitto_broker.url, "publish_count": 1000, **extra})
    result = measure(options)
    assert result["published"] == result["consumed"] == options.publish_count
    assert not result["incomplete"]
    if options.max_unconfirmed:
        assert (result["confirmed"], result["nacked"], result["unexpected_confirms"]) == (1000, 0, 0)
    if options.latency:
        assert 0 < result["latency_us"]["p50"] <= result["latency_us"]["max"] < 60e6


def test_a_run_that_only_publishes_leaves_its_messages(kvitto_broker: HasUrl) -> None:
    measure(Options(uri=kvitto_broker.url, queue="kept", consumers=0, publish_count=500, max_unconfirmed=100))
    result = measure(Options(uri=kvitto_broker.url, queue="kept", publishers=0, consume_count=500, ack_every=100))
    assert (result["published"], result["consumed"]) == (0, 500)
    with Connection(kvitto_broker.url) as connection:
        channel = connection.channel()
        assert channel.queue_declare("kept", passive=True).message_count == 0
        channel.queue_delete("kept")


def test_the_command_prints_one_json_object(kvitto_broker: HasUrl, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("throughput", "--uri", kvitto_broker.url, "-z", "0.2", "-r", "500", "-l", "-j") == 0
    result = json.loads(capsys.readouterr().out)
    assert {"elapsed_seconds", "avg_pub_rate", "avg_consume_rate", "latency_us"} <= set(result)


def test_the_command_prints_a_summary(kvitto_broker: HasUrl, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("throughput", "--uri", kvitto_broker.url, "-C", "100", "-c", "10", "-p") == 0
    assert "Average publish rate:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["-x", "0", "-y", "0"], "nothing to do"),
        (["-l", "-s", "4"], "-s 8"),
        (["-c", "1", "-t", "1"], "not both"),
        (["--uri", "amqp://guest:wrong@127.0.0.1:1/"], "Connection refused"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("throughput", *flags) == 1
    assert reason in capsys.readouterr().err


def test_a_uri_before_the_command_is_told_which_commands_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command("--uri", "amqp://localhost", "-x", "2")
    said = capsys.readouterr().err
    assert "a command comes before --uri: throughput" in said and "amqp://localhost" not in said


def test_without_epoll_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delattr(select, "epoll", raising=False)
    assert command("throughput") == 1
    assert capsys.readouterr().err == (
        "kvitto perf: throughput needs epoll, which only Linux has; `kvitto perf confirms` runs everywhere\n"
    )


def test_confirms_reports_times_and_ratios(kvitto_broker: HasUrl, capsys: pytest.CaptureFixture[str]) -> None:
    """A receipt for a stream costs less than one for each message."""
    assert command("confirms", "--uri", kvitto_broker.url, "-C", "100", "-j") == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["seconds"]) == {"tx", "each", "streamed"}
    assert result["ratio_to_streamed"]["tx"] > 1
    assert command("confirms", "--uri", kvitto_broker.url, "-C", "10") == 0
    assert "one transaction each" in capsys.readouterr().out
