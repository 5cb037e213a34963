"""Large batches are written in slices over several turns: all of one is there, or nothing, and nobody else waits for it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kvitto.broker.queues.look import Look, looks
from kvitto.broker.queues.reader import RangeReader
from kvitto.broker.transfers.bulk import Bulk
from kvitto.broker.transfers.deadletter import READING
from kvitto.protocol import connection
from kvitto.store import pieces, reading
from kvitto.store.batch import Stored
from kvitto.store.repair.survey import Survey
from kvitto.wire import methods as m
from kvitto.wire.buf import Buf
from tests.protocol import sessions
from tests.protocol.sansio import House, Wire
from tests.protocol.test_limits import ask
from tests.support import stored
from tests.support.clock import ManualClock
from tests.support.rig import NO_PROPERTIES, Rig, Taker, address
from tests.support.simdisk import SimDisk

ONE_PIECE = 1
"""What a turn may cost: one piece of one queue."""
LARGE = bytes(range(256)) * 200


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SLICE_BYTES", 4000)
    monkeypatch.setattr(pieces, "WHOLE_BYTES", 8000)


def put(rig: Rig, name: str, body: bytes) -> None:
    """As a channel does with a large body."""
    buf = Buf(0)
    buf.add(body)
    assert rig.queue(name).append_whole(address(name), NO_PROPERTIES, buf, -1, 0)


def begun(rig: Rig | None = None, **arguments: Any) -> Rig:
    """A queue with a message, and a large one that has been written in part; another waits behind it."""
    rig = rig or Rig()
    rig.declare("q", **arguments)
    rig.publish("q", b"first")
    rig.settle_down()
    put(rig, "q", LARGE)
    for _ in range(3):
        rig.broker.turn(ONE_PIECE)
    rig.publish("q", b"behind")
    assert rig.queue("q").log.is_writing
    return rig


def starts_from(disk: SimDisk) -> Rig:
    """Without an alarm, and nothing is damaged."""
    rig = Rig(disk, ManualClock())
    assert not rig.store.alarms
    return rig


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
    rig = begun()
    rng, seen = Random(seed), set()
    for turn in range(14):
        rig.broker.turn(ONE_PIECE)
        if turn % 3 == 2:
            rig.sync(everything=True)
        disk = end(rig.disk.copy(), rng)
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
    rig = begun()
    queue, sizes = rig.queue("q"), []
    while queue.tail.closed:
        before = queue.log.segments[-1].ahead
        rig.broker.turn(ONE_PIECE)
        sizes.append(queue.log.segments[-1].ahead - before)
    assert max(sizes) <= 4000 and len(sizes) > 3
    assert rig.peek("q") == [b"first", LARGE, b"behind"]
    rig.restart()
    assert rig.drain("q") == [b"first", LARGE, b"behind"]


def test_nothing_is_delivered_before_it_is_written() -> None:
    """A9: it would be on its way to a peer although no file knows of it."""
    rig = begun()
    assert rig.drain("q") == []
    rig.settle_down()
    assert rig.drain("q") == [b"first", LARGE, b"behind"]


def test_on_a_full_disk_it_is_cut_off_and_written_again_later() -> None:
    """D4: and what was there before is delivered meanwhile, for that may make room."""
    rig = begun()
    size = rig.queue("q").log.segments[-1].size
    rig.disk.full = True
    rig.turn()
    part = rig.queue("q").log.segments[-1]
    assert rig.broker.full and (part.size, part.ahead) == (size, 0)
    assert rig.queue("q").returning == 0
    rig.disk.full = False
    rig.broker.retry_writes()
    rig.settle_down()
    assert rig.peek("q") == [b"first", LARGE, b"behind"]
    rig.kill()
    assert rig.peek("q") == [b"first", LARGE, b"behind"] and not rig.store.alarms


@pytest.mark.parametrize("archive", [False, True])
def test_the_queue_may_go_meanwhile(archive: bool) -> None:
    rig = begun(x_archive=True) if archive else begun()
    rig.delete("q")
    rig.settle_down()
    assert not rig.broker.slow
    rig.restart()
    assert not rig.broker.queues and not rig.store.alarms


def test_it_may_be_purged_meanwhile() -> None:
    rig = begun()
    assert rig.queue("q").purge() == 3
    rig.settle_down()
    assert rig.queue("q").messages == 0 and not rig.broker.slow
    rig.publish("q", b"next")
    rig.restart()
    assert rig.peek("q") == [b"next"] and not rig.store.alarms


def test_room_is_not_given_back_while_it_is_written() -> None:
    """What lies behind the last whole batch is the beginning of one."""
    rig = begun()
    rig.broker.make_room(True)
    rig.settle_down()
    assert rig.peek("q") == [b"first", LARGE, b"behind"]


def test_an_end_in_order_waits_for_it() -> None:
    rig = begun()
    rig.broker.finish()
    rig.store.shut()
    again = starts_from(rig.disk.kill())
    assert again.peek("q") == [b"first", LARGE, b"behind"]


def test_a_stream_keeps_its_order() -> None:
    rig = Rig()
    rig.declare("s", x_queue_type="stream")
    rig.publish("s", b"first")
    rig.settle_down()
    put(rig, "s", LARGE)
    rig.broker.turn(ONE_PIECE)
    rig.publish("s", b"behind")
    rig.settle_down()
    rig.kill()
    stream = rig.queue("s")
    assert [stored.read(stream, offset)[2] for offset in range(3)] == [b"first", LARGE, b"behind"]  # type: ignore[index]


@pytest.mark.parametrize("cut", [False, True], ids=["kill", "power cut"])
def test_a_large_dead_letter_is_in_one_place(cut: bool) -> None:
    """X4: its record is applied by a batch that takes several turns, and the journal keeps it until that is written."""
    rig = Rig()
    rig.declare("dead")
    queue = rig.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    rig.publish("q", LARGE)
    rig.settle_down()
    rig.take("q")
    rig.settle_down()
    queue.reject(0, 1)
    rng = Random(7)
    for turn in range(60):
        rig.broker.jobs.run()
        rig.broker.turn(ONE_PIECE)
        if turn % 4 == 3 and rig.store.commits.dirty:
            job = rig.store.begin_sync(everything=True)
            job.run()
            rig.store.end_sync(job)
        again = starts_from(rig.disk.copy().crash(rng) if cut else rig.disk.copy().kill())
        again.settle_down()
        assert again.peek("q") + again.peek("dead") == [LARGE]
    assert rig.peek("dead") == [LARGE]


# -- read again ----------------------------------------------------------------------------------------------


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large batch is not read as a whole."""
    monkeypatch.setattr(reading, "STREAMED_BYTES", 5000)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 2000)


@pytest.mark.usefixtures("streamed")
def test_a_queue_with_priorities_starts_with_a_large_message_that_it_has_not_sorted_in() -> None:
    """The power cut took the mark that it had been sorted in, and the start looked for it for ever: it has to be checked first."""
    rig = Rig()
    rig.declare("q", x_max_priority=5)
    rig.settle_down()
    put(rig, "q", LARGE)
    while rig.queue("q").tail.closed or not rig.store.commits.dirty:
        rig.turn()
    rig.sync(everything=False)
    marks = set()
    for seed in range(20):
        again = starts_from(rig.disk.copy().crash(Random(seed)))
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
    rig = Rig()
    queue = rig.declare("q", **priorities)
    rig.publish("q", b"first")
    assert queue.get(Taker(queue))
    put(rig, "q", LARGE)
    rig.broker.turn(ONE_PIECE)
    assert queue.log.is_writing and queue.log.next == queue.unwritten_from == 1
    rig.kill()
    assert [(d.body, d.redelivered) for d in rig.take("q")] == [(b"first", True)]


@pytest.mark.usefixtures("streamed")
def test_what_is_read_by_offset_may_leave_while_it_is_checked() -> None:
    """The rest of the range is read; the reader took what it had checked for the next message."""
    rig = Rig()
    queue = rig.declare("q")
    for body in (LARGE, b"behind"):
        put(rig, "q", body)
    rig.settle_down()
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
    rig, reading, most = Rig(), 0, 0
    read = Stored.take

    def counted(stored: Stored) -> Generator[None, None, Buf]:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        body = yield from read(stored)
        reading -= 1
        return body

    monkeypatch.setattr(Stored, "take", counted)
    rig.declare("dead")
    names = [f"q{n}" for n in range(8)]
    for name in names:
        rig.declare(name, x_dead_letter_exchange="", x_dead_letter_routing_key="dead", x_max_length=1)
        put(rig, name, LARGE)
    rig.settle_down()
    for name in names:
        rig.queue(name).release_windows()
        rig.publish(name, b"behind")
    rig.settle_down()
    assert rig.peek("dead") == [LARGE] * len(names) and (reading, most) == (0, 1)


@pytest.mark.usefixtures("streamed")
def test_who_looks_into_a_queue_leaves_nothing_in_memory() -> None:
    """What was read stayed until the queue had something to write."""
    rig = Rig()
    queue = rig.declare("q")
    put(rig, "q", LARGE)
    rig.settle_down()
    queue.release_windows()
    found = [one for one in looks(queue, 10) if isinstance(one, Look)]
    assert len(found) == 1 and queue.backlog._behind.segment is not None
    rig.turn()
    assert queue.backlog._behind.segment is None and queue.backlog.outline.segment is None


def letter_being_read() -> Rig:
    """A rejected large message of which a part is in memory."""
    rig = Rig()
    rig.declare("dead")
    queue = rig.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    put(rig, "q", LARGE)
    rig.settle_down()
    while not rig.take("q"):
        rig.turn()
    queue.release_windows()
    queue.reject(0, 1)
    letters = rig.broker.dead_letters
    while not any(letter.step is READING for letter in letters._addressing.values()):
        rig.turn()
    return rig


@pytest.mark.usefixtures("streamed")
def test_a_dead_letters_queue_may_be_deleted_while_it_is_read() -> None:
    """X4: it stays where it is; it was settled, and in no queue."""
    rig = letter_being_read()
    rig.delete("dead")
    rig.settle_down()
    assert rig.peek("q") == [LARGE] and len(rig.queue("q").parked) == 1


@pytest.mark.usefixtures("streamed")
def test_a_dead_letter_exchange_may_be_taken_away_while_a_letter_is_read() -> None:
    """It is dropped, as one that was not begun; one that was being checked went by the default exchange, back to its own queue."""
    rig = letter_being_read()
    queue = rig.queue("q")
    settings = replace(queue.settings, dead_letter_exchange=None, dead_letter_routing_key=None)
    queue.take_settings(settings)
    rig.settle_down()
    assert not queue.messages and not rig.queue("dead").messages


@pytest.mark.usefixtures("streamed")
@pytest.mark.parametrize("turns", range(1, 20, 2))
def test_an_end_in_order_leaves_no_part_of_a_dead_letter_in_the_journal(turns: int) -> None:
    """D3: the end itself had begun its record, and `kvitto check` took that for damage."""
    rig = letter_being_read()
    for _ in range(turns):
        rig.turn()
    rig.broker.finish()
    rig.store.shut()
    disk = rig.disk.kill()
    assert not Survey(disk.copy()).findings
    again = starts_from(disk)
    assert again.peek("q") + again.peek("dead") == [LARGE]


def test_a_batch_that_was_checked_before_is_compared_again_when_more_of_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D3: it was checked once for all of its messages, and a bit that flipped later was delivered without an alarm."""
    monkeypatch.setattr("kvitto.store.reading.STREAMED_BYTES", 5000)
    monkeypatch.setattr("kvitto.store.reading.CHUNK_BYTES", 2000)
    rig = Rig()
    queue, bulk = rig.declare("q"), Bulk(rig.broker)
    bodies = [b"%d" % number * 3000 for number in range(10)]
    for body in bodies:
        for _ in bulk.put([queue], address("q"), NO_PROPERTIES, body):
            pass
    for _ in bulk.encode():
        pass
    steps = bulk.apply()
    rig.broker.records.write(bulk.record, lambda: next(steps, "end") != "end", lambda: None)
    rig.settle_down()
    queue.release_windows()
    taker = Taker(queue)
    while not queue.get(taker):
        rig.turn()
    path, data = next((p, d) for p, d in rig.disk.files().items() if p.endswith(".log") and "queues" in p)
    rig.disk.flip(path, data.index(b"9" * 100) + 50)
    found = rig.drain("q")
    assert found == bodies[1 : len(found) + 1] and len(found) < 9
    rig.settle_down()
    assert any("cannot be read" in alarm for alarm in rig.store.alarms)


# -- confirms ------------------------------------------------------------------------------------------------


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    """Where a turn writes one slice."""
    monkeypatch.setattr("kvitto.protocol.hub.WRITE_COST", ONE_PIECE)
    monkeypatch.setattr(connection, "UNCOPIED", 1000)
    monkeypatch.setattr("kvitto.store.pieces.SLICE_BYTES", 50_000)
    return House()


BODY = bytes(300_000)
"""More than a frame."""


def publisher(house: House, *queues: str) -> Wire:
    wire = house.wire()
    ask(wire, *[m.QueueDeclare(queue, durable=True) for queue in queues], m.ConfirmSelect())
    house.settle()
    wire.methods()
    return wire


def say(wire: Wire, queue: str, body: bytes) -> None:
    wire.feed(sessions.content(1, m.BasicPublish("", queue), b"\0\0", body))


def confirmed(wire: Wire) -> bool:
    return any(isinstance(method, m.BasicAck) for method in wire.methods())


def step(house: House) -> None:
    house.turn()
    if house.store.commits.waiting:
        house.sync()


def test_who_publishes_to_the_same_queue_waits_and_who_does_not_goes_on(house: House) -> None:
    large, same, other = publisher(house, "q"), publisher(house, "q"), publisher(house, "other")
    say(large, "q", BODY)
    say(same, "q", b"behind")
    say(other, "other", b"elsewhere")
    queue = house.broker.vhosts["/"].queues["q"]
    first = 0
    while queue.tail.closed:
        assert not confirmed(large) and not confirmed(same)
        if not first and confirmed(other):
            first = queue.log.segments[-1].ahead
        step(house)
    assert 0 < first < len(BODY)
    house.settle()
    assert confirmed(large) and confirmed(same)
    again = Rig(house.disk.crash(Random(1)), ManualClock())
    assert again.peek("q") == [BODY, b"behind"]


def test_its_publisher_may_go_meanwhile(house: House) -> None:
    """The message is in the queue already; a second one that has not been read is not."""
    wire = publisher(house, "q")
    wire.feed(2 * sessions.content(1, m.BasicPublish("", "q"), b"\0\0", BODY))
    step(house)
    wire.connection.lost()
    house.settle()
    queue = house.broker.vhosts["/"].queues["q"]
    assert queue.messages == 1 and not house.broker.slow and not queue.returning


def test_one_body_for_many_queues_is_in_memory_once(house: House) -> None:
    names = [f"q{number}" for number in range(5)]
    wire = publisher(house, *names)
    ask(wire, *[m.QueueBind(name, "amq.fanout") for name in names])
    wire.feed(sessions.content(1, m.BasicPublish("amq.fanout", ""), b"\0\0", BODY))
    house.settle()
    assert confirmed(wire)
    again = Rig(house.disk.crash(Random(1)), ManualClock())
    assert [again.peek(name) for name in names] == [[BODY]] * 5


def test_a_transaction_with_a_large_body(house: House) -> None:
    """T4: it goes through the journal, and its batch takes several turns."""
    wire = publisher(house, "a", "b")
    tx = house.wire()
    ask(tx, m.TxSelect())
    say(tx, "a", BODY)
    say(tx, "b", b"small")
    tx.put(1, m.TxCommit())
    rng = Random(3)
    for _ in range(40):
        disk = house.disk.copy().crash(rng)
        again = Rig(disk, ManualClock())
        assert not again.store.alarms
        assert (again.peek("a"), again.peek("b")) in (([], []), ([BODY], [b"small"]))
        step(house)
    house.settle()
    assert any(isinstance(method, m.TxCommitOk) for method in tx.methods())
    assert not confirmed(wire)


def test_a_large_batch_waits_for_the_disk_and_keeps_nobody_busy() -> None:
    """While others' sync would take too long nothing more of it is written, and no turn is spent on it."""
    rig = begun()
    rig.broker.press(True)
    rig.broker.turn()
    file = rig.queue("q").log.segments[-1].file
    assert file is not None
    size = file.size()
    assert not rig.broker.unfinished() and list(rig.broker.pressed) == [rig.queue("q")]
    rig.publish("q", b"another")
    rig.broker.turn()
    assert file.size() == size and not rig.broker.unfinished()
    rig.broker.press(False)
    assert rig.broker.unfinished()
    rig.settle_down()
    assert not rig.broker.pressed and not rig.queue("q").tail.closed
    assert starts_from(rig.disk.kill()).queue("q").ready == 4
