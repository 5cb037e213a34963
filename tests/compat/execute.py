"""Runs one suite with its own test runner in a process of its own and reads the JUnit report that it leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.compat.fetch import CACHE, python_of, tests_of
from tests.compat.suites import Broker, Suite

Brokers = Callable[[], contextlib.AbstractContextManager[Broker]]


@dataclass
class Outcome:
    """What became of each test, by id. `unsteady` failed at first and passed when run once more by itself."""

    passed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    unsteady: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    trouble: str = ""
    log: Path | None = None


def run_suite(suite: Suite, brokers: Brokers, *, quick: bool, extra: dict[str, str], select: str = "") -> Outcome:
    """Runs the suite; what failed is run a second time, as timing on a busy machine is not the broker's fault.

    The second time is with a fresh broker where there is one: several suites leave queues behind when they fail.
    """
    started = time.monotonic()
    place = tests_of(suite)
    report = CACHE / f"{suite.name}-{os.getpid()}.xml"
    log = CACHE / f"{suite.name}.log"
    command = _command(suite, report, quick=quick, select=select)
    with brokers() as broker, log.open("w") as output:
        trouble = _watched(command, place, _variables(suite, broker, extra), output, suite.suite_timeout)
    outcome = read_report(report, trouble, log)
    if outcome.failed and suite.venv and not trouble:
        with brokers() as broker:
            _again(command, suite, place, _variables(suite, broker, extra), report, outcome)
    outcome.seconds = time.monotonic() - started
    return outcome


def _variables(suite: Suite, broker: Broker, extra: dict[str, str]) -> dict[str, str]:
    variables = suite.variables(broker, extra)
    if suite.venv:  # celery's tests call programs of their environment
        variables["PATH"] = f"{python_of(suite).parent}{os.pathsep}{variables['PATH']}"
    return variables


def _command(suite: Suite, report: Path, *, quick: bool, select: str) -> list[str]:
    tests = list(suite.quick_tests if quick and suite.quick_tests else suite.tests)
    if suite.venv is None:
        flags = ["--test-reporter=junit", f"--test-reporter-destination={report}"]
        names = [f"--test-name-pattern={select}"] if select else []
        return ["node", "--test", f"--test-timeout={suite.test_timeout * 1000}", *flags, *names, *tests]
    words = suite.deselect + (suite.quick_deselect if quick else "")
    words = " and ".join(word for word in (words, f"({select})" if select else "") if word)
    chosen = ["-k", words] if words else []
    cache = CACHE / f"pytest-{suite.name}"
    common = ["-q", "--tb=short", f"--timeout={suite.test_timeout}", f"--junitxml={report}", "-o", f"cache_dir={cache}"]
    return [str(python_of(suite)), "-m", "pytest", *common, *suite.args, *chosen, *tests]


def _watched(command: list[str], place: Path, variables: dict[str, str], output: IO[str], limit: int) -> str:
    """Runs the command in a session of its own, ended as a whole when it takes too long. Returns what went wrong."""
    process = subprocess.Popen(
        command, cwd=place, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"not finished after {limit} s"
    finally:
        # Workers that a suite forked may outlive it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ""


def _again(
    command: list[str], suite: Suite, place: Path, variables: dict[str, str], report: Path, outcome: Outcome
) -> None:
    alone = CACHE / report.name.replace(".xml", "-again.xml")
    command = [part.replace(str(report), str(alone)) for part in command]
    if "-n" in command:  # one after the other
        command[command.index("-n") + 1] = "0"
    command += ["--last-failed", "--last-failed-no-failures=none"]
    with (CACHE / f"{suite.name}-again.log").open("w") as output:
        # celery's tests may wait for ever without those that ran before them, on any broker
        trouble = _watched(command, place, variables, output, min(2 * suite.test_timeout, suite.suite_timeout))
    second = read_report(alone, trouble, None)
    for test in second.passed & outcome.failed.keys():
        outcome.unsteady[test] = outcome.failed.pop(test)
        outcome.passed.add(test)


def read_report(report: Path, trouble: str, log: Path | None) -> Outcome:
    """Reads a JUnit report, of pytest (flat) or of Node's runner (nested), and removes it."""
    outcome = Outcome(trouble=trouble, log=log)
    try:
        root = ElementTree.parse(report).getroot()
    except (OSError, ElementTree.ParseError):
        outcome.trouble = outcome.trouble or "left no report"
        return outcome
    finally:
        report.unlink(missing_ok=True)
    _collect(root, (), outcome)
    # A test that passes and whose teardown fails is reported twice.
    outcome.passed -= outcome.failed.keys()
    return outcome


def _collect(node: ElementTree.Element, path: tuple[str, ...], outcome: Outcome) -> None:
    for child in node:
        if child.tag == "testsuite":
            name = child.get("name", "")
            _collect(child, path if name == "pytest" else (*path, name), outcome)
        elif child.tag == "testcase":
            name = child.get("name", "")
            owner = child.get("classname", "")
            test = " > ".join((*path, name)) if owner in ("test", "") else f"{owner}::{name}"
            _sort(child, test, outcome)


def _sort(case: ElementTree.Element, test: str, outcome: Outcome) -> None:
    for kind in ("failure", "error"):
        problem = case.find(kind)
        if problem is not None:
            text = (problem.get("message") or "") + "\n" + (problem.text or "")
            outcome.failed[test] = text.strip()
            return
    if case.find("skipped") is not None:
        outcome.skipped.add(test)
    else:
        outcome.passed.add(test)
