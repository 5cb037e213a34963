"""Plots: values where they belong, text that cannot break out, files that stay small."""

import xml.etree.ElementTree as ET

import pytest

from kvitto.base.plot import XMLNS, Canvas, Scale, ticks


def test_a_scale_takes_the_ends_to_the_ends_and_grows_between_them() -> None:
    assert [Scale(0, 10, 100, 50)(value) for value in (0, 5, 10)] == [100, 75, 50]
    assert [Scale(1, 10_000, 0, 400, log=True)(value) for value in (1, 10, 10_000)] == [0, 100, 400]


@pytest.mark.parametrize(
    ("most", "about", "expected"),
    [(0, 5, [0]), (10, 5, [0, 2, 4, 6, 8, 10]), (99, 4, [0, 25, 50, 75]), (0.3, 3, [0, 0.1, 0.2, 0.3])],
)
def test_ticks_are_round_and_within_the_values(most: float, about: int, expected: list[float]) -> None:
    assert ticks(most, about) == pytest.approx(expected)


def test_a_picture_is_xml_whatever_its_words_are() -> None:
    canvas = Canvas(100, 50.25, 'a "label"', xmlns=XMLNS)
    canvas.text(1, 2, "<b> & co", note="]]>", class_="tick", font_size=12)
    canvas.rect(0.04, 0, 10, 5, "</svg>", fill="red")
    canvas.circle(1, 1, 2.5, "five > four")
    canvas.grid(Scale(0, 10, 40, 0), [(0, "0"), (10, "<10>")], 20, 90)
    drawn = ET.fromstring(canvas.svg())
    assert (drawn.get("viewBox"), drawn.get("aria-label")) == ("0 0 100 50.2", 'a "label"')
    text, rect = drawn[0], drawn[1]
    assert (text.text, text[0].text, text.get("class"), text.get("font-size")) == ("<b> & co ", "]]>", "tick", "12")
    assert (rect.get("x"), rect.get("fill"), rect[0].text) == ("0", "red", "</svg>")
    assert [mark.text for mark in drawn if mark.get("text-anchor") == "end"] == ["0", "<10>"]


def test_a_line_leaves_out_what_lies_inside_of_a_level_stretch() -> None:
    canvas = Canvas(10, 10, "steps")
    canvas.line([(0, 1), (1, 1), (2, 1), (3, 5), (4, 5), (5, 5), (6, 6)], "steps", stroke="#000")
    assert 'points="0,1 2,1 3,5 5,5 6,6"' in canvas.svg()
