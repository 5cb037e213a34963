"""Waiting for a condition instead of sleeping: the one helper, with the one timeout."""

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

TIMEOUT_S = 60.0


def wait_until(condition: Callable[[], T | Literal[False] | None], timeout: float = TIMEOUT_S, what: str = "") -> T:
    """The first true value that `condition()` gives; AssertionError after `timeout` seconds, naming `what`."""
    deadline = time.monotonic() + timeout
    pause = 0.0005
    while not (value := condition()):
        if time.monotonic() > deadline:
            name = what or getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"not within {timeout:g} s: {name}; last value {value!r}")
        # the only place where a test pauses: doubling from half a millisecond keeps short waits short
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return value
