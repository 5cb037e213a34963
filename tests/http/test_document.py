"""Bodies are read in slices: as the standard library reads them, but for those that are made to take long."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.base import limits
from kvitto.http import document
from kvitto.http.messages import payload_of
from kvitto.http.request import Problem, Text
from kvitto.http.slices import Slices
from tests.http.api import Http

MIB = 1 << 20


class Unhurried(Slices):
    rests = 0

    async def rest(self) -> None:
        self.rests += 1


def parse(body: bytes, slices: Slices | None = None) -> Any:
    return asyncio.run(document.parse(slices or Unhurried(), bytearray(body)))


def plain(value: Any) -> Any:
    """With long strings in one."""
    if isinstance(value, Text):
        return "".join(value.parts)
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), st.booleans())
def test_what_json_can_say_is_read(value: dict[str, Any], ascii_only: bool) -> None:
    assert (
        parse(json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass" if ascii_only else "strict"))
        == value
    )


@given(st.binary(max_size=40) | st.text(alphabet='{}[]",:\\unNI1ae ', max_size=40).map(str.encode))
def test_what_is_no_json_is_refused(body: bytes) -> None:
    try:
        expected = json.loads(body.decode()) if body.strip() else {}
    except ValueError:
        expected = None
    if not isinstance(expected, dict) or b"NaN" in body or b"Infinity" in body:
        with pytest.raises(Problem):
            parse(body)
    else:
        assert parse(body) == expected


@pytest.mark.parametrize(
    "letters", ["x", "é", "€", "🙂", '"', "\\", "\n", "\ud83d", 'ab\\🙂c"d€\x7f', "\\u", "N", "[,{"]
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_long_string_is_read_in_parts_that_cut_nothing(letters: str, ascii_only: bool) -> None:
    text = letters * (document.LONG // len(letters.encode("utf-8", "surrogatepass")) + 1000)
    if "\ud83d" in text and not ascii_only:
        return
    value = {"before": [1, "x"], "payload": text, "between": {"also": text[:-1]}, "after": None}
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    found = parse(body)
    assert isinstance(found["payload"], Text) and len(found["payload"].parts) > 1
    assert plain(found) == value


@pytest.mark.parametrize(
    "body",
    [
        b'{"payload": ' + b"[" * 8 * MIB + b"]" * 8 * MIB + b"}",
        b'{"a": [' + b"{}," * 5 * MIB + b"1]}",
        b'{"a": [' + b'"",' * 5 * MIB + b"1]}",
        b'""' * 8 * MIB,
        b'{"a": ' + b'{"a": ' * MIB + b"1" + b"}" * (MIB + 1),
        b'{"a": [' + (b'"' + b"x" * 250_000 + b'",') * 60 + b"1]}",
    ],
)
def test_a_body_that_takes_long_to_parse_is_refused_at_once(body: bytes) -> None:
    """16 MiB of nested arrays took 3.5 s, in which nobody else was served."""
    slices = Unhurried()
    with pytest.raises(Problem) as refused:
        parse(body, slices)
    assert refused.value.status == 400 and "the document has more than" in refused.value.reason
    assert slices.rests < 3 * limits.HTTP_VALUES_MAX


@pytest.mark.parametrize(
    "body", [b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": "' + b"x" * MIB, b'{"a": "' + b"\xff" * MIB + b'"}']
)
def test_what_json_cannot_say_is_refused(body: bytes) -> None:
    with pytest.raises(Problem, match="not JSON"):
        parse(body)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 400_000, 400_001, 400_002, 1_200_001])
def test_a_long_payload_is_decoded_in_parts(count: int) -> None:
    payload = bytes(n % 251 for n in range(count))
    given = {"payload": base64.b64encode(payload).decode(), "payload_encoding": "base64"}

    async def decode(body: dict[str, Any]) -> bytes:
        slices = Unhurried()
        found = await payload_of(slices, await document.parse(slices, bytearray(json.dumps(body).encode())))
        return found if isinstance(found, bytes) else found.tobytes()

    assert asyncio.run(decode(given)) == payload
    for wrong in ("*", "A", "=x=="):
        with pytest.raises(Problem, match="not base64"):
            asyncio.run(decode({**given, "payload": given["payload"] + wrong}))
    text = payload.decode("latin-1")
    assert asyncio.run(decode({"payload": text})) == text.encode()


def test_a_payload_of_many_mib_is_published_and_got(api: Http) -> None:
    payload = '0123456789€"\\\n' * 300_000
    api.put("/api/queues/%2F/large", {"durable": True})
    body = {"routing_key": "large", "payload": payload, "properties": {"message_id": "m"}}
    assert api.post("/api/exchanges/%2F/amq.default/publish", body).json == {"routed": True}
    (got,) = api.post("/api/queues/%2F/large/get", {"ackmode": "ack_requeue_false"}).json
    assert (got["payload"] == payload, got["payload_bytes"]) == (True, len(payload.encode()))
    payload = payload[:400_000]
    for long in (
        {"routing_key": payload},
        {"properties": {"message_id": payload}},
        {"properties": {"headers": {"h": payload}}},
    ):
        assert api.post("/api/exchanges/%2F/amq.default/publish", {**body, **long}).status == 400
