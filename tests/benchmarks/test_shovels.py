"""The measurement of shovels in small: each kind carries, alone and beside a flood."""

from __future__ import annotations

import re

import pytest

from benchmarks import shovels

pytestmark = pytest.mark.slow


def test_each_kind_of_shovel_carries_alone_and_beside_a_flood(capsys: pytest.CaptureFixture[str]) -> None:
    assert shovels.main(["--messages", "300", "--flood", "300", "--idle", "0,2", "--seconds", "0.1"]) == 0
    out = capsys.readouterr().out
    rows = re.findall(r"^\| (.+?) \| [\d,]+/s \| [\d.]+ us \| [\d.]+ us \|", out, re.MULTILINE)
    beside = [f"one that carries: {name}" for name in shovels.KINDS]
    assert rows == [*shovels.KINDS, "0 idle shovels", "2 idle shovels", *beside]
    idle = re.findall(r"^\| (.+?) \| [\d.]+% of a core \| [\d.]+% of a core \|", out, re.MULTILINE)
    assert idle == [f"2, {name}" for name in shovels.IDLE]
