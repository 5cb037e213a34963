"""SVG without a library: scales that turn values into pixels, and a canvas with the few shapes that plots need.

The page of the ledger, the benchmarks and the example of flights use it, and decide themselves what their plots show. A
picture runs no script and loads nothing. Colours are CSS; `var(--name)` works if the page defines the name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

Point = tuple[float, float]
XMLNS = "http://www.w3.org/2000/svg"
"""An attribute for a picture that is a separate file; inside HTML it is not needed."""


class Scale(NamedTuple):
    """Maps values from `low` to `high` to pixels from `start` to `end`. `high` is above `low`, and both are above 0 if `log`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)


class Canvas:
    """A picture `width` pixels wide; `height` may be set until it is written. Coordinates are pixels from the top left.

    Attributes are those of SVG, with `_` for `-`; `class_` is `class`. Later shapes cover earlier ones.
    """

    def __init__(self, width: float, height: float, label: str, **attributes: object) -> None:
        self.width = width
        self.height = height
        self._attributes = {**attributes, "role": "img", "aria_label": label}
        self._drawn: list[str] = []

    def text(self, x: float, y: float, words: str, anchor: str = "start", note: str = "", **attributes: object) -> None:
        """Draw words on the line `y`; a note behind them has the class `note`."""
        inner = escape(words) + (f" {_element('tspan', escape(note), {'class': 'note'})}" if note else "")
        self._draw("text", inner, {"x": x, "y": y, "text_anchor": anchor, **attributes})

    def rect(self, x: float, y: float, width: float, height: float, title: str = "", **attributes: object) -> None:
        """Draw a filled rectangle; `title` is shown where the pointer rests on it."""
        self._draw("rect", _title(title), {"x": x, "y": y, "width": width, "height": height, **attributes})

    def circle(self, x: float, y: float, radius: float, title: str = "", **attributes: object) -> None:
        """Draw a filled circle."""
        self._draw("circle", _title(title), {"cx": x, "cy": y, "r": radius, **attributes})

    def line(self, points: Sequence[Point], title: str = "", **attributes: object) -> None:
        """Draw a line through the points, without filling it."""
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in _thin(points))
        self._draw("polyline", _title(title), {"points": path, "fill": "none", **attributes})

    def grid(self, y: Scale, marks: Iterable[tuple[float, str]], left: float, right: float) -> None:
        """Draw a horizontal line for each (value, words) from `left` to `right`, with the words before it. The classes
        are grid and tick."""
        for value, words in marks:
            at = y(value)
            self.line([(left, at), (right, at)], class_="grid", stroke="#e3e8ee")
            self.text(left - 8, at + 4, words, "end", class_="tick")

    def svg(self) -> str:
        """Return the picture as one element."""
        box = {"viewBox": f"0 0 {_number(self.width)} {_number(self.height)}", **self._attributes}
        return _element("svg", "\n".join(["", *self._drawn, ""]), box)

    def _draw(self, name: str, inner: str, attributes: dict[str, object]) -> None:
        self._drawn.append(_element(name, inner, attributes))


def ticks(most: float, about: int) -> list[float]:
    """Return about this many round numbers from 0 to `most`."""
    if most <= 0:
        return [0.0]
    raw = most / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 2.5, 5) if m * power >= raw), 10 * power)
    return [k * step for k in range(int(most / step + 1e-9) + 1)]


def _thin(points: Sequence[Point]) -> list[Point]:
    """Return the points without those inside a horizontal stretch, so that the file stays small and a step stays a step."""
    kept: list[Point] = []
    for k, point in enumerate(points):
        inner = 0 < k < len(points) - 1
        if not (inner and points[k - 1][1] == point[1] == points[k + 1][1]):
            kept.append(point)
    return kept


def _element(name: str, inner: str, attributes: dict[str, object]) -> str:
    said = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
    ]
    return f"<{name}{''.join(said)}>{inner}</{name}>" if inner else f"<{name}{''.join(said)}/>"


def _title(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""


def _number(value: float) -> str:
    """Return the number to a tenth of a pixel, which is precise enough."""
    return f"{value:.1f}".removesuffix(".0")
