"""Files are verified while they are used: what is damaged is found, and what only changes is not taken for damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from kvitto.store import paths, scrub
from kvitto.store.disk import RealDisk
from kvitto.store.repair.survey import Survey
from kvitto.store.scrub import PIECE, Damage, Pass
from tests.store.test_damage_matrix import build, kind_of
from tests.support.datadir import Memory
from tests.support.harness import BrokerHarness
from tests.support.simdisk import SimDisk

FLIPS = int(os.environ.get("KVITTO_FLIPS", "150"))
PLAIN = {"queue.json", "an archive's queue.json"}
"""They have no checksum: who reads them compares them with the definitions."""


def found(disk: SimDisk | RealDisk) -> list[Damage]:
    told: list[Damage] = []
    for cost in Pass(disk, lambda damage, _: told.append(damage)).run():
        assert cost <= 3 * PIECE or cost == scrub.AGAIN_COST
    return told


def is_room(disk: SimDisk, path: str, at: int) -> bool:
    """Whether there is nothing but room that was reserved from this place on."""
    return not any(disk.files()[path][at:])


def flips(disk: Memory, count: int, seed: int) -> Iterator[tuple[Memory, str, int]]:
    rng = Random(seed)
    names = [path for path, data in disk.files().items() if data and not paths.is_local(path)]
    for _ in range(count):
        path = rng.choice(names)
        at = rng.randrange(len(disk.files()[path]))
        damaged = disk.copy()
        damaged.flip(path, at, rng.randrange(8))
        yield damaged, path, at


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "killed"])
def test_each_flip_is_found_where_it_is(in_order: bool) -> None:
    disk = build(in_order)
    assert not found(disk)
    for damaged, path, at in flips(disk, FLIPS, 1 + in_order):
        told = found(damaged)
        assert all(damage.path == path for damage in told), (path, at, told)
        if kind_of(path) not in PLAIN and not is_room(disk, path, at):
            assert any(damage.at <= at < damage.until for damage in told), (path, at, told)


def test_it_finds_what_check_finds() -> None:
    disk = build(True)
    for damaged, path, at in flips(disk, FLIPS // 3, 3):
        if kind_of(path) not in PLAIN and not is_room(disk, path, at):
            told = {damage.path for damage in found(damaged)}
            assert told == {path} and path in {finding.path for finding in Survey(damaged).findings}, (path, at, told)


def test_it_says_whose_messages_are_lost() -> None:
    disk = build(True)
    path = next(path for path in disk.files() if path.startswith("queues/") and path.endswith(f"{0:020d}.log"))
    disk.flip(path, 300, 1)
    told: list[str] = []
    for _ in Pass(disk, lambda damage, whose: told.append(f"{damage} ({whose})")).run():
        pass
    (text,) = told
    assert text.startswith(f"{path}, byte 72: 2") and "offsets 0 to 5 (queue '" in text


def test_a_large_message_is_verified_in_pieces() -> None:
    home = BrokerHarness()
    home.declare("q")
    home.publish("q", Random(1).randbytes(5 * PIECE))
    home.publish("q", b"behind it")
    home.settle_down()
    disk = home.disk
    path = next(path for path in disk.files() if path.endswith(".log") and path.startswith("queues/"))
    assert not found(disk)
    disk.flip(path, 3 * PIECE, 1)
    (damage,) = found(disk)
    assert damage.offsets is None or damage.offsets[0] == 0
    assert damage.at == 72 and damage.until > 5 * PIECE


def test_what_a_broker_does_meanwhile_is_no_damage() -> None:
    """It writes, settles, removes segments and queues, and compacts, between any two steps."""
    home, rng = BrokerHarness(), Random(3)
    for name in ("a", "b", "c"):
        home.declare(name).log.segment_bytes = 4000
    told: list[Damage] = []
    for turn in range(40):
        for _ in Pass(home.disk, lambda damage, _: told.append(damage)).run():
            name = rng.choice("abc")
            home.publish(name, rng.randbytes(rng.randrange(1, 3000)))
            if rng.random() < 0.3:
                home.settle_down()
            if rng.random() < 0.1:
                for delivery in home.take(name):
                    home.queue(name).ack(delivery.offset, 1)
            if rng.random() < 0.01:
                home.delete(name)
                home.declare(name).log.segment_bytes = 4000
            if rng.random() < 0.01:
                home.store.compact_definitions()
        assert not told, (turn, told)


def test_damage_that_is_gone_at_another_look_is_not_told_of() -> None:
    disk = build(True)
    path = next(path for path in disk.files() if path.startswith("queues/") and path.endswith(f"{0:020d}.log"))
    told: list[Damage] = []
    for removed in (False, True):
        disk.flip(path, 300, 1)
        for cost in Pass(disk, lambda damage, _: told.append(damage)).run():
            if cost == scrub.AGAIN_COST and removed:
                disk.unlink(path)
            elif cost == scrub.AGAIN_COST:
                disk.flip(path, 300, 1)
        assert not told


def test_a_real_file_is_read_from_the_device_and_the_cache_stays_as_it_was(tmp_path: Path) -> None:
    data = Random(1).randbytes(2 * PIECE + 100)
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("r+b") as file:
        os.fsync(file.fileno())
    for past_cache in (False, True):
        source = scrub.Source(RealDisk(str(tmp_path)).open("file"), "file")
        source.is_sealed = past_cache
        assert source.bytes_at(PIECE - 5, 10) == data[PIECE - 5 : PIECE + 5]
        assert source.bytes_at(0, len(data)) == data and source.bytes_at(7, 1) == data[7:8]
