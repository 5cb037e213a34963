"""The bytes of what waits are counted again when a limit begins to depend on them, wherever the messages are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvitto.broker.queues import sizes
from kvitto.store import pieces
from kvitto.wire.buf import Buf
from tests.support.rig import NO_PROPERTIES, Rig, address


def put_large(rig: Rig, body: bytes) -> None:
    """As a channel does with a large body."""
    buf = Buf(0)
    buf.add(body)
    assert rig.queue("q").append_whole(address("q"), NO_PROPERTIES, buf, -1, 0)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("priorities", [{}, {"x_max_priority": 5}])
def test_what_is_not_written_yet_is_counted_too(
    priorities: dict[str, Any], large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was left out if a large message waited to be written, and always in a queue with priorities."""
    monkeypatch.setattr(pieces, "SLICE_BYTES", 400)
    monkeypatch.setattr(pieces, "WHOLE_BYTES", 800)
    rig = Rig()
    queue = rig.declare("q", **priorities)
    for size in (10, 20, 30):
        rig.publish("q", b"x" * size)
    rig.settle_down()
    queue.settle_until(1)
    assert queue.estimates
    rig.publish("q", b"x" * 40)
    if large:
        put_large(rig, b"x" * 5000)
        rig.publish("q", b"x" * 50)
    if priorities:
        queue.backlog.admit()
    queue.max_bytes = 100_000
    for _ in sizes.recount(queue):
        pass
    assert (queue.ready_bytes, queue.estimates) == (5140 if large else 90, 0)
    rig.settle_down()
    queue.take_settings(replace(queue.settings, max_bytes=100_000))
    rig.drain("q")
    assert queue.ready_bytes == 0
