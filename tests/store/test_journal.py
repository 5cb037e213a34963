"""The journal: records come back whole or not at all, each is applied once, files go when nothing needs them (T4, X4)."""

from __future__ import annotations

import secrets
import struct
from random import Random

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvitto.base.errors import StoreError, StoreFull
from kvitto.format.entry import TTL_MAX
from kvitto.store import journal as journals
from kvitto.store import judge, log
from kvitto.store.batch import Batch
from kvitto.store.record import Append, Packed, Record, Run, Settle
from kvitto.store.repair.salvage import Salvage
from kvitto.store.repair.survey import Survey
from kvitto.store.store import Store
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness, Taker, address
from tests.support.older import without_inventory
from tests.support.simdisk import SimDisk

SALT = 0xFEED
FILE = f"journal/{1:016d}-{SALT:016x}.jnl"
queue_ids = st.binary(min_size=16, max_size=16).map(bytes.hex)
appends = st.builds(
    Append,
    queue_ids,
    st.binary(max_size=30),
    st.binary(max_size=30),
    st.binary(max_size=100),
    st.one_of(st.just(-1), st.integers(0, (1 << 32) - 1), st.integers(0, TTL_MAX)),
    st.sampled_from([0, 2]),
)
settles = st.builds(Settle, queue_ids, st.integers(0, (1 << 64) - 1), st.integers(1, (1 << 32) - 1), st.integers(1, 7))
records = st.builds(Record, st.just(0), st.lists(appends, max_size=5), st.lists(settles, max_size=5))


@pytest.fixture(autouse=True)
def known_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the file's name is known; those who forge records do not know it."""
    monkeypatch.setattr(secrets, "randbits", lambda n: SALT)


def open_store(disk: SimDisk) -> Store:
    store = Store(disk, ManualClock())
    store.open()
    store.load_definitions()
    return store


def replayed(disk: SimDisk, floor: int = 0) -> list[Record]:
    store = open_store(disk)
    found = list(store.journal.replay(floor))
    store.started()
    return found


message = st.tuples(st.binary(min_size=2, max_size=30), st.binary(min_size=2, max_size=30), st.binary(max_size=50))


@given(st.lists(st.tuples(queue_ids, st.lists(message, min_size=1, max_size=5)), min_size=1, max_size=3), settles)
def test_runs_come_back(runs: list[tuple[str, list[tuple[bytes, bytes, bytes]]]], settle: Settle) -> None:
    record = Record(settles=[settle])
    for queue_id, messages in runs:
        harness = BrokerHarness()
        queue = harness.declare("q")
        for key, props, body in messages:
            queue.append_bytes(key, props, body, -1, 0)
        assert queue.tail.batch is not None
        batch = Batch()
        queue.tail.batch.copy_to(batch, 0, len(messages))
        record.runs.append(Run(queue_id, batch))
    found = Record.decode(b"".join(record.encode(SALT)), 0, SALT)
    assert found is not None and found[0].settles == [settle]
    assert [(run.queue_id, [run.batch.message(i)[:3] for i in range(run.batch.count)]) for run in found[0].runs] == runs


@given(st.lists(records, min_size=1, max_size=5))
def test_records_come_back(written: list[Record]) -> None:
    """T4."""
    disk = SimDisk(reserving=False)
    store = open_store(disk)
    for record in written:
        store.journal.write(record)
    assert replayed(disk.kill()) == written
    assert [r.sequence for r in written] == list(range(1, len(written) + 1))


def three() -> tuple[SimDisk, list[Record], list[int]]:
    """Three records, each synced before the next, and where they end."""
    disk = SimDisk(reserving=False)
    store = open_store(disk)
    written, ends = [], []
    for i in range(3):
        record = Record(appends=[Append("ab" * 16, b"key", b"\0\0", f"body {i}".encode())])
        store.journal.write(record)
        sync(store)
        written.append(record)
        ends.append(len(disk.files()[FILE]))
    return disk, written, ends


def sync(store: Store) -> None:
    job = store.begin_sync(everything=True)
    job.run()
    store.end_sync(job)
    assert store.failed is None


def test_a_record_torn_at_any_byte_never_happened() -> None:
    """T4: the whole ones before it are there, where nothing says that it had been synced."""
    disk, written, ends = three()
    without_inventory(disk)
    for length in range(ends[-1] + 1):
        torn = disk.copy()
        torn._names[FILE].live[:] = disk.files()[FILE][:length]
        assert replayed(torn) == [r for r, end in zip(written, ends, strict=True) if end <= length]


@pytest.mark.parametrize("inventory", [True, False])
def test_a_flipped_bit_is_a_torn_end_or_stops_the_start(inventory: bool) -> None:
    """D3: damage is never passed over but in the last record, if nothing says that it had been synced; the text names the file."""
    disk, written, ends = three()
    if not inventory:
        without_inventory(disk)
    for position in range(ends[-1]):
        damaged = disk.copy()
        damaged.flip(FILE, position, position % 8)
        if position >= ends[1] and not inventory:
            assert replayed(damaged) == written[:2]
        else:
            with pytest.raises(StoreError, match=FILE):
                replayed(damaged)


def one_synced() -> tuple[SimDisk, Store, Record]:
    """A store that runs, with one record that is certain."""
    disk = SimDisk(reserving=False)
    store = open_store(disk)
    store.started()
    first = Record(settles=[Settle("ab" * 16, 1, 1, 1)])
    store.journal.write(first)
    sync(store)
    return disk, store, first


def test_unsynced_records_that_a_power_cut_reorders_are_a_torn_end() -> None:
    """A later record may survive without an earlier one: neither had been told to anybody."""
    for seed in range(60):
        disk, store, first = one_synced()
        later = [Record(settles=[Settle("ab" * 16, i, 1, 1)]) for i in (2, 3, 4)]
        for record in later:
            store.journal.write(record)
        found = replayed(disk.crash(Random(seed), hostile=True))
        assert found == [first, *later][: len(found)]
        assert found


def test_sequences_go_on_above_what_queues_have_applied() -> None:
    disk, _, _ = three()
    store = open_store(disk.kill())
    assert len(list(store.journal.replay(7))) == 3
    record = Record(settles=[Settle("ab" * 16, 1, 1, 1)])
    store.journal.write(record)
    assert record.sequence == 8


def test_a_record_that_found_no_room_never_happened() -> None:
    """D4."""
    disk, written, _ = three()
    store = open_store(disk.kill())
    list(store.journal.replay(0))
    store.disk.full = True  # type: ignore[attr-defined]
    with pytest.raises(StoreFull):
        store.journal.write(Record(appends=[Append("ab" * 16, b"k", b"\0\0", b"no room" * 50)]))
    store.disk.full = False  # type: ignore[attr-defined]
    small = Record(settles=[Settle("ab" * 16, 1, 1, 1)])
    store.journal.write(small)
    assert small.sequence == 4
    assert replayed(store.disk.kill()) == [*written, small]  # type: ignore[attr-defined]


def journal_files(disk: SimDisk) -> list[str]:
    return disk.listdir("journal")


def test_damage_at_the_end_of_a_file_is_told_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4, D3: the last transaction in a file was taken for a torn one, although later ones were there, and was gone without a word."""
    monkeypatch.setattr(journals, "ROTATE_BYTES", 100)
    monkeypatch.setattr(journals, "RESERVE_BYTES", 0)
    harness = BrokerHarness(SimDisk(reserving=False))
    harness.declare("q")
    harness.settle_down()
    queue_id = harness.queue("q").log.queue_id
    for i in range(6):
        harness.store.journal.write(Record(appends=[Append(queue_id, address("q"), b"\0\0", b"%d" % i)]))
    sync(harness.store)
    first, *_, last = journal_files(harness.disk)
    without_inventory(harness.disk)
    whole = harness.disk.kill()
    path, size = f"journal/{first}", len(whole.files()[f"journal/{first}"])
    broken = whole.copy()
    broken.flip(path, size - 3)
    before = broken.files()
    with pytest.raises(StoreError, match="is damaged at its end"):
        BrokerHarness(broken.copy())
    found = Survey(broken)
    assert [finding.path for finding in found.findings] == [path] and broken.files() == before
    target = SimDisk()
    Salvage(found, target, ManualClock()).run()
    assert BrokerHarness(target).peek("q") == [b"0", b"2", b"3", b"4", b"5"]
    whole.flip(f"journal/{last}", len(whole.files()[f"journal/{last}"]) - 3)  # nothing tells of that one (P5)
    assert BrokerHarness(whole).peek("q") == [b"0", b"1", b"2", b"3", b"4"]


def test_files_go_one_by_one_while_records_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal grew for ever while a record was always on its way."""
    monkeypatch.setattr(journals, "ROTATE_BYTES", 200)
    harness = BrokerHarness()
    harness.declare("dead")
    harness.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    for i in range(30):
        harness.publish("q", f"{i}".encode() * 20)
        harness.turn()
        harness.sync()
        reject_first(harness)
        harness.turn()
        harness.sync()
        assert len(journal_files(harness.disk)) <= 4
    harness.settle_down()
    assert len(journal_files(harness.disk)) <= 1
    assert len(harness.peek("dead")) == 30


def reject_first(harness: BrokerHarness) -> None:
    queue = harness.queue("q")
    taker = Taker(queue)
    assert queue.get(taker)
    queue.reject(taker.got[0].offset, 1)


def test_a_record_is_not_retired_before_the_queues_have_written_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync that began between the apply and the turn's write let the record go: a confirmed move was lost by a power cut."""
    monkeypatch.setattr(journals, "ROTATE_BYTES", 0)
    harness = BrokerHarness()
    harness.declare("dead")
    harness.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    harness.publish("q", b"m")
    harness.settle_down()
    reject_first(harness)
    harness.turn()
    job = harness.store.begin_sync(everything=True)
    job.run()
    harness.store.end_sync(job)  # applied: "dead" holds the message in memory
    job = harness.store.begin_sync(everything=True)
    job.run()
    harness.store.end_sync(job)
    for seed in range(10):
        other = BrokerHarness(harness.disk.copy().crash(Random(seed), hostile=True))
        assert other.peek("dead") == [b"m"], seed


def test_segments_stay_until_the_journal_is_durably_gone() -> None:
    """An unlinked journal that a power cut brings back found no trace of its records, and applied them again."""
    for seed in range(80):
        harness = journaled()
        harness.cut(Random(seed), hostile=True)
        assert harness.peek("dead") == [], seed


def journaled() -> BrokerHarness:
    """A moved message has been consumed, and so much behind it that its segment is full and goes."""
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(log, "ROLL_WHEN_SETTLED_BYTES", 100)
        harness = BrokerHarness()
        harness.declare("dead")
        harness.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        harness.publish("q", b"m")
        harness.settle_down()
        reject_first(harness)
        harness.settle_down()
        assert harness.drain("dead") == [b"m"]
        harness.turn()
        harness.sync()
        return harness


def test_what_a_record_settles_is_durable_before_the_record() -> None:
    """X4: offsets of messages that a power cut takes are given to others; an old record would settle those."""
    harness = BrokerHarness()
    harness.declare("dead")
    harness.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    harness.publish("q", b"m")
    harness.turn()
    reject_first(harness)
    harness.turn()
    assert not journal_files(harness.disk), "the record was written before the message was synced"
    harness.sync()  # the segment
    harness.sync()  # the inventory
    assert journal_files(harness.disk)
    harness.settle_down()
    assert harness.peek("dead") == [b"m"]


def test_an_expired_message_is_not_moved_twice_by_a_start() -> None:
    """X4: a start expired the message before the journal had said that it was moved already."""
    harness = BrokerHarness()
    harness.declare("dead")
    harness.declare("q", x_message_ttl=1000, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    harness.publish("q", b"m")
    harness.settle_down()
    harness.clock.advance(2)
    harness.broker.tick()
    job = harness.store.begin_sync(everything=True)
    job.run()  # the record is durable, nobody has applied it
    harness.kill()
    harness.settle_down()
    assert harness.peek("dead") == [b"m"]
    assert harness.peek("q") == []


def test_a_replay_takes_the_bodies_out_of_the_books() -> None:
    """x-max-length-bytes counted messages that a replayed record had settled."""
    harness = BrokerHarness()
    harness.declare("dead")
    harness.declare("q", x_max_length_bytes=100, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    harness.publish("q", b"m" * 60)
    harness.publish("q", b"n" * 10)
    harness.settle_down()
    reject_first(harness)
    harness.turn()
    job = harness.store.begin_sync(everything=True)
    job.run()
    harness.kill()
    assert harness.queue("q").ready_bytes == 10
    assert harness.publish("q", b"o" * 80) and harness.peek("q") == [b"n" * 10, b"o" * 80]


def test_a_queue_deleted_between_the_record_and_its_application() -> None:
    """X4: the target takes the message with it, the source lets it go; nothing else happens."""
    for name, left in (("dead", []), ("q", [b"m"])):
        harness = BrokerHarness()
        harness.declare("dead")
        harness.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        harness.publish("q", b"m")
        harness.settle_down()
        reject_first(harness)
        harness.turn()
        job = harness.store.begin_sync(everything=True)
        job.run()
        harness.delete(name)
        harness.store.end_sync(job)
        harness.settle_down()
        other = "q" if name == "dead" else "dead"
        assert harness.peek(other) == left
        assert harness.queue(other).messages == len(left)
        harness.kill()
        assert harness.peek(other) == left


def test_a_torn_record_is_no_damage_after_an_end_in_order() -> None:
    """D3: the start after a kill left the torn record in the file, and the start after that raised an alarm for it."""
    harness = BrokerHarness()
    harness.declare("q")
    harness.store.journal.write(Record(appends=[Append(harness.queue("q").log.queue_id, address("q"), b"\0\0", b"m")]))
    harness.disk._names[FILE].live[20:] = b""
    harness.kill()
    harness.restart()
    assert harness.store.alarms == []


@pytest.mark.parametrize("salt", [0, 1])
def test_a_body_that_is_a_record_is_a_body(salt: int) -> None:
    """T4, W8: the record around it was torn, and the start said that the journal was damaged, or applied what the body held."""
    disk, store, first = one_synced()
    start = len(disk.files()[FILE])
    inner = Record(5, [], [Settle("ab" * 16, 0, 1, 1)], durable=1 << 30)
    body = b"".join(inner.encode(salt)) + b"".join(raw_record(3, b"\x01abc", salt)) + b"z" * 50
    store.journal.write(Record(appends=[Append("ab" * 16, b"key", b"\0\0", body)]))
    whole = disk.files()[FILE]
    for length in range(start, len(whole)):
        torn = disk.copy()
        torn._names[FILE].live[:] = whole[:length]
        assert replayed(torn) == [first]
    for seed in range(40):
        assert replayed(disk.copy().crash(Random(seed), hostile=True))[:1] == [first]


def raw_record(operations: int, body: bytes, salt: int) -> list[bytes]:
    """Any body under a checksum that is right."""
    rest = struct.pack("<QII", 2, operations, 0)
    digest = xxhash.xxh3_64_intdigest(rest + body, salt)
    return [b"KVJ1" + struct.pack("<IQ", 32 + len(body), digest) + rest, body]


@given(st.integers(0, 5), st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda b: b"\x01" + b)))
def test_a_record_that_is_not_what_it_says_is_none(operations: int, body: bytes) -> None:
    """D3: a start ended in an IndexError."""
    found = Record.decode(b"".join(raw_record(operations, body, SALT)), 0, SALT)
    assert found is None or len(found[0].appends) + len(found[0].settles) == operations


def test_a_body_full_of_beginnings_does_not_hold_up_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: each was verified as far as it said, which is the square of the body's length."""
    monkeypatch.setattr(judge, "RESYNC_BYTES", 1 << 20)
    decoded = []
    decode = Record.decode
    monkeypatch.setattr(Record, "decode", lambda data, at, salt: decoded.append(at) or decode(data, at, salt))
    body = b"".join(b"KVJ1" + (64 * (2000 - i)).to_bytes(4, "little") + bytes(56) for i in range(2000)) + b"z"
    disk = SimDisk(reserving=False)
    store = open_store(disk)
    store.journal.write(Record(appends=[Append("ab" * 16, b"key", b"\0\0", body)]))
    disk._names[FILE].live[-1:] = b""
    assert replayed(disk.kill()) == []
    assert len(decoded) < 20


# -- large records, in slices ----------------------------------------------------------------------------------


def large(*bodies: bytes) -> tuple[Record, Record]:
    """A record as a transaction makes it, and as a start finds it."""
    packed, found = Packed(), Record()
    for body in bodies:
        packed.append("ab" * 16, (b"key", b"\0\0", memoryview(body)), -1, 0)
        found.appends.append(Append("ab" * 16, b"key", b"\0\0", body))
    packed.close()
    return Record(packed=packed), found


def expect(found: Record, written: Record) -> Record:
    found.sequence, found.durable = written.sequence, written.durable
    return found


@given(st.lists(st.tuples(st.lists(st.binary(max_size=200), min_size=1, max_size=5), st.integers(0, 90)), min_size=1))
def test_records_in_slices_come_back(written: list[tuple[list[bytes], int]]) -> None:
    """T4; 0: in one piece."""
    disk = SimDisk(reserving=False)
    store = open_store(disk)
    expected = []
    for bodies, most in written:
        record, found = large(*bodies)
        if most:
            while not store.journal.write_some(record, most):
                pass
        else:
            store.journal.write(record)
        expected.append(expect(found, record))
    assert replayed(disk.kill()) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_large_record_that_is_cut_short_never_happened(seed: int) -> None:
    """T4: by a kill or a power cut after any slice, whether a sync has covered those before or not."""
    disk, store, first = one_synced()
    record, found = large(*(bytes([n]) * 300 for n in range(10)))
    complete, rng = False, Random(seed)
    while not complete:
        complete = store.journal.write_some(record, 250)
        expected = [first, *([expect(found, record)] if complete else [])]
        assert replayed(disk.copy().kill()) == expected
        after_cut = replayed(disk.copy().crash(rng, hostile=True))
        assert after_cut == expected[: len(after_cut)] and after_cut
        if rng.random() < 0.5:
            sync(store)


def test_a_large_record_for_which_the_room_ends_never_happened() -> None:
    """D4."""
    disk, store, first = one_synced()
    record, _ = large(bytes(2000))
    store.journal.write_some(record, 500)
    disk.full = True
    with pytest.raises(StoreFull):
        store.journal.write_some(record, 500)
    disk.full = False
    small = Record(settles=[Settle("ab" * 16, 1, 1, 1)])
    store.journal.write(small)
    assert small.sequence == 2 and replayed(disk.kill()) == [first, small]


def test_an_end_in_order_leaves_nothing_of_a_large_record() -> None:
    disk, store, first = one_synced()
    record, _ = large(bytes(2000))
    store.journal.write_some(record, 500)
    size = len(disk.files()[store.journal._names[store.journal._number]])
    store.journal.stop_writing()
    sync(store)
    assert len(disk.files()[store.journal._names[store.journal._number]]) < size
    store.shut()
    assert replayed(disk.kill()) == [first]
