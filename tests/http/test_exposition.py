"""Metrics of very many objects: in pieces, and the loop goes on with other work between them."""

import asyncio
import random

import pytest

from kvitto.broker.latencies import SIZES, WORK_US, Histogram
from kvitto.http.exposition import PIECE, Metric, histogram, labels, of_each
from kvitto.http.slices import Slices

MANY = 100_000
METRICS: list[Metric[int]] = [
    Metric("objects", "gauge", "The number itself.", lambda n: n),
    Metric("squares_total", "counter", "Its square.", lambda n: n * n),
]


def test_the_loop_has_its_turn_between_the_lines_of_100_000_objects() -> None:
    rounds = 0

    async def others() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def scrape() -> list[bytes]:
        beside = asyncio.create_task(others())
        try:
            things = range(MANY)
            return [piece async for piece in of_each(Slices(), METRICS, "kvitto_", things, lambda n: labels(n=str(n)))]
        finally:
            beside.cancel()

    pieces = asyncio.run(scrape())
    assert max(piece.count(b"\n") for piece in pieces) <= PIECE
    assert b"".join(pieces).count(b"\n") == len(METRICS) * (MANY + 2)
    assert b'kvitto_objects{n="99999"} 99999\n' in pieces[len(pieces) // 2 - 1] + pieces[len(pieces) // 2]
    assert rounds > 20


@pytest.mark.parametrize(("bounds", "unit"), [(WORK_US, 1e-6), (SIZES, 1)])
def test_a_histogram_has_ascending_buckets_and_ends_with_all(bounds: tuple[int, ...], unit: float) -> None:
    values = Histogram(bounds)
    rng = random.Random(1)
    for _ in range(1000):
        values.add(rng.randrange(2 * bounds[-1]), 3)
    lines = histogram("name", "Text.", [('by="a"', values), ("", values)], unit)
    assert lines[:2] == ["# HELP name Text.", "# TYPE name histogram"]
    counts = [int(line.rpartition(" ")[2]) for line in lines if line.startswith('name_bucket{by="a",')]
    assert counts == sorted(counts) and len(counts) == len(bounds) + 1
    assert 'name_bucket{by="a",le="+Inf"} 3000' in lines
    assert 'name_count{by="a"} 3000' in lines and "name_count 3000" in lines


def test_bounds_of_sizes_are_written_as_rabbitmqs_dashboard_asks_for_them() -> None:
    lines = histogram("name", "Text.", [("", Histogram(SIZES))], 1)
    asked = ["100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf"]
    assert [line.split('"')[1] for line in lines if "_bucket" in line] == asked
