"""The archive: settled segments go there whole, with every outcome, and queues without one are as before."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kvitto.format.settlement import ACKED, DEAD_LETTERED, DROPPED, EXPIRED, PURGED, RANGE_SETTLED, REJECTED
from kvitto.store import archive as archives
from kvitto.store import log as logs
from kvitto.store import pieces
from kvitto.store.repair.survey import Survey
from kvitto.store.store import how_it_ended
from tests.support.archived import ARCHIVE, QUEUES, about, bases, entries
from tests.support.harness import BrokerHarness, Taker
from tests.support.simdisk import SimDisk

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SEGMENT_BYTES", 700)
    monkeypatch.setattr(logs, "ROLL_WHEN_SETTLED_BYTES", 300)


def bodies(start: int, end: int) -> list[bytes]:
    return [f"message {i}".ljust(100, ".").encode() for i in range(start, end)]


def put(harness: BrokerHarness, *messages: bytes, queue: str = "q") -> None:
    """One batch for each."""
    for body in messages:
        harness.publish(queue, body)
        harness.turn()


def settled_harness(count: int = 12, disk: SimDisk | None = None, **arguments: Any) -> tuple[BrokerHarness, str]:
    """A queue that had `count` messages, all acked, at rest; and its id."""
    harness = BrokerHarness(disk)
    queue_id = harness.declare("q", x_archive=True, **arguments).log.queue_id
    put(harness, *bodies(0, count))
    harness.settle_down()
    assert harness.drain("q") == bodies(0, count)
    harness.settle_down()
    return harness, queue_id


def look(harness: BrokerHarness, seconds: float = 60.0) -> None:
    """What the next look brings."""
    harness.clock.advance(seconds)
    harness.broker.tick()
    harness.settle_down()


# -- in ------------------------------------------------------------------------------------------------------


def test_settled_segments_move_whole_with_their_settlements() -> None:
    """Byte for byte, and the queue's directory has none of them any more."""
    harness = BrokerHarness()
    queue_id = harness.declare("q", x_archive=True).log.queue_id
    put(harness, *bodies(0, 12))
    harness.settle_down()
    before = harness.disk.files()
    waiting = bases(before, queue_id, QUEUES)
    assert len(waiting) > 2 and bases(before, queue_id) == []
    harness.drain("q")
    harness.settle_down()
    files = harness.disk.files()
    moved = bases(files, queue_id)
    assert moved == waiting and bases(files, queue_id, suffix=".ack") == moved
    assert bases(files, queue_id, QUEUES) == [12], "the last one says which offset is next"
    for base in moved[:-1]:
        path = f"{queue_id}/{base:020d}.log"
        assert files[f"{ARCHIVE}/{path}"] == before[f"{QUEUES}/{path}"]
    found = entries(files, queue_id)
    assert {o: e.body for o, e in found.items()} == dict(enumerate(bodies(0, 12)))
    assert all(e.outcome == ACKED and e.place == ARCHIVE for e in found.values())
    harness.kill()
    assert harness.queue("q").next == 12 and harness.peek("q") == []


def test_a_reader_learns_whose_segments_these_are() -> None:
    """queue.json is beside the live segments from the declaration on."""
    harness = BrokerHarness()
    queue_id = harness.declare("q", x_archive=True, x_archive_max_age="7D").log.queue_id
    arguments = {"x-archive": True, "x-archive-max-age": "7D"}
    expected = {"vhost": "/", "queue": "q", "id": queue_id, "arguments": arguments}
    harness.settle_down()
    assert about(harness.disk.crash(Random(1)).files(), queue_id, QUEUES) == expected
    harness, queue_id = settled_harness()
    assert about(harness.disk.files(), queue_id)["queue"] == "q"


def test_what_a_power_cut_left_of_queue_json_is_written_anew() -> None:
    harness, queue_id = settled_harness()
    for place in (QUEUES, ARCHIVE):
        harness.disk._names[f"{place}/{queue_id}/queue.json"].live[5:] = b""
        found = SimDisk(boot=2)
        found._names = harness.disk.copy()._names
        said = [str(finding) for finding in Survey(found).findings]
        assert all("whose archive this is" in text for text in said) and len(said) == (place == ARCHIVE)
    harness.kill()
    harness.settle_down()
    for place in (ARCHIVE, QUEUES):
        assert about(harness.disk.crash(Random(1)).files(), queue_id, place)["id"] == queue_id
        harness.disk._dead = False


@pytest.mark.parametrize("place", [QUEUES, ARCHIVE])
@pytest.mark.parametrize("wrong", [b"", b"{}\n", b'{"vhost": "/"', None])
def test_a_start_tells_of_a_damaged_queue_json_as_check_does(place: str, wrong: bytes | None) -> None:
    """The start wrote it anew in silence, and `check` had called it damage."""
    harness, queue_id = settled_harness()
    disk = harness.disk.kill()
    path = f"{place}/{queue_id}/queue.json"
    if wrong is None:
        disk.unlink(path)
    else:
        disk._names[path].live[:] = wrong
    told = [finding.path for finding in Survey(disk.copy()).findings]
    assert told == ([] if wrong is None and place == QUEUES else [path])
    harness = BrokerHarness(disk)
    assert [text.partition(" ")[0] for text in harness.store.alarms] == told
    assert about(harness.disk.files(), queue_id, place)["id"] == queue_id
    harness.restart()
    assert not harness.store.alarms and not Survey(harness.disk.copy()).findings


def test_a_start_tells_of_an_archive_that_is_nobody_s() -> None:
    """`check` called that damage, and the start was silent: nothing bounds such an archive."""
    harness, queue_id = settled_harness()
    harness.restart()
    look(harness, 3600)
    harness.broker.vhosts["/"].delete_queue(harness.queue("q"), False, False)
    harness.settle_down()
    assert bases(harness.disk.files(), queue_id)
    disk = harness.disk.kill()
    disk._names[f"{ARCHIVE}/{queue_id}/queue.json"].live[:1] = b"?"
    assert len(Survey(disk.copy()).findings) == 1
    [alarm] = BrokerHarness(disk).store.alarms
    assert alarm.startswith(f"{ARCHIVE}/{queue_id}/queue.json is missing, or does not say which queue this is")


def test_a_message_that_is_consumed_at_once_is_written_only_for_an_archive() -> None:
    """The shortcut of adr/0004 is for queues that have none: what is never written is in no archive."""
    harness = BrokerHarness()
    for name, arguments in (("kept", {"x_archive": True}), ("plain", {}), ("off", {"x_archive": False})):
        queue = harness.declare(name, **arguments)
        queue.add_consumer(Taker(queue, no_ack=True))
        put(harness, b"gone", queue=name)
        assert bool(queue.log.segments) == (name == "kept")
    harness.settle_down()
    queue_id = harness.queue("kept").log.queue_id
    (entry,) = entries(harness.disk.files(), queue_id).values()
    assert (entry.body, entry.outcome, entry.deliveries) == (b"gone", ACKED, 1)
    harness.kill()
    assert harness.peek("kept") == [] and harness.queue("kept").next == 1


def test_a_queue_without_an_archive_unlinks_its_segments() -> None:
    """As before: no directory, no queue.json, and a small segment stays however old it is."""
    harness = BrokerHarness()
    for name, arguments in (("plain", {}), ("off", {"x_archive": False})):
        queue = harness.declare(name, **arguments)
        put(harness, *bodies(0, 12), queue=name)
        harness.settle_down()
        harness.drain(name)
        harness.settle_down()
        put(harness, b"small", queue=name)
        harness.drain(name)
        look(harness, 2 * HOUR_S)
        names = harness.disk.listdir(queue.log.directory)
        assert [n for n in names if n.endswith(".log")] == [f"{12:020d}.log"]
        assert "queue.json" not in names
    assert not any(path.startswith(ARCHIVE) for path in harness.disk.files())
    assert len(harness.broker.timers) == 0


def test_a_small_segment_goes_after_an_hour_and_not_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few small files; what still waits holds up nothing but its own segment."""
    monkeypatch.setattr(logs, "ROLL_WHEN_SETTLED_BYTES", 1 << 20)
    harness = BrokerHarness()
    queue_id = harness.declare("q", x_archive=True).log.queue_id
    put(harness, b"a")
    harness.drain("q")
    look(harness, HOUR_S - 60)
    assert bases(harness.disk.files(), queue_id) == []
    look(harness)
    assert bases(harness.disk.files(), queue_id) == [0]
    for body in (b"b", b"c", b"d"):
        put(harness, body)
        harness.drain("q")
        look(harness, HOUR_S / 4)
    assert bases(harness.disk.files(), queue_id) == [0]
    put(harness, b"e")
    look(harness, HOUR_S / 4)
    assert bases(harness.disk.files(), queue_id) == [0], "e still waits"
    harness.drain("q")
    harness.settle_down()
    assert bases(harness.disk.files(), queue_id) == [0, 1]
    assert [e.body for e in entries(harness.disk.files(), queue_id).values()] == [b"a", b"b", b"c", b"d", b"e"]


def test_an_hour_is_an_hour_however_often_the_broker_is_started() -> None:
    harness = BrokerHarness()
    queue_id = harness.declare("q", x_archive=True).log.queue_id
    put(harness, b"a")
    harness.drain("q")
    harness.turn()
    for i in range(4):
        assert bases(harness.disk.files(), queue_id) == []
        harness.clock.advance(HOUR_S / 4)
        harness.restart() if i % 2 else harness.kill()
    harness.settle_down()
    assert bases(harness.disk.files(), queue_id) == [0]


# -- what is told --------------------------------------------------------------------------------------------


def test_every_way_out_of_a_queue_has_its_own_outcome() -> None:
    """Outcome, time, and number of deliveries, also of what came back first."""
    harness = BrokerHarness()
    queue = harness.declare("q", x_archive=True, x_max_length=4, x_delivery_limit=2)
    expected = {}

    def leaves(body: bytes, outcome: int, deliveries: int) -> None:
        expected[body] = (outcome, deliveries, harness.clock.now_ms())
        harness.turn()
        harness.clock.advance(1.0)

    def take(body: bytes, times: int) -> int:
        """Publish, deliver so many times, and give it back all but the last time."""
        put(harness, body)
        taker = Taker(queue)
        for _ in range(times):
            assert queue.get(taker)
            if len(taker.got) < times:
                queue.requeue(taker.got[-1].offset, 1, len(body))
        return taker.got[-1].offset

    queue.ack(take(b"acked", 1), 1)
    leaves(b"acked", ACKED, 1)
    queue.ack(take(b"acked late", 2), 1)
    leaves(b"acked late", ACKED, 2)
    queue.reject(take(b"rejected", 1), 1)
    leaves(b"rejected", REJECTED, 1)
    queue.requeue(take(b"limit", 3), 1, 5)
    leaves(b"limit", DROPPED, 3)
    harness.broker.read_clock()
    harness.publish("q", b"expired", 500)
    harness.turn()
    harness.clock.advance(0.5)
    queue.mark_dirty()
    leaves(b"expired", EXPIRED, 0)
    queue.requeue(take(b"purged late", 1), 1, 11)
    put(harness, b"purged")
    queue.purge()
    leaves(b"purged late", PURGED, 1)
    expected[b"purged"] = (PURGED, 0, expected[b"purged late"][2])
    put(harness, b"range")
    queue.settle_until(queue.next)
    leaves(b"range", RANGE_SETTLED, 0)
    queue.requeue(take(b"pushed out late", 1), 1, 15)
    put(harness, *(f"waits {i}".encode() for i in range(4)))
    leaves(b"pushed out late", DROPPED, 1)
    put(harness, b"waits 4")
    leaves(b"waits 0", DROPPED, 0)
    found = list(entries(harness.disk.files(), queue.log.queue_id).values())
    assert {e.body: (e.outcome, e.deliveries, e.time_ms) for e in found if e.outcome} == expected
    assert [e.body for e in found if not e.outcome] == [f"waits {i}".encode() for i in range(1, 5)]


def test_a_dead_letter_is_settled_when_it_has_moved() -> None:
    """X4: rejected, too old after it came back, and too old before anybody had it."""
    harness = BrokerHarness()
    harness.declare("dead")
    queue = harness.declare(
        "q", x_archive=True, x_dead_letter_exchange="", x_dead_letter_routing_key="dead", x_message_ttl=5000
    )
    put(harness, b"rejected", b"came back", b"new")
    harness.settle_down()
    taker = Taker(queue)
    for _ in range(2):
        queue.get(taker)
    queue.reject(0, 1)
    harness.settle_down()
    queue.requeue(1, 1, 9)
    harness.clock.advance(10.0)
    queue.mark_dirty()
    harness.settle_down()
    found = entries(harness.disk.files(), queue.log.queue_id).values()
    assert {e.body: (e.outcome, e.deliveries) for e in found} == {
        b"rejected": (DEAD_LETTERED, 1),
        b"came back": (DEAD_LETTERED, 1),
        b"new": (DEAD_LETTERED, 0),
    }
    assert len(harness.peek("dead")) == 3


# -- out -----------------------------------------------------------------------------------------------------


def test_an_archive_is_bounded_by_age_oldest_first() -> None:
    """At every look, and at a start; by the time of the newest settlement."""
    harness, queue_id = settled_harness(x_archive_max_age="1h")
    harness.clock.advance(HOUR_S / 2)
    put(harness, *bodies(12, 20))
    harness.drain("q")
    harness.settle_down()
    all_of_it = bases(harness.disk.files(), queue_id)
    young = [base for base in all_of_it if base >= 12]
    assert young and young != all_of_it
    look(harness, HOUR_S / 2)
    assert bases(harness.disk.files(), queue_id) == young == bases(harness.disk.files(), queue_id, suffix=".ack")
    harness.clock.advance(HOUR_S)
    harness.kill()
    harness.settle_down()
    assert bases(harness.disk.files(), queue_id) == [] == bases(harness.disk.files(), queue_id, suffix=".ack")
    assert harness.queue("q").next == 20


def test_an_archive_is_bounded_by_size_oldest_first() -> None:
    """When a segment comes, and at a start."""
    harness, queue_id = settled_harness(24)
    whole = harness.disk.files()
    every = bases(whole, queue_id)
    for kill in (False, True):
        harness, queue_id = settled_harness(12 if kill else 24, x_archive_max_length_bytes=3000)
        if kill:
            (first, *_) = bases(harness.disk.files(), queue_id)
            harness.disk._names[f"archive/{queue_id}/{first:020d}.log"].live.extend(bytes(3000))
            harness.kill()
            harness.settle_down()
        files = harness.disk.files()
        left = bases(files, queue_id)
        assert left == bases(files, queue_id, suffix=".ack")
        size = sum(len(data) for path, data in files.items() if f"{ARCHIVE}/{queue_id}/0" in path)
        assert 0 < size <= 3000
        if not kill:
            assert left == every[-len(left) :]


def test_the_settlements_of_a_segment_go_after_it() -> None:
    """No reader ever takes what was settled for what still waits."""
    for seed in range(60):
        harness, queue_id = settled_harness(x_archive_max_age="1h")
        harness.clock.advance(HOUR_S)
        harness.broker.tick()
        for _ in range(seed % 4):
            harness.turn()
            if harness.store.commits.dirty:
                harness.sync()
        disk = harness.disk.crash(Random(seed), hostile=True)
        files = disk.files()
        assert set(bases(files, queue_id)) <= set(bases(files, queue_id, suffix=".ack"))
        harness = BrokerHarness(disk, harness.clock)
        harness.settle_down()
        assert bases(harness.disk.files(), queue_id) == [] == bases(harness.disk.files(), queue_id, suffix=".ack")


def test_many_segments_are_unlinked_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop waits for it; the next look is soon."""
    harness, queue_id = settled_harness(40, x_archive_max_age="1h")
    monkeypatch.setattr(archives, "TRIMMED_AT_ONCE", 2)
    left = len(bases(harness.disk.files(), queue_id))
    assert left > 10
    look(harness, HOUR_S)  # now the last one comes, and that is another call
    while left:
        before, left = left, len(bases(harness.disk.files(), queue_id))
        assert before - 4 <= left < before
        look(harness, 1.0)


def test_files_that_somebody_took_out_of_an_archive_are_not_missed() -> None:
    """It is there to be used: a file that is gone ended the process."""
    harness, queue_id = settled_harness(x_archive_max_age="1h")
    for base in bases(harness.disk.files(), queue_id)[:2]:
        harness.disk.unlink(f"{ARCHIVE}/{queue_id}/{base:020d}.log")
    harness.disk.unlink(f"{ARCHIVE}/{queue_id}/{0:020d}.ack")
    look(harness, HOUR_S)
    assert bases(harness.disk.files(), queue_id) == []
    harness.disk.rmtree(f"{ARCHIVE}/{queue_id}")
    put(harness, *bodies(12, 24))
    harness.drain("q")
    harness.settle_down()
    assert len(bases(harness.disk.files(), queue_id)) > 1
    assert about(harness.disk.files(), queue_id)["queue"] == "q"


def test_a_damaged_segment_goes_as_it_is_also_if_there_was_no_room_for_a_copy() -> None:
    """D3: the archive has what can be read of it."""
    harness = BrokerHarness()
    queue_id = harness.declare("q", x_archive=True).log.queue_id
    put(harness, *bodies(0, 12))
    harness.settle_down()
    path = f"{QUEUES}/{queue_id}/{3:020d}.log"
    harness.disk.flip(path, harness.disk.files()[path].index(b"message 4"))
    harness.disk.free = 0
    harness.drain("q")
    harness.disk.free = 1 << 40
    harness.settle_down()
    files = harness.disk.files()
    assert harness.store.alarms and path.replace(".log", ".bad") in files
    assert files[f"{ARCHIVE}/{queue_id}/{3:020d}.log"] == files[path.replace(".log", ".bad")]
    assert {e.body for e in entries(files, queue_id).values()} >= set(bodies(0, 4)) | set(bodies(6, 12))


# -- the queue goes ------------------------------------------------------------------------------------------


def test_the_archive_of_a_deleted_queue_stays_and_gets_what_was_settled() -> None:
    """Also what was settled in the same turn; segments with messages that waited go."""
    harness = BrokerHarness()
    queue = harness.declare("q", x_archive=True, x_archive_max_age="1h")
    queue_id = queue.log.queue_id
    put(harness, *bodies(0, 12))
    harness.settle_down()
    taker = Taker(queue, room=6)
    queue.add_consumer(taker)
    harness.turn()
    last = queue.log.segments[1].end
    queue.ack(0, last)
    harness.delete("q")
    harness.settle_down()
    files = harness.disk.files()
    assert harness.disk.listdir(QUEUES) == []
    assert {e.body: e.outcome for e in entries(files, queue_id).values()} == dict.fromkeys(bodies(0, last), ACKED)
    harness.kill()
    harness.settle_down()
    assert harness.disk.files()[f"{ARCHIVE}/{queue_id}/{0:020d}.log"]
    look(harness, HOUR_S)
    look(harness)
    assert not any(queue_id in path for path in harness.disk.files()), "its bounds hold"


def test_a_small_segment_of_a_deleted_queue_does_not_wait_for_its_hour() -> None:
    harness = BrokerHarness()
    queue_id = harness.declare("q", x_archive=True).log.queue_id
    put(harness, b"small")
    harness.drain("q")
    harness.delete("q")
    harness.settle_down()
    (entry,) = entries(harness.disk.files(), queue_id).values()
    assert (entry.body, entry.place) == (b"small", ARCHIVE)
    assert harness.disk.listdir(QUEUES) == [] and not harness.store.leaving


def test_a_purged_queue_tells_so_in_its_archive() -> None:
    harness = BrokerHarness()
    queue_id = harness.declare("q", x_archive=True).log.queue_id
    put(harness, *bodies(0, 12))
    harness.queue("q").purge()
    harness.settle_down()
    found = entries(harness.disk.files(), queue_id).values()
    assert len(found) == 12 and all((e.outcome, e.place) == (PURGED, ARCHIVE) for e in found)


# -- what the disk does --------------------------------------------------------------------------------------


def test_without_hard_links_a_copy_is_made() -> None:
    disk = SimDisk()
    disk.linking = False
    harness, queue_id = settled_harness(disk=disk)
    files = harness.disk.files()
    assert {e.body: e.place for e in entries(files, queue_id).values()} == dict.fromkeys(bodies(0, 12), ARCHIVE)
    assert bases(files, queue_id, QUEUES) == [12]
    assert not any(path.endswith(".new") for path in files)


def test_a_copy_that_finds_no_room_is_made_later() -> None:
    """D4: the segment stays where it is."""
    harness = BrokerHarness()
    harness.disk.linking = False
    queue_id = harness.declare("q", x_archive=True).log.queue_id
    put(harness, *bodies(0, 12))
    harness.settle_down()
    harness.disk.free = 0
    harness.drain("q")
    harness.settle_down()
    files = harness.disk.files()
    assert bases(files, queue_id) == [] and len(bases(files, queue_id, QUEUES)) > 2
    harness.disk.free = 1 << 40
    look(harness)
    assert len(bases(harness.disk.files(), queue_id)) > 1
    assert bases(harness.disk.files(), queue_id, QUEUES) == [12]


def test_a_full_disk_is_tried_again_at_the_next_look_and_not_at_each_turn(caplog: pytest.LogCaptureFixture) -> None:
    """D4: one line in the log, not one for each turn."""
    harness = BrokerHarness()
    queue_id = harness.declare("q", x_archive=True).log.queue_id
    harness.settle_down()
    put(harness, *bodies(0, 30))
    harness.settle_down()
    harness.disk.linking, harness.disk.free = False, 0
    taker = Taker(harness.queue("q"))
    for offset in range(30):
        harness.queue("q").get(taker)
        harness.queue("q").ack(offset, 1)
        harness.settle_down()
    assert [r.message for r in caplog.records] == [
        f"there is no room for a copy in {ARCHIVE}/{queue_id}: segments that are settled stay in the directory of their queue"
    ]
    harness.disk.linking = True
    look(harness)
    assert len(bases(harness.disk.files(), queue_id)) > 5


def test_an_orderly_end_leaves_an_archiving_queue_in_order() -> None:
    """The end waits for what is on its way."""
    harness = BrokerHarness()
    queue_id = harness.declare("q", x_archive=True).log.queue_id
    put(harness, *bodies(0, 12))
    harness.drain("q")
    harness.broker.finish()
    harness.store.shut()
    assert len(bases(harness.disk.files(), queue_id)) > 2
    assert bases(harness.disk.files(), queue_id, QUEUES) == [12]
    harness.disk = harness.disk.kill()
    harness.start()
    assert harness.store.ending.in_order and not harness.store.alarms


def test_no_power_cut_while_an_archive_is_removed_looks_like_damage() -> None:
    """The directory went before the inventory had durably forgotten its segments."""
    harness, _ = settled_harness(3, x_archive_max_age="1h")
    harness.delete("q")
    look(harness)
    assert harness.disk.listdir(ARCHIVE)
    harness.clock.advance(HOUR_S + 60)
    for _ in range(6):
        harness.clock.advance(1.0)
        harness.broker.tick()
        for seed in range(20):
            disk = harness.disk.copy().crash(Random(seed), hostile=bool(seed % 2))
            assert Survey(disk.copy()).findings == []
            assert BrokerHarness(disk).store.alarms == []
        harness.turn()
        if harness.store.commits.dirty:
            harness.sync()
    assert harness.disk.listdir(ARCHIVE) == []


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_removed_from_an_archive_by_hand_is_missed_once(whole: bool, deleted: bool) -> None:
    """By `kvitto check`, which said that no message had been in it, and by a start, which overlooked the archive of a deleted queue."""
    harness, queue_id = settled_harness()
    if deleted:
        harness.delete("q")
        look(harness)
    stop(harness)
    disk, directory = harness.disk.kill(), f"{ARCHIVE}/{queue_id}"
    if whole:
        disk.rmtree(directory)
    else:
        for suffix in (".log", ".ack"):
            disk.unlink(f"{directory}/{0:020d}{suffix}")
    said = [str(finding) for finding in Survey(disk.copy()).findings]
    assert said and all("is missing: the archive does not have its messages any more" in text for text in said)
    harness = BrokerHarness(disk)
    assert harness.store.alarms and all(text.startswith(directory) for text in harness.store.alarms)
    stop(harness)
    assert Survey(harness.disk.kill()).findings == []
    assert BrokerHarness(harness.disk.kill()).store.alarms == []


def stop(harness: BrokerHarness) -> None:
    harness.settle_down()
    harness.broker.finish()
    harness.store.shut()


@pytest.mark.parametrize("linking", [True, False])
def test_an_end_in_order_waits_until_a_chain_of_archives_has_all(linking: bool) -> None:
    """Each of them settles what goes to the next one, and each copy takes syncs of its own."""
    harness = BrokerHarness()
    harness.disk.linking = linking
    for k in range(4):
        to_next: dict[str, Any] = {
            "x_dead_letter_exchange": "",
            "x_dead_letter_routing_key": f"q{k + 1}",
            "x_max_length": 3,
        }
        harness.declare(f"q{k}", x_archive=True, **(to_next if k < 3 else {}))
    for body in bodies(0, 40):
        harness.publish("q0", body)
        harness.turn()
    for k in range(4):
        harness.drain(f"q{k}")
    harness.broker.finish()
    harness.store.shut()
    assert how_it_ended(harness.disk).in_order


def test_a_copy_that_is_given_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue goes out of service half-way: no bytes of it stay, and no open file."""
    monkeypatch.setattr(pieces, "SLICE_BYTES", 100)
    harness = BrokerHarness()
    harness.disk.linking = False
    queue = harness.declare("q", x_archive=True)
    put(harness, *bodies(0, 20))
    harness.settle_down()
    harness.drain("q")

    def half() -> dict[str, bytes]:
        return {path: data for path, data in harness.disk.files().items() if path.endswith(".log.new") and data}

    for _ in range(100):
        if half():
            break
        if harness.store.commits.dirty:
            harness.sync()
        else:
            harness.turn()
    assert harness.store.copies.waiting and half()
    queue.contain(RuntimeError("a bug"))
    harness.settle_down()
    assert not harness.store.copies.waiting and not half()
