"""Finds the items of a document of definitions: a JSON object of lists, as RabbitMQ exports it.

A document may have tens of MiB, so it is scanned in pieces, and each item is parsed when it is its turn. `Document.scan` and
`Document.items` are steps of long work: between two of them others may go on. `plan.py` calls them.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Generator, Iterator
from typing import Any

from kvitto.base import limits
from kvitto.broker.jobs import Cost

_SPACE = re.compile(rb"[ \t\r\n]{0,65536}+")
_MARK = re.compile(rb'["\[\]{}]')
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_STRING_PART = re.compile(rb"(?:[^\"\\]{1,4096}+|\\.){1,16}+", re.DOTALL)
_SCALAR = re.compile(rb"[^ \t\r\n,\[\]{}\":]{1,400}+")
KEY_MAX = 8 << 10
"""The most bytes of the name of a member."""
WINDOW = 64 << 10
"""The most bytes that are searched in one step."""
MEMBER, VALUE = 10, 3
"""The costs of finding a member and a value, in the units of jobs.PIECE."""
BYTES, STRING_BYTES = 1 << 10, 1 << 6
"""So many bytes cost one unit; a string takes longer, because it may have many escapes."""


class Malformed(ValueError):
    """The document cannot be read at all. The text says why."""


class Repeated(ValueError):
    """A JSON object has one key twice. Which of the values counts is anybody's guess, so none does."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Repeated(f"the key {twice!r} is there twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)


class Broken:
    """Stands for an item that cannot be parsed. `reason` says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Document:
    """`body[start:end]` is the document. After `scan`, `values` has the members that are not lists, and `lists` where items are."""

    def __init__(self, body: bytearray | bytes, start: int = 0, end: int | None = None) -> None:
        self._body = body
        self._at = start
        self._end = len(body) if end is None else end
        self.values: dict[str, Any] = {}
        self.lists: dict[str, array[int]] = {}
        """By name of a list, start and end of each item. An item that is too large has the end -1."""
        self.size = 0
        """The bytes of the item that `items` has yielded last."""
        self._cost = Cost()

    def scan(self) -> Generator[None, None, None]:
        """Find all items. Raises Malformed."""
        if bytes(self._body[self._at : self._at + 3]) == b"\xef\xbb\xbf":  # Windows' editors begin a file with it
            self._at += 3
        yield from self._space()
        self._take(b"{")
        yield from self._space()
        while not self._is(b"}"):
            key = yield from self._key()
            if key in self.lists or key in self.values:
                raise Malformed(f"the list {key!r} is there twice")
            if len(self.lists) + len(self.values) >= limits.DEFINITION_MEMBERS_MAX:
                raise Malformed(f"the document has more than {limits.DEFINITION_MEMBERS_MAX} members")
            if self._is(b"["):
                yield from self._list(key)
            else:
                self.values[key] = yield from self._small(key)
            yield from self._comma(b"}")
            if self._cost.spend(MEMBER):
                yield
        self._take(b"}")
        yield from self._space()
        if self._at != self._end:
            raise self._unexpected()

    def items(self, name: str) -> Iterator[Any]:
        """Yield the items of a list, parsed. One that cannot be parsed is a `Broken`."""
        found = self.lists.get(name)
        if found is None:
            return
        for i in range(0, len(found), 2):
            if found[i + 1] < 0:
                self.size = 0
                most = f"{limits.DEFINITION_BYTES_MAX} bytes, {limits.DEFINITION_VALUES_MAX} values"
                yield Broken(f"it has more than {most} or {limits.JSON_DEPTH_MAX} levels")
            else:
                self.size = found[i + 1] - found[i]
                yield self._parse(found[i], found[i + 1])

    def count(self, name: str) -> int:
        found = self.lists.get(name)
        return 0 if found is None else len(found) // 2

    def _parse(self, start: int, end: int) -> Any:
        try:
            return _DECODER.decode(bytes(self._body[start:end]).decode())
        except Repeated as error:
            return Broken(str(error))
        except ValueError:
            return Broken(f"it is not JSON, or has a number that is too large (bytes {start} to {end} of the document)")

    # -- scanning ------------------------------------------------------------------------------------------------

    def _is(self, mark: bytes) -> bool:
        return self._at < self._end and self._body[self._at] == mark[0]

    def _take(self, mark: bytes) -> None:
        if not self._is(mark):
            raise self._unexpected()
        self._at += 1

    def _unexpected(self) -> Malformed:
        if self._at >= self._end:
            return Malformed("the document is not JSON: it ends too early")
        return Malformed(f"the document is not JSON: byte {self._at} is not expected there")

    def _space(self) -> Generator[None, None, None]:
        while (found := _SPACE.match(self._body, self._at, self._end)) is not None and found.end() > self._at:
            self._at = found.end()
            if self._cost.spend(1 + (found.end() - found.start()) // BYTES):
                yield

    def _comma(self, close: bytes) -> Generator[None, None, None]:
        """Go behind the comma after a member or an item; the closing mark stays."""
        yield from self._space()
        if self._is(b","):
            self._at += 1
            yield from self._space()
            if self._is(close):
                raise self._unexpected()
        elif not self._is(close):
            raise self._unexpected()

    def _key(self) -> Generator[None, None, str]:
        start = self._at
        found = _STRING.match(self._body, start, min(self._end, start + KEY_MAX))
        if found is None:
            raise self._unexpected()
        self._at = found.end()
        key = self._parse(start, found.end())
        if isinstance(key, Broken):
            self._at = start
            raise self._unexpected()
        yield from self._space()
        self._take(b":")
        yield from self._space()
        return str(key)

    def _small(self, key: str) -> Generator[None, None, Any]:
        """Read a member that is not a list, like the version of the broker that wrote the document."""
        start = self._at
        fits = yield from self._skip()
        value = self._parse(start, self._at) if fits else Broken("it is too large")
        if isinstance(value, Broken):
            raise Malformed(f"the value of {key!r} cannot be used: {value.reason}")
        return value

    def _list(self, key: str) -> Generator[None, None, None]:
        found = self.lists[key] = array("q")
        self._at += 1
        yield from self._space()
        while not self._is(b"]"):
            start = self._at
            fits = yield from self._skip()
            found.append(start)
            found.append(self._at if fits else -1)
            if len(found) > 2 * limits.DEFINITIONS_MAX:
                raise Malformed(f"the list {key!r} has more than {limits.DEFINITIONS_MAX} items")
            yield from self._comma(b"]")
            if self._cost.spend(VALUE):
                yield
        self._at += 1

    def _skip(self) -> Generator[None, None, bool]:
        """Go behind a value. Return whether it is small enough to be parsed in one step."""
        start = self._at
        if not (self._is(b"{") or self._is(b"[")):
            if self._is(b'"'):
                yield from self._string()
            else:
                found = _SCALAR.match(self._body, start, self._end)
                if found is None:
                    raise self._unexpected()
                self._at = found.end()
            return self._at - start <= limits.DEFINITION_BYTES_MAX
        depth = marks = deepest = 0
        while True:
            before = self._at
            found = _MARK.search(self._body, before, min(self._end, before + WINDOW))
            if found is None:
                self._at = min(self._end, before + WINDOW)
                if self._at >= self._end:
                    raise self._unexpected()
            else:
                self._at = found.start()
                marks += 1
                if self._is(b'"'):
                    yield from self._string()
                else:
                    depth += 1 if self._is(b"{") or self._is(b"[") else -1
                    deepest = max(deepest, depth)
                    self._at += 1
                    if not depth:
                        break
            if self._cost.spend(1 + (self._at - before) // BYTES):
                yield
        size = self._at - start
        if size > limits.DEFINITION_BYTES_MAX or deepest > limits.JSON_DEPTH_MAX:
            return False
        return marks + self._body.count(b",", start, self._at) <= limits.DEFINITION_VALUES_MAX

    def _string(self) -> Generator[None, None, None]:
        """Go behind a string. A long one takes several steps."""
        found = _STRING.match(self._body, self._at, min(self._end, self._at + WINDOW))
        size = WINDOW if found is None else found.end() - self._at
        if self._cost.spend(size // STRING_BYTES):
            yield
        if found is not None:
            self._at = found.end()
            return
        self._at += 1
        while (part := _STRING_PART.match(self._body, self._at, self._end)) is not None:
            self._at = part.end()
            if self._cost.spend(100):
                yield
        self._take(b'"')
