"""results.md from results.json: machine, targets, and a table for each letter, all medians with their extremes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import plots
from benchmarks.metrics import METRICS
from benchmarks.results import Described, Figure, Results
from benchmarks.scenarios import LETTERS
from benchmarks.targets import KVITTO, TARGETS, Target

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
GENERATOR_BOUND = 0.95
"""Cores of the generator from which it is the limit, not the broker."""
SUMMARY = (
    ("a", "consumed_per_s"),
    ("a", "cpu_us"),
    ("b", "published_per_s"),
    ("c", "consumed_per_s"),
    ("d-16", "confirmed_per_s"),
    ("d-16", "cpu_us"),
    ("d-1024", "confirmed_per_s"),
    ("e", "confirmed_per_s"),
    ("f", "streamed_s"),
    ("f", "tx_s"),
    ("g", "latency_p99_ms"),
    ("h-fanout", "consumed_per_s"),
    ("h-pairs", "consumed_per_s"),
    ("i-backlog-1M", "added_rss_mib"),
    ("i-backlog-1M", "kill_ready_s"),
    ("i-queues", "added_rss_mib"),
    ("i-connections", "added_rss_mib"),
    ("m", "gigabytes_per_s"),
)
"""The rows of the table in docs/performance.md."""


def write(results: Results, out: Path) -> None:
    """results.md and its plots."""
    out.mkdir(parents=True, exist_ok=True)
    drawn = plots.draw(results)
    for name, svg in drawn.items():
        (out / name).write_text(svg)
    (out / "results.md").write_text(markdown(results, list(drawn)))


def markdown(results: Results, drawings: Sequence[str] = ()) -> str:
    """The whole report."""
    parts = ["# Benchmark results", "Written by `make bench`; how it measures: docs/performance.md.", facts(results)]
    parts += [f"> {note}" for note in [*results.notes, *results.failed]]
    parts += ["## Must be shown", target_table(results)]
    parts += [f"![{name.removesuffix('.svg')}]({name})" for name in drawings]
    for letter, title in LETTERS.items():
        group = [scenario for scenario in results.scenarios if scenario.letter == letter]
        if group:
            parts += [f"## ({letter}) {title}", *sync_line(results, group), table(results, group), commands(group)]
    return "\n\n".join(part for part in parts if part) + "\n"


def facts(results: Results) -> str:
    """Where, with what, and how."""
    disturbed = sum(1 for run in results.runs if run.disturbed)
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    lines = [
        f"- {results.started}; {', '.join(results.versions.values())}",
        f"- machine: {machine}",
        f"- {results.settings.get('runs')} runs of each, alternating, {results.settings.get('seconds')} s where timed; "
        f"medians (least to most). {len(results.runs)} runs, {disturbed} of them disturbed by other load",
    ]
    sync = results.fdatasync_us()
    if sync is not None:
        lines.append(f"- fdatasync of this disk: {number(sync)} µs (median of all samples)")
    return "\n".join(lines)


def target_table(results: Results) -> str:
    """A row per target that was measured. Less work than the targets speak of proves none of them."""
    if results.settings.get("share", 1.0) != 1.0:
        return "Targets are not checked: this run was shortened (--quick)."
    rows = ["| | target | bound | measured | |", "|---|---|---|---|---|"]
    rows += [row for target in TARGETS if (row := target_row(target, results))]
    return "\n".join(rows) if len(rows) > 2 else "Nothing of it was measured."


def target_row(target: Target, results: Results) -> str:
    found, bound, met = target.look(results), target.bound(results), target.met(results)
    if found is None or bound is None or met is None:
        return ""
    sign = "≥" if target.at_least else "≤"
    verdict = "met" if met else "**missed**"
    measured = f"{number(found)} {target.unit}"
    return f"| {target.letter} | {target.text} | {sign} {number(bound)} {target.unit} | {measured} | {verdict} |"


def table(results: Results, group: Sequence[Described]) -> str:
    """One row per scenario and metric; a column per broker, and one with the ratio to the first other broker."""
    names = list(results.versions)
    others = [name for name in names if name != KVITTO]
    compared = others[0] if others and KVITTO in names else None
    head = ["", "", *names, *([f"Kvitto / {compared}"] if compared else [])]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for scenario in group:
        title = scenario.title
        for metric, about in METRICS.items():
            cells = [results.figure(scenario.key, name, metric) for name in names]
            if not any(cells):
                continue
            label = f"{about.label} ({about.unit})"
            row = [title, label, *(cell(found, metric) for found in cells)]
            if compared:
                shown = (
                    results.ratio(scenario.key, metric, KVITTO, compared) if about.more_is_better is not None else None
                )
                row.append(f"{number(shown)} x" if shown is not None else "")
            rows.append("| " + " | ".join(row) + " |")
            title = ""
    return "\n".join(rows)


def cell(found: Figure | None, metric: str) -> str:
    if found is None:
        return ""
    text = number(found.median)
    if found.runs > 1:
        text += f" ({number(found.least)} to {number(found.most)})"
    if metric == "generator_cores" and found.median >= GENERATOR_BOUND:
        text += ", the limit"
    return text + (" (disturbed)" if found.disturbed else "")


def sync_line(results: Results, group: Sequence[Described]) -> list[str]:
    """This disk's own sync, as measured between the runs of these scenarios."""
    found = [run.fdatasync_us for run in results.runs if run.fdatasync_us and run.scenario in {s.key for s in group}]
    if not found:
        return []
    least, most = number(min(found)), number(max(found))
    median = number(sorted(found)[len(found) // 2])
    return [f"fdatasync of this disk beside these runs: {median} µs ({least} to {most})."]


def commands(group: Sequence[Described]) -> str:
    return "\n".join(f"- {scenario.title}: `{scenario.command}`" for scenario in group)


def number(value: float) -> str:
    """Three digits that count, thousands grouped."""
    size = abs(value)
    if size >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.2g}"


def summary(results: Results) -> str:
    """The short table of docs/performance.md."""
    titles = {scenario.key: scenario for scenario in results.scenarios}
    names = list(results.versions)
    others = [name for name in names if name != KVITTO]
    head = ["", "", *names, *([f"Kvitto / {others[0]}"] if others else [])]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for key, metric in SUMMARY:
        if key not in titles or results.figure(key, KVITTO, metric) is None:
            continue
        about = METRICS[metric]
        row = [f"({titles[key].letter}) {titles[key].title}", f"{about.label} ({about.unit})"]
        row += [cell(results.figure(key, name, metric), metric) for name in names]
        if others:
            shown = results.ratio(key, metric, KVITTO, others[0])
            row.append(f"{number(shown)} x" if shown is not None else "")
        rows.append("| " + " | ".join(row) + " |")
    return facts(results) + "\n\n" + "\n".join(rows)


def into_docs(results: Results, page: Path) -> None:
    """Put the short table between the two marks of that page."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the lines {BEGIN} and {END}, between which the results go")
    page.write_text(f"{before}{BEGIN}\n{summary(results)}\n{END}{after}")
