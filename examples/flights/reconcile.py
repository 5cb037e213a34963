"""The sum at the end: what went in against what is in the table, message id by message id, and the answer.

Everything is taken from where it really is: the ids from the source file, the messages from the ledger of the broker's
files, the rows from the table's files. Nothing that a process of the run said about itself is a reason to call the run clean.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.compute as pc

from examples.flights import data, table

TOLERANCE = 1e-9


@dataclass
class Result:
    """The counts of a run. `stored`, `settled`, `resent`, `missing` are the ledger's; `failures` is empty if all is well."""

    flights: int
    published: int = 0
    confirmed: int = 0
    republished: int = 0
    stored: int = 0
    settled: int = 0
    resent: int = 0
    """Flights that the queue took more than once."""
    missing: int | None = None
    """Flights with a receipt that the queue never had; None if the ledger had no receipts to compare."""
    landed: int = 0
    distinct: int = 0
    lost: int = 0
    duplicates: int = 0
    foreign: int = 0
    removed: int = 0
    files: int = 0
    days: int = 0
    delays: list[tuple[str, float, int]] = field(default_factory=list)
    """(carrier, mean departure delay in minutes, flights that departed), the latest first."""
    failures: list[str] = field(default_factory=list)


def reconcile(result: Result, directory: Path) -> Result:
    """Fill in what the table says and judge it."""
    landed = table.read(directory / "table", ["_message_id", "carrier", "dep_delay", "month", "day"])
    in_table = Counter(landed.column("_message_id").to_pylist())
    sent = {data.message_id(number, row) for number, row in enumerate(data.rows(result.flights))}
    result.files = len(table.files(directory / "table"))
    result.days = landed.group_by(["month", "day"]).aggregate([]).num_rows
    result.landed = landed.num_rows
    result.distinct = len(in_table)
    result.lost = len(sent - in_table.keys())
    result.foreign = len(in_table.keys() - sent)
    result.duplicates = result.landed - result.distinct
    result.removed = result.stored - result.distinct
    grouped = landed.group_by("carrier").aggregate([("dep_delay", "mean"), ("dep_delay", "count")])
    rows = zip(
        *(grouped.column(name).to_pylist() for name in ("carrier", "dep_delay_mean", "dep_delay_count")), strict=True
    )
    result.delays = sorted(((c, m, n) for c, m, n in rows if m is not None), key=lambda row: -row[1])
    result.failures = judge(result, int(pc.sum(pc.is_null(landed.column("carrier"))).as_py() or 0))
    return result


def judge(r: Result, untyped: int) -> list[str]:
    """What is wrong, in words; nothing if nothing is."""
    wrong = {
        f"{r.lost} flights are not in the table": r.lost != 0,
        f"{r.duplicates} rows are doubled": r.duplicates != 0,
        f"{r.foreign} rows were never published": r.foreign != 0,
        f"{untyped} rows could not be read as flights": untyped != 0,
        f"{r.published} of {r.flights} flights were published": r.published != r.flights,
        f"{r.confirmed} of {r.published} flights were confirmed": r.confirmed != r.published,
        f"{r.settled} of {r.stored} stored messages are settled": r.settled != r.stored,
        f"{r.stored} messages were stored for {r.distinct} flights and {r.republished} sent again": not (
            0 <= r.removed <= r.republished
        ),
        f"the ledger misses {'receipts' if r.missing is None else f'{r.missing} flights that have a receipt'}": r.missing
        != 0,
        f"the ledger has {r.resent} flights twice, the table left out {r.removed} messages": r.resent != r.removed,
        "the mean delays are not those of the source file": not r.lost and not same_answer(r),
    }
    return [text for text, is_so in wrong.items() if is_so]


def same_answer(r: Result) -> bool:
    """Whether the answer from the table is the one that the source file gives."""
    total: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for row in data.rows(r.flights):
        if row["dep_delay"] not in ("", "NA"):
            total[row["carrier"]] += float(row["dep_delay"])  # type: ignore[assignment]
            count[row["carrier"]] += 1
    return len(r.delays) == len(count) and all(
        n == count[carrier] and math.isclose(mean, total[carrier] / n, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        for carrier, mean, n in r.delays
    )
