"""Heartbeats, counted rather than timed: how many come before a silent peer is dropped."""

import pytest

from kvitto.wire import methods as m
from kvitto.wire.methods import frame
from kvitto.wire.spec import FRAME_HEARTBEAT
from tests.protocol.raw import Raw

BEAT = (FRAME_HEARTBEAT, 0, b"")


@pytest.mark.slow
def test_heartbeats_come_every_half_interval_until_a_silent_peer_is_dropped(port: int) -> None:
    """After two intervals of silence, which is noticed within another one."""
    with Raw(port, heartbeat=1) as raw:
        beats = 0
        try:
            while (found := raw.frame()) is not None:
                assert found == BEAT
                beats += 1
        except ConnectionResetError:
            pass
    assert 3 <= beats <= 7  # 4 here, 5 there; on a busy machine RabbitMQ may be one or two off


@pytest.mark.slow
def test_a_peer_that_beats_once_an_interval_stays(port: int) -> None:
    with Raw(port, heartbeat=1) as raw:
        for number in range(8):
            assert raw.frame() == BEAT
            if number % 2:
                raw.send(frame(FRAME_HEARTBEAT, 0, b""))
        raw.channel(1)
        raw.call(1, m.BasicQos(), m.BasicQosOk)
