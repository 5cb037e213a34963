"""One broker with HTTP per module: the tests of a module use names of their own."""

from collections.abc import Iterator

import pytest

import kvitto
from tests.http.api import Http


@pytest.fixture(scope="module")
def broker() -> Iterator[kvitto.Broker]:
    with kvitto.Broker(http_port=0) as broker:
        yield broker


@pytest.fixture(scope="module")
def api(broker: kvitto.Broker) -> Http:
    """As guest, the administrator."""
    return Http(broker.http_url)
