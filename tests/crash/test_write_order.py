"""P2, C2, D2, D3, T4, X4: a real process recorded by strace, and the power cut after any of its calls.

What had been synced is there, of all else any part may be: SimDisk makes such disks from the recorded calls, and a broker starts on each.
KVITTO_WRITE_ORDER=10000 for more than 30 of them.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvitto.store.repair.survey import Survey
from kvitto.wire import methods as m
from tests.crash.serve import Served
from tests.crash.trace import STRACE, Call, Replay, calls
from tests.protocol.raw import Raw
from tests.support.harness import BrokerHarness
from tests.support.simdisk import SimDisk

pytestmark = pytest.mark.slow

STATES = int(os.environ.get("KVITTO_WRITE_ORDER", "30"))
ROUNDS = 16
SMALL = """
import sys
from kvitto.cli.main import main
from kvitto.store import journal, log
log.SEGMENT_BYTES, log.ROLL_WHEN_SETTLED_BYTES, journal.ROTATE_BYTES = 4000, 1500, 2000
sys.exit(main())
"""
"""`kvitto` with segments so small that they are sealed, left and unlinked all the time."""
QUEUES = ("q", "r", "c", "dead")
CONFIRMS, TX, TAKES = 1, 2, 3
Sent = tuple[str, bytes]


@dataclass
class Day:
    """What a client did: `confirmed` by number of its publish, `transactions` by number of the commit."""

    confirmed: dict[int, Sent] = field(default_factory=dict)
    transactions: list[list[Sent]] = field(default_factory=list)
    rejected: list[bytes] = field(default_factory=list)
    acked: set[Sent] = field(default_factory=set)


def live(raw: Raw, rng: random.Random) -> Day:
    """Confirms, transactions over two queues, acks, dead letters, queues that come and go."""
    day = Day()
    for channel in (CONFIRMS, TX, TAKES):
        raw.channel(channel, confirm=channel == CONFIRMS)
    raw.call(TX, m.TxSelect(), m.TxSelectOk)
    for queue in QUEUES:
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"} if queue == "c" else {}
        raw.declare(queue, TAKES, durable=True, arguments=dead)
    for n in range(ROUNDS):
        for k in range(rng.randint(1, 6)):
            place = (rng.choice("qc"), b"p%d.%d" % (n, k) + bytes(rng.choice((0, 10, 700))))
            day.confirmed[len(day.confirmed) + 1] = place
            raw.publish(CONFIRMS, "", *place)
        while raw.expect(m.BasicAck).delivery_tag < len(day.confirmed):
            pass
        group = [(queue, b"t%d.%d" % (n, k)) for queue in "qr" for k in range(2)]
        day.transactions.append(group)
        for place in group:
            raw.publish(TX, "", *place)
        raw.call(TX, m.TxCommit(), m.TxCommitOk)
        for queue in "qrc":
            found = raw.get(queue, TAKES)
            if found is None:
                continue
            if queue == "c":
                day.rejected.append(found.body)
                raw.put(TAKES, m.BasicReject(found.method.delivery_tag, False))
            else:
                day.acked.add((queue, found.body))
                raw.put(TAKES, m.BasicAck(found.method.delivery_tag))
        if n % 8 == 7:
            raw.declare("passing", TAKES, durable=True)
            raw.publish(CONFIRMS, "", "passing", b"x")
            day.confirmed[len(day.confirmed) + 1] = ("passing", b"x")
            raw.expect(m.BasicAck)
            raw.call(TAKES, m.QueueDelete("passing"), m.QueueDeleteOk)
            day.acked.add(("passing", b"x"))
    return day


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call], Day]:
    """The data directory's place, the calls, the day."""
    place = tmp_path_factory.mktemp("recorded")
    log = place / "strace"
    if shutil.which("strace") is None:
        pytest.skip("needs strace (Debian: apt install strace)")
    tried = subprocess.run([*STRACE, "-o", str(log), "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()}")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with Served(place / "data", wrapper=[*STRACE, "-o", str(log)], program=("-c", SMALL)) as broker:
        with Raw(broker.port) as raw:
            day = live(raw, random.Random(seed))
        ready = int(broker.ready.partition(" pid=")[2].split()[0])
        os.kill(ready, signal.SIGTERM)
        assert broker.process.wait(30) == 0
    return place / "data", list(calls(log)), day


def contents(disk: SimDisk) -> dict[str, list[bytes]]:
    """What a start finds; it takes nothing for damage."""
    harness = BrokerHarness(disk)
    assert harness.store.alarms == []
    return {name: harness.peek(name) for name in harness.broker.vhosts["/"].queues}


def check(found: dict[str, list[bytes]], replay: Replay, day: Day) -> None:
    """What the client had been told by then is so; of all else, all or nothing."""
    tags = max((x.delivery_tag for c, x in replay.told if c == CONFIRMS and isinstance(x, m.BasicAck)), default=0)
    commits = sum(isinstance(x, m.TxCommitOk) for _, x in replay.told)
    declared = sum(isinstance(x, m.QueueDeclareOk) for _, x in replay.told)
    assert set(QUEUES[:declared]) <= set(found)
    everything = {*day.confirmed.values(), *(place for group in day.transactions for place in group)}
    for queue, bodies in found.items():
        assert len(bodies) == len(set(bodies)), f"{queue} has messages twice"
        came_from = "c" if queue == "dead" else queue
        assert all((came_from, body) in everything for body in bodies)
    for tag, (queue, body) in day.confirmed.items():
        if queue == "c":
            copies = found.get("c", []).count(body) + found.get("dead", []).count(body)
            assert copies == 1 or (copies == 0 and tag > tags), f"{body!r} is in c and dead {copies} times"
        elif tag <= tags and (queue, body) not in day.acked:
            assert body in found[queue], f"{body!r} was confirmed"
    for n, group in enumerate(day.transactions):
        there = [place[1] in found.get(place[0], []) for place in group if place not in day.acked]
        assert all(there) or (not any(there) and n >= commits), f"transaction {n} of {commits}: {there}"
    for name in ("q", "r"):
        numbers = [int(body[1:].partition(b".")[0]) for body in found.get(name, []) if body[:1] == b"p"]
        assert numbers == sorted(numbers)


@pytest.mark.timeout(120 + STATES)
def test_the_power_goes_after_any_call(recorded: tuple[Path, list[Call], Day], tmp_path: Path) -> None:
    root, record, day = recorded
    began = time.monotonic()
    points = count(root, record)
    rng = random.Random(7)
    chosen = {k: STATES // points + (rng.random() < STATES % points / points) for k in range(points)}
    replay, k, states, real = Replay(root), 0, 0, 0
    for call in record:
        if not replay.step(call):
            continue
        for n in range(chosen[k]):
            seed = k << 16 | n
            disk = replay.disk.copy().crash(random.Random(seed), hostile=bool(n % 2))
            try:
                if disk.exists("format"):
                    assert Survey(disk.copy()).findings == []
                check(contents(disk.copy()), replay, day)
                if states % 500 == 0:
                    real += start_for_real(disk, tmp_path / f"real{k}.{n}")
            except AssertionError as error:
                raise AssertionError(f"after call {k} of {points} ({call.name}), state {n}: {error}") from error
            states += 1
        k += 1
    assert day.rejected and day.acked and real
    assert contents(replay.disk.kill()).keys() == set(QUEUES)
    print(f"{points} places where a crash differs, {states} states, {real} of them with a real process,")
    print(
        f"{len(day.confirmed)} confirms, {len(day.transactions)} transactions, 0 lost in {time.monotonic() - began:.0f} s"
    )


def count(root: Path, record: list[Call]) -> int:
    """Calls that make another disk."""
    replay = Replay(root)
    return sum(replay.step(call) for call in record)


def start_for_real(disk: SimDisk, root: Path) -> bool:
    """The process itself starts on the same files, and stops in order."""
    root.mkdir()
    for path, inode in sorted(disk._names.items()):
        if inode is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(inode.live)
    with Served(root) as broker:
        return broker.stop() == 0
