"""Plots as plain SVG, without a library: bars to compare brokers, lines for what has to stay flat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.results import Figure, Results

COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#8d6b94", "#b08900")
WIDTH, LEFT, RIGHT, TOP = 760, 300, 90, 46
BAR, GAP, GROUP_GAP = 16, 3, 12
LINE_HEIGHT, LINE_BOTTOM = 260, 50
STYLE = 'font-family="sans-serif" font-size="12" fill="#222"'
BARS = {
    "rates.svg": (
        "Messages per second",
        [
            ("a", "consumed_per_s"),
            ("b", "published_per_s"),
            ("c", "consumed_per_s"),
            ("d-16", "confirmed_per_s"),
            ("d-1024", "confirmed_per_s"),
            ("h-fanout", "consumed_per_s"),
            ("h-topic", "consumed_per_s"),
            ("h-pairs", "consumed_per_s"),
            ("n-a", "consumed_per_s"),
        ],
    ),
    "cpu.svg": (
        "Broker CPU per message, µs",
        [(key, "cpu_us") for key in ("a", "b", "c", "d-16", "d-1024", "h-fanout", "h-topic", "h-pairs", "n-a")],
    ),
    "latency.svg": (
        "Latency at 10,000 messages/s, ms",
        [("g", f"latency_{name}_ms") for name in ("p50", "p95", "p99", "max")],
    ),
}
LINES = {
    "outstanding.svg": ("Confirmed per second by outstanding confirms", {"j": "confirmed_per_s"}),
    "depth.svg": (
        "Messages per second by queue depth (full line: consume, dashed: publish)",
        {"k-c": "consumed_per_s", "k-p": "confirmed_per_s"},
    ),
}


def draw(results: Results) -> dict[str, str]:
    """File name -> SVG, for what was measured."""
    drawn = {}
    for name, (title, rows) in BARS.items():
        if svg := bars(results, title, rows):
            drawn[name] = svg
    for name, (title, series) in LINES.items():
        if svg := lines(results, title, series):
            drawn[name] = svg
    return drawn


def bars(results: Results, title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Horizontal bars, a group per row, a whisker from least to most; empty if nothing was measured."""
    titles = {s.key: s.title if len(s.key) == 1 else f"({s.letter}) {s.title}" for s in results.scenarios}
    brokers = list(results.versions)
    groups: list[tuple[str, list[tuple[int, Figure]]]] = []
    for key, metric in rows:
        found = [(i, f) for i, name in enumerate(brokers) if (f := results.figure(key, name, metric))]
        label = titles.get(key, key) if len({k for k, _ in rows}) > 1 else metric.split("_")[1]
        if found:
            groups.append((label, found))
    if not groups:
        return ""
    top = max(figure.most for _, found in groups for _, figure in found) or 1.0
    parts, y = [], TOP + 8.0
    for label, found in groups:
        height = len(found) * (BAR + GAP)
        parts.append(_text(LEFT - 8, y + height / 2 + 4, _short(label), "end"))
        for i, figure in found:
            parts += _bar(y, figure, (WIDTH - LEFT - RIGHT) / top, COLOURS[i % len(COLOURS)])
            y += BAR + GAP
        y += GROUP_GAP
    return _page(title, y + 8, brokers, parts)


def _bar(y: float, figure: Figure, per_unit: float, colour: str) -> list[str]:
    end, middle = LEFT + figure.median * per_unit, y + BAR / 2
    least, most = LEFT + figure.least * per_unit, LEFT + figure.most * per_unit
    return [
        f'<rect x="{LEFT}" y="{y:.1f}" width="{max(end - LEFT, 1):.1f}" height="{BAR}" fill="{colour}"/>',
        f'<path d="M{least:.1f} {middle:.1f}H{most:.1f}" stroke="#222"/>',
        _text(max(end, most) + 5, y + BAR - 4, _compact(figure.median)),
    ]


def lines(results: Results, title: str, series: Mapping[str, str]) -> str:
    """Rates over a logarithmic x, one line per broker and series; empty if there are no two points."""
    brokers = list(results.versions)
    curves: list[tuple[int, str, list[tuple[float, float]]]] = []
    for dash, (name, metric) in zip(("", "5 4"), series.items(), strict=False):
        members = sorted((s for s in results.scenarios if s.series == name), key=lambda s: s.x)
        for i, broker in enumerate(brokers):
            points = [(s.x, f.median) for s in members if (f := results.figure(s.key, broker, metric))]
            if len(points) > 1:
                curves.append((i, dash, points))
    if not curves:
        return ""
    xs = sorted({x for _, _, points in curves for x, _ in points})
    top = max(y for _, _, points in curves for _, y in points) or 1.0
    low, span = math.log10(xs[0]), math.log10(xs[-1] / xs[0]) or 1.0
    left, width, bottom = 80, WIDTH - 110, TOP + LINE_HEIGHT

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (math.log10(x) - low) / span * width, bottom - y / top * (LINE_HEIGHT - 20)

    parts = [f'<path d="M{left} {bottom}H{left + width}" stroke="#888"/>']
    parts += [_text(at(x, 0)[0], bottom + 18, _compact(x), "middle") for x in xs]
    parts += [_text(left - 8, at(xs[0], y)[1] + 4, _compact(y), "end") for y in (0, top / 2, top)]
    for i, dash, points in curves:
        path = "L".join(f"{px:.1f} {py:.1f}" for px, py in (at(x, y) for x, y in points))
        colour = COLOURS[i % len(COLOURS)]
        parts.append(
            f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash or "none"}"/>'
        )
    return _page(title, bottom + LINE_BOTTOM, brokers, parts)


def _page(title: str, height: float, brokers: Sequence[str], parts: Sequence[str]) -> str:
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" {STYLE}>',
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    x = 12
    for i, name in enumerate(brokers):
        head.append(f'<rect x="{x}" y="29" width="11" height="11" fill="{COLOURS[i % len(COLOURS)]}"/>')
        head.append(_text(x + 16, 39, name))
        x += 40 + 8 * len(name)
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _short(text: str) -> str:
    return text if len(text) <= 44 else text[:43] + "…"


def _compact(value: float) -> str:
    for limit, suffix in ((1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"
