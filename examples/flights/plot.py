"""The two plots of the report: counts over time with marks, and bars with their values. The page has their style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvitto.base.plot import Canvas, Point, Scale, ticks


class Series(NamedTuple):
    """A line: its name, its CSS class, its points in order of x."""

    name: str
    style: str
    points: Sequence[Point]


WIDTH, HEIGHT = 920, 380
LEFT, RIGHT, TOP, BOTTOM = 70, WIDTH - 20, 52, HEIGHT - 42
BAR, GAP = 24, 7


def timeline(series: Sequence[Series], kills: Sequence[tuple[float, str]], back: Sequence[tuple[float, str]]) -> str:
    """Lines over seconds; each kill is a mark with its name, and the time until it was back a shade."""
    end = max((x for line in series for x, _ in line.points), default=1.0)
    most = max((y for line in series for _, y in line.points), default=1.0) or 1.0
    px, py = Scale(0, end, LEFT, RIGHT), Scale(0, most, BOTTOM, TOP)
    canvas = Canvas(WIDTH, HEIGHT, "published, confirmed and landed over time")
    for k, ((x, name), (x2, _)) in enumerate(zip(kills, back, strict=False)):
        canvas.rect(px(x), TOP, max(px(x2) - px(x), 1), BOTTOM - TOP, class_="away")
        side = "end" if px(x) > WIDTH - 160 else "start"
        # two kills may be close together: their names are on two lines
        canvas.text(px(x), TOP - 10 - 18 * (k % 2), f"✕ {name}, {x:.0f} s", side, class_="kill")
    canvas.grid(py, [(value, f"{value:,.0f}") for value in ticks(most, 5)], LEFT, RIGHT)
    for x in ticks(end, 9):
        canvas.text(px(x), BOTTOM + 18, f"{x:g}", "middle", class_="tick")
    canvas.text(RIGHT, HEIGHT - 6, "seconds since publishing began", "end", class_="tick")
    for line in series:
        canvas.line([(px(x), py(y)) for x, y in line.points], line.name, class_=f"line {line.style}")
    for x, _ in kills:
        canvas.line([(px(x), TOP - 8), (px(x), BOTTOM)], class_="killed")
    return canvas.svg()


def bars(rows: Sequence[tuple[str, float, str]], unit: str) -> str:
    """A bar for each (label, value, note), which may be negative, with the value at its end."""
    low, high = min(0.0, *(v for _, v, _ in rows)), max(0.0, *(v for _, v, _ in rows))
    px = Scale(low, high if high > low else low + 1, 250, WIDTH - 150)
    canvas = Canvas(WIDTH, len(rows) * (BAR + GAP), f"bars, {unit}")
    for k, (label, value, note) in enumerate(rows):
        y = k * (BAR + GAP)
        left, right = sorted((px(0), px(value)))
        canvas.text(px(low) - 10, y + 17, label, "end", class_="label")
        style = "bar" if value >= 0 else "bar early"
        canvas.rect(left, y, max(right - left, 1), BAR, class_=style, rx=3)
        canvas.text(right + 8, y + 17, f"{value:.1f}", note=note, class_="value")
    return canvas.svg()
