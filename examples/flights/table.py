"""The table as any reader of Parquet sees it, while it is written and after."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def files(table: Path) -> list[Path]:
    """Its files; what begins with _ or . is being written."""
    return sorted(table.glob("[!_.]*.parquet"))


class RowCount:
    """Rows in the table; each file's footer is read once."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self._rows: dict[tuple[str, int], int] = {}

    def update(self) -> int:
        """The rows by now. They may become fewer for a moment, when a batch is put again after a crash."""
        rows: dict[tuple[str, int], int] = {}
        for file in files(self.table):
            try:
                key = (file.name, file.stat().st_ino)
                known = self._rows.get(key)
                rows[key] = pq.ParquetFile(file).metadata.num_rows if known is None else known
            except FileNotFoundError:  # it has just been replaced
                continue
        self._rows = rows
        return sum(rows.values())


def read(table: Path, columns: list[str]) -> pa.Table:
    """These columns of all rows."""
    parts = [pq.ParquetFile(file).read(columns=columns) for file in files(table)]
    return pa.concat_tables(parts) if parts else pa.table({name: pa.array([], pa.string()) for name in columns})
