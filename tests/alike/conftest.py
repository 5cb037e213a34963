"""Scripts in which Kvitto does as RabbitMQ: each test of this folder runs against both, RabbitMQ's half where it is installed.

With RABBITMQ_PORT in the environment the RabbitMQ that listens there on loopback is asked instead of one that is started for it.
"""

import os
from collections.abc import Iterator

import pytest

import kvitto
from kvitto.torture.nodes import INSTALL_RABBITMQ, RabbitMQ, rabbitmq_script
from tests.protocol.conftest import more, name, raw

__all__ = ["more", "name", "raw"]


@pytest.fixture(scope="session")
def kvitto_port() -> Iterator[int]:
    with kvitto.Broker() as running:
        yield running.port


@pytest.fixture(scope="session")
def rabbitmq_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if "RABBITMQ_PORT" in os.environ:
        yield int(os.environ["RABBITMQ_PORT"])
        return
    if rabbitmq_script() is None:
        pytest.skip(f"RabbitMQ is not installed: {INSTALL_RABBITMQ}")
    node = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    try:
        node.start()
        yield node.port
    finally:
        node.close()


@pytest.fixture(params=["kvitto", "rabbitmq"])
def port(request: pytest.FixtureRequest) -> int:
    """The AMQP port of each broker in turn."""
    found: int = request.getfixturevalue(f"{request.param}_port")
    return found
