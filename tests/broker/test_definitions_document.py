"""Reading a document of definitions in pieces: any JSON object of lists, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.base import limits
from kvitto.broker.administration.definitions.document import Broken, Document, Malformed

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def scanned(body: bytes) -> Document:
    document = Document(body)
    for _ in document.scan():
        pass
    return document


@given(st.dictionaries(st.text(), VALUES, max_size=6), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_all_members_and_items_are_found(value: dict[str, Any], indent: Any, ascii: bool) -> None:
    document = scanned(b" \r\n" + json.dumps(value, indent=indent, ensure_ascii=ascii).encode("utf-8", "replace"))
    lists = {key: list(document.items(key)) for key in document.lists}
    expected = json.loads(json.dumps(value, ensure_ascii=ascii).encode("utf-8", "replace"))
    assert {**document.values, **lists} == expected
    assert set(lists) == {key for key, inner in expected.items() if isinstance(inner, list)}


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\ a1', max_size=60).map(str.encode))
def test_other_bytes_are_malformed_or_have_broken_items(body: bytes) -> None:
    """No other exception, and whatever `json` takes is taken."""
    try:
        document = scanned(body)
        for name in document.lists:
            list(document.items(name))
    except Malformed:
        try:
            value = json.loads(body)
        except ValueError:
            return
        pairs = json.loads(body, object_pairs_hook=list) if isinstance(value, dict) else []
        # a constant that is no JSON, or a key twice
        assert not isinstance(value, dict) or len(dict(pairs)) != len(pairs) or not _is_strict(body)


def _is_strict(body: bytes) -> bool:
    def refuse(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    def constant(name: str) -> Any:
        raise ValueError(name)

    try:
        json.loads(body, object_pairs_hook=refuse, parse_constant=constant)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"1", b"{", b"{}x", b'{"a" 1}', b'{"a":1,}', b'{"a":[1,]}', b'{"a":[1 2]}', b"{a:1}", b'{"a":[',
     b'{"a":"', b"\xff", b'{"a":NaN}', b'{"queues":[],"queues":[]}', b'{"a":1,"a":[]}', b'{"a":{"b":1,"b":2}}'],
)  # fmt: skip
def test_what_is_no_object_of_members_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        scanned(body)


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (b'{"a":1,"a":1}', "the key 'a' is there twice"),
        (b"[" * 1500 + b"]" * 1500, "40 levels"),
        (b"[" * 41 + b"]" * 41, "40 levels"),
        (b'{"a":1e999}', "a number that is too large"),
        (b'{"a":NaN}', "not JSON"),
        (b'{"a"}', "not JSON"),
        (b"{]", "not JSON"),
        (b'"\xff"', "not JSON"),
        (b"[" + b"1," * limits.DEFINITION_VALUES_MAX + b"1]", "it has more than"),
        (b'{"a":"' + b"x" * limits.DEFINITION_BYTES_MAX + b'"}', "it has more than"),
        (b"9" * 5000, None),
    ],
)
def test_a_broken_item_does_not_hide_the_others(item: bytes, reason: str | None) -> None:
    document = Document(b'{"a":[1,' + item + b',{"b":[2]}]}')
    try:
        for _ in document.scan():
            pass
    except Malformed:
        assert reason is None
        return
    first, broken, last = document.items("a")
    assert (first, last) == (1, {"b": [2]})
    assert isinstance(broken, Broken) and reason is not None and reason in broken.reason


def test_a_document_is_read_in_small_pieces() -> None:
    """No step looks at more than a few hundred marks, or a few windows of bytes."""
    items = [{"name": f"q{number}", "arguments": {"x": [1, 2, 3]}} for number in range(5000)]
    body = json.dumps({"queues": items}).encode()
    assert sum(1 for _ in Document(body).scan()) >= len(items) * 9 / 500
    huge = b'{"a":["' + b"x" * (8 << 20) + b'"]}'
    assert sum(1 for _ in Document(huge).scan()) > 16
    spaces = b'{"a":[' + b" " * (8 << 20) + b"]}"
    assert sum(1 for _ in Document(spaces).scan()) > 8


@pytest.mark.parametrize(
    ("item", "count", "steps"),
    [(b"1", 100_000, 500), (b'"a"', 100_000, 500), (b'"' + b"\\\\" * 30_000 + b'"', 100, 100)],
)
def test_items_that_are_no_objects_are_found_in_small_pieces_too(item: bytes, count: int, steps: int) -> None:
    """A million numbers were found in one step, which took seconds."""
    assert sum(1 for _ in Document(b'{"a":[' + b",".join([item] * count) + b"]}").scan()) >= steps


def test_a_document_has_few_members() -> None:
    """Each list that nobody knows is compared with those that there are."""
    members = [b'"list%d":[1]' % number for number in range(limits.DEFINITION_MEMBERS_MAX)]
    assert len(scanned(b"{" + b",".join(members) + b"}").lists) == limits.DEFINITION_MEMBERS_MAX
    with pytest.raises(Malformed, match="more than 100 members"):
        scanned(b"{" + b",".join([*members, b'"version":1']) + b"}")


def test_a_part_of_a_body_and_a_byte_order_mark_are_read() -> None:
    body = b'xx\xef\xbb\xbf{"a":[1]}yy'
    document = Document(body, 2, len(body) - 2)
    for _ in document.scan():
        pass
    assert list(document.items("a")) == [1] and document.count("a") == 1
