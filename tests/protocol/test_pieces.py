"""Many deliveries that are settled at once, by turns of two consumers: it takes several turns, and looks as if it took none."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.base.errors import ChannelError
from kvitto.broker import jobs
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.transfers import bulk, records, transactions
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_BODY
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import House, Wire
from tests.support.rig import work_queue

QUEUE = "q"
COUNT = 4000
"""Messages of each consumer: more than are settled in one piece."""


@pytest.fixture
def house() -> House:
    return House()


@pytest.fixture
def wire(house: House) -> Wire:
    """A peer whose channels 1 and 2 hold every second message each."""
    wire = house.wire()
    wire.put(2, m.ChannelOpen())
    wire.put(1, m.QueueDeclare(QUEUE), m.BasicConsume(QUEUE, "a"))
    wire.put(2, m.BasicConsume(QUEUE, "b"))
    house.settle()
    fill(wire, range(2 * COUNT))
    house.settle()
    wire.put(1, m.BasicCancel("a"))
    wire.put(2, m.BasicCancel("b"))
    house.settle()
    wire.frames()
    assert [channel.unacked for channel in wire.connection.channels.values()] == [COUNT, COUNT]
    return wire


def fill(wire: Wire, numbers: range) -> None:
    for number in numbers:
        wire.feed(content(1, m.BasicPublish("", QUEUE), NO_PROPERTIES, b"%d" % number))


def queue(house: House) -> WorkQueue:
    return work_queue(house.broker, QUEUE)


def bodies(wire: Wire) -> list[int]:
    return [int(payload) for kind, _, payload in wire.frames() if kind == FRAME_BODY]


def test_what_a_channel_held_comes_back_before_anything_that_came_later(house: House, wire: Wire) -> None:
    """A5, A6: another consumer waits; no message overtakes one that is on its way back, and none is lost or doubled on the way."""
    fill(wire, range(2 * COUNT, 2 * COUNT + 10))
    other = house.wire()
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    wire.connection.lost()
    assert queue(house).ready + queue(house).unacked == 2 * COUNT + 10
    assert queue(house).unacked, "it was all done in one piece"
    house.settle()
    assert bodies(other) == list(range(2 * COUNT + 10))
    assert not queue(house).messages


def test_a_get_behind_a_close_waits_for_what_comes_back(house: House, wire: Wire) -> None:
    wire.put(1, m.ChannelClose(200, "done"))
    wire.connection.stalled and house.settle()
    house.settle()
    wire.put(2, m.BasicGet(QUEUE, True))
    house.settle()
    assert bodies(wire) == [0]


def test_close_ok_comes_when_everything_is_back(house: House, wire: Wire) -> None:
    wire.put(1, m.ChannelClose(200, "done"))
    assert wire.connection.stalled and queue(house).ready < COUNT
    assert not wire.methods()
    house.settle()
    assert [type(method) for method in wire.methods()] == [m.ChannelCloseOk]
    assert queue(house).ready == COUNT


def test_an_ack_of_many_runs_settles_all_of_them_and_nothing_else(house: House, wire: Wire) -> None:
    wire.put(1, m.BasicNack(0, True, False))
    house.settle()
    assert (queue(house).unacked, wire.connection.channels[1].unacked) == (COUNT, 0)
    wire.put(2, m.BasicAck(COUNT - 1, True))
    house.settle()
    assert (queue(house).unacked, wire.connection.channels[2].unacked) == (1, 1)
    wire.put(2, m.BasicAck(COUNT))
    house.settle()
    assert not queue(house).messages and wire.methods() == []


def test_recover_ok_comes_when_everything_is_back_in_order(house: House, wire: Wire) -> None:
    wire.put(1, m.BasicRecover(True))
    assert queue(house).ready < COUNT
    house.settle()
    assert queue(house).ready == COUNT
    assert [type(method) for method in wire.methods()] == [m.BasicRecoverOk]
    wire.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    house.settle()
    assert bodies(wire) == list(range(0, 2 * COUNT, 2))


def test_a_transaction_holds_and_gives_back_what_was_acked_in_it(house: House, wire: Wire) -> None:
    """T6, T2: a rollback leaves all unacked, a commit settles them."""
    wire.put(1, m.TxSelect(), m.BasicAck(0, True))
    house.settle()
    wire.put(1, m.TxRollback())
    house.settle()
    assert wire.connection.channels[1].unacked == COUNT
    wire.put(1, m.BasicAck(1), m.BasicAck(0, True))
    house.settle()
    wire.put(1, m.TxCommit())
    house.settle()
    assert wire.connection.channels[1].unacked == 0
    assert queue(house).unacked == COUNT
    wire.put(1, m.BasicAck(1))
    house.settle()
    assert any(isinstance(method, m.ChannelClose) for method in wire.methods())


def test_a_peer_that_is_lost_in_the_middle_of_an_ack_gets_the_rest_back(house: House, wire: Wire) -> None:
    wire.put(1, m.BasicAck(0, True))
    wire.connection.lost()
    house.settle()
    left = queue(house)
    assert left.unacked == 0
    assert COUNT <= left.ready < 2 * COUNT
    assert left.ready == left.next - left.cursor + len(left.backlog.requeued)


def test_a_purge_takes_everything_at_once_and_settles_it_in_pieces(house: House, wire: Wire) -> None:
    """What comes meanwhile stays, and nobody gets what was there before."""
    wire.put(1, *(m.BasicNack(tag, requeue=True) for tag in range(1, COUNT + 1)))
    house.settle()
    other = house.wire()
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True), m.BasicCancel("c"))
    assert queue(house).ready == COUNT
    wire.put(1, m.QueuePurge(QUEUE))
    assert wire.connection.stalled, "it was all done in one piece"
    assert queue(house).ready == 0
    fill(other, range(10))
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    house.settle()
    assert bodies(other) == list(range(10))
    assert [method for method in wire.methods() if isinstance(method, m.QueuePurgeOk)] == [m.QueuePurgeOk(COUNT)]
    assert queue(house).messages == COUNT, "channel 2 holds them"


def test_delayed_messages_are_purged_and_attached_to_in_pieces(house: House) -> None:
    wire = house.wire()
    delay: dict[str, Any] = {"x-retry-delay-min": 60_000, "x-retry-delay-max": 60_000}
    wire.put(1, m.ConfirmSelect(), m.QueueDeclare(QUEUE, durable=True, arguments=delay))
    house.settle()
    for method in (m.LogAttach(QUEUE, "group"), m.QueuePurge(QUEUE)):
        fill(wire, range(5000))
        wire.put(1, m.BasicConsume(QUEUE, "a"))
        house.settle()
        wire.put(1, m.BasicCancel("a"), m.BasicNack(0, True, True))
        house.settle()
        assert len(queue(house).retries.delays) == 5000
        wire.frames()
        wire.put(1, method)
        assert wire.connection.stalled, "it was all done in one piece"
        house.settle()
        assert len(wire.methods()) == 1 and not len(queue(house).retries.delays)
        if isinstance(method, m.LogAttach):
            wire.put(1, m.LogCount(QUEUE, "", 0, 5000))
            house.settle()
            assert wire.methods() == [m.LogCountOk(0, 5000, 5000)]
            wire.put(1, m.LogSettle(QUEUE, "group", "", 5000), m.LogDetach(QUEUE, "group"))
            house.settle()
        assert not queue(house).messages


def test_a_connection_of_many_channels_ends_in_pieces(house: House) -> None:
    """A5, A6: and nothing overtakes what the last of them gives back."""
    other, wire = house.wire(), house.wire()
    other.put(1, m.QueueDeclare(QUEUE))
    for number in range(2, 102):
        wire.put(number, m.ChannelOpen(), m.BasicQos(0, 1), m.BasicConsume(QUEUE, "a"))
    fill(other, range(110))
    house.settle()
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    wire.connection.lost()
    assert queue(house).unacked, "it was all done in one piece"
    house.settle()
    assert sorted(bodies(other)) == list(range(110))


PUBLISHED = 1200
"""Messages of a transaction: more than one piece looks at."""


def large(house: House) -> tuple[Wire, Wire]:
    """A peer with a transaction of publishes to two queues, a reject with its dead letter for each message of a third; and another peer."""
    wire, other = house.wire(), house.wire()
    dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    wire.put(1, *(m.QueueDeclare(name, durable=True) for name in ("a", "b", "dead")))
    house.settle()
    wire.put(1, m.QueueDeclare(QUEUE, durable=True, arguments=dead), m.QueueBind("a", "amq.fanout", ""))
    house.settle()
    wire.put(1, m.QueueBind("b", "amq.fanout", ""), m.ConfirmSelect())
    house.settle()
    fill(wire, range(60))
    house.settle()
    wire.put(2, m.ChannelOpen(), m.TxSelect(), m.BasicConsume(QUEUE, "c"))
    house.settle()
    publish = m.BasicPublish("amq.fanout", "")
    wire.feed(b"".join(content(2, publish, NO_PROPERTIES, b"%d" % number) for number in range(PUBLISHED)))
    house.settle()
    wire.put(2, m.BasicNack(0, True))
    house.settle()
    wire.frames()
    return wire, other


def messages(house: House, *names: str) -> list[int]:
    return [house.broker.vhosts["/"].queues[name].messages for name in names]


def test_a_large_commit_takes_several_turns_and_looks_as_if_it_took_none(house: House) -> None:
    """T2, T4: one of 300,000 publishes held everybody for 23 s, one of 200,000 rejects with dead letters for 33 s."""
    wire, other = large(house)
    wire.put(2, m.TxCommit())
    assert wire.connection.stalled and len(house.broker.jobs.waiting) == 1, "it was all done in one piece"
    other.put(1, m.QueueDeclare("a", passive=True))
    assert not wire.methods() and messages(house, "a", "b", QUEUE, "dead") == [0, 0, 60, 0]
    house.settle()
    assert wire.methods() == [m.TxCommitOk()]
    assert messages(house, "a", "b", QUEUE, "dead") == [PUBLISHED, PUBLISHED, 0, 60]
    other.frames()
    other.put(1, m.BasicConsume("a", "c", no_ack=True))
    house.settle()
    assert bodies(other) == list(range(PUBLISHED))


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_commit_whose_connection_ends_before_it_is_written_never_was(house: House, turns: int) -> None:
    """T4."""
    wire, _ = large(house)
    wire.put(2, m.TxCommit())
    for _ in range(turns):
        house.turn()
    assert len(house.broker.jobs.waiting) == 1
    wire.connection.lost()
    house.settle()
    assert messages(house, "a", "b", QUEUE, "dead") == [0, 0, 60, 0]
    assert queue(house).ready == 60 and not house.hub.holding.total


def test_a_commit_ends_with_its_channel(house: House) -> None:
    """A consumer timeout closes the channel in the middle of it; the connection goes on."""
    wire, _ = large(house)
    wire.put(2, m.TxCommit())
    channel = wire.connection.channels[2]
    wire.connection.fail_channel(channel, ChannelError(406, "too late"))
    house.settle()
    assert [type(method) for method in wire.methods()] == [m.ChannelClose]
    assert messages(house, "a", "b", QUEUE, "dead") == [0, 0, 60, 0]
    wire.put(2, m.ChannelCloseOk())
    wire.put(1, m.BasicQos(0, 1))
    house.settle()
    assert wire.methods() == [m.BasicQosOk()]


def test_a_large_commit_that_no_queue_may_refuse_takes_nothing(house: House) -> None:
    """T5: the refusal comes in a later turn."""
    wire, _ = large(house)
    refusing: dict[str, Any] = {"x-max-length": PUBLISHED - 1, "x-overflow": "reject-publish"}
    wire.put(1, m.QueueDeclare("small", durable=True, arguments=refusing))
    house.settle()
    wire.put(1, m.QueueBind("small", "amq.fanout", ""))
    house.settle()
    wire.frames()
    wire.put(2, m.TxCommit())
    assert wire.connection.stalled, "it was all done in one piece"
    house.settle()
    close = wire.methods()[0]
    assert isinstance(close, m.ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 90, 20)
    assert messages(house, "a", "small", QUEUE, "dead") == [0, 0, 60, 0]
    assert not work_queue(house.broker, "small").coming


def test_messages_with_and_without_a_time_to_live_keep_their_order_in_a_commit(house: House) -> None:
    wire = house.wire()
    wire.put(1, m.QueueDeclare("a", durable=True), m.TxSelect())
    house.settle()
    lives = Properties(expiration="60000").encode()
    for number in range(500):
        wire.feed(
            content(1, m.BasicPublish("", "a"), lives if number == 250 else NO_PROPERTIES, b"%04d" % number * 1000)
        )
    wire.put(1, m.TxCommit())
    house.settle()
    wire.frames()
    wire.put(1, m.BasicConsume("a", "c", no_ack=True))
    house.settle()
    came = [payload[:4] for kind, _, payload in wire.frames() if kind == FRAME_BODY]
    assert came == [b"%04d" % number for number in range(500)]


def test_a_kill_while_a_commit_is_applied_leaves_all_of_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: the record is durable, some of its settlements are written, its messages are not."""
    monkeypatch.setattr(transactions, "FINISH", jobs.PIECE // 7)
    wire, _ = large(house)
    wire.put(2, m.TxCommit())
    dead = house.broker.vhosts["/"].queues["dead"]
    while not (queue(house).unacked < 60 and house.store.journal.sequence):
        assert not dead.ready, "it was all applied in one piece"
        if house.hub.unfinished:
            house.turn()
        else:
            house.sync()
    assert not dead.ready and messages(house, "a", "b") == [0, 0]
    after = House(house.disk.kill())
    after.settle()
    assert messages(after, "a", "b", QUEUE, "dead") == [PUBLISHED, PUBLISHED, 0, 60]


def step(house: House) -> None:
    """A turn, or the sync that somebody waits for, without the turn behind it."""
    if house.hub.unfinished:
        house.turn()
        return
    assert house.store.commits.waiting
    job = house.store.begin_sync(everything=False)
    job.run()
    house.end_sync(job)


def until_durable(house: House) -> None:
    """A record of the journal is durable, and wants to be applied."""
    while not house.broker.records.due:
        step(house)


@pytest.mark.parametrize("killed", [False, True])
def test_the_messages_of_a_commit_come_queue_by_queue_and_after_a_kill_all_of_them(
    house: House, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """T4: those of 100,000 messages for two queues came in one piece of 0.5 s."""
    monkeypatch.setattr(bulk, "QUEUE_COST", jobs.PIECE)
    monkeypatch.setattr(records, "APPLIED_PIECE", records.APPLIED_PER_TURN)
    wire, _ = large(house)
    wire.feed(content(2, m.BasicPublish("", "b"), Properties(expiration="60000").encode(), b"late"))
    house.settle()
    wire.put(2, m.TxCommit())
    until_durable(house)
    assert messages(house, "a", "b", "dead") == [0, 0, 0], "it was applied before it was durable"
    while not any(found := messages(house, "a", "b", "dead")):
        step(house)
    assert sorted(found)[0] == 0, "it was all applied in one piece"
    assert set(found) <= {0, 60, PUBLISHED, PUBLISHED + 1} and not wire.methods()
    if killed:
        house = House(house.disk.kill(), house.clock)
    house.settle()
    assert messages(house, "a", "b", QUEUE, "dead") == [PUBLISHED, PUBLISHED + 1, 0, 60]
    assert killed or wire.methods() == [m.TxCommitOk()]
    house = House(house.disk.kill(), house.clock)
    assert messages(house, "a", "b", QUEUE, "dead") == [PUBLISHED, PUBLISHED + 1, 0, 60]
    wire = house.wire()
    wire.put(1, m.BasicConsume("b", "c", no_ack=True))
    house.settle()
    assert bodies_of(wire)[-1] == b"late"
    wire.put(1, m.BasicConsume("dead", "d", no_ack=True))
    house.settle()
    assert sorted(map(int, bodies_of(wire))) == list(range(60))


def bodies_of(wire: Wire) -> list[bytes]:
    return [payload for kind, _, payload in wire.frames() if kind == FRAME_BODY]


def test_a_time_to_live_in_a_commit_is_still_known_after_a_kill(house: House) -> None:
    wire = house.wire()
    for name in ("a", "b"):
        wire.put(1, m.QueueDeclare(name, durable=True))
        house.settle()
    wire.put(1, m.TxSelect())
    for name in ("a", "b"):
        for milliseconds in (1000, 5 << 32):
            lives = Properties(expiration=str(milliseconds)).encode()
            wire.feed(content(1, m.BasicPublish("", name), lives, b"x"))
    wire.put(1, m.TxCommit())
    until_durable(house)
    house = House(house.disk.kill(), house.clock)
    house.settle()
    assert messages(house, "a", "b") == [2, 2]
    house.clock.advance(2)
    house.broker.tick()
    house.settle()
    assert messages(house, "a", "b") == [1, 1]


def through(house: House, exchanges: int, rejects: int) -> Wire:
    """A peer whose transaction holds rejects with dead letters that go through so many exchanges to "dead", or as well to "other"."""
    vhost = house.broker.vhosts["/"]
    for number in range(exchanges):
        vhost.declare_exchange(f"x{number}", "fanout", True, False, False, {})
        if number:
            vhost.bind(f"x{number - 1}", vhost.exchanges[f"x{number}"], "", {})
    for name in ("dead", "other"):
        vhost.bind(f"x{exchanges - 1}", vhost.declare_queue(name, True, False, False, {}, None), "", {})
    vhost.declare_queue(QUEUE, True, False, False, {"x-dead-letter-exchange": "x0"}, None)
    wire = house.wire()
    fill(wire, range(rejects))
    house.settle()
    wire.put(1, m.TxSelect(), *[m.BasicGet(QUEUE)] * rejects)
    house.settle()
    wire.put(1, m.BasicNack(0, True))
    house.settle()
    wire.frames()
    return wire


def test_dead_letters_of_a_commit_find_their_long_way_in_pieces(house: House) -> None:
    """1,000 rejects through 2,000 exchanges took 3.1 s in one piece, and then 3 ms each."""
    wire = through(house, 1500, 3)
    wire.put(1, m.TxCommit())
    turns = 0
    while house.broker.jobs.waiting:
        house.turn()
        turns += 1
    assert turns > 3, "a way was found in one piece"
    house.settle()
    assert wire.methods() == [m.TxCommitOk()]
    assert messages(house, "dead", "other", QUEUE) == [3, 3, 0]


def test_a_dead_letter_whose_queue_is_deleted_in_the_middle_of_the_commit_goes_another_way(house: House) -> None:
    """X4: the record would have named a queue that is gone, and the message with it."""
    wire, vhost = through(house, 300, 30), house.broker.vhosts["/"]
    wire.put(1, m.TxCommit())
    for name in ("dead", "other"):
        house.turn()
        vhost.delete_queue(vhost.queues[name])
        assert house.broker.jobs and not house.store.journal.sequence
    house.settle()
    assert wire.methods() == [m.TxCommitOk()]
    assert messages(house, QUEUE) == [30], "nobody takes them: they stay"
    house.broker.vhosts["/"].bind(
        "x0", house.broker.vhosts["/"].declare_queue("new", True, False, False, {}, None), "", {}
    )
    for _ in range(3):
        house.clock.advance(1)
        house.broker.tick()
        house.settle()
    assert messages(house, "new", QUEUE) == [30, 0]


def test_a_commit_whose_queues_are_deleted_again_and_again_is_refused(house: House) -> None:
    """Somebody else must not keep it busy for ever; nothing of it is applied."""
    wire = through(house, 300, 30)
    vhost = house.broker.vhosts["/"]
    wire.put(1, m.TxCommit())
    turns = 0
    while house.broker.jobs and turns < 1000:
        turns += 1
        vhost.delete_queue(vhost.queues["dead"])
        vhost.bind("x299", vhost.declare_queue("dead", True, False, False, {}, None), "", {})
        house.turn()
    house.settle()
    close = wire.methods()[0]
    assert isinstance(close, m.ChannelClose) and (close.reply_code, close.method_id) == (406, 20) and turns > 5
    assert messages(house, "dead", "other", QUEUE) == [0, 0, 30] and queue(house).ready == 30


@pytest.mark.parametrize("lost", [False, True])
def test_many_single_settlements_are_rolled_back_in_pieces(house: House, wire: Wire, lost: bool) -> None:
    """T6: 250,000 took 89 ms."""
    count = 600
    wire.put(1, m.TxSelect(), *(m.BasicAck(tag) for tag in range(1, 2 * count, 2)))
    house.settle()
    channel = wire.connection.channels[1]
    wire.put(1, m.TxRollback())
    assert wire.connection.stalled and channel.tx.held, "it was all done in one piece"
    if lost:
        wire.connection.lost()
        house.settle()
        assert queue(house).ready == 2 * COUNT
        return
    house.settle()
    assert wire.methods() == [m.TxSelectOk(), m.TxRollbackOk()] and channel.unacked == COUNT
    wire.put(1, *(m.BasicAck(tag) for tag in range(1, 2 * count, 2)), m.BasicAck(0, True), m.TxCommit())
    house.settle()
    assert wire.methods() == [m.TxCommitOk()] and channel.unacked == 0


@pytest.mark.parametrize(
    ("key", "properties"), [("a", NO_PROPERTIES), ("a", Properties(expiration="1").encode()), ("none", NO_PROPERTIES)]
)
def test_publishes_into_a_transaction_are_taken_a_turn_at_a_time(house: House, key: str, properties: bytes) -> None:
    """A page of 512 KB of them took 40 ms."""
    wire = house.wire()
    wire.put(1, m.QueueDeclare("a"), m.TxSelect())
    wire.feed(content(1, m.BasicPublish("", key), properties, b"") * 2000)
    assert wire.connection.yielded and len(wire.connection.channels[1].tx.publishes) < 600
    house.settle()
    wire.put(1, m.TxCommit())
    house.settle()
    assert wire.methods()[-1] == m.TxCommitOk()
    assert messages(house, "a") == [2000 if properties == NO_PROPERTIES and key == "a" else messages(house, "a")[0]]


def test_messages_with_priorities_come_back_in_small_pieces(house: House) -> None:
    """Each is read to be sorted again: 10,000 of them took 70 ms in one piece."""
    other, wire = house.wire(), house.wire()
    other.put(1, m.QueueDeclare(QUEUE, arguments={"x-max-priority": 3}))
    wire.put(1, m.BasicConsume(QUEUE, "a"))
    fill(other, range(1000))
    house.settle()
    wire.connection.lost()
    assert queue(house).unacked > 500, "it was all done in one piece"
    house.settle()
    assert queue(house).ready == 1000
