import json

import pytest

from kvitto.spark.errors import SourceError
from kvitto.spark.offsets import Offsets, Position, start_of
from kvitto.spark.planning import limit_offsets, split


def test_the_same_place_is_always_the_same_text() -> None:
    one = Offsets("g", {"b": Position("i2", 0, 7), "a": Position("i1", 1, 5)})
    two = Offsets("g", {"a": Position("i1", 1, 5), "b": Position("i2", 0, 7)})
    text = json.dumps(one.to_json("/"))
    assert text == json.dumps(two.to_json("/"))
    assert Offsets.from_json(json.loads(text), "/") == one
    assert text == (
        '{"v": 1, "mode": "range", "group": "g", "flush": 0, "queues": {'
        '"/:a": {"inc": "i1", "begin": 1, "next": 5}, "/:b": {"inc": "i2", "begin": 0, "next": 7}}}'
    )


def test_another_checkpoint_is_refused() -> None:
    value = Offsets("g", {"a": Position("i", 0, 5)}).to_json("/")
    with pytest.raises(SourceError, match="virtual host 'other'"):
        Offsets.from_json(value, "other")
    with pytest.raises(SourceError, match="version 2"):
        Offsets.from_json({**value, "v": 2}, "/")
    with pytest.raises(SourceError, match="mode 'other'"):
        Offsets.from_json({**value, "mode": "other"}, "/")


@pytest.mark.parametrize("mode", ["range", "stream", "staged"])
def test_a_checkpoint_says_its_read_mode(mode: str) -> None:
    offsets = Offsets("", {"a": Position("i", 0, 5)}, mode)
    assert Offsets.from_json(json.loads(json.dumps(offsets.to_json("/"))), "/") == offsets


def test_a_batch_begins_where_the_one_before_ended() -> None:
    assert start_of(Position("i", 3, 10), Position("i", 3, 20)) == 10


def test_the_first_batch_begins_where_it_did_before_a_crash() -> None:
    """Spark logs no start of the first batch and asks again: by now `latest` is another place."""
    assert start_of(Position("i", 15, 15), Position("i", 3, 10)) == 3


def test_a_new_incarnation_is_read_from_its_beginning() -> None:
    assert start_of(Position("old", 0, 100), Position("new", 0, 10)) == 0
    assert start_of(None, Position("new", 2, 10)) == 2


def test_a_limit_is_shared_by_what_waits() -> None:
    ends = limit_offsets({"a": 0, "b": 100, "c": 7}, {"a": 900, "b": 200, "c": 7}, 100)
    assert ends == {"a": 90, "b": 110, "c": 7}
    assert limit_offsets({"a": 0}, {"a": 5}, 100) == {"a": 5}


def test_every_queue_moves_under_a_small_limit() -> None:
    assert limit_offsets({"a": 0, "b": 0}, {"a": 10_000, "b": 3}, 2) == {"a": 1, "b": 1}


def test_pieces_are_even_and_cover_the_range() -> None:
    pieces = split([("a", 10, 110)], 3, 1)
    assert [start for _, start, _ in pieces] + [110] == [10, *(end for _, _, end in pieces)]
    assert {end - start for _, start, end in pieces} <= {33, 34}


def test_small_ranges_are_not_cut() -> None:
    assert split([("a", 0, 100), ("b", 5, 6)], 8, 1000) == [("a", 0, 100), ("b", 5, 6)]
    assert split([], 8, 1) == []
