"""What the load generator itself can do: one core sends, or receives, a million small messages a second."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvitto
from kvitto.perf.options import Options
from kvitto.perf.throughput import measure

WANTED_PER_CPU_SECOND = 1_000_000


@pytest.fixture(scope="module")
def loopback() -> Iterator[str]:
    """URI of a broker that does nothing, in a process of its own."""
    command = [sys.executable, str(Path(__file__).with_name("loopback.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"amqp://guest:guest@127.0.0.1:{int(process.stdout.readline())}/%2f"
        process.kill()


@pytest.mark.parametrize(("publishers", "consumers"), [(1, 0), (0, 1), (1, 1)])
def test_one_core_sends_and_receives_a_million_messages_a_second(
    loopback: str, publishers: int, consumers: int
) -> None:
    result = measure(Options(uri=loopback, publishers=publishers, consumers=consumers, seconds=0.5))
    moved = result["published"] + result["consumed"]
    assert (result["published"] > 0, result["consumed"] > 0) == (publishers > 0, consumers > 0)
    if kvitto.compiled():
        assert moved / result["cpu_seconds"] > WANTED_PER_CPU_SECOND
