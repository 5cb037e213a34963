"""Segments and settlement logs written by the store, read by the archive's own reader, without Spark or a broker."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual
from pyspark.sql.types import StringType, StructField, StructType

from kvitto.format.settlement import ACKED, DEAD_LETTERED, DROPPED, EXPIRED, IN_DOUBT, RANGE_SETTLED, REJECTED
from kvitto.spark.archive import segment
from kvitto.spark.archive.files import ArchiveError
from kvitto.spark.archive.options import read_options
from kvitto.spark.archive.schema import full_schema
from kvitto.spark.archive.source import ArchiveDataSource, ArchiveReader, FilteringReader, limit
from kvitto.spark.errors import OptionError, SourceError
from kvitto.store.settlements import Settlements
from kvitto.wire.properties import Properties
from tests.store.logs import DIRECTORY, QUEUE, LogHarness, batch_of, forged
from tests.support.harness import BrokerHarness
from tests.support.simdisk import SimDisk

NAMES = {"vhost": "/", "queue": "orders", "id": QUEUE, "arguments": {}}
SEGMENT = f"{0:020d}.log"
LOG = f"{0:020d}.ack"


def dump(disk: SimDisk, data: Path, to: str = DIRECTORY) -> Path:
    """The queue's directory as it is on that disk, under `data`; returns it."""
    directory = data / to
    directory.mkdir(parents=True, exist_ok=True)
    for path, content in disk.files().items():
        if path.startswith(DIRECTORY + "/"):
            (directory / path.removeprefix(DIRECTORY + "/")).write_bytes(content)
    (directory / "queue.json").write_text(json.dumps(NAMES))
    return directory


def read(data: Path, *names: str, **given: str) -> list[dict[str, Any]]:
    """All rows of these columns (or of all), as the reader hands them to Spark."""
    options = read_options({"path": str(data), **given})
    schema = StructType([field for field in full_schema(options) if not names or field.name in names])
    reader = ArchiveReader(options, schema)
    rows: list[dict[str, Any]] = []
    for part in reader.partitions():
        for batch in reader.read(part):
            batch.validate(full=True)
            assert isinstance(batch, pa.RecordBatch) and batch.schema.names == schema.names
            rows += batch.to_pylist()
    return rows


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


@contextmanager
def small_chunks(size: int) -> Iterator[None]:
    """As if files were larger than what is read at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "CHUNK_BYTES", size)
        patch.setattr(segment, "ALONE_BYTES", size // 4)
        yield


BODIES = st.lists(st.binary(max_size=60), min_size=1, max_size=6)
SETTLE = st.tuples(
    st.lists(st.integers(0, 40), min_size=1, max_size=4, unique=True),
    st.sampled_from([ACKED, REJECTED, DEAD_LETTERED, EXPIRED, DROPPED, RANGE_SETTLED]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), BODIES),
        st.tuples(st.just("settle"), SETTLE),
        st.tuples(st.just("skip"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["sync", "seal", "again"]), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=60)
@given(STEPS, st.sampled_from([100, 300, 1 << 20]), st.booleans())
def test_what_the_store_wrote_is_read(steps: list[tuple[str, Any]], chunk: int, reserving: bool) -> None:
    """Every message that a segment holds, with what its settlement log says: whatever the batches and the sizes of reads."""
    harness = LogHarness(SimDisk(reserving=reserving))
    written: dict[int, bytes] = {}
    settled: dict[int, tuple[int, int]] = {}
    for step, value in steps:
        harness.clock.advance(1)
        now = harness.clock.now_ms()
        if step == "write":
            first = harness.write(*value)
            written |= {first + k: body for k, body in enumerate(value)}
        elif step == "settle" and any(o in written and o not in settled for o in value[0]):
            chosen = sorted(o for o in value[0] if o in written and o not in settled)
            harness.settle(*chosen, mark=max(chosen) + 1, outcome=value[1])
            settled |= dict.fromkeys(chosen, (value[1], now))
        elif step == "skip":
            harness.log.skip(harness.log.next, value)
            harness.log.next += value
        elif step == "sync":
            harness.settle_down()
        elif step == "seal" and harness.log.segments and not harness.log.segments[-1].full:
            harness.log.fill(harness.log.segments[-1])
            harness.settle_down()
        elif step == "again":
            harness.kill()
    names = ("acked", "rejected", "dead-lettered", "expired", "dropped", "", "range-settled")
    with TemporaryDirectory() as directory, small_chunks(chunk):
        data = Path(directory)
        dump(harness.disk, data)
        rows = read(data, "offset", "body", "outcome", "settled", "queue_id")
        found = {row["offset"]: row for row in rows}
        assert [row["offset"] for row in rows] == sorted(found)
        # a sealed segment that is settled completely is gone; what is there is whole
        assert set(found) <= set(written) and {o for o in written if o not in settled} <= set(found)
        for offset, row in found.items():
            outcome = settled.get(offset)
            assert row["body"] == written[offset]
            assert row["outcome"] == (names[outcome[0] - 1] if outcome else None)
            assert row["settled"] == (at(outcome[1]) if outcome else None)
            assert row["queue_id"] == QUEUE
        rows = read(data, "offset", "count", table="settlements")
        assert {o for row in rows for o in range(row["offset"], row["offset"] + row["count"])} >= settled.keys() & set(
            found
        )


def test_all_columns_of_a_message(tmp_path: Path) -> None:
    harness = BrokerHarness()
    harness.declare("orders")
    properties = Properties(message_id="m-1", priority=3, timestamp=1_700_000_000, headers={"a": 1})
    harness.queue("orders").append_bytes(b"\4logs\5k.\xc3\xbcx", properties.encode(), b"one", -1, 0)
    harness.queue("orders").append_bytes(b"\0\0", b"\0\0", b"", 60_000, 2)
    published = harness.clock.now_ms()
    harness.settle_down()
    directory = f"queues/{harness.queue('orders').log.queue_id}"
    for path, content in harness.disk.files().items():
        if path.startswith(directory):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(content)
    (tmp_path / directory / "queue.json").write_text(json.dumps(NAMES | {"id": directory[7:]}))
    first, second = read(tmp_path, includeHeaders="true")
    assert first == {
        "vhost": "/",
        "queue": "orders",
        "queue_id": directory[7:],
        "offset": 0,
        "published": at(published),
        "exchange": "logs",
        "routing_key": "k.üx",
        "body": b"one",
        "timestamp": at(1_700_000_000_000),
        **dict.fromkeys(("correlation_id", "content_type", "content_encoding", "expiration", "type", "user_id")),
        "app_id": None,
        "reply_to": None,
        "message_id": "m-1",
        "priority": 3,
        "headers": [("a", "1")],
        "outcome": None,
        "settled": None,
        "deliveries": 0,
        "dead_letter": False,
    }
    assert (second["body"], second["routing_key"], second["dead_letter"], second["headers"]) == (b"", "", True, None)


def test_how_often_a_message_was_delivered(tmp_path: Path) -> None:
    """The mark counts one delivery of all below it, a record of its own every further one (adr/0006)."""
    harness = LogHarness()
    harness.write(*[b"m"] * 9)
    harness.redeliver(1, 2)
    harness.redeliver(1, 3)
    harness.redeliver(2, 2)
    harness.settle(0, 1, mark=6)
    harness.settle(3, outcome=DROPPED, mark=6)
    harness.settle(4, outcome=RANGE_SETTLED, mark=6)
    doubt = Settlements()
    doubt.add(8, 1, IN_DOUBT, 0)
    harness.log.settle(doubt, 6)
    dump(harness.disk, tmp_path)
    counts = {row["offset"]: row["deliveries"] for row in read(tmp_path, "offset", "deliveries")}
    assert counts == {0: 1, 1: 3, 2: 2, 3: 0, 4: 0, 5: 1, 6: 0, 7: 0, 8: 0}
    assert [row["outcome"] for row in read(tmp_path, "outcome", table="settlements")].count("redelivered") == 3
    assert "in doubt" in {row["outcome"] for row in read(tmp_path, "outcome", table="settlements")}


def test_the_mark_may_be_in_the_log_of_a_later_segment(tmp_path: Path) -> None:
    harness = LogHarness()
    harness.write(b"a", b"b")
    harness.log.fill(harness.log.segments[-1])
    harness.settle_down()
    harness.write(b"c", b"d")
    harness.settle(2, mark=3)
    dump(harness.disk, tmp_path)
    assert [row["deliveries"] for row in read(tmp_path, "deliveries")] == [1, 1, 1, 0]


def test_room_ahead_and_half_a_batch_are_the_end_of_a_live_segment(tmp_path: Path) -> None:
    """D3: what is being written while it is read is not there yet, and no error."""
    harness = LogHarness(SimDisk(reserving=True))
    harness.write(b"one", b"two")
    harness.sync()
    directory = dump(harness.disk, tmp_path)
    whole = (directory / SEGMENT).read_bytes()
    size = harness.log.segments[-1].size
    assert whole[size:].strip(b"\0") == b"" and len(whole) > size
    assert len(read(tmp_path)) == 2
    salt = harness.log.segments[-1].salt
    batch = forged(2, b"x" * 300, b"y", salt=salt)
    for n in range(0, len(batch), 17):
        (directory / SEGMENT).write_bytes(whole[:size] + batch[:n] + whole[size + n :])
        assert len(read(tmp_path)) == 2
        (directory / SEGMENT).write_bytes(whole[:size] + batch[:n])
        assert len(read(tmp_path)) == 2
    (directory / SEGMENT).write_bytes(whole[:size] + batch)
    assert len(read(tmp_path)) == 4
    for n in (0, 8, 40, 71):
        (directory / SEGMENT).write_bytes(bytes(n))
        assert read(tmp_path) == []


def flipped(data: bytes, *positions: int) -> bytes:
    """With one bit of the bytes there another."""
    changed = bytearray(data)
    for position in positions:
        changed[position] ^= 1
    return bytes(changed)


def sealed(tmp_path: Path, place: str = DIRECTORY) -> tuple[Path, LogHarness]:
    """A sealed segment of five batches in a queue's directory."""
    harness = LogHarness()
    for k in range(5):
        harness.write(b"body %d" % k, b"more %d" % k)
    harness.settle(0)
    harness.log.fill(harness.log.segments[-1])
    harness.settle_down()
    return dump(harness.disk, tmp_path, place), harness


@pytest.mark.parametrize("place", [DIRECTORY, f"archive/{QUEUE}"])
def test_damage_in_a_sealed_segment_is_an_error_or_left_out(place: str, tmp_path: Path) -> None:
    """D3: wherever a bit is wrong. With ignoreDamage, all that is whole is read, and nothing else."""
    directory, _ = sealed(tmp_path, place)
    path = directory / SEGMENT
    good = path.read_bytes()
    rng = Random(4)
    seen: set[int] = set()
    everything = [(row["offset"], row["body"]) for row in read(tmp_path, "offset", "body")]
    assert len(everything) == 10
    for position in [*range(0, 72, 9), *rng.sample(range(72, len(good)), 40)]:
        bad = bytearray(good)
        bad[position] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        if position in range(64, 72) or (position > len(good) - 100 and place == DIRECTORY):
            continue  # the copy of the salt; a live segment whose footer is wrong is read as one without
        try:
            read(tmp_path, "offset", "body")
        except ArchiveError as error:
            assert SEGMENT in str(error) and "ignoreDamage" in str(error)
        else:
            pytest.fail(f"a wrong bit at {position} was not found")
        rows = [(row["offset"], row["body"]) for row in read(tmp_path, "offset", "body", ignoreDamage="true")]
        assert rows == [pair for pair in everything if pair in rows] and len(rows) >= 8
        seen.add(len(rows))
    assert seen == {8, 10}


def test_damage_before_what_was_synced_is_no_torn_end(tmp_path: Path) -> None:
    harness = LogHarness()
    harness.write(b"a" * 50)
    harness.write(b"b" * 50)
    harness.sync()
    harness.write(b"c" * 50)
    directory = dump(harness.disk, tmp_path)
    path = directory / SEGMENT
    good = path.read_bytes()
    path.write_bytes(good.replace(b"b" * 50, b"?" * 50))
    with pytest.raises(ArchiveError, match="no batch begins at byte"):
        read(tmp_path)
    assert [row["body"][:1] for row in read(tmp_path, "body", ignoreDamage="true")] == [b"a", b"c"]
    path.write_bytes(good.replace(b"c" * 50, b"?" * 50))
    assert [row["body"][:1] for row in read(tmp_path, "body")] == [b"a", b"b"]


def test_a_body_cannot_pose_as_a_batch(tmp_path: Path) -> None:
    harness = LogHarness()
    harness.write(b"first")
    harness.write(b"..." + forged(7, b"posing", durable=1 << 40) * 3)
    harness.sync()
    harness.write(b"last")
    directory = dump(harness.disk, tmp_path)
    path = directory / SEGMENT
    path.write_bytes(path.read_bytes().replace(b"...", b"?.."))
    assert [row["body"] for row in read(tmp_path, "body", ignoreDamage="true")] == [b"first", b"last"]


def test_damaged_settlements(tmp_path: Path) -> None:
    directory, harness = sealed(tmp_path, f"archive/{QUEUE}")
    path = directory / LOG
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArchiveError, match="settlements at byte 72 are damaged"):
        read(tmp_path, "outcome")
    assert {row["outcome"] for row in read(tmp_path, "outcome", ignoreDamage="true")} == {None}
    assert len(read(tmp_path, "body")) == 10
    path.unlink()
    with pytest.raises(ArchiveError, match="missing"):
        read(tmp_path, "outcome")
    live = dump(harness.disk, tmp_path / "live")
    (live / LOG).write_bytes((live / LOG).read_bytes()[:-1])
    assert {row["outcome"] for row in read(tmp_path / "live", "outcome")} == {None}


def test_what_is_settled_twice_counts_once(tmp_path: Path) -> None:
    harness = LogHarness()
    harness.write(*[b"m"] * 8)
    for offsets, outcome in (((0, 1, 2, 3), ACKED), ((2, 3, 4), REJECTED), ((3,), EXPIRED)):
        pending = Settlements()
        for offset in offsets:
            pending.add(offset, 1, outcome, 0)
        harness.log.settle(pending, 8)
    dump(harness.disk, tmp_path)
    assert [row["outcome"] for row in read(tmp_path, "outcome")] == [*["acked"] * 4, "rejected", None, None, None]


def test_of_two_copies_one_is_read_and_what_moves_is_found(tmp_path: Path) -> None:
    """The move into the archive, seen at each of its steps."""
    live, harness = sealed(tmp_path)
    assert len(read(tmp_path)) == 10
    archived = dump(harness.disk, tmp_path, f"archive/{QUEUE}")
    assert len(read(tmp_path)) == 10
    options = read_options({"path": str(tmp_path)})
    (archived / SEGMENT).rename(archived / "later")
    (archived / LOG).rename(archived / "later.ack")
    reader = ArchiveReader(options, full_schema(options))
    (planned,) = reader.partitions()  # while it was live
    (archived / "later").rename(archived / SEGMENT)
    (archived / "later.ack").rename(archived / LOG)
    (live / SEGMENT).unlink()
    (live / LOG).unlink()
    assert sum(batch.num_rows for batch in reader.read(planned)) == 10
    assert len(read(tmp_path)) == len(read(tmp_path / "archive")) == 10
    (archived / SEGMENT).unlink()
    (archived / LOG).unlink()
    with pytest.raises(ArchiveError, match="gone since the read began"):
        list(reader.read(planned))


def test_only_queues_with_an_archive_are_read(tmp_path: Path) -> None:
    directory, harness = sealed(tmp_path)
    (directory / "queue.json").unlink()
    assert read(tmp_path) == []
    archived = dump(harness.disk, tmp_path, f"archive/{QUEUE}")
    (archived / "queue.json").write_text("{")
    with pytest.raises(ArchiveError, match=r"queue\.json is damaged"):
        read(tmp_path)
    (archived / "queue.json").unlink()
    with pytest.raises(ArchiveError, match=r"no queue\.json"):
        read(tmp_path)


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="neither a broker's data directory"):
        read(tmp_path)
    with pytest.raises(ArchiveError, match="there is no directory"):
        read(tmp_path / "missing")


def test_reading_by_time_and_name(tmp_path: Path) -> None:
    """Whole segments are left out by the header of the next one, the rest batch by batch."""
    harness = LogHarness()
    hour = 3_600_000
    for hours in range(4):
        for _ in range(2):
            batch = batch_of(b"%d" % hours)
            batch.first, batch.time_ms = harness.log.next, harness.clock.now_ms()
            harness.log.write(batch)
            harness.settle(batch.first)
            harness.clock.advance(1800)
        harness.log.fill(harness.log.segments[-1]) if hours < 3 else None
    start = harness.clock.now_ms() - 4 * hour
    dump(harness.disk, tmp_path)

    def bodies(**given: str) -> list[bytes]:
        return [row["body"] for row in read(tmp_path, "body", **given)]

    def segments(**given: int) -> int:
        options = read_options({"path": str(tmp_path)} | {name: str(value) for name, value in given.items()})
        parts: list[Any] = list(ArchiveReader(options, full_schema(options)).partitions())
        return sum(len(part.segments) for part in parts)

    assert bodies() == [b"0", b"0", b"1", b"1", b"2", b"2", b"3", b"3"]
    assert bodies(startingTimestamp=str(start + hour), endingTimestamp=str(start + 3 * hour)) == [
        b"1",
        b"1",
        b"2",
        b"2",
    ]
    assert bodies(startingTimestamp=at(start + hour // 2).isoformat(), endingTimestamp=str(start + hour)) == [b"0"]
    assert bodies(endingTimestamp=str(start)) == bodies(startingTimestamp=str(start + 4 * hour)) == []
    assert (
        segments(startingTimestamp=start + 2 * hour) == 3
    )  # the one before ends where the next began, or a little later
    assert segments(endingTimestamp=start + hour // 2) == 1
    assert bodies(queue="orders") == bodies() and bodies(queue="others") == []
    settled = read(tmp_path, "offset", table="settlements", startingTimestamp=str(start + 3 * hour))
    assert [row["offset"] for row in settled] == [6, 7]


def test_filters_limit_what_is_read() -> None:
    options = read_options({"path": "x", "pushFilters": "true", "queue": "a"})
    reader = ArchiveDataSource({"path": "x", "pushFilters": "true", "queue": "a"}).reader(full_schema(options))
    assert isinstance(reader, FilteringReader)
    conditions = [
        In(("queue",), ("a", "b")),
        EqualTo(("vhost",), "/"),
        GreaterThan(("published",), at(1000)),
        LessThanOrEqual(("published",), at(2000)),
        EqualTo(("body",), b"x"),
        EqualTo(("queue",), None),
    ]
    assert list(reader.pushFilters(conditions)) == conditions  # Spark applies them once more
    bounds = reader.bounds
    assert (bounds.vhosts, bounds.start_ms, bounds.end_ms) == (frozenset("/"), 1000, 2001)
    assert bounds.queues == frozenset()  # nothing is equal to null
    assert limit(bounds, GreaterThan(("settled",), at(5000)), "published") == bounds


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, r"say what to read: \.load\(DIR\)"),
        ({"path": "x", "tabel": "messages"}, "did you mean 'table'"),
        ({"path": "x", "table": "queues"}, "messages or settlements"),
        ({"path": "x", "ignoreDamage": "yes"}, "true or false"),
        ({"path": "s3://bucket/x"}, "local or mounted"),
        ({"path": "x", "startingTimestamp": "noon"}, "2026-03-01T12:00:00Z"),
        ({"path": "x", "startingTimestamp": "2", "endingTimestamp": "1"}, "after endingTimestamp"),
    ],
)
def test_an_option_that_cannot_be_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        ArchiveDataSource(given)


def test_a_schema_that_cannot_be_is_refused() -> None:
    source = ArchiveDataSource({"path": "x"})
    for name, said in (("ofset", "did you mean 'offset'"), ("headers", "includeHeaders"), ("offset", "is bigint")):
        with pytest.raises(SourceError, match=said):
            source.reader(StructType([StructField(name, StringType())]))
    source.reader(StructType([StructField("body", StringType())]))


def test_a_damaged_header_is_mended_with_ignore_damage(tmp_path: Path) -> None:
    directory, _ = sealed(tmp_path)
    path = directory / SEGMENT
    good = path.read_bytes()
    for position, readable in ((0, 10), (50, 10), (66, 10)):
        path.write_bytes(flipped(good, position))
        assert len(read(tmp_path, "body", ignoreDamage="true")) == readable
    path.write_bytes(flipped(good, 50, 66))
    assert read(tmp_path, "body", ignoreDamage="true") == []
