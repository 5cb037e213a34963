"""A schema for most of a sample: odd values are left out of it."""

import json

import pytest

from kvitto.pipeline.rest import prune


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        (['{"a": 1}', '{"a": "x"}', '{"a": 2.5}'], [{"a": 1}, {}, {"a": 2.5}]),
        (['{"a": 1}', '{"a": "x"}'], [{}, {"a": "x"}]),  # as many of each: a text holds both
        (['{"a": true}', '{"a": 1}', '{"a": 2}'], [{}, {"a": 1}, {"a": 2}]),
        (
            ['{"a": {"b": 1}}', '{"a": {"b": []}}', '{"a": {"b": 3, "c": null}}'],
            [{"a": {"b": 1}}, {"a": {}}, {"a": {"b": 3, "c": None}}],
        ),
        (['{"a": [1, "x", 2, null]}'], [{"a": [1, 2, None]}]),
        (["", "[1]", "7", "{", '{"a": 1, "_Offset": 2}'], [{"a": 1}]),
    ],
)
def test_the_kind_that_most_have_stays(bodies: list[str], expected: list[object]) -> None:
    assert [json.loads(text) for text in prune(bodies, {"_offset"})] == expected
