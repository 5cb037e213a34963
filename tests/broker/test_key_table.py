"""The table of keys against a dictionary."""

from __future__ import annotations

import tracemalloc
from collections import OrderedDict
from random import Random

import pytest

from kvitto.broker.queues.key_table import PAGE, SHARD, KeyTable


@pytest.mark.parametrize("capacity", [1, 2, 5, 1000, PAGE + 1, 4 * SHARD])
@pytest.mark.parametrize("spread", [1, 16, 1 << 64])
def test_it_finds_what_was_added_and_not_removed(capacity: int, spread: int) -> None:
    """`spread`: how many different values each half of a hash has; with few of them the slots collide."""
    rng = Random(f"{capacity} {spread}")
    table, model, offset = KeyTable(capacity), OrderedDict[tuple[int, int], tuple[int, int, int]](), 0
    halves = [(rng.randrange(spread), rng.randrange(1 << 64) if spread < 17 else rng.randrange(64)) for _ in range(300)]
    for _ in range(3000):
        low, high = rng.choice(halves)
        if rng.random() < 0.7:
            if (low, high) in model:
                table.remove(model.pop((low, high))[0])
            elif len(model) == capacity:
                table.remove(model.popitem(last=False)[1][0])
            offset += rng.randrange(1, 5)
            model[low, high] = table.add(low, high, offset, offset + 7), offset, offset + 7
        elif model and rng.random() < 0.5:
            table.remove(model.pop(rng.choice(list(model)))[0])
        low, high = rng.choice(halves)
        assert table.find(low, high) == model.get((low, high), (0,))[0]
        assert table.count == len(model)
        first = next(iter(model.values()), (0, 0, 0))
        assert table.oldest == first[0]
        if first[0]:
            assert (table.offset_of(first[0]), table.until_of(first[0])) == first[1:]


def test_it_grows_to_its_capacity() -> None:
    count = 3 * SHARD
    table = KeyTable(count)
    for i in range(count):
        table.add(i * 0x9E3779B97F4A7C15 % (1 << 64), i, i, 0)
    assert all(table.find(i * 0x9E3779B97F4A7C15 % (1 << 64), i) for i in range(count))
    assert not table.find(1, 1 << 40)


def test_entries_are_counted_once() -> None:
    table = KeyTable(100)
    numbers = [table.add(i, i, 10 * i, 0) for i in range(10)]
    assert table.count_below(25) == 3
    table.remove(numbers[3])
    table.remove(numbers[0])
    assert table.count_below(25) == 0
    assert table.count_below(1000) == 6
    table.add(50, 50, 2000, 0)
    assert table.count_below(3000) == 1
    assert table.count_below(3000) == 0


def test_a_start_adds_the_oldest_last() -> None:
    table = KeyTable(100)
    numbers = [table.add_oldest(i, i, 10 * i, 0) for i in (3, 2, 1)]
    assert (table.oldest, table.newest) == (numbers[2], numbers[0])
    assert table.count_below(25) == 2
    assert table.count_below(35) == 1


def test_a_table_for_millions_of_keys_begins_small() -> None:
    """Each queue took 3 MB from its declaration on, so 10,000 of them took 30 GB."""
    tracemalloc.start()
    tables = [KeyTable(10_000_000) for _ in range(10)]
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 10 * 5_000
    assert all(table.find(1, 1) == 0 for table in tables)


def test_it_finds_what_is_there_while_its_hash_tables_are_divided() -> None:
    rng, count = Random(5), 9 * SHARD
    table, model = KeyTable(count), dict[tuple[int, int], int]()
    for n in range(count):
        key = rng.randrange(1 << 64), rng.randrange(1 << 64)
        model[key] = table.add(*key, n + 1, 0)
        if n % 3 == 0:
            gone = rng.choice(list(model)) if n % 999 == 0 else key
            table.remove(model.pop(gone))
            assert not table.find(*gone)
        if n % 1500 == 0:
            assert all(table.find(*key) == i for key, i in model.items())
    assert all(table.find(*key) == i for key, i in model.items())
    assert table.count == len(model)
