"""Long answers are made in slices, between which the loop serves everybody else: counted in work, not in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from kvitto.http import slices as slicing
from kvitto.http.bindings import list_bindings
from kvitto.http.definitions import bindings
from kvitto.http.listing import RUN, answer_list, array
from kvitto.http.request import Response
from kvitto.http.slices import Slices
from tests.support.harness import BrokerHarness

COUNT = 20_000


class Counted(Slices):
    """Never waits; `most` is the largest amount of work between two rests."""

    def __init__(self) -> None:
        super().__init__()
        self.work = self.most = 0

    async def rest(self) -> None:
        self.most, self.work = max(self.most, self.work), 0


class Name(str):
    """Counts comparisons."""

    __slots__ = ()
    slices: Counted

    def __lt__(self, other: str) -> bool:
        self.slices.work += 1
        return super().__lt__(other)


async def body_of(response: Response) -> bytes:
    assert response.pieces is not None
    return b"".join([piece async for piece in response.pieces])


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"name": "7"},
        {"sort": "name"},
        {"sort": "name", "sort_reverse": "true", "page": "3"},
        {"page": "2", "page_size": "500", "name": "^thing-1", "use_regex": "true"},
    ],
)
def test_a_long_list_is_collected_sorted_and_rendered_in_slices(query: dict[str, str]) -> None:
    """Sorting it in one go compared 20,000 names with each other, and all were rendered to show a page of them."""
    slices = Name.slices = Counted()
    names = [Name(f"thing-{n * 7919 % COUNT}") for n in range(COUNT)]

    def view(name: Name) -> dict[str, Any]:
        slices.work += 1
        return {"name": name}

    call: Any = SimpleNamespace(request=SimpleNamespace(query=query), api=SimpleNamespace(slices=slices))

    async def ask() -> Any:
        return json.loads(await body_of(await answer_list(call, names, view, str)))

    found = asyncio.run(ask())
    assert slices.most < RUN * 12  # to sort a run of 500 takes 500 * log2(500) comparisons
    found = found if isinstance(found, list) else found["items"]
    expected = [name for name in map(str, names) if name.startswith("thing-1") or "use_regex" not in query]
    expected = [name for name in expected if query.get("name") != "7" or "7" in name]
    if "sort" in query:
        expected.sort(reverse="sort_reverse" in query)
    if "page" in query:
        size = int(query.get("page_size", 100))
        expected = expected[(int(query["page"]) - 1) * size :][:size]
    assert [item["name"] for item in found] == expected


def test_one_slice_of_all_requests_runs_in_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicing, "SLICE_S", 0.0)
    slices, done, turns = Slices(), [], []

    async def work(name: str) -> None:
        for _ in range(3):
            await slices.rest()
            done.append(name)

    async def others() -> None:
        while len(done) < 9:
            turns.append(len(done))
            await asyncio.sleep(0)

    async def run() -> None:
        await asyncio.gather(work("a"), work("b"), work("c"), others())

    asyncio.run(run())
    assert done == ["a", "b", "c"] * 3
    assert all(after - before <= 1 for before, after in pairwise(turns))


def test_a_request_that_ends_while_it_waits_for_its_slice_holds_up_nobody() -> None:
    slices, done = Slices(), []

    async def work(name: str) -> None:
        await slices.rest()
        done.append(name)

    async def run() -> None:
        gone, stays = asyncio.create_task(work("gone")), asyncio.create_task(work("stays"))
        await asyncio.sleep(0)
        gone.cancel()
        await stays

    asyncio.run(run())
    assert done == ["stays"]


def test_what_is_not_shown_is_passed_over_in_slices() -> None:
    """100,000 bindings of a transient queue were looked at in one piece, to leave all of them out of the definitions."""
    slices = Counted()

    def found() -> Iterator[dict[str, int] | None]:
        for n in range(COUNT):
            slices.work += 1
            yield {"n": n} if n % 1000 == 0 else None

    response = Response(pieces=array(slices, found(), lambda thing: thing))
    assert [item["n"] for item in json.loads(asyncio.run(body_of(response)))] == list(range(0, COUNT, 1000))
    assert slices.most <= 2


def test_exchanges_without_bindings_are_passed_over_in_slices() -> None:
    """The lists of bindings and the definitions went through 90,000 of them in one piece."""
    harness = BrokerHarness()
    vhost = harness.broker.vhosts["/"]
    for number in range(2000):
        vhost.declare_exchange(f"x{number}", "fanout", False, False, False, {})
    vhost.bind("x7", harness.declare("q"), "k", {})
    rests = 0

    class Counting(Slices):
        async def rest(self) -> None:
            nonlocal rests
            rests += 1

    host = SimpleNamespace(broker=harness.broker)
    for query in ({}, {"page": "1"}, {"sort": "source"}):
        rests = 0
        api = SimpleNamespace(slices=Counting(), broker=harness.broker, host=host)
        call: Any = SimpleNamespace(request=SimpleNamespace(query=query), api=api, vhosts=lambda: [vhost])

        async def ask(call: Any = call) -> Any:
            return json.loads(await body_of(await list_bindings(call)))

        found = asyncio.run(ask())
        items = found if isinstance(found, list) else found["items"]
        assert [item["source"] for item in items if item["source"]] == ["x7"] and rests > 2000
        assert isinstance(found, list) or found["total_count"] == len(items) == 2
    assert sum(binding is None for binding in bindings(vhost)) >= 2000
