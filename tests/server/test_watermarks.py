"""D4, W6: disk and memory watermarks. Past them publishers wait and are told why, consumers go on, and it ends by itself."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import kvitto
from kvitto.base import config
from kvitto.base.config import Config, ConfigError
from kvitto.base.limits import MIB
from kvitto.base.process import memory_bytes, resident_bytes
from kvitto.protocol.alarms import no_room
from kvitto.server.watermarks import Watermarks
from kvitto.wire import methods as m
from tests.http.api import Http
from tests.protocol.raw import NO_PROPERTIES, Raw, content
from tests.protocol.sansio import BLOCKED, ProtocolHarness
from tests.support.wait import wait_until


class Machine:
    """As much disk and memory as a test says."""

    def __init__(self) -> None:
        self.free = self.used = 100 * MIB
        self.harness = ProtocolHarness()
        self.hub = self.harness.hub
        settings = Config(disk_free_limit=50 * MIB, memory_limit=200 * MIB)
        self.marks = Watermarks(settings, self.hub.alarms.block, lambda: self.free, lambda: self.used)

    def look(self, *, free: int | None = None, used: int | None = None) -> set[str]:
        """The alarms after a second in which that has become free or used, in MiB."""
        self.free = self.free if free is None else free * MIB
        self.used = self.used if used is None else used * MIB
        self.marks.look()
        return set(self.hub.alarms.reasons)


def test_an_alarm_comes_at_the_limit_and_goes_well_behind_it() -> None:
    machine = Machine()
    assert machine.look() == set()
    assert machine.look(free=50) == set()
    assert machine.look(free=49) == {"disk"}
    assert machine.look(free=54) == {"disk"}
    assert machine.look(free=55) == set()
    assert machine.look(used=200) == set()
    assert machine.look(used=201) == {"memory"}
    assert machine.look(used=191) == {"memory"}
    assert machine.look(used=190) == set()
    assert machine.look(free=50) == set()


def test_with_a_large_limit_an_alarm_ends_soon_behind_it() -> None:
    """A tenth of a large disk might never come back."""
    machine = Machine()
    settings = Config(disk_free_limit=50_000 * MIB, memory_limit=10_000 * MIB)
    machine.marks = Watermarks(settings, machine.hub.alarms.block, lambda: machine.free, lambda: machine.used)
    assert machine.look(free=49_999, used=10_001) == {"disk", "memory"}
    assert machine.look(free=50_063, used=9_937) == {"disk", "memory"}
    assert machine.look(free=50_064, used=9_936) == set()


def test_publishers_hear_of_the_first_alarm_and_of_the_end_of_the_last(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    machine = Machine()
    wire = machine.harness.wire(login=False)
    wire.login(**BLOCKED)
    caplog.clear()
    machine.look(free=10)
    machine.look(used=300)
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, b"0"))
    machine.look(free=100)
    machine.harness.turn()
    [told] = wire.methods()
    assert isinstance(told, m.ConnectionBlocked)
    low_on_disk, low_on_memory = (
        "low on disk: 10 MiB free, less than --disk-free-limit of 50 MiB; make room, or consume, purge or delete queues",
        "low on memory: 300 MiB in use, more than --memory-limit of 200 MiB;"
        " end open transactions and consumers that ack nothing, or raise it",
    )
    assert told.reason == f"{low_on_disk}; {low_on_memory}"
    machine.look(used=100)
    machine.harness.turn()
    assert wire.methods() == [m.ConnectionUnblocked()]
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"publishers are blocked: {low_on_disk}",
        f"publishers are blocked: {low_on_memory}",
        "no longer low on disk",
        "no longer low on memory",
        "publishers may go on",
    ]


def test_a_disk_that_is_still_low_for_another_reason_is_not_said_to_be_no_longer_low(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a write that found no room had found some, the log said so although the watermark still held publishers up."""
    machine = Machine()
    machine.look(free=10)
    machine.hub.alarms.block(no_room(0), "room")
    caplog.clear()
    caplog.set_level("INFO")
    machine.hub.alarms.block(None, "room")
    assert not caplog.records
    machine.look(free=100)
    assert [record.getMessage() for record in caplog.records] == ["no longer low on disk", "publishers may go on"]


def test_reasons_fit_into_a_short_string() -> None:
    """All three at once, with very large numbers."""
    machine = Machine()
    machine.hub._full(True)
    machine.marks = Watermarks(
        Config(disk_free_limit=1 << 60, memory_limit=1 << 50),
        machine.hub.alarms.block,
        lambda: 1 << 59,
        lambda: 1 << 60,
    )
    machine.marks.look()
    assert set(machine.hub.alarms.reasons) == {"disk", "room", "memory"}
    assert m.ConnectionBlocked(machine.hub.alarms.blocked or "").encode()


def test_what_stays_free_for_acks_is_said() -> None:
    """It said that there was no room left while df showed 17 MiB."""
    machine = Machine()
    machine.harness.disk.free = (16 << 20) + 100_000
    wire = machine.harness.wire()
    wire.put(1, m.QueueDeclare("q", durable=True))
    machine.harness.settle_down()
    machine.harness.store.room._left = 0
    wire.feed(content(1, m.BasicPublish("", "q"), NO_PROPERTIES, bytes(110_000)))
    machine.harness.turn()
    assert machine.hub.alarms.blocked == (
        "low on disk: no room for messages with 16.1 MiB free, 16 MiB are kept free for acks and definitions;"
        " make room, or consume, purge or delete queues"
    )


def test_a_limit_of_a_few_bytes_is_not_said_to_be_0() -> None:
    machine = Machine()
    machine.marks = Watermarks(Config(memory_limit=1), machine.hub.alarms.block, lambda: 1 << 40, lambda: 100 * MIB)
    machine.marks.look()
    assert "100 MiB in use, more than --memory-limit of 1 bytes" in (machine.hub.alarms.blocked or "")


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("1048576", MIB), ("50MiB", 50 * MIB), ("1 gib", 1024 * MIB), ("2GB", 2 * 10**9), ("3k", 3072)],
)
def test_sizes_are_said_as_people_say_them(text: str, value: int) -> None:
    assert config.size(text) == value


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1.5GiB", "50 MiBs", "40%", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        config.size(text)


def test_memory_is_a_size_or_a_share() -> None:
    assert config.memory("1GiB") == 1 << 30
    assert config.memory("50%") == memory_bytes() // 2
    assert Config().memory_limit == int(0.4 * memory_bytes())
    assert config.memory("100%") == memory_bytes()
    for text in ("101%", "0%", "00%", "%", "-1%", "1.5%"):
        with pytest.raises(ValueError, match="is no share of the memory: 1% to 100%, or a size"):
            config.memory(text)
    with pytest.raises(ValueError, match=r"is no size: .*, or 1% to 100% of the memory"):
        config.memory("40 percent")


def test_limits_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "kvitto.toml"
    file.write_text('disk-free-limit = "2GB"\nmemory-limit = 1000\n')
    assert config.read(file) == {"disk_free_limit": 2 * 10**9, "memory_limit": 1000, "limits": {}}
    file.write_text('memory-limit = "much"\n')
    with pytest.raises(ConfigError, match="memory-limit: 'much' is no size"):
        config.read(file)


def test_a_real_broker_short_of_memory(tmp_path: Path) -> None:
    """Its own memory, measured: publishers wait, a consumer takes and acks all, API and metrics say so; it ends by itself."""
    broker = kvitto.Broker(tmp_path, http_port=0)
    broker._config = replace(broker._config, memory_limit=1 << 50)
    with (
        broker,
        Raw(broker.port, capabilities={"connection.blocked": True}) as raw,
        Raw(broker.port, capabilities={}) as other,
    ):
        assert broker._server is not None
        marks, api = broker._server._watermarks, Http(broker.http_url)
        raw.channel(1)
        other.channel(1)
        raw.declare("q", durable=True)
        raw.put_in("q", b"before")
        assert api.get("/api/nodes")[0]["mem_alarm"] is False
        marks._memory_limit = resident_bytes() // 2
        wait_until(lambda: marks.memory_low, what="an alarm")
        for body in (b"the last one", b"waits"):
            raw.publish(1, "", "q", body)
        assert raw.expect(m.ConnectionBlocked).reason.startswith("low on memory: ")
        other.consume("q")
        assert [other.message().body for _ in range(2)] == [b"before", b"the last one"]
        other.put(1, m.BasicAck(0, True))
        other.declare("another", durable=True)
        node = api.get("/api/nodes")[0]
        assert (node["mem_alarm"], node["disk_free_alarm"]) == (True, False)
        checked = api.call("GET", "/api/health/checks/alarms")
        assert checked.status == 503 and "low on memory" in checked.json["reason"]
        assert api.call("GET", "/healthz").status == 503
        refused = api.post("/api/exchanges/%2F/amq.default/publish", {"routing_key": "q", "payload": "x"})
        assert refused.status == 503 and "low on memory" in refused.reason
        metrics = api.call("GET", "/metrics").body
        assert b"\nkvitto_memory_alarm 1\n" in metrics and b"\nkvitto_disk_alarm 0\n" in metrics
        assert b"\nkvitto_publishers_blocked 1\n" in metrics
        marks._memory_limit = 1 << 50
        raw.expect(m.ConnectionUnblocked)
        assert other.message().body == b"waits"
        assert api.call("GET", "/healthz").status == 200


def test_memory_that_is_free_again_is_given_back(tmp_path: Path) -> None:
    """An alarm ends although the C library likes to keep what was freed. In a process without other tests' memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
        alone.submit(open_a_transaction_and_end_it, tmp_path).result()


def open_a_transaction_and_end_it(tmp_path: Path) -> None:
    with kvitto.Broker(tmp_path) as broker, Raw(broker.port) as raw:
        assert broker._server is not None
        marks = broker._server._watermarks
        before = resident_bytes()
        raw.channel(1)
        raw.call(1, m.TxSelect(), m.TxSelectOk)
        for _ in range(6000):
            raw.publish(1, "", "nowhere", bytes(10_000))
        raw.call(1, m.BasicQos(), m.BasicQosOk)
        assert resident_bytes() > before + 50 * MIB
        marks._memory_limit = before + 40 * MIB
        wait_until(lambda: marks.memory_low, what="an alarm")
        raw.call(1, m.TxRollback(), m.TxRollbackOk)
        assert wait_until(lambda: not marks.memory_low)
