"""Arguments without effect are named in the log, as many as somebody reads and as a turn has time for."""

from __future__ import annotations

import pytest

from kvitto.broker.administration.inert import AT_ONCE, NAMED_MAX, Notices


def test_each_name_is_logged_once_and_few_of_one_thing(caplog: pytest.LogCaptureFixture) -> None:
    """One declaration with 1,500 unknown arguments logged 1,000 lines, and held the loop for a quarter of a second."""
    notices, names = Notices(), [f"x-{number}" for number in range(AT_ONCE + 1)]
    notices.without_effect("queue 'q'", names, ("x-expires",))
    assert len(caplog.messages) == AT_ONCE
    notices.without_effect("queue 'q'", names, ("x-expires",))
    notices.without_effect("queue 'q'", names, ("x-expires",))
    assert len(caplog.messages) == AT_ONCE + 1
    for number in range(NAMED_MAX):
        notices.without_effect("queue 'q'", [f"y-{number}"])
    assert len(caplog.messages) == NAMED_MAX


def test_a_misspelt_name_gets_a_hint(caplog: pytest.LogCaptureFixture) -> None:
    Notices().without_effect("queue 'q'", ["x-expire", "x-expires"], ("x-expires",))
    [line] = caplog.messages
    assert "'x-expire' is accepted without effect (is it 'x-expires'?)" in line
