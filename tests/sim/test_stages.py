"""Class `stage`: every batch arrives once and whole, wherever the power goes (docs/protocol-extensions.md)."""

from __future__ import annotations

import copy
import os
from random import Random

import pytest

from kvitto.broker.transfers import stages
from kvitto.store import journal, log
from kvitto.wire import methods as m
from kvitto.wire.methods import Method, decode, frame
from kvitto.wire.spec import FRAME_BODY, FRAME_HEADER, FRAME_METHOD
from tests.protocol.sansio import ProtocolHarness, Wire
from tests.support.harness import BrokerHarness, Taker
from tests.support.simdisk import SimDisk

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
SEEDS = 12 if THOROUGH else 2
BATCHES = 3
NONE = (1 << 64) - 1
TASKS = 1, 2
DRIVER = 9


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few messages fill a segment, a record, a journal file."""
    monkeypatch.setattr(log, "SEGMENT_BYTES", 1500)
    monkeypatch.setattr(log, "ROLL_WHEN_SETTLED_BYTES", 600)
    monkeypatch.setattr(journal, "ROTATE_BYTES", 500)
    monkeypatch.setattr(stages, "RECORD_BYTES", 400)


def content(channel: int, exchange: str, key: str, body: bytes, props: bytes = b"\0\0") -> bytes:
    header = b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + props
    publish = m.BasicPublish(exchange, key, True, False)
    return (
        frame(FRAME_METHOD, channel, publish.encode())
        + frame(FRAME_HEADER, channel, header)
        + frame(FRAME_BODY, channel, body)
    )


def rows(batch: int, task: int) -> list[tuple[str, str, bytes]]:
    """(exchange, routing key, body); one task's go to both queues."""
    exchange = "amq.fanout" if task == 1 else ""
    return [(exchange, "a", f"{batch}.{task}.{n}".encode()) for n in range(6)]


def expected() -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {"a": [], "b": []}
    for batch in range(BATCHES):
        for task in TASKS:
            for exchange, _, body in rows(batch, task):
                found["a"].append(body)
                if exchange:
                    found["b"].append(body)
    return found


class Job:
    """What a sink does: asks for the last batch, and writes those behind it. `told`: the batches whose commit was answered."""

    def __init__(self, harness: ProtocolHarness, told: list[int]) -> None:
        self.harness = harness
        self.told = told
        self.wire: Wire = harness.wire()
        for channel in (*TASKS, 3, DRIVER):
            if channel != 1:
                self.wire.put(channel, m.ChannelOpen())
            self.wire.put(channel, m.ConfirmSelect(False))
        for queue in ("a", "b"):
            self.ask(DRIVER, m.QueueDeclare(queue, False, True))
            self.ask(DRIVER, m.QueueBind(queue, "amq.fanout", ""))

    def ask(self, channel: int, method: Method) -> Method:
        self.wire.put(channel, method)
        answers: list[Method] = []
        for _ in range(100):
            self.harness.settle_down()
            answers += [decode(p) for kind, c, p in self.wire.frames() if kind == FRAME_METHOD and c == channel]
            if answers:
                return answers[-1]
        raise AssertionError(f"no answer to {method}")

    def write(self, channel: int, batch: int, task: int, attempt: str, half: bool = False) -> str:
        name = f"{task}-{attempt}"
        assert isinstance(self.ask(channel, m.StageOpen("w", batch, name)), m.StageOpenOk)
        messages = rows(batch, task)
        for exchange, key, body in messages[: 3 if half else None]:
            self.wire.feed(content(channel, exchange, key, body))
        self.harness.settle_down()
        acks = [method for method in self.wire.methods() if isinstance(method, m.BasicAck)]
        assert acks, "not confirmed"
        return name

    def run(self) -> None:
        answer = self.ask(DRIVER, m.StageLast("w"))
        assert isinstance(answer, m.StageLastOk)
        first = 0 if answer.last == NONE else answer.last + 1
        assert all(batch < first for batch in self.told), "a commit that was answered is forgotten"
        for batch in range(first, BATCHES):
            self.write(3, batch, 1, "killed", half=True)
            names = [self.write(task, batch, task, "a") for task in TASKS]
            committed = self.ask(DRIVER, m.StageCommit("w", batch, "\n".join(names).encode()))
            assert isinstance(committed, m.StageCommitOk) and committed.fresh
            self.told.append(batch)
            again = self.ask(DRIVER, m.StageCommit("w", batch, b"whatever"))
            assert isinstance(again, m.StageCommitOk) and not again.fresh


def contents(disk: SimDisk) -> dict[str, list[bytes]]:
    harness = BrokerHarness(copy.deepcopy(disk))
    assert not harness.store.alarms
    found = {}
    for name in ("a", "b"):
        queue = harness.broker.vhosts["/"].queues[name]
        taker = Taker(queue, no_ack=True)
        while queue.get(taker):
            pass
        found[name] = [d.body for d in taker.got]
    return found


def rest(harness: ProtocolHarness) -> None:
    """Until all that was committed has moved."""
    for _ in range(200):
        harness.clock.advance(1.0)
        harness.broker.tick()
        harness.settle_down()
        if not any(writer.moving for writer in harness.broker.stages.writers.values()):
            return
    raise AssertionError("something never moves")


def begin(disk: SimDisk, told: list[int]) -> ProtocolHarness:
    harness = ProtocolHarness(disk)
    Job(harness, told).run()
    rest(harness)
    return harness


def test_every_batch_comes_once_and_whole_wherever_the_power_goes() -> None:
    disk, told = SimDisk(), list[int]()

    def cut() -> None:
        for seed in range(SEEDS):
            after = disk.survivor(Random(disk.operations * 1000 + seed), hostile=seed % 2 == 1)
            try:
                begin(after, told[:])
                assert contents(after.kill()) == expected()
            except BaseException as error:
                raise AssertionError(f"cut at {disk.operations}, seed {seed}") from error

    disk.watch = cut
    harness = begin(disk, told)
    assert disk.operations > 100
    assert not harness.broker.stages.open_stages, "what was not committed is gone"
    assert len(disk.listdir("queues")) == 2
    assert contents(disk.kill()) == expected()
