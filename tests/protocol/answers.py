"""What a peer may be told, whatever it has sent (W8): whole frames, and a Close that says why."""

from __future__ import annotations

from kvitto.base.errors import REPLY_NAMES
from kvitto.protocol.states import CLOSED, CLOSING
from kvitto.wire import methods as m
from kvitto.wire.methods import Method, decode
from kvitto.wire.spec import FRAME_METHOD, PROTOCOL_HEADER
from tests.protocol import sessions
from tests.protocol.sansio import ProtocolHarness, Wire


def check_answer(wire: Wire) -> None:
    """What was written is whole frames; a closed connection was told why."""
    assert not wire.aborted
    data = bytes(wire.written)
    if data.endswith(PROTOCOL_HEADER):
        assert wire.closed and data == PROTOCOL_HEADER
        return
    last: dict[int, Method] = {}
    for kind, channel, payload in wire.frames():
        if kind == FRAME_METHOD:
            last[channel] = decode(payload)
            if isinstance(last[channel], m.ConnectionClose | m.ChannelClose):
                check_close(last[channel])
    if wire.connection.state in (CLOSING, CLOSED) and not wire.closed:
        assert isinstance(last.get(0), m.ConnectionClose)


def check_close(close: Method) -> None:
    assert isinstance(close, m.ConnectionClose | m.ChannelClose)
    assert close.reply_code in REPLY_NAMES and close.reply_code != 541
    assert "Traceback" not in close.reply_text and close.reply_text


def check_service(harness: ProtocolHarness) -> None:
    """A peer without malice gets what it asks for."""
    probe = harness.wire()
    probe.put(1, m.QueueDeclare("probe", durable=True), m.ConfirmSelect())
    harness.settle_down()
    probe.feed(sessions.content(1, m.BasicPublish("", "probe"), b"\0\0", b"x"))
    harness.settle_down()
    probe.put(1, m.BasicGet("probe", True))
    harness.settle_down()
    kinds = [type(method) for method in probe.methods()]
    assert kinds == [m.QueueDeclareOk, m.ConfirmSelectOk, m.BasicAck, m.BasicGetOk], kinds
