"""C8: a sync fails in a real process, under load, and what it should have synced is gone; KVITTO_FAILED_SYNCS=500 for more than 2 times.

The broker's own files fail: failing_sync.c is preloaded. The clients and their books are those of the kills.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.crash.load import QUEUES, Books, Message, check_transactions, declare, drain, end, start
from tests.crash.serve import Served

pytestmark = pytest.mark.slow

RUNS = int(os.environ.get("KVITTO_FAILED_SYNCS", "2"))
LIFE_S = 0.1
SYNCS = 60
"""The failing one is one of the next so many."""
SAID = re.compile(r"^kvitto: cannot sync (\S+): \[Errno 5\] Input/output error$")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: failing_sync.c is preloaded into the broker")
    made = tmp_path_factory.mktemp("library") / "failing_sync.so"
    source = Path(__file__).with_name("failing_sync.c")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-o",
        str(made),
        str(source),
        "-ldl",
        "-lpthread",
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"failing_sync.c cannot be compiled here: {built.stderr}")
    return made


@pytest.mark.timeout(120 + 60 * RUNS)
def test_a_failed_sync_ends_the_broker_and_nothing_confirmed_is_lost(library: Path, tmp_path: Path) -> None:
    """P2, C2, C8, T4: exit code 1, the reason on the last line; the next start has every message that was ever confirmed."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng, books = random.Random(seed), Books()
    failed: dict[str, int] = {}
    began = time.monotonic()
    for books.life in range(RUNS):
        fault = tmp_path / f"fault{books.life}"
        environment = {"LD_PRELOAD": str(library), "KVITTO_SYNC_FAULT": str(fault)}
        with Served(tmp_path / "data", env=environment) as broker:
            if books.life == 0:
                declare(broker.port)
            clients = start(books, broker.port)
            for client in clients:
                assert client.moved.wait(20), f"{client.name} does not get on"
            clients[0].moved.clear()
            clients[0].moved.wait(LIFE_S * rng.random())
            fault.with_suffix(".new").write_text(f"{rng.randint(1, SYNCS)} {rng.choice(('', 'all'))}")
            fault.with_suffix(".new").rename(fault)
            assert broker.process.wait(30) == 1
            end(clients)
            said = broker.log().splitlines()
            found = SAID.match(said[-1])
            assert found, said[-5:]
            assert not any("Traceback" in line for line in said)
            kind = Path(found[1]).suffix or "directory"
            failed[kind] = failed.get(kind, 0) + 1
        fault.unlink()
        forget_lost_settlements(books)
        assert books.problems == []
    with Served(tmp_path / "data") as broker:
        left = drain(books, broker.port)
        assert broker.stop() == 0
    forget_lost_settlements(books)
    check(books, left)
    print(f"{RUNS} failed syncs {failed}: {len(books.published)} published, {len(books.confirmed)} confirmed,")
    print(f"{len(books.settled)} settled, 0 lost in {time.monotonic() - began:.0f} s")


def forget_lost_settlements(books: Books) -> None:
    """A11: settlements are written behind; the last ones may be what was lost, and then their messages come again, flagged."""
    with books.lock:
        books.problems = [p for p in books.problems if not p.endswith("comes again, but its ack was safe")]


def check(books: Books, left: dict[str, list[Message]]) -> None:
    """The books after the last drain."""
    assert books.problems == []
    missing = [place for place in books.owed() if place not in books.received]
    assert not missing, f"{len(missing)} confirmed copies were lost, such as {sorted(missing)[:5]}"
    for queue in QUEUES:
        numbers: dict[str, int] = {}
        for name, number in left[queue]:
            assert number > numbers.get(name, -1), f"{queue}: {name} {number} after {numbers[name]}"
            numbers[name] = number
    check_transactions(books)
    assert len(books.confirmed) > RUNS
