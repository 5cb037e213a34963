"""Filters of stream consumers: which messages match, what is skipped and at what cost, offsets, restarts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvitto.base.errors import ChannelError
from kvitto.base.limits import FILTERS_MAX
from kvitto.broker.queues import filters
from kvitto.broker.queues.filters import InvalidFilter, filter_of
from kvitto.broker.queues.stream import Stream
from kvitto.store import stream as stream_store
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Table
from tests.broker.test_stream import Follower, stream
from tests.support.harness import BrokerHarness, address

VALUE = filters.VALUE


def put(harness: BrokerHarness, *headers: Table | None, name: str = "s") -> None:
    """One message for each, with its index among all messages as the body; all in one batch."""
    queue = harness.queue(name)
    for each in headers:
        queue.append_bytes(address(name), Properties(headers=each).encode(), b"%d" % queue.next, -1, 0)
    harness.turn()


def run(harness: BrokerHarness) -> None:
    """Until the stream has looked at everything."""
    harness.settle_down()
    for _ in range(5000):
        if not harness.broker.late:
            return
        harness.turn()
    raise AssertionError("the filter never comes to an end")


def reached(follower: Follower) -> int:
    assert follower.progress is not None
    return int(follower.progress.next)


def value(*texts: str) -> list[Table | None]:
    return [{VALUE: text} for text in texts]


# -- what matches --------------------------------------------------------------------------------------------

MESSAGES: dict[str, Table | None] = {
    "a": {VALUE: "a"},
    "b": {VALUE: "b"},
    "a,b": {VALUE: "a,b"},
    "none": None,
    "x1": {"x": 1},
    "a x1": {VALUE: "a", "x": 1},
}


@pytest.mark.parametrize(
    ("arguments", "matching"),
    [
        ({}, "a|b|a,b|none|x1|a x1"),
        ({"x-stream-filter": None}, "a|b|a,b|none|x1|a x1"),
        ({"x-stream-filter": []}, "a|b|a,b|none|x1|a x1"),
        ({"x-stream-match-unfiltered": True}, "a|b|a,b|none|x1|a x1"),
        ({"x-stream-filter": "a"}, "a|a,b|a x1"),
        ({"x-stream-filter": b"a"}, "a|a,b|a x1"),
        ({"x-stream-filter": "c"}, ""),
        ({"x-stream-filter": ["a", "b"]}, "a|b|a,b|a x1"),
        ({"x-stream-filter": "a, b"}, "a|b|a,b|a x1"),
        ({"x-stream-filter": "a", "x-stream-match-unfiltered": True}, "a|a,b|none|x1|a x1"),
        ({"x-stream-filter": "a", "x-stream-match-unfiltered": False}, "a|a,b|a x1"),
        ({"x-stream-filter": ["a", "b"], "x-filter-match-type": "all"}, "a,b"),
        ({"x-stream-filter": ["a", "b"], "x-filter-match-type": "ANY"}, "a|b|a,b|a x1"),
        ({"x-stream-filter": {"x": 1}}, "x1|a x1"),
        ({"x-stream-filter": {"x": "1"}}, "x1|a x1"),
        ({"x-stream-filter": {"x": 2}}, ""),
        ({"x-stream-filter": {"x": 1, "x-stream-filter": "a"}}, "a x1"),
        ({"x-stream-filter": ["a", {"x": 1}]}, "a x1"),
        ({"x-stream-filter": ["b", {"x": 1}], "x-filter-match-type": "any"}, "b|a,b|x1|a x1"),
        ({"x-stream-filter": {"x": 1, "y": 2}, "x-filter-match-type": "any"}, "x1|a x1"),
        ({"x-stream-filter": {"x": 1}, "x-stream-match-unfiltered": True}, "none|x1|a x1"),
    ],
    ids=repr,
)
def test_which_messages_match(arguments: dict[str, Any], matching: str) -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    put(harness, *MESSAGES.values())
    harness.settle_down()
    follower = Follower(queue, x_stream_offset="first", **arguments)
    run(harness)
    names = list(MESSAGES)
    assert "|".join(names[offset] for offset in follower.offsets) == matching


@pytest.mark.parametrize(
    ("header", "wanted", "same"),
    [
        ("a", "a", True),
        (b"a", "a", True),
        (5, "5", True),
        (True, "true", True),
        (1, "true", False),
        (5.0, "5", False),
        (["a"], "a", False),
        ("", "", True),
        ("ä", "ä", True),
        ("a" * 200, "a" * 200, True),
        ("ab", "a", False),
        ("A", "a", False),
    ],
    ids=repr,
)
def test_values_are_compared_as_texts(header: Any, wanted: str, same: bool) -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    put(harness, {VALUE: header})
    harness.settle_down()
    follower = Follower(queue, x_stream_offset="first", x_stream_filter=wanted)
    by_header = filter_of({"x-stream-filter": {"h": wanted}})
    run(harness)
    assert (follower.offsets == [0]) == same
    assert by_header is not None and by_header.matches({"h": header}) == same


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"x-stream-filter": 5}, "x-stream-filter"),
        ({"x-stream-filter": ["a", 5]}, "x-stream-filter"),
        ({"x-stream-filter": {"x": [1]}}, "x-stream-filter"),
        ({"x-stream-filter": {"geo-bbox": {}}}, "x-stream-filter"),
        ({"x-stream-filter": [str(i) for i in range(FILTERS_MAX + 1)]}, "x-stream-filter"),
        ({"x-stream-filter": "a", "x-stream-match-unfiltered": "yes"}, "x-stream-match-unfiltered"),
        ({"x-stream-filter": "a", "x-filter-match-type": "some"}, "x-filter-match-type"),
        ({"x-stream-filter": "a", "x-filter-match-type": 1}, "x-filter-match-type"),
    ],
    ids=repr,
)
def test_arguments_that_are_no_filter(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidFilter) as error:
        filter_of(arguments)
    assert error.value.name == name
    harness = BrokerHarness()
    with pytest.raises(ChannelError) as refused:
        stream(harness).start_reading("tag", True, arguments)
    assert refused.value.code == 406 and f"invalid arg '{name}' for queue 's' in vhost '/'" in refused.value.text


def test_a_text_elsewhere_in_a_message_is_no_match() -> None:
    """The search through the bytes of a batch finds candidates only."""
    harness = BrokerHarness()
    queue = stream(harness)
    nested: Table = {
        "t": {VALUE: "wanted"},
        "text": f"{VALUE}S\0\0\0\6wanted",
        "wanted": "wanted",
        VALUE + "2": "wanted",
    }
    put(harness, nested, {VALUE: "wanted2"}, {VALUE: "unwanted"}, {VALUE: "wanted"}, {VALUE: "w"})
    put(harness, {VALUE: "want"}, {"ed": "wanted"}, {VALUE: "wanted"})
    harness.settle_down()
    follower = Follower(queue, x_stream_offset="first", x_stream_filter="wanted")
    run(harness)
    assert follower.offsets == [3, 7]


# -- a model -------------------------------------------------------------------------------------------------

TEXTS = ["a", "b", "c", "a,b", "12"]
HEADERS = st.one_of(
    st.none(),
    st.fixed_dictionaries({VALUE: st.sampled_from([*TEXTS, 12])}),
    st.fixed_dictionaries({"n": st.integers(0, 2)}, optional={VALUE: st.sampled_from(TEXTS), "other": st.just("a")}),
)
WANTED = st.fixed_dictionaries(
    {
        "x-stream-filter": st.one_of(
            st.sampled_from(TEXTS),
            st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3),
            st.lists(st.one_of(st.sampled_from(["a", "b"]), st.just({"n": 1}), st.just({"n": 2, "other": "a"}))),
        )
    },
    optional={
        "x-stream-match-unfiltered": st.booleans(),
        "x-filter-match-type": st.sampled_from(["any", "all"]),
    },
)


def wants(arguments: dict[str, Any]) -> Callable[[Table | None], bool]:
    """The same once more, from the page that describes it."""
    given = arguments["x-stream-filter"]
    parts = given if isinstance(given, list) else [given]
    texts = [t for part in parts if isinstance(part, str) for t in part.split(",")]
    pairs = [pair for part in parts if isinstance(part, dict) for pair in part.items()]
    how = arguments.get("x-filter-match-type")

    def wanted(headers: Table | None) -> bool:
        found = headers or {}
        if not texts and not pairs:
            return True
        if VALUE not in found and arguments.get("x-stream-match-unfiltered"):
            return True
        own = str(found[VALUE]).split(",") if VALUE in found else []
        of_texts: list[bool] = [t in own for t in texts]
        of_pairs: list[bool] = [bool(n in found and str(found[n]) == str(v)) for n, v in pairs]
        if how == "any":
            return any(of_texts + of_pairs)
        if how == "all":
            return all(of_texts + of_pairs)
        return (any(of_texts) or not texts) and all(of_pairs)

    return wanted


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    batches=st.lists(st.lists(HEADERS, min_size=1, max_size=12), min_size=1, max_size=8),
    consumers=st.lists(st.tuples(WANTED, st.integers(1, 5), st.booleans()), min_size=1, max_size=3),
    steps=st.integers(20, 200),
    seed=st.integers(0, 1 << 30),
)
def test_a_consumer_gets_what_it_wants_in_order(
    batches: list[list[Table | None]], consumers: list[tuple[dict[str, Any], int, bool]], steps: int, seed: int
) -> None:
    """With any batches, prefetch, order of acks, budget, restarts, and other consumers beside it."""
    rng = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_store, "SEGMENT_BYTES_MIN", 1)
        patch.setattr(filters, "STEPS_PER_TURN", steps)
        patch.setattr("kvitto.broker.queues.stream.SLICE", max(steps // 3, 1))
        harness = BrokerHarness()
        stream(harness, x_stream_max_segment_size_bytes=600)
        everything: list[Table | None] = []
        kept: list[list[int]] = [[] for _ in consumers]

        def follow() -> list[Follower]:
            queue = harness.queue("s")
            assert isinstance(queue, Stream)
            return [
                Follower(
                    queue,
                    tag=f"t{i}",
                    room=room,
                    x_stream_offset="first",
                    x_stream_automatic_offset_tracking=True,
                    **arguments,
                )
                for i, (arguments, room, _) in enumerate(consumers)
            ]

        followers = follow()

        def work() -> None:
            while True:
                run(harness)
                open_ = [(i, f) for i, f in enumerate(followers) if f.unacked]
                if not open_:
                    return
                for i, follower in open_:
                    waiting = [d.offset for d in follower.got[-follower.unacked :]]
                    if consumers[i][2]:
                        rng.shuffle(waiting)
                    for offset in waiting:
                        follower.ack(offset)

        for batch in batches:
            put(harness, *batch)
            everything += batch
            if rng.random() < 0.7:
                work()
            if rng.random() < 0.2:
                work()
                for i, follower in enumerate(followers):
                    kept[i] += follower.offsets
                for _ in range(3):  # what was acked is written from time to time
                    harness.clock.advance(0.6)
                    harness.broker.tick()
                    harness.settle_down()
                harness.restart()
                followers = follow()
        work()
        for i, (arguments, _, _) in enumerate(consumers):
            wanted = wants(arguments)
            expected = [offset for offset, headers in enumerate(everything) if wanted(headers)]
            assert kept[i] + followers[i].offsets == expected


# -- credit, offsets, cost -----------------------------------------------------------------------------------


def test_credit_counts_what_is_delivered_only() -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    put(harness, *value(*"abbbbabbbba"))
    harness.settle_down()
    follower = Follower(queue, room=1, x_stream_offset="first", x_stream_filter="a")
    run(harness)
    assert follower.offsets == [0]
    follower.ack(0)
    run(harness)
    assert follower.offsets == [0, 5] and follower.unacked == 1
    assert queue.delivered == 2


def test_the_stored_offset_passes_what_was_skipped_and_not_what_is_unacked() -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    put(harness, *value(*"bbabbabb"))
    harness.settle_down()
    tracked: dict[str, Any] = {
        "x_stream_offset": "first",
        "x_stream_automatic_offset_tracking": True,
        "x_stream_filter": "a",
    }
    follower = Follower(queue, tag="me", **tracked)
    run(harness)
    assert follower.offsets == [2, 5] and queue.log.offsets.get("me") == 2
    follower.ack(5)
    assert queue.log.offsets.get("me") == 2
    follower.ack(2)
    assert queue.log.offsets.get("me") == 8
    put(harness, *value(*"bb"))
    run(harness)
    assert queue.log.offsets.get("me") == 10
    harness.clock.advance(1.0)
    harness.broker.tick()
    harness.restart()
    put(harness, *value(*"ba"))
    run(harness)
    assert reached(Follower(stream(harness), tag="me", **tracked)) == 10


def test_what_is_published_later_arrives() -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    follower = Follower(queue, x_stream_filter="a")
    for i in range(20):
        put(harness, *value("b", "a" if i % 5 == 0 else "c"))
        run(harness)
    assert follower.offsets == [1, 11, 21, 31]


def test_skipping_is_limited_in_each_turn_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others on the same stream and on another one get everything in the first turns, while two consumers skip."""
    monkeypatch.setattr(filters, "STEPS_PER_TURN", 300)
    monkeypatch.setattr("kvitto.broker.queues.stream.SLICE", 100)
    harness = BrokerHarness()
    queue, other = stream(harness), stream(harness, "other")
    for _ in range(200):
        put(harness, *value(*"bbbb"))
    put(harness, *value("a"))
    put(harness, *value(*"bbb"), name="other")
    harness.settle_down()
    skipping = [Follower(queue, x_stream_offset="first", x_stream_filter=text) for text in ("a", "z")]
    plain = [Follower(queue, x_stream_offset="first"), Follower(other, x_stream_offset="first")]
    quick = Follower(other, x_stream_offset="first", x_stream_filter="b")
    harness.turn()
    assert [len(f.got) for f in plain] == [801, 3]
    first = [reached(f) for f in skipping]
    assert max(first) < 800
    harness.turn()
    assert quick.got, "streams take turns"
    turns = 0
    while harness.broker.late:
        before = sum(reached(f) for f in skipping)
        harness.turn()
        turns += 1
        assert sum(reached(f) for f in skipping) > before
    assert turns > 3 and skipping[0].offsets == [800] and not skipping[1].got and len(quick.got) == 3
    assert abs(first[0] - first[1]) <= 400, "consumers take turns"


def test_a_batch_without_the_wanted_text_is_passed_over_at_once() -> None:
    harness = BrokerHarness()
    queue = stream(harness)
    put(harness, *value(*["b"] * 20_000))
    harness.settle_down()
    follower = Follower(queue, x_stream_offset="first", x_stream_filter="wanted")
    harness.turn()
    harness.turn()
    assert reached(follower) == 20_000, "one search through its bytes, within the steps of two turns"


def test_each_text_is_searched_for_once_in_a_batch() -> None:
    """A text that is everywhere must not make the search for one that is nowhere begin again and again."""
    harness = BrokerHarness()
    queue = stream(harness)
    common: Table = {VALUE: "x", "h": "common"}
    for _ in range(3000):
        queue.append_bytes(address("s"), Properties(headers=common).encode(), b"", -1, 0)
    wanted, batch = filter_of({"x-stream-filter": ["common", "nowhere"]}), queue.tail.batch
    assert wanted is not None and batch is not None
    total, i = 0, 0
    while i < batch.count:
        skipped, n, steps = wanted.next_run(batch, i, batch.count, 1 << 30, 1 << 30)
        assert n == 0
        i += skipped
        total += steps
    assert total < 3000 * (filters.CANDIDATE_STEPS + 2) + 500


def test_a_consumer_that_leaves_while_it_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "STEPS_PER_TURN", 50)
    harness = BrokerHarness()
    queue = stream(harness)
    for _ in range(100):
        put(harness, *value("b"))
    harness.settle_down()
    follower = Follower(queue, x_stream_offset="first", x_stream_filter="a")
    harness.turn()
    assert harness.broker.late
    follower.leave()
    harness.turn()
    harness.turn()
    assert not harness.broker.late
    harness.broker.vhosts["/"].delete_queue(queue)
    harness.settle_down()


def test_many_texts_are_searched_for_in_several_pieces() -> None:
    """256 texts in a batch with a megabyte of headers took a tenth of a second in one piece."""
    harness = BrokerHarness()
    queue = stream(harness)
    padded: Table = {VALUE: "b", "pad": "x" * 50_000}
    last: Table = {VALUE: "t255"}
    for headers in (*[padded] * 19, last):
        queue.append_bytes(address("s"), Properties(headers=headers).encode(), b"", -1, 0)
    wanted = filter_of({"x-stream-filter": [f"t{i}" for i in range(FILTERS_MAX)]})
    batch, pieces, i = queue.tail.batch, 0, 0
    assert wanted is not None and batch is not None and batch.count == 20
    while True:
        skipped, n, steps = wanted.next_run(batch, i, batch.count, 1, 2000)
        assert steps < 4000
        i, pieces = i + skipped, pieces + 1
        if n:
            break
    assert i == 19 and pieces > FILTERS_MAX // 4


def test_properties_that_take_long_to_decode_count_for_more_steps() -> None:
    """Of tables with 20,000 headers one turn decoded fifty, which took half a second."""
    harness = BrokerHarness()
    queue = stream(harness)
    table: Table = {f"{i:x}": None for i in range(20_000)}
    for _ in range(5):
        queue.append_bytes(address("s"), Properties(headers=table | {VALUE: "x", "h": "common"}).encode(), b"", -1, 0)
    wanted, batch = filter_of({"x-stream-filter": "common"}), queue.tail.batch
    assert wanted is not None and batch is not None
    skipped, n, steps = wanted.next_run(batch, 0, 5, 5, 2000)
    assert (skipped, n) == (1, 0) and steps > 5000
