"""Writes docs/management-api.md from scripts/management-api.txt and the router. tests/http/test_path_table.py checks it.

.venv/bin/python scripts/management_api.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvitto.http.access import Access
from kvitto.http.router import Route, Router

HERE = Path(__file__).parent
CALLS = HERE / "management-api.txt"
PAGE = HERE.parent / "docs" / "management-api.md"
TAGS = {
    Access.ANYBODY: "anybody",
    Access.LOOPBACK: "this machine",
    Access.MANAGEMENT: "`management`",
    Access.MONITORING: "`monitoring`",
    Access.POLICYMAKER: "`policymaker`",
    Access.ADMINISTRATOR: "`administrator`",
}
HEAD = """# RabbitMQ's management API, call by call

Written by `scripts/management_api.py` from RabbitMQ's calls (its reference, and its router of version 4, without
plugins) and from Kvitto's router. [http.md](http.md) describes the calls. "Who" is the tag that the caller needs.
"""


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    late: bool
    """Whether RabbitMQ has it since version 4 only."""
    note: str


def sections(text: str) -> Iterator[tuple[str, list[Call]]]:
    """Yield the title of each section, and its calls."""
    title, found = "", list[Call]()
    for line in text.splitlines():
        if line.startswith("## "):
            if found:
                yield title, found
            title, found = line[3:], []
        elif line and not line.startswith("#"):
            what, _, note = line.partition(" ! ")
            *late, methods, path = what.split()
            found += [Call(method, path, bool(late), note) for method in methods.split(",")]
    yield title, found


def routes() -> dict[tuple[str, str], Route]:
    """Return Kvitto's routes by method and pattern."""
    found = {}
    for by_pattern in Router()._by_length.values():
        for parts, methods in by_pattern.items():
            for method, route in methods.items():
                found[method, "/" + "/".join(parts)] = route
    return found


def page() -> str:
    """Return the text of the page."""
    ours, parts, there = routes(), [HEAD], 0
    everything = list(sections(CALLS.read_text()))
    calls = [call for _, found in everything for call in found]
    for title, found in everything:
        lines = [f"\n## {title}\n", "| call | who | |", "|---|---|---|"]
        for call in found:
            route = ours.get((call.method, call.path))
            there += route is not None
            who = "missing" if route is None else TAGS[route.access]
            note = f"RabbitMQ 4. {call.note}".strip() if call.late else call.note
            lines.append(f"| `{call.method} {call.path}` | {who} | {note} |")
        parts.append("\n".join(lines) + "\n")
    parts[0] += f"\n{there} of {len(calls)} calls are answered.\n"
    known = {(call.method, call.path) for call in calls}
    own = sorted((key for key in ours.keys() - known if key[1].startswith("/api/")), key=lambda key: key[::-1])
    lines = ["\n## Calls that RabbitMQ does not have\n", "| call | who |", "|---|---|"]
    lines += [f"| `{method} {path}` | {TAGS[ours[method, path].access]} |" for method, path in own]
    return "".join([*parts, "\n".join(lines) + "\n"])


if __name__ == "__main__":
    PAGE.write_text(page())
