"""A body that is read in pieces: its segment's file stays open for it, whatever becomes of the segment (docs/limits.md, large bodies)."""

from __future__ import annotations

from typing import Any

from kvitto.store import stream
from kvitto.store.lease import Lease, lease_body
from tests.support.harness import BrokerHarness

BODY = 70_000
"""More than a segment of the stream here."""


def leased(**arguments: Any) -> tuple[BrokerHarness, Lease]:
    """A stream with one message, and a lease on that."""
    harness = BrokerHarness()
    harness.declare("s", x_queue_type="stream", x_stream_max_segment_size_bytes=64 << 10, **arguments)
    more(harness, b"a", 1)
    lease = lease_body(harness.queue("s").log, 0)
    assert lease is not None
    return harness, lease


def more(harness: BrokerHarness, letter: bytes, count: int) -> None:
    for _ in range(count):
        harness.publish("s", letter * BODY)
        harness.settle_down()


def test_a_stream_does_not_close_the_file_of_a_body_that_is_being_read() -> None:
    """Its files are closed when others have been opened since: the consumer's connection was closed with 541."""
    harness, lease = leased()
    more(harness, b"b", stream.OPEN_MAX + 5)
    assert lease.read(0, 4) == b"aaaa"
    log = harness.queue("s").log
    assert sum(part.file is not None for part in log.segments) <= stream.OPEN_MAX + 2
    lease.end()
    more(harness, b"b", 2)
    assert log.segments[0].file is None


def test_a_body_is_read_to_its_end_although_retention_has_taken_its_segment() -> None:
    harness, lease = leased(x_max_length_bytes=3 * BODY)
    part = harness.queue("s").log.segments[0]
    more(harness, b"b", 6)
    assert harness.queue("s").log.first > 0  # type: ignore[attr-defined]
    assert lease.read(0, BODY) == b"a" * BODY
    assert part.file is not None
    lease.end()
    more(harness, b"b", stream.OPEN_MAX)
    assert part.file is None
