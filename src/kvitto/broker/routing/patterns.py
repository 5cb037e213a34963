"""The regular expressions that users write, in policies, permissions and filters of lists. A search takes linear time.

With a badly written or malicious expression, the time of a backtracking engine doubles with each letter of a name, and the broker
serves nobody else meanwhile. So RE2 is used. It works on bytes, as RabbitMQ does, and has no lookarounds and no backreferences,
since these take more than linear time. RabbitMQ's users do write `^(?!amq\\.)`, so a lookahead at the start is split into parts
that are searched for one by one (docs/policies.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import re2

PATTERN_MAX = 8192
"""The longest pattern, in bytes. RE2 needs up to 6 ms for the worst expressions of this length."""
MEMORY_MAX = 128 << 10
"""Bytes of a compiled expression and its search. If they do not suffice, the search takes up to 5 ms for a name of 255 bytes."""


_PROPERTY = re.compile(r"(?<!\\)(?:\\\\)*\\[pP]")


def _options(caseless: bool) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = MEMORY_MAX
    options.never_capture = True
    options.log_errors = False
    options.case_sensitive = not caseless
    return options


_OPTIONS, _CASELESS = _options(False), _options(True)


class InvalidPattern(ValueError):
    """An expression cannot be used. The text says why."""


class Pattern:
    """An expression that is searched for in names. `refused` says why it can match nothing, and is "" for a valid expression."""

    def __init__(self, text: str, parts: tuple[tuple[Any, bool], ...], refused: str = "") -> None:
        self.text = text
        self.refused = refused
        self._parts = parts
        self.cost: int = 5 + sum(part.programsize for part, _ in parts)
        """The cost of a search in one name, at worst, in units of about a microsecond."""
        self._always = text == ".*"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.text == other.text and self.refused == other.refused

    def __hash__(self) -> int:
        return hash(self.text)

    def found_in(self, name: str) -> bool:
        if self._always:
            return True
        if self.refused:
            return False
        encoded = name.encode("utf-8", "surrogateescape")
        return all((part.search(encoded) is not None) is wanted for part, wanted in self._parts)


def compile_pattern(text: str, caseless: bool = False) -> Pattern:
    """Compile an expression. Raises InvalidPattern."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidPattern(f"{text!r} is not UTF-8") from None
    if size > PATTERN_MAX:
        raise InvalidPattern(f"a pattern has at most {PATTERN_MAX} bytes, this one has {size}")
    options = _CASELESS if caseless else _OPTIONS
    parts = [(_compile(part, text, options), wanted) for part, wanted in _parts(text)]
    return Pattern(text, tuple(parts))


def stored_pattern(text: str) -> Pattern:
    """Compile an expression that was accepted once. If this version cannot use it, it matches nothing, and `refused` says why."""
    try:
        return compile_pattern(text)
    except InvalidPattern as error:
        return Pattern(text, (), str(error))


def _compile(part: str, whole: str, options: Any) -> Any:
    try:
        return re2.compile(part.encode(), options)
    except re2.error as error:
        raise InvalidPattern(f"{whole!r} cannot be a pattern: {_why(error)}") from None


def _why(error: re2.error) -> str:
    given = error.args[0] if error.args else ""
    said = given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)
    if said.endswith(("(?=", "(?!")):
        return "a lookahead is possible only at the start, as in ^(?!amq\\.)"
    if said.endswith(("(?<", "(?<=", "(?<!")):
        return "lookbehinds are not possible"
    if said.startswith("invalid escape sequence: \\") and said[-1:].isdigit():
        return "backreferences are not possible"
    return f"it is no regular expression that RE2 can search in linear time: {said}"


# -- lookaheads at the start ---------------------------------------------------------------------------------

AHEAD = ("^(?!", "^(?=")


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Yield expressions, and whether each must match: `^(?!a)b` becomes `^(?:a)`, which must not match, and `^b`, which must."""
    if _PROPERTY.search(text):  # compiling many of them takes seconds
        raise InvalidPattern(
            f"{text!r} cannot be a pattern: names are searched as bytes, without the properties of \\p"
        )
    rest = text
    while rest.startswith(AHEAD):
        end = _end_of_group(rest)
        wanted, inner, rest = rest[3] == "=", rest[4:end], "^" + rest[end + 1 :]
        if rest[1:2] in ("*", "+", "?", "{") or _has_alternatives(rest):
            raise InvalidPattern(f"{text!r} cannot be a pattern: put what follows the lookahead into parentheses")
        yield f"^(?:{inner})", wanted
    yield rest, True


def _end_of_group(text: str) -> int:
    """Return where the parenthesis behind the anchor is closed."""
    depth = 0
    for i, token in _tokens(text):
        depth += (token == "(") - (token == ")")
        if token == ")" and depth == 0:
            return i
    raise InvalidPattern(f"{text!r} cannot be a pattern: a ) is missing")


def _has_alternatives(text: str) -> bool:
    depth = 0
    for _, token in _tokens(text):
        depth += (token == "(") - (token == ")")
        if token == "|" and depth <= 0:
            return True
    return False


def _tokens(text: str) -> Iterator[tuple[int, str]]:
    """Yield escapes and single characters with their positions, without those in classes and in `\\Q` quotes."""
    i = 0
    while i < len(text):
        token = text[i : i + 2] if text[i] == "\\" else text[i]
        yield i, token
        if token == "\\Q":
            i = _behind(text, "\\E", i)
        elif token == "[":
            i = _behind_class(text, i)
        else:
            i += len(token)


def _behind_class(text: str, start: int) -> int:
    """Return the position behind a class. A ] that is its first character belongs to it."""
    i = start + 1
    i += text.startswith("^", i)
    i += text.startswith("]", i)
    while i < len(text) and text[i] != "]":
        i = _behind(text, ":]", i) if text.startswith("[:", i) else i + 1 + (text[i] == "\\")
    return i + 1


def _behind(text: str, what: str, start: int) -> int:
    found = text.find(what, start)
    return len(text) if found < 0 else found + len(what)
