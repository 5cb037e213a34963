"""The plain part of YAML that the platform's files are written in, read strictly; no YAML parser is among the locked packages.

Mappings, lists, lists in brackets, empty mappings, quoted and plain scalars, and text blocks (`|`, `>`). Every scalar is a string.
What YAML would read in another way than it looks (tabs, anchors, a colon or a hash inside a plain scalar, a key twice)
is a mistake here.
"""

from __future__ import annotations

import json
import re

Node = dict[str, "Node"] | list["Node"] | str
KEY = re.compile(r"([A-Za-z_][\w.-]*):(?: +(.*))?$")
COMMENT = re.compile(r"(?:^|\s+)#.*$")
BLOCK = re.compile(r"[|>]-?$")
MISLEADING = re.compile(r"^[&*!|>%@`{?]|^- |: |:$")


class Mistake(ValueError):
    """A line that is not YAML, or not the plain part of it."""


def parse(text: str) -> Node:
    """The content of a file."""
    if "\t" in text:
        raise Mistake(f"line {text[: text.index(chr(9))].count(chr(10)) + 1}: a tab indents nothing; put spaces")
    reader = Reader(text)
    found = reader.node(0)
    if reader.at < len(reader.lines):
        raise Mistake(f"line {reader.number}: it is indented in another way than the lines before it")
    return found


class Reader:
    """The lines, and which one is next."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.at = 0
        self.skip()

    @property
    def number(self) -> int:
        return self.at + 1

    def skip(self) -> None:
        """Go on to the next line that says something."""
        while self.at < len(self.lines) and not COMMENT.sub("", self.lines[self.at]).strip():
            self.at += 1

    def indent(self) -> int:
        """Of the next line, -1 at the end."""
        if self.at == len(self.lines):
            return -1
        line = self.lines[self.at]
        return len(line) - len(line.lstrip(" "))

    def node(self, indent: int) -> Node:
        if self.indent() != indent:
            raise Mistake(f"line {self.number}: something indented by {indent} is missing")
        return self.items(indent) if self.lines[self.at].lstrip().startswith("- ") else self.mapping(indent)

    def items(self, indent: int) -> list[Node]:
        found: list[Node] = []
        while self.indent() == indent:
            content = self.lines[self.at].lstrip()
            if not content.startswith("- "):
                raise Mistake(f"line {self.number}: this is not an item of the list")
            if KEY.match(content[2:]):
                # a mapping begins behind the dash, two columns further in
                self.lines[self.at] = " " * (indent + 2) + content[2:]
                found.append(self.mapping(indent + 2))
            else:
                found.append(self.scalar(content[2:]))
                self.at += 1
                self.skip()
        return found

    def mapping(self, indent: int) -> dict[str, Node]:
        found: dict[str, Node] = {}
        while self.indent() == indent and not self.lines[self.at].lstrip().startswith("- "):
            match = KEY.match(self.lines[self.at].strip())
            if match is None or match[1] in found:
                raise Mistake(f"line {self.number}: this is no key, or it is there twice")
            value = COMMENT.sub("", match[2] or "") if not (match[2] or "").startswith(('"', "'")) else match[2]
            found[match[1]] = self.value(value, indent)
        return found

    def value(self, text: str, indent: int) -> Node:
        """What stands behind a key, or below it."""
        if BLOCK.match(text):
            return self.block(indent)
        here = self.scalar(text)
        self.at += 1
        self.skip()
        return self.node(self.indent()) if not text and self.indent() > indent else here

    def block(self, indent: int) -> str:
        """Lines of text as they are, as far as they are indented."""
        self.at += 1
        first = self.at
        while self.at < len(self.lines) and (self.indent() > indent or not self.lines[self.at].strip()):
            self.at += 1
        lines = self.lines[first : self.at]
        self.skip()
        return "\n".join(line.strip() for line in lines)

    def scalar(self, text: str) -> Node:
        if text == "{}":
            return {}
        if text.startswith("["):
            if not text.endswith("]"):
                raise Mistake(f"line {self.number}: the bracket is not closed")
            return [self.scalar(part.strip()) for part in text[1:-1].split(",") if part.strip()]
        if text.startswith('"'):
            try:
                return str(json.loads(text))
            except ValueError as error:
                raise Mistake(f"line {self.number}: {error}") from None
        if text.startswith("'") or MISLEADING.search(text):
            raise Mistake(f"line {self.number}: put {text!r} into double quotes")
        return COMMENT.sub("", text)
