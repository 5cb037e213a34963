"""What a broker has moved into its archive is what the reader finds: whole, with every outcome, wherever each segment lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvitto.store import log as logs
from tests.spark.test_archive_files import read
from tests.support.archived import ARCHIVE, QUEUES, bases, entries
from tests.support.harness import BrokerHarness, Taker

OUTCOMES = {0: None, 1: "acked", 2: "rejected", 6: "purged"}


def test_what_the_broker_moves_is_found_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between two steps of a move, when a segment has two names, and after the queue is gone."""
    monkeypatch.setattr(logs, "SEGMENT_BYTES", 700)
    monkeypatch.setattr(logs, "ROLL_WHEN_SETTLED_BYTES", 300)
    harness = BrokerHarness()
    queue = harness.declare("q", x_archive=True)
    for i in range(16):
        harness.publish("q", f"message {i}".ljust(100, ".").encode())
        harness.turn()
    harness.settle_down()
    taker = Taker(queue)
    for _ in range(14):
        queue.get(taker)
    queue.ack(0, 9)
    queue.reject(9, 1)
    queue.requeue(10, 2, 200)
    queue.purge()
    steps = 0
    while harness.store.commits.dirty or not steps:
        harness.turn()
        check(harness, tmp_path / str(steps), queue.log.queue_id)
        steps += 1
        harness.sync()
    files = harness.disk.files()
    assert steps >= 4 and bases(files, queue.log.queue_id) and bases(files, queue.log.queue_id, QUEUES)
    queue.ack(12, 2)
    harness.delete("q")
    harness.settle_down()
    check(harness, tmp_path / "deleted", queue.log.queue_id)
    assert not harness.disk.listdir(QUEUES) and len(entries(harness.disk.files(), queue.log.queue_id)) == 16


def check(harness: BrokerHarness, data: Path, queue_id: str) -> None:
    """The reader and the tests' own parser agree."""
    for path, content in harness.disk.files().items():
        target = data / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    for place in (QUEUES, ARCHIVE):
        (data / place).mkdir(exist_ok=True)
    expected = entries(harness.disk.files(), queue_id)
    rows = read(data, "queue_id", "offset", "body", "outcome", "deliveries")
    assert {r["offset"]: (r["queue_id"], r["body"], r["outcome"]) for r in rows} == {
        o: (queue_id, e.body, OUTCOMES[e.outcome]) for o, e in expected.items()
    }
    assert len(rows) == len(expected)
    told = {r["offset"]: r["deliveries"] for r in rows if r["outcome"]}
    assert told == {o: e.deliveries for o, e in expected.items() if e.outcome}
