"""Call sites, found in the source and not by hand: each call `f(x)` of a listed module becomes `site(n) or f(x)`.

`install` has to be called before the modules are imported: the runs have a process of their own.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

SOURCES = Path(__file__).resolve().parents[2] / "src"
PACKAGES = ("protocol", "broker", "store", "format", "wire")
"""The packages of the data plane, with all that is in folders of theirs."""
WALLS = {"broker/walls.py", "broker/faults.py"}
"""What contains exceptions is not made to raise them."""
NOT_AT_RUN_TIME = {
    "store/archive.py", "store/disk.py", "store/paths.py", "wire/generate.py", "wire/methods.py", "wire/spec.py",
}  # fmt: skip
"""Tools, generated code and the disk, which fails in the simulation already."""
TOOLS = "store/repair/"
MARK = "__site__"


class Injected(Exception):
    """The exception that no code expects."""


@dataclass
class Site:
    """Where a call is."""

    number: int
    path: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {self.text}"


class Sites:
    """All call sites, how often each was reached, and which one raises when."""

    def __init__(self) -> None:
        self.all: list[Site] = []
        self.hits: Counter[int] = Counter()
        self.counting = False
        self.armed = -1
        self.left = 0
        self.fired = False

    def arm(self, number: int, hit: int) -> None:
        """Have this site raise when it is reached for that time, and never again."""
        self.armed, self.left, self.fired = number, hit, False

    def disarm(self) -> None:
        self.armed = -1

    def reached(self, number: int) -> bool:
        """What every call site asks first. Always False."""
        if self.counting:
            self.hits[number] += 1
        if number == self.armed:
            self.left -= 1
            if not self.left:
                self.armed, self.fired = -1, True
                raise Injected(str(self.all[number]))
        return False


SITES = Sites()


class Marking(ast.NodeTransformer):
    """Marks the calls in functions."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._functions: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._functions.append(node.name)
        node.body = [self.visit(statement) for statement in node.body]
        self._functions.pop()
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node  # it raises anyhow

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not self._functions:
            self.generic_visit(node)
            return node
        site = Site(len(SITES.all), self._path, node.lineno, ".".join(self._functions), ast.unparse(node.func)[-60:])
        SITES.all.append(site)
        self.generic_visit(node)
        mark = ast.Call(ast.Name(MARK, ast.Load()), [ast.Constant(site.number)], [])
        return ast.copy_location(ast.BoolOp(ast.Or(), [mark, node]), node)


class MarkingLoader(SourceFileLoader):
    """Compiles a module with its calls marked."""

    def source_to_code(self, data: object, path: object, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        assert isinstance(data, bytes)
        name = Path(str(path)).relative_to(SOURCES / "kvitto").as_posix()
        tree = ast.fix_missing_locations(Marking(name).visit(ast.parse(data)))
        return compile(tree, str(path), "exec")

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[MARK] = SITES.reached
        super().exec_module(module)


def is_marked(path: str) -> bool:
    """Whether the calls of a module are marked. `path` is below src/kvitto, with slashes."""
    package = path.partition("/")[0]
    return package in PACKAGES and path not in WALLS | NOT_AT_RUN_TIME and not path.startswith(TOOLS)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the data plane before anybody else does."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = SOURCES / (name.replace(".", "/") + ".py")
        inside = file.is_relative_to(SOURCES / "kvitto") and file.exists()
        relative = file.relative_to(SOURCES / "kvitto").as_posix() if inside else ""
        if not is_marked(relative):
            return None
        return importlib.util.spec_from_file_location(name, file, loader=MarkingLoader(name, str(file)))


def install() -> None:
    """Mark all modules of the data plane that are imported from now on."""
    assert not any(name.startswith("kvitto.broker") for name in sys.modules), "too late: they are imported already"
    sys.meta_path.insert(0, Finder())
