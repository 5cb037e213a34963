"""The documents: their links lead to files and headings that exist, their lines are at most 120 characters long, and what they name of
the source is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


MEMBER = re.compile(r"`([A-Z]\w+)\.(\w+)[`(]")
"""A member of a class in backticks."""
MODULE = re.compile(r"(?<![\w/.-])((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)\b")
HISTORY = ROOT / "docs" / "adr"
"""A decision may name what there was before it."""


def members(node: ast.ClassDef) -> set[str]:
    """What a class defines: methods, class variables, and the attributes that its methods set."""
    found = {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    for n in ast.walk(node):
        if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Store):
            found.add(n.id if isinstance(n, ast.Name) else n.attr)
    return found


def classes() -> dict[str, list[tuple[set[str], list[str]]]]:
    """Classes of the source by name: the members and the names of the bases of each."""
    found: dict[str, list[tuple[set[str], list[str]]]] = {}
    for path in ROOT.glob("src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                found.setdefault(node.name, []).append((members(node), bases))
    return found


def texts() -> Iterator[tuple[Path, str]]:
    for path in DOCUMENTS:
        if HISTORY not in path.parents and path.name != "CHANGELOG.md":
            yield path, path.read_text()
    for path in ROOT.glob("src/**/*.py"):
        yield path, ast.get_docstring(ast.parse(path.read_text())) or ""


def test_members_of_classes_that_documents_and_module_docstrings_name_exist() -> None:
    known = classes()

    def has(name: str, member: str) -> bool:
        return any(member in own or any(has(base, member) for base in bases) for own, bases in known.get(name, []))

    named = [(path, *found) for path, text in texts() for found in MEMBER.findall(text) if found[0] in known]
    assert len(named) > 20
    assert [f"{path.relative_to(ROOT)}: {name}.{member}" for path, name, member in named if not has(name, member)] == []


def test_modules_that_the_architecture_names_exist() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    there = [f"/{path.relative_to(ROOT)}" for path in [*ROOT.glob("*.py"), *ROOT.glob("src/**/*.py")]]
    named = set(MODULE.findall(text))
    assert len(named) > 100
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in there)] == []
