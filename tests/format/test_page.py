"""docs/formats.md says what format/layouts.py says: the names, positions and sizes of all fields, the magics and the numbers."""

from __future__ import annotations

import re
from pathlib import Path
from struct import calcsize

from kvitto.broker.broker import ORDER
from kvitto.format import entry, layouts, settlement
from kvitto.format.layouts import Layout
from kvitto.store import inventory, judge

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text()
CAPTION = re.compile(r"\(`([A-Z_]+)`, (\d+)\sbytes\)")
LAYOUTS = {name: found for name, found in vars(layouts).items() if isinstance(found, Layout) and name != "PREFIX"}
MAGICS = {
    "FILE_HEAD": [layouts.SEGMENT_MAGIC, layouts.SETTLEMENTS_MAGIC],
    "BATCH": [layouts.BATCH_MAGIC],
    "FOOTER": [layouts.FOOTER_MAGIC],
    "BLOCK": [layouts.BLOCK_MAGIC],
    "RECORD": [layouts.RECORD_MAGIC],
    "INVENTORY": [layouts.INVENTORY_MAGIC],
}
VERSIONS = {"FILE_HEAD": layouts.SEGMENT_VERSION, "INVENTORY": layouts.INVENTORY_VERSION}
KINDS = {"APPEND": layouts.APPEND_KIND, "SETTLE": layouts.SETTLE_KIND, "RUN": layouts.RUN_KIND}


def tables() -> dict[str, tuple[int, list[tuple[int, int, str, str]]]]:
    """By the name of the layout: the size that its caption says, and (position, size, name, remark) of its fields."""
    found = {}
    for caption in CAPTION.finditer(PAGE):
        rows = []
        table = PAGE[PAGE.index("\n| at | size | field | |\n|---|---|---|---|\n", caption.end()) :]
        for line in table.split("\n")[3:]:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not line.startswith("|"):
                break
            rows.append((int(cells[0]), int(cells[1]), cells[2].strip("`"), cells[3]))
        found[caption[1]] = int(caption[2]), rows
    return found


def rows_of(head: str) -> dict[int, str]:
    """The first two columns of the table with this head line, whose first column has numbers."""
    lines = PAGE[PAGE.index(head) :].split("\n\n")[0].split("\n")[2:]
    return {int(number): name.strip(" `") for number, name in (line.split("|")[1:3] for line in lines)}


def test_every_layout_is_on_the_page_with_its_fields() -> None:
    said = {name: (size, [row[:3] for row in rows]) for name, (size, rows) in tables().items()}
    for name, layout in LAYOUTS.items():
        fields = [(layout.at[field], calcsize("<" + code), field) for field, code in layout.codes.items()]
        assert said[name] == (layout.size, fields), name
    assert said.keys() == LAYOUTS.keys()


def remarks(field: str) -> dict[str, str]:
    """What the page says of a field, by layout."""
    return {name: row[3] for name, (_, rows) in tables().items() for row in rows if row[2] == field}


def test_magics_versions_and_kinds_on_the_page_are_those_of_the_layouts() -> None:
    magics = {name: re.findall(r"`(KV\w+)`", text) for name, text in remarks("magic").items()}
    assert magics == {name: [magic.decode() for magic in some] for name, some in MAGICS.items()}
    assert remarks("version") == {name: str(version) for name, version in VERSIONS.items()}
    assert remarks("kind") == {name: str(kind) for name, kind in KINDS.items()} | {"SLOT_NAME": "see below"}


def test_what_has_a_checksum_behind_its_length_begins_with_the_prefix() -> None:
    for layout in (layouts.BATCH, layouts.BLOCK, layouts.RECORD):
        assert list(layout.codes.items())[: len(layouts.PREFIX.codes)] == list(layouts.PREFIX.codes.items())


def test_flags_outcomes_and_kinds_of_files_are_on_the_page() -> None:
    assert rows_of("| flag | name | |") == {getattr(entry, name): name for name in ("EXPIRES", "DEAD", "SPECIAL")}
    assert rows_of("| outcome | name | |") == settlement.OUTCOMES
    kinds = re.findall(r"^\| (\d) .*\|$", PAGE[PAGE.index("| kind | `number` |") :].split("\n\n")[0], re.MULTILINE)
    assert [int(kind) for kind in kinds] == list(inventory.KINDS)
    assert f"slots of {layouts.TAG_SLOT_SIZE} bytes" in PAGE


def test_the_kinds_of_definitions_are_on_the_page() -> None:
    kinds = PAGE[PAGE.index("- `kind`: `initialised`") :].partition("\n- `key`")[0]
    assert sorted(re.findall(r"`(\w+)`", kinds.removeprefix("- `kind`"))) == sorted(ORDER)
    assert f"has `{judge.DELETING}` (true)" in PAGE
