"""Exchange types, bindings, and the walk from exchange to exchange, each against a naive model."""

import math
from collections.abc import Hashable, Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvitto.base.errors import ChannelError
from kvitto.broker.administration.equivalence import type_name
from kvitto.broker.routing import headers
from kvitto.broker.routing.canonical import canonical
from kvitto.broker.routing.exchange import Binding, Exchange, check_declare, check_equivalent
from kvitto.broker.routing.headers import identity
from kvitto.broker.routing.index import at_once
from kvitto.broker.routing.walking import Lookup, walk
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Table, Timestamp, Value


class Sink:
    """Stands for a queue."""

    deleted = False
    fault = None

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


Q = [Sink(f"q{i}") for i in range(4)]


def routed(exchange: Exchange, key: str = "", headers: Table | None = None) -> set[str]:
    found = list(exchange.route(key, Properties(headers=headers)))
    assert len(found) == len(set(found))
    return {dest.name for dest in found}


def resolve(
    exchange: Exchange, key: str, headers: Table | None, lookup: Lookup, more: Sequence[str] = ()
) -> tuple[list[Sink], bool]:
    found = at_once(walk(exchange, (key, *more), Properties(headers=headers), lookup, None))
    return found.queues, found.dynamic


def popped(exchange: Exchange, dest: Sink) -> list[Binding]:
    found = []
    while exchange.leads_to(dest):
        found.append(exchange.pop(dest))
    return found


# -- direct and fanout --------------------------------------------------------------------------------------


def test_direct_routes_by_equal_key() -> None:
    exchange = Exchange("x", "direct")
    assert exchange.bind(Q[0], "a", {}) and exchange.bind(Q[1], "a", {}) and exchange.bind(Q[1], "b", {})
    assert routed(exchange, "a") == {"q0", "q1"}
    assert routed(exchange, "b") == {"q1"}
    assert routed(exchange, "a.b") == routed(exchange, "") == set()
    assert not exchange.index.needs_properties


def test_fanout_routes_to_all_once() -> None:
    exchange = Exchange("x", "fanout")
    for key in ("a", "b"):
        exchange.bind(Q[0], key, {})
    exchange.bind(Q[1], "", {})
    assert routed(exchange, "whatever") == {"q0", "q1"}
    exchange.unbind(Q[0], "a", {})
    assert routed(exchange) == {"q0", "q1"}
    exchange.unbind(Q[0], "b", {})
    assert routed(exchange) == {"q1"}


def test_bindings_are_told_apart_by_arguments() -> None:
    exchange = Exchange("x", "direct")
    assert exchange.bind(Q[0], "a", {})
    assert not exchange.bind(Q[0], "a", {})
    assert exchange.bind(Q[0], "a", {"n": [1, {"m": b"x"}]})
    assert not exchange.bind(Q[0], "a", {"n": [1, {"m": b"x"}]})
    assert [(b.source, b.dest, b.routing_key, b.arguments) for b in exchange.bindings()] == [
        (exchange, Q[0], "a", {}),
        (exchange, Q[0], "a", {"n": [1, {"m": b"x"}]}),
    ]
    assert not exchange.unbind(Q[0], "b", {}) and not exchange.unbind(Q[1], "a", {})
    assert exchange.unbind(Q[0], "a", {})
    assert routed(exchange, "a") == {"q0"} and len(list(exchange.bindings())) == 1
    assert not exchange.unbind(Q[0], "a", {})
    assert exchange.unbind(Q[0], "a", {"n": [1, {"m": b"x"}]})
    assert exchange.unused
    assert routed(exchange, "a") == set()


@pytest.mark.parametrize("type_", ["direct", "fanout", "topic", "headers"])
def test_pop_takes_the_bindings_of_one_destination(type_: str) -> None:
    exchange = Exchange("x", type_)
    for queue in Q[:2]:
        for key in ("a.b", "#", "*.b"):
            exchange.bind(queue, key, {})
            exchange.bind(queue, key, {"h": 1})
    removed = popped(exchange, Q[0])
    assert len(removed) == 6 and {b.dest for b in removed} == {Q[0]}
    assert not exchange.leads_to(Q[0]) and exchange.last_dest() is Q[1]
    assert routed(exchange, "a.b", {"h": 1}) == {"q1"}
    popped(exchange, Q[1])
    assert exchange.unused and routed(exchange, "a.b", {"h": 1}) == set()


# -- topic --------------------------------------------------------------------------------------------------

WORDS = ["a", "b", "", "*", "#"]


def naive_topic(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(naive_topic(pattern[1:], words[i:]) for i in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and naive_topic(pattern[1:], words[1:])


def naive_words(key: str) -> list[str]:
    return key.split(".") if key else []


def keys(words: Iterable[str], most: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(list(words)), max_size=most).map(".".join)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", ["", ], ["a", "."]),
        ("*", ["a"], ["", "a.b"]),
        ("#", ["", "a", "a.b", ".", "..."], []),
        ("a.#", ["a", "a.b", "a.b.c", "a."], ["", "b", "b.a"]),
        ("#.a", ["a", "b.a", "a.a", ".a"], ["", "a.b"]),
        ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c"]),
        ("*.#.*", ["a.b", "a.b.c", "."], ["", "a"]),
        ("#.*", ["a", "a.b"], [""]),
        ("a.#.#.b", ["a.b", "a.x.b"], ["a", "b"]),
        ("a.*", ["a.*", "a.#", "a."], ["a"]),
        ("a*.b", ["a*.b"], ["ax.b"]),
        ("flights.*.JFK", ["flights.AA.JFK"], ["flights.AA.LGA"]),
    ],
)  # fmt: skip
def test_topic_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    exchange = Exchange("x", "topic")
    exchange.bind(Q[0], pattern, {})
    assert [key for key in yes if not routed(exchange, key)] == []
    assert [key for key in no if routed(exchange, key)] == []


@settings(deadline=None, max_examples=300)
@given(
    patterns=st.lists(st.tuples(st.sampled_from(Q), keys(WORDS, 6)), max_size=8),
    removed=st.sets(st.integers(0, 7)),
    routing_keys=st.lists(keys(WORDS, 6), min_size=1, max_size=6),
)
def test_topic_trie_agrees_with_the_naive_matcher(
    patterns: list[tuple[Sink, str]], removed: set[int], routing_keys: list[str]
) -> None:
    exchange = Exchange("x", "topic")
    for queue, pattern in patterns:
        exchange.bind(queue, pattern, {})
    left = set(patterns)
    for i in removed & set(range(len(patterns))):
        assert (exchange.unbind(patterns[i][0], patterns[i][1], {}) is not None) == (patterns[i] in left)
        left.discard(patterns[i])
    for key in routing_keys:
        expected = {q.name for q, p in left if naive_topic(naive_words(p), naive_words(key))}
        assert routed(exchange, key) == expected
    for queue in Q:
        popped(exchange, queue)
    assert exchange.index._root.empty  # type: ignore[attr-defined]


def test_w8_a_hostile_pattern_costs_bounded_work() -> None:
    exchange = Exchange("x", "topic")
    exchange.bind(Q[0], "#.a." * 63 + "b", {})
    exchange.bind(Q[1], "#." * 127 + "a", {})
    exchange.bind(Q[2], "*.#." * 63 + "#", {})
    key = ".".join("a" * 128)  # backtracking would not come back from this in our lifetime
    assert routed(exchange, key) == {"q1", "q2"}
    assert routed(exchange, key + ".b") == {"q0", "q2"}


def test_many_topic_bindings() -> None:
    exchange = Exchange("x", "topic")
    queues = [Sink(str(i)) for i in range(5000)]
    for i, queue in enumerate(queues):
        exchange.bind(queue, f"flights.{i}.*", {})
        exchange.bind(queue, f"flights.{i}.#", {})
    for i in range(0, 5000, 7):
        assert routed(exchange, f"flights.{i}.JFK") == {str(i)}


# -- headers ------------------------------------------------------------------------------------------------


def naive_headers(arguments: Table, headers: Table) -> bool:
    mode = arguments.get("x-match", "all")
    assert isinstance(mode, str)
    results = []
    for name, want in arguments.items():
        if name == "x-match" or (name.startswith("x-") and not mode.endswith("-with-x")):
            continue
        results.append(
            name in headers and (want is None or (want == headers[name] and type(want) is type(headers[name])))
        )
    return any(results) if mode.startswith("any") else all(results)


NAMES = ["a", "b", "x-c", "x-d", "x", "x-match"]
VALUES: st.SearchStrategy[Value] = st.sampled_from([None, True, False, 0, 1, 2, "1", "", "text"])
TABLES: st.SearchStrategy[Table] = st.dictionaries(st.sampled_from(NAMES[:-1]), VALUES, max_size=4)


@settings(deadline=None, max_examples=300)
@given(
    bindings=st.lists(
        st.tuples(st.sampled_from(Q), TABLES, st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"])),
        max_size=6,
    ),
    headers=st.one_of(st.none(), TABLES),
    removed=st.sets(st.integers(0, 5)),
)
def test_headers_exchange_agrees_with_the_naive_matcher(
    bindings: list[tuple[Sink, Table, str | None]], headers: Table | None, removed: set[int]
) -> None:
    exchange = Exchange("x", "headers")
    all_arguments = [{**table, "x-match": mode} if mode else table for _, table, mode in bindings]
    for (queue, _, _), arguments in zip(bindings, all_arguments, strict=True):
        exchange.bind(queue, "", arguments)
    for i in removed & set(range(len(bindings))):
        exchange.unbind(bindings[i][0], "", all_arguments[i])
    expected = {b.dest.name for b in exchange.bindings() if naive_headers(b.arguments, headers or {})}
    assert routed(exchange, "", headers) == expected
    assert exchange.index.needs_properties


def test_header_values_are_equal_as_in_rabbitmq() -> None:
    same: list[tuple[Value, Value]] = [
        (1, 1.0),
        ("text", b"text"),
        (datetime(2020, 1, 1, tzinfo=UTC), Timestamp(1577836800)),
        (Decimal("1.50"), Decimal("1.50")),
        ([1, ["a"]], [1, ["a"]]),
        ({"a": {"b": 1}}, {"a": {"b": 1}}),
        (None, "anything"),
    ]
    different: list[tuple[Value, Value]] = [
        (1, True),
        (0, False),
        ("1", 1),
        ([1], [True]),
        (b"\xff", "\ufffd"),
        ("", None),
        ({"a": 1}, {"a": 1, "b": 2}),
    ]
    for pairs, expected in ((same, {"q0"}), (different, set())):
        for want, got in pairs:
            exchange = Exchange("x", "headers")
            exchange.bind(Q[0], "", {"h": want})
            assert routed(exchange, "", {"h": got}) == expected, (want, got)


@pytest.mark.parametrize("mode", ["", "ALL", "some", 1, None, ["all"]])
def test_an_unknown_x_match_is_refused(mode: Value) -> None:
    exchange = Exchange("x", "headers")
    with pytest.raises(ChannelError, match="Invalid x-match field") as caught:
        exchange.bind(Q[0], "", {"x-match": mode})
    assert caught.value.code == 406
    assert exchange.unused
    assert Exchange("y", "direct").bind(Q[0], "", {"x-match": mode})


# -- the walk -----------------------------------------------------------------------------------------------

EDGE = st.tuples(st.integers(0, 3), st.integers(0, 7), st.sampled_from(["a", "b"]))


def naive_walk(start: int, edges: set[tuple[int, int, str]], alternates: list[int | None], key: str) -> set[int]:
    """Exchanges are 0..3, queues 4..7; an alternate of 9 does not exist. Grows the set until nothing changes."""
    reached = {start}
    while True:
        more = set(reached)
        for exchange in [r for r in reached if r < 4]:
            dests = {dest for source, dest, bound in edges if source == exchange and bound == key}
            alternate = alternates[exchange]
            if not dests and alternate is not None and alternate < 4:
                dests = {alternate}
            more |= dests
        if more == reached:
            return {r for r in reached if r >= 4}
        reached = more


@settings(deadline=None, max_examples=300)
@given(
    edges=st.sets(EDGE, max_size=14),
    alternates=st.lists(st.sampled_from([None, 0, 1, 2, 3, 9]), min_size=4, max_size=4),
    key=st.sampled_from(["a", "b"]),
)
def test_resolve_agrees_with_a_naive_graph_walk(
    edges: set[tuple[int, int, str]], alternates: list[int | None], key: str
) -> None:
    exchanges = [
        Exchange(str(i), "direct", arguments={} if to is None else {"alternate-exchange": str(to)})
        for i, to in enumerate(alternates)
    ]
    dests = [*exchanges, *Q]
    for source, dest, bound in edges:
        exchanges[source].bind(dests[dest], bound, {})
    found, dynamic = resolve(exchanges[0], key, None, {e.name: e for e in exchanges}.get)
    assert len(found) == len(set(found)) and not dynamic
    assert set(found) == {Q[i - 4] for i in naive_walk(0, edges, alternates, key)}


def nowhere(_: str) -> None:
    return None


def test_one_copy_per_queue_however_many_bindings_match() -> None:
    source, fanout = Exchange("s", "topic"), Exchange("f", "fanout")
    source.bind(Q[0], "#", {})
    source.bind(Q[0], "a.*", {})
    source.bind(fanout, "a.b", {})
    fanout.bind(Q[0], "", {})
    fanout.bind(Q[1], "", {})
    found, _ = resolve(source, "a.b", None, nowhere)
    assert sorted(q.name for q in found) == ["q0", "q1"]


def test_an_exchange_that_leads_nowhere_still_counts_as_a_match() -> None:
    source = Exchange("s", "direct", arguments={"alternate-exchange": "alt"})
    empty, alternate = Exchange("e", "direct"), Exchange("alt", "fanout")
    alternate.bind(Q[0], "", {})
    source.bind(empty, "a", {})
    assert resolve(source, "a", None, {"alt": alternate}.get) == ([], False)
    assert resolve(source, "b", None, {"alt": alternate}.get) == ([Q[0]], False)


def test_the_result_is_dynamic_once_a_headers_exchange_was_asked() -> None:
    source, headers = Exchange("s", "direct"), Exchange("h", "headers")
    source.bind(headers, "a", {})
    headers.bind(Q[0], "", {"n": 1})
    assert resolve(source, "a", {"n": 1}, nowhere) == ([Q[0]], True)
    assert resolve(source, "a", None, nowhere) == ([], True)
    assert resolve(source, "b", {"n": 1}, nowhere) == ([], False)


def test_more_keys_route_like_the_first_and_ask_the_alternate_only_if_none_matches() -> None:
    source = Exchange("s", "direct", arguments={"alternate-exchange": "alt"})
    alternate = Exchange("alt", "direct")
    source.bind(Q[0], "a", {})
    source.bind(Q[1], "b", {})
    alternate.bind(Q[2], "c", {})
    lookup = {"alt": alternate}.get
    assert resolve(source, "a", None, lookup, ["b", "a"])[0] == [Q[0], Q[1]]
    assert resolve(source, "c", None, lookup, ["b"])[0] == [Q[1]]
    assert resolve(source, "x", None, lookup, ["c"])[0] == [Q[2]]


# -- declaring ----------------------------------------------------------------------------------------------


def refusal(call: object) -> str:
    assert callable(call)
    with pytest.raises(ChannelError) as caught:
        call()
    assert caught.value.code == 406
    return caught.value.text


def test_declare_refuses_what_cannot_be() -> None:
    check_declare("x", "/", "topic", {"alternate-exchange": "y", "other": 1})
    assert refusal(lambda: check_declare("x", "/", "nonsense", {})) == "invalid exchange type 'nonsense'"
    text = "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'x' in vhost '/'"
    assert refusal(lambda: check_declare("x", "/", "topic", {"alternate-exchange": 5})) == text


def test_d1_redeclaring_an_exchange_with_other_properties() -> None:
    exchange = Exchange("x", "direct", arguments={"alternate-exchange": "y", "note": 1})

    def again(
        type_: str = "direct", durable: bool = True, auto_delete: bool = False, internal: bool = False, **more: str
    ) -> None:
        check_equivalent(exchange, "/", type_, durable, auto_delete, internal, {"alternate-exchange": "y", **more})

    again()
    again(note="only alternate-exchange is compared")
    where = "for exchange 'x' in vhost '/': received"
    assert refusal(lambda: again("fanout")) == f"inequivalent arg 'type' {where} 'fanout' but current is 'direct'"
    assert refusal(lambda: again(durable=False)) == f"inequivalent arg 'durable' {where} 'false' but current is 'true'"
    assert "'auto_delete'" in refusal(lambda: again(auto_delete=True))
    assert "'internal'" in refusal(lambda: again(internal=True))
    text = refusal(lambda: check_equivalent(exchange, "/", "direct", True, False, False, {"alternate-exchange": "z"}))
    assert text == f"inequivalent arg 'alternate-exchange' {where} 'z' but current is 'y'"
    text = refusal(lambda: check_equivalent(exchange, "/", "direct", True, False, False, {}))
    assert text == f"inequivalent arg 'alternate-exchange' {where} none but current is the value 'y' of type 'longstr'"


def test_type_names_are_those_of_rabbitmq() -> None:
    values: list[Value] = [None, True, 1, 1 << 40, 1.5, "s", b"b", Decimal(1), [], {}, Timestamp(1), datetime.now(UTC)]
    names = "void bool signedint long double longstr binary decimal array table timestamp timestamp"
    assert [type_name(value) for value in values] == names.split()


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.sampled_from([0.0, -0.0, 1.0, 1.5, float("nan"), float("inf"), 1e300]),
        st.sampled_from(["", "a", "1", b"a", b"\xff"]),
        st.sampled_from([Decimal("1.0"), Decimal("1.00"), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), Timestamp(1)]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
    ),
    max_leaves=5,
)
TABLES = st.dictionaries(st.sampled_from(["a", "b", "x-match"]), VALUES, max_size=3)


def comparable(value: Value) -> Hashable:
    """Two of these are equal where RabbitMQ treats the values as equal."""
    match value:
        case bool():
            return (bool, value)
        case float() if math.isnan(value):
            return (float, "nan")
        case bytes():
            return value.decode("utf-8", "surrogateescape")
        case datetime():
            return int(value.timestamp())
        case Decimal():
            return (Decimal, value.as_tuple())
        case list():
            return (list, tuple(comparable(v) for v in value))
        case dict():
            return (dict, frozenset((k, comparable(v)) for k, v in value.items()))
    return value


@given(VALUES, VALUES)
def test_canonical_bytes_are_equal_exactly_for_equal_values(one: Value, other: Value) -> None:
    assert (canonical(one) == canonical(other)) == (comparable(one) == comparable(other))
    assert (canonical([one]) == canonical([other])) == (comparable(one) == comparable(other))


@pytest.mark.parametrize(
    "number", [-(1 << 63), (1 << 63) - 1, 1 << 63, 1 << 70, -(1 << 63) - 1, 1 << 53, (1 << 53) + 1]
)
def test_long_integers_are_equal_to_themselves_alone(number: int) -> None:
    assert len({canonical(number + more) for more in (-1, 0, 1)}) == 3
    assert (canonical(float(number)) == canonical(number)) == (
        float(number) == number and -(1 << 63) <= number < 1 << 63
    )


@settings(max_examples=500)
@given(TABLES, TABLES)
def test_arguments_are_one_binding_exactly_if_they_are_equal(one: Table, other: Table) -> None:
    assert (identity(one) == identity(other)) == (comparable(one) == comparable(other))
    assert identity(one) == identity(dict(reversed(one.items())))


def test_the_identity_of_nested_arguments_takes_time_in_proportion_to_their_size() -> None:
    """The quotes in a name doubled it in each level around it: one bind with 32 levels ended the broker."""
    nested: Value = "a'\"b"
    for _ in range(32):
        nested = {"k'\"": nested}
    assert len(canonical(nested)) < 3000
    assert identity({"a": nested}) != identity({"a": {"k'\"": nested}})


def test_the_arguments_of_a_binding_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A headers exchange read them three times to make a binding, and once to take it away with its destination: 20 ms for 128 KiB."""
    read: list[Value] = []

    def counting(value: Value) -> bytes:
        read.append(value)
        return canonical(value)

    monkeypatch.setattr(headers, "canonical", counting)
    for kind in ("headers", "x-consistent-hash", "direct"):
        exchange, queue = Exchange("x", kind), Exchange("d", "fanout")
        read.clear()
        assert exchange.bind(queue, "1", {"large": "L" * 1000})
        assert read.count("L" * 1000) == 1
        exchange.pop(queue)
        assert read.count("L" * 1000) == 1 and exchange.unused
