"""`make audit`: what is wrong with a lock, and that a missing network or tool is no failure."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
HASH = "    --hash=sha256:" + "0" * 64


@pytest.fixture
def audit() -> ModuleType:
    """The script as a module."""
    loader = SourceFileLoader("audit", str(ROOT / "scripts" / "audit"))
    spec = importlib.util.spec_from_loader("audit", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_lock_of_this_project_is_sound(audit: ModuleType) -> None:
    """Each requirement is one version with hashes, none comes from an address, none is missing."""
    versions, wrong = audit.locked((ROOT / "requirements.lock").read_text())
    assert wrong == [] and len(versions) > 20
    assert audit.named((ROOT / "pyproject.toml").read_text()) <= versions.keys()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("h11==0.16.0\nxxhash==4.1.0 \\\n" + HASH, "line 2: the requirement before this one has no hash"),
        ("h11==0.16.0", "the last requirement has no hash"),
        (f"h11>=0.16 \\\n{HASH}", "line 1: neither one version nor a hash: h11>=0.16"),
        (f"h11 @ https://example.org/h11.whl \\\n{HASH}", "line 1: neither one version nor a hash"),
        ("--index-url https://example.org/simple\n", "line 1: neither one version nor a hash"),
        ("-e .\n", "line 1: neither one version nor a hash: -e ."),
    ],
)
def test_what_is_wrong_with_a_lock_is_said(audit: ModuleType, text: str, says: str) -> None:
    _, wrong = audit.locked(text)
    assert any(line.startswith(says) for line in wrong), wrong


def test_versions_may_depend_on_the_python(audit: ModuleType) -> None:
    text = f'numpy==2.4.6 ; python_version < "3.12" \\\n{HASH}\nnumpy==2.5.5 ; python_version >= "3.12" \\\n{HASH}\n'
    assert audit.locked(text) == ({"numpy": {"2.4.6", "2.5.5"}}, [])


@pytest.mark.parametrize(
    ("prints", "result", "says"),
    [
        ("", [], "cannot be reached"),
        ("no connection", [], "cannot be reached"),
        (json.dumps({"dependencies": [{"name": "h11", "version": "0.16.0", "vulns": []}]}), [], "0 in 1 packages"),
        (
            json.dumps(
                {
                    "dependencies": [
                        {"name": "h11", "version": "0.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["0.2"]}]}
                    ]
                }
            ),
            ["h11 0.1: PYSEC-1, mended in 0.2"],
            "1 in 1 packages",
        ),
    ],
)
def test_only_a_vulnerability_is_a_failure(
    audit: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prints: str,
    result: list[str],
    says: str,
) -> None:
    tool = tmp_path / "pip-audit"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(audit.sys, "executable", str(tmp_path / "python"))
    assert audit.vulnerabilities() == result
    assert says in capsys.readouterr().out


def test_without_the_tool_that_is_said(
    audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert audit.vulnerabilities() == []
    assert "pip-audit is not installed" in capsys.readouterr().out
