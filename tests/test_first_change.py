"""CONTRIBUTING.md, "Your first change": what the page says can be done as it says it, in the tree as it is.

The blocks are applied to a copy, and the first command of the page runs there, interpreted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^(?:`([\w./-]+)`:|```(diff|python|console)\n(.*?)^```)$", re.MULTILINE | re.DOTALL)
"""The name of a file on a line of its own, or a block, which belongs to the file that was named last."""


def steps() -> tuple[list[tuple[str, str, str]], list[str]]:
    """(file, kind, block) for each edit of the page, and its commands."""
    edits, commands, name = [], list[str](), ""
    # a heading inside of a block is no heading of the page
    text = (ROOT / "CONTRIBUTING.md").read_text()
    page = text[text.index("\n## Your first change\n") :]
    for file, kind, block in BLOCK.findall(page[: page.index("\n## Interpreted")]):
        name = file or name
        if kind == "console":
            commands += [line.removeprefix("$ ") for line in block.splitlines()]
        elif kind:
            edits.append((name, kind, block))
    return edits, commands


def applied(text: str, diff: str) -> str:
    """The text after the edit: the lines without + are there once, and become those without -."""
    lines = [(line[:1], line[1:]) for line in diff.splitlines()]
    before = "".join(f"{line}\n" for sign, line in lines if sign != "+")
    after = "".join(f"{line}\n" for sign, line in lines if sign != "-")
    assert text.count(f"\n{before}") == 1, f"the page expects this once:\n{before}"
    return text.replace(f"\n{before}", f"\n{after}")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree with the page's edits. Empty folders stand for what its documents link to but the change leaves alone."""
    place = tmp_path_factory.mktemp("first") / "kvitto"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "out", "locks", "corpus")
    for name in ("src", "tests", "docs", "examples", "benchmarks", "scripts", ".github", ".devcontainer"):
        shutil.copytree(ROOT / name, place / name, ignore=unwanted)
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, place)
    for name, kind, block in steps()[0]:
        path = place / name
        assert path.exists() == (kind == "diff"), name
        path.write_text(applied(path.read_text(), block) if kind == "diff" else block)
    return place


def run(place: Path, command: str) -> None:
    """Run it as the page says, with this virtual environment and the copy's sources."""
    bin_, *arguments = command.split()
    program = [str(Path(sys.executable).parent / Path(bin_).name), *arguments]
    own = {"KVITTO_PURE": "1", "PYTHONPATH": str(place / "src"), "PYTEST_ADDOPTS": ""}
    environment = {**os.environ, **own}
    environment.pop("KVITTO_REQUIRE_COMPILED", None)  # the copy is not compiled, whatever this run is
    done = subprocess.run(program, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tests_of_the_page_pass_with_its_change(copy: Path) -> None:
    first, _ = steps()[1]
    assert first.startswith(".venv/bin/pytest tests/protocol/test_max_consumers.py ")
    run(copy, first)


def test_what_the_page_adds_is_formatted_and_typed_as_all_of_the_code(copy: Path) -> None:
    files = " ".join(sorted({name for name, _, _ in steps()[0] if name.endswith(".py")}))
    run(copy, f"ruff check {files}")
    run(copy, f"ruff format --check {files}")


def test_the_change_touches_three_files_of_the_source_at_most() -> None:
    assert len({name for name, _, _ in steps()[0] if name.startswith("src/")}) <= 3
