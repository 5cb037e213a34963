"""Scripts in which Kvitto does as RabbitMQ: each test of this folder runs against both, RabbitMQ's half where it is installed.

With RABBITMQ_PORT, and RABBITMQ_URL of its management API, in the environment the RabbitMQ that listens there on loopback is asked
instead of one that is started for it.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvitto
from kvitto.torture.nodes import INSTALL_RABBITMQ, RabbitMQ, free_port, rabbitmq_script
from tests.http.api import Http
from tests.protocol.conftest import more, name, raw
from tests.support.wait import wait_until

__all__ = ["more", "name", "raw"]


PLUGINS = (
    "rabbitmq_management",
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_random_exchange",
    "rabbitmq_recent_history_exchange",
    "rabbitmq_sharding",  # has x-modulus-hash
    "rabbitmq_shovel",
    "rabbitmq_shovel_management",
)


class Managed(RabbitMQ):
    """With the management plugin, shovels, and the exchange types that are plugins."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.http_port = free_port()

    def _settings(self) -> list[str]:
        return [*super()._settings(), "management.tcp.ip = 127.0.0.1", f"management.tcp.port = {self.http_port}"]

    def _write_config(self) -> None:
        super()._write_config()
        (self.place / "plugins").write_text(f"[{','.join(PLUGINS)}].\n")


@pytest.fixture(scope="session")
def kvitto_broker_alike() -> Iterator[kvitto.Broker]:
    with kvitto.Broker(http_port=0) as running:
        yield running


@pytest.fixture(scope="session")
def rabbitmq_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    if rabbitmq_script() is None:
        pytest.skip(f"RabbitMQ is not installed: {INSTALL_RABBITMQ}")
    node = Managed(tmp_path_factory.mktemp("rabbitmq"))
    try:
        node.start()
        yield node
    finally:
        node.close()


@pytest.fixture(scope="session")
def kvitto_port(kvitto_broker_alike: kvitto.Broker) -> int:
    return kvitto_broker_alike.port


@pytest.fixture(scope="session")
def rabbitmq_port(request: pytest.FixtureRequest) -> int:
    if "RABBITMQ_PORT" in os.environ:
        return int(os.environ["RABBITMQ_PORT"])
    node: Managed = request.getfixturevalue("rabbitmq_node")
    return node.port


@pytest.fixture(scope="session")
def kvitto_url(kvitto_broker_alike: kvitto.Broker) -> str:
    return kvitto_broker_alike.http_url


@pytest.fixture(scope="session")
def rabbitmq_url(request: pytest.FixtureRequest) -> str:
    if "RABBITMQ_URL" in os.environ:
        return os.environ["RABBITMQ_URL"]
    node: Managed = request.getfixturevalue("rabbitmq_node")
    url = f"http://127.0.0.1:{node.http_port}"
    wait_until(lambda: answers(url))
    return url


def answers(url: str) -> bool:
    try:
        return Http(url).call("GET", "/api/whoami").status == 200
    except OSError:
        return False


@pytest.fixture(params=["kvitto", "rabbitmq"])
def port(request: pytest.FixtureRequest) -> int:
    """The AMQP port of each broker in turn."""
    found: int = request.getfixturevalue(f"{request.param}_port")
    return found


@pytest.fixture(params=["kvitto", "rabbitmq"])
def api(request: pytest.FixtureRequest) -> Http:
    """The management API of each broker in turn, as guest."""
    return Http(request.getfixturevalue(f"{request.param}_url"))
