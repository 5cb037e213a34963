"""Brokers as processes: what they leave behind stays in their own place."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from kvitto.torture import nodes
from tests.support.wait import wait_until


@pytest.mark.skipif(shutil.which("epmd") is None, reason="RabbitMQ's port mapper is not installed")
def test_rabbitmq_runs_in_its_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its core dumps were left where the test was started, and one of them came into a commit."""
    script, said = tmp_path / "rabbitmq-server", tmp_path / "said"
    script.write_text(f'#!/bin/sh\npwd > "{said}.new"\nmv "{said}.new" "{said}"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(nodes, "rabbitmq_script", lambda: str(script))
    monkeypatch.chdir(tmp_path)
    node = nodes.RabbitMQ(Path("node"))
    node.begin()
    try:
        wait_until(said.exists)
    finally:
        node.close()
    assert Path(said.read_text().strip()) == (tmp_path / "node").resolve()
    assert node.data == tmp_path.resolve() / "node" / "mnesia"
