"""D3: what `check` finds in a damaged directory, and what `salvage` makes of it. The start, the oracle, is the broker's own."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from kvitto.base.clock import SystemClock
from kvitto.base.errors import StoreError, StoreFull
from kvitto.store import paths
from kvitto.store.repair.readonly import ReadOnlyDisk
from kvitto.store.repair.salvage import Salvage
from kvitto.store.repair.survey import Survey
from kvitto.store.segment import HEADER
from tests.support import datadir
from tests.support.datadir import Memory, Message
from tests.support.harness import BrokerHarness
from tests.support.older import without_inventory
from tests.support.simdisk import PowerCut

FLIPS = int(os.environ.get("KVITTO_FLIPS", "20"))
UNCHECKED = ("lock", "boot", "format", "spare")
"""Files without a checksum; they hold no message."""
Contents = dict[str, list[Message]]


class Original:
    def __init__(self, in_order: bool) -> None:
        self.disk = Memory()
        datadir.build(self.disk, in_order=in_order)
        self.disk.locks.clear()
        self.waiting = datadir.read(self.disk)
        self.ids = {f.defined[1][1]: f.queue_id for f in survey(self.disk).queues}
        self.known = {body for bodies in self.waiting.values() for body, _ in bodies}

    def copy(self) -> Memory:
        return self.disk.copy()

    def part(self, queue: str, name: str) -> str:
        return f"queues/{self.ids[queue]}/{name}"


@pytest.fixture(scope="module")
def in_order() -> Original:
    return Original(True)


@pytest.fixture(scope="module")
def killed() -> Original:
    return Original(False)


def survey(disk: Memory) -> Survey:
    disk.reading = True
    found = Survey(disk)
    disk.reading = False
    return found


def salvage(disk: Memory) -> tuple[Survey, Salvage, Memory]:
    """What was found, the job, and its result, which is sound; the original is as it was."""
    before = disk.files()
    found, to = survey(disk), Memory()
    job = Salvage(found, to, SystemClock())
    job.run()
    assert disk.files() == before
    again = survey(to)
    assert again.findings == []
    return found, job, to


def files(disk: Memory) -> list[str]:
    return [path for path, content in disk.files().items() if path not in UNCHECKED and content]


def check_saved(original: Original, found: Survey, saved: Contents) -> None:
    """All that waited is there, in order, but what is named as lost; nothing else is, but what had been settled, flagged."""
    lost = {folder.queue_id: folder.counts()[2] for folder in found.queues}
    tails = {f.path.split("/")[1] for f in found.findings if "or more" in f.text or "how many" in f.text}
    for name, messages in original.waiting.items():
        got = saved.get(name, saved.get(f"salvaged.{original.ids[name]}"))
        assert got is not None, name
        bodies = [body for body, _ in got]
        missing = Counter(body for body, _ in messages) - Counter(bodies)
        assert missing.total() <= lost[original.ids[name]] or original.ids[name] in tails, (
            name,
            missing,
            found.findings,
        )
        waited = {body for body, _ in messages}
        kept = [body for body in bodies if body in waited]
        assert kept == [body for body, _ in messages if body in set(kept)]
        flags = dict(messages)
        for body, redelivered in got:
            assert redelivered or not flags.get(body, True), (name, body[:10])
            if body not in flags:
                assert re.match(rb"%s \d{3} |to be settled|from the journal" % name.encode(), body)


@pytest.mark.parametrize("state", ["in_order", "killed"])
def test_a_sound_directory_is_sound_and_salvaged_whole(state: str, request: pytest.FixtureRequest) -> None:
    """P4, A9: the same messages in the same order with the same marks; a transaction that waits in the journal is applied by the start."""
    original: Original = request.getfixturevalue(state)
    found, job, to = salvage(original.disk)
    assert found.findings == [] and found.notes == [] and job.notes == [] and job.made == {}
    assert datadir.read(to) == original.waiting
    assert original.waiting["journaled"][0][0] == (b"to be settled" if state == "in_order" else b"from the journal")
    counts = {folder.defined[1][1]: folder.counts() for folder in found.queues}
    assert counts["plain"] == (36 + (state == "killed"), 24, 0) and counts["stream"] == (60, 0, 0)
    assert counts["journaled"] == ((1, 0, 0) if state == "in_order" else (1, 1, 0))
    assert sum(folder.counts()[1] for folder in found.archives) == 54
    for path in [original.part("stream", "offsets"), *original.disk.glob("archive/*")]:
        assert to[path] == original.disk[path]


def test_every_flipped_bit_is_found_after_an_end_in_order(in_order: Original) -> None:
    """100 % detected, what is not named as lost is saved, no wrong body; KVITTO_FLIPS for more than 20."""
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    rng, disk = Random(seed), in_order.copy()
    for _ in range(FLIPS):
        path = rng.choice(files(disk))
        at, bit = rng.randrange(len(disk[path])), rng.randrange(8)
        disk.flip(path, at, bit)
        try:
            found, _, to = salvage(disk)
            assert found.findings
            check_saved(in_order, found, datadir.read(to))
        except AssertionError as error:
            raise AssertionError(f"{path} ({len(disk[path])} bytes), byte {at}, bit {bit}: {error}") from error
        disk.flip(path, at, bit)
    assert survey(disk).findings == []


@pytest.mark.slow
def test_flipped_bits_after_a_kill_give_no_wrong_body(killed: Original) -> None:
    """The last batches have no witness then (P5); what is salvaged is sound all the same."""
    rng, disk = Random(5), killed.copy()
    for _ in range(FLIPS // 3):
        path = rng.choice(files(disk))
        at = rng.randrange(len(disk[path]))
        disk.flip(path, at)
        _, _, to = salvage(disk)
        for name, messages in datadir.read(to).items():
            settled = re.compile(rb"(plain|kept) \d{3} [\0-\xff]*|to be settled", re.DOTALL)
            wrong = [body for body, _ in messages if body not in killed.known and not settled.fullmatch(body)]
            assert wrong == [], (path, at, name)
        disk.flip(path, at)


@pytest.mark.slow
def test_files_that_end_too_early(in_order: Original) -> None:
    """Each file, cut in its middle and by one byte."""
    for path in files(in_order.disk):
        content = in_order.disk[path]
        for size in (len(content) // 2 + 1, len(content) - 1):
            disk = in_order.copy()
            disk[path] = content[:size]
            found, _, to = salvage(disk)
            assert found.findings, (path, size)
            check_saved(in_order, found, datadir.read(to))


@pytest.mark.slow
def test_files_that_are_gone(in_order: Original) -> None:
    """Each file; what another one tells of is missed, and what is left is saved."""
    missed = set()
    for path in [*files(in_order.disk), "format", "boot"]:
        disk = in_order.copy()
        disk.unlink(path)
        found, _, to = salvage(disk)
        if found.findings:
            missed.add(re.sub(r"[0-9a-f]{32}", "ID", path))
        datadir.read(to)
    assert {"format", "boot", "definitions.log", "archive/ID/queue.json"} <= missed
    assert {f"archive/ID/{base:020d}.ack" for base in (0, 18, 36)} <= missed
    assert {f"queues/ID/{base:020d}.log" for base in (0, 18, 36, 54)} <= missed


def test_torn_tails_are_no_damage(killed: Original) -> None:
    """Half a batch, half a line, half a record, half a block, and room that was reserved: a start cuts them off."""
    for pattern in ("queues/*54.log", "definitions.log", "journal/*", "queues/*54.ack"):
        disk = killed.copy()
        for path in disk.glob(pattern):
            whole = disk[path] if path.endswith(".ack") else disk[path].rstrip(b"\0")
            disk[path] = whole + (whole[HEADER : HEADER + 60] if path.endswith("54.log") else whole[-30:-1])
        assert survey(disk).findings == []
        assert datadir.read(salvage(disk)[2]) == killed.waiting
    disk = killed.copy()
    last = killed.part("plain", f"{54:020d}.log")
    disk[last] = disk[last] + bytes(100_000)
    assert survey(disk).findings == []


def test_a_footer_that_a_killed_process_had_half_written_is_no_damage(killed: Original) -> None:
    """D3: it was taken for a damaged one. A whole one of which a bit is another is damage."""
    path = killed.part("again", f"{18:020d}.log")
    whole = killed.disk[path]
    begin = whole.rindex(b"KVITFOOT")
    for size in range(begin + 1, len(whole)):
        disk = killed.copy()
        disk[path] = whole[:size]
        assert survey(disk).findings == [], size - begin
        disk[path] = whole
        disk.flip(path, size)
        assert [finding.path for finding in survey(disk).findings] == [path], size - begin


def test_a_settlement_log_that_came_to_the_archive_before_its_segment_is_no_damage(in_order: Original) -> None:
    """D3: where the power goes in between, and where a full disk has no room for a copy of the segment, also after an end in order."""
    source, archive = (in_order.part("kept", "").replace("queues", place, 1) for place in ("queues", "archive"))
    disk = in_order.copy()
    without_inventory(disk)
    base = disk.glob(archive + "*.log")[-1][-24:-4]
    disk.rename(f"{archive}{base}.log", f"{source}{base}.log")
    disk.link(f"{archive}{base}.ack", f"{source}{base}.ack")
    assert survey(disk).findings == []
    disk.unlink(f"{source}{base}.log")
    disk.unlink(f"{source}{base}.ack")
    assert [finding.path for finding in survey(disk).findings] == [f"{archive}{base}.ack"]


def test_what_is_torn_before_a_later_synced_segment_is_damage(killed: Original) -> None:
    """D3: a segment that had been sealed has lost its end; the next one says that it had been synced."""
    disk = killed.copy()
    path = killed.part("again", f"{18:020d}.log")
    disk[path] = disk[path][:-1000]
    found, _, to = salvage(disk)
    assert [(f.path, f.offsets and f.offsets[1]) for f in found.findings] == [(path, 36)]
    saved = datadir.read(to)["again"]
    assert saved == [m for m in killed.waiting["again"] if m in saved] and 50 < len(saved) < 60


def test_damaged_definitions_cost_names_and_no_messages(in_order: Original) -> None:
    """Queues come back as plain durable ones, of an archive with their name, a stream as a stream; what can be read stays defined."""
    disk = in_order.copy()
    for name in (b'"plain"', b'"kept"', b'"stream"'):
        disk.flip("definitions.log", disk["definitions.log"].index(name) + 2)
    found, job, to = salvage(disk)
    assert len([f for f in found.findings if f.path == "definitions.log"]) >= 3
    ids = {name: f"queues/{queue_id}" for name, queue_id in in_order.ids.items()}
    plain, stream = (f"salvaged.{in_order.ids[name]}" for name in ("plain", "stream"))
    assert job.made == {ids["plain"]: f"{plain} in /", ids["stream"]: f"{stream} in /", ids["kept"]: "kept in /"}
    renamed = {"plain": plain, "stream": stream}
    assert datadir.read(to) == {renamed.get(name, name): messages for name, messages in in_order.waiting.items()}


@pytest.mark.parametrize("left", [None, b"", b"0123456789abcdef {half"])
@pytest.mark.parametrize("state", ["in_order", "killed"])
def test_without_definitions_there_is_guest_again(
    state: str, left: bytes | None, in_order: Original, request: pytest.FixtureRequest
) -> None:
    original: Original = request.getfixturevalue(state)
    disk = original.copy()
    disk.unlink("definitions.log")
    if left is not None:
        disk["definitions.log"] = left
    found, job, to = salvage(disk)
    assert found.findings[0].path == "definitions.log" and len(job.made) == 5
    if state == "in_order":
        assert sorted(datadir.read(to).values()) == sorted(in_order.waiting.values())
    home = datadir.Home(to)
    assert home.broker.users.authenticate("guest", "guest", True)


def test_a_segment_without_its_header(in_order: Original) -> None:
    """Its first batch too, and all is read that the other copy of the salt verifies; without either nothing of the segment is."""
    path = in_order.part("again", f"{18:020d}.log")
    for (begin, end), left in {(0, 56): 60, (0, 64): 60, (72, 200): 54, (0, 72): 42}.items():
        disk = in_order.copy()
        content = bytearray(disk[path])
        content[begin:end] = bytes(end - begin)
        if begin:
            content[:64] = bytes(64)
        disk[path] = bytes(content)
        found, _, to = salvage(disk)
        saved = datadir.read(to)
        check_saved(in_order, found, saved)
        assert len(saved["again"]) == left
        assert {flag for _, flag in saved["journaled"]} == {False}


def test_an_offset_that_cannot_be_verified_is_not_believed(in_order: Original) -> None:
    """The last batch says that it begins 2^37 offsets further on: a start on what was salvaged took 16 GiB for the gap."""
    disk, path = in_order.copy(), in_order.part("plain", f"{54:020d}.log")
    disk.flip(path, HEADER + 20, 5)
    found, _, to = salvage(disk)
    assert [f.offsets for f in found.findings] == [(54, 60)]
    assert max(folder.next for folder in survey(to).queues) == 61
    check_saved(in_order, found, datadir.read(to))


def test_lost_settlements_come_again_flagged(in_order: Original) -> None:
    """A11: also where the delivered mark has gone with them."""
    disk = in_order.copy()
    for path in disk.glob(in_order.part("plain", "*.ack")):
        disk.flip(path, HEADER + 20)
    found, _, to = salvage(disk)
    assert len(found.findings) == 3
    saved = datadir.read(to)["plain"]
    assert len(saved) == 60 and all(flag for _, flag in saved)


def test_the_copy_of_a_damaged_segment_says_that_there_was_damage(in_order: Original) -> None:
    """The broker serves the rest and keeps the copy; it is reported, and not salvaged: what is in it may have been settled since."""
    disk = in_order.copy()
    disk.flip(in_order.part("again", f"{54:020d}.log"), 300)
    datadir.Home(disk).stop()
    found, _, to = salvage(disk)
    assert [f.path for f in found.findings] == [in_order.part("again", f"{54:020d}.bad")]
    assert not to.glob("*.bad")


def test_a_directory_of_another_version_is_not_touched(in_order: Original) -> None:
    disk = in_order.copy()
    disk["format"] = b"kvitto 3\n"
    with pytest.raises(StoreError, match="has format 'kvitto 3', this Kvitto reads 'kvitto 2'"):
        survey(disk)


def test_no_broker_starts_on_a_salvage_that_was_cut_short(in_order: Original) -> None:
    """D4: the disk is full from any write on."""
    found, whole = survey(in_order.copy()), Memory()
    Salvage(found, whole, SystemClock()).run()
    for n in range(3, whole.operations, 7):
        disk = Memory()
        disk.fail_at = {k: StoreFull("no room") for k in range(n, n + 100)}
        with pytest.raises(StoreFull):
            Salvage(found, disk, SystemClock()).run()
        disk.fail_at.clear()
        if disk.exists("format"):
            with pytest.raises(StoreError, match="has format 'salvage no"):
                datadir.read(disk)


def test_what_is_read_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "format").write_bytes(b"kvitto 1\n")
    disk = ReadOnlyDisk(str(tmp_path))
    file = disk.open("format")
    for attempt in (
        lambda: file.write_at(0, [b"x"]),
        lambda: file.reserve(0, 1),
        lambda: disk.makedirs("x"),
        lambda: disk.rename("format", "x"),
        lambda: disk.link("format", "x"),
        lambda: disk.unlink("format"),
        lambda: disk.rmtree("queues"),
        lambda: disk.lock("lock"),
    ):
        with pytest.raises(StoreError, match="is only read here"):
            attempt()
    file.truncate(0)
    assert (tmp_path / "format").read_bytes() == b"kvitto 1\n"


def test_a_deleted_queue_whose_removal_was_cut_short_is_no_damage() -> None:
    """A killed process leaves a directory that is being removed, and the start after it is killed as well, wherever that is."""
    harness = BrokerHarness()
    for name in ("stays", "goes"):
        harness.declare(name)
        harness.publish(name, name.encode())
    harness.settle_down()
    queue = harness.queue("goes")
    harness.broker.undefine("queue", ("/", "goes"))
    assert harness.disk.exists(paths.segment(queue.log.directory, 0))
    left, steps = harness.disk.kill(), 0
    while True:
        steps += 1
        disk = left.copy()
        disk.cut_at = steps
        try:
            BrokerHarness(disk)
        except PowerCut:
            assert Survey(disk.kill()).findings == []
        else:
            break
    assert steps > 10
