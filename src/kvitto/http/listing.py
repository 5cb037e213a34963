"""Answers that are lists: RabbitMQ's query parameters columns, sort, sort_reverse, page, page_size and name.

A list may be long: it is rendered in pieces, between which the broker goes on working.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kvitto.http.api import Call
from kvitto.http.request import Response, answer, bad_request, encode

T = TypeVar("T")

PIECE = 100
PAGE_SIZE = 100
PAGE_SIZE_MAX = 500


async def answer_list(
    call: Call, things: Iterable[T], view: Callable[[T], dict[str, Any]], name: Callable[[T], str] | None = None
) -> Response:
    """`view` makes the JSON of one thing, `name` is what ?name= looks into."""
    query = call.request.query
    found = list(things)
    if query.get("use_regex") == "true":
        raise bad_request("use_regex is not supported, name is looked for as it is")
    part, total = query.get("name", ""), len(found)
    if part and name is not None:
        found = [thing for thing in found if part in name(thing)]
    if "page" not in query:
        return Response(body=b"[" + b",".join(await _rendered(found, view, query)) + b"]")
    page = _number(query, "page", 1, 1 << 31)
    size = _number({"page_size": str(PAGE_SIZE), **query}, "page_size", 1, PAGE_SIZE_MAX)
    count = max((len(found) + size - 1) // size, 1)
    if page > count:
        raise bad_request(f"page {page} is behind the last one, {count}")
    if "sort" in query:
        items = (await _rendered(found, view, query))[(page - 1) * size : page * size]
    else:
        items = await _rendered(found[(page - 1) * size : page * size], view, query)
    head = {"filtered_count": len(found), "item_count": len(items), "page": page, "page_count": count}
    rest = {"page_size": size, "total_count": total}
    return Response(body=encode({**head, **rest})[:-1] + b',"items":[' + b",".join(items) + b"]}")


async def _rendered(things: list[T], view: Callable[[T], dict[str, Any]], query: Mapping[str, str]) -> list[bytes]:
    columns = [column.split(".") for column in query.get("columns", "").split(",") if column]
    sort = query["sort"].split(".") if query.get("sort") else None
    keyed: list[tuple[Any, bytes]] = []
    for i, thing in enumerate(things):
        if i % PIECE == PIECE - 1:
            await asyncio.sleep(0)
        full = view(thing)
        key = _order(_pick(full, sort)) if sort else None
        keyed.append((key, encode(_columns(full, columns) if columns else full)))
    if sort:
        keyed.sort(key=lambda pair: pair[0], reverse=query.get("sort_reverse") == "true")
    return [text for _, text in keyed]


def _pick(value: Any, path: list[str]) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _order(value: Any) -> tuple[int, Any]:
    """Numbers before texts before what is neither: a column may hold all of them."""
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


def _number(query: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = query[name]
    if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
        raise bad_request(f"{name} must be a number between {least} and {most}")
    return int(text)


def no_items(_call: Call) -> Response:
    """For what RabbitMQ has and Kvitto has not: its tools ask for it all the same."""
    return answer([])
