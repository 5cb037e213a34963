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
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.support.harness import work_queue

QUEUE = "q"
COUNT = 4000
"""Messages of each consumer: more than are settled in one piece."""


@pytest.fixture
def harness() -> ProtocolHarness:
    return ProtocolHarness()


@pytest.fixture
def wire(harness: ProtocolHarness) -> Wire:
    """A peer whose channels 1 and 2 hold every second message each."""
    wire = harness.wire()
    wire.put(2, m.ChannelOpen())
    wire.put(1, m.QueueDeclare(QUEUE), m.BasicConsume(QUEUE, "a"))
    wire.put(2, m.BasicConsume(QUEUE, "b"))
    harness.settle_down()
    fill(wire, range(2 * COUNT))
    harness.settle_down()
    wire.put(1, m.BasicCancel("a"))
    wire.put(2, m.BasicCancel("b"))
    harness.settle_down()
    wire.frames()
    assert [channel.unacked for channel in wire.connection.channels.values()] == [COUNT, COUNT]
    return wire


def fill(wire: Wire, numbers: range) -> None:
    for number in numbers:
        wire.feed(content(1, m.BasicPublish("", QUEUE), NO_PROPERTIES, b"%d" % number))


def queue(harness: ProtocolHarness) -> WorkQueue:
    return work_queue(harness.broker, QUEUE)


def bodies(wire: Wire) -> list[int]:
    return [int(payload) for kind, _, payload in wire.frames() if kind == FRAME_BODY]


def test_what_a_channel_held_comes_back_before_anything_that_came_later(harness: ProtocolHarness, wire: Wire) -> None:
    """A5, A6: another consumer waits; no message overtakes one that is on its way back, and none is lost or doubled on the way."""
    fill(wire, range(2 * COUNT, 2 * COUNT + 10))
    other = harness.wire()
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    wire.connection.lost()
    assert queue(harness).ready + queue(harness).unacked == 2 * COUNT + 10
    assert queue(harness).unacked, "it was all done in one piece"
    harness.settle_down()
    assert bodies(other) == list(range(2 * COUNT + 10))
    assert not queue(harness).messages


def test_a_get_behind_a_close_waits_for_what_comes_back(harness: ProtocolHarness, wire: Wire) -> None:
    wire.put(1, m.ChannelClose(200, "done"))
    wire.connection.stalled and harness.settle_down()
    harness.settle_down()
    wire.put(2, m.BasicGet(QUEUE, True))
    harness.settle_down()
    assert bodies(wire) == [0]


def test_close_ok_comes_when_everything_is_back(harness: ProtocolHarness, wire: Wire) -> None:
    wire.put(1, m.ChannelClose(200, "done"))
    assert wire.connection.stalled and queue(harness).ready < COUNT
    assert not wire.methods()
    harness.settle_down()
    assert [type(method) for method in wire.methods()] == [m.ChannelCloseOk]
    assert queue(harness).ready == COUNT


def test_an_ack_of_many_runs_settles_all_of_them_and_nothing_else(harness: ProtocolHarness, wire: Wire) -> None:
    wire.put(1, m.BasicNack(0, True, False))
    harness.settle_down()
    assert (queue(harness).unacked, wire.connection.channels[1].unacked) == (COUNT, 0)
    wire.put(2, m.BasicAck(COUNT - 1, True))
    harness.settle_down()
    assert (queue(harness).unacked, wire.connection.channels[2].unacked) == (1, 1)
    wire.put(2, m.BasicAck(COUNT))
    harness.settle_down()
    assert not queue(harness).messages and wire.methods() == []


def test_recover_ok_comes_when_everything_is_back_in_order(harness: ProtocolHarness, wire: Wire) -> None:
    wire.put(1, m.BasicRecover(True))
    assert queue(harness).ready < COUNT
    harness.settle_down()
    assert queue(harness).ready == COUNT
    assert [type(method) for method in wire.methods()] == [m.BasicRecoverOk]
    wire.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    harness.settle_down()
    assert bodies(wire) == list(range(0, 2 * COUNT, 2))


def test_a_transaction_holds_and_gives_back_what_was_acked_in_it(harness: ProtocolHarness, wire: Wire) -> None:
    """T6, T2: a rollback leaves all unacked, a commit settles them."""
    wire.put(1, m.TxSelect(), m.BasicAck(0, True))
    harness.settle_down()
    wire.put(1, m.TxRollback())
    harness.settle_down()
    assert wire.connection.channels[1].unacked == COUNT
    wire.put(1, m.BasicAck(1), m.BasicAck(0, True))
    harness.settle_down()
    wire.put(1, m.TxCommit())
    harness.settle_down()
    assert wire.connection.channels[1].unacked == 0
    assert queue(harness).unacked == COUNT
    wire.put(1, m.BasicAck(1))
    harness.settle_down()
    assert any(isinstance(method, m.ChannelClose) for method in wire.methods())


def test_a_peer_that_is_lost_in_the_middle_of_an_ack_gets_the_rest_back(harness: ProtocolHarness, wire: Wire) -> None:
    wire.put(1, m.BasicAck(0, True))
    wire.connection.lost()
    harness.settle_down()
    left = queue(harness)
    assert left.unacked == 0
    assert COUNT <= left.ready < 2 * COUNT
    assert left.ready == left.next - left.cursor + len(left.backlog.requeued)


def test_a_purge_takes_everything_at_once_and_settles_it_in_pieces(harness: ProtocolHarness, wire: Wire) -> None:
    """What comes meanwhile stays, and nobody gets what was there before."""
    wire.put(1, *(m.BasicNack(tag, requeue=True) for tag in range(1, COUNT + 1)))
    harness.settle_down()
    other = harness.wire()
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True), m.BasicCancel("c"))
    assert queue(harness).ready == COUNT
    wire.put(1, m.QueuePurge(QUEUE))
    assert wire.connection.stalled, "it was all done in one piece"
    assert queue(harness).ready == 0
    fill(other, range(10))
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    harness.settle_down()
    assert bodies(other) == list(range(10))
    assert [method for method in wire.methods() if isinstance(method, m.QueuePurgeOk)] == [m.QueuePurgeOk(COUNT)]
    assert queue(harness).messages == COUNT, "channel 2 holds them"


def test_delayed_messages_are_purged_and_attached_to_in_pieces(harness: ProtocolHarness) -> None:
    wire = harness.wire()
    delay: dict[str, Any] = {"x-retry-delay-min": 60_000, "x-retry-delay-max": 60_000}
    wire.put(1, m.ConfirmSelect(), m.QueueDeclare(QUEUE, durable=True, arguments=delay))
    harness.settle_down()
    for method in (m.LogAttach(QUEUE, "group"), m.QueuePurge(QUEUE)):
        fill(wire, range(5000))
        wire.put(1, m.BasicConsume(QUEUE, "a"))
        harness.settle_down()
        tags = [method.delivery_tag for method in wire.methods() if isinstance(method, m.BasicDeliver)]
        wire.put(1, m.BasicCancel("a"), *(m.BasicAck(tag) for tag in tags[::2]), m.BasicNack(0, True, True))
        harness.settle_down()
        assert len(queue(harness).retries.delays) == 2500, "in as many runs"
        wire.frames()
        wire.put(1, method)
        assert wire.connection.stalled, "it was all done in one piece"
        harness.settle_down()
        assert len(wire.methods()) == 1 and not len(queue(harness).retries.delays)
        if isinstance(method, m.LogAttach):
            wire.put(1, m.LogCount(QUEUE, "", 0, 5000))
            harness.settle_down()
            assert wire.methods() == [m.LogCountOk(1, 5000, 2500)]
            wire.put(1, m.LogSettle(QUEUE, "group", "", 5000), m.LogDetach(QUEUE, "group"))
            harness.settle_down()
        assert not queue(harness).messages


def test_a_connection_of_many_channels_ends_in_pieces(harness: ProtocolHarness) -> None:
    """A5, A6: and nothing overtakes what the last of them gives back."""
    other, wire = harness.wire(), harness.wire()
    other.put(1, m.QueueDeclare(QUEUE))
    for number in range(2, 102):
        wire.put(number, m.ChannelOpen(), m.BasicQos(0, 1), m.BasicConsume(QUEUE, "a"))
    fill(other, range(110))
    harness.settle_down()
    other.put(1, m.BasicConsume(QUEUE, "c", no_ack=True))
    wire.connection.lost()
    assert queue(harness).unacked, "it was all done in one piece"
    harness.settle_down()
    assert sorted(bodies(other)) == list(range(110))


PUBLISHED = 1200
"""Messages of a transaction: more than one piece looks at."""


def large(harness: ProtocolHarness) -> tuple[Wire, Wire]:
    """A peer with a transaction of publishes to two queues, a reject with its dead letter for each message of a third; and another peer."""
    wire, other = harness.wire(), harness.wire()
    dead: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    wire.put(1, *(m.QueueDeclare(name, durable=True) for name in ("a", "b", "dead")))
    harness.settle_down()
    wire.put(1, m.QueueDeclare(QUEUE, durable=True, arguments=dead), m.QueueBind("a", "amq.fanout", ""))
    harness.settle_down()
    wire.put(1, m.QueueBind("b", "amq.fanout", ""), m.ConfirmSelect())
    harness.settle_down()
    fill(wire, range(60))
    harness.settle_down()
    wire.put(2, m.ChannelOpen(), m.TxSelect(), m.BasicConsume(QUEUE, "c"))
    harness.settle_down()
    publish = m.BasicPublish("amq.fanout", "")
    wire.feed(b"".join(content(2, publish, NO_PROPERTIES, b"%d" % number) for number in range(PUBLISHED)))
    harness.settle_down()
    wire.put(2, m.BasicNack(0, True))
    harness.settle_down()
    wire.frames()
    return wire, other


def messages(harness: ProtocolHarness, *names: str) -> list[int]:
    return [harness.broker.vhosts["/"].queues[name].messages for name in names]


def test_a_large_commit_takes_several_turns_and_looks_as_if_it_took_none(harness: ProtocolHarness) -> None:
    """T2, T4: one of 300,000 publishes held everybody for 23 s, one of 200,000 rejects with dead letters for 33 s."""
    wire, other = large(harness)
    wire.put(2, m.TxCommit())
    assert wire.connection.stalled and len(harness.broker.jobs.waiting) == 1, "it was all done in one piece"
    other.put(1, m.QueueDeclare("a", passive=True))
    assert not wire.methods() and messages(harness, "a", "b", QUEUE, "dead") == [0, 0, 60, 0]
    harness.settle_down()
    assert wire.methods() == [m.TxCommitOk()]
    assert messages(harness, "a", "b", QUEUE, "dead") == [PUBLISHED, PUBLISHED, 0, 60]
    other.frames()
    other.put(1, m.BasicConsume("a", "c", no_ack=True))
    harness.settle_down()
    assert bodies(other) == list(range(PUBLISHED))


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_commit_whose_connection_ends_before_it_is_written_never_was(harness: ProtocolHarness, turns: int) -> None:
    """T4."""
    wire, _ = large(harness)
    wire.put(2, m.TxCommit())
    for _ in range(turns):
        harness.turn()
    assert len(harness.broker.jobs.waiting) == 1
    wire.connection.lost()
    harness.settle_down()
    assert messages(harness, "a", "b", QUEUE, "dead") == [0, 0, 60, 0]
    assert queue(harness).ready == 60 and not harness.hub.buffered.total


def test_a_commit_ends_with_its_channel(harness: ProtocolHarness) -> None:
    """A consumer timeout closes the channel in the middle of it; the connection goes on."""
    wire, _ = large(harness)
    wire.put(2, m.TxCommit())
    channel = wire.connection.channels[2]
    wire.connection.fail_channel(channel, ChannelError(406, "too late"))
    harness.settle_down()
    assert [type(method) for method in wire.methods()] == [m.ChannelClose]
    assert messages(harness, "a", "b", QUEUE, "dead") == [0, 0, 60, 0]
    wire.put(2, m.ChannelCloseOk())
    wire.put(1, m.BasicQos(0, 1))
    harness.settle_down()
    assert wire.methods() == [m.BasicQosOk()]


def test_a_large_commit_that_no_queue_may_refuse_takes_nothing(harness: ProtocolHarness) -> None:
    """T5: the refusal comes in a later turn."""
    wire, _ = large(harness)
    refusing: dict[str, Any] = {"x-max-length": PUBLISHED - 1, "x-overflow": "reject-publish"}
    wire.put(1, m.QueueDeclare("small", durable=True, arguments=refusing))
    harness.settle_down()
    wire.put(1, m.QueueBind("small", "amq.fanout", ""))
    harness.settle_down()
    wire.frames()
    wire.put(2, m.TxCommit())
    assert wire.connection.stalled, "it was all done in one piece"
    harness.settle_down()
    close = wire.methods()[0]
    assert isinstance(close, m.ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 90, 20)
    assert messages(harness, "a", "small", QUEUE, "dead") == [0, 0, 60, 0]
    assert not work_queue(harness.broker, "small").coming


def test_messages_with_and_without_a_time_to_live_keep_their_order_in_a_commit(harness: ProtocolHarness) -> None:
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("a", durable=True), m.TxSelect())
    harness.settle_down()
    lives = Properties(expiration="60000").encode()
    for number in range(500):
        wire.feed(
            content(1, m.BasicPublish("", "a"), lives if number == 250 else NO_PROPERTIES, b"%04d" % number * 1000)
        )
    wire.put(1, m.TxCommit())
    harness.settle_down()
    wire.frames()
    wire.put(1, m.BasicConsume("a", "c", no_ack=True))
    harness.settle_down()
    came = [payload[:4] for kind, _, payload in wire.frames() if kind == FRAME_BODY]
    assert came == [b"%04d" % number for number in range(500)]


def test_a_kill_while_a_commit_is_applied_leaves_all_of_it(
    harness: ProtocolHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4: the record is durable, some of its settlements are written, its messages are not."""
    monkeypatch.setattr(transactions, "FINISH", jobs.PIECE // 7)
    wire, _ = large(harness)
    wire.put(2, m.TxCommit())
    dead = harness.broker.vhosts["/"].queues["dead"]
    while not (queue(harness).unacked < 60 and harness.store.journal.sequence):
        assert not dead.ready, "it was all applied in one piece"
        if harness.hub.unfinished():
            harness.turn()
        else:
            harness.sync()
    assert not dead.ready and messages(harness, "a", "b") == [0, 0]
    after = ProtocolHarness(harness.disk.kill())
    after.settle_down()
    assert messages(after, "a", "b", QUEUE, "dead") == [PUBLISHED, PUBLISHED, 0, 60]


def step(harness: ProtocolHarness) -> None:
    """A turn, or the sync that somebody waits for, without the turn behind it."""
    if harness.hub.unfinished():
        harness.turn()
        return
    assert harness.store.commits.waiting
    job = harness.store.begin_sync(everything=False)
    job.run()
    harness.end_sync(job)


def until_durable(harness: ProtocolHarness) -> None:
    """A record of the journal is durable, and wants to be applied."""
    while not harness.broker.records.waiting:
        step(harness)


@pytest.mark.parametrize("killed", [False, True])
def test_the_messages_of_a_commit_come_queue_by_queue_and_after_a_kill_all_of_them(
    harness: ProtocolHarness, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """T4: those of 100,000 messages for two queues came in one piece of 0.5 s."""
    monkeypatch.setattr(bulk, "QUEUE_COST", jobs.PIECE)
    monkeypatch.setattr(records, "APPLIED_PIECE", records.APPLIED_PER_TURN)
    wire, _ = large(harness)
    wire.feed(content(2, m.BasicPublish("", "b"), Properties(expiration="60000").encode(), b"late"))
    harness.settle_down()
    wire.put(2, m.TxCommit())
    until_durable(harness)
    assert messages(harness, "a", "b", "dead") == [0, 0, 0], "it was applied before it was durable"
    while not any(found := messages(harness, "a", "b", "dead")):
        step(harness)
    assert sorted(found)[0] == 0, "it was all applied in one piece"
    assert set(found) <= {0, 60, PUBLISHED, PUBLISHED + 1} and not wire.methods()
    if killed:
        harness = ProtocolHarness(harness.disk.kill(), harness.clock)
    harness.settle_down()
    assert messages(harness, "a", "b", QUEUE, "dead") == [PUBLISHED, PUBLISHED + 1, 0, 60]
    assert killed or wire.methods() == [m.TxCommitOk()]
    harness = ProtocolHarness(harness.disk.kill(), harness.clock)
    assert messages(harness, "a", "b", QUEUE, "dead") == [PUBLISHED, PUBLISHED + 1, 0, 60]
    wire = harness.wire()
    wire.put(1, m.BasicConsume("b", "c", no_ack=True))
    harness.settle_down()
    assert bodies_of(wire)[-1] == b"late"
    wire.put(1, m.BasicConsume("dead", "d", no_ack=True))
    harness.settle_down()
    assert sorted(map(int, bodies_of(wire))) == list(range(60))


def bodies_of(wire: Wire) -> list[bytes]:
    return [payload for kind, _, payload in wire.frames() if kind == FRAME_BODY]


def test_a_time_to_live_in_a_commit_is_still_known_after_a_kill(harness: ProtocolHarness) -> None:
    wire = harness.wire()
    for name in ("a", "b"):
        wire.put(1, m.QueueDeclare(name, durable=True))
        harness.settle_down()
    wire.put(1, m.TxSelect())
    for name in ("a", "b"):
        for milliseconds in (1000, 5 << 32):
            lives = Properties(expiration=str(milliseconds)).encode()
            wire.feed(content(1, m.BasicPublish("", name), lives, b"x"))
    wire.put(1, m.TxCommit())
    until_durable(harness)
    harness = ProtocolHarness(harness.disk.kill(), harness.clock)
    harness.settle_down()
    assert messages(harness, "a", "b") == [2, 2]
    harness.clock.advance(2)
    harness.broker.tick()
    harness.settle_down()
    assert messages(harness, "a", "b") == [1, 1]


def through(harness: ProtocolHarness, exchanges: int, rejects: int) -> Wire:
    """A peer whose transaction holds rejects with dead letters that go through so many exchanges to "dead", or as well to "other"."""
    vhost = harness.broker.vhosts["/"]
    for number in range(exchanges):
        vhost.declare_exchange(f"x{number}", "fanout", True, False, False, {})
        if number:
            vhost.bind(f"x{number - 1}", vhost.exchanges[f"x{number}"], "", {})
    for name in ("dead", "other"):
        vhost.bind(f"x{exchanges - 1}", vhost.declare_queue(name, True, False, False, {}, None), "", {})
    vhost.declare_queue(QUEUE, True, False, False, {"x-dead-letter-exchange": "x0"}, None)
    wire = harness.wire()
    fill(wire, range(rejects))
    harness.settle_down()
    wire.put(1, m.TxSelect(), *[m.BasicGet(QUEUE)] * rejects)
    harness.settle_down()
    wire.put(1, m.BasicNack(0, True))
    harness.settle_down()
    wire.frames()
    return wire


def test_dead_letters_of_a_commit_find_their_long_way_in_pieces(harness: ProtocolHarness) -> None:
    """1,000 rejects through 2,000 exchanges took 3.1 s in one piece, and then 3 ms each."""
    wire = through(harness, 1500, 3)
    wire.put(1, m.TxCommit())
    turns = 0
    while harness.broker.jobs.waiting:
        harness.turn()
        turns += 1
    assert turns > 3, "a way was found in one piece"
    harness.settle_down()
    assert wire.methods() == [m.TxCommitOk()]
    assert messages(harness, "dead", "other", QUEUE) == [3, 3, 0]


def test_a_dead_letter_whose_queue_is_deleted_in_the_middle_of_the_commit_goes_another_way(
    harness: ProtocolHarness,
) -> None:
    """X4: the record would have named a queue that is gone, and the message with it."""
    wire, vhost = through(harness, 300, 30), harness.broker.vhosts["/"]
    wire.put(1, m.TxCommit())
    for name in ("dead", "other"):
        harness.turn()
        vhost.delete_queue(vhost.queues[name])
        assert harness.broker.jobs and not harness.store.journal.sequence
    harness.settle_down()
    assert wire.methods() == [m.TxCommitOk()]
    assert messages(harness, QUEUE) == [30], "nobody takes them: they stay"
    harness.broker.vhosts["/"].bind(
        "x0", harness.broker.vhosts["/"].declare_queue("new", True, False, False, {}, None), "", {}
    )
    for _ in range(3):
        harness.clock.advance(1)
        harness.broker.tick()
        harness.settle_down()
    assert messages(harness, "new", QUEUE) == [30, 0]


def test_a_commit_whose_queues_are_deleted_again_and_again_is_refused(harness: ProtocolHarness) -> None:
    """Somebody else must not keep it busy for ever; nothing of it is applied."""
    wire = through(harness, 300, 30)
    vhost = harness.broker.vhosts["/"]
    wire.put(1, m.TxCommit())
    turns = 0
    while harness.broker.jobs and turns < 1000:
        turns += 1
        vhost.delete_queue(vhost.queues["dead"])
        vhost.bind("x299", vhost.declare_queue("dead", True, False, False, {}, None), "", {})
        harness.turn()
    harness.settle_down()
    close = wire.methods()[0]
    assert isinstance(close, m.ChannelClose) and (close.reply_code, close.method_id) == (406, 20) and turns > 5
    assert messages(harness, "dead", "other", QUEUE) == [0, 0, 30] and queue(harness).ready == 30


@pytest.mark.parametrize("lost", [False, True])
def test_many_single_settlements_are_rolled_back_in_pieces(harness: ProtocolHarness, wire: Wire, lost: bool) -> None:
    """T6: 250,000 took 89 ms."""
    count = 600
    wire.put(1, m.TxSelect(), *(m.BasicAck(tag) for tag in range(1, 2 * count, 2)))
    harness.settle_down()
    channel = wire.connection.channels[1]
    wire.put(1, m.TxRollback())
    assert wire.connection.stalled and channel.tx.tags, "it was all done in one piece"
    if lost:
        wire.connection.lost()
        harness.settle_down()
        assert queue(harness).ready == 2 * COUNT
        return
    harness.settle_down()
    assert wire.methods() == [m.TxSelectOk(), m.TxRollbackOk()] and channel.unacked == COUNT
    wire.put(1, *(m.BasicAck(tag) for tag in range(1, 2 * count, 2)), m.BasicAck(0, True), m.TxCommit())
    harness.settle_down()
    assert wire.methods() == [m.TxCommitOk()] and channel.unacked == 0


@pytest.mark.parametrize(
    ("key", "properties"), [("a", NO_PROPERTIES), ("a", Properties(expiration="1").encode()), ("none", NO_PROPERTIES)]
)
def test_publishes_into_a_transaction_are_taken_a_turn_at_a_time(
    harness: ProtocolHarness, key: str, properties: bytes
) -> None:
    """A page of 512 KB of them took 40 ms."""
    wire = harness.wire()
    wire.put(1, m.QueueDeclare("a"), m.TxSelect())
    wire.feed(content(1, m.BasicPublish("", key), properties, b"") * 2000)
    assert wire.connection.yielded and len(wire.connection.channels[1].tx.publishes) < 600
    harness.settle_down()
    wire.put(1, m.TxCommit())
    harness.settle_down()
    assert wire.methods()[-1] == m.TxCommitOk()
    assert messages(harness, "a") == [2000 if properties == NO_PROPERTIES and key == "a" else messages(harness, "a")[0]]


def test_messages_with_priorities_come_back_in_small_pieces(harness: ProtocolHarness) -> None:
    """Each is read to be sorted again: 10,000 of them took 70 ms in one piece."""
    other, wire = harness.wire(), harness.wire()
    other.put(1, m.QueueDeclare(QUEUE, arguments={"x-max-priority": 3}))
    wire.put(1, m.BasicConsume(QUEUE, "a"))
    fill(other, range(1000))
    harness.settle_down()
    wire.connection.lost()
    assert queue(harness).unacked > 500, "it was all done in one piece"
    harness.settle_down()
    assert queue(harness).ready == 1000
