"""Stands in for the container that the suites of aiormq and aio-pika start by themselves.

Both suites ask `tests.docker_client` for a broker in a container. This plugin answers with the broker under test
before their conftest is imported, so that neither the tests nor their conftest are touched.
The address comes from COMPAT_HOST, COMPAT_PORT and COMPAT_TLS_PORT.
"""

import os
from typing import Any

import pytest
from tests import docker_client  # the suite's own package: the suite's directory is first on the path
from yarl import URL


def _check() -> Any:
    return docker_client.DockerHostInfo(is_tcp=False, socket_path="none")


def _run(self: Any, image: str, ports: list[str], environment: dict[str, str] | None = None) -> Any:
    return docker_client.ContainerInfo(
        id="kvitto-compat",
        host=os.environ["COMPAT_HOST"],
        ports={"5672/tcp": int(os.environ["COMPAT_PORT"]), "5671/tcp": int(os.environ.get("COMPAT_TLS_PORT", "1"))},
    )


docker_client.check_docker_available = _check
docker_client.DockerClient.run = _run
for _name in ("kill", "remove", "stop"):
    setattr(docker_client.DockerClient, _name, lambda self, container_id, **_: None)


# aiormq's source distribution has no fixtures for the broker; a conftest that defines them overrides these two.


@pytest.fixture(scope="session")
def rabbitmq_container() -> Any:
    return _run(None, "", [])


@pytest.fixture(scope="session")
def amqp_direct_url(rabbitmq_container: Any) -> URL:
    host, port = rabbitmq_container.host, rabbitmq_container.ports["5672/tcp"]
    return URL.build(scheme="amqp", user="guest", password="guest", host=host, port=port, path="//")
