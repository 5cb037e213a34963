"""Large batches are written in slices over several turns: all of one is there, or nothing, and nobody else waits for it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kvitto.broker.queues.look import Look, looks
from kvitto.broker.queues.reader import RangeReader
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.transfers.bulk import Bulk
from kvitto.broker.transfers.deadletter import READING
from kvitto.protocol import connection
from kvitto.store import pieces, reading
from kvitto.store.batch import Stored
from kvitto.store.repair.survey import Survey
from kvitto.wire import methods as m
from kvitto.wire.buf import Buf
from tests.protocol import sessions
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.protocol.test_limits import ask
from tests.support import stored
from tests.support.clock import ManualClock
from tests.support.harness import NO_PROPERTIES, BrokerHarness, Taker, address
from tests.support.simdisk import SimDisk

ONE_PIECE = 1
"""What a turn may cost: one piece of one queue."""
LARGE = bytes(range(256)) * 200


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SLICE_BYTES", 4000)
    monkeypatch.setattr(pieces, "WHOLE_BYTES", 8000)


def put(harness: BrokerHarness, name: str, body: bytes) -> None:
    """As a channel does with a large body."""
    buf = Buf(0)
    buf.add(body)
    assert harness.queue(name).append_whole(address(name), NO_PROPERTIES, buf, -1, 0)


def begun(harness: BrokerHarness | None = None, **arguments: Any) -> BrokerHarness:
    """A queue with a message, and a large one that has been written in part; another waits behind it."""
    harness = harness or BrokerHarness()
    harness.declare("q", **arguments)
    harness.publish("q", b"first")
    harness.settle_down()
    put(harness, "q", LARGE)
    for _ in range(3):
        harness.broker.turn(ONE_PIECE)
    harness.publish("q", b"behind")
    assert harness.queue("q").log.is_writing
    return harness


def starts_from(disk: SimDisk) -> BrokerHarness:
    """Without an alarm, and nothing is damaged."""
    harness = BrokerHarness(disk, ManualClock())
    assert not harness.store.alarms
    return harness


ENDS: list[Callable[[SimDisk, Random], SimDisk]] = [
    lambda disk, _: disk.kill(),
    lambda disk, rng: disk.crash(rng),
    lambda disk, rng: disk.crash(rng, hostile=True),
]


@pytest.mark.parametrize("end", ENDS, ids=["kill", "power cut", "hostile power cut"])
@pytest.mark.parametrize("seed", range(10))
def test_whatever_ends_the_broker_all_of_a_batch_is_there_or_nothing(
    end: Callable[[SimDisk, Random], SimDisk], seed: int
) -> None:
    harness = begun()
    rng, seen = Random(seed), set()
    for turn in range(14):
        harness.broker.turn(ONE_PIECE)
        if turn % 3 == 2:
            harness.sync(everything=True)
        disk = end(harness.disk.copy(), rng)
        assert not Survey(disk).findings
        again = starts_from(disk)
        found = again.peek("q")
        assert found in ([b"first"], [b"first", LARGE], [b"first", LARGE, b"behind"])
        seen.add(len(found))
        again.publish("q", b"after")
        again.settle_down()
        again.restart()
        assert again.peek("q") == [*found, b"after"] and not again.store.alarms
    assert 1 in seen and 3 in seen


def test_it_is_written_in_slices_behind_what_came_before_and_in_front_of_what_comes_later() -> None:
    harness = begun()
    queue, sizes = harness.queue("q"), []
    while queue.tail.closed:
        before = queue.log.segments[-1].ahead
        harness.broker.turn(ONE_PIECE)
        sizes.append(queue.log.segments[-1].ahead - before)
    assert max(sizes) <= 4000 and len(sizes) > 3
    assert harness.peek("q") == [b"first", LARGE, b"behind"]
    harness.restart()
    assert harness.drain("q") == [b"first", LARGE, b"behind"]


def test_nothing_is_delivered_before_it_is_written() -> None:
    """A9: it would be on its way to a peer although no file knows of it."""
    harness = begun()
    assert harness.drain("q") == []
    harness.settle_down()
    assert harness.drain("q") == [b"first", LARGE, b"behind"]


def test_on_a_full_disk_it_is_cut_off_and_written_again_later() -> None:
    """D4: and what was there before is delivered meanwhile, for that may make room."""
    harness = begun()
    size = harness.queue("q").log.segments[-1].size
    harness.disk.full = True
    harness.turn()
    part = harness.queue("q").log.segments[-1]
    assert harness.broker.full and (part.size, part.ahead) == (size, 0)
    assert harness.queue("q").returning == 0
    harness.disk.full = False
    harness.broker.retry_writes()
    harness.settle_down()
    assert harness.peek("q") == [b"first", LARGE, b"behind"]
    harness.kill()
    assert harness.peek("q") == [b"first", LARGE, b"behind"] and not harness.store.alarms


@pytest.mark.parametrize("archive", [False, True])
def test_the_queue_may_go_meanwhile(archive: bool) -> None:
    harness = begun(x_archive=True) if archive else begun()
    harness.delete("q")
    harness.settle_down()
    assert not harness.broker.slow
    harness.restart()
    assert not harness.broker.queues and not harness.store.alarms


def test_it_may_be_purged_meanwhile() -> None:
    harness = begun()
    assert harness.queue("q").purge() == 3
    harness.settle_down()
    assert harness.queue("q").messages == 0 and not harness.broker.slow
    harness.publish("q", b"next")
    harness.restart()
    assert harness.peek("q") == [b"next"] and not harness.store.alarms


def test_room_is_not_given_back_while_it_is_written() -> None:
    """What lies behind the last whole batch is the beginning of one."""
    harness = begun()
    harness.broker.make_room(True)
    harness.settle_down()
    assert harness.peek("q") == [b"first", LARGE, b"behind"]


def test_an_end_in_order_waits_for_it() -> None:
    harness = begun()
    harness.broker.finish()
    harness.store.shut()
    again = starts_from(harness.disk.kill())
    assert again.peek("q") == [b"first", LARGE, b"behind"]


def test_a_stream_keeps_its_order() -> None:
    harness = BrokerHarness()
    harness.declare("s", x_queue_type="stream")
    harness.publish("s", b"first")
    harness.settle_down()
    put(harness, "s", LARGE)
    harness.broker.turn(ONE_PIECE)
    harness.publish("s", b"behind")
    harness.settle_down()
    harness.kill()
    stream = harness.queue("s")
    assert [stored.read(stream, offset)[2] for offset in range(3)] == [b"first", LARGE, b"behind"]  # type: ignore[index]


@pytest.mark.parametrize("cut", [False, True], ids=["kill", "power cut"])
def test_a_large_dead_letter_is_in_one_place(cut: bool) -> None:
    """X4: its record is applied by a batch that takes several turns, and the journal keeps it until that is written."""
    harness = BrokerHarness()
    harness.declare("dead")
    queue = harness.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    harness.publish("q", LARGE)
    harness.settle_down()
    harness.take("q")
    harness.settle_down()
    queue.reject(0, 1)
    rng = Random(7)
    for turn in range(60):
        harness.broker.jobs.run()
        harness.broker.turn(ONE_PIECE)
        if turn % 4 == 3 and harness.store.commits.dirty:
            job = harness.store.begin_sync(everything=True)
            job.run()
            harness.store.end_sync(job)
        again = starts_from(harness.disk.copy().crash(rng) if cut else harness.disk.copy().kill())
        again.settle_down()
        assert again.peek("q") + again.peek("dead") == [LARGE]
    assert harness.peek("dead") == [LARGE]


# -- read again ----------------------------------------------------------------------------------------------


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large batch is not read as a whole."""
    monkeypatch.setattr(reading, "STREAMED_BYTES", 5000)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 2000)


@pytest.mark.usefixtures("streamed")
def test_a_queue_with_priorities_starts_with_a_large_message_that_it_has_not_sorted_in() -> None:
    """The power cut took the mark that it had been sorted in, and the start looked for it for ever: it has to be checked first."""
    harness = BrokerHarness()
    harness.declare("q", x_max_priority=5)
    harness.settle_down()
    put(harness, "q", LARGE)
    while harness.queue("q").tail.closed or not harness.store.commits.dirty:
        harness.turn()
    harness.sync(everything=False)
    marks = set()
    for seed in range(20):
        again = starts_from(harness.disk.copy().crash(Random(seed)))
        marks.add(again.queue("q").log.delivered_mark)
        again.settle_down()
        assert again.peek("q") in ([], [LARGE])
        again.drain("q")
        again.settle_down()
        again.drain("q")
        assert not again.queue("q").messages
    assert marks == {0, 1}


@pytest.mark.parametrize("priorities", [{}, {"x_max_priority": 5}])
def test_only_what_was_delivered_is_written_at_once(priorities: dict[str, Any]) -> None:
    """A9: a large message that comes behind a delivery is written in slices, in a queue with priorities too."""
    harness = BrokerHarness()
    queue = harness.declare("q", **priorities)
    harness.publish("q", b"first")
    assert queue.get(Taker(queue))
    put(harness, "q", LARGE)
    harness.broker.turn(ONE_PIECE)
    assert queue.log.is_writing and queue.log.next == queue.unwritten_from == 1
    harness.kill()
    assert [(d.body, d.redelivered) for d in harness.take("q")] == [(b"first", True)]


@pytest.mark.usefixtures("streamed")
def test_what_is_read_by_offset_may_leave_while_it_is_checked() -> None:
    """The rest of the range is read; the reader took what it had checked for the next message."""
    harness = BrokerHarness()
    queue = harness.declare("q")
    for body in (LARGE, b"behind"):
        put(harness, "q", body)
    harness.settle_down()
    queue.release_windows()
    taker = Taker(queue)
    reader = RangeReader(queue, taker, 0, 2, lambda _: None, None)
    reader.pump(1)
    queue.settle_until(1)
    while not reader.finished:
        reader.pump(1)
    assert [delivery.body for delivery in taker.got] == [b"behind"] and reader.count == 1


@pytest.mark.usefixtures("streamed")
def test_of_many_large_dead_letters_one_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """W8: each queue had its turn for a slice, and all bodies were in memory in part."""
    harness, reading, most = BrokerHarness(), 0, 0
    read = Stored.take

    def counted(stored: Stored) -> Generator[None, None, Buf]:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        body = yield from read(stored)
        reading -= 1
        return body

    monkeypatch.setattr(Stored, "take", counted)
    harness.declare("dead")
    names = [f"q{n}" for n in range(8)]
    for name in names:
        harness.declare(name, x_dead_letter_exchange="", x_dead_letter_routing_key="dead", x_max_length=1)
        put(harness, name, LARGE)
    harness.settle_down()
    for name in names:
        harness.queue(name).release_windows()
        harness.publish(name, b"behind")
    harness.settle_down()
    assert harness.peek("dead") == [LARGE] * len(names) and (reading, most) == (0, 1)


def with_a_large_message() -> tuple[BrokerHarness, WorkQueue]:
    """A queue with a large message in its files, and none of it in memory."""
    harness = BrokerHarness()
    queue = harness.declare("q")
    put(harness, "q", LARGE)
    harness.settle_down()
    queue.release_windows()
    return harness, queue


@pytest.mark.usefixtures("streamed")
def test_who_looks_into_a_queue_leaves_nothing_in_memory() -> None:
    """What was read stayed until the queue had something to write."""
    harness, queue = with_a_large_message()
    found = [one for one in looks(queue, 10) if isinstance(one, Look)]
    assert len(found) == 1 and queue.backlog._behind.segment is not None
    harness.turn()
    assert queue.backlog._behind.segment is None and queue.backlog.outline.segment is None


@pytest.mark.usefixtures("streamed")
def test_a_look_leaves_nothing_in_memory_if_the_queue_is_written_between_its_steps() -> None:
    harness, queue = with_a_large_message()
    written = 0
    for step in looks(queue, 1):
        if isinstance(step, Look):
            break
        harness.publish("q", b"small")
        harness.turn()
        written += 1
    assert written > 2 and queue.backlog._behind.segment is not None
    harness.publish("q", b"small")
    harness.turn()
    assert queue.backlog._behind.segment is None and queue.backlog.outline.segment is None


def letter_being_read() -> BrokerHarness:
    """A rejected large message of which a part is in memory."""
    harness = BrokerHarness()
    harness.declare("dead")
    queue = harness.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    put(harness, "q", LARGE)
    harness.settle_down()
    while not harness.take("q"):
        harness.turn()
    queue.release_windows()
    queue.reject(0, 1)
    letters = harness.broker.dead_letters
    while not any(letter.step is READING for letter in letters._addressing.values()):
        harness.turn()
    return harness


@pytest.mark.usefixtures("streamed")
def test_a_dead_letters_queue_may_be_deleted_while_it_is_read() -> None:
    """X4: it stays where it is; it was settled, and in no queue."""
    harness = letter_being_read()
    harness.delete("dead")
    harness.settle_down()
    assert harness.peek("q") == [LARGE] and len(harness.queue("q").parked) == 1


@pytest.mark.usefixtures("streamed")
def test_a_dead_letter_exchange_may_be_taken_away_while_a_letter_is_read() -> None:
    """It is dropped, as one that was not begun; one that was being checked went by the default exchange, back to its own queue."""
    harness = letter_being_read()
    queue = harness.queue("q")
    settings = replace(queue.settings, dead_letter_exchange=None, dead_letter_routing_key=None)
    queue.take_settings(settings)
    harness.settle_down()
    assert not queue.messages and not harness.queue("dead").messages


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize("turns", range(1, 20, 2))
def test_an_end_in_order_leaves_no_part_of_a_dead_letter_in_the_journal(turns: int) -> None:
    """D3: the end itself had begun its record, and `kvitto check` took that for damage."""
    harness = letter_being_read()
    for _ in range(turns):
        harness.turn()
    harness.broker.finish()
    harness.store.shut()
    disk = harness.disk.kill()
    assert not Survey(disk.copy()).findings
    again = starts_from(disk)
    assert again.peek("q") + again.peek("dead") == [LARGE]


def test_a_batch_that_was_checked_before_is_compared_again_when_more_of_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D3: it was checked once for all of its messages, and a bit that flipped later was delivered without an alarm."""
    monkeypatch.setattr("kvitto.store.reading.STREAMED_BYTES", 5000)
    monkeypatch.setattr("kvitto.store.reading.CHUNK_BYTES", 2000)
    harness = BrokerHarness()
    queue, bulk = harness.declare("q"), Bulk(harness.broker)
    bodies = [b"%d" % number * 3000 for number in range(10)]
    for body in bodies:
        for _ in bulk.put([queue], address("q"), NO_PROPERTIES, body):
            pass
    for _ in bulk.encode():
        pass
    steps = bulk.apply()
    harness.broker.records.write(bulk.record, lambda: next(steps, "end") != "end", lambda: None)
    harness.settle_down()
    queue.release_windows()
    taker = Taker(queue)
    while not queue.get(taker):
        harness.turn()
    path, data = next((p, d) for p, d in harness.disk.files().items() if p.endswith(".log") and "queues" in p)
    harness.disk.flip(path, data.index(b"9" * 100) + 50)
    found = harness.drain("q")
    assert found == bodies[1 : len(found) + 1] and len(found) < 9
    harness.settle_down()
    assert any("cannot be read" in alarm for alarm in harness.store.alarms)


# -- confirms ------------------------------------------------------------------------------------------------


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ProtocolHarness:
    """Where a turn writes one slice."""
    monkeypatch.setattr("kvitto.protocol.hub.WRITE_COST", ONE_PIECE)
    monkeypatch.setattr(connection, "UNCOPIED", 1000)
    monkeypatch.setattr("kvitto.store.pieces.SLICE_BYTES", 50_000)
    return ProtocolHarness()


BODY = bytes(300_000)
"""More than a frame."""


def publisher(harness: ProtocolHarness, *queues: str) -> Wire:
    wire = harness.wire()
    ask(wire, *[m.QueueDeclare(queue, durable=True) for queue in queues], m.ConfirmSelect())
    harness.settle_down()
    wire.methods()
    return wire


def say(wire: Wire, queue: str, body: bytes) -> None:
    wire.feed(sessions.content(1, m.BasicPublish("", queue), b"\0\0", body))


def confirmed(wire: Wire) -> bool:
    return any(isinstance(method, m.BasicAck) for method in wire.methods())


def step(harness: ProtocolHarness) -> None:
    harness.turn()
    if harness.store.commits.waiting:
        harness.sync()


def test_who_publishes_to_the_same_queue_waits_and_who_does_not_goes_on(harness: ProtocolHarness) -> None:
    large, same, other = publisher(harness, "q"), publisher(harness, "q"), publisher(harness, "other")
    say(large, "q", BODY)
    say(same, "q", b"behind")
    say(other, "other", b"elsewhere")
    queue = harness.broker.vhosts["/"].queues["q"]
    first = 0
    while queue.tail.closed:
        assert not confirmed(large) and not confirmed(same)
        if not first and confirmed(other):
            first = queue.log.segments[-1].ahead
        step(harness)
    assert 0 < first < len(BODY)
    harness.settle_down()
    assert confirmed(large) and confirmed(same)
    again = BrokerHarness(harness.disk.crash(Random(1)), ManualClock())
    assert again.peek("q") == [BODY, b"behind"]


def test_a_confirm_does_not_wait_for_queues_of_later_messages(harness: ProtocolHarness) -> None:
    large, wire = publisher(harness, "q"), publisher(harness, "other", "third")
    say(large, "q", BODY)
    say(wire, "other", b"first")
    wire.feed(b"".join(sessions.content(1, m.BasicPublish("", name), b"\0\0", b"later") for name in ("q", "third")))
    queue = harness.broker.vhosts["/"].queues["q"]
    tags: list[int] = []
    while queue.tail.closed:
        tags += [method.delivery_tag for method in wire.methods() if isinstance(method, m.BasicAck)]
        step(harness)
    assert tags == [1]
    harness.settle_down()
    assert confirmed(wire)


def test_its_publisher_may_go_meanwhile(harness: ProtocolHarness) -> None:
    """The message is in the queue already; a second one that has not been read is not."""
    wire = publisher(harness, "q")
    wire.feed(2 * sessions.content(1, m.BasicPublish("", "q"), b"\0\0", BODY))
    step(harness)
    wire.connection.lost()
    harness.settle_down()
    queue = harness.broker.vhosts["/"].queues["q"]
    assert queue.messages == 1 and not harness.broker.slow and not queue.returning


def test_one_body_for_many_queues_is_in_memory_once(harness: ProtocolHarness) -> None:
    names = [f"q{number}" for number in range(5)]
    wire = publisher(harness, *names)
    ask(wire, *[m.QueueBind(name, "amq.fanout") for name in names])
    wire.feed(sessions.content(1, m.BasicPublish("amq.fanout", ""), b"\0\0", BODY))
    harness.settle_down()
    assert confirmed(wire)
    again = BrokerHarness(harness.disk.crash(Random(1)), ManualClock())
    assert [again.peek(name) for name in names] == [[BODY]] * 5


def test_a_transaction_with_a_large_body(harness: ProtocolHarness) -> None:
    """T4: it goes through the journal, and its batch takes several turns."""
    wire = publisher(harness, "a", "b")
    tx = harness.wire()
    ask(tx, m.TxSelect())
    say(tx, "a", BODY)
    say(tx, "b", b"small")
    tx.put(1, m.TxCommit())
    rng = Random(3)
    for _ in range(40):
        disk = harness.disk.copy().crash(rng)
        again = BrokerHarness(disk, ManualClock())
        assert not again.store.alarms
        assert (again.peek("a"), again.peek("b")) in (([], []), ([BODY], [b"small"]))
        step(harness)
    harness.settle_down()
    assert any(isinstance(method, m.TxCommitOk) for method in tx.methods())
    assert not confirmed(wire)


def test_a_large_batch_waits_for_the_disk_and_keeps_nobody_busy() -> None:
    """While others' sync would take too long nothing more of it is written, and no turn is spent on it."""
    harness = begun()
    harness.broker.press(True)
    harness.broker.turn()
    file = harness.queue("q").log.segments[-1].file
    assert file is not None
    size = file.size()
    assert not harness.broker.unfinished() and list(harness.broker.pressed) == [harness.queue("q")]
    harness.publish("q", b"another")
    harness.broker.turn()
    assert file.size() == size and not harness.broker.unfinished()
    harness.broker.press(False)
    assert harness.broker.unfinished()
    harness.settle_down()
    assert not harness.broker.pressed and not harness.queue("q").tail.closed
    assert starts_from(harness.disk.kill()).queue("q").ready == 4
