"""The data directory: one owner, one format, how the last owner ended, and what a sync covers (D5, C8, C2)."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from kvitto.base.errors import StoreError, StoreFull
from kvitto.store import definitions
from kvitto.store.disk import RealDisk
from kvitto.store.repair.salvage import Salvage
from kvitto.store.repair.survey import Survey
from kvitto.store.store import FORMAT, Store
from tests.store.logs import DIRECTORY, LogHarness
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness
from tests.support.older import without_inventory
from tests.support.simdisk import PowerCut, SimDisk


def test_a_second_open_is_refused(tmp_path: object) -> None:
    """D5: with the number of the process that has it."""
    first = Store(RealDisk(str(tmp_path)), ManualClock())
    first.open()
    with pytest.raises(StoreError, match="in use by process"):
        Store(RealDisk(str(tmp_path)), ManualClock()).open()
    first.shut()
    Store(RealDisk(str(tmp_path)), ManualClock()).open()


@pytest.mark.parametrize("inside", ["queues", "queues/a", "b/c"])
def test_a_directory_inside_another_ones_is_refused(tmp_path: Path, inside: str) -> None:
    """D5: the broker of the outer one removed it at its next start, or could not start any more."""
    outer = Store(RealDisk(str(tmp_path)), ManualClock())
    outer.open()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=f"{inside} lies inside {tmp_path}, which is a data directory of Kvitto's"):
        Store(RealDisk(str(tmp_path / inside)), ManualClock()).open()
    assert sorted(tmp_path.rglob("*")) == before
    outer.shut()


def test_what_no_broker_has_made_stays_among_the_queues() -> None:
    """D5: a directory of somebody else's was removed with all that was in it, and a file kept the broker from starting."""
    harness = BrokerHarness()
    for path in ("queues/mine/file", "queues/notes.txt"):
        harness.disk.makedirs(path.rpartition("/")[0])
        harness.disk.open(path, create=True).write_at(0, [b"x"])
    harness.restart()
    assert harness.disk.read_file("queues/mine/file") == harness.disk.read_file("queues/notes.txt") == b"x"


@pytest.mark.parametrize("text", [b"kvitto 3\n", b"something else", b""])
def test_a_directory_of_another_format_is_refused(text: bytes) -> None:
    """D5."""
    harness = BrokerHarness()
    harness.settle_down()
    disk = harness.disk.kill()
    disk._names["format"].live[:] = text
    with pytest.raises(StoreError, match="format"):
        BrokerHarness(disk)
    assert disk.files()["format"] == text


def test_a_missing_format_is_said_to_be_missing() -> None:
    harness = BrokerHarness()
    harness.settle_down()
    disk = harness.disk.kill()
    disk.unlink("format")
    with pytest.raises(StoreError, match=r"the file format .* is missing or empty, .* `kvitto salvage`"):
        BrokerHarness(disk)


@pytest.mark.parametrize("own", ["lost+found", "spare", "boot.new", "lock"])
def test_only_what_is_nobody_s_or_its_own_may_be_there_before_the_first_start(own: str) -> None:
    disk = SimDisk()
    disk.open(own, create=True).close()
    foreign = disk.copy()
    assert "/" in BrokerHarness(disk).broker.vhosts
    foreign.open("notes.txt", create=True).close()
    with pytest.raises(StoreError, match=r"not empty, it holds 'notes.txt': choose an empty directory"):
        BrokerHarness(foreign)
    assert sorted(foreign.files()) == sorted({own, "notes.txt"})


def test_files_that_came_later_disturb_nobody() -> None:
    harness = BrokerHarness()
    harness.settle_down()
    disk = harness.disk.kill()
    disk.open("notes.txt", create=True).close()
    assert "/" in BrokerHarness(disk).broker.vhosts


def test_a_power_cut_at_the_very_first_start_leaves_a_directory_that_starts() -> None:
    """P2: a torn format file of an empty directory was refused for ever."""
    whole = SimDisk()
    BrokerHarness(whole)
    for cut_at in range(1, whole.operations + 1):
        for seed in range(10):
            disk = SimDisk()
            disk.cut_at = cut_at
            with pytest.raises(PowerCut):
                BrokerHarness(disk)
            harness = BrokerHarness(disk.crash(Random(seed), hostile=True))
            assert harness.disk.files()["format"] == FORMAT
            assert "/" in harness.broker.vhosts


def test_an_orderly_end_a_kill_and_a_power_cut_are_told_apart() -> None:
    """A11: the machine's boot id is durable before anything else happens."""
    harness = LogHarness()
    assert harness.store.ending.in_order and not harness.store.ending.power_cut
    harness.kill()
    assert not harness.store.ending.in_order and not harness.store.ending.power_cut
    for seed in range(10):
        harness.cut(Random(seed), hostile=True)
        assert harness.store.ending.power_cut
    harness.settle_down()
    harness.store.shut()
    harness.kill()
    assert harness.store.ending.in_order and not harness.store.ending.power_cut


def test_what_was_delivered_before_a_power_cut_is_flagged_by_every_start_that_follows() -> None:
    """A11: the flag was lost by the second start, and by the first if the lock had not been synced."""
    for seed in range(20):
        harness = BrokerHarness()
        harness.declare("q")
        for body in (b"a", b"b"):
            harness.publish("q", body)
        harness.settle_down()
        assert harness.bodies("q") == [b"a", b"b"]
        harness.turn()
        harness.cut(Random(seed), hostile=True)
        if seed % 2:
            harness.kill()
        if seed % 3:
            harness.restart()
        assert [d.redelivered for d in harness.take("q")] == [True, True]


def test_a_directory_that_was_left_in_order_is_damaged_by_any_torn_end() -> None:
    """D3: without a power cut or a kill nothing can be torn."""
    harness = LogHarness()
    harness.write(b"a")
    harness.write(b"b")
    harness.settle_down()
    harness.store.shut()
    path = f"{DIRECTORY}/{0:020d}.log"
    disk = harness.disk.copy()
    disk.flip(path, len(disk.files()[path]) - 1)
    damaged = LogHarness(disk)
    assert damaged.store.alarms and damaged.names(".bad")
    assert damaged.served() == {0: b"a"}


def test_a_sync_covers_what_was_written_when_it_began() -> None:
    """C2: not what came while it ran."""
    harness = LogHarness()
    told: list[str] = []
    harness.write(b"the inventory knows the segment")
    harness.settle_down()
    harness.write(b"a")
    harness.store.commits.when_announced(lambda: told.append("a"))
    job = harness.store.begin_sync(everything=False)
    harness.write(b"b")
    harness.store.commits.when_announced(lambda: told.append("b"))
    job.run()
    harness.store.end_sync(job)
    assert told == ["a"]
    assert harness.store.commits.waiting
    harness.sync()
    assert told == ["a", "b"]


def test_files_of_a_queue_that_is_deleted_while_a_sync_has_them_are_closed_after_it() -> None:
    harness = BrokerHarness()
    harness.declare("q")
    harness.publish("q", b"m")
    harness.settle_down()
    harness.publish("q", b"n")
    harness.turn()
    job = harness.store.begin_sync(everything=True)
    harness.delete("q")
    job.run()
    assert job.error is None
    harness.store.end_sync(job)
    harness.settle_down()
    assert harness.disk.listdir("queues") == []
    harness.kill()
    assert "q" not in harness.broker.vhosts["/"].queues


def test_a_deleted_queue_does_not_come_back_empty() -> None:
    """D2: its files stay until the deletion is durable."""
    for seed in range(40):
        harness = BrokerHarness()
        harness.declare("q")
        harness.publish("q", b"m")
        harness.settle_down()
        harness.delete("q")
        if seed % 2:
            harness.sync(everything=False)
        harness.cut(Random(seed), hostile=True)
        queues = harness.broker.vhosts["/"].queues
        assert "q" not in queues or harness.peek("q") == [b"m"]


def test_after_a_failed_sync_there_is_no_other() -> None:
    """C8: nobody is told anything, and the same descriptors are never synced again."""
    harness = LogHarness()
    told: list[str] = []
    harness.write(b"a")
    harness.store.commits.when_announced(lambda: told.append("a"))
    job = harness.store.begin_sync(everything=True)
    harness.disk.fail_at[harness.disk.operations + 1] = StoreError("gone")
    job.run()
    harness.store.end_sync(job)
    assert told == []
    assert harness.store.failed is not None
    with pytest.raises(AssertionError):
        harness.store.begin_sync(everything=True)
    harness.store.shut()
    assert harness.disk.files()["boot"], "the directory was left as if in order"


def test_without_syncing_everything_is_durable_at_once() -> None:
    """C2: --sync=off."""
    disk = SimDisk()
    store = Store(disk, ManualClock(), sync=False)
    store.open()
    store.load_definitions()
    told: list[str] = []
    store.commits.when_announced(lambda: told.append("x"))
    job = store.begin_sync(everything=False)
    assert not job.files and not job.dirs
    job.run()
    store.end_sync(job)
    assert told == ["x"]


def damaged_end() -> LogHarness:
    """Left in order, then two batches at the end were damaged."""
    harness = LogHarness()
    for i in range(6):
        harness.write(f"message {i}".encode() * 4)
    harness.settle_down()
    harness.store.shut()
    path = f"{DIRECTORY}/{0:020d}.log"
    for i in (4, 5):
        harness.disk.flip(path, harness.disk.files()[path].index(f"message {i}".encode()))
    return harness


def test_a_damaged_segment_of_which_no_copy_can_be_made_stays_as_it_is() -> None:
    """D3: half a copy stayed, the end was cut all the same, and one alarm said that there was a copy, another that there was none."""
    harness = damaged_end()
    path = f"{DIRECTORY}/{0:020d}.log"
    whole = harness.disk.files()[path]
    disk = harness.disk.copy()
    disk.free = len(whole)  # it would take what is kept for settlements
    left = LogHarness(disk)
    assert left.served() == {o: body for o, body in harness.written.items() if o < 4}
    assert left.names(".bad") == []
    (alarm,) = left.store.alarms
    assert "no room for a copy" in alarm
    left.disk.free = 1 << 30
    first = left.write(b"more")
    left.settle_down()
    assert left.disk.files()[path] == whole
    left.kill()
    assert left.disk.read_file(f"{DIRECTORY}/{0:020d}.bad") == whole, "there is room now"
    assert left.body(first) == b"more"


def test_the_last_of_a_damaged_segment_of_which_there_is_no_copy_is_kept() -> None:
    """D3: all that could be served of it is settled, and it would go."""
    harness = damaged_end()
    path = f"{DIRECTORY}/{0:020d}.log"
    whole = harness.disk.files()[path]
    harness.disk.free = 0
    left = LogHarness(harness.disk.copy())
    left.disk.free = 1 << 30
    left.settle(*range(4))
    left.settle_down()
    assert left.disk.read_file(f"{DIRECTORY}/{0:020d}.bad") == whole
    assert path not in left.disk.files()
    left.kill()
    assert left.served() == {} and left.log.next >= 4


def test_a_copy_of_a_damaged_segment_is_whole_or_not_there_wherever_it_fails() -> None:
    """D3: at each operation the disk is full, or the power goes."""
    for at in range(1, 12):
        for full in (False, True):
            harness = damaged_end()
            whole = harness.disk.files()[f"{DIRECTORY}/{0:020d}.log"]
            disk = harness.disk.copy()
            if full:
                disk.fail_at[disk.operations + at] = StoreFull("no room")
            else:
                disk.cut_at = disk.operations + at
            with suppress(PowerCut, StoreFull):
                LogHarness(disk)
            disk.fail_at.clear()
            found = LogHarness(disk.crash(Random(at), hostile=True))
            assert found.served() == {o: body for o, body in harness.written.items() if o < 4}
            copies = [d for n, d in found.disk.files().items() if n.endswith(".bad")]
            assert all(copy == whole for copy in copies)
            assert copies or whole == found.disk.files()[f"{DIRECTORY}/{0:020d}.log"]


def with_a_queue() -> BrokerHarness:
    """The last line of the definitions declares the queue, and nothing behind it says that it was synced."""
    harness = BrokerHarness()
    harness.settle_down()
    harness.declare("q")
    for body in (b"a", b"b"):
        harness.publish("q", body)
    harness.settle_down()
    return harness


def test_a_damaged_last_definition_does_not_delete_a_queue_with_its_messages() -> None:
    """D3: the line was cut like a torn one, and then the messages went as those of a deleted queue, without an alarm."""
    data = with_a_queue().disk.files()["definitions.log"]
    start = data.rindex(b"\n", 0, -1) + 1
    for position in range(start, len(data), 5):
        harness = with_a_queue()
        without_inventory(harness.disk)
        harness.disk.flip("definitions.log", position)
        if position % 2:
            harness.kill()
        else:
            harness.cut(Random(position), hostile=True)
        for _ in range(2):
            assert "q" not in harness.broker.vhosts["/"].queues
            (alarm,) = harness.store.alarms
            assert "not defined" in alarm
            harness.restart()
        (kept,) = harness.disk.listdir("queues")
        target = SimDisk()
        Salvage(Survey(harness.disk.kill()), target, ManualClock()).run()
        assert BrokerHarness(target).peek(f"salvaged.{kept}") == [b"a", b"b"]


def test_damaged_definitions_stop_the_start_after_an_end_in_order() -> None:
    """D3: nothing can be torn then."""
    harness = with_a_queue()
    harness.store.shut()
    disk = harness.disk.kill()
    disk.flip("definitions.log", len(disk.files()["definitions.log"]) - 2)
    before = disk.files()["definitions.log"]
    for _ in range(2):
        with pytest.raises(StoreError, match="synced up to byte"):
            BrokerHarness(disk)
        disk = disk.kill()
    assert disk.files()["definitions.log"] == before


def test_a_first_start_that_was_killed_anywhere_and_a_power_cut_after_the_next() -> None:
    """P2, D3: `format`, written and not synced by the first, was empty after the power cut, and the start was refused."""
    at, killed = 0, True
    while killed:
        at, killed = at + 1, False
        disk = SimDisk()
        disk.cut_at = at
        try:
            BrokerHarness(disk)
        except PowerCut:
            killed = True
        harness = BrokerHarness(disk.kill())
        harness.declare("q")
        harness.publish("q", b"kept")
        harness.settle_down()
        for number in range(6):
            assert BrokerHarness(harness.disk.survivor(Random(number), hostile=True)).peek("q") == [b"kept"], at
    assert at > 20


def test_after_an_end_in_order_a_power_cut_brings_no_name_back() -> None:
    """D3: a settlement log that was the last thing to go was there again, and `kvitto check` took its segment for missing."""
    for number in range(8):
        harness = LogHarness()
        harness.log.segment_bytes = 1
        harness.write(b"a")
        harness.write(b"b")
        harness.settle(0)
        harness.settle_down()
        harness.store.shut()
        names = harness.disk.listdir(DIRECTORY)
        assert names == [f"{1:020d}.log"]
        found = harness.disk.crash(Random(number), hostile=True)
        assert found.listdir(DIRECTORY) == names and Survey(found).findings == []


def test_what_a_first_start_had_made_when_the_power_went_is_no_damage() -> None:
    """D3: a start goes on there; `kvitto check` said that none would."""
    disk = SimDisk()
    disk.makedirs("queues")
    with pytest.raises(StoreError, match="no data directory"):
        Survey(disk)
    BrokerHarness(disk)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("left", [None, b"", b"0123456789abcdef {half"])
def test_without_definitions_no_messages_go(in_order: bool, left: bytes | None) -> None:
    """D3: a file that was gone or empty defined nothing, and every queue's messages went as those of a deleted one."""
    harness = with_a_queue()
    if in_order:
        harness.broker.finish()
        harness.store.shut()
    disk = harness.disk.kill()
    disk.unlink("definitions.log")
    if left is not None:
        disk.open("definitions.log", create=True).write_at(0, [left])
    before = {path: content for path, content in disk.files().items() if path.startswith("queues")}
    for _ in range(2):
        with pytest.raises(StoreError, match=r"definitions.log (is missing|is damaged at byte 0)"):
            BrokerHarness(disk)
        disk = disk.kill()
    assert {path: content for path, content in disk.files().items() if path.startswith("queues")} == before


def test_a_definition_that_is_gone_after_an_end_in_order_does_not_take_messages_along() -> None:
    """D3: nothing was torn, so nothing but the messages tells of it."""
    harness = with_a_queue()
    harness.broker.finish()
    harness.store.shut()
    disk = harness.disk.kill()
    without_inventory(disk)
    size = disk.files()["definitions.log"].rindex(b"\n", 0, -1) + 1
    disk.open("definitions.log").truncate(size)
    harness = BrokerHarness(disk)
    (alarm,) = harness.store.alarms
    assert "not defined" in alarm and len(harness.disk.listdir("queues")) == 1


def test_a_torn_definition_keeps_no_messages_of_deleted_queues() -> None:
    """D2: those that a power cut has brought back, or never removed."""
    harness = with_a_queue()
    old = harness.queue("q").log.queue_id
    segment = harness.disk.files()[f"queues/{old}/{0:020d}.log"]
    harness.delete("q")
    harness.settle_down()
    disk = harness.disk.kill()
    disk.makedirs(f"queues/{old}")
    disk.open(f"queues/{old}/{0:020d}.log", create=True).write_at(0, [segment])
    log = disk.open("definitions.log")
    log.write_at(log.size(), [b"0123456789abcdef {half"])
    left = BrokerHarness(disk)
    assert left.disk.listdir("queues") == []
    assert not left.store.alarms


def test_definitions_that_come_and_go_do_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue declared and deleted a thousand times a second took 24 GB a day; what stays is found by the next start."""
    monkeypatch.setattr(definitions, "COMPACT_BYTES", 5000)
    harness = BrokerHarness()
    harness.declare("stays")
    sizes = set()
    for i in range(100):
        harness.declare(f"q{i}")
        harness.turn()
        job = harness.store.begin_sync(everything=i % 2 == 0)
        harness.declare(f"while{i}")  # while the sync runs
        if i:
            harness.delete(f"while{i - 1}")
        job.run()
        harness.store.end_sync(job)
        harness.delete(f"q{i}")
        sizes.add(len(harness.disk.files()["definitions.log"]))
        if i % 10 == 9:
            queues = set(harness.broker.vhosts["/"].queues)
            assert set(BrokerHarness(harness.disk.copy().kill()).broker.vhosts["/"].queues) == queues
    assert max(sizes) < 8000
    harness.restart()
    assert set(harness.broker.vhosts["/"].queues) == {"stays", "while99"}


def test_a_compaction_without_room_is_not_tried_at_each_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "COMPACT_BYTES", 2000)
    harness = BrokerHarness()
    tried: list[int] = []

    def no_room(compaction: definitions.Compaction) -> None:
        tried.append(1)
        raise StoreFull("no room")

    monkeypatch.setattr(definitions.Compaction, "step", no_room)
    for i in range(50):
        harness.declare(f"q{i}")
        harness.delete(f"q{i}")
        harness.settle_down()
    assert 1 <= len(tried) <= 6
    assert not harness.disk.exists(definitions.NEW)


def test_after_a_failed_sync_the_page_cache_is_not_trusted() -> None:
    """C8, A11: the kernel may drop what it could not write, so the next start takes it for a power cut: torn ends are no damage, and
    what was delivered comes flagged. It took zeros in a segment for damage, and what had been delivered for new."""
    harness = with_a_queue()
    harness.take("q")
    harness.turn()
    harness.disk.fail_at[harness.disk.operations + 1] = StoreError("gone")
    with pytest.raises(StoreError):
        harness.sync()
    for path in [path for path in harness.disk.files() if path.endswith(".ack")]:
        harness.disk.open(path).truncate(0)
    harness.kill()
    assert harness.store.ending.power_cut
    assert [delivery.redelivered for delivery in harness.take("q")] == [True, True]


def test_a_sync_that_fails_in_a_compaction_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    """C8."""
    monkeypatch.setattr(definitions, "COMPACT_BYTES", 2000)
    harness = BrokerHarness()

    def gone(compaction: definitions.Compaction) -> None:
        raise StoreError("gone")

    monkeypatch.setattr(definitions.Compaction, "step", gone)
    for i in range(20):
        harness.declare(f"q{i}")
        harness.delete(f"q{i}")
    with pytest.raises(StoreError, match="gone"):
        harness.settle_down()
    assert harness.store.failed is not None


def test_definitions_are_written_anew_while_they_go_on_changing(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: the loop waited until all of them were written, 1 s for 100,000 bindings; others are served meanwhile."""
    monkeypatch.setattr(definitions, "COMPACT_BYTES", 2000)
    monkeypatch.setattr(definitions, "COMPACT_LINES", 3)
    harness = BrokerHarness()
    replaced: list[int] = []
    replace = definitions.Definitions.replace
    monkeypatch.setattr(
        definitions.Definitions, "replace", lambda self, durable: replaced.append(1) or replace(self, durable)
    )
    rng = Random(5)
    for i in range(300):
        harness.declare(f"q{i}")
        if i % 3 or rng.random() < 0.5:
            harness.delete(f"q{i}")
        harness.turn()
        if i % 2:
            harness.sync()
        names = set(harness.broker.vhosts["/"].queues)
        assert set(BrokerHarness(harness.disk.copy().kill()).broker.vhosts["/"].queues) == names
    assert len(replaced) > 3


def test_a_queue_that_comes_back_since_its_deletion_had_no_room_is_not_damaged() -> None:
    """D3, D4: nor was the end in order, which is said."""
    harness = with_a_queue()
    harness.publish("q", b"c")
    harness.turn()
    harness.disk.full = True
    harness.delete("q")
    with pytest.raises(StoreFull, match="what came last could not be written"):
        harness.broker.finish()
    harness.disk = harness.disk.kill()
    assert Survey(harness.disk.copy()).findings == []
    harness.start()
    assert not harness.store.ending.in_order
    assert not harness.store.alarms
    assert harness.peek("q") == [b"a", b"b", b"c"]


def test_without_syncs_nothing_is_said_to_be_durable() -> None:
    """D3: a start after a power cut took what the definitions had lost for damage, and was refused."""
    store = Store(SimDisk(), ManualClock(), sync=False)
    store.open()
    store.load_definitions()
    durable = store.definitions.file.durable
    store.definitions.put("user", ("name",), {})
    store.commits.wrote_file(store.definitions.file)
    store.commits.when_announced(lambda: None)
    job = store.begin_sync(everything=True)
    job.run()
    store.end_sync(job)
    assert store.definitions.file.durable == durable < store.definitions.file.end
