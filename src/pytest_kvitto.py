"""pytest plugin, a module of its own so that pytest does not rewrite the package: the fixture `kvitto_broker`, a broker per test."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kvitto import Broker


@pytest.fixture
def kvitto_broker() -> "Iterator[Broker]":
    """A running broker on a free port with a temporary data directory; `kvitto_broker.url` is what a client needs."""
    # imported here: a test run that does not use the fixture must not pay for loading the broker
    import kvitto

    with kvitto.Broker() as broker:
        yield broker
