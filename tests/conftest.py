"""What all tests share: the form of Kvitto under test, and hypothesis without surprises of timing."""

import os

import hypothesis
import pytest

import kvitto

hypothesis.settings.register_profile("kvitto", deadline=None)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "kvitto"))


def pytest_report_header() -> str:
    """Say which form of the data plane is tested."""
    return f"kvitto {kvitto.__version__}, {'compiled' if kvitto.compiled() else 'interpreted'}"


def pytest_sessionstart() -> None:
    """A run that claims to test the compiled form must not quietly test the other one."""
    if os.environ.get("KVITTO_REQUIRE_COMPILED") and not kvitto.compiled():
        raise pytest.UsageError("the compiled form is missing or older than its sources: run `make build`")
