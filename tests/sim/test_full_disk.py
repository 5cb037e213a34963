"""A full disk and a failed sync at every operation of a client's day (tests/sim/workload.py)."""

from __future__ import annotations

import os
from contextlib import suppress
from random import Random

import pytest

from kvitto.base.errors import StoreError, StoreFull
from kvitto.store import journal, log
from kvitto.wire import methods as m
from tests.protocol.sansio import ProtocolHarness
from tests.sim.faults import OutOfService, stopping
from tests.sim.ledger import Ledger
from tests.sim.test_power_cut import contents, look
from tests.sim.workload import PLAIN, Client, day
from tests.support import stored
from tests.support.harness import BrokerHarness
from tests.support.simdisk import FillingDisk, SimDisk

STEP = 1 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 4


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 1500)
    monkeypatch.setattr(log, "ROLL_WHEN_SETTLED_BYTES", 600)
    monkeypatch.setattr(journal, "ROTATE_BYTES", 500)


def operations() -> tuple[int, int]:
    """When the client comes, and when its day is over."""
    disk = SimDisk()
    harness = ProtocolHarness(disk)
    first = disk.operations
    day(Client(harness, Ledger()))
    return first, disk.operations


@pytest.mark.parametrize("length", [1, 5, 30])
def test_a_full_disk_loses_nothing_and_the_broker_goes_on_when_there_is_room(length: int) -> None:
    """D4: whichever write is the first that finds no room, all is confirmed, committed and moved in the end, once."""
    first, last = operations()
    for start in range(first, last, STEP):
        harness, ledger = ProtocolHarness(FillingDisk(start, length)), Ledger()
        client = Client(harness, ledger)
        try:
            day(client)
            for _ in range(length):
                harness.clock.advance(2.0)
                harness.broker.tick()  # parked dead letters are tried again
                client.rest()
            assert not client.unconfirmed
            assert not any(stored.parked(queue) for queue in harness.broker.queues.values())
            assert not harness.store.alarms
            client.full_sync()
            ledger.check(look(harness.disk.kill(), ledger.ends))
        except BaseException as error:
            raise AssertionError(f"full from operation {start} on") from error


def test_an_end_while_the_disk_is_full_leaves_nothing_that_looks_like_damage() -> None:
    """D3: half a block, footer or record stayed where it had found no room, and the next start raised an alarm or refused."""
    first, last = operations()
    for start in range(first, last, STEP):
        harness, ledger = ProtocolHarness(FillingDisk(start, 1 << 60)), Ledger()
        client = Client(harness, ledger)
        client.patience = 3
        with suppress(AssertionError):  # it waits for ever
            day(client)
        in_order = True
        try:
            harness.broker.finish()
            harness.store.shut()
        except StoreFull:
            in_order = False
        restarted = BrokerHarness(harness.disk.kill())
        try:
            assert restarted.store.ending.in_order == in_order
            assert not restarted.store.alarms
            found = contents(restarted)
            assert all(name in found for name, told in ledger.queues.items() if told.exists)
            ledger.check_lost({name: {body for body, _ in messages} for name, messages in found.items()})
        except BaseException as error:
            raise AssertionError(f"full from operation {start} on") from error


def test_an_end_that_a_full_disk_has_taken_acks_from_is_not_in_order() -> None:
    """D4, A11: it said nothing, its exit code was 0, and what had been acked came again, not flagged."""
    harness = BrokerHarness()
    harness.declare("q")
    for body in (b"a", b"b"):
        harness.publish("q", body)
    harness.settle_down()
    harness.disk.full = True
    for delivery in harness.take("q"):
        harness.queue("q").ack(delivery.offset, 1)
    with pytest.raises(StoreFull, match="what came last could not be written"):
        harness.broker.finish()
    harness.disk.full = False
    harness.broker.finish()
    harness.store.shut()
    harness.disk = harness.disk.kill()
    harness.start()
    assert harness.store.ending.in_order and harness.peek("q") == []


def test_acks_work_while_the_disk_is_full_and_a_durable_queue_declared_then_is_answered_later() -> None:
    """D2, D4: a StoreFull of the definitions log ended the process."""
    harness, ledger = ProtocolHarness(), Ledger()
    client = Client(harness, ledger)
    client.declare("q")
    client.publish("q", b"a", b"b")
    client.rest()
    client.consume("q", prefetch=1)
    harness.disk.full = True
    client.ack("q", b"a")
    client.flow()
    assert (PLAIN, b"b") in client.tags, "the ack gave no credit"
    client.put(PLAIN, m.QueueDeclare("late", False, True, False, False, False, {}))
    assert not any(isinstance(method, m.QueueDeclareOk) for method in client.flow() + client.flow())
    assert "late" not in look(harness.disk.kill())
    harness.disk._dead = False
    harness.disk.full = False
    assert any(isinstance(method, m.QueueDeclareOk) for method in client.rest())
    assert "late" in look(harness.disk.kill())


def test_acks_that_a_queue_had_not_written_when_it_went_out_of_service_come_again_flagged() -> None:
    """D6, A9, A11: the ledger took them for synced, since the sync behind that turn covered all other queues."""
    harness, ledger = ProtocolHarness(), Ledger()
    client = Client(harness, ledger)
    for name in ("other", "q"):
        client.declare(name)
        client.publish(name, name.encode() + b"1", name.encode() + b"2")
        client.rest()
        client.consume(name, prefetch=1)
        client.rest()
        client.ack(name, name.encode() + b"1")
    harness.disk.fail_at[harness.disk.operations + 1] = StoreError("the device is gone")
    client.full_sync()
    assert [queue.name for queue in harness.broker.listed if queue.fault is not None] == ["q"]
    found = look(harness.disk.kill())
    assert found == {"q": [(b"q1", True), (b"q2", True)], "other": [(b"other2", True)]}
    ledger.check(found)


def test_after_a_failed_sync_nothing_is_told_any_more() -> None:
    """C8: nothing that waited is confirmed or committed, not even by a later turn; what was told before is on the disk."""
    first, last = operations()
    for at in range(first + 1, last, STEP):
        disk, ledger = SimDisk(), Ledger()
        disk.fail_at[at] = StoreError("the device is gone")
        harness = ProtocolHarness(disk)
        client = Client(harness, ledger)
        # a sync fails in its job; a write takes its queue out of service
        with stopping(), suppress(StoreError, AssertionError, OutOfService):
            day(client)
        if harness.store.failed is not None:
            with pytest.raises(AssertionError):
                harness.store.begin_sync(everything=True)
            with suppress(StoreError):
                harness.turn()
                client.read()
        for seed in range(3):
            ledger.check(look(disk.copy().crash(Random(seed)), ledger.ends))
