"""A table of Spark's file sink as its readers see it: only the files that are listed in `_spark_metadata`.

A killed batch leaves files that no list names; counting those would count messages twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq


def committed_files(table: Path) -> list[Path]:
    """The files of all committed batches, in order."""
    folder = table / "_spark_metadata"
    lists: dict[int, Path] = {}
    whole = -1
    for path in folder.glob("[0-9]*"):
        number, _, kind = path.name.partition(".")
        if kind == "compact":
            whole = max(whole, int(number))
        if kind in ("", "compact"):
            lists[int(number)] = path
    # the newest compact list holds everything before it
    numbers = sorted(number for number in lists if number >= whole)
    return [file for number in numbers for file in _listed(lists[number])]


def _listed(path: Path) -> list[Path]:
    version, *lines = path.read_text().splitlines()
    if version != "v1":
        raise ValueError(f"{path}: version {version!r} of Spark's sink log, expected v1")
    added = (json.loads(line) for line in lines)
    return [Path(unquote(urlsplit(entry["path"]).path)) for entry in added if entry["action"] == "add"]


def read(table: Path, columns: list[str]) -> pa.Table:
    """These columns of all committed rows."""
    parts = [pq.ParquetFile(file).read(columns=columns) for file in committed_files(table)]
    return pa.concat_tables(parts) if parts else pa.table({name: pa.array([], pa.string()) for name in columns})
