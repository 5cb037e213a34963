"""`kvitto perf rpc` against a real broker: each call is answered once."""

import json
import os
from typing import Protocol

import pytest

from kvitto.client import ChannelClosed, Connection
from kvitto.perf.options import Options
from kvitto.perf.rpc import measure
from tests.perf.test_throughput import command


class HasUrl(Protocol):
    url: str


@pytest.mark.parametrize("ack", [0, 1])
def test_each_call_is_answered(kvitto_broker: HasUrl, ack: int) -> None:
    options = Options(uri=kvitto_broker.url, queue="calls", publishers=3, consumers=2, size=100, publish_count=300)
    options.ack_every, options.prefetch, options.broker_pid = ack, ack, os.getpid()
    result = measure(options)
    assert (result["published"], result["consumed"], result["operations"]) == (300, 300, 300)
    assert 0 < result["latency_us"]["p50"] <= result["latency_us"]["max"] < 60e6
    assert result["broker_cpu_seconds"] >= 0
    with Connection(kvitto_broker.url) as connection, pytest.raises(ChannelClosed, match="404"):
        connection.channel().queue_declare("calls", passive=True)


def test_the_command_prints_calls_per_second(kvitto_broker: HasUrl, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("rpc", "--uri", kvitto_broker.url, "-z", "0.2", "-j") == 0
    assert json.loads(capsys.readouterr().out)["avg_call_rate"] > 0
    assert command("rpc", "--uri", kvitto_broker.url, "-C", "20") == 0
    assert "20 calls" in capsys.readouterr().out
    assert command("rpc", "--uri", kvitto_broker.url, "-y", "0") == 1
    assert "a call needs a client (-x) and a server (-y)" in capsys.readouterr().err
