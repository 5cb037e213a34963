"""The power goes at every write, sync, link, unlink and create of a day on which every queue has an archive."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from kvitto.store import journal, log
from tests.protocol.sansio import ProtocolHarness
from tests.sim.ledger import Ledger
from tests.sim.test_power_cut import contents
from tests.sim.workload import Client, bodies, day
from tests.support.archived import ARCHIVE, Files, bases, entries, segment
from tests.support.harness import BrokerHarness, work_queue
from tests.support.simdisk import FillingDisk, PowerCut, SimDisk

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
STEP = 1
SEEDS = 10 if THOROUGH else 2


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "SEGMENT_BYTES", 1500)
    monkeypatch.setattr(log, "ROLL_WHEN_SETTLED_BYTES", 600)
    monkeypatch.setattr(journal, "ROTATE_BYTES", 500)


@dataclass
class Receipts:
    """What must be in the files for good: incarnation -> body of each message whose settlement was durable."""

    gone: dict[str, set[bytes]] = field(default_factory=dict)
    confirmed: dict[str, set[bytes]] = field(default_factory=dict)
    """Of queues that are still defined."""


class Keeper(Client):
    """Declares every queue with an archive, and notes what must stay."""

    def __init__(self, harness: ProtocolHarness, ledger: Ledger, receipts: Receipts) -> None:
        self.receipts = receipts
        super().__init__(harness, ledger)

    def declare(self, name: str, arguments: dict[str, object] | None = None) -> None:
        super().declare(name, {**(arguments or {}), "x-archive": True})

    def delete(self, name: str) -> None:
        """What waits goes, and a segment with something that waits; all else stays owed."""
        self.receipts.confirmed.pop(self.incarnation(name), None)
        if self.harness.broker.vhosts["/"].queues[name].messages:
            self.receipts.gone.pop(self.incarnation(name), None)
        super().delete(name)

    def incarnation(self, name: str) -> str:
        return str(self.harness.broker.vhosts["/"].queues[name].log.queue_id)

    def full_sync(self) -> None:
        super().full_sync()
        self.note()

    def rest(self) -> list[object]:  # type: ignore[override]
        methods = super().rest()
        for name in self.harness.broker.vhosts["/"].queues:
            confirmed = self.receipts.confirmed.setdefault(self.incarnation(name), set())
            confirmed |= self.ledger.queue(name).confirmed
        return list(methods)

    def note(self) -> None:
        for name, told in self.ledger.queues.items():
            if told.exists and name in self.harness.broker.vhosts["/"].queues:
                self.receipts.gone.setdefault(self.incarnation(name), set()).update(told.gone & told.confirmed)


def trickle(client: Client, queue: str, messages: list[bytes]) -> None:
    """Batches of two, so that segments roll."""
    for i in range(0, len(messages), 2):
        client.publish(queue, *messages[i : i + 2])
        client.rest()


def purge(client: Client) -> None:
    """What the ordinary day does not do: purge, drop the head, delete with a small segment that is settled."""
    client.declare("short", {"x-max-length": 3})
    client.ledger.queue("short").settled |= set(bodies("s", 0, 6, 200))
    trickle(client, "short", bodies("s", 0, 9, 200))
    client.rest()
    client.full_sync()
    client.declare("clean")
    trickle(client, "clean", bodies("c", 0, 10, 200))
    client.ledger.queue("clean").settled |= set(client.ledger.queue("clean").sent)
    client.harness.broker.vhosts["/"].queues["clean"].purge()
    client.full_sync()
    client.full_sync()
    client.declare("brief")
    for start in range(0, 9, 3):
        client.pass_through("brief", *bodies("b", start, start + 3, 200))
    client.full_sync()
    client.full_sync()
    client.pass_through("brief", *bodies("b", 9, 10))  # too small to have left by itself
    client.full_sync()
    client.delete("brief")
    client.full_sync()
    client.full_sync()
    client.full_sync()


def run(cut_at: int | None, what: Callable[[Client], None], linking: bool = True) -> tuple[SimDisk, Ledger, Receipts]:
    disk, ledger, receipts = SimDisk(), Ledger(), Receipts()
    disk.cut_at, disk.linking = cut_at, linking
    try:
        harness = ProtocolHarness(disk)
        what(Keeper(harness, ledger, receipts))
    except PowerCut:
        pass
    else:
        assert cut_at is None
    return disk, ledger, receipts


def check_files(files: Files) -> None:
    """What a reader may rely on at any time, also while no broker runs: no segment in an archive has an open message."""
    for queue_id in {path.split("/")[1] for path in files if path.startswith(f"{ARCHIVE}/")}:
        for base in bases(files, queue_id):
            found = segment(files, f"{ARCHIVE}/{queue_id}/{base:020d}", ARCHIVE)
            assert found, f"{queue_id}/{base}: nothing in it"
            assert all(e.outcome for e in found.values()), f"{queue_id}/{base}: {found} has open messages"


def check(disk: SimDisk, ledger: Ledger, receipts: Receipts) -> Files:
    """Before a start and after one: the books of the client, and every receipt. Gives the files after the start."""
    check_files(disk.files())
    harness = BrokerHarness(disk)
    harness.settle_down()
    assert not harness.store.alarms
    files = harness.disk.files()
    check_files(files)
    for queue_id, gone in receipts.gone.items():
        found = entries(files, queue_id)
        settled = {e.body for e in found.values() if e.outcome}
        assert gone <= settled, f"{queue_id}: receipts are lost: {gone - settled}"
    for queue_id, confirmed in receipts.confirmed.items():
        lost = confirmed - {e.body for e in entries(files, queue_id).values()}
        assert not lost, f"{queue_id}: neither waiting nor archived: {lost}"
    offsets = {queue_id: {o: e.body for o, e in entries(files, queue_id).items()} for queue_id in harness.broker.queues}
    for name in harness.broker.vhosts["/"].queues:
        queue = work_queue(harness.broker, name)
        waiting = {o for start, n in queue.backlog.requeued for o in range(start, start + n)} | set(
            range(queue.cursor, queue.next)
        )
        for offset in waiting:
            message = queue.read(offset)
            assert message is not None and offsets[queue.log.queue_id][offset] == message[2], f"{offset}: a wrong body"
    ledger.check(contents(harness))
    return files


@pytest.mark.parametrize(("what", "linking"), [(day, True), (purge, True), (purge, False)])
def test_no_receipt_is_lost_wherever_the_power_goes(what: Callable[[Client], None], linking: bool) -> None:
    """P2, C2: what was confirmed waits, or is in the files with its settlement; what was settled for good stays so."""
    disk, ledger, receipts = run(None, what, linking)
    operations = disk.operations
    files = check(disk.kill(), ledger, receipts)
    moved = [path for path in files if path.startswith(ARCHIVE) and path.endswith(".log")]
    assert len(moved) >= 3, "the day brings too few into an archive"
    for cut_at in range(1, operations + 1, STEP):
        disk, ledger, receipts = run(cut_at, what, linking)
        for seed in range(SEEDS):
            found = copy.deepcopy(disk).crash(Random(cut_at * 1000 + seed), hostile=seed % 2 == 1)
            try:
                check(found, ledger, receipts)
            except BaseException as error:
                raise AssertionError(f"cut at {cut_at}, seed {seed}") from error


def test_a_start_that_is_cut_short_itself_loses_no_receipt() -> None:
    """P2: what the first start has begun to move, the next one goes on with."""
    disk, _, _ = run(None, purge)
    for cut_at in range(2, disk.operations + 1, 4):
        disk, ledger, receipts = run(cut_at, purge)
        rng = Random(cut_at)
        found = copy.deepcopy(disk).crash(rng, hostile=True)
        whole = copy.deepcopy(found)
        BrokerHarness(whole).settle_down()
        if whole.operations == found.operations:
            continue
        found.cut_at = found.operations + rng.randint(1, whole.operations - found.operations)
        with pytest.raises(PowerCut):
            BrokerHarness(found).settle_down()
        again = found.crash(rng, hostile=True)
        try:
            check(again, ledger, receipts)
        except BaseException as error:
            raise AssertionError(f"cut at {cut_at}") from error


def opened() -> int:
    """Operations of a first start, which needs some room."""
    disk = SimDisk()
    ProtocolHarness(disk)
    return disk.operations


@pytest.mark.parametrize("linking", [True, False])
@pytest.mark.parametrize("length", [1, 5, 30])
def test_a_full_disk_loses_no_receipt(length: int, linking: bool) -> None:
    """D4: what finds no room to move stays, and moves later."""
    disk, _, _ = run(None, purge, linking)
    for start in range(opened() + 1, disk.operations, 1 if THOROUGH else 5):
        filling, ledger, receipts = FillingDisk(start, length), Ledger(), Receipts()
        filling.linking = linking
        harness = ProtocolHarness(filling)
        client = Keeper(harness, ledger, receipts)
        try:
            purge(client)
            for seconds in [*[2.0] * length, 61.0]:
                harness.clock.advance(seconds)
                harness.broker.tick()
                client.rest()
            client.full_sync()
            assert not harness.store.alarms
            check(filling.kill(), ledger, receipts)
        except BaseException as error:
            raise AssertionError(f"full from operation {start} on") from error
