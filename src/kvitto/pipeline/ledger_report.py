"""The ledger for people and programs: text, JSON, and one HTML page with plots that loads nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final

from kvitto.base.table import printable, table
from kvitto.base.version import __version__
from kvitto.pipeline.charts import bands, bars, lines

if TYPE_CHECKING:
    from kvitto.pipeline.ledger import Counts, Finding, Findings, Ledger, Step

HOURS_SHOWN: Final = 48
"""Rows of the table by hour in the text; JSON and HTML have all."""
COLORS: Final = {
    "acked": "#15803d",
    "range-settled": "#3b76c4",
    "dead-lettered": "#c2410c",
    "rejected": "#b91c1c",
    "expired": "#a16207",
    "dropped": "#7c3aed",
    "purged": "#64748b",
    "waiting": "#cbd5e1",
}


def duration(ms: float | None) -> str:
    """For people: 12 ms, 3.4 s, 5.6 min, 7.8 h, 9.1 d."""
    if ms is None:
        return "-"
    if ms < 1000:
        return f"{ms:.0f} ms"
    for unit, size, most in (("s", 1e3, 120), ("min", 6e4, 120), ("h", 3.6e6, 48), ("d", 8.64e7, float("inf"))):
        if ms < size * most:
            return f"{ms / size:,.1f} {unit}"
    raise AssertionError(ms)


def moment(at: datetime | None) -> str:
    return "" if at is None else at.strftime("%Y-%m-%d %H:%M:%S.") + f"{at.microsecond // 1000:03d}"


# --- text


def text(found: Ledger) -> str:
    """All of it, on a page or two."""
    names = [name for name in COLORS if any(each.settled.get(name) for each in found.queues)]
    head = ["queue", "published", *names, "waiting", "redelivered", "p50", "p95", "p99", "max"]
    parts = [
        f"{found.directory}: {found.published:,} messages of {len(found.queues)} queues, read in {found.seconds:.0f} s",
        "",
    ]
    parts.append(_table(head, [_cells(each, names) for each in found.queues], 1))
    if len(found.hours) > len(found.queues):
        rows = [
            [each.hour.strftime("%Y-%m-%d %H:00") if each.hour else "", *_cells(each, names)] for each in found.hours
        ]
        parts += ["", "by hour of publishing, UTC", _table(["hour", *head], rows[-HOURS_SHOWN:], 2)]
        if len(rows) > HOURS_SHOWN:
            parts.append(f"(the last {HOURS_SHOWN} of {len(rows):,} rows; --json and --html have all)")
    parts += ["", "p50 to max: time from publishing to settling, of what is settled", ""]
    parts += _findings("doubled", found.doubled, "no message id is twice in a queue")
    if found.lost is None:
        parts.append("lost: not known; give publishers' receipts with --receipts")
    else:
        parts += _findings("lost", found.lost, f"all {found.receipts:,} messages with a receipt are there")
    return "\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> str:
    """With all columns but the first `names` to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    lines = [
        [cell.rjust(width) if k >= names else cell for k, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in (head, *rows)
    ]
    return table(lines[0], lines[1:])


def _cells(each: Counts, names: Sequence[str]) -> list[str]:
    where = each.queue if each.vhost == "/" else f"{each.vhost}:{each.queue}"
    settled = [f"{each.settled.get(name, 0):,}" for name in names]
    times = [duration(value) for value in (each.p50, each.p95, each.p99, each.max)]
    return [where, f"{each.published:,}", *settled, f"{each.waiting:,}", f"{each.redelivered:,}", *times]


def _findings(what: str, found: Findings, none: str) -> list[str]:
    if not found.count:
        return [f"{what}: none; {none}"]
    said = [f"{what}: {found.count:,} message ids"]
    said += [f"  {_finding(each)}" for each in found.listed]
    if found.count > len(found.listed):
        said.append(f"  ... and {found.count - len(found.listed):,} more (--limit)")
    return said


def _finding(each: Finding) -> str:
    where = f"  in queue {printable(each.queue)}" if each.queue is not None else ""
    offsets = f", offsets {' and '.join(f'{n:,}' for n in each.offsets)}" if each.offsets else ""
    return printable(each.message_id) + where + offsets


def life_text(message_id: str, steps: Sequence[Step], directory: str) -> str:
    """One message's life."""
    if not steps:
        return f"message {printable(message_id)} is in no segment of {directory}"
    rows = [[moment(step.time), step.queue, f"{step.offset:,}", step.what] for step in steps]
    return f"message {printable(message_id)}, times in UTC\n\n" + table(
        ["time", "queue", "offset", "what happened"], rows
    )


# --- JSON


def as_json(found: Ledger) -> str:
    """All fields of `Ledger`; times as ISO 8601, latencies in ms."""
    return json.dumps({"even": found.even, "published": found.published, **asdict(found)}, default=_plain, indent=1)


def life_as_json(message_id: str, steps: Sequence[Step]) -> str:
    return json.dumps({"message_id": message_id, "steps": [asdict(step) for step in steps]}, default=_plain, indent=1)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


# --- HTML

STYLE: Final = """
body { margin:0; background:#f5f7f9; color:#1c2530; font:16px/1.5 system-ui,sans-serif }
main { max-width:1000px; margin:0 auto; padding:32px 20px 60px }
h1 { font-size:26px; margin:0 0 4px } h2 { font-size:19px; margin:0 0 8px }
section { background:#fff; border:1px solid #e3e8ee; border-radius:10px; padding:20px 24px; margin-top:20px; overflow-x:auto }
.soft { color:#5d6b7a } .verdict { display:inline-block; margin-top:12px; padding:8px 16px; border-radius:8px; color:#fff; font-weight:600 }
.ok { background:#15803d } .bad { background:#b91c1c }
table { border-collapse:collapse; font-variant-numeric:tabular-nums } td,th { padding:3px 14px 3px 0; text-align:right; white-space:nowrap }
td:first-child,th:first-child { text-align:left } th { font-weight:600; border-bottom:1px solid #e3e8ee }
.key span { margin-right:18px; font-size:14px }
.key i { display:inline-block; width:14px; height:10px; border-radius:2px; margin-right:6px }
svg { width:100%; height:auto; display:block } svg text { font-size:12px; fill:#5d6b7a } li { overflow-wrap:anywhere }
"""


def page(found: Ledger) -> str:
    """The whole document."""
    lost = found.lost.count if found.lost else 0
    verdict = (
        "Nothing lost, nothing doubled" if found.lost else "Nothing doubled; without receipts nobody knows of losses"
    )
    if not found.even:
        verdict = " and ".join(
            f"{n:,} message ids {what}" for n, what in ((lost, "lost"), (found.doubled.count, "doubled")) if n
        )
    names = [name for name in COLORS if name == "waiting" or any(each.settled.get(name) for each in found.queues)]
    head = ["queue", "published", *names, "redelivered", "p50", "p95", "p99", "max"]
    body = "".join(_tr(_cells(each, [n for n in names if n != "waiting"])) for each in found.queues)
    key = "".join(f'<span><i style="background:{COLORS[name]}"></i>{name}</span>' for name in names)
    plots = "".join(_plots(found, each, names) for each in found.queues)
    lists = _list("Doubled", found.doubled) + (_list("Lost", found.lost) if found.lost else "")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>Kvitto ledger</title><style>{STYLE}</style></head><body><main>
<h1>What became of {found.published:,} messages</h1>
<p class="soft">{escape(found.directory)}, {len(found.queues)} queues, read in {found.seconds:.0f} s
on {time.strftime("%Y-%m-%d %H:%M")} by Kvitto {__version__}.</p>
<div class="verdict {"ok" if found.even else "bad"}">{escape(verdict)}</div>
<section><h2>By queue</h2><table><tr>{"".join(f"<th>{name}</th>" for name in head)}</tr>{body}</table>
<p class="soft">p50 to max: time from publishing to settling, of what is settled.</p></section>
<section class="key">{key}</section>{plots}{lists}
</main></body></html>
"""


def _tr(cells: Sequence[Any]) -> str:
    return "<tr>" + "".join(f"<td>{escape(printable(str(cell)))}</td>" for cell in cells) + "</tr>"


def _plots(found: Ledger, queue: Counts, names: Sequence[str]) -> str:
    hours = [each for each in found.hours if (each.vhost, each.queue) == (queue.vhost, queue.queue)]
    fate = {**queue.settled, "waiting": queue.waiting}
    shares = [(name, fate.get(name, 0), COLORS[name]) for name in names if fate.get(name)]
    drawn = bars(shares)
    if len(hours) > 1:
        times = [each.hour for each in hours if each.hour]
        rows = [
            (name, COLORS[name], [{**each.settled, "waiting": each.waiting}.get(name, 0) for each in hours])
            for name in names
        ]
        drawn += "<p>Published by hour, and what became of it</p>" + bands(times, rows)
        if any(each.max is not None for each in hours):
            series = [
                ("p50", "#2468c9", [each.p50 for each in hours]),
                ("p99", "#c2410c", [each.p99 for each in hours]),
            ]
            drawn += "<p>Time from publishing to settling: p50 blue, p99 red</p>" + lines(times, series, duration)
    where = queue.queue if queue.vhost == "/" else f"{queue.vhost}:{queue.queue}"
    return f"<section><h2>{escape(printable(where))}</h2>{drawn}</section>"


def _list(title: str, found: Findings) -> str:
    if not found.count:
        return ""
    items = "".join(f"<li>{escape(_finding(each))}</li>" for each in found.listed)
    more = found.count - len(found.listed)
    rest = f"<li>and {more:,} more</li>" if more else ""
    return f"<section><h2>{title}: {found.count:,} message ids</h2><ul>{items}{rest}</ul></section>"
