"""Class `log`: what a group has planned to read is held in its queue until it is settled (docs/adr/0017)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kvitto.broker.administration.policies import policy
from kvitto.broker.queues import waiting
from kvitto.broker.queues.hold import HOLD_MS
from kvitto.broker.vhost import POLICY
from kvitto.protocol.large import LARGE
from kvitto.wire import methods as m
from kvitto.wire.methods import Method, decode, frame
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.support.harness import work_queue


def publish(wire: Wire, *bodies: bytes, queue: str = "q") -> None:
    for body in bodies:
        wire.feed(
            frame(FRAME_METHOD, 1, m.BasicPublish("", queue).encode())
            + frame(FRAME_HEADER, 1, b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + b"\x10\0\x02")
            + b"".join(frame(FRAME_BODY, 1, body[at : at + 100_000]) for at in range(0, len(body), 100_000))
        )
    wire.harness.settle_down()


def ask(wire: Wire, *methods: Method) -> Method:
    """The last answer."""
    wire.put(1, *methods)
    wire.harness.settle_down()
    return wire.methods()[-1]


def opened(harness: ProtocolHarness, count: int = 10, **arguments: Any) -> Wire:
    """A queue with messages m0, m1, ..., and the driver of a query that is attached to it."""
    wire = harness.wire()
    ask(wire, m.ConfirmSelect(), m.QueueDeclare("dead", durable=True))
    ask(wire, m.QueueDeclare("q", durable=True, arguments=arguments))
    publish(wire, *(b"m%d" % n for n in range(count)))
    ask(wire, m.LogAttach("q", "spark"))
    return wire


def hold(wire: Wire, start: int, end: int) -> m.LogHoldOk:
    answer = ask(wire, m.LogHold("q", "spark", "", start, end))
    assert isinstance(answer, m.LogHoldOk), answer
    return answer


def read(wire: Wire, start: int, end: int) -> list[tuple[bytes, bool]]:
    """(body, redelivered) of the messages of a range."""
    wire.frames()
    wire.put(1, m.LogRead("q", "r", start, end))
    wire.harness.settle_down()
    found: list[tuple[bytes, bool]] = []
    last: m.BasicDeliver | None = None
    for kind, _, payload in wire.frames():
        if kind == FRAME_METHOD:
            method = decode(payload)
            last = method if isinstance(method, m.BasicDeliver) else None
        elif kind == FRAME_BODY and last is not None:
            found.append((payload, last.redelivered))
    return found


def bodies(wire: Wire, start: int, end: int) -> list[bytes]:
    return [body for body, _ in read(wire, start, end)]


def ready(wire: Wire, queue: str = "q") -> int:
    answer = ask(wire, m.QueueDeclare(queue, passive=True))
    assert isinstance(answer, m.QueueDeclareOk), answer
    return answer.message_count


def wait(harness: ProtocolHarness, seconds: float) -> None:
    harness.clock.advance(seconds)
    harness.broker.tick()
    harness.settle_down()


def restarted(harness: ProtocolHarness, end: str) -> ProtocolHarness:
    """A broker on what the end of this one left on the disk."""
    disk = harness.disk
    if end == "ended in order":
        harness.broker.finish()
        harness.store.shut()
    else:
        disk = disk.kill() if end == "killed" else disk.crash(Random(1))
    harness.clock.advance(3600)
    harness = ProtocolHarness(disk, harness.clock)
    harness.settle_down()
    return harness


DEAD: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
FIRST = [b"m0", b"m1", b"m2", b"m3", b"m4"]


def test_held_messages_do_not_expire_and_those_behind_them_do() -> None:
    harness = ProtocolHarness()
    wire = opened(harness, **DEAD, **{"x-message-ttl": 1000})
    assert hold(wire, 0, 5).count == 5
    wait(harness, 60)
    assert bodies(wire, 0, 10) == FIRST
    assert ready(wire, "dead") == 5
    ask(wire, m.LogSettle("q", "spark", "", 5))
    wait(harness, 60)
    assert ready(wire, "dead") == 5, "what was read and settled is no dead letter"


@pytest.mark.parametrize("limit", [{"x-max-length": 3}, {"x-max-length-bytes": 6}])
def test_held_messages_are_not_dropped_and_do_not_count_for_a_limit(limit: dict[str, int]) -> None:
    harness = ProtocolHarness()
    wire = opened(harness, 3, **limit)
    hold(wire, 0, 2)
    publish(wire, b"m3", b"m4", b"m5")
    assert bodies(wire, 0, 9) == [b"m0", b"m1", b"m3", b"m4", b"m5"]
    ask(wire, m.LogSettle("q", "spark", "", 2))
    assert bodies(wire, 0, 9) == [b"m3", b"m4", b"m5"]


def test_a_purge_takes_what_is_held_and_a_count_tells() -> None:
    wire = opened(ProtocolHarness())
    assert hold(wire, 0, 5).count == 5
    purged = ask(wire, m.QueuePurge("q"))
    assert isinstance(purged, m.QueuePurgeOk)
    assert purged.message_count == 10
    again = hold(wire, 0, 5)
    assert (again.first, again.count) == (10, 0)
    assert bodies(wire, 0, 10) == []


def test_a_hold_ends_where_the_next_message_waits() -> None:
    """So that a message that is missing at the start of the next batch is a loss for sure."""
    harness = ProtocolHarness()
    wire = harness.wire()
    ask(wire, m.ConfirmSelect(), m.QueueDeclare("q", durable=True))
    publish(wire, *(b"m%d" % n for n in range(10)))
    ask(wire, m.BasicQos(0, 10, False), m.BasicConsume("q", "c"))
    for tag in (4, 5, 6):
        wire.put(1, m.BasicAck(tag))
    ask(wire, m.ChannelClose(200, ""))
    ask(wire, m.ChannelOpen())
    ask(wire, m.LogAttach("q", "spark"))
    held = hold(wire, 0, 3)
    assert (held.first, held.end, held.count) == (0, 6, 3)
    assert hold(wire, 0, 8).count == 5
    assert hold(wire, 0, 100).end == 10
    counted = ask(wire, m.LogCount("q", "", 2, 7))
    assert isinstance(counted, m.LogCountOk)
    assert (counted.first, counted.count) == (0, 2)


def test_held_messages_are_counted_as_unacknowledged() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    hold(wire, 0, 4)
    queue = harness.broker.vhosts["/"].queues["q"]
    assert (queue.ready, queue.held, queue.messages) == (6, 4, 10)
    refused = ask(wire, m.QueueDelete("q", if_empty=True))
    assert isinstance(refused, m.ChannelClose)


@pytest.mark.parametrize("end", ["power cut", "killed", "ended in order"])
def test_a_restart_between_plan_and_read_keeps_what_is_held(end: str) -> None:
    harness = ProtocolHarness()
    wire = opened(harness, **DEAD, **{"x-message-ttl": 1000})
    hold(wire, 0, 5)
    before = read(wire, 0, 5)
    harness = restarted(harness, end)
    wait(harness, 3600)
    wire = harness.wire()
    ask(wire, m.LogAttach("q", "spark"))
    assert hold(wire, 0, 5).count == 5
    assert read(wire, 0, 5) == before
    assert ready(wire, "dead") == 5


def test_a_group_that_comes_back_finds_its_hold() -> None:
    """Also under another name: a query's driver has one of its own each time it starts."""
    harness = ProtocolHarness()
    wire = opened(harness, **DEAD, **{"x-message-ttl": 1000})
    hold(wire, 0, 5)
    wire.connection.lost()
    wait(harness, 3600)
    wire = harness.wire()
    ask(wire, m.LogAttach("q", "spark again"))
    assert bodies(wire, 0, 10) == FIRST


def test_what_is_held_for_a_group_that_never_comes_back_is_released_after_a_day() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    hold(wire, 0, 5)
    wire.connection.lost()
    wire = harness.wire()
    wait(harness, HOLD_MS / 1000 - 60)
    assert ready(wire) == 5
    wait(harness, 120)
    assert ready(wire) == 10
    assert harness.broker.vhosts["/"].queues["q"].hold is None
    assert not len(harness.broker.timers)


@pytest.mark.parametrize("how", ["detach", "consume", "get"])
def test_an_abandoned_hold_is_released_at_its_place_and_flagged(how: str) -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    hold(wire, 0, 5)
    if how == "detach":
        ask(wire, m.LogDetach("q", "spark"))
        assert read(wire, 0, 10) == [(b"m%d" % n, n < 5) for n in range(10)]
    wire.connection.lost()
    wire = harness.wire()
    if how == "get":
        got = ask(wire, m.BasicGet("q"))
        assert isinstance(got, m.BasicGetOk)
        assert (got.redelivered, got.message_count) == (True, 9)
    else:
        wire.put(1, m.BasicConsume("q", "c"))
        harness.settle_down()
        came = [each for each in wire.methods() if isinstance(each, m.BasicDeliver)]
        assert [each.redelivered for each in came] == [True] * 5 + [False] * 5


@pytest.mark.parametrize("how", ["consume", "get"])
def test_what_was_held_follows_its_answer_whole(how: str) -> None:
    """Found by an attack: deliveries came before consume-ok, and a large body behind other answers ended the connection with 541."""
    harness = ProtocolHarness()
    wire = opened(harness, 0)
    publish(wire, b"x" * (LARGE + 1))
    hold(wire, 0, 1)
    wire.connection.lost()
    wire = harness.wire()
    wanted = m.BasicConsume("q", "c") if how == "consume" else m.BasicGet("q")
    wire.put(1, m.BasicQos(0, 10), m.BasicQos(0, 10), wanted)
    for _ in range(10):
        harness.settle_down()
    frames = wire.frames()
    names = [type(decode(payload)).__name__ for kind, _, payload in frames if kind == FRAME_METHOD]
    answers = ["BasicConsumeOk", "BasicDeliver"] if how == "consume" else ["BasicGetOk"]
    assert names == ["BasicQosOk", "BasicQosOk", *answers]
    assert sum(len(payload) for kind, _, payload in frames if kind == FRAME_BODY) == LARGE + 1


@pytest.mark.parametrize("arguments", [{}, {"x-max-length-bytes": 1 << 30}, {"x-max-priority": 3}])
def test_a_hold_full_of_holes_is_released_in_pieces(arguments: dict[str, Any]) -> None:
    harness = ProtocolHarness()
    wire = opened(harness, 1000, **arguments)
    queue = harness.broker.vhosts["/"].queues["q"]
    ask(wire, m.LogDetach("q", "spark"), m.BasicConsume("q", "c"))
    ask(wire, m.BasicCancel("c"), *(m.BasicNack(tag, requeue=True) for tag in range(2, 1001, 2)), m.BasicAck(0, True))
    ask(wire, m.LogAttach("q", "spark"))
    hold(wire, 0, 1000)
    assert (queue.held, queue.ready) == (500, 0)
    other = harness.wire()
    wire.put(1, m.LogDetach("q", "spark"))
    wire.connection.lost()
    other.put(1, m.BasicConsume("q", "c"))
    assert 0 < queue.held < 500, "it was all done in one piece"
    assert queue.held + queue.ready == 500 and queue.delivered == 1000
    harness.settle_down()
    assert (queue.held, queue.unacked, queue.hold) == (0, 500, None)
    came = [payload for kind, _, payload in other.frames() if kind == FRAME_BODY]
    assert came == [b"m%d" % n for n in range(1, 1000, 2)]


def test_a_group_that_comes_back_keeps_what_is_not_released_yet() -> None:
    harness = ProtocolHarness()
    wire = opened(harness, 1000)
    queue = harness.broker.vhosts["/"].queues["q"]
    ask(wire, m.LogDetach("q", "spark"), m.BasicConsume("q", "c"))
    ask(wire, m.BasicCancel("c"), *(m.BasicNack(tag, requeue=True) for tag in range(2, 1001, 2)), m.BasicAck(0, True))
    ask(wire, m.LogAttach("q", "spark"))
    hold(wire, 0, 1000)
    wire.connection.lost()
    wire, other = harness.wire(), harness.wire()
    wire.put(1, m.BasicGet("q", True))
    other.put(1, m.LogAttach("q", "spark"))
    held = queue.held
    harness.settle_down()
    assert 0 < held == queue.held
    assert queue.held + queue.ready == 499


def test_holding_needs_the_group_and_the_incarnation() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    for refused, code in (
        (m.LogHold("q", "other", "", 0, 5), 403),
        (m.LogHold("q", "spark", "0" * 32, 0, 5), 406),
        (m.LogCount("q", "0" * 32, 0, 5), 406),
    ):
        answer = ask(wire, refused)
        assert isinstance(answer, m.ChannelClose)
        assert answer.reply_code == code
        ask(wire, m.ChannelCloseOk(), m.ChannelOpen(), m.LogAttach("q", "spark"))


def test_a_queue_that_is_read_by_range_is_in_use_and_does_not_expire() -> None:
    harness = ProtocolHarness()
    wire = opened(harness, **{"x-expires": 1000})
    wait(harness, 3600)
    hold(wire, 0, 5)
    wire.connection.lost()
    wait(harness, 3600)
    wire = harness.wire()
    assert ready(wire) == 5
    wait(harness, HOLD_MS / 1000)
    wait(harness, 3600)
    assert isinstance(ask(wire, m.QueueDeclare("q", passive=True)), m.ChannelClose)


def test_holding_is_written_down_once_per_batch() -> None:
    harness = ProtocolHarness()
    wire = opened(harness)
    hold(wire, 0, 8)
    before = harness.store.definitions.file.end
    for start in range(8):
        hold(wire, start, start + 1)
    assert harness.store.definitions.file.end == before


def test_messages_that_a_limit_drops_behind_the_hold_stay_dropped_after_a_restart() -> None:
    harness = ProtocolHarness()
    wire = opened(harness, 6, **{"x-max-length": 3})
    hold(wire, 3, 5)
    publish(wire, b"m6", b"m7", b"m8")
    assert bodies(wire, 0, 9) == [b"m3", b"m4", b"m6", b"m7", b"m8"]
    harness = restarted(harness, "killed")
    wire = harness.wire()
    ask(wire, m.LogAttach("q", "spark"))
    assert bodies(wire, 0, 9) == [b"m3", b"m4", b"m6", b"m7", b"m8"]
    assert hold(wire, 3, 5).count == 2


def test_a_priority_queue_holds_by_offset() -> None:
    wire = opened(ProtocolHarness(), **{"x-max-priority": 5, "x-message-ttl": 1000})
    assert hold(wire, 0, 5).count == 5
    wait(wire.harness, 60)
    assert bodies(wire, 0, 10) == FIRST


def test_a_hold_ends_with_its_connection_and_consumers_get_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It went on when the group was gone, and took what consumers waited for out of their reach, for good."""
    monkeypatch.setattr(waiting, "OFFSETS_PER_PIECE", 10)
    harness = ProtocolHarness()
    other = harness.wire()
    wire = opened(harness, 300, **{"x-max-length-bytes": 1 << 20})
    wire.put(1, m.LogHold("q", "spark", "", 0, 300))
    assert len(harness.broker.jobs.waiting) == 1
    wire.connection.lost()
    other.put(1, m.BasicConsume("q", "c"))
    harness.settle_down()
    delivered = [method for method in other.methods() if isinstance(method, m.BasicDeliver)]
    assert len(delivered) == 300 and harness.broker.vhosts["/"].queues["q"].held == 0


def test_what_is_delayed_comes_back_for_who_attaches() -> None:
    """The answer comes when all of them can be read."""
    wire = delayed(ProtocolHarness())
    harness, delays = wire.harness, work_queue(wire.harness.broker, "q").retries.delays
    assert ask(wire, m.LogCount("q", "", 10, 20)) == m.LogCountOk(0, 20, 10)
    wire.put(1, m.LogAttach("q", "spark"))
    harness.settle_down()
    (answer,) = wire.methods()
    assert isinstance(answer, m.LogAttachOk) and not len(delays)
    assert bodies(wire, 0, 1000) == [b"m%d" % n for n in range(1000)]


def test_who_is_lost_while_it_attaches_has_not_attached() -> None:
    """The queue belonged to a group of nobody until a restart."""
    harness = ProtocolHarness()
    other, wire = harness.wire(), delayed(harness)
    wire.put(1, m.LogAttach("q", "spark"))
    wire.connection.lost()
    harness.settle_down()
    assert harness.broker.vhosts["/"].queues["q"].group is None
    assert isinstance(ask(other, m.BasicConsume("q", "c")), m.BasicDeliver)


def delayed(harness: ProtocolHarness) -> Wire:
    """A queue with 1,000 messages that wait to be tried again."""
    wire = harness.wire()
    ask(wire, m.ConfirmSelect(), m.QueueDeclare("q", durable=True, arguments={"x-retry-delay-min": 3_600_000}))
    publish(wire, *(b"m%d" % n for n in range(1000)))
    ask(wire, m.BasicConsume("q", "c"))
    ask(wire, m.BasicNack(0, True, True), m.BasicCancel("c"))
    assert len(work_queue(harness.broker, "q").retries.delays) == 1000
    return wire


@pytest.mark.parametrize("priority", [False, True])
def test_a_limit_in_bytes_that_comes_later_counts_what_was_settled_by_range(priority: bool) -> None:
    """Its bytes were estimated while no limit hung on them: a policy then dropped 99 messages of 10 bytes for a limit of 1 MB."""
    harness = ProtocolHarness()
    wire = opened(harness, 0, **({"x-max-priority": 3} if priority else {}))
    publish(wire, b"x" * 100_000, *(b"%010d" % n for n in range(99)))
    ask(wire, m.LogSettle("q", "spark", "", 1), m.LogDetach("q", "spark"))
    queue = work_queue(harness.broker, "q")
    vhost = harness.broker.vhosts["/"]
    vhost.set_policy(POLICY, policy("p", {"pattern": "q", "definition": {"max-length-bytes": 900}}, False))
    publish(wire, b"%010d" % 99)
    assert (queue.ready, queue.ready_bytes, queue.estimates) == (90, 900, 0)
    vhost.clear_policy(POLICY, "p")
    ask(wire, m.LogAttach("q", "spark"), m.LogSettle("q", "spark", "", 50), m.LogDetach("q", "spark"))
    assert queue.estimates
    ask(wire, m.QueuePurge("q"))
    assert (queue.ready_bytes, queue.estimates) == (0, 0)
