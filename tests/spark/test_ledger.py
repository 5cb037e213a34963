"""The ledger over a real broker's data: counts, what is lost or doubled, one message's life, and what the command says."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import kvitto
from kvitto.cli.main import main
from kvitto.client import Connection, Delivery, Properties
from kvitto.pipeline.ledger import Counts, Finding, Findings, Ledger, Step, ledger, life
from kvitto.pipeline.ledger_report import as_json, duration, life_text, page, text
from kvitto.pipeline.ledger_scan import key_of, latency, receipt_keys, receipt_rows, step
from kvitto.pipeline.session import JobError, first_line
from kvitto.spark.properties import Slices, hashes
from tests.support.wait import wait_until

from .test_archive import ARCHIVED, name_queues

TAKEN = 100
WORKER = (
    'An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File "t.py", line 1, in f\n'
)


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Data of 500 orders, of which 20 were sent twice; the first 100 were consumed: 80 acked, 10 rejected, 10 tried again and acked."""
    data = tmp_path_factory.mktemp("books") / "data"
    with kvitto.Broker(data) as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("failed", durable=True, arguments=ARCHIVED)
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
        channel.queue_declare("orders", durable=True, arguments=ARCHIVED | letters)
        channel.confirm_select()
        for n in [*range(500), *range(200, 220)]:
            channel.publish(b"%d" % n, routing_key="orders", properties=Properties(message_id=f"order-{n}"))
        channel.publish(b"no id", routing_key="orders")
        for _ in range(2):
            channel.publish(b"no id", routing_key="orders", properties=Properties(message_id=""))
        assert channel.wait_for_confirms(30)
        consumer = connection.channel()
        consumer.qos(TAKEN)
        tag = consumer.consume("orders")
        taken: list[Delivery] = []
        while len(taken) < TAKEN:
            taken += consumer.receive(10)
        consumer.cancel(tag)
        for n, delivery in enumerate(taken[:90]):
            if n < 80:
                consumer.ack(delivery.delivery_tag)
            else:
                consumer.reject(delivery.delivery_tag, requeue=False)
        consumer.close()
        again = connection.channel()
        for _ in range(90, TAKEN):
            found = again.get("orders")
            assert found is not None
            again.ack(found.delivery_tag)
        again.close()
        wait_until(lambda: channel.log_inspect("failed").next == 10)
        name_queues(data, broker.url, "orders", "failed")
        yield data


@pytest.fixture
def receipts(tmp_path: Path) -> list[Path]:
    """504 receipts: two are for messages that were never stored, one names a queue that the message is not in."""
    plain, named = tmp_path / "plain.txt", tmp_path / "named [1].txt"
    plain.write_text("".join(f"order-{n}\n" for n in range(500)) + "order-7\n\nnever-stored\n")
    named.write_bytes(b"order-85\tfailed\norder-3\tfailed\r\norder-8\t\nno utf-8 \xe9\t\n")
    return [plain, named]


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_everything_is_accounted_for(spark: SparkSession, books: Path, receipts: list[Path]) -> None:
    said: list[str] = []
    found = ledger(spark, books, receipts, limit=5, tell=said.append)
    failed, orders = found.queues
    assert (orders.queue, orders.published, orders.waiting, orders.redelivered) == ("orders", 523, 423, 10)
    assert orders.settled == {"acked": 90, "dead-lettered": 10}
    assert (failed.queue, failed.published, failed.waiting, failed.settled, failed.p50) == ("failed", 10, 10, {}, None)
    assert None not in (orders.p50, orders.p95, orders.p99, orders.max)
    assert 0 <= orders.p50 <= orders.p95 <= orders.p99 <= orders.max < 60_000  # type: ignore[operator]
    assert sum(each.published for each in found.hours) == found.published == 533
    assert all(each.hour is not None and each.hour.minute == 0 for each in found.hours)
    assert found.doubled.count == 20
    assert found.doubled.listed[0] == Finding("order-200", "/", "orders", (200, 500))
    assert len(found.doubled.listed) == 5
    assert found.receipts == 504
    lost = [("never-stored", None), ("no utf-8 \N{REPLACEMENT CHARACTER}", None), ("order-3", "failed")]
    assert found.lost == Findings(3, [Finding(name, None, queue) for name, queue in lost])
    assert not found.even
    assert len(said) == 2
    told = text(found)
    for part in (
        "doubled: 20 message ids",
        "order-200  in queue orders, offsets 200 and 500",
        "and 15 more",
        "lost: 3 message ids",
    ):
        assert part in told
    assert json.loads(as_json(found))["lost"]["count"] == 3


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_life_of_a_message(spark: SparkSession, books: Path) -> None:
    """A dead letter is followed by its message id."""
    steps = life(spark, books, "order-85")
    assert [(step.queue, step.offset) for step in steps] == [
        ("orders", 85),
        ("orders", 85),
        ("failed", 5),
        ("failed", 5),
    ] or [(step.queue, step.offset) for step in steps] == [("orders", 85), ("failed", 5), ("orders", 85), ("failed", 5)]
    whats = {(step.queue, step.what.split(" ")[0]) for step in steps}
    assert whats == {("orders", "published,"), ("orders", "dead-lettered"), ("failed", "put"), ("failed", "waiting,")}
    again = [step.what for step in life(spark, books, "order-95")]
    assert again[1] == "delivered again, delivery 2" and again[2].startswith("acked after") and "2 times" in again[2]
    assert life(spark, books, "no such") == []


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_the_command(
    spark: SparkSession, books: Path, receipts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within the session that is there already, which it leaves running."""
    report = tmp_path / "report.html"
    line = ["pipeline", "ledger", str(books)]
    assert main([*line, "--receipts", str(receipts[0]), "--html", str(report), "--limit", "1"]) == 1
    said = capsys.readouterr().out
    assert "lost: 1 message ids" in said and "never-stored" in said and "and 19 more" in said
    assert "order-200" in report.read_text()
    assert main([*line, "--message-id", "order-3"]) == 0
    assert "acked after" in capsys.readouterr().out
    assert main([*line, "--message-id", "order-3000", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["steps"] == []
    assert spark.range(3).count() == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{tmp}"], "neither a broker's data directory"),
        (["{tmp}/nowhere"], "there is no directory"),
        (["{tmp}/empty"], "no segment of a queue with an archive"),
        (["{tmp}/full", "--receipts", "{tmp}/no-receipts"], "cannot read the receipts"),
        (["{tmp}/full", "--receipts", "{tmp}/_hidden"], "begins with _ or ., rename it"),
        (["{tmp}/full", "--receipts", "{tmp}/full"], "no plain file"),
        (["{tmp}/full", "--message-id", "x", "--html", "y"], "leave --receipts and --html out"),
        (["{tmp}/full"], "Java"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "empty" / "queues").mkdir(parents=True)
    directory = tmp_path / "full" / "archive" / ("ab" * 16)
    directory.mkdir(parents=True)
    (directory / "queue.json").write_text(json.dumps({"vhost": "/", "queue": "q", "id": "ab" * 16}))
    (directory / f"{0:020d}.log").write_bytes(b"KVITSEG1")
    (tmp_path / "_hidden").touch()
    done = command(*(each.format(tmp=tmp_path) for each in arguments), java="")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("kvitto pipeline ledger: ")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("[PATH_NOT_FOUND] Path does not exist: x.\nJVM stacktrace: ...", "[PATH_NOT_FOUND] Path does not exist: x."),
        (f"{WORKER}ValueError: odd\n\nSQLSTATE: 42K03", "ValueError: odd"),
        (f"{WORKER}kvitto.spark.archive.segment.Damage: 0.log: broken\n", "0.log: broken"),
        ("", "RuntimeError"),
    ],
)
def test_of_an_error_of_spark_the_line_that_tells_is_shown(error: str, said: str) -> None:
    assert first_line(RuntimeError(error)) == said


def command(*arguments: str, java: str | None = None) -> subprocess.CompletedProcess[str]:
    """`kvitto pipeline ledger` as a process of its own; `java`: the PATH to look for it."""
    import os

    environment = dict(os.environ)
    if java is not None:
        environment |= {"PATH": java, "JAVA_HOME": ""}
    line = [sys.executable, "-m", "kvitto.cli.main", "pipeline", "ledger", *arguments]
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=200)


def hour(k: int) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 // 3600 * 3600 + 3600 * k, UTC)


def example(hours: int) -> Ledger:
    """A ledger by hand, with names that are hostile to pages and terminals."""
    name = "<q>\x1b[31m"
    rows = [
        Counts("/", name, hour(2 * k), 10 + k, {"acked": 9, "expired": k}, 1, 2, 5.0, 99.5, 1500.0, 3e7)
        for k in range(hours)
    ]
    total = Counts(
        "/", name, None, sum(r.published for r in rows), {"acked": 9 * hours}, hours, 2 * hours, 5.0, 99.5, 1500.0, 3e7
    )
    return Ledger("/data", [total], rows, Findings(1, [Finding("<id>\n", "/", name, (1, 2))]))


class Tags(HTMLParser):
    """Checks that tags close in the order in which they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("hours", [0, 1, 2, 100])
def test_the_page_is_whole_and_loads_nothing(hours: int) -> None:
    made = page(example(hours))
    tags = Tags()
    tags.feed(made)
    assert tags.open == []
    assert "<q>" not in made and "\x1b" not in made and "&lt;q&gt;" in made
    assert "http" not in made and "nan" not in made


def test_the_text_is_for_people() -> None:
    told = text(example(100))
    assert "\x1b" not in told and "\\x1b[31m" in told
    assert "the last 48 of 100 rows" in told
    assert "lost: not known" in told
    assert [duration(ms) for ms in (None, 3, 999, 1500, 200_000, 9e6, 1e9)] == [
        *("-", "3 ms", "999 ms", "1.5 s", "3.3 min", "2.5 h", "11.6 d")
    ]
    assert "waiting" in life_text("m", [Step(None, "/", "q", 1, "waiting, never delivered")], "d")
    assert "in no segment" in life_text("m", [], "d")


def test_latencies_keep_three_digits() -> None:
    values = np.array([-1, 0, 1, 999, 1000, 1004, 9999, 10_000, 12_345, 123_456_789, 10**13])
    rounded = [-1, 0, 1, 999, 1000, 1000, 9990, 10_000, 12_300, 123_000_000, 10**13]
    assert latency(step(values)).tolist() == rounded
    assert step(values).max() < 1 << 14


def test_receipts_are_compared_queue_by_queue() -> None:
    """1,000 queues in two batches of lines; what two queues have under one id is two receipts."""
    names = [None, *(f"q{n}" for n in range(999))]
    lines = [f"id-{n}" + (f"\t{names[n % 1000]}" if n % 1000 else "") for n in range(4000)] + ["id-1\tq5", "", "\tq1"]
    batches = [
        pa.RecordBatch.from_arrays([pa.array(lines[at : at + 2000])], names=["value"]) for at in range(0, 4003, 2000)
    ]
    rows = pa.Table.from_batches(receipt_keys(7)(iter(batches)))
    found: dict[str | None, int] = {}
    for queue, keys in zip(rows["queue"].to_pylist(), rows["keys"].to_pylist(), strict=True):
        found[queue] = found.get(queue, 0) + len(keys) // 8
    assert found == {name: 5 if name == "q5" else 4 for name in names}
    wanted = {"q5": key_of("id-1", 7), None: key_of("id-1000", 7)}
    named = pa.Table.from_batches(receipt_rows(7, wanted)(iter(batches))).to_pylist()
    assert named == [{"message_id": "id-1000", "queue": None}, {"message_id": "id-1", "queue": "q5"}]


def test_equal_ids_have_equal_hashes_wherever_they_lie() -> None:
    ids = [b"", b"a", b"a\0", b"12345678", b"123456789", b"1234567812345678", b"x" * 200, b"y" + b"x" * 199]
    length = np.array([len(each) for each in ids])
    start = np.cumsum(length) - length

    def hashed(before: bytes, seed: int = 5) -> list[int]:
        data = np.frombuffer(before + b"".join(ids), np.uint8)
        found: list[int] = hashes(data, Slices(length > 0, start + len(before), length), seed).tolist()
        return found

    assert len(set(hashed(b""))) == len(ids)
    assert hashed(b"") == hashed(b"abc") != hashed(b"", seed=6)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_damaged_archive_is_named(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "archive" / ("ab" * 16)
    directory.mkdir(parents=True)
    (directory / "queue.json").write_text(json.dumps({"vhost": "/", "queue": "q", "id": "ab" * 16}))
    (directory / f"{0:020d}.log").write_bytes(b"KVITSEG1" + bytes(100))
    with pytest.raises(JobError, match=r"00\.log: the segment's header is damaged.*ignoreDamage"):
        ledger(spark, tmp_path)
    assert ledger(spark, tmp_path, ignore_damage=True).published == 0
