"""How `kvitto.Broker` ends, and that it leaves nothing behind when it could not start or was ended by an error."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvitto
from kvitto.base.config import ConfigError
from kvitto.base.errors import StoreError
from kvitto.client import Connection
from tests.support.wait import wait_until


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary directories are made; at the end nothing is in it, and no thread of a broker runs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(threading.enumerate())
    yield tmp_path
    assert list(tmp_path.glob("kvitto-*")) == []
    wait_until(lambda: not [t for t in {*threading.enumerate()} - before if t.name.startswith("kvitto")])


def test_a_start_that_fails_leaves_nothing_and_can_be_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        broker = kvitto.Broker(port=taken.getsockname()[1])
        for _ in range(2):
            with pytest.raises(OSError, match="in use"):
                broker.start()
        broker.stop()
    with broker:
        Connection(broker.url).close()


def test_a_broker_that_is_not_started_leaves_nothing() -> None:
    kvitto.Broker()
    with pytest.raises(ConfigError, match="--port must be"):
        kvitto.Broker(port=70000)


def test_a_stopped_broker_can_be_started_again() -> None:
    broker = kvitto.Broker()
    for _ in range(2):
        with broker:
            assert broker.data_dir.is_dir()
            Connection(broker.url).close()


def test_a_broker_that_an_error_ended_has_closed_its_ports_and_directory(tmp_path: Path) -> None:
    broker = kvitto.Broker(tmp_path / "data").start()
    port = broker.port
    assert broker._server is not None and broker._loop is not None and broker._thread is not None
    broker._loop.call_soon_threadsafe(broker._server.fail, StoreError("the disk is gone"))
    broker._thread.join()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with pytest.raises(StoreError, match="the disk is gone"):
        broker.stop()
    with kvitto.Broker(tmp_path / "data"):
        pass
