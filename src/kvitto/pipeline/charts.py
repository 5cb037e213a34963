"""The plots of the ledger's page: shares of a sum, stacked columns and lines over hours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from typing import Final

from kvitto.base.plot import Canvas, Scale

WIDTH: Final = 920
HEIGHT: Final = 220
LEFT, RIGHT, TOP, BOTTOM = 70, WIDTH - 16, 10, HEIGHT - 26


def bars(shares: Sequence[tuple[str, int, str]]) -> str:
    """Return one bar divided by (name, count, color), with the numbers below it."""
    canvas, left = Canvas(WIDTH, 26, "shares"), 0.0
    across = Scale(0, sum(count for _, count, _ in shares) or 1, 0, WIDTH)
    for name, count, color in shares:
        canvas.rect(left, 2, across(count), 20, f"{name}: {count:,}", fill=color)
        left += across(count)
    numbers = ", ".join(f"{name} {count:,}" for name, count, _ in shares)
    return f'{canvas.svg()}<p class="soft">{escape(numbers)}</p>'


def bands(times: Sequence[datetime], rows: Sequence[tuple[str, str, Sequence[int]]]) -> str:
    """Return a column for each hour, stacked of (name, color, counts)."""
    totals = [sum(counts) for counts in zip(*(counts for _, _, counts in rows), strict=True)]
    most = max(totals, default=0) or 1
    canvas, hour, y = Canvas(WIDTH, HEIGHT, "counts by hour"), _hours(times), Scale(0, most, BOTTOM, TOP)
    canvas.grid(y, [(value, f"{value:,.0f}") for value in (0, most / 2, most)], LEFT, RIGHT)
    below = [0] * len(times)
    for name, color, counts in rows:
        for k, count in enumerate(counts):
            if count:
                top = y(below[k] + count)
                said = f"{times[k]:%Y-%m-%d %H:00}, {name}: {count:,}"
                canvas.rect(hour(_since(times, k)), top, hour(1) - LEFT, y(below[k]) - top, said, fill=color)
                below[k] += count
    return _dated(canvas, times, hour)


def lines(
    times: Sequence[datetime], series: Sequence[tuple[str, str, Sequence[float | None]]], say: Callable[[float], str]
) -> str:
    """Return a line for each (name, color, values), with the values on a logarithmic scale from 1."""
    top = math.ceil(math.log10(max([10.0, *(value for _, _, values in series for value in values if value)])))
    canvas, hour, y = Canvas(WIDTH, HEIGHT, "lines"), _hours(times), Scale(1, 10.0**top, BOTTOM, TOP, log=True)
    canvas.grid(y, [(10.0**k, say(10.0**k)) for k in range(top + 1)], LEFT, RIGHT)
    for name, color, values in series:
        points = [
            (hour(_since(times, k) + 0.5), y(max(value, 1.0)), value)
            for k, value in enumerate(values)
            if value is not None
        ]
        canvas.line([point[:2] for point in points], name, stroke=color, stroke_width=2)
        for x, at, value in points:
            canvas.circle(x, at, 2.5, f"{name} {say(value)}", fill=color)
    return _dated(canvas, times, hour)


def _dated(canvas: Canvas, times: Sequence[datetime], hour: Scale) -> str:
    """Return the picture with the first and the last hour below it."""
    canvas.text(LEFT, HEIGHT - 6, f"{times[0]:%Y-%m-%d %H:00}")
    canvas.text(hour(_since(times, -1) + 1), HEIGHT - 6, f"{times[-1]:%Y-%m-%d %H:00}", "end")
    return canvas.svg()


def _hours(times: Sequence[datetime]) -> Scale:
    """Return the hours from the first one to the end of the last one."""
    return Scale(0, _since(times, -1) + 1, LEFT, RIGHT)


def _since(times: Sequence[datetime], k: int) -> float:
    """Return the hours from the first time to the k-th."""
    return (times[k] - times[0]).total_seconds() / 3600
