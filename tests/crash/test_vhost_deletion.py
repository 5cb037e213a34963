"""SIGKILL while a virtual host with 400 queues is being deleted, over HTTP and by `kvitto ctl`: the next start deletes the rest (D2)."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvitto.client import Connection
from kvitto.store.repair.readonly import ReadOnlyDisk
from kvitto.store.repair.survey import Survey
from kvitto.wire.properties import Properties
from tests.cli.process import Serving, kvitto, serving
from tests.http.api import Http

QUEUES = 400
GROWTH = (1, 20_000, 50_000, 80_000)
"""The broker is killed when the deletion has written so many bytes of definitions, or more. It writes 96 kB."""


def furnish(broker: Serving) -> None:
    api = Http(broker.http_url)
    assert api.put("/api/vhosts/going", {"description": "400 queues"}) == 201
    names = [f"q{i}" for i in range(QUEUES)]
    document = {
        "queues": [{"name": name, "durable": True, "auto_delete": False, "arguments": {}} for name in names],
        "bindings": [
            {"source": "amq.topic", "destination": name, "destination_type": "queue", "routing_key": f"{name}.#"}
            for name in names
        ],
    }
    assert api.call("POST", "/api/definitions/going", document).status == 204
    with Connection(broker.amqp_url.replace("%2f", "going")) as connection:
        channel = connection.channel()
        channel.confirm_select()
        for i in range(QUEUES):
            channel.publish(b"message", "", f"q{i}", Properties(delivery_mode=2))
        channel.wait_for_confirms()


def over_http(broker: Serving) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        Http(broker.http_url).call("DELETE", "/api/vhosts/going")


def by_ctl(broker: Serving) -> None:
    kvitto("ctl", "--uri", broker.http_url, "delete_vhost", "going")


def kill_meanwhile(broker: Serving, delete: Callable[[Serving], None], data: Path, growth: int) -> None:
    log = data / "definitions.log"
    before = log.stat().st_size
    deleting = threading.Thread(target=delete, args=(broker,))
    deleting.start()
    while log.stat().st_size < before + growth:
        assert deleting.is_alive() or log.stat().st_size >= before + growth, "nothing was deleted"
    broker.process.kill()
    broker.process.wait()
    deleting.join()


@pytest.mark.parametrize("delete", [over_http, by_ctl])
@pytest.mark.parametrize("growth", GROWTH)
def test_a_broker_that_is_killed_during_the_deletion_of_a_vhost_goes_on_with_it(
    tmp_path: Path, delete: Callable[[Serving], None], growth: int
) -> None:
    data = tmp_path / "data"
    with serving(data) as broker:
        furnish(broker)
        kill_meanwhile(broker, delete, data, growth)
    left = len(list((data / "queues").iterdir()))
    found = Survey(ReadOnlyDisk(str(data)))
    assert found.findings == []
    print(f"{left} directories of queues were left, and {len(found.notes)} notes of check")
    with serving(data) as broker:
        api = Http(broker.http_url)
        assert [vhost["name"] for vhost in api.get("/api/vhosts")] == ["/"]
        assert api.get("/api/queues") == [] and list((data / "queues").iterdir()) == []
        assert api.put("/api/vhosts/going") == 201
        with Connection(broker.amqp_url.replace("%2f", "going")) as connection:
            assert connection.channel().queue_declare("q7", durable=True).message_count == 0
        code, _, errors = broker.stop()
        assert code == 0 and errors.count("was being deleted when the broker ended") == (1 if left else 0), errors
    with serving(data) as broker:
        api = Http(broker.http_url)
        assert [queue["name"] for queue in api.get("/api/queues/going")] == ["q7"]
    assert Survey(ReadOnlyDisk(str(data))).findings == []


pytestmark = pytest.mark.slow
