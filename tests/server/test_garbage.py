"""The memory of large buffers is given back in pieces, and never while anything uses it."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from kvitto.base.process import page_releaser
from kvitto.server import garbage
from kvitto.server.garbage import RELEASED, Waste
from kvitto.wire import buf
from kvitto.wire.buf import DISCARDED, Buf

MIB = 1 << 20
Released = list[tuple[int, int]]


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[Released]:
    """What is given back: the part of a buffer. Memory that is in use is looked at again in each round."""
    found: Released = []
    monkeypatch.setattr(garbage, "LOOK_S", 0)
    waste = Waste(lambda data, start, end: found.append((start, end)))
    buf.discard_with(waste.add)
    yield found
    buf.discard_with(None)


def rounds(make: Callable[[], Any], count: int = 30) -> Any:
    """Call this in a loop that then runs so many rounds."""

    async def run() -> Any:
        made = make()
        for _ in range(count):
            await asyncio.sleep(0)
        return made

    return asyncio.run(run())


def large(size: int = 20 * MIB) -> Buf:
    made = Buf(size)
    made.n = size
    return made


def test_the_memory_of_a_large_buffer_goes_in_pieces(released: Released) -> None:
    """128 MiB took 7 ms at once."""
    rounds(lambda: large() and None)
    assert released == [(12 * MIB, 20 * MIB), (4 * MIB, 12 * MIB), (0, 4 * MIB)]
    assert max(end - start for start, end in released) == RELEASED


def test_a_buffer_that_is_emptied_gives_its_memory_back_too(released: Released) -> None:
    def clear() -> Buf:
        kept = large()
        kept.clear()
        return kept

    kept = rounds(clear)
    assert released[-1] == (0, 4 * MIB) and len(released) == 3 and kept.n == 0


def test_small_memory_and_that_of_other_threads_is_left_to_python(released: Released) -> None:
    rounds(lambda: Buf(DISCARDED) and None)
    large()  # without a loop
    assert released == []


@pytest.mark.parametrize("hold", [lambda b: b.view(), lambda b: b.data, lambda b: memoryview(b.data)[5:6]])
def test_memory_in_use_is_not_given_back_before_the_use_ends(released: Released, hold: Callable[[Buf], Any]) -> None:
    held = []

    async def run() -> None:
        held.append(hold(large()))
        for _ in range(30):
            await asyncio.sleep(0)
        assert released == []
        held.clear()
        for _ in range(30):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert len(released) == 3


def test_of_several_buffers_one_goes_after_the_other(released: Released) -> None:
    rounds(lambda: [large(9 * MIB) for _ in range(3)] and None)
    assert released == [(MIB, 9 * MIB), (0, MIB)] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="the system has no such call")
def test_what_is_given_back_is_that_part_alone() -> None:
    release = page_releaser()
    assert release is not None
    data = bytearray(b"x" * (4 * MIB))
    release(data, MIB, 3 * MIB)
    assert data[:MIB] == b"x" * MIB and data[3 * MIB :] == b"x" * MIB
    assert data.count(b"\0") > 2 * MIB - 3 * 4096
    release(data, 100, 200)
    assert data[:MIB] == b"x" * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="the system has no such call")
def test_no_byte_that_is_in_use_changes_whatever_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LOOK_S", 0)
    release = page_releaser()
    assert release is not None
    buf.discard_with(Waste(release).add)
    rng = Random(7)
    held: list[tuple[Any, int]] = []

    async def run() -> None:
        for step in range(150):
            made = Buf(rng.choice((5, 9, 17)) * MIB)
            fill = step % 251 + 1
            made.add(bytes((fill,)) * made.cap)
            what: Any = rng.choice((made, made.view(), made.view(7, 5 * MIB), made.data, None))
            if rng.random() < 0.3:
                made.detach() if rng.random() < 0.5 else made.clear()
                what = None if isinstance(what, Buf) else what
            if what is not None:
                held.append((what, fill))
            del made, what
            if len(held) > 3:
                held.pop(rng.randrange(len(held)))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            for thing, fill in held:
                data = thing.view() if isinstance(thing, Buf) else memoryview(thing)
                assert {data[i] for i in range(0, len(data), 4096)} == {fill}, step

    try:
        asyncio.run(run())
    finally:
        buf.discard_with(None)
        held.clear()
        gc.collect()
