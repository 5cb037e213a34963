"""C8: a sync fails in a real process, under load, and what it should have synced is gone; KVITTO_FAILED_SYNCS=500 for more than 2 times.

The broker's own files fail: failing_sync.c is preloaded. The load, the oracle and their judgement are those of `kvitto torture`.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvitto.torture import plan
from kvitto.torture.nodes import Kvitto
from kvitto.torture.report import as_text
from kvitto.torture.run import DOES, Run, Wanted

pytestmark = pytest.mark.slow

RUNS = int(os.environ.get("KVITTO_FAILED_SYNCS", "2"))
SYNCS = 60
"""The failing one is one of the next so many."""
SAID = re.compile(r"^kvitto: cannot sync (\S+): \[Errno 5\] Input/output error$")

AS_AFTER_A_POWER_CUT = {"settled, came back", "flagged, never delivered"}
"""A11: the last settlements may be what was lost, and their messages come again; so may delivered marks: all that waits is flagged."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: failing_sync.c is preloaded into the broker")
    made = tmp_path_factory.mktemp("library") / "failing_sync.so"
    source = Path(__file__).with_name("failing_sync.c")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-o",
        str(made),
        str(source),
        "-ldl",
        "-lpthread",
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        pytest.skip(f"failing_sync.c cannot be compiled here: {built.stderr}")
    return made


class Failing(Kvitto):
    """`fail` makes its syncs fail."""

    def __init__(self, place: Path, library: Path) -> None:
        super().__init__(place)
        self.library = library
        self.fault = place / "fault"
        self.failed: Counter[str] = Counter()
        """By the kind of file whose sync it was."""
        self.code = -1
        """With which the last one ended."""

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str], **more: Any) -> subprocess.Popen[str]:
        fault = {"LD_PRELOAD": str(self.library), "KVITTO_SYNC_FAULT": str(self.fault)}
        return super()._spawn(command, {**environment, **fault}, **more)

    def close(self) -> None:
        self.code = self.stop()

    def fail(self, rng: random.Random) -> None:
        """One of the next syncs, or all from that one on; then it has to end, and say why."""
        before = self.log.stat().st_size
        fresh = self.fault.with_suffix(".new")
        fresh.write_text(f"{rng.randint(1, SYNCS)} {rng.choice(('', 'all'))}")
        fresh.rename(self.fault)
        assert self._process is not None
        assert self._process.wait(30) == 1
        self.fault.unlink()
        said = self.log.read_bytes()[before:].decode().splitlines()
        found = SAID.match(said[-1])
        assert found, said[-5:]
        assert not any("Traceback" in line for line in said)
        self.failed[Path(found[1]).suffix or "directory"] += 1


def fail_a_sync(run: Run, fault: plan.Fault) -> None:
    """A fault of the harness, in place of SIGKILL."""
    assert isinstance(run.node, Failing)
    run.node.fail(random.Random(fault.seed))
    run._kill(fault)


@pytest.mark.timeout(120 + 60 * RUNS)
def test_a_failed_sync_ends_the_broker_and_nothing_confirmed_is_lost(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2, C2, C5, C8, T4, X4: exit code 1, the reason on the last line; the next start has every message that was ever confirmed."""
    monkeypatch.setitem(DOES, plan.KILL, fail_a_sync)
    seed = random.randrange(1 << 32)
    node = Failing(tmp_path, library)
    run = Run(node, Wanted((plan.KILL,), seed, cycles=RUNS), "", print)
    run.go()
    report = as_text(run.outcome, run.oracle)
    found = set(run.outcome.failures(run.oracle)) - AS_AFTER_A_POWER_CUT
    assert run.outcome.judged and not run.outcome.broke and not found, report
    assert run.outcome.cycles.total() == node.failed.total() == RUNS
    assert run.oracle.confirmed > RUNS
    assert node.code == 0
    print(
        f"{RUNS} failed syncs {dict(node.failed)}: {run.oracle.published} published, {run.oracle.confirmed} confirmed,"
    )
    print(f"{run.oracle.groups} transactions, 0 lost in {run.outcome.seconds:.0f} s")
