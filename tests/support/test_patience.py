"""The limits of time of tests themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.patience import worth

pytest_plugins = ["pytester"]

HANGS = """
import signal
from tests.support import patience

patience.os.getloadavg = lambda: (LOAD * (patience.os.cpu_count() or 1), 0, 0)
patience.LOOK_S = 0.05

def pytest_timeout_set_timer(item, settings):
    return patience.set_timer(item, settings)
"""


def test_a_second_counts_less_where_many_tasks_share_a_core() -> None:
    assert worth(10, 0.5, 2) == worth(10, 2, 2) == 10
    assert worth(10, 10, 2) == 2


@pytest.mark.parametrize("load", [1, 1000])
def test_a_test_that_hangs_ends_later_on_a_machine_that_is_busy(
    load: int, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makeconftest(HANGS.replace("LOAD", str(load)))
    pytester.makepyfile(
        """
        import time
        import pytest

        @pytest.mark.timeout(0.2)
        def test_it():
            time.sleep(1)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=int(load > 1), failed=int(load == 1))
