"""Plots as inline SVG: shares of a sum, stacked bands over hours, lines over hours on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from typing import Final

WIDTH: Final = 920
HEIGHT: Final = 220
LEFT, RIGHT, TOP, BOTTOM = 70, 16, 10, 26


def bars(shares: Sequence[tuple[str, int, str]]) -> str:
    """One bar cut by (name, count, color), with the numbers below it."""
    total = sum(count for _, count, _ in shares) or 1
    out, x = [f'<svg viewBox="0 0 {WIDTH} 26" role="img" aria-label="shares">'], 0.0
    for name, count, color in shares:
        width = WIDTH * count / total
        said = f"{name}: {count:,}"
        out.append(
            f'<rect x="{x:.1f}" y="2" width="{width:.1f}" height="20" fill="{color}"><title>{escape(said)}</title></rect>'
        )
        x += width
    numbers = ", ".join(f"{name} {count:,}" for name, count, _ in shares)
    return "".join(out) + f'</svg><p class="soft">{escape(numbers)}</p>'


def bands(times: Sequence[datetime], rows: Sequence[tuple[str, str, Sequence[int]]]) -> str:
    """A column for each hour, stacked of (name, color, counts)."""
    totals = [sum(counts) for counts in zip(*(counts for _, _, counts in rows), strict=True)]
    most = max(totals, default=0) or 1
    width = _step(times)
    out = [_open("counts by hour"), *_grid([(value, f"{value:,.0f}") for value in (0, most / 2, most)], most)]
    heights = [0] * len(times)
    for name, color, counts in rows:
        for k, count in enumerate(counts):
            if count:
                heights[k] += count
                y = _y(heights[k] / most)
                said = escape(f"{times[k]:%Y-%m-%d %H:00}, {name}: {count:,}")
                out.append(
                    f'<rect x="{_x(times, k):.1f}" y="{y:.1f}" width="{width:.1f}" height="{_y(0) - _y(count / most):.1f}"'
                    f' fill="{color}"><title>{said}</title></rect>'
                )
    return "".join([*out, _dates(times), "</svg>"])


def lines(
    times: Sequence[datetime], series: Sequence[tuple[str, str, Sequence[float | None]]], say: Callable[[float], str]
) -> str:
    """A line for each (name, color, values), the values on a logarithmic scale from 1."""
    top = math.ceil(math.log10(max([10.0, *(value for _, _, values in series for value in values if value)])))
    out = [_open("lines"), *_grid([(k, say(10.0**k)) for k in range(top + 1)], top)]
    for name, color, values in series:
        points = [
            (_x(times, k) + _step(times) / 2, _y(math.log10(max(value, 1.0)) / top), value)
            for k, value in enumerate(values)
            if value is not None
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
        out.append(
            f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{path}"><title>{escape(name)}</title></polyline>'
        )
        out += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"><title>{escape(f"{name} {say(value)}")}</title></circle>'
            for x, y, value in points
        ]
    return "".join([*out, _dates(times), "</svg>"])


def _open(label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'


def _grid(marks: Sequence[tuple[float, str]], most: float) -> list[str]:
    out = []
    for value, said in marks:
        y = _y(value / most)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e8ee"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(said)}</text>')
    return out


def _dates(times: Sequence[datetime]) -> str:
    marks = [(0, "start"), (len(times) - 1, "end")]
    return "".join(
        f'<text x="{_x(times, k) + (_step(times) if anchor == "end" else 0):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">'
        f"{times[k]:%Y-%m-%d %H:00}</text>"
        for k, anchor in marks
    )


def _hours(times: Sequence[datetime]) -> float:
    return (times[-1] - times[0]).total_seconds() / 3600 + 1


def _step(times: Sequence[datetime]) -> float:
    """The width of an hour."""
    return (WIDTH - LEFT - RIGHT) / _hours(times)


def _x(times: Sequence[datetime], k: int) -> float:
    return LEFT + _step(times) * (times[k] - times[0]).total_seconds() / 3600


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share
