"""W8: nothing that a peer sends crashes the broker, grows its memory without bound, or is answered with a traceback.

Any byte stream is fed to the real connection, broker and store: it is served, or answered with a Close that a client
understands, and the next connection is served as if nothing had been.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import kvitto
from kvitto.base.errors import FRAME_ERROR
from kvitto.store import stream as stream_store
from kvitto.wire import methods as m
from kvitto.wire.methods import Method, decode, frame
from kvitto.wire.spec import FRAME_METHOD, PROTOCOL_HEADER
from tests.protocol import sessions
from tests.protocol.answers import check_answer, check_service
from tests.protocol.sansio import ProtocolHarness, Wire

ROOT = Path(__file__).resolve().parents[2]
thorough = settings(
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True, scope="module")
def small_segments() -> Iterator[None]:
    """Retention is to be met in streams of a few messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_store, "SEGMENT_BYTES_MIN", 1)
        yield


def feed(harness: ProtocolHarness, wire: Wire, pieces: list[bytes]) -> None:
    """Give the connection the pieces, as fast as it takes them."""
    for piece in pieces:
        if not wire.reading and not wire.closed:
            harness.settle_down()
        if wire.closed or not wire.reading:
            break  # where the next frame begins is not known: what came in the same read is dropped
        wire.feed(piece)
        assert len(wire.connection.rest) <= sum(map(len, pieces))
    harness.settle_down()


def serve(pieces: list[bytes]) -> tuple[ProtocolHarness, Wire]:
    harness = ProtocolHarness()
    wire = harness.wire(login=False)
    feed(harness, wire, pieces)
    return harness, wire


def check_harness(harness: ProtocolHarness, wire: Wire) -> None:
    """Time passes, the peer goes, the next one comes; and what was stored can be read after a restart."""
    harness.clock.advance(2.0)
    harness.broker.tick()
    harness.settle_down()
    wire.connection.lost()
    harness.settle_down()
    for restart in (False, True):
        check_service(ProtocolHarness(harness.disk.kill()) if restart else harness)


@given(sessions.session())
@settings(thorough, max_examples=200)
def test_any_session_is_served_or_closed(data: bytes) -> None:
    """W8."""
    harness, wire = serve([data])
    check_answer(wire)
    check_harness(harness, wire)


@given(st.binary(max_size=300) | sessions.wire.any_bytes(), st.sampled_from([b"", PROTOCOL_HEADER, sessions.login()]))
@settings(thorough, max_examples=200)
def test_any_bytes_are_answered(data: bytes, before: bytes) -> None:
    """W8."""
    harness, wire = serve([before + data])
    check_answer(wire)
    check_harness(harness, wire)


def story(wire: Wire) -> list[tuple[int, str]]:
    """What was said, without what depends on when the pieces came: how acks are grouped, names made up."""
    if wire.written == PROTOCOL_HEADER:
        return [(0, "protocol header")]
    told = []
    for kind, channel, payload in wire.frames():
        method = decode(payload) if kind == FRAME_METHOD else None
        if isinstance(method, m.BasicAck | m.BasicNack):
            continue
        close = isinstance(method, m.ConnectionClose | m.ChannelClose)
        what = repr(payload) if method is None else method.NAME
        told.append((channel, f"{what} {method.reply_code}" if close else what))
        if isinstance(method, m.ConnectionClose) and method.reply_code == FRAME_ERROR:
            break  # where the next frame begins is not known: what came in the same read is dropped
    return told


@given(sessions.session())
@settings(thorough, max_examples=30)
def test_the_size_of_the_pieces_makes_no_difference(data: bytes) -> None:
    """W8, whole and byte by byte; between the bytes the broker gets no turn, as it would not within one read."""
    (_, whole), (_, bytewise) = serve([data]), serve([data[i : i + 1] for i in range(len(data))])
    assert story(whole) == story(bytewise)


def test_a_session_may_be_cut_at_every_boundary() -> None:
    """W8: one session with every kind of frame, in two pieces, for each place where it can be cut."""
    data = sessions.login(1) + b"".join(
        (
            frame(FRAME_METHOD, 1, m.QueueDeclare("a", durable=True).encode()),
            frame(FRAME_METHOD, 1, m.ConfirmSelect().encode()),
            sessions.content(1, m.BasicPublish("", "a"), b"\0\0", b"hello"),
            sessions.content(1, m.BasicPublish("", "a"), b"\0\0", b"in small pieces", 12),
            sessions.content(1, m.BasicPublish("", "a"), b"\0\0", b""),
            frame(8, 0, b""),
            frame(FRAME_METHOD, 1, m.BasicGet("a").encode()),
            frame(FRAME_METHOD, 1, m.BasicAck(1).encode()),
            frame(FRAME_METHOD, 1, m.BasicAck(7).encode()),
        )
    )
    _, whole = serve([data])
    told = story(whole)
    assert [line for _, line in told if "close" in line] == ["channel.close 406"]
    for cut in range(1, len(data)):
        _, wire = serve([data[:cut], data[cut:]])
        assert story(wire) == told, f"cut at {cut}"


@pytest.mark.slow
def test_both_forms_of_the_data_plane_answer_alike(tmp_path: Path) -> None:
    """W8: the compiled form, with pointers for bytearrays, and the interpreted one get the same sessions."""
    if not kvitto.compiled():
        pytest.skip("needs the compiled form: run `make build`")
    found: list[bytes] = []

    @given(sessions.session())
    @settings(thorough, max_examples=250, phases=[Phase.generate], database=None)
    def collect(data: bytes) -> None:
        found.append(data)

    collect()
    cases = tmp_path / "cases"
    cases.write_text("\n".join(data.hex() for data in found))
    command = [sys.executable, "-m", "tests.protocol.twin", str(cases)]
    told = {}
    for pure in ("0", "1"):
        environment = {**os.environ, "KVITTO_PURE": pure}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        form, *told[pure] = done.stdout.splitlines()
        assert form == ("interpreted" if pure == "1" else "compiled")
        assert len(told[pure]) == len(found)
    for data, compiled, interpreted in zip(found, told["0"], told["1"], strict=True):
        assert compiled == interpreted, data.hex()


@pytest.mark.parametrize(
    "method",
    [
        m.QueueDeclare(sessions.NOT_UTF8),
        m.QueueBind("a", "amq.topic", sessions.NOT_UTF8),
        m.ExchangeDeclare(sessions.NOT_UTF8, "direct"),
        m.BasicConsume("a", sessions.NOT_UTF8),
    ],
    ids=lambda method: method.NAME,
)
def test_names_that_are_no_text_are_refused(method: Method) -> None:
    """W4: arguments that do not parse."""
    payload = method.encode().replace(sessions.NOT_UTF8.encode(), b"\xff\xfe")
    _, wire = serve([sessions.login() + frame(FRAME_METHOD, 1, payload)])
    close = decode(wire.frames()[-1][2])
    assert isinstance(close, m.ConnectionClose) and close.reply_code in (501, 502, 503)
