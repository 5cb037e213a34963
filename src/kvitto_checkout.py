"""Finds the compiled modules of a checkout: `make build` keeps them in build/compiled, apart from the sources.

Loaded at the start of the checkout's `.venv` (scripts/install writes the .pth), never shipped. All hot modules are
taken from there, or none: none if one source changed since the build, so that an edit always takes effect, and none
with KVITTO_PURE=1.
"""

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).resolve().parent
COMPILED = SOURCES.parent / "build" / "compiled"
STAMP = COMPILED / "stamp"
told = False
"""Whether this process has said that it runs interpreted."""


def fingerprint() -> str:
    """What the compiled form depends on: every source that has a .pxd, the .pxd files, the recipe, this Python."""
    import hashlib

    digest = hashlib.sha256(repr((sys.version, sys.implementation.cache_tag)).encode())
    declared = sorted(SOURCES.glob("kvitto/**/*.pxd"))
    recipe = [SOURCES.parent / "setup.py", SOURCES.parent / "requirements.lock"]
    for path in [*declared, *(path.with_suffix(".py") for path in declared), *recipe]:
        digest.update(f"{path.relative_to(SOURCES.parent)}\n".encode())
        digest.update(path.read_bytes() if path.exists() else b"")
    return digest.hexdigest()


class CompiledFinder:
    """Answers for hot modules only; everything else goes on to the normal search."""

    def __init__(self) -> None:
        self.fresh: bool | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The compiled module of that name, if it was built from the sources as they are now."""
        if not name.startswith("kvitto.") or not path or str(SOURCES) not in path[0]:
            return None
        place = COMPILED.joinpath(*name.split("."))
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            file = f"{place}{suffix}"
            if os.path.exists(file) and self.is_fresh():
                loader = importlib.machinery.ExtensionFileLoader(name, file)
                return importlib.util.spec_from_file_location(name, file, loader=loader)
        return None

    def is_fresh(self) -> bool:
        """Decided once per process, so that it never mixes the two forms."""
        global told
        if self.fresh is None:
            try:
                self.fresh = STAMP.read_text() == fingerprint()
            except OSError:
                self.fresh = False
            if not self.fresh:
                told = True
                print("kvitto: sources changed since `make build`: running interpreted until the next", file=sys.stderr)
        return self.fresh


def install() -> None:
    """Called from the .pth of the virtual environment: twice where lib64 is a link to lib."""
    known = any(isinstance(finder, CompiledFinder) for finder in sys.meta_path)
    if not known and os.environ.get("KVITTO_PURE", "0") in ("", "0"):
        sys.meta_path.insert(0, CompiledFinder())
