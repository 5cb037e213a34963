"""The documents: their links lead to files and headings that exist, and their lines are at most 120 characters long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md")]
    + [path for folder in ("docs", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.md")]
    if "out" not in path.relative_to(ROOT).parts
)
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchor(heading: str) -> str:
    """What a heading is called in a link."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {anchor(heading) for heading in HEADING.findall(CODE.sub("", path.read_text()))}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(path: Path) -> None:
    wrong = []
    for link in LINK.findall(CODE.sub("", path.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        file, _, name = link.partition("#")
        there = path.parent / file if file else path
        if not there.exists() or (name and name not in anchors(there)):
            wrong.append(link)
    assert wrong == []


def prose(text: str) -> list[str]:
    """The lines of a document that can be wrapped: no code, no table."""
    return [line for line in CODE.sub("", text).splitlines() if not line.startswith(("|", "    "))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_prose_are_at_most_120_characters_long(path: Path) -> None:
    if "Written by `" in path.read_text():  # a report of a program
        pytest.skip("a program has written it")
    assert [line for line in prose(path.read_text()) if len(line) > 120] == []


def test_every_page_of_the_documents_is_on_their_map() -> None:
    text = (ROOT / "docs" / "README.md").read_text()
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} - {"README.md"}
    assert pages - set(LINK.findall(text)) == set()
