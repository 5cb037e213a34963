"""Two plots as inline SVG: counts over time with marks, and bars with their values. No script, no font to load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

Point = tuple[float, float]


class Series(NamedTuple):
    """A line: its name, its CSS class, its points in order of x."""

    name: str
    style: str
    points: Sequence[Point]


WIDTH, HEIGHT = 920, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 52, 42


def ticks(most: float, about: int) -> list[float]:
    """Round numbers from 0 to `most`, about so many."""
    if most <= 0:
        return [0.0]
    raw = most / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 2.5, 5) if m * power >= raw), 10 * power)
    return [k * step for k in range(int(most / step + 1e-9) + 1)]


def timeline(series: Sequence[Series], kills: Sequence[tuple[float, str]], back: Sequence[tuple[float, str]]) -> str:
    """Lines over seconds; each kill is a mark with its name, and the time until it was back a shade."""
    end = max((x for line in series for x, _ in line.points), default=1.0)
    most = max((y for line in series for _, y in line.points), default=1.0) or 1.0

    def px(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * x / end

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / most

    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="published, confirmed and landed over time">']
    for k, ((x, name), (x2, _)) in enumerate(zip(kills, back, strict=False)):
        out.append(
            f'<rect class="away" x="{px(x):.1f}" y="{TOP}" width="{max(px(x2) - px(x), 1):.1f}" height="{HEIGHT - TOP - BOTTOM}"/>'
        )
        y = TOP - 10 - 18 * (k % 2)  # two kills may be close together
        side = "end" if px(x) > WIDTH - 160 else "start"
        out.append(
            f'<text class="kill" x="{px(x):.1f}" y="{y}" text-anchor="{side}">✕ {escape(name)}, {x:.0f} s</text>'
        )
    for value in ticks(most, 5):
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py(value):.1f}" y2="{py(value):.1f}"/>')
        out.append(f'<text class="tick" x="{LEFT - 8}" y="{py(value) + 4:.1f}" text-anchor="end">{value:,.0f}</text>')
    for x in ticks(end, 9):
        out.append(f'<text class="tick" x="{px(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:g}</text>')
    out.append(
        f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">seconds since publishing began</text>'
    )
    for line in series:
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in _thin(line.points))
        out.append(f'<polyline class="line {line.style}" points="{path}"><title>{escape(line.name)}</title></polyline>')
    for x, _ in kills:
        out.append(f'<line class="killed" x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{TOP - 8}" y2="{HEIGHT - BOTTOM}"/>')
    return "\n".join([*out, "</svg>"])


def _thin(points: Sequence[Point]) -> list[Point]:
    """Without those in the middle of a level stretch: a step stays a step, and the file small."""
    kept: list[Point] = []
    for k, point in enumerate(points):
        inner = 0 < k < len(points) - 1
        if not (inner and points[k - 1][1] == point[1] == points[k + 1][1]):
            kept.append(point)
    return kept


def bars(rows: Sequence[tuple[str, float, str]], unit: str) -> str:
    """A bar for each (label, value, note), which may be negative, with the value at its end."""
    height, gap, left, right = 24, 7, 250, 150
    low, high = min(0.0, *(v for _, v, _ in rows)), max(0.0, *(v for _, v, _ in rows))
    span = (high - low) or 1.0
    total = len(rows) * (height + gap)

    def px(value: float) -> float:
        return left + (WIDTH - left - right) * (value - low) / span

    out = [f'<svg viewBox="0 0 {WIDTH} {total}" role="img" aria-label="bars, {escape(unit)}">']
    for k, (label, value, note) in enumerate(rows):
        y = k * (height + gap)
        x1, x2 = sorted((px(0), px(value)))
        edge = px(low) - 10
        out.append(f'<text class="label" x="{edge:.1f}" y="{y + 17}" text-anchor="end">{escape(label)}</text>')
        style = "bar" if value >= 0 else "bar early"
        width = max(x2 - x1, 1)
        out.append(f'<rect class="{style}" x="{x1:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="3"/>')
        said = f'{value:.1f} <tspan class="note">{escape(note)}</tspan>'
        out.append(f'<text class="value" x="{x2 + 8:.1f}" y="{y + 17}">{said}</text>')
    return "\n".join([*out, "</svg>"])
