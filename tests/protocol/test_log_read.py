"""Class `log`, method `read`: what it costs to step over what is settled, whose turn it is, and what a small frame does."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.base.errors import StoreError
from kvitto.broker.queues import reader as readers
from kvitto.broker.queues import waiting
from kvitto.broker.queues.ranges import RangeSet
from kvitto.store.reading import LogReader
from kvitto.wire import methods as m
from kvitto.wire.methods import frame
from kvitto.wire.properties import edit_headers, join
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.protocol.test_hold import ask, bodies, publish


def filled(harness: ProtocolHarness, count: int) -> Wire:
    wire = harness.wire()
    ask(wire, m.ConfirmSelect(), m.QueueDeclare("q", durable=True))
    publish(wire, *(b"m%d" % n for n in range(count)))
    return wire


def take(wire: Wire, count: int, *, keep: int = 0) -> None:
    """Consume `count` messages and ack them, of each `keep` none of the first one; they go back."""
    ask(wire, m.BasicQos(0, count, False), m.BasicConsume("q", "c"))
    for tag in range(1, count + 1):
        if not keep or (tag - 1) % keep:
            wire.put(1, m.BasicAck(tag))
    ask(wire, m.BasicCancel("c"))
    ask(wire, m.ChannelClose(200, ""))
    ask(wire, m.ChannelOpen())


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each turn has taken."""
    taken: list[int] = []
    real = readers.RangeReader.pump

    def pump(self: readers.RangeReader, left: int) -> int:
        rest = real(self, left)
        taken.append(left - rest)
        return rest

    monkeypatch.setattr(readers.RangeReader, "pump", pump)
    return taken


def test_settled_messages_are_stepped_over_by_the_run(steps: list[int]) -> None:
    harness = ProtocolHarness()
    wire = filled(harness, 3000)
    take(wire, 2999)
    assert bodies(wire, 0, 3000) == [b"m2999"]
    assert sum(steps) < 300, "it does not walk each offset"


def test_a_queue_full_of_holes_is_read_over_several_turns(steps: list[int]) -> None:
    harness = ProtocolHarness()
    wire = filled(harness, 2000)
    take(wire, 2000, keep=2)
    wire.frames()
    wire.put(1, m.LogRead("q", "r", 0, 2000))
    turns = 0
    while len(harness.broker.readers.waiting):
        harness.turn()
        turns += 1
    assert turns > 2
    assert max(steps) <= readers.STEPS + readers.LOAD_STEPS
    found = wire.methods()
    assert [each.delivery_tag for each in found if isinstance(each, m.BasicDeliver)] == list(range(1, 2001, 2))
    assert isinstance(found[-1], m.LogReadOk)
    assert (found[-1].next, found[-1].count) == (2000, 1000)


def test_readers_share_the_steps_of_a_turn() -> None:
    harness = ProtocolHarness()
    wire = filled(harness, 1000)
    take(wire, 1000, keep=2)
    others = [harness.wire() for _ in range(5)]
    for other in others:
        other.put(1, m.LogRead("q", "r", 0, 1000))
    seen = []
    while len(harness.broker.readers.waiting):
        harness.turn()
        seen.append([len(other.methods()) for other in others])
    assert sum(seen[0]) <= readers.STEPS, "all of them together in one turn"
    assert [sum(each) for each in zip(*seen, strict=True)] == [501] * 5


def test_a_reader_that_takes_no_more_waits_and_costs_no_turns() -> None:
    harness = ProtocolHarness()
    wire = filled(harness, 100)
    wire.connection.writable(False)
    wire.put(1, m.LogRead("q", "r", 0, 100))
    harness.turn()
    assert harness.broker.idle()
    wire.connection.writable(True)
    harness.settle_down()
    assert len([each for each in wire.methods() if isinstance(each, m.BasicDeliver)]) == 100


def test_a_message_whose_properties_do_not_fit_the_negotiated_frame_ends_the_channel() -> None:
    harness = ProtocolHarness()
    wire = filled(harness, 1)
    fields: dict[str, bytes] = {}
    edit_headers(fields, {"long": "x" * 8000})
    props = join(fields)
    head = frame(FRAME_HEADER, 1, b"\0\x3c\0\0" + (1).to_bytes(8, "big") + props)
    wire.feed(frame(FRAME_METHOD, 1, m.BasicPublish("", "q").encode()) + head + frame(FRAME_BODY, 1, b"x"))
    publish(wire, b"m2" * 5000)
    small = harness.wire(login=False)
    small.login(frame_max=4096)
    small.put(1, m.LogRead("q", "r", 0, 3))
    harness.settle_down()
    found = small.methods()
    assert isinstance(found[0], m.BasicDeliver)
    assert isinstance(found[-1], m.ChannelClose)
    assert (found[-1].reply_code, found[-1].class_id, found[-1].method_id) == (406, 19286, 20)
    assert "4096" in found[-1].reply_text
    assert not len(harness.broker.readers.waiting)
    assert ask(small, m.ChannelCloseOk(), m.ChannelOpen()) == m.ChannelOpenOk()
    small.put(1, m.LogRead("q", "r", 2, 3))
    harness.settle_down()
    assert max(len(payload) + 8 for _, _, payload in small.frames()) <= 4096


def test_messages_that_wait_to_be_tried_again_are_read() -> None:
    harness = ProtocolHarness()
    wire = harness.wire()
    ask(wire, m.ConfirmSelect(), m.QueueDeclare("q", durable=True, arguments={"x-retry-delay-min": 60_000}))
    publish(wire, *(b"m%d" % n for n in range(5)))
    ask(wire, m.BasicConsume("q", "c"))
    for tag in (1, 3):
        wire.put(1, m.BasicAck(tag))
    wire.put(1, m.BasicNack(2, False, True), m.BasicNack(5, False, True))
    ask(wire, m.BasicCancel("c"))
    ask(wire, m.ChannelClose(200, ""))
    ask(wire, m.ChannelOpen())
    assert bodies(wire, 0, 5) == [b"m1", b"m3", b"m4"]


def test_the_ranges_after_an_offset_and_how_many_offsets_are_between_two() -> None:
    runs = RangeSet()
    for start in range(0, 10_000, 4):
        runs.add(start, 2)
    borders = (0, 1, 2, 3, 4, 4095, 4096, 4097, 9996, 9998, 20_000)
    for offset in borders:
        assert list(runs.after(offset)) == [run for run in runs if run[0] + run[1] > offset]
        for end in borders:
            assert runs.count_in(offset, end) == sum(1 for each in range(offset, min(end, 10_000)) if each % 4 < 2)


@pytest.mark.parametrize("limit", [{}, {"x-max-length-bytes": 1_000_000}])
def test_a_queue_full_of_holes_is_held_and_settled_over_several_turns(
    limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "OFFSETS_PER_PIECE", 500)
    harness = ProtocolHarness()
    wire = harness.wire()
    ask(wire, m.ConfirmSelect(), m.QueueDeclare("q", durable=True, arguments=limit))
    publish(wire, *(b"m%d" % n for n in range(2000)))
    take(wire, 2000, keep=2)
    ask(wire, m.LogAttach("q", "spark"))
    queue = harness.broker.vhosts["/"].queues["q"]
    for request, answer in (
        (m.LogHold("q", "spark", "", 0, 1990), m.LogHoldOk(0, 1990, 995)),
        (m.LogSettle("q", "spark", "", 1990), m.LogSettleOk(1990)),
    ):
        wire.put(1, request)
        assert len(harness.broker.jobs.waiting), "it is not done at once"
        harness.settle_down()
        while len(harness.broker.jobs.waiting):
            harness.turn()
        harness.settle_down()
        assert wire.methods() == [answer]
    assert queue.ready == 5
    if limit:
        assert queue.ready_bytes == sum(len(b"m%d" % n) for n in range(1990, 2000, 2))


def test_a_queue_whose_files_cannot_be_read_is_out_of_service_and_the_broker_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D6: the error of one queue's files ended the process if it was met by a reader, and not by a consumer."""
    harness = ProtocolHarness()
    wire = filled(harness, 3)

    def failing(self: LogReader, window: object, offset: int) -> bool:
        raise StoreError("cannot read: input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(LogReader, "load", failing)
        close = ask(wire, m.LogRead("q", "r", 0, 3))
    assert isinstance(close, m.ChannelClose) and close.reply_code == 541 and "queue 'q'" in close.reply_text
    assert isinstance(ask(harness.wire(), m.QueueDeclare("other")), m.QueueDeclareOk)
