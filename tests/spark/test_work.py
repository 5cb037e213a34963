"""`kvitto pipeline work`: acked when the function has returned and its results are confirmed, else back to the queue."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.flights.children import Child
from kvitto.client import Channel, Connection, Properties
from kvitto.pipeline.session import JobError
from kvitto.pipeline.work import Message, encode, load, work
from tests.support.wait import wait_until

from .conftest import QUICK_JVM, BrokerProcess, HasUrl, tracebacks

TASKS = """
import json, os, pathlib, time

def double(message):
    with open({log!r}, "a") as log:
        log.write(f"{{message.body.decode()}} {{message.delivery_count}}\\n")
    n = message.json()["n"]
    if n == 13:
        raise ValueError("unlucky")
    if n == 7 and message.delivery_count == 0:
        raise KeyError("not yet")
    return {{"double": 2 * n}} if n % 2 else [str(n), b"two"]

def slow(message):
    pathlib.Path({log!r}).touch()
    while not os.path.exists({go!r}):
        time.sleep(0.02)
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of functions in the directory where the job is started; its name."""
    name = f"tasks_{os.getpid()}_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(TASKS.format(log=str(tmp_path / "log"), go=str(tmp_path / "go")))
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)
    sys.path[:] = [each for each in sys.path if each != str(tmp_path)]


@pytest.fixture
def channel(kvitto_broker: HasUrl) -> Iterator[Channel]:
    with Connection(kvitto_broker.url) as connection:
        yield connection.channel()


def send(channel: Channel, queue: str, numbers: range) -> None:
    for n in numbers:
        channel.publish(json.dumps({"n": n}).encode(), "", queue, Properties(message_id=f"m{n}"))
    channel.queue_declare(queue, passive=True)


def test_what_a_function_returns_becomes_messages() -> None:
    message = Message(b"", Properties(message_id="m", correlation_id="c"), {}, "k", "", 0)
    assert encode(None, message) == []
    (body, properties), (_, second) = encode([{"a": 1}, "x"], message)
    assert (body, properties.content_type, properties.message_id) == (b'{"a": 1}', "application/json", "m-0")
    assert (second.message_id, second.correlation_id, second.content_type) == ("m-1", "c", "text/plain")
    with pytest.raises(TypeError, match="not int"):
        encode(3, message)  # type: ignore[arg-type]


def test_a_function_that_is_not_there_is_named(tasks: str, tmp_path: Path) -> None:
    for given, said in ((tasks, "module:function"), (f"{tasks}:nope", "has no attribute"), ("nope:f", "No module")):
        with pytest.raises(JobError, match=said):
            load(given, str(tmp_path))
    with pytest.raises(JobError, match="no function"):
        load(f"{tasks}:__name__", str(tmp_path))


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_failures_are_tried_again_later_and_end_as_dead_letters(
    spark: SparkSession, kvitto_broker: HasUrl, channel: Channel, tasks: str, tmp_path: Path
) -> None:
    """A8, A15, X1; results are there for each message that is done."""
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "numbers.dead"}
    retry: dict[str, Any] = {"x-delivery-limit": 2, "x-retry-delay-min": 50, "x-retry-delay-max": 100}
    channel.queue_declare("numbers.dead", durable=True)
    channel.queue_declare("results", durable=True)
    channel.queue_declare("numbers", durable=True, arguments=retry | dead)
    send(channel, "numbers", range(20))
    result = work(
        spark, kvitto_broker.url, "numbers", f"{tasks}:double", results=":results", workers=2, stop_after_idle_s=1.0
    )
    assert (result.done, result.failed, result.published) == (19, 4, 29)
    tried = Counter((tmp_path / "log").read_text().splitlines())
    assert [count for line, count in tried.items() if count > 1] == []
    assert {'{"n": 13} 0', '{"n": 13} 1', '{"n": 13} 2', '{"n": 7} 0', '{"n": 7} 1'} <= set(tried)
    assert len(tried) == 23
    letter = channel.get("numbers.dead")
    assert letter is not None and letter.body == b'{"n": 13}'
    assert channel.queue_declare("numbers", passive=True).message_count == 0
    bodies: Counter[bytes] = Counter()
    while (got := channel.get("results", no_ack=True)) is not None:
        bodies[got.body] += 1
    assert bodies[b"two"] == 10 and bodies[b'{"double": 14}'] == 1 and bodies.total() == 29


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_what_cannot_be_done_is_said(spark: SparkSession, kvitto_broker: HasUrl, channel: Channel, tasks: str) -> None:
    url, function = kvitto_broker.url, f"{tasks}:double"
    with pytest.raises(JobError, match="declare queue 'nothing' first, or say --declare"):
        work(spark, url, "nothing", function)
    with pytest.raises(JobError, match=r"3 workers need 3 task slots"):
        work(spark, url, "nothing", function, workers=3)
    channel.queue_declare("q", durable=True)
    with pytest.raises(JobError, match="leave --declare out"):
        work(spark, url, "q", function, declare=True)
    send(channel, "q", range(1, 2))
    with pytest.raises(Exception, match="no queue takes routing key 'nowhere'"):
        work(spark, url, "q", function, results=":nowhere", workers=1)
    assert channel.queue_declare("q", passive=True).message_count == 1


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_sigterm_ends_after_the_message_in_hand_and_a_broker_that_was_away_is_no_end(
    broker_process: BrokerProcess, tasks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command line; SIGKILL to the broker on the way."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JVM)
    command = ["kvitto.cli.main", "pipeline", "work", f"{tasks}:slow", "--queue", "q", "--declare", "--workers", "1"]
    child = Child("work", [*command, "--uri", broker_process.url], tmp_path / "work.log")
    try:
        wait_until(lambda: "0 done" in child.log.read_text(), 120)
        with Connection(broker_process.url) as connection:
            confirmed = connection.channel()
            confirmed.confirm_select()
            send(confirmed, "q", range(3))
            assert confirmed.wait_for_confirms(30)
            wait_until((tmp_path / "log").exists, 120)
        broker_process.kill()
        broker_process.start()
        (tmp_path / "log").unlink()
        (tmp_path / "go").touch()  # the one in hand comes back, the others too
        with Connection(broker_process.url) as connection:
            channel = connection.channel()
            wait_until(lambda: "3 done" in child.log.read_text() or not child.running, 60)
            (tmp_path / "go").unlink()
            (tmp_path / "log").unlink()
            send(channel, "q", range(3, 5))
            wait_until((tmp_path / "log").exists, 60)
            os.kill(child.pid, signal.SIGTERM)
            wait_until(lambda: "stopping" in child.log.read_text(), 60)
            (tmp_path / "go").touch()
            assert child.process.wait(60) == 0, child.log.read_text()
            assert channel.queue_declare("q", passive=True).message_count == 1
    finally:
        child.kill()
    assert "done        4 messages" in "\n".join(child.take())
    assert not tracebacks(child.log.read_text())
