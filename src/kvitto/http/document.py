"""Reads the JSON object in a request's body in slices.

Python's parser works in one piece: 3.5 s for 16 MiB of nested arrays. So the body is scanned first. A document with too
many values is refused, and strings that are too long for anything but a payload are read separately, in parts.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

from kvitto.base import limits
from kvitto.http.request import Problem, Text, bad_request
from kvitto.http.slices import Slices

LONG = 256 << 10
"""A string of more bytes is read in parts. This is longer than all properties of a message may be."""
SHORT_MAX = 1 << 20
"""The maximum number of bytes of a document without its long strings."""
PIECE_BYTES = 64 << 10
_STRING_PART = re.compile(
    rb'(?:[^"\\]{1,2048}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[^"\\]{4}|\\.){1,64}', re.DOTALL
)
"""Up to 128 KiB inside a string, not cut within an escape or a pair of them."""


async def parse(slices: Slices, body: bytearray) -> dict[str, Any]:
    """Return the object in the body; an empty body is an empty object. Raise Problem 400."""
    reader = _Reader(slices, body)
    await reader.read()
    return reader.value()


class _Reader:
    def __init__(self, slices: Slices, body: bytearray) -> None:
        self._slices = slices
        self._body = body
        self._values = 0
        self._rest: list[bytes] = []
        """The document, with NaN, which JSON does not have, in place of each long string."""
        self._kept = self._short = 0
        self._long: list[Text] = []

    async def read(self) -> None:
        body, at = self._body, 0
        while at < len(body):
            quote = body.find(b'"', at)
            end = len(body) if quote < 0 else quote
            await self._outside(at, end)
            at = end if quote < 0 else await self._string(quote)
            await self._slices.rest()
        self._keep(len(body))

    def _keep(self, end: int) -> None:
        self._short += end - self._kept
        if self._short > SHORT_MAX:
            raise bad_request(f"the document has more than {SHORT_MAX} bytes beside a long payload")
        self._rest.append(bytes(self._body[self._kept : end]))

    async def _outside(self, start: int, end: int) -> None:
        """Scan the bytes between two strings."""
        for at in range(start, end, PIECE_BYTES):
            piece = self._body[at : min(at + PIECE_BYTES, end)]
            if b"N" in piece or b"I" in piece:
                raise not_json()
            self._count(sum(piece.count(mark) for mark in (b",", b"[", b"{")))
            await self._slices.rest()

    def _count(self, more: int) -> None:
        self._values += more
        if self._values > limits.HTTP_VALUES_MAX:
            raise bad_request(f"the document has more than {limits.HTTP_VALUES_MAX} values")

    async def _string(self, quote: int) -> int:
        """Scan the string that begins at `quote`. Return the position after it."""
        body, start = self._body, quote + 1
        cuts = [start]
        while (part := _STRING_PART.match(body, cuts[-1])) is not None:
            cuts.append(part.end())
            await self._slices.rest()
        end = cuts[-1]
        if body[end : end + 1] != b'"':
            raise not_json()
        self._count(1)
        if end - start > LONG:
            self._keep(quote)
            self._rest.append(b"NaN")
            self._kept = end + 1
            self._long.append(Text(tuple([text async for text in self._texts(cuts)])))
        return end + 1

    async def _texts(self, cuts: list[int]) -> AsyncIterator[str]:
        decode = codecs.getincrementaldecoder("utf-8")().decode
        for start, end in pairwise(cuts):
            try:
                text = decode(self._body[start:end], end == cuts[-1])
                yield json.loads(f'"{text}"')
            except ValueError:
                raise not_json() from None
            await self._slices.rest()

    def value(self) -> dict[str, Any]:
        text = b"".join(self._rest)
        if not text.strip():
            return {}
        long = iter(self._long)
        try:
            value = json.loads(text.decode(), parse_constant=lambda _: next(long))
        except (ValueError, RecursionError):
            raise not_json() from None
        if not isinstance(value, dict):
            raise Problem(400, "not_json", "the body must be a JSON object")
        return value


def not_json() -> Problem:
    return Problem(400, "not_json", "the body is not JSON")
