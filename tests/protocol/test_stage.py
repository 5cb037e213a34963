"""Class `stage` on the wire: what is put aside, what a commit publishes, and what is refused (docs/protocol-extensions.md)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from kvitto.store.batch import Stored
from kvitto.wire import methods as m
from kvitto.wire.methods import BasicDeliver, BasicReturn, ChannelClose, Method, decode, frame
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.support.harness import work_queue

NONE = (1 << 64) - 1


def publish(
    wire: Wire, channel: int, exchange: str, key: str, body: bytes, mandatory: bool = False, **properties: Any
) -> None:
    method = m.BasicPublish(exchange, key, mandatory, False)
    header = b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + Properties(**properties).encode()
    wire.feed(
        frame(FRAME_METHOD, channel, method.encode())
        + frame(FRAME_HEADER, channel, header)
        + frame(FRAME_BODY, channel, body)
    )


def answers(wire: Wire, channel: int, *methods: Method) -> list[Method]:
    wire.put(channel, *methods)
    for _ in range(5):
        wire.harness.settle_down()
    return [decode(p) for kind, c, p in wire.frames() if kind == FRAME_METHOD and c == channel]


def ask(wire: Wire, channel: int, method: Method) -> Method:
    return [answer for answer in answers(wire, channel, method) if not isinstance(answer, m.BasicAck)][-1]


def bodies(wire: Wire, channel: int, queue: str) -> list[bytes]:
    """All that is in a queue, taken."""
    wire.put(channel, m.BasicConsume(queue, f"take-{queue}", False, True))
    wire.harness.settle_down()
    found = [p for kind, c, p in wire.frames() if kind == FRAME_BODY and c == channel]
    ask(wire, channel, m.BasicCancel(f"take-{queue}"))
    return found


def opened(harness: ProtocolHarness, **arguments: Any) -> Wire:
    wire = harness.wire()
    ask(wire, 1, m.ConfirmSelect(False))
    wire.put(2, m.ChannelOpen())
    ask(wire, 2, m.QueueDeclare("q", durable=True, arguments=arguments))
    return wire


def stage(wire: Wire, batch: int = 0, task: str = "t", channel: int = 1) -> None:
    assert isinstance(ask(wire, channel, m.StageOpen("w", batch, task)), m.StageOpenOk)


def commit(wire: Wire, batch: int = 0, *tasks: str) -> Method:
    answer = ask(wire, 2, m.StageCommit("w", batch, "\n".join(tasks or ("t",)).encode()))
    for _ in range(5):
        wire.harness.clock.advance(1.0)
        wire.harness.broker.tick()
        wire.harness.settle_down()
    return answer


def test_nothing_is_published_before_the_commit_and_all_of_it_after() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    stage(wire)
    for n in range(50):
        publish(wire, 1, "", "q", b"%d" % n)
    harness.settle_down()
    assert any(isinstance(method, m.BasicAck) for method in wire.methods()), "confirmed as ever"
    assert bodies(wire, 2, "q") == []
    answer = commit(wire)
    assert isinstance(answer, m.StageCommitOk) and answer.fresh
    assert bodies(wire, 2, "q") == [b"%d" % n for n in range(50)]
    last = ask(wire, 2, m.StageLast("w"))
    assert isinstance(last, m.StageLastOk) and last.last == 0
    again = commit(wire)
    assert isinstance(again, m.StageCommitOk) and not again.fresh
    assert not [q for q in harness.broker.queues.values() if q.name.startswith("stage")]


def test_a_stage_may_be_empty() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    stage(wire)
    answer = commit(wire)
    assert isinstance(answer, m.StageCommitOk) and answer.fresh
    none = ask(wire, 2, m.StageCommit("w", 1, b""))
    assert isinstance(none, m.StageCommitOk) and none.fresh, "a batch without rows"
    assert not harness.broker.stages.open_stages


def test_stages_are_published_in_the_order_of_the_commit_and_the_others_are_dropped() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    wire.put(3, m.ChannelOpen())
    wire.put(4, m.ChannelOpen())
    for channel, task in ((1, "one"), (3, "two"), (4, "lost")):
        stage(wire, 7, task, channel)
        publish(wire, channel, "", "q", task.encode())
    assert isinstance(commit(wire, 7, "two", "one"), m.StageCommitOk)
    assert bodies(wire, 2, "q") == [b"two", b"one"]
    publish(wire, 4, "", "q", b"late")
    harness.settle_down()
    closed = wire.methods()[-1]
    assert isinstance(closed, ChannelClose) and closed.reply_code == 406 and "committed or dropped" in closed.reply_text


def test_what_is_opened_again_is_empty() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    stage(wire)
    publish(wire, 1, "", "q", b"first attempt")
    stage(wire)
    publish(wire, 1, "", "q", b"second")
    commit(wire)
    assert bodies(wire, 2, "q") == [b"second"]


def test_properties_that_decide_where_and_how_long_are_looked_at_when_messages_move() -> None:
    """CC and BCC, headers exchanges, expiration."""
    harness = ProtocolHarness()
    wire = opened(harness)
    for queue in ("cc", "bcc", "headers"):
        ask(wire, 2, m.QueueDeclare(queue, durable=True))
    ask(wire, 2, m.QueueBind("headers", "amq.headers", "", arguments={"kind": "h", "x-match": "all"}))
    stage(wire)
    publish(wire, 1, "", "q", b"1", headers={"CC": ["cc"], "BCC": ["bcc"]})
    publish(wire, 1, "", "q", b"2")
    publish(wire, 1, "amq.headers", "", b"3", headers={"kind": "h"})
    publish(wire, 1, "amq.headers", "", b"nowhere", headers={"kind": "other"})
    publish(wire, 1, "", "q", b"4")
    publish(wire, 1, "", "q", b"gone", expiration="10000")
    commit(wire)
    message = work_queue(harness.broker, "bcc").read(0)
    assert message is not None and b"BCC" not in message[1]
    assert bodies(wire, 2, "cc") == bodies(wire, 2, "bcc") == [b"1"]
    assert bodies(wire, 2, "headers") == [b"3"]
    harness.clock.advance(60.0)
    harness.broker.tick()
    harness.settle_down()
    assert bodies(wire, 2, "q") == [b"1", b"2", b"4"]


def test_a_message_for_nobody_is_returned_at_once() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    stage(wire)
    publish(wire, 1, "", "nobody", b"x", mandatory=True)
    publish(wire, 1, "", "q", b"y", mandatory=True)
    harness.settle_down()
    returned = [method for method in wire.methods() if isinstance(method, BasicReturn)]
    assert [r.routing_key for r in returned] == ["nobody"]
    commit(wire)
    assert bodies(wire, 2, "q") == [b"y"]


def test_a_full_queue_holds_up_what_is_behind_it_and_loses_nothing() -> None:
    """C6: reject-publish was asked when the messages were put aside, and is asked again when they move."""
    harness = ProtocolHarness()
    wire = opened(harness, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    stage(wire)
    for n in range(5):
        publish(wire, 1, "", "q", b"%d" % n)
    commit(wire)
    found: list[bytes] = []
    for _ in range(4):
        found += bodies(wire, 2, "q")
        for _ in range(5):
            harness.clock.advance(1.0)
            harness.broker.tick()
            harness.settle_down()
    assert found == [b"%d" % n for n in range(5)]


def test_what_cannot_be_is_refused() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)

    def refused(channel: int, method: Method, code: int, text: str) -> None:
        closed = ask(wire, channel, method)
        assert isinstance(closed, ChannelClose) and closed.reply_code == code and text in closed.reply_text
        wire.put(channel, m.ChannelCloseOk(), m.ChannelOpen())

    wire.put(3, m.ChannelOpen())
    refused(3, m.StageCommit("w", 1, b"t"), 404, "no stage of task 't' for batch 1")
    refused(3, m.StageOpen("", 1, "t"), 406, "needs a name")
    stage(wire, 4)
    commit(wire, 4)
    late = ask(wire, 3, m.StageOpen("w", 4, "t"))
    assert isinstance(late, m.StageOpenOk) and late.last == 4
    publish(wire, 3, "", "q", b"late")
    harness.settle_down()
    closed = wire.methods()[-1]
    assert isinstance(closed, ChannelClose) and "was committed or dropped" in closed.reply_text
    wire.put(3, m.ChannelCloseOk(), m.ChannelOpen())
    ask(wire, 3, m.TxSelect())
    refused(3, m.StageOpen("w", 5, "t"), 406, "transaction")
    stage(wire, 5, channel=3)
    refused(3, m.TxSelect(), 406, "put aside")
    wire.methods()
    assert isinstance(ask(wire, 2, m.StageForget("w")), m.StageForgetOk)
    last = ask(wire, 2, m.StageLast("w"))
    assert isinstance(last, m.StageLastOk) and last.last == NONE
    assert not harness.broker.stages.open_stages and not harness.broker.stages.writers


def test_deliveries_are_those_of_any_message() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    stage(wire)
    publish(wire, 1, "amq.direct", "k", b"unbound by then")
    ask(wire, 2, m.QueueBind("q", "amq.direct", "k"))
    publish(wire, 1, "amq.direct", "k", b"bound", message_id="m1")
    commit(wire)
    wire.put(2, m.BasicConsume("q", "c"))
    harness.settle_down()
    frames = wire.frames()
    delivery = next(decode(p) for kind, _, p in frames if kind == FRAME_METHOD and isinstance(decode(p), BasicDeliver))
    assert isinstance(delivery, BasicDeliver)
    assert (delivery.exchange, delivery.routing_key, delivery.redelivered) == ("amq.direct", "k", False)
    header = next(p for kind, _, p in frames if kind == FRAME_HEADER)
    assert Properties.decode(header[12:]).message_id == "m1"


def test_a_stage_that_nobody_commits_goes_after_a_day() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    stage(wire)
    publish(wire, 1, "", "q", b"x")
    harness.settle_down()
    for _ in range(24 * 6 + 12):
        harness.clock.advance(600.0)
        harness.broker.tick()
        harness.settle_down()
    assert not harness.broker.stages.open_stages


def test_batches_that_overlap_move_once_and_in_order() -> None:
    """A record that is held because a transaction's record is, and the next commit durable before it."""
    harness = ProtocolHarness()
    wire = opened(harness)
    for channel in (3, 4):
        wire.put(channel, m.ChannelOpen())
    ask(wire, 3, m.ConfirmSelect(False))
    ask(wire, 4, m.QueueDeclare("other", durable=True))
    for channel, batch, texts in ((1, 0, [b"0.0", b"0.1"]), (3, 1, [b"1.0"])):
        stage(wire, batch, "t", channel)
        for text in texts:
            publish(wire, channel, "", "q", text)
    harness.settle_down()
    consumer, driver, other = harness.wire(), harness.wire(), harness.wire()
    ask(consumer, 1, m.TxSelect())
    consumer.put(1, m.BasicConsume("other", "c"))
    harness.settle_down()
    driver.put(1, m.StageCommit("w", 0, b"t"))
    harness.turn()
    job = harness.store.begin_sync(everything=False)
    publish(wire, 4, "", "other", b"x")
    harness.turn()
    consumer.put(1, m.BasicAck(1, False), m.TxCommit())
    harness.turn()
    job.run()
    harness.store.end_sync(job)
    harness.turn()
    other.put(1, m.StageCommit("w", 1, b"t"))
    harness.turn()
    for _ in range(8):
        harness.settle_down()
    assert bodies(wire, 2, "q") == [b"0.0", b"0.1", b"1.0"]


def test_a_full_disk_puts_a_commit_off_and_loses_nothing() -> None:
    """D4: the definitions still have room when messages have none."""
    harness = ProtocolHarness()
    wire = opened(harness)
    stage(wire)
    for _ in range(5):
        publish(wire, 1, "", "q", bytes(100_000))
    harness.disk.free = 16 << 20
    harness.store.room._left = 0
    wire.put(2, m.StageCommit("w", 0, b"t"))
    harness.settle_down()
    assert harness.broker.full and not [a for a in wire.methods() if isinstance(a, m.StageCommitOk)]
    harness.disk.free = 1 << 40
    for _ in range(5):
        harness.clock.advance(1.0)
        harness.broker.tick()
        harness.broker.retry_writes()
        harness.settle_down()
    assert [a.fresh for a in wire.methods() if isinstance(a, m.StageCommitOk)] == [True]
    assert len(bodies(wire, 2, "q")) == 5


def test_what_is_said_of_a_batch_is_durable() -> None:
    """A driver that asks while a commit waits for its sync must not skip a batch that the power takes."""
    harness = ProtocolHarness()
    wire = opened(harness)
    stage(wire)
    publish(wire, 1, "", "q", b"x")
    harness.settle_down()
    wire.frames()
    other, again = harness.wire(), harness.wire()
    wire.put(2, m.StageCommit("w", 0, b"t"))
    harness.turn()
    other.put(1, m.StageLast("w"))
    harness.turn()
    assert [a.last for a in other.methods() if isinstance(a, m.StageLastOk)] == [NONE]
    again.put(1, m.StageCommit("w", 0, b"t"), m.StageOpen("w", 0, "t"))
    harness.settle_down()
    harness.settle_down()
    assert [a.fresh for a in wire.methods() if isinstance(a, m.StageCommitOk)] == [True]
    answers = again.methods()
    assert [a.fresh for a in answers if isinstance(a, m.StageCommitOk)] == [False]
    assert [a.last for a in answers if isinstance(a, m.StageOpenOk)] == [0]


def test_a_task_that_is_named_twice_counts_once_and_a_start_takes_it() -> None:
    harness = ProtocolHarness()
    wire = opened(harness, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    stage(wire)
    publish(wire, 1, "", "q", b"0")
    publish(wire, 1, "", "q", b"1")
    answer = commit(wire, 0, "t", "t")
    assert isinstance(answer, m.StageCommitOk)
    again = ProtocolHarness(harness.disk.kill())
    taker = opened(again, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    found: list[bytes] = []
    for _ in range(3):
        found += bodies(taker, 2, "q")
        again.clock.advance(1.0)
        again.broker.tick()
        again.settle_down()
    assert found == [b"0", b"1"]


def test_a_message_that_its_queue_can_never_take_does_not_stop_its_writer() -> None:
    harness = ProtocolHarness()
    wire = opened(harness, **{"x-max-length-bytes": 3, "x-overflow": "reject-publish"})
    stage(wire)
    publish(wire, 1, "", "q", b"far too long")
    publish(wire, 1, "", "q", b"ok")
    commit(wire)
    assert bodies(wire, 2, "q") == [b"ok"]


def test_only_those_who_may_configure_a_writer_use_it() -> None:
    """D2: a permission like any other, on the writer's name."""
    harness = ProtocolHarness()
    wire = opened(harness)
    harness.broker.users.add("eve", "eve")
    harness.broker.users.set_permission("eve", "/", "^mine$", ".*", ".*")
    stage(wire)
    eve = harness.wire(login=False)
    eve.login("eve")
    closed = ask(eve, 1, m.StageCommit("w", 0, b"t"))
    assert isinstance(closed, ChannelClose) and closed.reply_code == 403
    eve.put(1, m.ChannelCloseOk(), m.ChannelOpen())
    assert isinstance(ask(eve, 1, m.StageOpen("mine", 0, "t")), m.StageOpenOk)


def test_a_start_that_ends_the_deletion_of_an_archived_queue_first_loses_no_commit() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    ask(wire, 2, m.QueueDeclare("old", durable=True, arguments={"x-archive": True}))
    publish(wire, 1, "", "old", b"x")
    harness.settle_down()
    ask(wire, 2, m.QueuePurge("old"))
    stage(wire)
    for n in range(10):
        publish(wire, 1, "", "q", b"%d" % n)
    harness.settle_down()
    wire.put(2, m.QueueDelete("old"))
    harness.turn()
    driver = harness.wire()
    driver.put(1, m.StageCommit("w", 0, b"t"))
    harness.turn()
    job = harness.store.begin_sync(everything=False)
    job.run()
    again = ProtocolHarness(harness.disk.kill())
    taker = again.wire()
    taker.put(2, m.ChannelOpen())
    for _ in range(3):
        again.settle_down()
    last = ask(taker, 2, m.StageLast("w"))
    assert isinstance(last, m.StageLastOk) and last.last == 0
    assert bodies(taker, 2, "q") == [b"%d" % n for n in range(10)]


def claim(wire: Wire, channel: int, task: str) -> Method:
    return ask(wire, channel, m.StageClaim("w", task))


def test_a_claim_ends_the_stages_of_all_other_tasks() -> None:
    """A commit that a killed task had sent came after its successor had asked for the last batch, and both were published."""
    harness = ProtocolHarness()
    wire = opened(harness)
    answer = claim(wire, 1, "t")
    assert isinstance(answer, m.StageClaimOk) and answer.last == NONE
    stage(wire, 3, "t")
    publish(wire, 1, "", "q", b"old")
    harness.settle_down()
    successor = harness.wire()
    wire.put(4, m.ChannelOpen())
    assert isinstance(claim(wire, 4, "next"), m.StageClaimOk) and not harness.broker.stages.open_stages
    late = ask(successor, 1, m.StageCommit("w", 3, b"t"))
    assert isinstance(late, ChannelClose) and late.reply_code == 406
    assert late.reply_text.startswith("PRECONDITION_FAILED - writer 'w' was claimed by task 'next', not by 't'")
    for method in (m.StageOpen("w", 4, "t"), m.StageCommit("w", 4, b"next\nt"), m.StageCommit("w", 4, b"")):
        refused = ask(harness.wire(), 1, method)
        assert isinstance(refused, ChannelClose) and "was claimed by task 'next'" in refused.reply_text
    stage(wire, 5, "next", 4)
    publish(wire, 4, "", "q", b"new")
    assert isinstance(commit(wire, 5, "next"), m.StageCommitOk)
    assert bodies(wire, 2, "q") == [b"new"]


def test_a_claim_waits_for_the_commits_that_came_before_it() -> None:
    harness = ProtocolHarness()
    wire, successor = opened(harness), harness.wire()
    stage(wire, 7)
    publish(wire, 1, "", "q", b"x")
    harness.settle_down()
    wire.frames()
    wire.put(2, m.StageCommit("w", 7, b"t"))
    harness.turn()
    successor.put(1, m.StageClaim("w", "next"))
    harness.turn()
    assert not [a for a in successor.methods() if isinstance(a, m.StageClaimOk)]
    harness.settle_down()
    harness.settle_down()
    assert [a.last for a in successor.methods() if isinstance(a, m.StageClaimOk)] == [7]
    assert [a.fresh for a in wire.methods() if isinstance(a, m.StageCommitOk)] == [True]


def test_a_claim_waits_for_a_commit_whose_messages_are_not_durable() -> None:
    harness = ProtocolHarness()
    wire, successor = opened(harness), harness.wire()
    stage(wire, 7)
    publish(wire, 1, "", "q", b"x")
    wire.put(2, m.StageCommit("w", 7, b"t"))
    successor.put(1, m.StageClaim("w", "next"))
    harness.turn()
    assert harness.broker.stages.writers["/", "w"].waiting
    for _ in range(3):
        harness.settle_down()
    assert [a.last for a in successor.methods() if isinstance(a, m.StageClaimOk)] == [7]


def test_what_is_claimed_without_a_commit_is_forgotten_after_a_day() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    for task in ("", "a\nb"):
        refused = claim(wire, 1, task)
        assert isinstance(refused, ChannelClose) and refused.reply_code == 406
        wire.put(1, m.ChannelCloseOk(), m.ChannelOpen())
    assert isinstance(claim(wire, 1, "t"), m.StageClaimOk)
    assert isinstance(ask(wire, 1, m.StageForget("w")), m.StageForgetOk)
    assert [writer.owner for writer in harness.broker.stages.writers.values()] == ["t"]
    for _ in range(24 * 6 + 12):
        harness.clock.advance(600.0)
        harness.broker.tick()
        harness.settle_down()
    assert not harness.broker.stages.writers
    assert isinstance(ask(wire, 2, m.StageOpen("w", 1, "other")), m.StageOpenOk)


LARGE = 3 << 20


def publish_large(wire: Wire, channel: int, key: str, fill: bytes, **properties: Any) -> None:
    method = m.BasicPublish("", key)
    header = b"\0\x3c\0\0" + LARGE.to_bytes(8, "big") + Properties(**properties).encode()
    wire.feed(frame(FRAME_METHOD, channel, method.encode()) + frame(FRAME_HEADER, channel, header))
    for _ in range(LARGE >> 16):
        wire.feed(frame(FRAME_BODY, channel, fill * (1 << 16)))
        wire.harness.settle_down()


def pass_time(harness: ProtocolHarness, turns: int = 5) -> None:
    for _ in range(turns):
        harness.clock.advance(1.0)
        harness.broker.tick()
        harness.settle_down()


@pytest.mark.parametrize("copies", [False, True])
def test_large_messages_that_wait_for_a_full_queue_are_not_in_memory(copies: bool) -> None:
    """Each stage had read the body of its first message, up to 128 MiB, and kept it for as long as the queue was full."""
    harness = ProtocolHarness()
    wire = opened(harness, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    for n in range(4):
        wire.put(10 + n, m.ChannelOpen())
        ask(wire, 10 + n, m.ConfirmSelect(False))
        assert isinstance(ask(wire, 10 + n, m.StageOpen(f"w{n}", 0, "t")), m.StageOpenOk)
        publish_large(wire, 10 + n, "q", b"%d" % n, headers={"CC": ["nowhere"]} if copies else {})
        ask(wire, 2, m.StageCommit(f"w{n}", 0, b"t"))
        pass_time(harness)
    waiting = [writer.moving[0] for writer in harness.broker.stages.writers.values() if writer.moving]
    assert len(waiting) == 3 and [stage.body for stage in waiting] == [None] * 3
    for left in (3, 2, 1, 0):
        assert ask(wire, 2, m.QueuePurge("q")) == m.QueuePurgeOk(1)
        pass_time(harness, 20)
        assert sum(bool(writer.moving) for writer in harness.broker.stages.writers.values()) == max(left - 1, 0)


def test_one_large_body_of_all_stages_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, most = 0, 0
    take = Stored.take

    def counted(stored: Stored) -> Generator[None, None, Any]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        found = yield from take(stored)
        under_way -= 1
        return found

    harness = ProtocolHarness()
    wire = opened(harness)
    wires = [harness.wire() for _ in range(3)]
    for n, each in enumerate(wires):
        ask(each, 1, m.ConfirmSelect(False))
        assert isinstance(ask(each, 1, m.StageOpen(f"w{n}", 0, "t")), m.StageOpenOk)
        publish_large(each, 1, "q", b"%d" % n)
    monkeypatch.setattr(Stored, "take", counted)
    for n, each in enumerate(wires):
        each.put(1, m.StageCommit(f"w{n}", 0, b"t"))
    pass_time(harness, 20)
    assert (most, under_way) == (1, 0)
    assert ask(wire, 2, m.QueuePurge("q")) == m.QueuePurgeOk(3)


@pytest.mark.parametrize(
    ("count", "words"), [(1, "1 committed message is dropped"), (3, "3 committed messages are dropped")]
)
def test_messages_that_no_queue_is_bound_for_any_more_are_named_in_the_log(
    count: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire = opened(ProtocolHarness())
    ask(wire, 2, m.QueueBind("q", "amq.direct", "key"))
    stage(wire)
    for n in range(count):
        publish(wire, 1, "amq.direct", "key", b"%d" % n)
    ask(wire, 2, m.QueueUnbind("q", "amq.direct", "key"))
    commit(wire)
    why = "exchange 'amq.direct' leads to no queue any more with routing key 'key'"
    assert f"vhost '/': {words}: {why}" in caplog.text
