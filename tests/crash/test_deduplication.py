"""Queues and exchanges with deduplication under kill -9 and on full disks: no key without its message, no message without its key."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.crash.duplicates import Load, declare, declare_exchange
from tests.crash.serve import Served
from tests.crash.test_full_disk import disk, fill

__all__ = ["disk"]

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("KVITTO_DEDUPLICATION_KILLS", "5"))
FULL_DISKS = int(os.environ.get("KVITTO_DEDUPLICATION_FULL_DISKS", "2"))


def judge(load: Load, what: str) -> None:
    without_message, without_key = load.verdict()
    print(f"{what}: {load.told()}")
    assert without_message == [] and without_key == [], (len(without_message), len(without_key))


@pytest.mark.parametrize("exchange", [False, True], ids=["queue", "exchange"])
@pytest.mark.timeout(120 + 6 * KILLS)
def test_kills_under_load(tmp_path: Path, exchange: bool) -> None:
    """KVITTO_DEDUPLICATION_KILLS=100 for more."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    load: Load | None = None
    for kill in range(KILLS + 1):
        with Served(tmp_path / "data") as broker:
            if load is None:
                (declare_exchange if exchange else declare)(broker.port)
                load = Load(seed, 2000, exchange)
            load.port = broker.port
            if kill == KILLS:
                load.finish()
            else:
                time.sleep(rng.uniform(0.2, 1.0))  # the moment of the kill
            load.port = 0
    assert load is not None
    assert len(load.confirmed) > 50 * KILLS and load.committed > KILLS
    judge(load, f"{KILLS} kills")


@pytest.mark.parametrize("exchange", [False, True], ids=["queue", "exchange"])
@pytest.mark.timeout(120 + 30 * FULL_DISKS)
def test_full_disks(disk: Path, exchange: bool) -> None:
    """The disk is full for a while, again and again, and the broker is killed while it is, or goes on."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    load: Load | None = None
    for run in range(FULL_DISKS + 1):
        with Served(disk / "data", "--disk-free-limit", "0") as broker:
            if load is None:
                (declare_exchange if exchange else declare)(broker.port)
                load = Load(seed, 500, exchange)
            load.port = broker.port
            if run == FULL_DISKS:
                load.finish()
            else:
                time.sleep(rng.uniform(0.1, 0.4))
                ballast = fill(disk, rng.choice((0, rng.randrange(200_000))))
                time.sleep(rng.uniform(0.2, 0.6))
                if rng.random() < 0.5:
                    broker.kill()
                    load.port = 0
                ballast.unlink()
                if load.port:
                    time.sleep(rng.uniform(0.2, 0.6))
            load.port = 0
    assert load is not None
    judge(load, f"{FULL_DISKS} full disks")
