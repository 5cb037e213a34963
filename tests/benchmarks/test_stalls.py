"""The stalls in small: each row does what it claims to, and no piece of the loop's work is long even then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.stalls.broker import Broker, Found, measure
from benchmarks.stalls.rows import Row, Site, Steps, row, rows

PIECE_MS = 60.0
"""CPU time, which a machine under load takes three times as much of as a quiet one (20 ms)."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("stalls"), Path(sys.executable))
    broker.start()
    yield broker
    broker.close()


@pytest.mark.parametrize("row_", rows().values(), ids=lambda row_: row_.name)
def test_no_piece_of_the_loop_is_long(row_: Row, shared: Broker, tmp_path: Path) -> None:
    """W8. `python -m benchmarks.stalls` has the full form."""
    if not row_.options:
        found = measure(shared, row_, small=True)
    else:
        own = Broker(tmp_path, Path(sys.executable), row_.options)
        own.start()
        try:
            found = measure(own, row_, small=True)
        finally:
            own.close()
    assert not found.stuck
    assert found.piece_ms <= PIECE_MS, found
    assert found.confirms_ms


def test_the_watch_sees_a_piece_and_who_caused_it(shared: Broker) -> None:
    """One piece of work that is large is told from many small ones."""
    rows_ = rows()
    before = dict(rows_)

    @row("a request that is large")
    def watched(site: Site) -> Steps:
        yield
        site.http("GET", "definitions")

    made = rows_.pop("watched")
    assert rows_ == before and made.theme == "test_stalls"
    found = measure(shared, made, small=True)
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
