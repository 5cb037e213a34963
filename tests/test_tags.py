"""The tags that tests and sources name are lines of docs/reliability.md, or rules of docs/cluster-model.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TAG, NUMBERED = r"[A-Z]\d*", r"[A-Z]\d+"
FIRST = re.compile(rf'"""({TAG}(?:-{TAG})?(?:, {TAG}(?:-{TAG})?)*)[:.,]')
"""A docstring that begins with tags."""
INSIDE = re.compile(rf"\(({NUMBERED}(?:-{NUMBERED})?(?:, {NUMBERED}(?:-{NUMBERED})?)*)\)")
"""Tags in parentheses, all with a number."""


def known() -> set[str]:
    """Tags of the tables, in headings, and the letters of the parts; the rules of replication."""
    text = (ROOT / "docs" / "reliability.md").read_text()
    rules = re.findall(r"^\| (R\d+) \|", (ROOT / "docs" / "cluster-model.md").read_text(), re.MULTILINE)
    rows = re.findall(rf"^\| ((?:{TAG}(?:, )?)+)[ |,]", text, re.MULTILINE)
    return {
        *rules,
        *re.findall(TAG, " ".join(rows)),
        *re.findall(rf"^#.*\(({TAG})\)$", text, re.MULTILINE),
        *re.findall(rf"^## ({TAG})\. ", text, re.MULTILINE),
    }


def used() -> Iterator[tuple[Path, str]]:
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py")]:
        for found in [*FIRST.findall(text := path.read_text()), *INSIDE.findall(text)]:
            for tag in re.findall(TAG, found):
                yield path, tag


def test_every_tag_is_defined() -> None:
    tags = known()
    assert {"C2", "A9", "P5", "Q", "W8", "X4"} <= tags
    assert not [f"{path.relative_to(ROOT)}: {tag}" for path, tag in used() if tag not in tags]
