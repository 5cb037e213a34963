"""The main job in short: real flights, both kills, the sum at the end."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.flights import data, table
from examples.flights.__main__ import main, prepare
from examples.flights.publisher import Publisher
from examples.flights.reconcile import Result, judge, reconcile
from kvitto.base.process import session_members
from kvitto.client import Connection
from kvitto.pipeline.session import java_missing
from tests.support.wait import wait_until

from .conftest import BrokerProcess, HasUrl

DEMO = [sys.executable, "-m", "examples.flights"]


def test_each_flight_is_one_message() -> None:
    flights = list(data.flights(1000))
    assert len({flight.message_id for flight in flights}) == 1000
    first = json.loads(flights[0].body)
    assert (flights[0].message_id, flights[0].routing_key) == ("2013-01-01-UA1545-EWR-000000", "flights.UA.EWR")
    assert list(first) == list(data.COLUMNS)
    assert (first["dep_delay"], first["flight"], first["tailnum"]) == (2.0, 1545, "N14228")
    assert any(json.loads(flight.body)["dep_time"] is None for flight in flights)


def test_the_publisher_sends_again_what_was_not_confirmed(broker_process: BrokerProcess, tmp_path: Path) -> None:
    with Connection(broker_process.url) as connection:
        channel = connection.channel()
        channel.exchange_declare(data.EXCHANGE, "topic", durable=True)
        channel.queue_declare(data.QUEUE, durable=True)
        channel.queue_bind(data.QUEUE, data.EXCHANGE, "flights.#")
    command = [sys.executable, "-m", "examples.flights.publisher", broker_process.url, "5000", "20000"]
    command.append(str(tmp_path / "receipts"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher:
        assert publisher.stdout is not None
        next(line for line in publisher.stdout if json.loads(line)["confirmed"] > 0)
        broker_process.kill()
        broker_process.start()
        last = json.loads(publisher.stdout.read().splitlines()[-1])
    assert publisher.returncode == 0
    assert (last["published"], last["confirmed"], last["unconfirmed"], last["done"]) == (5000, 5000, 0, True)
    with Connection(broker_process.url) as connection:
        ids = [each.properties.message_id for each in connection.channel().log_read(data.QUEUE, 0, 1 << 40)]
    sent = {flight.message_id for flight in data.flights(5000)}
    assert set(ids) == sent
    receipts = (tmp_path / "receipts").read_text().splitlines()
    assert (len(receipts), set(receipts)) == (5000, sent)
    assert len(ids) <= 5000 + last["republished"]


def test_a_flight_that_no_queue_takes_ends_the_publisher(kvitto_broker: HasUrl) -> None:
    with Connection(kvitto_broker.url) as connection:
        connection.channel().exchange_declare(data.EXCHANGE, "topic", durable=True)
    with pytest.raises(SystemExit, match=r"no queue took flights\.UA\.EWR"):
        Publisher(kvitto_broker.url, data.flights(10), 1000, io.StringIO()).run()


def test_only_files_in_place_count(tmp_path: Path) -> None:
    """A batch that is put again after a crash replaces its file."""
    counted = table.RowCount(tmp_path)
    assert counted.update() == 0

    def put(name: str, rows: int) -> None:
        pq.write_table(pa.table({"n": range(rows)}), tmp_path / "_new")
        (tmp_path / "_new").rename(tmp_path / name)

    put("a.parquet", 3)
    put("b.parquet", 2)
    (tmp_path / "_staging.parquet").write_text("half")
    assert (counted.update(), table.read(tmp_path, ["n"]).num_rows) == (5, 5)
    put("b.parquet", 7)
    assert (counted.update(), len(table.files(tmp_path))) == (10, 2)


def test_what_is_wrong_is_said() -> None:
    wrong = Result(
        100, published=100, confirmed=99, stored=103, settled=90, landed=101, distinct=99, lost=1, duplicates=2
    )
    wrong.removed, wrong.republished, wrong.resent, wrong.missing = 4, 3, 2, 1
    said = "; ".join(judge(wrong, untyped=5))
    for part in (
        "1 flights are not",
        "2 rows are doubled",
        "5 rows could not",
        "99 of 100",
        "90 of 103",
        "103 messages were stored",
        "misses 1 flights",
        "has 2 flights twice, the table left out 4",
    ):
        assert part in said


def test_a_directory_that_is_not_a_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    with pytest.raises(FileExistsError, match="something else"):
        prepare(tmp_path)
    assert main(["--dir", str(tmp_path)]) == 1


def test_a_missing_java_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    said = java_missing()
    assert said is not None
    assert "apt-get install openjdk" in said


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_nothing_is_lost_or_doubled_by_two_kills(tmp_path: Path) -> None:
    command = [*DEMO, "--dir", str(tmp_path / "run"), "--flights", "4000", "--rate", "1000"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "SIGKILL to the broker" in done.stdout
    assert "SIGKILL to the Spark driver" in done.stdout
    assert "OK: nothing lost, nothing doubled" in done.stdout
    assert "lost: none; all 4,000 messages with a receipt are there" in done.stdout
    result = reconcile(Result(4000), tmp_path / "run")
    assert (result.landed, result.distinct, result.lost, result.duplicates) == (4000, 4000, 0, 0)
    report = (tmp_path / "run" / "report.html").read_text()
    assert "Nothing lost, nothing doubled" in report
    assert report.count("<svg") == 2
    assert "What became of" in (tmp_path / "run" / "ledger.html").read_text()


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_ctrl_c_ends_every_process_of_the_run(tmp_path: Path) -> None:
    command = [*DEMO, "--dir", str(tmp_path / "run"), "--flights", "6000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        lines = [next(line for line in run.stdout if word in line) for word in ("broker ready", "Spark is starting")]
        pids = [int(line.rpartition("pid ")[2]) for line in lines]
        os.kill(run.pid, signal.SIGINT)
        run.stdout.read()
    assert run.returncode == 130
    wait_until(lambda: not any(session_members(pid) for pid in pids))
