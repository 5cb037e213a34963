"""The plots of the results: bars to compare brokers, lines for what has to stay flat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.results import Figure, Results
from kvitto.base.plot import XMLNS, Canvas, Point, Scale

COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#8d6b94", "#b08900")
WIDTH, LEFT, RIGHT, TOP = 760, 300, 90, 46
BAR, GAP, GROUP_GAP = 16, 3, 12
LINE_HEIGHT, LINE_BOTTOM = 260, 50
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
    px = Scale(0, max(figure.most for _, found in groups for _, figure in found) or 1.0, LEFT, WIDTH - RIGHT)
    canvas, y = _page(title, brokers), TOP + 8
    for label, found in groups:
        canvas.text(LEFT - 8, y + len(found) * (BAR + GAP) / 2 + 4, _short(label), "end")
        for i, figure in found:
            _bar(canvas, y, figure, px, COLOURS[i % len(COLOURS)])
            y += BAR + GAP
        y += GROUP_GAP
    canvas.height = y + 8
    return canvas.svg() + "\n"


def _bar(canvas: Canvas, y: float, figure: Figure, px: Scale, colour: str) -> None:
    end, middle = px(figure.median), y + BAR / 2
    canvas.rect(LEFT, y, max(end - LEFT, 1), BAR, fill=colour)
    canvas.line([(px(figure.least), middle), (px(figure.most), middle)], stroke="#222")
    canvas.text(max(end, px(figure.most)) + 5, y + BAR - 4, _compact(figure.median))


def lines(results: Results, title: str, series: Mapping[str, str]) -> str:
    """Rates over a logarithmic x, one line per broker and series; empty if there are no two points."""
    brokers = list(results.versions)
    curves: list[tuple[int, str, list[Point]]] = []
    for dash, (name, metric) in zip(("none", "5 4"), series.items(), strict=False):
        members = sorted((s for s in results.scenarios if s.series == name), key=lambda s: s.x)
        for i, broker in enumerate(brokers):
            points = [(s.x, f.median) for s in members if (f := results.figure(s.key, broker, metric))]
            if len(points) > 1:
                curves.append((i, dash, points))
    if not curves:
        return ""
    xs = sorted({x for _, _, points in curves for x, _ in points})
    top = max(y for _, _, points in curves for _, y in points) or 1.0
    left, right, bottom = 80, WIDTH - 30, TOP + LINE_HEIGHT
    px, py = Scale(xs[0], xs[-1], left, right, log=True), Scale(0, top, bottom, TOP + 20)
    canvas = _page(title, brokers)
    canvas.height = bottom + LINE_BOTTOM
    canvas.grid(py, [(y, _compact(y)) for y in (0, top / 2, top)], left, right)
    for x in xs:
        canvas.text(px(x), bottom + 18, _compact(x), "middle")
    for i, dash, points in curves:
        path = [(px(x), py(y)) for x, y in points]
        canvas.line(path, stroke=COLOURS[i % len(COLOURS)], stroke_width=2, stroke_dasharray=dash)
    return canvas.svg() + "\n"


def _page(title: str, brokers: Sequence[str]) -> Canvas:
    """A picture that is a file of its own, so far with its title and the colours of the brokers."""
    look = {"font_family": "sans-serif", "font_size": 12, "fill": "#222", "style": "background:#fff"}
    canvas = Canvas(WIDTH, 0, title, xmlns=XMLNS, **look)
    canvas.text(12, 20, title, font_size=14, font_weight="bold")
    x = 12
    for i, name in enumerate(brokers):
        canvas.rect(x, 29, 11, 11, fill=COLOURS[i % len(COLOURS)])
        canvas.text(x + 16, 39, name)
        x += 40 + 8 * len(name)
    return canvas


def _short(text: str) -> str:
    return text if len(text) <= 44 else text[:43] + "…"


def _compact(value: float) -> str:
    for limit, suffix in ((1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"
