"""Answers that are lists, with RabbitMQ's query parameters columns, sort, sort_reverse, page, page_size, name and
use_regex.

A list may be long. It is collected, sorted, rendered and sent in slices, between which the broker goes on working. So
each item is shown as it is at some moment of the request.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from kvitto.broker.routing.patterns import InvalidPattern, compile_pattern
from kvitto.http.api import Call
from kvitto.http.request import Response, answer, bad_request, encode
from kvitto.http.slices import Slices

T = TypeVar("T")
Name = Callable[[T], str]
View = Callable[[T], dict[str, Any]]

PIECE_BYTES = 32 << 10
PAGE_SIZE = 100
PAGE_SIZE_MAX = 500
RUN = 500
"""The number of items that are sorted in one step."""


def as_it_is(view: dict[str, Any]) -> dict[str, Any]:
    """The view of what is JSON already."""
    return view


async def answer_list(call: Call, things: Iterable[T | None], view: View[T], name: Name[T] | None = None) -> Response:
    """Answer with a list. `view` makes the JSON of one item, `name` is the text that ?name= searches. `things` must not
    fail if some items are deleted meanwhile. A None among them is no item: it stands for work without a result."""
    query, slices = call.request.query, call.api.slices
    page = page_of(query) if "page" in query else None
    columns = [column.split(".") for column in query.get("columns", "").split(",") if column]
    shown: View[T] = (lambda thing: _columns(view(thing), columns)) if columns else view
    wanted = _filter(query) if name is not None else None

    def chosen(thing: T) -> bool:
        return wanted is None or name is None or wanted(name(thing))

    if page is None and not query.get("sort"):
        some = (thing if thing is not None and chosen(thing) else None for thing in things)
        return Response(pieces=array(slices, some, shown))
    found, total = await _collected(slices, things, chosen)
    count = 0
    if page is not None:
        count = (len(found) + page[1] - 1) // page[1]
        if page[0] > max(count, 1):
            raise bad_request(f"page {page[0]} does not exist, the last one is {count}")
    if query.get("sort"):
        found = await _sorted(slices, found, view, query["sort"].split("."), query.get("sort_reverse") == "true")
    if page is None:
        in_order: Iterator[T] = _drained(found)
        return Response(pieces=array(slices, in_order, shown))
    number, size = page
    shown_now = found[(number - 1) * size : number * size]
    head = {"filtered_count": len(found), "item_count": len(shown_now), "page": number, "page_count": count}
    rest = {"page_size": size, "total_count": total}
    for _ in _drained(found):
        await slices.rest()
    return Response(pieces=with_array({**head, **rest}, "items", array(slices, shown_now, shown)))


def _drained(things: list[T]) -> Iterator[T]:
    """Yield the items in order and free them one by one, because freeing 100,000 items together takes long."""
    things.reverse()
    while things:
        yield things.pop()


async def array(slices: Slices, things: Iterable[T | None], view: View[T]) -> AsyncIterator[bytes]:
    """Yield a JSON array in pieces, without items whose view is None."""
    part: list[bytes] = []
    size, before = 1, b"["
    for thing in things:
        if thing is not None:
            text = encode(view(thing))
            part.append(text)
            size += len(text) + 1
        if size > PIECE_BYTES:
            yield before + b",".join(part)
            part, size, before = [], 0, b","
        await slices.rest()
    yield (before if part or before == b"[" else b"") + b",".join(part) + b"]"


async def with_array(head: dict[str, Any], name: str, items: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the object `head`, which is not empty, with one more field."""
    before = encode(head)[:-1] + b"," + encode(name) + b":"
    async for piece in items:
        yield before + piece
        before = b""
    yield b"}"


async def _collected(slices: Slices, things: Iterable[T | None], chosen: Callable[[T], bool]) -> tuple[list[T], int]:
    """Return the items that match, and the number of all."""
    found, total = [], 0
    for thing in things:
        if thing is not None:
            total += 1
            if chosen(thing):
                found.append(thing)
        await slices.rest()
    return found, total


def _filter(query: Mapping[str, str]) -> Callable[[str], bool] | None:
    """Return RabbitMQ's filter: a part of the name or a regular expression, without regard to case. Raise Problem 400."""
    wanted = query.get("name", "")
    if not wanted:
        return None
    if query.get("use_regex") == "true":
        try:
            return compile_pattern(wanted, caseless=True).found_in
        except InvalidPattern as error:
            raise bad_request(str(error)) from None
    part = wanted.lower()
    return lambda name: part in name.lower()


async def _sorted(slices: Slices, found: list[T], view: View[T], path: list[str], reverse: bool) -> list[T]:
    """Sort short runs one by one, then merge them."""
    runs = []
    for start in range(0, len(found), RUN):
        run = []
        for thing in found[start : start + RUN]:
            run.append((_order(_pick(view(thing), path)), thing))
            await slices.rest()
        run.sort(key=_first, reverse=reverse)
        runs.append(_drained(run))
    merged = []
    for _, thing in heapq.merge(*runs, key=_first, reverse=reverse):
        merged.append(thing)
        await slices.rest()
    return merged


def _first(pair: tuple[Any, object]) -> Any:
    return pair[0]


def _pick(value: Any, path: list[str]) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _order(value: Any) -> tuple[int, Any]:
    """Return a sort key: numbers come before texts before other values, because a column may hold all of them."""
    if isinstance(value, int | float):
        return 0, value
    return (1, value) if isinstance(value, str) else (2, "")


def _columns(full: dict[str, Any], columns: list[list[str]]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for path in columns:
        at, value = chosen, _pick(full, path)
        if value is None:
            continue
        for step in path[:-1]:
            at = at.setdefault(step, {})
        at[path[-1]] = value
    return chosen


def page_of(query: Mapping[str, str]) -> tuple[int, int]:
    """Return the number of the page, from 1, and the number of items on one. Raise Problem 400."""
    size = _number({"page_size": str(PAGE_SIZE), **query}, "page_size", 1, PAGE_SIZE_MAX)
    return _number(query, "page", 1, 1 << 31), size


def _number(query: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = query[name]
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise bad_request(f"{name} must be a number between {least} and {most}")
    return int(text)


def no_items(_call: Call) -> Response:
    """Answer with an empty list for objects that RabbitMQ has and Kvitto does not, because its tools ask for them."""
    return answer([])
