"""Exceptions at generated call sites of the data plane (docs/adr/0015): in a process of its own, in which all calls are marked."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inject import runs, sites

ROOT = Path(__file__).resolve().parents[2]
EXCEPTIONS = int(os.environ.get("KVITTO_EXCEPTIONS", "250"))
SEED = int(os.environ.get("KVITTO_SEED", "0")) or int.from_bytes(os.urandom(3), "big")


def functions_of(path: str) -> set[str]:
    """The names of all functions of a module below src/kvitto."""
    tree = ast.parse((sites.SOURCES / "kvitto" / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "function"), sorted(runs.SKELETON))
def test_what_all_turns_have_in_common_is_where_the_harness_says(path: str, function: str) -> None:
    assert function in runs.PARTS | functions_of(path)


@pytest.mark.parametrize("path", sorted(sites.WALLS | sites.NOT_AT_RUN_TIME | runs.ENDS_THE_PROCESS))
def test_the_modules_that_the_harness_names_are_there(path: str) -> None:
    assert (sites.SOURCES / "kvitto" / path).is_file()


@pytest.mark.parametrize(
    "path", ["broker/broker.py", "broker/queues/work_queue.py", "broker/transfers/stages.py", "protocol/methods/tx.py"]
)
def test_calls_are_marked_in_modules_of_all_folders_of_the_data_plane(path: str) -> None:
    assert sites.is_marked(path) and (sites.SOURCES / "kvitto" / path).is_file()
    assert not sites.is_marked("http/api.py") and not sites.is_marked("store/repair/survey.py")


@pytest.mark.skipif(os.environ.get("KVITTO_PURE") != "1", reason="the calls of the interpreted form are marked")
@pytest.mark.timeout(600)
def test_an_exception_anywhere_ends_its_owner_only_and_loses_nothing_that_was_confirmed() -> None:
    """C2, A6, T4, X4: `KVITTO_EXCEPTIONS=100000` raises at all sites of these days."""
    command = [sys.executable, "-m", "tests.inject", "--seed", str(SEED), "--days", "2", "--most", str(EXCEPTIONS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    assert done.stdout.endswith("\n0 findings\n")
