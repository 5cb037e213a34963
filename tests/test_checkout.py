"""How a checkout runs compiled, and that it never runs what its sources no longer say."""

import ast
import importlib.machinery
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kvitto_checkout

ROOT = Path(__file__).parent.parent
INLINE = {
    "kvitto/wire/bits.py",
    "kvitto/base/rawio.py",
    "kvitto/base/ticks.py",
    "kvitto/server/datasync.py",
    "kvitto/server/ready.py",
    "kvitto/format/batch_head.py",
    "kvitto/format/entry.py",
    "kvitto/format/prefix.py",
    "kvitto/format/settlement.py",
    "kvitto/format/slot_sizes.py",
}
"""A .pxd with C twins of the functions, inlined where they are used: nothing to compile."""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small checkout of its own: one hot module, one that looks compiled, no stamp."""
    sources, compiled = tmp_path / "src", tmp_path / "build" / "compiled"
    (sources / "kvitto").mkdir(parents=True)
    (compiled / "kvitto").mkdir(parents=True)
    for name in ("hot.py", "hot.pxd"):
        (sources / "kvitto" / name).write_text("")
    (tmp_path / "setup.py").write_text("")
    (compiled / f"kvitto/hot{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_text("")
    monkeypatch.setattr(kvitto_checkout, "SOURCES", sources)
    monkeypatch.setattr(kvitto_checkout, "COMPILED", compiled)
    monkeypatch.setattr(kvitto_checkout, "STAMP", compiled / "stamp")
    return tmp_path


def found(checkout: Path, name: str = "kvitto.hot") -> bool:
    return kvitto_checkout.CompiledFinder().find_spec(name, [str(checkout / "src" / "kvitto")]) is not None


def test_the_compiled_form_is_used_while_it_fits_the_sources(checkout: Path) -> None:
    (checkout / "build/compiled/stamp").write_text(kvitto_checkout.fingerprint())
    assert found(checkout)
    assert not found(checkout, "kvitto.cold")
    assert not found(checkout, "other.hot")


@pytest.mark.parametrize(
    "edit",
    [
        lambda at: (at / "src/kvitto/hot.py").write_text("x = 1"),
        lambda at: (at / "src/kvitto/hot.pxd").write_text("# x"),
        lambda at: (at / "src/kvitto/new.pxd").write_text(""),
        lambda at: (at / "src/kvitto/hot.pxd").unlink(),
        lambda at: (at / "setup.py").write_text("# x"),
    ],
    ids=["source", "declarations", "new module", "no longer hot", "recipe"],
)
def test_an_edit_turns_the_compiled_form_off(
    checkout: Path, edit: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "build/compiled/stamp").write_text(kvitto_checkout.fingerprint())
    edit(checkout)
    assert not found(checkout)
    assert "running interpreted" in capsys.readouterr().err


def test_without_a_stamp_nothing_compiled_is_used(checkout: Path) -> None:
    assert not found(checkout)


def test_a_process_has_one_finder_and_says_once_that_it_runs_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.delenv("KVITTO_PURE", raising=False)
    kvitto_checkout.install()
    kvitto_checkout.install()
    assert len(sys.meta_path) == 1


def test_kvitto_pure_runs_interpreted() -> None:
    code = "import kvitto, kvitto.wire.buf as buf; print(kvitto.compiled(), buf.__file__.endswith('.py'))"
    environment = {**os.environ, "KVITTO_PURE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


def test_importing_kvitto_loads_no_part_of_the_broker() -> None:
    code = "import sys, kvitto; print([name for name in sys.modules if name.startswith('kvitto.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['kvitto.base', 'kvitto.base.version']\n"


def test_every_module_with_declarations_is_listed_as_hot() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text())
    (hot,) = (ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "HOT")  # type: ignore[attr-defined]
    declared = {str(path.relative_to(ROOT / "src").with_suffix(".py")) for path in (ROOT / "src").rglob("*.pxd")}
    assert set(hot) >= declared - INLINE
