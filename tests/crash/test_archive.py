"""P2, C2: SIGKILL while segments move into an archive, again and again; then every confirmed message has a receipt."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from kvitto.format.settlement import ACKED
from kvitto.wire import methods as m
from tests.crash.serve import Served
from tests.protocol.raw import Raw, content
from tests.support.archived import ARCHIVE, QUEUES, Files, bases, entries, files_of, segment
from tests.support.wait import wait_until

LIVES = 6
CONFIRMED_PER_LIFE = 200
BURST, WINDOW, PREFETCH = 20, 100, 200
QUEUE = "kept"
BODY = 20_000
"""So large that a life fills the 8 MiB of a segment that may leave when it is settled."""

pytestmark = pytest.mark.slow


def body_of(number: int) -> bytes:
    return number.to_bytes(8, "big") * (BODY // 8)


def number_of(body: bytes) -> int:
    """The number, if the body is whole."""
    number = int.from_bytes(body[:8], "big")
    assert body == body_of(number), f"{number}: a wrong body"
    return number


class Oracle:
    def __init__(self) -> None:
        self.next = 0
        self.confirmed: set[int] = set()
        self.moved = threading.Event()
        self.wanted = 0


def publish(oracle: Oracle, port: int) -> None:
    """Streamed confirms until the socket ends."""
    pending: dict[int, int] = {}
    tag = 0
    with suppress(OSError, AssertionError), Raw(port) as raw:
        raw.channel(1, confirm=True)
        while True:
            for _ in range(BURST):
                tag += 1
                pending[tag] = oracle.next
                raw.send(content(1, m.BasicPublish("", QUEUE), b"\0\0", body_of(oracle.next)))
                oracle.next += 1
            while len(pending) > WINDOW:
                ack = raw.expect(m.BasicAck)
                tags = [t for t in pending if t <= ack.delivery_tag] if ack.multiple else [ack.delivery_tag]
                oracle.confirmed.update(pending.pop(t) for t in tags)
            if len(oracle.confirmed) >= oracle.wanted:
                oracle.moved.set()
    oracle.moved.set()


def consume(port: int) -> None:
    """Ack by the dozen until the socket ends."""
    with suppress(OSError, AssertionError), Raw(port) as raw:
        raw.channel(1)
        raw.call(1, m.BasicQos(0, PREFETCH), m.BasicQosOk)
        raw.consume(QUEUE)
        while True:
            found = raw.message()
            number_of(found.body)
            if found.method.delivery_tag % 12 == 0:
                raw.put(1, m.BasicAck(found.method.delivery_tag, True))


def live(oracle: Oracle, port: int) -> list[threading.Thread]:
    oracle.wanted = len(oracle.confirmed) + CONFIRMED_PER_LIFE
    oracle.moved.clear()
    clients = [threading.Thread(target=publish, args=(oracle, port)), threading.Thread(target=consume, args=(port,))]
    for client in clients:
        client.start()
    assert oracle.moved.wait(60), "the publisher does not get on"
    return clients


def check_archive(files: Files, queue_id: str) -> None:
    """What is in the archive at this moment has no open message."""
    for base in bases(files, queue_id):
        found = segment(files, f"{ARCHIVE}/{queue_id}/{base:020d}", ARCHIVE)
        assert found and all(e.outcome == ACKED for e in found.values())


@pytest.mark.timeout(300)
def test_a_broker_that_is_killed_while_it_archives_loses_no_receipt(tmp_path: Path) -> None:
    """Every confirmed message is found once per offset with its body and its settlement, in the archive or beside what is live."""
    oracle, data, queue_id = Oracle(), tmp_path / "data", ""
    for life in range(LIVES):
        with Served(data) as broker:
            if life == 0:
                with Raw(broker.port) as raw:
                    raw.channel(1)
                    raw.declare(QUEUE, durable=True, arguments={"x-archive": True})
            before = set(data.glob(f"{ARCHIVE}/*/*.ack"))
            clients = live(oracle, broker.port)
            if life % 4:  # as soon as the next one has begun to move
                wait_until(lambda: set(data.glob(f"{ARCHIVE}/*/*.ack")) > before)  # noqa: B023 - it waits here
            broker.kill()
            for client in clients:
                client.join(30)
                assert not client.is_alive()
        (queue_id,) = (p.parent.name for p in (data / QUEUES).glob("*/queue.json"))
        files = files_of(data)
        check_archive(files, queue_id)
        here = {number_of(e.body) for e in entries(files, queue_id).values()}
        assert oracle.confirmed <= here, f"life {life}: {len(oracle.confirmed - here)} are neither waiting nor archived"
    with Served(data) as broker:
        with Raw(broker.port) as raw:
            raw.channel(1)
            raw.drain(QUEUE)
        assert broker.stop() == 0
    files = files_of(data)
    check_archive(files, queue_id)
    found = entries(files, queue_id)
    assert all(e.outcome == ACKED and e.deliveries > 0 and e.time_ms > 0 for e in found.values())
    assert oracle.confirmed <= {number_of(e.body) for e in found.values()}
    assert sum(e.place == ARCHIVE for e in found.values()) > len(found) // 2
    assert not any(path.endswith(".bad") for path in files)
    assert len(bases(files, queue_id)) >= LIVES // 2
    print(
        f"{oracle.next} published, {len(oracle.confirmed)} confirmed, {len(bases(files, queue_id))} segments archived"
    )
