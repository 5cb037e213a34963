"""Limits of time for tests that a loaded machine does not break: a second counts less if many tasks share a core in it.

`tests/conftest.py` makes pytest-timeout count like this. A test that hangs still ends, later on a machine that is busy.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import pytest_timeout

LOOK_S = 10.0
"""Seconds between two looks at the load of the machine."""


def worth(seconds: float, load: float, cores: int) -> float:
    """How many seconds of a quiet machine these seconds count for. `load`: the tasks that run or could run, on average."""
    return seconds / max(load / cores, 1.0)


def set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """A hook of pytest-timeout: True if it has set a timer. None if only the usual one can be set."""
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None
    left, before = float(settings.timeout), time.monotonic()

    def look(number: int, frame: object) -> None:
        nonlocal left, before
        __tracebackhide__ = True
        now = time.monotonic()
        left -= worth(now - before, os.getloadavg()[0], os.cpu_count() or 1)
        before = now
        if left <= 0:
            pytest_timeout.timeout_sigalrm(item, settings)
        else:
            signal.setitimer(signal.ITIMER_REAL, min(left, LOOK_S))

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]  # pytest-timeout calls it
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, min(left, LOOK_S))
    return True
