"""The form of what is stored is known in kvitto/format only: nowhere else are there magics, little-endian structs or offsets of fields."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src" / "kvitto"
FOLDERS = ("broker", "cli", "http", "protocol", "server", "spark/archive", "store")
MODULES = sorted(path for folder in FOLDERS for path in (SOURCES / folder).rglob("*.py"))
IN_MEMORY = ("protocol/channel.py", "protocol/unacked.py", "broker/latencies.py")
"""The table of unacked deliveries, its reader, and histograms have integers in the same order, and are never written."""
STRUCT = re.compile(r"<(\d*[xcbBhHiIlLqQs])+")
ACCESS = re.compile(r"(put_)?le\d\d")


def findings(source: str) -> list[str]:
    """What a module should leave to kvitto/format, as "line: what"."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value == "little" or STRUCT.fullmatch(node.value):
                found.append(f"{node.lineno}: {node.value!r}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bytes):
            if node.value.startswith(b"KV"):
                found.append(f"{node.lineno}: {node.value!r}")
        elif isinstance(node, ast.Attribute) and ACCESS.fullmatch(node.attr):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCES)))
def test_no_other_module_knows_the_form_of_what_is_stored(path: Path) -> None:
    if path.relative_to(SOURCES).as_posix() not in IN_MEMORY:
        assert findings(path.read_text()) == [], "use the layouts and accessors of kvitto/format"


@pytest.mark.parametrize(
    "source",
    [
        "body = bits.le32(index.p, e + 4)",
        "bits.put_le16(p, e + 18, flags)",
        "length = int.from_bytes(data[4:8], 'little')",
        "HEAD = struct.Struct('<4sIQ')",
        "MAGIC = b'KVB1'",
    ],
)
def test_the_check_finds_what_it_is_for(source: str) -> None:
    assert findings(source) != []
