"""Read mode `staged` without the weight of a Spark: what is on disk before the ack, and what comes again after a crash."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from benchmarks import kills
from kvitto.client import Batch, Connection, Properties
from kvitto.spark import staged, staging
from kvitto.spark.errors import DataLossError, SourceError
from kvitto.spark.offsets import Offsets
from kvitto.spark.options import Options, read_options
from kvitto.spark.reading import FilesPartition
from kvitto.spark.schema import full_schema
from kvitto.spark.staged import StagedDriver, read_files
from kvitto.spark.staging import Shelf, Staging, raw

from .conftest import BrokerProcess, HasUrl, Publish

ID = StructType([full_schema(False)["message_id"]])
IDS = [f"id-{n}" for n in range(1000)]


_drivers: list[StagedDriver] = []


@pytest.fixture(autouse=True)
def _closed(request: pytest.FixtureRequest) -> Iterator[None]:
    for name in {"any_broker", "kvitto_broker"} & set(request.fixturenames):
        request.getfixturevalue(name)  # first, so that it ends last: it waits for those who are connected
    yield
    while _drivers:
        _drivers.pop().close()


def driver_of(given: Options) -> StagedDriver:
    _drivers.append(StagedDriver(given))
    return _drivers[-1]


def options(url: str, queue: str, place: Path, **given: str) -> Options:
    return read_options(
        {"uri": url, "queue": queue, "readMode": "staged", "stagingLocation": f"file://{place}/staging", **given}
    )


def ids_of(given: Options, parts: list[FilesPartition]) -> list[str]:
    return [name for part in parts for piece in read_files(given, ID, part) for name in piece.column(0).to_pylist()]


def waiting(url: str, queue: str) -> int:
    with Connection(url) as connection:
        return connection.channel().queue_declare(queue, passive=True).message_count


def files(place: Path) -> list[str]:
    return sorted(file.name for file in place.glob("staging/queue-*/*.arrow"))


def receive(connection: Connection, queue: str, count: int) -> Batch:
    channel = connection.channel()
    channel.qos(count)
    channel.consume(queue)
    batch = channel.receive(10, least=count)
    assert batch.count == count
    return batch


def all_of(driver: StagedDriver, given: Options, start: Offsets) -> tuple[Offsets, list[str]]:
    end = driver.advance(start, 0)
    return end, ids_of(given, driver.plan(start, end))


def test_messages_are_staged_acked_read_and_deleted(
    any_broker: str, queue: str, publish: Publish, tmp_path: Path
) -> None:
    publish(any_broker, queue, 0, 1000)
    given = options(any_broker, queue, tmp_path)
    driver = driver_of(given)
    begin = driver.begin()
    end = driver.advance(begin, 0)
    parts = driver.plan(begin, end)
    assert ids_of(given, parts) == ids_of(given, parts) == IDS
    assert waiting(any_broker, queue) == 0
    assert files(tmp_path)
    assert driver.advance(end, 0) == end
    assert files(tmp_path) == []
    driver.close()
    assert waiting(any_broker, queue) == 0


def test_all_columns_come_out_of_a_staged_file(kvitto_broker: HasUrl, publish: Publish, tmp_path: Path) -> None:
    publish(kvitto_broker.url, "q", 0, 3)
    given = options(kvitto_broker.url, "q", tmp_path, includeHeaders="true")
    driver = driver_of(given)
    begin = driver.begin()
    (part,) = driver.plan(begin, driver.advance(begin, 0))
    (piece,) = read_files(given, full_schema(True), part)
    row = piece.to_pylist()[2]
    assert (row["body"], row["queue"], row["offset"], row["routing_key"]) == (b"message 2", "q", 2, "q")
    assert (row["message_id"], row["headers"], row["redelivered"]) == ("id-2", [("n", "2")], False)


def test_a_crash_between_file_and_ack_doubles_nothing(
    any_broker: str, queue: str, publish: Publish, tmp_path: Path
) -> None:
    """The file is there, the ack never went out: the broker sends the same messages again, flagged."""
    publish(any_broker, queue, 0, 1000)
    given = options(any_broker, queue, tmp_path)
    with Connection(any_broker) as connection:
        place = Staging(given.staging)
        place.shelf(queue).add([raw(receive(connection, queue, 400))])
        place.close()
    driver = driver_of(given)
    end, first = all_of(driver, given, driver.begin())
    assert first == IDS[:400]
    _, second = all_of(driver, given, end)
    assert second == IDS[400:]
    driver.close()
    assert waiting(any_broker, queue) == 0


def test_what_was_acked_before_spark_noted_it_is_the_next_batch(
    any_broker: str, queue: str, publish: Publish, tmp_path: Path
) -> None:
    publish(any_broker, queue, 0, 1000)
    given = options(any_broker, queue, tmp_path)
    driver = driver_of(given)
    driver.advance(driver.begin(), 0)  # and its answer never reaches Spark
    driver.close()
    assert waiting(any_broker, queue) == 0
    again = driver_of(given)
    assert all_of(again, given, again.begin())[1] == IDS


def test_a_batch_can_be_planned_again_after_a_crash(
    any_broker: str, queue: str, publish: Publish, tmp_path: Path
) -> None:
    publish(any_broker, queue, 0, 1000)
    given = options(any_broker, queue, tmp_path)
    driver = driver_of(given)
    end = driver.advance(driver.begin(), 300)
    driver.close()
    again = driver_of(given)
    assert ids_of(given, again.plan(again.begin(), end)) == IDS[:300]
    last = again.advance(end, 0)
    assert ids_of(given, again.plan(end, last)) == IDS[300:]


def test_settled_messages_that_come_again_are_known_after_a_restart(
    any_broker: str, queue: str, publish: Publish, tmp_path: Path
) -> None:
    """The ack was on its way when the connection broke, and Spark had committed by then."""
    publish(any_broker, queue, 0, 1000)
    given = options(any_broker, queue, tmp_path)
    with Connection(any_broker) as connection:
        place = Staging(given.staging)
        shelf = place.shelf(queue)
        shelf.add([raw(receive(connection, queue, 400))])
        shelf.settle(1)
        place.close()
    assert files(tmp_path) == []
    driver = driver_of(given)
    assert all_of(driver, given, driver.begin())[1] == IDS[400:]


def test_without_ids_what_comes_again_is_read_again(any_broker: str, queue: str, tmp_path: Path) -> None:
    """At least once: nothing tells two messages apart."""
    given = options(any_broker, queue, tmp_path)
    with Connection(any_broker) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_select()
        for _ in range(10):
            channel.publish(b"the same", routing_key=queue)
        channel.wait_for_confirms(10)
    with Connection(any_broker) as connection:
        place = Staging(given.staging)
        place.shelf(queue).add([raw(receive(connection, queue, 4))])
        place.close()
    driver = driver_of(given)
    end, first = all_of(driver, given, driver.begin())
    assert len(first) + len(all_of(driver, given, end)[1]) == 14


def test_remembered_ids_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "REMEMBERED", 10)
    shelf = Shelf(tmp_path / "shelf")
    for n in range(0, 100, 5):
        shelf.add([raw(batch_of([f"id-{k}" for k in range(n, n + 5)]))])
        shelf.settle(shelf.next)
    again = Shelf(tmp_path / "shelf")
    assert len(again._known) == 10
    fresh = again.fresh(raw(batch_of(["id-99", "id-0", "id-90"], redelivered=True)))
    assert fresh.column("message_id").to_pylist() == [b"id-0"]


def test_an_empty_id_is_none(tmp_path: Path) -> None:
    """Two messages that have it are two messages."""
    shelf = Shelf(tmp_path / "shelf")
    shelf.add([raw(batch_of(["", "id-0"]))])
    fresh = shelf.fresh(raw(batch_of(["", "id-0"], redelivered=True)))
    assert fresh.column("message_id").to_pylist() == [b""]


def batch_of(ids: list[str], *, redelivered: bool = False) -> Batch:
    batch = Batch()
    for tag, name in enumerate(ids, 1):
        batch.tags.add(tag.to_bytes(8, "little"))
        batch.flags.add(bytes([redelivered]))
        fields = [(batch.exchanges, b""), (batch.routing_keys, b"q"), (batch.bodies, b"")]
        for column, value in [*fields, (batch.properties, Properties(message_id=name).encode())]:
            column.data.add(value)
            column.ends.add(column.data.n.to_bytes(4, "little"))
        batch.count += 1
    return batch


def test_a_torn_file_is_no_file(tmp_path: Path) -> None:
    """The machine died while it was written: it was not acked, so it comes again."""
    shelf = Shelf(tmp_path / "shelf")
    shelf.add([raw(batch_of(["id-0"]))])
    shelf.file(1).with_suffix(".arrow.tmp").write_bytes(b"half")
    again = Shelf(tmp_path / "shelf")
    assert (again.files, again.next) == ([0], 1)
    assert [file.name for file in again.directory.iterdir()] == [shelf.file(0).name]


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "100"}, {"maxBytesPerTrigger": "16k"}])
def test_a_batch_is_no_larger_than_allowed(
    limit: dict[str, str], any_broker: str, queue: str, publish: Publish, tmp_path: Path
) -> None:
    publish(any_broker, queue, 0, 1000)
    given = options(any_broker, queue, tmp_path, **limit)
    driver = driver_of(given)
    start = driver.begin()
    sizes: list[int] = []
    while sum(sizes) < 1000:
        end = driver.advance(start, given.max_offsets_per_trigger, given.max_bytes_per_trigger)
        sizes.append(len(ids_of(given, driver.plan(start, end))))
        start = end
    if given.max_offsets_per_trigger:
        assert sizes == [100] * 10
    assert sum(sizes) == 1000


def test_available_now_has_an_end(any_broker: str, queue: str, publish: Publish, tmp_path: Path) -> None:
    publish(any_broker, queue, 0, 1000)
    given = options(any_broker, queue, tmp_path)
    driver = driver_of(given)
    driver.fix_target()
    publish(any_broker, queue, 1000, 1500)
    end, names = all_of(driver, given, driver.begin())
    assert names == IDS
    assert driver.advance(end, 0) == end
    driver.close()
    assert waiting(any_broker, queue) == 500


def test_several_queues_are_one_source(any_broker: str, queue: str, publish: Publish, tmp_path: Path) -> None:
    publish(any_broker, queue, 0, 100)
    publish(any_broker, f"{queue}/2", 100, 150)
    given = read_options(
        {"uri": any_broker, "queues": f"{queue},{queue}/2", "readMode": "staged", "stagingLocation": str(tmp_path)}
    )
    driver = driver_of(given)
    assert all_of(driver, given, driver.begin())[1] == IDS[:150]


def test_a_report_says_what_waits(any_broker: str, queue: str, publish: Publish, tmp_path: Path) -> None:
    publish(any_broker, queue, 0, 10)
    driver = driver_of(options(any_broker, queue, tmp_path))
    end = driver.advance(driver.begin(), 4)
    assert driver.latest is not None
    assert driver.latest.to_json("/") == {**end.to_json("/"), "waiting": {f"/:{queue}": 6}}


def test_staging_goes_on_over_a_kill_of_the_broker(
    broker_process: BrokerProcess, publish: Publish, tmp_path: Path
) -> None:
    publish(broker_process.url, "q", 0, 1000)
    given = options(broker_process.url, "q", tmp_path)
    driver = driver_of(given)
    start = driver.begin()
    end = driver.advance(start, 300)
    names = ids_of(given, driver.plan(start, end))
    broker_process.kill()
    broker_process.start()
    while len(names) < 1000:
        start, end = end, driver.advance(end, 0)
        names += ids_of(given, driver.plan(start, end))
    assert names == IDS


def test_a_broker_that_stays_away_ends_the_query(
    broker_process: BrokerProcess, publish: Publish, tmp_path: Path
) -> None:
    publish(broker_process.url, "q", 0, 10)
    driver = driver_of(options(broker_process.url, "q", tmp_path, reconnectTimeout="200ms"))
    begin = driver.begin()
    broker_process.kill()
    with pytest.raises(SourceError, match="reconnectTimeout"):
        driver.advance(begin, 0)


def test_two_queries_do_not_share_a_directory(
    kvitto_broker: HasUrl, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "LOCK_S", 0.2)
    publish(kvitto_broker.url, "q", 0, 10)
    one = driver_of(options(kvitto_broker.url, "q", tmp_path))
    one.begin()
    with pytest.raises(SourceError, match="another query that is running"):
        driver_of(options(kvitto_broker.url, "q", tmp_path)).begin()
    one.close()
    driver_of(options(kvitto_broker.url, "q", tmp_path)).begin()


def test_a_deleted_queue_is_data_loss(any_broker: str, queue: str, publish: Publish, tmp_path: Path) -> None:
    publish(any_broker, queue, 0, 10)
    driver = driver_of(options(any_broker, queue, tmp_path))
    end = driver.advance(driver.begin(), 0)
    with Connection(any_broker) as connection:
        connection.channel().queue_delete(queue)
    with pytest.raises(DataLossError, match="was deleted while this query read it"):
        driver.advance(end, 0)
    with pytest.raises(SourceError, match="declare the queue first"):
        driver.advance(end, 0)


def test_without_fail_on_data_loss_the_new_queue_is_read(
    any_broker: str, queue: str, publish: Publish, tmp_path: Path
) -> None:
    publish(any_broker, queue, 0, 10)
    given = options(any_broker, queue, tmp_path, failOnDataLoss="false")
    driver = driver_of(given)
    end = driver.advance(driver.begin(), 0)
    with Connection(any_broker) as connection:
        connection.channel().queue_delete(queue)
    publish(any_broker, queue, 10, 20)
    assert all_of(driver, given, end)[1] == IDS[10:20]


def test_another_staging_directory_is_data_loss(kvitto_broker: HasUrl, publish: Publish, tmp_path: Path) -> None:
    publish(kvitto_broker.url, "q", 0, 10)
    driver = driver_of(options(kvitto_broker.url, "q", tmp_path))
    begin = driver.begin()
    end = driver.advance(begin, 0)
    driver.close()
    other = driver_of(options(kvitto_broker.url, "q", tmp_path / "other"))
    with pytest.raises(DataLossError, match="lacks the files 0 to 0"):
        other.plan(begin, end)
    with pytest.raises(DataLossError, match="another directory than the one of this checkpoint"):
        other.advance(end, 0)
    publish(kvitto_broker.url, "q", 10, 20)
    other.advance(other.begin(), 0)
    with pytest.raises(DataLossError, match="or they are another query's"):
        other.plan(begin, end)


def test_what_cannot_be_is_told(kvitto_broker: HasUrl, publish: Publish, tmp_path: Path) -> None:
    url = kvitto_broker.url
    with pytest.raises(SourceError, match="declare the queue first"):
        driver_of(options(url, "nothing", tmp_path)).begin()
    publish(url, "q", 0, 10)
    with pytest.raises(SourceError, match="check user and password"):
        driver_of(options(url.replace("guest:guest", "guest:wrong"), "q", tmp_path / "1")).begin()
    with pytest.raises(SourceError, match="leave out startingOffsets"):
        driver_of(options(url, "q", tmp_path / "2", startingOffsets="latest")).begin()
    with pytest.raises(SourceError, match="availableNow"):
        driver_of(options(url, "q", tmp_path / "3")).plan_once()
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=r"stagingLocation: .*Make room or give the permission"):
        driver_of(options(url, "q", tmp_path / "file")).begin()
    part = FilesPartition("q", [(0, f"{tmp_path}/nowhere.arrow")])
    with pytest.raises(SourceError, match="every executor has to see"):
        ids_of(options(url, "q", tmp_path), [part])


def test_a_file_is_no_larger_than_what_may_be_unacked(
    kvitto_broker: HasUrl, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "PREFETCH", 100)
    publish(kvitto_broker.url, "q", 0, 1000)
    given = options(kvitto_broker.url, "q", tmp_path)
    driver = driver_of(given)
    assert all_of(driver, given, driver.begin())[1] == IDS
    assert len(files(tmp_path)) == 10


def test_kills_lose_and_double_nothing(rabbitmq: str, tmp_path: Path) -> None:
    """In Spark's order without its weight. The long form, and the one with Spark, is `python -m benchmarks.kills`."""
    count = kills.run(rabbitmq, tmp_path, 3, 2000, spark=False)
    assert (count.lost, count.doubled) == (0, 0), count
    assert count.rows == count.published > 0
