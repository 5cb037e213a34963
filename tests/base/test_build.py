"""What one who runs interpreted is told."""

from pathlib import Path

import pytest

import kvitto_checkout
from kvitto.base import build


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvitto_checkout, "told", False)
    monkeypatch.delenv("KVITTO_PURE", raising=False)


def test_an_installation_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "CHECKOUT", tmp_path)
    assert "install a C compiler" in build.how_to_compile()


def test_a_checkout_is_built_with_make(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.how_to_compile() == "run `make build`"
    monkeypatch.setenv("KVITTO_PURE", "1")
    assert build.how_to_compile() == "unset KVITTO_PURE"


def test_a_checkout_that_has_said_so_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvitto_checkout, "told", True)
    assert build.how_to_compile() == ""
