"""Room ahead of what is written: a sync need not make a new size durable; no start may take it for anything."""

from __future__ import annotations

from random import Random

from kvitto.store.room import ROOM_KEPT
from kvitto.store.segment import HEADER, RESERVE_LEAST
from tests.store.logs import DIRECTORY, LogHarness
from tests.support.harness import BrokerHarness
from tests.support.simdisk import SimDisk

SEGMENT = f"{DIRECTORY}/{0:020d}.log"


def test_a_segment_has_room_ahead_until_it_is_left_in_order() -> None:
    """D3, P4: zeros behind the last batch are no damage, and after an end in order there are none."""
    harness = BrokerHarness()
    harness.declare("q")
    harness.publish("q", b"a")
    harness.settle_down()
    (path,) = (path for path in harness.disk.files() if path.endswith(".log") and path.startswith("queues/"))
    assert harness.disk.files()[path].endswith(bytes(RESERVE_LEAST))
    harness.kill()
    assert not harness.store.alarms and harness.peek("q") == [b"a"]
    harness.publish("q", b"b")
    harness.restart()
    assert not harness.store.alarms and harness.store.ending.in_order
    assert harness.disk.files()[path].endswith(b"b") and harness.peek("q") == [b"a", b"b"]


def test_a_power_cut_in_the_room_ahead_is_a_torn_end() -> None:
    """D3: any mixture of old zeros and new bytes."""
    for seed in range(200):
        harness = LogHarness(SimDisk())
        harness.write(b"kept")
        harness.settle_down()
        harness.write(b"one", b"two")
        harness.write(b"three")
        after = LogHarness(harness.disk.crash(Random(seed)))
        assert not after.store.alarms
        assert after.served()[0] == b"kept"
        assert set(after.served().values()) <= {b"kept", b"one", b"two", b"three"}


def test_a_full_disk_gives_no_room_ahead() -> None:
    """D4: what is asked for in advance must not fail what is written."""
    harness = LogHarness(SimDisk())
    harness.write(b"a")
    harness.disk.full = True
    room = len(harness.disk.files()[SEGMENT])
    assert harness.log.segments[0].reserved == room
    harness.write(b"b")
    assert len(harness.disk.files()[SEGMENT]) == room


def test_what_is_settled_goes_at_once_while_the_disk_is_short_of_room() -> None:
    """D4: below 8 MiB a settled segment waits for more. While publishers wait no more comes: many queues kept the disk full for ever."""
    harness = BrokerHarness()
    for n in range(3):
        harness.declare(f"q{n}")
        for _ in range(10):
            harness.publish(f"q{n}", bytes(1000))
        harness.settle_down()
        harness.drain(f"q{n}")
    harness.settle_down()
    sizes = [
        len(content) for path, content in harness.disk.files().items() if path.endswith(".log") and "queues" in path
    ]
    assert min(sizes) > 10_000
    harness.disk.free, harness.store.room._left = ROOM_KEPT, 0
    harness.publish("q0", b"m")
    harness.turn()
    assert harness.broker.full
    harness.broker.make_room(True)
    harness.settle_down()
    sizes = [
        len(content) for path, content in harness.disk.files().items() if path.endswith(".log") and "queues" in path
    ]
    assert sizes == [HEADER] * 3
    harness.disk.free = 1 << 40
    harness.broker.retry_writes()
    harness.broker.make_room(False)
    harness.settle_down()
    harness.restart()
    assert harness.drain("q0") == [b"m"] and not harness.store.short
