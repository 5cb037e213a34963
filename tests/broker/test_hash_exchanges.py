"""Exchange types that choose one destination: x-consistent-hash, x-modulus-hash, x-random, x-local-random."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from math import log, sqrt
from random import Random
from time import process_time
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.routing.consistent_hash import FEW, KNOWN_MAX, WEIGHT_MAX, ConsistentHashIndex, hashed
from kvitto.broker.routing.exchange import Exchange, check_declare
from kvitto.broker.routing.headers import Hashed
from kvitto.broker.routing.index import PIECE_STEPS, at_once
from kvitto.broker.routing.walking import walk
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Table, Value

HASH = "x-consistent-hash"
NO_PROPERTIES = Properties()


class Sink:
    """Stands for a queue."""

    deleted = False
    fault = None

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


def sinks(n: int) -> list[Sink]:
    return [Sink(f"q{i}") for i in range(n)]


def bound(type_: str, dests: Iterable[object], weights: Iterable[int], arguments: Table | None = None) -> Exchange:
    exchange = Exchange("x", type_, arguments=arguments)
    for dest, weight in zip(dests, weights, strict=True):
        exchange.bind(dest, str(weight), {})
    return exchange


def to(exchange: Exchange, key: str = "", properties: Properties = NO_PROPERTIES) -> str:
    [found] = exchange.route(key, properties)
    return str(found.name)


def placed(exchange: Exchange, keys: Iterable[str]) -> list[str]:
    return [to(exchange, key) for key in keys]


def chi_square(counts: Counter[str], expected: dict[str, float]) -> float:
    """How many standard deviations the counts are from what is expected (Wilson and Hilferty's approximation)."""
    total = sum((counts[name] - n) ** 2 / n for name, n in expected.items())
    k = len(expected) - 1
    return float(((total / k) ** (1 / 3) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k)))


# -- x-consistent-hash: shares -------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 10, 100])
@pytest.mark.parametrize("kind", ["equal", "rising", "one heavy"])
def test_each_destination_gets_its_share(n: int, kind: str) -> None:
    """A goodness-of-fit test; the keys are given, so the result is always the same one."""
    shares = {"equal": [1] * n, "rising": list(range(1, n + 1)), "one heavy": [WEIGHT_MAX // 10] + [100] * (n - 1)}
    weights = shares[kind]
    queues, count = sinks(n), 20_000
    exchange = bound(HASH, queues, weights)
    counts = Counter(placed(exchange, (f"customer-{i}" for i in range(count))))
    expected = {q.name: count * w / sum(weights) for q, w in zip(queues, weights, strict=True)}
    assert abs(chi_square(counts, expected)) < 3.5


@pytest.mark.parametrize("keys", ["numbers", "short", "long"])
def test_shares_do_not_depend_on_what_keys_look_like(keys: str) -> None:
    texts = {
        "numbers": [str(i) for i in range(20_000)],
        "short": [chr(a) + chr(b) for a in range(32, 172) for b in range(32, 172)],
        "long": ["x" * 200 + str(i) for i in range(20_000)],
    }[keys]
    queues = sinks(7)
    counts = Counter(placed(bound(HASH, queues, [1] * 7), texts))
    assert abs(chi_square(counts, {q.name: len(texts) / 7 for q in queues})) < 3.5


# -- x-consistent-hash: stability ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 10, 100])
@pytest.mark.parametrize("weight", [1, 5])
def test_a_new_destination_takes_its_share_and_nothing_else_moves(n: int, weight: int) -> None:
    """The mark is 1.1 of the ideal. What moves, moves to the new one, so its share is what moves."""
    queues = sinks(n + 1)
    keys = [f"order-{i}" for i in range(30_000)]
    before = placed(bound(HASH, queues[:n], [2] * n), keys)
    after = placed(bound(HASH, queues, [2] * n + [weight]), keys)
    moved = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert {b for _, b in moved} == {queues[n].name}
    ideal = len(keys) * weight / (2 * n + weight)
    assert abs(len(moved) - ideal) < 4 * sqrt(ideal)
    if ideal > 1500:  # below that chance alone makes more than a tenth
        assert len(moved) <= 1.1 * ideal


def test_a_larger_weight_only_takes_and_a_smaller_one_only_gives() -> None:
    queues, keys = sinks(10), [f"order-{i}" for i in range(5000)]
    lighter, heavier = (bound(HASH, queues, [w] + [3] * 9) for w in (2, 6))
    for a, b in zip(placed(lighter, keys), placed(heavier, keys), strict=True):
        assert a == b or b == "q0"


@settings(deadline=None, max_examples=60)
@given(
    chosen=st.dictionaries(st.integers(0, 30), st.integers(1, WEIGHT_MAX), min_size=1, max_size=20),
    gone=st.dictionaries(st.integers(31, 60), st.integers(1, WEIGHT_MAX), max_size=10),
    seed=st.integers(0, 1 << 30),
)
def test_the_placement_is_a_function_of_names_and_weights(
    chosen: dict[int, int], gone: dict[int, int], seed: int
) -> None:
    """Bindings in any order, others that come and go, another process: none of that moves a key."""
    keys = [f"k{i}" for i in range(50)]
    expected = placed(bound(HASH, [Sink(f"q{i}") for i in chosen], chosen.values()), keys)
    rng = Random(seed)
    exchange, everything = Exchange("x", HASH), list((chosen | gone).items())
    rng.shuffle(everything)
    made = {i: Sink(f"q{i}") for i, _ in everything}
    for i, weight in everything:
        exchange.bind(made[i], str(weight), {})
    leaving = list(gone.items())
    rng.shuffle(leaving)
    for i, weight in leaving:
        assert exchange.unbind(made[i], str(weight), {})
    assert placed(exchange, keys) == expected


def naive(dests: dict[str, int], key: str) -> str:
    """Each destination with its own lot, by the formula of the ADR."""

    def score(name: str) -> float:
        seed = xxhash.xxh3_64_intdigest(f"queue {name}".encode())
        return dests[name] / -log((xxhash.xxh3_64_intdigest(key.encode(), seed) + 0.5) / 2**64)

    return max(dests, key=score)


@settings(deadline=None, max_examples=60)
@given(
    bindings=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["1", "2", "02"]), st.booleans()), max_size=20),
    removed=st.lists(st.integers(0, 19), max_size=20),
)
def test_of_several_bindings_the_first_one_counts(bindings: list[tuple[int, str, bool]], removed: list[int]) -> None:
    queues = sinks(6)
    exchange = Exchange("x", HASH)
    model: dict[tuple[int, str, bool], None] = {}
    for i, key, argument in bindings:
        assert exchange.bind(queues[i], key, {"a": 1} if argument else {}) == ((i, key, argument) not in model)
        model.setdefault((i, key, argument))
    for at in removed:
        if at < len(bindings):
            i, key, argument = bindings[at]
            there = exchange.unbind(queues[i], key, {"a": 1} if argument else {}) is not None
            assert there == (bindings[at] in model)
            model.pop(bindings[at], None)
    weights: dict[str, int] = {}
    for i, key, _ in model:
        weights.setdefault(f"q{i}", int(key))
    for n in range(20):
        expected = [naive(weights, f"k{n}")] if weights else []
        assert [dest.name for dest in exchange.route(f"k{n}", NO_PROPERTIES)] == expected


def test_an_exchange_is_another_destination_than_a_queue_of_that_name() -> None:
    queue, exchange = Sink("same"), Exchange("same", "fanout")
    index = Exchange("x", HASH)
    index.bind(queue, "1", {})
    index.bind(exchange, "1", {})
    found = [next(iter(index.route(f"k{i}", NO_PROPERTIES))) for i in range(400)]
    assert 120 < found.count(queue) < 280 and 120 < found.count(exchange) < 280


# -- x-consistent-hash: what is hashed -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hash-header", "x-hash-on"])
def test_a_header_decides(name: str) -> None:
    exchange = bound(HASH, sinks(8), [1] * 8, {name: "customer"})
    assert exchange.index.needs_properties
    places = [to(exchange, f"key-{i}", Properties(headers={"customer": str(i % 50), "n": i})) for i in range(500)]
    assert places == [places[i % 50] for i in range(500)] and len(set(places)) == 8
    by_key = bound(HASH, sinks(8), [1] * 8)
    assert places[:50] == placed(by_key, (str(i) for i in range(50))), "a text counts the same wherever it is"
    assert len({to(exchange, f"key-{i}", NO_PROPERTIES) for i in range(50)}) == 1, "without the header"
    assert len({to(exchange, f"key-{i}", Properties(headers={"customer": None})) for i in range(50)}) == 1


@pytest.mark.parametrize("name", ["correlation_id", "message_id", "timestamp"])
def test_a_property_decides(name: str) -> None:
    exchange = bound(HASH, sinks(8), [1] * 8, {"hash-property": name})
    assert exchange.index.needs_properties
    make: Any = int if name == "timestamp" else str
    places = [to(exchange, "key", Properties(**{name: make(i)})) for i in range(200)]
    assert places == placed(bound(HASH, sinks(8), [1] * 8), (str(i) for i in range(200)))
    assert len(set(places)) == 8


@pytest.mark.parametrize(
    "group",
    [
        ("a", b"a"),
        (1, 1.0),
        (1 << 40, float(1 << 40)),
        (True,),
        ("1",),
        ("True",),
        ([1, "a"], [1.0, b"a"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (datetime(2026, 1, 1, tzinfo=UTC), int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())),
        (Decimal("1.5"),),
        (float("nan"),),
    ],
    ids=repr,
)
def test_values_of_any_type_are_hashed(group: tuple[Value, ...]) -> None:
    assert len({hashed(value) for value in group}) == 1
    others: tuple[Value, ...] = ("other", 7, False, 1.25, [1], {"a": 1}, Decimal("2.5"))
    assert not {hashed(value) for value in others} & {hashed(value) for value in group}


def test_what_was_found_is_remembered_until_a_binding_changes() -> None:
    n = FEW * 2
    queues = sinks(n + 1)
    exchange = bound(HASH, queues[:n], [1] * n, {"hash-header": "h"})
    fresh = bound(HASH, queues[:n], [1] * n)
    values = [str(i) for i in range(KNOWN_MAX + 500)]
    for _ in range(2):
        for value in values:
            assert to(exchange, "", Properties(headers={"h": value})) == to(fresh, value)
    index = exchange.index
    assert isinstance(index, ConsistentHashIndex) and 0 < len(index._known) <= KNOWN_MAX
    exchange.bind(queues[n], "3", {})
    fresh.bind(queues[n], "3", {})
    assert [to(exchange, "", Properties(headers={"h": v})) for v in values[:2000]] == placed(fresh, values[:2000])


def test_values_whose_lot_is_extreme_are_routed() -> None:
    """One may be chosen for the name of a queue: the logarithm of 0 was an internal error."""
    exchange = bound(HASH, sinks(2), [1, 1], {"hash-header": "h"})
    chosen = bytes.fromhex("9d12d228772bfe0e")
    assert xxhash.xxh3_64_intdigest(chosen, xxhash.xxh3_64_intdigest(b"queue q0")) == 0
    assert to(exchange, "", Properties(headers={"h": chosen})) == "q1"


def test_long_values_are_not_remembered() -> None:
    """4,096 values of 100 KiB each took 400 MiB."""
    n = FEW * 2
    exchange = bound(HASH, sinks(n), [1] * n, {"hash-header": "h"})
    tracemalloc.start()
    for i in range(1000):
        to(exchange, "", Properties(headers={"h": f"{i}" * 1000}))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 500_000


@pytest.mark.parametrize("type_", [HASH, "x-modulus-hash", "x-random"])
def test_many_bindings_of_one_queue_are_removed_without_looking_at_the_others(type_: str) -> None:
    """Of 30,000 bindings each took half a millisecond, and all of them 10 seconds of pieces that were too long."""
    [queue] = sinks(1)
    times = []
    for n in (1_000, 30_000):
        exchange = Exchange("x", type_)
        for i in range(n):
            exchange.bind(queue, "5", {"i": i})
        began = process_time()
        for _ in range(500):
            exchange.pop(queue)
        times.append(process_time() - began)
    assert times[1] < 10 * times[0]


# -- x-consistent-hash: errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("", "The binding key must be an integer: <<>>"),
        ("a", 'The binding key must be an integer: <<"a">>'),
        ("1.0", 'The binding key must be an integer: <<"1.0">>'),
        (" 1", 'The binding key must be an integer: <<" 1">>'),
        ("1_0", 'The binding key must be an integer: <<"1_0">>'),
        ("٣", 'The binding key must be an integer: <<"٣">>'),
        ("1\n", 'The binding key must be an integer: <<"1\n">>'),
        ("0", "The binding key must be greater than 0"),
        ("000", "The binding key must be greater than 0"),
        ("-5", "The binding key must be greater than 0"),
        ("10001", "The binding key must not exceed 10000"),
        ("9" * 250, "The binding key must not exceed 10000"),
    ],
)
def test_a_binding_key_is_a_weight(key: str, text: str) -> None:
    exchange = Exchange("x", HASH)
    with pytest.raises(ChannelError) as error:
        exchange.bind(Sink("q"), key, {})
    assert (error.value.code, error.value.reply_text) == (PRECONDITION_FAILED, f"PRECONDITION_FAILED - {text}")
    assert exchange.unused and not list(exchange.route("k", NO_PROPERTIES))


@pytest.mark.parametrize("key", ["1", "+7", "007", "10000"])
def test_weights_in_all_their_forms(key: str) -> None:
    exchange = Exchange("x", HASH)
    queue = Sink("q")
    assert exchange.bind(queue, key, {}) and to(exchange, "k") == "q"
    assert exchange.unbind(queue, key, {}) and not list(exchange.route("k", NO_PROPERTIES))
    assert exchange.index.steps == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hash-header": "a", "hash-property": "message_id"}, "hash-header and hash-property are mutually exclusive"),
        ({"x-hash-on": "a", "hash-property": "message_id"}, "hash-header and hash-property are mutually exclusive"),
        ({"hash-property": "app_id"}, "Unsupported property: app_id"),
        ({"hash-property": "__class__"}, "Unsupported property: __class__"),
        ({"hash-header": 5}, "invalid type 'signedint' for arg 'hash-header' in exchange 'x' in vhost '/'"),
        ({"hash-header": "a", "x-hash-on": "b"}, "name different headers"),
    ],
)
def test_arguments_that_cannot_be_used(arguments: Table, text: str) -> None:
    with pytest.raises(ChannelError) as error:
        check_declare("x", "/", HASH, arguments)
    assert error.value.code == PRECONDITION_FAILED and text in error.value.reply_text


def test_both_spellings_together_and_an_algorithm_are_taken() -> None:
    check_declare("x", "/", HASH, {"hash-header": "a", "x-hash-on": "a", "x-algorithm": "jump"})


# -- x-consistent-hash: size ---------------------------------------------------------------------------------


def test_ten_thousand_heavy_bindings() -> None:
    """They take little memory, and a search through them pauses."""
    queues = sinks(10_000)
    exchange = Exchange("x", HASH)
    tracemalloc.start()
    for queue in queues:
        exchange.index.add(str(WEIGHT_MAX), queue, Hashed({}))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 6_000_000
    assert exchange.steps < 11_000
    steps = exchange.index.search("key", NO_PROPERTIES)
    pauses = 0
    while True:
        try:
            next(steps)
            pauses += 1
        except StopIteration as end:
            [found] = end.value
            break
    assert pauses >= 10_000 // PIECE_STEPS
    weights = {queue.name: WEIGHT_MAX for queue in queues}
    assert found.name == naive(weights, "key")
    for queue in queues:
        exchange.index.remove(str(WEIGHT_MAX), queue, b"")
    assert exchange.steps == 0


def test_bindings_change_while_a_search_pauses() -> None:
    queues = sinks(PIECE_STEPS * 2)
    exchange = bound(HASH, queues, [i % 5 + 1 for i in range(len(queues))])
    before = to(exchange, "key")
    steps = exchange.index.search("key", NO_PROPERTIES)
    next(steps)
    for i, queue in enumerate(queues):
        exchange.unbind(queue, str(i % 5 + 1), {})
    [found] = at_once(steps)
    assert found.name == before, "the search goes on with what was bound when it began"


# -- x-modulus-hash ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab"), st.booleans()), max_size=30))
def test_modulus_hash_orders_the_destinations_of_its_bindings_by_name(changes: list[tuple[int, str, bool]]) -> None:
    queues = sinks(10)
    exchange, model = Exchange("x", "x-modulus-hash"), set[tuple[int, str]]()
    for i, key, add in changes:
        if add:
            exchange.bind(queues[i], key, {})
            model.add((i, key))
        else:
            exchange.unbind(queues[i], key, {})
            model.discard((i, key))
    names = sorted(queues[i].name for i, _ in model)
    for n in range(20):
        expected = [names[xxhash.xxh3_64_intdigest(f"k{n}".encode()) % len(names)]] if names else []
        assert [dest.name for dest in exchange.route(f"k{n}", NO_PROPERTIES)] == expected
    assert not exchange.index.needs_properties


def test_modulus_hash_gives_equal_shares() -> None:
    queues = sinks(10)
    counts = Counter(placed(bound("x-modulus-hash", queues, range(10)), (str(i) for i in range(40_000))))
    assert abs(chi_square(counts, {q.name: 4000.0 for q in queues})) < 3.5


# -- x-random, x-local-random --------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    type_=st.sampled_from(["x-random", "x-local-random"]),
    changes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans()), max_size=40),
)
def test_random_exchanges_choose_among_what_is_bound(type_: str, changes: list[tuple[int, int, bool]]) -> None:
    queues = sinks(5)
    exchange, model = Exchange("x", type_), set[tuple[int, int]]()
    for i, argument, add in changes:
        if add:
            exchange.bind(queues[i], "", {"n": argument})
            model.add((i, argument))
        else:
            exchange.unbind(queues[i], "", {"n": argument})
            model.discard((i, argument))
        found = [dest.name for dest in exchange.route("any", NO_PROPERTIES)]
        assert len(found) == min(len(model), 1) and {*found} <= {queues[i].name for i, _ in model}
    assert exchange.index.needs_properties


def test_each_binding_has_the_same_chance() -> None:
    queues, count = sinks(4), 40_000
    exchange = Exchange("x", "x-random")
    for i, queue in enumerate(queues):
        for n in range(i + 1):
            exchange.bind(queue, str(n), {})
    counts = Counter(placed(exchange, [""] * count))
    # chance differs from run to run: one run in a hundred million is further away than this
    assert abs(chi_square(counts, {q.name: count * (i + 1) / 10 for i, q in enumerate(queues)})) < 6


def test_local_random_takes_no_binding_keys() -> None:
    with pytest.raises(ChannelError) as error:
        Exchange("x", "x-local-random").bind(Sink("q"), "a", {})
    assert error.value.reply_text == "PRECONDITION_FAILED - Non empty binding 'a' key not permitted"


# -- all of them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", [HASH, "x-modulus-hash", "x-random"])
def test_a_message_with_further_keys_is_routed_once(type_: str) -> None:
    """CC and BCC add keys, and no copies, as with RabbitMQ."""
    exchange = bound(type_, sinks(20), [1] * 20)
    for n in range(50):
        found = at_once(walk(exchange, (f"k{n}", "cc", "bcc"), NO_PROPERTIES, lambda _: None, None))
        assert len(found.queues) == 1
        if type_ != "x-random":
            assert found.queues[0].name == to(exchange, f"k{n}")
