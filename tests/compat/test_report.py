"""The comparison itself: what counts as a failure of Kvitto's own, and reports of both test runners."""

from pathlib import Path

from tests.compat.execute import Outcome, read_report
from tests.compat.report import judge

BASELINE = {
    "broker": "reference",
    "suites": {"one": {"failed": ["t::known"], "full": {"tests": 3, "failed": 1}}},
    "deviations": {"one": {"t::ours": "a reason"}},
}


def verdict(outcome: Outcome, partial: bool = False) -> tuple[list[str], str]:
    found = judge("one", outcome, BASELINE, quick=False, partial=partial)
    return sorted(found.new), found.problem


def test_failures_of_the_reference_and_deviations_are_no_news() -> None:
    assert verdict(Outcome(passed={"t::a"}, failed={"t::known": "", "t::ours": ""})) == ([], "")


def test_any_other_failure_is_news() -> None:
    assert verdict(Outcome(passed={"t::a", "t::b"}, failed={"t::c": "reason"})) == (["t::c"], "")


def test_a_run_with_fewer_tests_than_the_reference_is_no_good() -> None:
    assert verdict(Outcome(passed={"t::a"})) == ([], "only 1 of 3 tests ran")
    assert verdict(Outcome(passed={"t::a"}), partial=True) == ([], "")


def test_a_suite_that_left_no_report_is_no_good(tmp_path: Path) -> None:
    outcome = read_report(tmp_path / "none.xml", "", None)
    assert verdict(outcome)[1] == "left no report"


def test_report_of_pytest(tmp_path: Path) -> None:
    """A test whose teardown fails after it passed is a failed one."""
    path = tmp_path / "report.xml"
    path.write_text(
        '<testsuites><testsuite name="pytest">'
        '<testcase classname="t.m" name="a"/><testcase classname="t.m" name="s"><skipped/></testcase>'
        '<testcase classname="t.m" name="b"/><testcase classname="t.m" name="b"><error message="teardown"/></testcase>'
        "</testsuite></testsuites>"
    )
    outcome = read_report(path, "", None)
    assert (outcome.passed, outcome.skipped, outcome.failed) == ({"t.m::a"}, {"t.m::s"}, {"t.m::b": "teardown"})
    assert not path.exists()


def test_report_of_node(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(
        '<testsuites><testsuite name="connect"><testsuite name="local"><testcase name="a" classname="test"/></testsuite>'
        '<testcase name="b" classname="test"><failure message="no"/></testcase></testsuite></testsuites>'
    )
    outcome = read_report(path, "", None)
    assert (outcome.passed, outcome.failed) == ({"connect > local > a"}, {"connect > b": "no"})
