"""Option queuePattern: which queues a query reads, against a real broker and its management API, without the weight of a Spark."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import kvitto
from kvitto.client import Connection
from kvitto.spark.discovery import matching
from kvitto.spark.errors import DataLossError, SourceError
from kvitto.spark.options import AUTO, read_options
from kvitto.spark.schema import full_schema
from kvitto.spark.source import AmqpReader, AmqpStreamReader

from .conftest import Publish

ID = StructType([full_schema(False)[name] for name in ("queue", "message_id")])
Row = tuple[str, str]


@pytest.fixture
def broker() -> Iterator[kvitto.Broker]:
    with kvitto.Broker(http_port=0) as broker:
        yield broker


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is asked before each batch, however soon."""
    monkeypatch.setattr("kvitto.spark.source.LIST_S", 0.0)


Query = Callable[..., "Running"]


class Running:
    """A query as Spark runs it: `start` is what its checkpoint has."""

    def __init__(self, reader: AmqpStreamReader) -> None:
        self.reader = reader
        self.start = reader.initialOffset()

    def batch(self) -> list[Row]:
        """Plan, read and commit a batch."""
        end = self.reader.latestOffset(self.start, ReadAllAvailable())
        rows = self.read(end)
        self.start = end
        return rows

    def read(self, end: dict[str, Any]) -> list[Row]:
        parts = self.reader.partitions(self.start, end)
        found = [tuple(row.values()) for part in parts for piece in self.reader.read(part) for row in piece.to_pylist()]
        return sorted(found)


def given_of(broker: kvitto.Broker, pattern: str = r"orders\..*", **more: str) -> dict[str, str]:
    return {"uri": broker.url, "managementUri": broker.http_url, "queuePattern": pattern, **more}


@pytest.fixture
def query(broker: kvitto.Broker) -> Iterator[Query]:
    """`query(**options)` begins one, `query(start, **options)` goes on from a checkpoint."""
    readers: list[AmqpStreamReader] = []

    def query(start: dict[str, Any] | None = None, **more: str) -> Running:
        readers.append(AmqpStreamReader(read_options(given_of(broker, **more)), ID))
        if start is None:
            return Running(readers[-1])
        running = Running.__new__(Running)
        running.reader, running.start = readers[-1], start
        return running

    yield query
    for reader in readers:
        reader.stop()


def ids(queue: str, first: int, last: int) -> list[Row]:
    return [(queue, f"id-{n}") for n in range(first, last)]


def test_a_batch_reads_the_durable_queues_whose_whole_name_matches(broker: kvitto.Broker, publish: Publish) -> None:
    for name in ("orders.a", "orders.b", "old.orders.a", "ordersXa"):
        publish(broker.url, name, 0, 3)
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("orders.mine", exclusive=True)
        channel.queue_declare("orders.gone", durable=False)
        reader = AmqpReader(read_options(given_of(broker)), ID)
        found = [
            tuple(row.values())
            for part in reader.partitions()
            for each in reader.read(part)
            for row in each.to_pylist()
        ]
    assert sorted(found) == ids("orders.a", 0, 3) + ids("orders.b", 0, 3)


@pytest.mark.parametrize("mode", ["range", "stream", "staged"])
def test_a_queue_that_is_new_is_read_from_its_first_message(
    broker: kvitto.Broker, publish: Publish, query: Query, tmp_path: Path, mode: str
) -> None:
    """Also if the query began with `latest`; one of another type than the mode reads is left alone."""
    kind, other = ({"x_queue_type": name} for name in ("stream", "classic"))
    if mode != "stream":
        kind, other = other, kind
    options = {"startingOffsets": "earliest" if mode == "staged" else "latest", "stagingLocation": str(tmp_path)}
    publish(broker.url, "orders.a", 0, 5, **kind)
    running = query(readMode=mode, **options)
    if mode == "staged":
        assert running.batch() == ids("orders.a", 0, 5)
    publish(broker.url, "orders.b", 0, 4, **kind)
    publish(broker.url, "orders.c", 0, 4, **other)
    publish(broker.url, "orders.a", 5, 7, **kind)
    found = running.batch() + running.batch()
    assert sorted(found) == ids("orders.a", 5, 7) + ids("orders.b", 0, 4)
    publish(broker.url, "orders.d", 0, 2, **kind)
    running.reader.stop()
    again = query(running.start, readMode=mode, **options)
    assert again.batch() == ids("orders.d", 0, 2)


@pytest.mark.parametrize("mode", ["range", "stream"])
def test_a_batch_with_a_queue_that_is_no_longer_named_is_not_repeated_without_it(
    broker: kvitto.Broker, publish: Publish, query: Query, mode: str
) -> None:
    for name in ("orders.a", "orders.b"):
        publish(broker.url, name, 0, 3, x_queue_type="stream" if mode == "stream" else "classic")
    killed = query(readMode=mode, startingOffsets="earliest")
    end = killed.reader.latestOffset(killed.start, ReadAllAvailable())
    killed.reader.stop()
    narrow = query(killed.start, readMode=mode, queuePattern=r"orders\.a")
    with pytest.raises(
        DataLossError, match=r"messages of queue 'orders\.b', which the options do not name any more: name it"
    ):
        narrow.read(end)
    narrow.reader.stop()
    assert query(killed.start, readMode=mode).read(end) == ids("orders.a", 0, 3) + ids("orders.b", 0, 3)


def test_a_queue_that_is_no_longer_named_is_settled_as_far_as_it_was_read(
    broker: kvitto.Broker, publish: Publish, query: Query
) -> None:
    for name in ("orders.a", "orders.b"):
        publish(broker.url, name, 0, 3)
    running = query(startingOffsets="earliest")
    assert len(running.batch()) == 6
    running.reader.stop()
    narrow = query(running.start, queuePattern=r"orders\.a")
    assert narrow.batch() == []
    narrow.reader.stop()
    publish(broker.url, "orders.b", 3, 4)
    assert query(narrow.start).batch() == ids("orders.b", 3, 4)


def test_of_queues_that_are_no_longer_named_one_that_is_gone_leaves_the_others_settled(
    broker: kvitto.Broker, publish: Publish, query: Query
) -> None:
    for name in ("orders.a", "orders.b", "orders.c"):
        publish(broker.url, name, 0, 3)
    running = query(startingOffsets="earliest", failOnDataLoss="false")
    assert len(running.batch()) == 9
    running.reader.stop()
    with Connection(broker.url) as connection:
        connection.channel().queue_delete("orders.a")
    narrow = query(running.start, queuePattern=r"orders\.c", failOnDataLoss="false")
    assert narrow.batch() == []
    narrow.reader.stop()
    publish(broker.url, "orders.b", 3, 4)
    assert query(narrow.start).batch() == ids("orders.b", 3, 4)


@pytest.mark.parametrize("mode", ["range", "stream"])
def test_a_queue_that_is_new_after_a_crash_in_the_first_batch_is_read_from_its_first_message(
    broker: kvitto.Broker, publish: Publish, query: Query, mode: str
) -> None:
    """Then Spark asks for the initial offset once more, which `latest` must not take for the new queue."""
    kind = {"x_queue_type": "stream" if mode == "stream" else "classic"}
    options = {"startingOffsets": "latest", "readMode": mode}
    publish(broker.url, "orders.a", 0, 3, **kind)
    killed = query(**options)
    publish(broker.url, "orders.a", 3, 5, **kind)
    end = killed.reader.latestOffset(killed.start, ReadAllAvailable())
    killed.reader.stop()
    publish(broker.url, "orders.b", 0, 4, **kind)
    again = query(**options)
    assert again.read(end) == ids("orders.a", 3, 5)
    again.start = end
    assert again.batch() == ids("orders.b", 0, 4)


@pytest.mark.parametrize("mode", ["range", "staged"])
def test_a_queue_that_is_gone_ends_the_query_or_is_left_out(
    broker: kvitto.Broker, publish: Publish, query: Query, tmp_path: Path, mode: str
) -> None:
    """failOnDataLoss; what was staged of it is read all the same."""
    for name in ("orders.a", "orders.b"):
        publish(broker.url, name, 0, 3)
    options = {"readMode": mode, "stagingLocation": str(tmp_path)}
    running = query(**options)
    end = running.reader.latestOffset(running.start, ReadAllAvailable())
    with Connection(broker.url) as connection:
        connection.channel().queue_delete("orders.b")
    running.reader.stop()
    with pytest.raises(DataLossError, match=r"'orders\.b' is gone.*failOnDataLoss"):
        query(running.start, **options).read(end)
    lenient = query(running.start, failOnDataLoss="false", **options)
    kept = ids("orders.b", 0, 3) if mode == "staged" else []
    assert lenient.read(end) == ids("orders.a", 0, 3) + kept
    lenient.start = end
    publish(broker.url, "orders.a", 3, 4)
    assert sorted(lenient.batch() + lenient.batch()) == ids("orders.a", 3, 4)
    publish(broker.url, "orders.b", 7, 9)
    assert sorted(lenient.batch() + lenient.batch()) == ids("orders.b", 7, 9)


def test_available_now_reads_the_queues_that_were_there(broker: kvitto.Broker, publish: Publish, query: Query) -> None:
    publish(broker.url, "orders.a", 0, 3)
    running = query()
    running.reader.stop()
    running = query(running.start)
    running.reader.prepareForTriggerAvailableNow()
    assert running.batch() == ids("orders.a", 0, 3)
    publish(broker.url, "orders.b", 0, 3)
    assert running.batch() == []


def test_no_match_is_an_error_with_what_there_is(broker: kvitto.Broker, publish: Publish, query: Query) -> None:
    with pytest.raises(SourceError, match=r"no durable queue in virtual host '/' .*there is none"):
        query()
    publish(broker.url, "invoices", 0, 1)
    with pytest.raises(SourceError, match=r"wholly matched by 'orders.*; there are 'invoices'$"):
        query()


def test_a_management_api_that_cannot_be_asked_is_named(broker: kvitto.Broker, query: Query) -> None:
    wrong = broker.http_url.replace("//", "//guest:wrong@")
    with pytest.raises(SourceError, match=r"refuses user 'guest'.*managementUri"):
        query(managementUri=wrong)
    with pytest.raises(SourceError, match=r"status 404.*virtual host 'nowhere': set option managementUri"):
        query(uri=broker.url.replace("%2f", "nowhere"))
    with kvitto.Broker() as silent:  # an AMQP listener does not answer HTTP
        port = silent.port
        given = read_options({"uri": silent.url, "queuePattern": "q", "managementUri": f"http://127.0.0.1:{port}"})
        with pytest.raises(SourceError, match=r"does not give it.*Set option managementUri"):
            matching(given, AUTO, (), 0)
    given = read_options({"uri": silent.url, "queuePattern": "q", "managementUri": f"http://127.0.0.1:{port}"})
    with pytest.raises(SourceError, match=r"does not give it.*refused.*Set option managementUri"):
        matching(given, AUTO, (), 0)


@contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[str]:
    """The URL of a proxy that gives these answers one after the other, and the last one for ever."""
    left = list(answers)

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_management_api_that_is_not_there_yet_is_asked_again() -> None:
    """As a proxy says of a broker that is starting."""
    listed = b'[{"name": "q", "durable": true}]'
    with answering((503, b"<html>"), (502, b"[]"), (200, listed)) as url:
        given = read_options({"queuePattern": "q", "managementUri": url})
        assert matching(given, AUTO, ("q",), 30) == ("q",)
    with answering((503, b"[]")) as url:
        given = read_options({"queuePattern": "q", "managementUri": url})
        with pytest.raises(SourceError, match=r"does not give it: status 503.*Set option managementUri"):
            matching(given, AUTO, ("q",), 0)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"{}", "200, not"),
        (404, b"{}", "404, not"),
        (301, b"<html>", "301, not"),
        (403, b'{"error": "no"}', r"403 \(no\)"),
    ],
)
def test_no_list_is_not_taken_for_a_list_without_queues(status: int, body: bytes, said: str) -> None:
    """Then queues that are there would be gone."""
    with answering((status, body)) as url:
        given = read_options({"queuePattern": "q", "managementUri": url, "failOnDataLoss": "false"})
        with pytest.raises(SourceError, match=f"status {said}"):
            matching(given, AUTO, ("q",), 0)
