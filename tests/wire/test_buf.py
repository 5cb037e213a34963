"""A buffer that grows: in place where that can be."""

from __future__ import annotations

import gc

import pytest

from kvitto.wire.buf import LARGE, WIDER_MAX, Buf


def test_a_buffer_widens_by_an_eighth_and_keeps_what_it_holds() -> None:
    """The memory for a large body must be what has come of it, not what may come."""
    buf = Buf(0)
    buf.widen(100)
    assert buf.cap == 100
    buf.add(bytes(range(100)))
    buf.widen(101)
    assert buf.cap == 112 and buf.tobytes() == bytes(range(100))
    buf.widen(100 << 20)
    buf.widen(buf.cap + 1)
    assert buf.cap == (100 << 20) + WIDER_MAX
    buf.add(b"behind")
    assert buf.tobytes() == bytes(range(100)) + b"behind"


def test_only_a_large_buffer_grows_in_place() -> None:
    """A small one at least doubles, so that adding bytes one by one stays cheap; a large one grows by little at a time."""
    small = Buf(64)
    small.reserve_in_place(65)
    assert small.cap == 192
    large = Buf(LARGE + 1)
    large.n = LARGE + 1
    large.reserve_in_place(1)
    assert large.cap <= (LARGE + 2) * 9 // 8


def test_a_view_of_a_buffer_that_widens_stays_as_it_is() -> None:
    """It cannot widen in place then."""
    buf = Buf(8)
    buf.add(b"content")
    view = buf.view()
    buf.widen(1000)
    buf.add(b" and more")
    assert bytes(view) == b"content" and buf.tobytes() == b"content and more" and buf.cap >= 1000


def test_a_buffer_for_which_there_is_no_memory_ends_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((MemoryError, OverflowError)):
        Buf(1 << 62)
    gc.collect()
    assert capsys.readouterr().err == ""
