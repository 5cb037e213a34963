"""Other people's client test suites pass with Kvitto wherever they pass with RabbitMQ (see docs/compatibility.md)."""

import pytest

from tests.compat import report
from tests.compat.run import Results, chosen, run
from tests.compat.services import kvitto
from tests.compat.suites import QUICK

# all run side by side in the first test that needs them; most of their time is waiting
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def results() -> Results:
    results = run(chosen("", quick=True), kvitto, quick=True, jobs=3)
    print(report.table(results, report.load_baseline(), quick=True))
    return results


@pytest.mark.parametrize("suite", QUICK)
def test_suite_passes_as_with_rabbitmq(suite: str, results: Results) -> None:
    """No test fails that passes with RabbitMQ, but for the deviations that are written down; and none is missing."""
    outcome, verdict = results[suite]
    assert verdict.good, report.details({suite: (outcome, verdict)})
