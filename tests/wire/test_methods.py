"""The method codec: round trips, known bytes, and any bytes at all (W8)."""

import ast
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.base.errors import ConnectionError_
from kvitto.wire import generate, methods
from kvitto.wire.methods import METHODS, Method, decode, frame

from .strategies import any_bytes, shortstrs, tables

ARGUMENTS = {
    "octet": st.integers(0, 255),
    "short": st.integers(0, 65535),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "bit": st.booleans(),
    "str": shortstrs(),
    "bytes": st.binary(max_size=300),
    "table": tables(),
}


@st.composite
def any_method(draw: st.DrawFn) -> Method:
    spec = draw(st.sampled_from(generate.parse_table()))
    given = {name: draw(ARGUMENTS[kind]) for name, kind in spec.arguments}
    return METHODS[spec.class_id, spec.method_id](**given)


def test_committed_methods_are_what_the_generator_writes() -> None:
    assert ast.dump(ast.parse(inspect.getsource(methods))) == ast.dump(ast.parse(generate.generate()))


@given(any_method())
def test_every_method_round_trips(method: Method) -> None:
    payload = method.encode()
    assert decode(payload) == method
    assert decode(memoryview(payload)) == method
    assert payload[:4] == method.CLASS_ID.to_bytes(2, "big") + method.METHOD_ID.to_bytes(2, "big")


@given(any_method(), st.data())
def test_cut_or_extended_payload_is_a_syntax_error(method: Method, data: st.DataObject) -> None:
    payload = method.encode()
    cut = data.draw(st.integers(0, len(payload) - 1))
    for wrong in (payload[:cut], payload + b"\0"):
        with pytest.raises(ConnectionError_) as caught:
            decode(wrong)
        assert caught.value.code == 501


@given(st.sampled_from(sorted(METHODS)), any_bytes())
def test_any_argument_bytes_parse_or_are_the_one_error(ids: tuple[int, int], arguments: bytes) -> None:
    head = ids[0].to_bytes(2, "big") + ids[1].to_bytes(2, "big")
    try:
        method = decode(head + arguments)
    except ConnectionError_ as error:
        assert error.code == 501
        assert (error.class_id, error.method_id) == ids
    else:
        assert decode(method.encode()) == method or "nan" in repr(method)


@given(any_bytes())
def test_any_payload_parses_or_is_the_one_error(payload: bytes) -> None:
    try:
        decode(payload)
    except ConnectionError_ as error:
        assert error.code in (501, 503)


def test_unknown_method_is_503_with_its_ids() -> None:
    with pytest.raises(ConnectionError_) as caught:
        decode(b"\x00\x32\x00\x63")
    assert (caught.value.code, caught.value.class_id, caught.value.method_id) == (503, 50, 99)


def test_queue_declare_has_the_bytes_of_the_specification() -> None:
    declare = methods.QueueDeclare("q", durable=True, no_wait=True, arguments={"x-max-length": 5})
    assert (
        declare.encode() == b"\x00\x32\x00\x0a\x00\x00\x01q\x12" + b"\x00\x00\x00\x12\x0cx-max-lengthI\x00\x00\x00\x05"
    )


def test_frame_has_type_channel_size_and_end() -> None:
    assert frame(1, 258, b"ab") == b"\x01\x01\x02\x00\x00\x00\x02ab\xce"


def test_a_secret_is_not_shown() -> None:
    assert "hunter2" not in repr(methods.ConnectionStartOk(response=b"\0u\0hunter2"))


def test_the_log_class_is_known() -> None:
    assert METHODS[19286, 20] is methods.LogRead
    assert methods.LogRead.NAME == "log.read"
