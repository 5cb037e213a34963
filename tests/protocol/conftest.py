"""One broker for all tests of this folder (and process); each test uses names of its own."""

from collections.abc import Iterator

import pytest

import kvitto
from tests.protocol.raw import Raw


@pytest.fixture(scope="session")
def broker() -> Iterator[kvitto.Broker]:
    with kvitto.Broker() as running:
        yield running


@pytest.fixture
def raw(broker: kvitto.Broker) -> Iterator[Raw]:
    """A connection with channel 1 open."""
    with Raw(broker.port) as client:
        client.channel(1)
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of its own for a test's queue or exchange."""
    return str(request.node.name)[:100]
