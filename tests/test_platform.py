"""What contributors build on: workflows, hooks, templates and the container agree with the Makefile and pyproject.toml.

None of them runs here, so what can be said by reading them is said here.
"""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvitto.store.store import FORMAT
from tests.support import plain_yaml

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
YAML = [*WORKFLOWS, *sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ROOT / ".pre-commit-config.yaml"]
NAMING_TARGETS = [
    *YAML,
    ROOT / ".github" / "pull_request_template.md",
    ROOT / ".devcontainer" / "devcontainer.json",
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
COMMAND = re.compile(r"(?:`|^ {4}|run: |command: |: \"|\$ )make ([a-z][^`\"\n#]*)", re.MULTILINE)
"""`make` where it is a command and no verb: in backquotes, in a block of code, in a step."""
MAJOR = re.compile(r"actions/[a-z-]+@v\d+")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read(path: Path) -> Any:
    return plain_yaml.parse(path.read_text())


def targets() -> set[str]:
    """What the Makefile can make, without patterns and files."""
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands(text: str) -> list[str]:
    """Targets that a text tells somebody to make; `SEED=7` and the like are not targets."""
    words = [word for rest in COMMAND.findall(text) for word in re.split(r"  |\.$|, ", rest)[0].split()[:1]]
    return [word.rstrip(".,;:") for word in words]


def jobs() -> list[Any]:
    found = [(path, name, job) for path in WORKFLOWS for name, job in read(path)["jobs"].items()]
    return [pytest.param(job, id=f"{path.stem}-{name}") for path, name, job in found]


def described() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return project


def pythons() -> list[str]:
    """Those that pyproject.toml says Kvitto runs on."""
    found = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c) for c in described()["project"]["classifiers"]
    ]
    return [match[1] for match in found if match]


@pytest.mark.parametrize("path", NAMING_TARGETS, ids=name_of)
def test_every_make_target_that_is_named_is_in_the_makefile(path: Path) -> None:
    assert set(commands(path.read_text())) - targets() == set()


def test_make_as_a_command_is_told_from_make_as_a_verb() -> None:
    text = "`make sim SEED=7`, and make sure\n    make quick\n      - run: make lint\n$ make compat     # all\n"
    assert commands(text) == ["sim", "quick", "lint", "compat"]


def test_every_target_is_told_by_help_and_declared_phony() -> None:
    text = (ROOT / "Makefile").read_text()
    assert set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split()) == targets()  # type: ignore[index]
    told = set(re.findall(r"make ([a-z]+)", "\n".join(re.findall(r"^#   (.*)$", text, re.MULTILINE))))
    assert targets() - {"help", "prerequisites"} == told


@pytest.mark.parametrize("path", YAML, ids=name_of)
def test_yaml_of_the_platform_parses(path: Path) -> None:
    assert isinstance(read(path), dict)


def test_the_container_parses_and_has_the_oldest_python() -> None:
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    recipe = (ROOT / ".devcontainer" / container["build"]["dockerfile"]).read_text()
    assert re.search(r"^FROM python:(3\.\d+)-", recipe, re.MULTILINE)[1] == pythons()[0]  # type: ignore[index]
    assert f"useradd --create-home --shell /bin/bash {container['remoteUser']}" in recipe


def test_the_versions_of_python_are_the_same_everywhere() -> None:
    assert described()["project"]["requires-python"] == f">={pythons()[0]}"
    assert read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == pythons()
    built = [f"cp{version.replace('.', '')}-*" for version in pythons()]
    assert described()["tool"]["cibuildwheel"]["build"] == built


def test_the_documents_name_the_format_that_is_written() -> None:
    number = FORMAT.decode().split()[1]
    assert f"It is {number} today" in (ROOT / "docs" / "releases.md").read_text()
    assert (ROOT / "docs" / "formats.md").read_text().startswith(f"# Formats on disk (format version {number})\n")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout of its own to package: the one here is not written to. Examples lie beside src, as they do here."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "examples", "tests"):
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, copy / name, ignore=unwanted)
    return copy


def package(sources: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "setup.py", "-q", *arguments], cwd=sources, capture_output=True, check=True)


def test_a_build_for_a_python_without_the_global_lock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = runpy.run_path(str(ROOT / "setup.py"), run_name="recipe")
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    with pytest.raises(SystemExit, match="does not support free-threaded Python"):
        recipe["refuse_free_threading"]()


def shipped() -> set[str]:
    """All that an installed Kvitto is made of, but for its compiled modules."""
    kinds = {".py", ".pxd", ".typed"}
    paths = {path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*") if path.suffix in kinds}
    return {str(path) for path in paths} - {"kvitto_checkout.py"}


def test_a_wheel_has_the_packages_of_src_and_neither_examples_nor_the_finder_of_a_checkout(sources: Path) -> None:
    package(sources, "build_py", "--build-lib", "built")
    built = {str(path.relative_to(sources / "built")) for path in (sources / "built").rglob("*") if path.is_file()}
    assert built == shipped()


def test_the_source_distribution_has_all_that_a_build_needs_and_no_more(sources: Path) -> None:
    package(sources, "sdist", "--dist-dir", "dist")
    (archive,) = (sources / "dist").iterdir()
    with tarfile.open(archive) as opened:
        names = {member.name.partition("/")[2] for member in opened if member.isfile()}
    made = {name for name in names if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    beside = {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"}
    assert names - made == {f"src/{name}" for name in shipped()} | beside


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_a_workflow_may_only_read_and_runs_once_at_a_time(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"].keys() == {"group", "cancel-in-progress"}


@pytest.mark.parametrize("job", jobs())
def test_a_job_ends_and_calls_the_makefile_alone(job: Any) -> None:
    """It may install programs before. The job that drafts a release has the right to write, so it runs nothing of the
    repository."""
    assert "timeout-minutes" in job
    runs = [step["run"] for step in job["steps"] if "run" in step]
    if "permissions" in job:
        assert [run.split()[:3] for run in runs] == [["gh", "release", "create"]]
        assert not any("actions/checkout" in step.get("uses", "") for step in job["steps"])
    else:
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [])
        in_matrix = [row["command"] for row in rows if "command" in row]
        installs = "sudo apt-get update && sudo apt-get install -y --no-install-recommends "
        assert all(run.startswith(("make ", installs)) for run in runs + in_matrix if run != "${{ matrix.command }}")
    # where make sets up the virtual environment, it is told of which Python
    assert not runs or "permissions" in job or job["env"]["PYTHON"].startswith("python")


@pytest.mark.parametrize("job", jobs())
def test_actions_are_pinned_and_checkouts_keep_no_token(job: Any) -> None:
    for step in job["steps"]:
        action = step.get("uses", "actions/checkout@v1")
        # cibuildwheel has tags for major and minor version together only
        assert MAJOR.fullmatch(action) or re.fullmatch(r"pypa/cibuildwheel@v\d+\.\d+", action)
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"] == {"persist-credentials": "false"}


def test_the_hooks_run_what_is_locked_and_fetch_nothing() -> None:
    (source,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert source["repo"] == "local"
    assert [hook["id"] for hook in source["hooks"]] == ["ruff-format", "ruff-check", "mypy", "lint-imports"]
    assert all(hook["language"] == "system" and hook["entry"].startswith(".venv/bin/") for hook in source["hooks"])


@pytest.mark.parametrize("name", ["bug.yml", "feature.yml"])
def test_a_form_has_a_field_for_each_answer(name: str) -> None:
    form = read(ROOT / ".github" / "ISSUE_TEMPLATE" / name)
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    assert all(field["attributes"]["label"] and field["attributes"]["description"] for field in fields)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2\n",
        "a:\n\tb: 1\n",
        "a: b: c\n",
        "a: [b\n",
        'a: "b\n',
        "a:\n    b: 1\n  c: 2\n",
        "- a\nb: 1\n",
        "a: &b c\n",
    ],
    ids=["key twice", "tab", "two colons", "bracket", "quote", "indented", "list, then key", "anchor"],
)
def test_what_is_not_plain_yaml_is_a_mistake(text: str) -> None:
    with pytest.raises(plain_yaml.Mistake):
        plain_yaml.parse(text)


def test_plain_yaml_is_read_as_it_looks() -> None:
    text = '# x\na: [b, "c"]\ne:  # why\n  - f: 1\n    g: h # i\n  - j\nk: |\n  l: m\n\n  # n\no:\n'
    assert plain_yaml.parse(text) == {"a": ["b", "c"], "e": [{"f": "1", "g": "h"}, "j"], "k": "l: m\n\n# n", "o": ""}
