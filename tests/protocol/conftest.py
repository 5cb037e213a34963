"""One broker for all tests of this folder (and process); each test uses names of its own.

With AMQP_PORT in the environment the tests that need nothing of Kvitto's own run against whatever listens there on
loopback: that is how they are compared with RabbitMQ.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import kvitto
from tests.protocol.raw import Raw
from tests.support.limited import limit

numbers = itertools.count()


@pytest.fixture(scope="session")
def running() -> Iterator[kvitto.Broker | None]:
    """A running broker; None if it runs elsewhere, on AMQP_PORT."""
    if "AMQP_PORT" in os.environ:
        yield None
    else:
        with kvitto.Broker() as broker:
            yield broker


@pytest.fixture(scope="session")
def port(running: kvitto.Broker | None) -> int:
    """The AMQP port of a running broker."""
    return int(os.environ["AMQP_PORT"]) if running is None else running.port


@pytest.fixture
def allow(running: kvitto.Broker | None) -> Iterator[Callable[..., None]]:
    """Sets limits of the running broker for one test."""
    if running is None:
        pytest.skip("the limits of a broker that runs elsewhere cannot be changed")
    assert running._server is not None
    broker = running._server.broker
    before = broker.limits
    yield partial(limit, broker)
    broker.limits = before


@pytest.fixture
def raw(port: int) -> Iterator[Raw]:
    """A connection with channel 1 open."""
    with Raw(port) as client:
        client.channel(1)
        yield client


@pytest.fixture
def more(port: int) -> Iterator[Callable[..., Raw]]:
    """Makes further connections, with channel 1 open; they end with the test."""
    made: list[Raw] = []

    def another(**tuning: Any) -> Raw:
        client = Raw(port, **tuning)
        made.append(client)
        client.channel(1)
        return client

    yield another
    for client in made:
        client.drop()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of its own for a test's queue or exchange."""
    return f"{request.function.__name__[:80]}.{next(numbers)}.{os.getpid()}"
