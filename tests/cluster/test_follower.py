"""A follower takes what a leader has, keeps what it had itself, and refuses what it should not take."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
import xxhash

from kvitto.base.errors import StoreError, StoreFull
from kvitto.cluster import counting, state
from kvitto.cluster import follower as module
from kvitto.cluster.counting import is_segment
from kvitto.cluster.follower import LOOK_MS, Follower
from kvitto.cluster.handshake import Refused
from kvitto.cluster.link import Behind
from kvitto.cluster.promotion import promote
from kvitto.cluster.records import Kind, StreamError, two_paths
from kvitto.cluster.state import HISTORY_KEPT, new_entry, new_id, read_following
from kvitto.format.layouts import FILE_HEAD
from kvitto.store import paths
from kvitto.store.disk import Disk, File
from kvitto.store.segment import Segment, created_ms, salts
from kvitto.store.store import Store
from tests.cluster.pairs import KEY, Leading, Pair
from tests.support.clock import ManualClock
from tests.support.harness import BrokerHarness
from tests.support.simdisk import PowerCut, SimDisk


def following(messages: int = 20) -> Pair:
    """A pair that is together."""
    pair = Pair()
    pair.leading.declare("q")
    publish(pair.leading, *(f"message {i}" for i in range(messages)))
    pair.pump()
    assert pair.link.state == "following" and pair.own == pair.theirs
    return pair


def publish(leading: BrokerHarness, *bodies: str) -> None:
    for body in bodies:
        leading.publish("q", body.encode())
    leading.settle_down()


def bodies(disk: SimDisk) -> list[bytes]:
    """What a broker has that starts on a copy of the disk after a promotion."""
    copy = disk.copy().kill()
    promote(copy)
    return BrokerHarness(copy).peek("q")


def replaced(disk: SimDisk) -> dict[str, bytes]:
    """What was set aside, by its own name."""
    return {
        path.split("/", 2)[2]: content
        for path, content in disk.files().items()
        if path.startswith(paths.REPLACED + "/")
    }


# -- it has what the leader has ------------------------------------------------------------------------------------


def test_it_has_each_commit_when_it_has_acknowledged_it() -> None:
    pair = following(3)
    publish(pair.leading, "late")
    assert pair.link.lag_bytes != 0
    assert b"late" not in bodies(pair.disk)
    pair.rest()
    assert pair.link.lag_bytes == 0 and pair.own == pair.theirs
    assert bodies(pair.disk) == [b"message 0", b"message 1", b"message 2", b"late"]


def test_what_waits_is_flagged_after_a_promotion() -> None:
    """The leader's last deliveries may not have come."""
    pair = following(1)
    promote(pair.disk)
    (delivery,) = BrokerHarness(pair.disk).take("q")
    assert delivery.redelivered


def test_a_connection_that_breaks_goes_on_where_it_was() -> None:
    pair = following()
    publish(pair.leading, "more")
    pair.connect()
    pair.pump()
    assert pair.link.files == 0 and pair.own == pair.theirs and pair.told.count("comparing files with leader") == 1


def test_a_follower_that_starts_again_sends_checksums_and_gets_what_differs() -> None:
    pair = following(2000)
    publish(pair.leading, "more")
    pair.disk = pair.disk.kill()
    pair.begin()
    pair.pump()
    assert pair.own == pair.theirs and 0 < pair.link.sent < 10_000
    assert replaced(pair.disk).keys() <= {paths.INVENTORY}, "what only grows is not replaced"


def test_a_follower_that_is_further_behind_than_the_ring_compares_again() -> None:
    pair = Pair(Leading(ring_bytes=5000))
    pair.leading.declare("q")
    pair.leading.settle_down()
    pair.pump()
    publish(pair.leading, *(f"message {i}" for i in range(100)))
    with pytest.raises(Behind):
        pair.pump()
    pair.connect()
    pair.pump()
    assert pair.link.files > 0 and pair.own == pair.theirs


def test_a_leader_that_starts_again_has_another_stream() -> None:
    pair = following()
    publish(pair.leading, "unsent")
    pair.leading = Leading(pair.leading.inner.kill())
    pair.connect()
    pair.pump()
    assert pair.link.files > 0 and pair.own == pair.theirs
    assert bodies(pair.disk)[-1] == b"unsent"


def test_an_end_in_order_comes_over_whole() -> None:
    pair = following()
    pair.leading.broker.finish()
    pair.leading.store.shut()
    pair.pump()
    assert pair.own == {path: data for path, data in pair.leading.inner.files().items() if not paths.is_local(path)}


# -- what it had itself is kept ------------------------------------------------------------------------------------


def test_a_leader_of_before_may_follow_and_what_only_it_had_is_kept() -> None:
    pair = following(2)
    promote(pair.disk)
    old = BrokerHarness(pair.leading.inner.kill())
    publish(old, "only here")
    old.declare("own")
    old.publish("own", b"own message")
    old.settle_down()
    own = old.queue("own").log.directory
    mine = next(path for path in old.disk.files() if path.startswith(own) and path.endswith(".log"))
    content = old.disk.files()[mine]
    new = Pair(Leading(pair.disk.kill()), old.disk.kill())
    publish(new.leading, "of the new leader")
    new.pump()
    assert new.own == new.theirs
    assert bodies(new.disk) == [b"message 0", b"message 1", b"of the new leader"]
    kept = replaced(new.disk)
    assert kept[mine] == content
    assert any(b"only here" in data for data in kept.values())


def test_a_hard_link_of_a_file_that_is_overwritten_keeps_what_it_had() -> None:
    """A backup may have links to segments."""
    pair = following(2)
    promote(pair.disk)
    old = BrokerHarness(pair.leading.inner.kill())
    publish(old, "only here")
    path = next(path for path in old.disk.files() if path.startswith("queues/") and path.endswith(".log"))
    disk = old.disk.kill()
    content = disk.files()[path]
    disk.link(path, "spare.new")  # any name that nobody looks at
    new = Pair(Leading(pair.disk.kill()), disk)
    publish(new.leading, "of the new leader")
    new.pump()
    assert new.own == new.theirs and new.own[path] != content
    assert disk.files()["spare.new"] == content


def test_what_was_replaced_is_kept_for_a_day() -> None:
    pair = following()
    pair.disk.makedirs("queues/" + "0" * 32)
    pair.disk.open("queues/" + "0" * 32 + "/mine", create=True).write_at(0, [b"mine"])
    pair.disk = pair.disk.kill()
    pair.begin()
    pair.pump()
    name = "queues/" + "0" * 32 + "/mine"
    assert replaced(pair.disk)[name] == b"mine"
    pair.leading.clock.advance(23 * 3600)
    pair.rest()
    assert name in replaced(pair.disk)
    pair.leading.clock.advance(2 * 3600 + LOOK_MS / 1000)
    pair.rest()
    assert not replaced(pair.disk)


def test_a_full_disk_gets_room_from_what_earlier_leaders_have_replaced() -> None:
    """A history keeps the latest elections only. When it was as long as it may be, a node took all leaders for one, and stayed full."""
    pair = following()
    name = "queues/" + "0" * 32 + "/mine"
    elections = [new_entry(), *map(new_entry, range(1, HISTORY_KEPT + 1))]
    for epoch in (500, 501):
        pair.disk.makedirs(name.rpartition("/")[0])
        pair.disk.open(name, create=True).write_at(0, [b"mine"])
        pair.disk = pair.disk.kill()
        pair.leading.leader.history = [*elections, new_entry(epoch)]
        pair.leading.leader.session = new_id()
        pair.begin()
        pair.follower._judge = lambda own, leaders: ""
        pair.pump()
        pair.leading.clock.advance(2)
    assert {found.partition("-")[0] for found in pair.disk.listdir("replaced")} == {"500", "501"}
    assert pair.follower.make_room()
    assert {found.partition("-")[0] for found in pair.disk.listdir("replaced")} == {"501"}
    assert not pair.follower.make_room(), "the leader of now may be the wrong one, if etcd was set back"


def test_a_copy_that_the_leader_calls_damaged_is_kept() -> None:
    pair = following()
    path = next(path for path in pair.own if path.endswith(".log") and path.startswith("queues/"))
    content = pair.own[path]
    pair.leading.tapped.rename(path, path.replace(".log", ".bad"))
    pair.pump()
    assert path not in pair.own and replaced(pair.disk)[path] == content


def test_a_leader_that_lacks_most_of_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the damaged one."""
    monkeypatch.setattr(module, "SMALL_BYTES", 1000)
    pair = following(1000)
    before = pair.disk.files()
    pair.leading.delete("q")
    pair.leading.settle_down()
    pair.leading = Leading(pair.leading.inner.kill())
    pair.disk = pair.disk.kill()
    pair.begin()
    with pytest.raises(Refused, match="may be the damaged one"):
        pair.pump()
    assert pair.disk.files() == before and len(bodies(pair.disk)) == 1000


def test_a_leader_that_has_let_go_most_of_it_in_one_run_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL_BYTES", 1000)
    pair = following(1000)
    pair.leading.delete("q")
    pair.leading.settle_down()
    pair.disk = pair.disk.kill()
    pair.begin()
    pair.pump()
    assert pair.own == pair.theirs


# -- what it refuses -----------------------------------------------------------------------------------------------


def refused(pair: Pair, text: str) -> None:
    before = pair.disk.files()
    with pytest.raises(Refused, match=text):
        pair.pump()
    assert pair.disk.files() == before, "nothing is overwritten"


def test_another_key_is_refused() -> None:
    pair = following()
    pair.begin(key=b"another key")
    refused(pair, "has another key")


def test_a_follower_that_does_not_prove_its_key_is_told_why() -> None:
    pair = following()
    pair.begin()
    pair.link.take(pair.answers)
    forged = Follower(pair.disk, pair.leading.clock, KEY, "leader", print)
    forged.begin()
    forged._nonce = pair.follower._nonce
    (answer,) = forged.feed(b"".join(pair.link.pieces()))
    damaged = answer.replace(b'"place": 0', b'"place": 1')
    assert damaged != answer
    with pytest.raises(Refused, match="has another key"):
        pair.link.take(damaged)
    with pytest.raises(Refused, match="the follower has another key"):
        list(pair.follower.feed(pair.link.last_words[:0] + greeting_before(pair) + pair.link.last_words))


def greeting_before(pair: Pair) -> bytes:
    """The leader's first message, for a follower that has not had it."""
    from kvitto.cluster import handshake

    said = {"version": handshake.VERSION, "nonce": pair.link._nonce}
    return handshake.proved(KEY, handshake.LEADER, pair.follower._nonce, pair.link._nonce, said)


def test_another_leaders_directory_is_refused() -> None:
    pair = Pair(Leading(), following().disk)
    refused(pair, "belongs to another leader")


def test_a_leader_of_an_older_epoch_is_refused() -> None:
    pair = following()
    promote(pair.disk)
    pair.begin()
    refused(pair, "a newer epoch than that leader")


def test_two_that_were_promoted_from_one_do_not_follow_each_other() -> None:
    pair = following()
    twin = pair.disk.copy().kill()
    promote(pair.disk)
    promote(twin)
    refused(Pair(Leading(pair.disk.kill()), twin), "have both been promoted")


def test_a_brokers_own_directory_does_not_follow() -> None:
    harness = BrokerHarness()
    with pytest.raises(Refused, match="is not empty and has never followed a leader"):
        Pair(Leading(), harness.disk)


def test_a_follower_whose_first_change_was_cut_short_follows() -> None:
    """Its disk was full, or its process was killed, when it noted that it follows."""
    disk = SimDisk(1000)
    disk.open(paths.copying(paths.FOLLOWS), create=True).write_at(0, [b"{"])
    pair = Pair(disk=disk)
    pair.pump()
    assert pair.link.state == "following" and pair.own == pair.theirs


def test_a_copy_of_a_directory_does_not_follow_beside_it() -> None:
    pair = following()
    before = pair.link
    pair.disk = pair.disk.copy().kill()
    pair.begin()
    pair.leading.leader.links.append(before)
    with pytest.raises(Refused, match="a copy of the same directory"):
        pair.pump()


def test_the_same_process_may_connect_again_before_the_leader_has_noticed() -> None:
    pair = following()
    before = pair.link
    pair.connect()
    pair.leading.leader.links.append(before)
    pair.pump()
    assert before.replaced and pair.link.state == "following"


def test_a_directory_that_follows_is_no_brokers() -> None:
    pair = following()
    with pytest.raises(StoreError, match="kvitto promote"):
        Store(pair.disk, ManualClock()).open()


def test_a_batch_that_does_not_fit_its_checksum_is_refused() -> None:
    """A bit that flipped in the leader's memory: the record is whole."""
    pair = following(3)
    put = pair.leading.ring._put

    def flip(kind: int, file: int, position: int, data: bytes) -> int:
        if b"a large body" in data:
            data = data.replace(b"a large body", b"a lurge body")
        return put(kind, file, position, data)

    pair.leading.ring._put = flip  # type: ignore[method-assign]
    publish(pair.leading, "a large body")
    with pytest.raises(StreamError, match="does not fit its checksum"):
        pair.pump()
    assert b"a lurge body" not in b"".join(pair.own.values())


def test_a_batch_in_parts_is_verified_when_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvitto.cluster import ring

    monkeypatch.setattr(ring, "PAYLOAD_BYTES_MAX", 100)
    pair = following(3)
    publish(pair.leading, "good" * 100)
    pair.pump()
    assert pair.own == pair.theirs
    put = pair.leading.ring._put

    def flip(kind: int, file: int, position: int, data: bytes) -> int:
        return put(kind, file, position, data.replace(b"zzzzz", b"zzyzz", 1) if data == b"z" * 100 else data)

    pair.leading.ring._put = flip  # type: ignore[method-assign]
    publish(pair.leading, "z" * 500)
    acknowledged = pair.link.acknowledged
    with pytest.raises(StreamError, match="does not fit its checksum"):
        pair.pump()
    assert pair.link.acknowledged <= acknowledged + 5


# -- its disk ------------------------------------------------------------------------------------------------------


def test_wherever_the_disk_is_full_it_is_not_complete_before_its_file_says_so() -> None:
    whole = following()
    for at in range(1, whole.disk.operations + 1):
        disk = SimDisk(1000)
        disk.fail_at[at] = StoreFull("no room")
        try:
            pair = Pair(Leading(whole.leading.inner.copy().kill()), disk)
        except StoreFull:
            continue
        with suppress(StoreFull):
            pair.pump()
        found = read_following(disk.copy().kill())
        assert not pair.follower.following.complete or (found is not None and found.complete), at
        pair.connect()
        pair.pump()
        assert pair.own == pair.theirs, at


def test_a_full_disk_stops_it_and_room_lets_it_go_on() -> None:
    pair = following()
    pair.disk.full = True
    publish(pair.leading, "one more")
    with pytest.raises(StoreFull):
        pair.pump()
    pair.connect()
    with pytest.raises(StoreFull):
        pair.pump()
    assert len(bodies(pair.disk)) == 20, "it can be promoted meanwhile"
    pair.disk.full = False
    pair.connect()
    pair.pump()
    assert pair.own == pair.theirs and pair.link.files == 0


def test_a_sync_that_fails_ends_it_without_an_acknowledgement() -> None:
    pair = following()
    acknowledged = pair.link.acknowledged
    publish(pair.leading, "one more")
    wanted = StoreError("the device failed")
    pair.disk.fail_at = {pair.disk.operations + at: wanted for at in range(1, 40)}
    with pytest.raises(StoreError):
        pair.pump()
    assert pair.link.acknowledged == acknowledged


# -- promotion -----------------------------------------------------------------------------------------------------


def test_a_copy_that_is_not_complete_is_not_promoted() -> None:
    pair = Pair()
    pair.leading.declare("q")
    publish(pair.leading, *(f"message {i}" for i in range(20)))
    pair.link.take(pair.answers)
    pair.answers = b""
    while not pair.follower.copying:
        for answer in pair.follower.feed(b"".join(pair.link.pieces())):
            pair.link.take(answer)
    before = pair.own
    with pytest.raises(Refused, match="is not complete"):
        promote(pair.disk)
    assert pair.own == before
    pair.begin()
    pair.pump()
    promote(pair.disk)


def test_a_directory_that_does_not_follow_is_not_promoted() -> None:
    with pytest.raises(Refused, match="does not follow a leader"):
        promote(BrokerHarness().disk.kill())


def test_a_promotion_that_is_cut_short_is_tried_again() -> None:
    pair = following(3)
    total = promoted_operations(pair.disk.copy().kill())
    for cut in range(1, total + 1):
        disk = pair.disk.copy().kill()
        disk.cut_at = disk.operations + cut
        with suppress(PowerCut):
            promote(disk)
        disk = disk.kill()
        if disk.exists(paths.FOLLOWS):
            promote(disk)
        assert len(BrokerHarness(disk).peek("q")) == 3
        assert len(state.read_history(disk)) >= 2


def promoted_operations(disk: SimDisk) -> int:
    before = disk.operations
    promote(disk)
    return disk.operations - before


# -- it counts the batches of segments, so that a start need not read them again --------------------------------------


def scanned(pair: Pair) -> dict[str, tuple[object, ...]]:
    """What a start would find in the follower's segments."""
    found = {}
    for path, content in pair.disk.files().items():
        if is_segment(path):
            segment = Segment(paths.base_of(path.rpartition("/")[2]))
            segment.salt, segment.created_ms = salts(content)[0], created_ms(content)
            segment.scan(content, False, False, 0)
            found[path] = counts(segment)
    return found


def counted(pair: Pair) -> dict[str, tuple[object, ...]]:
    nodes = pair.follower.nodes.values()
    return {node.paths[0]: counts(node.segment) for node in nodes if node.segment is not None}


def counts(segment: Segment) -> tuple[object, ...]:
    found = segment.base, segment.end, segment.settled, segment.count, segment.body_bytes, segment.journal
    return *found, segment.size, segment.batch_gaps(), list(segment.sparse), segment.salt, segment.created_ms


def sizes(pair: Pair) -> None:
    for number, size in enumerate((1, 70_000, 5 << 20, 30, 3, 200_000)):
        pair.leading.publish("q", bytes(size))
        if number % 2:
            pair.leading.drain("q")  # what is settled at once is never written, and leaves a gap
        pair.leading.settle_down()
        pair.leading.publish("q", b"next")
        pair.rest()


def test_what_it_counts_is_what_a_start_would_find() -> None:
    pair = following(3)
    sizes(pair)
    assert counted(pair) == scanned(pair) != {}


def test_it_also_counts_what_was_there_before_it_was_started() -> None:
    pair = following(3)
    sizes(pair)
    pair.begin()
    pair.pump()
    assert counted(pair) == scanned(pair) != {}
    sizes(pair)
    assert counted(pair) == scanned(pair)


def test_it_also_counts_what_was_copied() -> None:
    pair = Pair()
    pair.leading.declare("q")
    sizes(pair)
    pair = Pair(pair.leading)
    pair.pump()
    assert counted(pair) == {}
    for _ in range(3):
        pair.leading.clock.advance(counting.LOOK_MS)
        pair.rest()
    assert counted(pair) == scanned(pair) != {}
    sizes(pair)
    assert counted(pair) == scanned(pair)


def test_damage_that_was_there_before_is_left_to_the_start() -> None:
    pair = Pair(following(3).leading)
    pair.pump()
    (path,) = filter(is_segment, pair.disk.files())
    file = pair.disk.open(path)
    at = file.size() - 3
    file.write_at(at, [bytes([file.read_at(at, 1)[0] ^ 1])])
    pair.leading.clock.advance(counting.LOOK_MS)
    pair.rest()
    assert counted(pair) == {}


def test_it_syncs_together_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if there are more files than it keeps open."""
    monkeypatch.setattr(module, "OPEN_MAX", 3)
    monkeypatch.setattr(module, "SYNCED_AT_ONCE", 2)
    pair = Pair()
    synced: list[list[str]] = []

    def sync(disk: Disk, files: Sequence[File], directories: Sequence[str]) -> None:
        synced.append([file.path for file in files])
        module.one_by_one(disk, files, directories)

    monkeypatch.setattr(pair.follower, "_sync_all", sync)
    for number in range(7):
        pair.leading.declare(f"q{number}")
        pair.leading.publish(f"q{number}", b"before")
    pair.leading.settle_down()
    pair.pump()
    assert pair.own == pair.theirs and max(map(len, synced)) == 2
    assert {path for paths_ in synced for path in paths_} >= set(filter(is_segment, pair.disk.files()))
    synced.clear()
    for number in range(5):
        pair.leading.publish(f"q{number}", b"behind")
    pair.leading.settle_down()
    pair.pump()
    assert max(len(list(filter(is_segment, paths_))) for paths_ in synced) == 5
    assert pair.own == pair.theirs


@pytest.mark.parametrize("field", ["salt_again", "queue_id"])
def test_a_header_that_a_start_has_to_judge_is_not_counted(field: str) -> None:
    pair = Pair(following(3).leading)
    pair.pump()
    (path,) = filter(is_segment, pair.disk.files())
    file = pair.disk.open(path)
    head = FILE_HEAD.read(file.read_at(0, FILE_HEAD.size))
    other = head._replace(salt_again=0) if field == "salt_again" else head._replace(queue_id=bytes(16))
    checksum = xxhash.xxh3_64_intdigest(FILE_HEAD.pack(*other)[: FILE_HEAD.at["checksum"]])
    file.write_at(0, [FILE_HEAD.pack(*other._replace(checksum=checksum))])
    pair.leading.clock.advance(counting.LOOK_MS)
    pair.rest()
    assert counted(pair) == {}


def test_room_behind_the_last_batch_is_not_kept() -> None:
    """A leader that was killed has some in many files, and copies of these would be as large as all that waits."""
    pair = following(3)
    (path,) = filter(is_segment, pair.disk.files())
    file = pair.disk.open(path)
    file.write_at(file.size(), [bytes(70_000)])
    pair.begin()
    publish(pair.leading, "more")
    pair.pump()
    assert pair.own == pair.theirs and path not in replaced(pair.disk) and pair.link.sent < 10_000
    pair.leading.clock.advance(counting.LOOK_MS)
    pair.rest()
    assert counted(pair) == scanned(pair) != {}


def test_bytes_behind_the_last_batch_are_kept() -> None:
    pair = following(3)
    (path,) = filter(is_segment, pair.disk.files())
    file = pair.disk.open(path)
    file.write_at(file.size() + 70_000, [b"half of a batch"])
    before = pair.disk.read_file(path)
    pair.begin()
    pair.pump()
    assert pair.own == pair.theirs and replaced(pair.disk)[path] == before


@pytest.mark.parametrize("path", ["../up", "/up", "queues//up", "queues/../../up", "", "./up"])
@pytest.mark.parametrize("kind", [Kind.OPEN, Kind.MKDIR, Kind.RENAME, Kind.LINK, Kind.UNLINK, Kind.RMTREE])
def test_a_path_outside_of_the_directory_is_refused(kind: Kind, path: str) -> None:
    """Whoever has the key of the cluster may write into this directory, and nowhere else."""
    pair = following(1)
    payload = two_paths("inventory", path) if kind in (Kind.RENAME, Kind.LINK) else path.encode()
    pair.leading.ring.put(kind, 900, 0, [payload])
    before = pair.disk.files()
    with pytest.raises(StreamError, match="not inside"):
        pair.pump()
    assert pair.disk.files() == before


@pytest.mark.parametrize("payload", [b"\xff", b"nowhere/file"])
def test_a_record_that_does_not_fit_is_refused(payload: bytes) -> None:
    pair = following(1)
    pair.leading.ring.put(Kind.OPEN, 900, 0, [payload])
    with pytest.raises((StreamError, StoreError)):
        pair.pump()


@pytest.mark.parametrize(
    ("greeting", "says"),
    [
        (b"AMQP\0\0\x09\x01", "an AMQP port"),
        (b"HTTP/1.1 400 ", "an HTTP port"),
        (b"\x15\3\3\0\2\2F", "a port with TLS"),
    ],
)
def test_another_port_of_a_node_is_named_for_what_it_is(says: str, greeting: bytes) -> None:
    pair = Pair()
    with pytest.raises(StreamError, match=f"{says}.* answers there: give the address of the other node's --followers"):
        list(pair.follower.feed(greeting))


def test_half_of_a_record_is_not_joined_with_another_leaders() -> None:
    """A disk that is full may take a part of a write. The stream of whoever is elected then may have another record in that place."""
    pair = following()
    pair.disk.full = True
    publish(pair.leading, "one more")
    with pytest.raises(StoreFull):
        pair.pump()
    pair.disk.full = False
    leader = pair.leading.leader
    leader.continued, leader.session = (leader.session, leader.ring.next), "of the next leader"
    pair.connect()
    with pytest.raises(StreamError, match="compared"):
        pair.pump()
    pair.connect()
    pair.pump()
    assert pair.own == pair.theirs and pair.told.count("comparing files with leader") == 2


# -- an end in order -----------------------------------------------------------------------------------------------


def test_it_hears_that_the_leader_has_ended_in_order() -> None:
    pair = following(3)
    pair.rest()
    end = pair.leading.ring.next
    assert pair.link.leave(end)
    pair.pump()
    assert pair.follower.left == ""
    pair.connect()
    assert pair.follower.left is None


def test_who_has_not_everything_does_not_hear_of_the_end() -> None:
    pair = following(3)
    publish(pair.leading, "late")
    assert not pair.link.leave(pair.leading.ring.next)
