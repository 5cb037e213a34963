"""The report: readable numbers, honest marks, well-formed plots."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.plots import draw
from benchmarks.report import BEGIN, END, into_docs, markdown, number, write
from benchmarks.results import Described, Results, Run


@pytest.fixture
def results() -> Results:
    found = Results("today", machine={"cpu": "x", "cores": 2}, settings={"runs": 2, "seconds": 10.0})
    found.versions = {"Kvitto": "Kvitto 1", "RabbitMQ": "RabbitMQ 3"}
    found.scenarios = [Described("a", "a", "One & one", "perf throughput")]
    found.scenarios += [Described(f"j-{x}", "j", f"At most {x}", "", "j", x) for x in (1000, 1_000_000)]
    for broker, rate, cpu in (("Kvitto", 2_000_000.0, 0.25), ("RabbitMQ", 100_000.0, 10.0)):
        for factor in (0.9, 1.1):
            values = {"consumed_per_s": rate * factor, "cpu_us": cpu, "generator_cores": 0.99}
            found.runs.append(Run("a", broker, values))
        for x in (1000, 1_000_000):
            found.runs.append(Run(f"j-{x}", broker, {"confirmed_per_s": rate}, "others used 0.5 cores", 123.0))
    return found


def test_numbers_have_three_digits_that_count() -> None:
    shown = [number(n) for n in (2_131_478.0, 1234.0, 567.8, 12.34, 1.234, 0.1234, 0.0, 3.0, -25.02)]
    assert shown == ["2,130,000", "1,230", "568", "12.3", "1.23", "0.12", "0", "3", "-25.0"]


def test_the_report_has_medians_ratios_and_verdicts(results: Results) -> None:
    text = markdown(results)
    assert (
        "| One & one | consumed (msg/s) | 2,000,000 (1,800,000 to 2,200,000) | 100,000 (90,000 to 110,000) | 20 x |"
        in text
    )
    assert "| a | consumed, against RabbitMQ | ≥ 15 x | 20 x | met |" in text
    assert "0.99 (0.99 to 0.99), the limit" in text


def test_figures_from_disturbed_runs_are_marked(results: Results) -> None:
    assert "2,000,000 (disturbed)" in markdown(results)
    assert "fdatasync of this disk beside these runs: 123 µs" in markdown(results)


def test_failures_and_notes_are_in_the_report(results: Results) -> None:
    results.failed.append("d-16, RabbitMQ failed: gone")
    assert "> d-16, RabbitMQ failed: gone" in markdown(results)


def test_plots_are_well_formed_and_linked(results: Results, tmp_path: Path) -> None:
    drawn = draw(results)
    assert set(drawn) == {"rates.svg", "cpu.svg", "outstanding.svg"}
    for svg in drawn.values():
        assert ET.fromstring(svg).tag.endswith("svg")
    write(results, tmp_path)
    text = (tmp_path / "results.md").read_text()
    assert all(f"({name})" in text and (tmp_path / name).exists() for name in drawn)


def test_the_table_goes_between_the_marks_and_again(results: Results, tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        into_docs(results, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert text.count("| (a) One & one | consumed (msg/s) |") == 1
    page.write_text("no marks")
    with pytest.raises(ValueError, match=r"performance\.md"):
        into_docs(results, page)


def test_the_documentation_has_the_marks() -> None:
    text = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    assert text.index(BEGIN) < text.index(END)
