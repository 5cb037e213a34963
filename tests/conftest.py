"""What all tests share: the form of Kvitto under test, a seed for the simulation, and hypothesis without surprises of timing."""

import gc
import logging
import os
import secrets
from collections.abc import Iterator

import hypothesis
import pytest

import kvitto
from tests.support import patience

hypothesis.settings.register_profile("kvitto", deadline=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kvitto"))


os.environ.setdefault("KVITTO_SEED", str(secrets.randbits(32)))  # the processes of this run get it from here


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the asyncio client reconnect at once."""
    monkeypatch.setattr("kvitto.client.aio.connection.BACKOFF_S", 0.001)


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Undo what a test does to the level of the log, such as a broker that is told another one."""
    loggers = [logging.getLogger(), logging.getLogger("kvitto")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def garbage_as_before() -> Iterator[None]:
    """Find the test that leaves a process without garbage collection: later ones would need gigabytes, and their brokers would block."""
    before = gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()
    yield
    after = gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()
    if after != before:
        gc.enable()
        gc.set_threshold(*before[1])
        gc.unfreeze()
    assert after == before, "the test has changed what is collected"


def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> bool | None:
    """Limits of time are those of a quiet machine."""
    return patience.set_timer(item, settings)


def pytest_report_header() -> str:
    """Say which form of the data plane is tested."""
    return f"kvitto {kvitto.__version__}, {'compiled' if kvitto.compiled() else 'interpreted'}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to have the same simulation again."""
    terminalreporter.write_line(f"KVITTO_SEED={os.environ['KVITTO_SEED']}")


def pytest_sessionstart() -> None:
    """A run that claims to test the compiled form must not quietly test the other one."""
    if os.environ.get("KVITTO_REQUIRE_COMPILED") and not kvitto.compiled():
        raise pytest.UsageError("the compiled form is missing or older than its sources: run `make build`")
