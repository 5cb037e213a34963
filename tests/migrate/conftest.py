"""Brokers as processes that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from kvitto.torture.nodes import INSTALL_RABBITMQ, Node, rabbitmq_script
from tests.migrate.trial import node


@pytest.fixture(scope="package")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    if rabbitmq_script() is None:
        pytest.skip(f"RabbitMQ is not installed: {INSTALL_RABBITMQ}")
    with node("rabbitmq", tmp_path_factory.mktemp("rabbitmq")) as running:
        yield running


@pytest.fixture(scope="package")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node("kvitto", tmp_path_factory.mktemp("old")) as running:
        yield running


@pytest.fixture(scope="package")
def new(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node("kvitto", tmp_path_factory.mktemp("new")) as running:
        yield running
