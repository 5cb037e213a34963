"""The stalls in small: each row does what it claims to, and no piece of the loop's work is long even then."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.stalls.broker import Broker, Found, Probe, measure
from benchmarks.stalls.rows import Row, Site, Steps, row, rows

PIECE_MS = 60.0
"""CPU time, which a machine under load takes three times as much of as a quiet one (20 ms)."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Probe]]:
    with running(tmp_path_factory.mktemp("stalls")) as found:
        yield found


@contextlib.contextmanager
def running(place: Path, options: Sequence[str] = (), tls: bool = False) -> Iterator[tuple[Broker, Probe]]:
    broker = Broker(place, Path(sys.executable), options, tls)
    broker.start()
    probe = Probe(broker.uri)
    try:
        yield broker, probe
    finally:
        probe.close()
        broker.close()


@pytest.mark.parametrize("row_", rows().values(), ids=lambda row_: row_.name)
def test_no_piece_of_the_loop_is_long(row_: Row, shared: tuple[Broker, Probe], tmp_path: Path) -> None:
    """W8. `python -m benchmarks.stalls` has the full form."""
    alone = running(tmp_path, row_.options, row_.tls) if row_.alone else contextlib.nullcontext(shared)
    with alone as (broker, probe):
        found = measure(broker, row_, probe, small=True)
    assert not found.stuck
    assert found.piece_ms <= PIECE_MS, found
    assert found.confirms_ms


def test_the_watch_sees_a_piece_and_who_caused_it(shared: tuple[Broker, Probe]) -> None:
    """One piece of work that is large is told from many small ones."""
    rows_ = rows()
    before = dict(rows_)

    @row("a request that is large")
    def watched(site: Site) -> Steps:
        yield
        site.http("GET", "definitions")

    made = rows_.pop("watched")
    assert rows_ == before and made.theme == "test_stalls"
    found = measure(shared[0], made, shared[1], small=True)
    assert found.callback and 0 < found.piece_ms <= found.round_ms
    assert isinstance(found, Found) and not found.stuck


def test_two_rows_of_a_name_are_refused() -> None:
    """One would hide the other."""
    name = next(iter(rows()))

    def other(site: Site) -> Steps:
        yield

    other.__name__ = name
    with pytest.raises(ValueError, match="two rows"):
        row("another one")(other)
