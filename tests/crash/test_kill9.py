"""P2, C2, A6, A9, A11, T4, X4: a real broker, real clients, and SIGKILL under load, again and again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.load import (
    DEAD,
    PREFETCH,
    QUEUES,
    ROUTES,
    Books,
    Client,
    Message,
    declare,
    drain,
    start,
)
from tests.crash.serve import Served

CYCLES = int(os.environ.get("KVITTO_KILLS", "20"))
LIFE_S = 0.6


def live(clients: list[Client], seconds: float) -> None:
    """Until every client has had something promised, and then for a moment that is the load itself, no waiting."""
    for client in clients:
        assert client.moved.wait(20), f"{client.name} does not get on"
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        clients[0].moved.clear()
        clients[0].moved.wait(deadline - time.monotonic())


def end(clients: list[Client]) -> None:
    for client in clients:
        client.join(20)
        assert not client.is_alive()


def check(books: Books, left: dict[str, list[Message]]) -> None:
    """The books after the last drain."""
    assert books.problems == []
    missing = [place for place in books.owed() if place not in books.received]
    assert not missing, f"{len(missing)} confirmed copies were lost, such as {sorted(missing)[:5]}"
    again = [place for place in ((q, x) for q in QUEUES for x in left[q]) if place in books.settled]
    assert not again
    for queue in QUEUES:
        numbers: dict[str, int] = {}
        for name, number in left[queue]:
            assert number > numbers.get(name, -1), f"{queue}: {name} {number} after {numbers[name]}"
            numbers[name] = number
    # What the broker sent and nobody read is flagged too, but it cannot be more than the prefetch of that consumer.
    for (life, queue), count in books.surprises.items():
        assert count <= PREFETCH and queue != "idle", f"life {life}: {count} messages of {queue} flagged, never seen"
    check_transactions(books)
    dead = Counter(left[DEAD])
    assert [message for message in books.rejected if dead[message] != 1] == []
    assert all(("c", message) in books.received for message in dead)


def check_transactions(books: Books) -> None:
    """T4: of each transaction every copy has been seen, or none."""
    wanted: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    for message, group in books.groups.items():
        for queue in ROUTES[books.published.get(message, "load.topic")]:
            wanted[group] += 1
            seen[group] += (queue, message) in books.received
    halves = [group for group in wanted if seen[group] not in (0, wanted[group])]
    assert not halves, f"{len(halves)} transactions were applied by half, such as {halves[:3]}"


@pytest.mark.timeout(300)
def test_kill_under_load(tmp_path: Path) -> None:
    """Nothing confirmed is lost, nothing settled comes back, order is kept, `redelivered` is right, 20 times."""
    random.seed(20)
    books = Books()
    for books.life in range(CYCLES):
        with Served(tmp_path / "data") as broker:
            if books.life == 0:
                declare(broker.port)
            clients = start(books, broker.port)
            live(clients, LIFE_S * random.random())
            broker.kill()
            end(clients)
        assert books.problems == []
    with Served(tmp_path / "data") as broker:
        left = drain(books, broker.port)
        assert broker.stop() == 0
    check(books, left)
    assert len(books.confirmed) > 20 * CYCLES and len(books.settled) > 20 * CYCLES
    print(f"{len(books.published)} published, {len(books.confirmed)} confirmed, {len(books.settled)} settled")


def test_stop_under_load(tmp_path: Path) -> None:
    """SIGTERM loses nothing, and ends with 0."""
    books = Books()
    for books.life in range(3):
        with Served(tmp_path / "data") as broker:
            if books.life == 0:
                declare(broker.port)
            clients = start(books, broker.port)
            live(clients, LIFE_S)
            assert broker.stop() == 0
            end(clients)
        assert books.problems == []
    with Served(tmp_path / "data") as broker:
        left = drain(books, broker.port)
    check(books, left)


def test_a_second_start_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """D5: with the reason, and a code that is not zero."""
    with Served(tmp_path / "data") as broker:
        command = [sys.executable, "-m", "kvitto.cli.main", "serve", "--data-dir", str(broker.data), "--port", "0"]
        second = subprocess.run([*command, "--http-port", "0"], capture_output=True, text=True, timeout=30, check=False)
        assert second.returncode != 0 and second.stdout == ""
        assert f"is in use by process {broker.process.pid}" in second.stderr
        assert "Traceback" not in second.stderr
        assert broker.stop() == 0


pytestmark = pytest.mark.slow
