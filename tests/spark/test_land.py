"""`kvitto pipeline land`: each message in the table once, what does not fit put aside, whoever is killed."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from examples.flights.children import Child
from kvitto.cli.main import main
from kvitto.client import Connection, Properties
from kvitto.pipeline.behind import Behind
from kvitto.pipeline.delta import check
from kvitto.pipeline.files import BatchFiles
from kvitto.pipeline.land import DELTA, MESSAGES, PARQUET, Landed, Target, land
from kvitto.pipeline.session import JobError
from tests.support.wait import wait_until

from .conftest import QUICK_JVM, BrokerProcess, HasUrl, Publish, tracebacks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
SCHEMA = "order_id BIGINT NOT NULL, customer STRING, total DECIMAL(10, 2), at TIMESTAMP, items ARRAY<STRUCT<sku: STRING, n: INT>>"
BAD = {
    b"": "the body is empty",
    b'{"order_id": 1, "customer": "\xff"}': "the body is not UTF-8",
    b"{oops": "the body is not JSON",
    b"[1]": "the body is not one JSON object",
    b"null": "the body is not one JSON object",
    b'{"order_id": 1}{"order_id": 2}': "the body is not one JSON object",
    b'{"order_id": 1} and more': "the body is not one JSON object",
    b'{"order_id": "x"}': "order_id is no bigint",
    b'{"order_id": 12345678901234567890}': "order_id is no bigint",
    b'{"customer": "c"}': "order_id is missing",
    b'{"order_id": 1, "at": "soon", "items": [{"n": "two"}]}': "at is no timestamp, items is no array<struct<sku:string,n:int>>",
}


def send(url: str, bodies: list[bytes], queue: str = "orders", **properties: Any) -> None:
    with Connection(url, buffer_bytes=1 << 16) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_select()
        for n, body in enumerate(bodies):
            channel.publish(body, "", queue, Properties(message_id=f"id-{n}", **properties))
        assert channel.wait_for_confirms(60)


def orders(first: int, last: int) -> list[bytes]:
    return [json.dumps({"order_id": n, "customer": f"c{n % 7}", "total": n / 4}).encode() for n in range(first, last)]


def rows(table: Path, column: str = "order_id") -> list[Any]:
    """As a reader without Spark sees the table."""
    if (table / "_delta_log").exists():
        from deltalake import DeltaTable

        found: list[Any] = DeltaTable(table).to_pyarrow_table(columns=[column])[column].to_pylist()
        return sorted(found)
    return sorted(value for file in table.glob("[!_.]*.parquet") for value in pq.read_table(file)[column].to_pylist())


def settled(url: str, queue: str = "orders") -> int:
    with Connection(url) as connection:
        return connection.channel().log_inspect(queue).settled


def run(spark: SparkSession, url: str, directory: Path, **options: Any) -> Landed:
    place = (str(directory / "orders.parquet"), str(directory / "checkpoint"))
    given: dict[str, Any] = {"schema": SCHEMA, "available_now": True}
    return land(spark, url, ["orders"], *place, **(given | options))


def test_rows_are_typed_and_what_does_not_fit_is_put_aside_with_its_reason(
    spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path
) -> None:
    whole = b' {"order_id": 7, "customer": "M\xc3\xa5ns", "total": 9.5, "at": "2026-01-02T03:04:05Z", "more": 1,'
    whole += b' "items": [{"sku": "a", "n": 2}]}\n'
    send(kvitto_broker.url, [whole, *BAD, b'{"order_id": 8, "customer": null}'])
    result = run(spark, kvitto_broker.url, tmp_path)
    assert (result.rows, result.bad, result.batches, result.lag) == (2, len(BAD), 1, 0)
    first, second = spark.read.parquet(str(tmp_path / "orders.parquet")).orderBy("order_id").collect()
    assert (first.order_id, first.customer, str(first.total), first["items"][0].n) == (7, "Måns", "9.50", 2)
    assert (first["at"].isoformat(), first._queue, first._offset, first._message_id) == (
        "2026-01-02T03:04:05",
        "orders",
        0,
        "id-0",
    )
    assert (second.order_id, second.customer, second._offset, second._routing_key) == (8, None, len(BAD) + 1, "orders")
    bad = spark.read.parquet(str(tmp_path / "orders.parquet.bad")).orderBy("offset").collect()
    assert [(bytes(row.body), row.reason) for row in bad] == list(BAD.items())
    assert (bad[0].queue, bad[0].offset, bad[0].message_id) == ("orders", 1, "id-1")
    assert settled(kvitto_broker.url) == len(BAD) + 2


def test_bad_records_go_to_an_exchange_and_a_batch_that_is_put_twice_is_there_once(
    spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path
) -> None:
    """As Spark does it after it died between our writing and its own note of that."""
    url, to = kvitto_broker.url, tmp_path / "orders.parquet"
    result, schema = Landed(), StructType.fromDDL(SCHEMA)
    assert isinstance(schema, StructType)
    targets = [Target(spark, url, str(to), schema, "bad", result) for _ in range(2)]

    def put_twice(messages: DataFrame, batch: int) -> None:
        for target in targets:
            target.put(messages, batch)

    with Connection(url) as connection:
        channel = connection.channel()
        channel.exchange_declare("bad", "fanout", durable=True)
        channel.queue_declare("bad", durable=True)
        channel.queue_bind("bad", "bad")
        send(url, [*orders(0, 50), b"oops"])
        messages = spark.readStream.format("amqp").options(uri=url, queue="orders").schema(MESSAGES).load()
        writer = messages.writeStream.foreachBatch(put_twice).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        assert (result.rows, result.bad, rows(to)) == (100, 2, list(range(50)))
        got = channel.get("bad", no_ack=True)
        assert got is not None
        assert (got.body, got.properties.message_id, got.routing_key) == (b"oops", "id-50", "orders")
        assert got.properties.headers == {"x-reason": "the body is not JSON", "x-queue": "orders", "x-offset": "50"}
        assert channel.get("bad") is None
    assert not (tmp_path / "orders.parquet.bad").exists()


def test_a_schema_is_inferred_once_and_kept(spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path) -> None:
    send(kvitto_broker.url, [b"oops", *orders(0, 3)])
    result = run(spark, kvitto_broker.url, tmp_path, schema=None)
    assert result.schema == "customer STRING,order_id BIGINT,total DOUBLE,_rest STRING"
    send(kvitto_broker.url, [b'{"order_id": 3, "new": true}'])
    again = run(spark, kvitto_broker.url, tmp_path, schema=None)
    assert (again.schema, again.rows, again.rest) == (result.schema, 1, 1)
    assert rows(tmp_path / "orders.parquet") == [0, 1, 2, 3]


def test_what_an_inferred_schema_has_no_place_for_is_kept_in_a_column_and_counted(
    spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path
) -> None:
    """A value of another type does not make its column a STRING, and a field that comes later is not dropped."""
    first = [{"order_id": n, "at": {"x": 1}, "tags": [{"n": n}]} for n in range(5)]
    odd = [
        {"order_id": "five", "at": {"x": 1}},
        {"order_id": 6, "new": [1, {"deep": None}], "none": None},
        {"order_id": 7, "at": {"x": 2, "y": 3}},
        {"order_id": 8, "tags": [{"n": 1}, {"n": "no", "m": 2}]},
        {"order_id": 9, "at": "never", "_rest": "mine", "_offset": 77},
        {"order_id": 10, "at": None},
    ]
    send(kvitto_broker.url, [json.dumps(each).encode() for each in (*first, odd[0])])
    result = run(spark, kvitto_broker.url, tmp_path, schema=None)
    assert result.schema == "at STRUCT<x: BIGINT>,order_id BIGINT,tags ARRAY<STRUCT<n: BIGINT>>,_rest STRING"
    assert (result.rows, result.rest, result.bad) == (6, 1, 0)
    send(kvitto_broker.url, [json.dumps(each).encode() for each in odd[1:]])
    send(kvitto_broker.url, [b'{"order_id": 11', b"[]", b'{"order_id": 1, "order_id": 2}'])
    result = run(spark, kvitto_broker.url, tmp_path, schema=None)
    assert (result.rows, result.rest, result.bad) == (5, 4, 3)
    landed = spark.read.parquet(str(tmp_path / "orders.parquet")).orderBy("_offset").collect()
    assert [row.order_id for row in landed] == [*range(5), None, 6, 7, 8, 9, 10]
    assert [None if row["_rest"] is None else json.loads(row["_rest"]) for row in landed] == [
        *[None] * 5,
        {"order_id": "five"},
        {"new": [1, {"deep": None}]},
        {"at": {"x": 2, "y": 3}},
        {"tags": [{"n": 1}, {"n": "no", "m": 2}]},
        {"at": "never", "_rest": "mine", "_offset": 77},
        None,
    ]
    bad = spark.read.parquet(str(tmp_path / "orders.parquet.bad")).orderBy("offset").collect()
    assert [row.reason for row in bad] == [
        "the body is not JSON, or has a name twice",
        "the body is not one JSON object",
        "the body is not JSON, or has a name twice",
    ]


def test_a_given_schema_may_have_the_column_for_the_rest(
    spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path
) -> None:
    send(kvitto_broker.url, [b'{"order_id": 1, "more": 2}', b'{"order_id": "x", "more": 2}', b'{"more": 2}'])
    result = run(spark, kvitto_broker.url, tmp_path, schema="order_id BIGINT NOT NULL, _rest STRING")
    assert (result.rows, result.rest, result.bad) == (1, 1, 2)
    bad = spark.read.parquet(str(tmp_path / "orders.parquet.bad")).orderBy("offset").collect()
    assert [row.reason for row in bad] == ["order_id is no bigint", "order_id is missing"]
    with pytest.raises(JobError, match=r"_rest.*is a STRING, not bigint"):
        run(spark, kvitto_broker.url, tmp_path / "other", schema="order_id BIGINT, _rest BIGINT")


def test_a_second_driver_deletes_nothing_that_it_did_not_write(
    spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path
) -> None:
    send(kvitto_broker.url, orders(0, 20))
    run(spark, kvitto_broker.url, tmp_path)
    table = tmp_path / "orders.parquet"
    query = next(table.glob("*.parquet")).name.rsplit("-", 2)[0]
    before = {path.name: path.read_bytes() for path in table.glob("*.parquet")}
    schema = StructType.fromDDL(SCHEMA)
    assert isinstance(schema, StructType)
    done = Target(spark, "", str(table), schema, None, Landed(), checkpoint=str(tmp_path / "checkpoint"))
    done._query = query
    with pytest.raises(JobError, match=r"batch 0 .* is done already: another driver with the same checkpoint"):
        done.put(spark.range(3), 0)
    late = BatchFiles(spark, str(table), query)
    late._first = False  # it looked before the other one had put anything there
    with pytest.raises(JobError, match="another driver with the same checkpoint writes it"):
        late.put(0, spark.range(3).toDF("order_id"))
    assert {path.name: path.read_bytes() for path in table.glob("[!_.]*.parquet")} == before


def test_nobody_says_nothing_is_behind_without_knowing(kvitto_broker: HasUrl, publish: Publish) -> None:
    publish(kvitto_broker.url, "q", 0, 10)
    query = SimpleNamespace(lastProgress=None)
    with Behind(kvitto_broker.url, ["q"]) as behind:
        assert behind.text(query) == "10 behind"  # type: ignore[arg-type]
        end = json.dumps({"queues": {"/:q": {"next": 4}}})
        assert behind.count(SimpleNamespace(lastProgress={"sources": [{"endOffset": end}]})) == 6  # type: ignore[arg-type]
    nobody = Behind("amqp://127.0.0.1:1/%2f", ["q"])
    assert nobody.text(query).startswith("how many are behind is not known: amqp://guest@127.0.0.1:1")  # type: ignore[arg-type]


def test_of_messages_with_the_same_id_one_is_landed(spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path) -> None:
    """In the same batch, in a later one, and after the end of a run; those of another queue and those without an id stay."""
    url = kvitto_broker.url
    options: dict[str, Any] = {
        "schema": "order_id INT",
        "available_now": True,
        "drop_duplicates": True,
        "batch_size": 12,
    }

    def landed(*bodies: list[bytes]) -> list[int]:
        for each in bodies:
            send(url, each)
        with Connection(url) as connection:
            channel = connection.channel()
            channel.queue_declare("others", durable=True)
            channel.confirm_select()
            channel.publish(b'{"order_id": 100}', "", "others", Properties(message_id="id-0"))
            channel.publish(b'{"order_id": 101}', "", "others")
            channel.publish(b'{"order_id": 102}', "", "others", Properties(message_id=""))
            channel.wait_for_confirms(30)
        place = (str(tmp_path / "orders.parquet"), str(tmp_path / "checkpoint"))
        land(spark, url, ["orders", "others"], *place, **options)
        return rows(tmp_path / "orders.parquet")

    assert landed(orders(0, 8), orders(0, 8)) == [*range(8), 100, 101, 102]
    assert landed(orders(0, 9), [b"oops"]) == [*range(9), 100, 101, 101, 102, 102]
    assert not (tmp_path / "orders.parquet.bad").exists()
    assert settled(url) == 26


class Killed(Exception):
    """Stands for the end of a driver."""


def test_a_delta_table_has_each_batch_once(spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path) -> None:
    """The driver ends between Delta's commit and Spark's, for a batch with rows and bad records; others append meanwhile."""
    deltalake = pytest.importorskip("deltalake")
    url, to = kvitto_broker.url, tmp_path / "orders"
    send(url, [*orders(0, 50), b"oops"])
    schema = StructType.fromDDL(SCHEMA)
    assert isinstance(schema, StructType)
    target = Target(spark, url, str(to), schema, None, Landed(), format=DELTA)

    def put_and_die(messages: DataFrame, batch: int) -> None:
        target.put(messages, batch)
        raise Killed

    messages = spark.readStream.format("amqp").options(uri=url, queue="orders").schema(MESSAGES).load()
    writer = messages.writeStream.foreachBatch(put_and_die).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(StreamingQueryException, match="Killed"):
        writer.trigger(availableNow=True).start().awaitTermination()
    assert (rows(to), settled(url)) == (list(range(50)), 0)
    whole = deltalake.DeltaTable(to).to_pyarrow_table()
    deltalake.write_deltalake(to, whole.slice(0, 1), mode="append")

    def land_again() -> Landed:
        return land(
            spark,
            url,
            ["orders"],
            str(to),
            str(tmp_path / "checkpoint"),
            format=DELTA,
            schema=SCHEMA,
            available_now=True,
        )

    send(url, orders(50, 60))
    result = land_again()
    assert (result.rows, result.bad, settled(url)) == (60, 1, 61)
    assert rows(to) == [0, *range(60)]
    assert rows(tmp_path / "orders.bad", "offset") == [50]
    table = deltalake.DeltaTable(to)
    assert (table.version(), {str(each.type) for each in table.schema().fields if each.name == "_timestamp"}) == (
        *(3, {'PrimitiveType("timestamp")'}),
    )
    assert str(whole.schema.field("at").type) == "timestamp[us, tz=UTC]"


def test_a_table_of_another_format_or_schema_is_left_alone(
    spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake")
    (tmp_path / "files").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "files" / "a.parquet")
    deltalake.write_deltalake(tmp_path / "delta", pa.table({"order_id": ["text"]}))
    send(kvitto_broker.url, orders(0, 3))

    def refused(to: str, format: str, said: str) -> None:
        place = (to, str(tmp_path / "checkpoint"))
        with pytest.raises((JobError, StreamingQueryException), match=said):
            land(spark, kvitto_broker.url, ["orders"], *place, format=format, schema=SCHEMA, available_now=True)

    refused(str(tmp_path / "files"), "delta", "holds Parquet files and is no Delta table")
    refused(str(tmp_path / "delta"), "parquet", "is a Delta table: land in it with --format delta")
    refused(str(tmp_path / "delta"), "delta", "column order_id as .*string.* has it as .*long")
    refused("s3://bucket/orders", "delta", "a directory that is mounted")
    refused(str(tmp_path / "new"), "csv", "parquet or delta, not 'csv'")
    assert settled(kvitto_broker.url) == 0


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "deltalake", raising=False)
    with pytest.raises(JobError, match=r"package deltalake: pip install 'kvitto\[delta\]'"):
        check("orders")


def test_it_ends_when_nothing_has_come_for_a_while(spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path) -> None:
    send(kvitto_broker.url, orders(0, 10))
    said: list[str] = []
    result = run(
        spark,
        kvitto_broker.url,
        tmp_path,
        available_now=False,
        trigger_s=0.1,
        stop_after_idle_s=0.3,
        progress=said.append,
    )
    assert (result.rows, result.lag, settled(kvitto_broker.url)) == (10, 0, 10)
    assert any("10 landed, 0 bad" in text for text in said)


def test_what_cannot_be_done_is_said(spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path) -> None:
    send(kvitto_broker.url, [])
    with pytest.raises(JobError, match=r"no messages yet.*--schema"):
        run(spark, kvitto_broker.url, tmp_path, schema=None)
    for schema, said in (("order_id BIGINTT", "not like"), ("_offset INT", "'_offset'"), ("INT", "one type")):
        with pytest.raises(JobError, match=said):
            run(spark, kvitto_broker.url, tmp_path, schema=schema)


def test_nothing_is_lost_or_doubled_by_a_killed_driver(
    broker_process: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2, exactly once: SIGKILL in the middle, the same command again, by the command line; into Delta, Parquet is test_flights's."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JVM)
    url = broker_process.url
    table, total = tmp_path / "orders", 3000
    format = DELTA if importlib.util.find_spec("deltalake") else PARQUET
    bodies = orders(0, total)
    bad = set(range(50, total, 100))
    for n in bad:
        bodies[n] = b"{oops %d" % n
    send(url, bodies)
    command = ["kvitto.cli.main", "pipeline", "land", "--uri", url, "--master", "local[2]", "--queue", "orders"]
    command += ["--to", str(table), "--checkpoint", str(tmp_path / "checkpoint"), "--schema", SCHEMA]
    command += ["--batch-size", "1000", "--format", format]
    first = Child("land", [*command, "--trigger", "0s"], tmp_path / "land.log")
    try:
        wait_until(lambda: len(rows(table)) > 1000, 200, first.log.read_text(errors="replace"))
    finally:
        first.kill()
    assert settled(url) < total
    again = Child("land", [*command, "--available-now"], tmp_path / "again.log")
    try:
        code = again.process.wait(200)
    finally:
        again.kill()
    said = "\n".join(again.take())
    assert code == 1, (tmp_path / "again.log").read_text()
    assert "bad" in said and "lag         0 messages" in said, said
    assert not tracebacks((tmp_path / "again.log").read_text())
    assert rows(table) == sorted(set(range(total)) - bad)
    assert rows(tmp_path / "orders.bad", "offset") == sorted(bad)
    assert settled(url) == total


def test_errors_are_one_line_and_exit_code_2(
    spark: SparkSession, kvitto_broker: HasUrl, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pipeline", "land", "--queue", "nothing", "--to", str(tmp_path / "t"), "--uri", kvitto_broker.url]
    command += ["--checkpoint", str(tmp_path / "c"), "--schema", "a INT", "--available-now"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "kvitto pipeline land: queue 'nothing'" in said and "declare the queue first" in said, said
