"""The brokers under measurement: those of `kvitto.torture.nodes` on cores of their own and with TLS, and peers.

A peer that somebody else started is measured, never stopped.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from benchmarks import proc
from benchmarks.tls import Certificate
from kvitto.torture import nodes
from kvitto.torture.nodes import (
    INSTALL_RABBITMQ,
    BrokerFailed,
    free_port,
    kvitto_command,
    rabbitmq_script,
    uri_for,
)

__all__ = [
    "INSTALL_RABBITMQ",
    "Broker",
    "BrokerFailed",
    "Kvitto",
    "Peer",
    "RabbitMQ",
    "Started",
    "kvitto_command",
    "parse_peer",
    "rabbitmq_script",
    "version",
]


class Broker(Protocol):
    """What a measurement needs of a broker."""

    name: str
    uri: str
    tls_uri: str | None
    pid: int
    restartable: bool

    def start(self) -> float: ...
    def stop(self) -> int | None: ...
    def kill(self) -> None: ...


class Started(nodes.Node):
    """A broker in a process of ours, on `place`, a directory of its own, and on these cores."""

    restartable = True

    def __init__(self, place: Path, cores: frozenset[int], certificate: Certificate | None) -> None:
        super().__init__(place)
        self.cores = cores
        self.certificate = certificate

    def _around_spawn(self) -> AbstractContextManager[None]:
        return proc.on(self.cores)


class Kvitto(Started, nodes.Kvitto):
    """`kvitto serve` of this checkout."""

    def _options(self) -> list[str]:
        if self.certificate is None:
            return []
        tls_port = free_port()
        self.tls_uri = uri_for(tls_port, "amqps", self.certificate.query)
        given = {"--tls-port": tls_port, "--tls-cert": self.certificate.cert, "--tls-key": self.certificate.key}
        return [str(word) for option in given.items() for word in option]


def kvitto_of(checkout: Path) -> type[Kvitto]:
    """`kvitto serve` of another checkout, started in the same way. ValueError if nothing is installed there."""
    command = checkout.resolve() / ".venv" / "bin" / "kvitto"
    if not command.exists():
        raise ValueError(f"there is no {command}: run `make build` in {checkout}")

    class Other(Kvitto):
        name = "other"

        def _kvitto(self) -> list[str]:
            return [str(command)]

    return Other


class RabbitMQ(Started, nodes.RabbitMQ):
    """Debian's RabbitMQ as a node of its own."""

    def _settings(self) -> list[str]:
        lines = super()._settings()
        if self.certificate is None:
            return lines
        self.tls_uri = uri_for(self.tls_port, "amqps", self.certificate.query)
        return [
            *lines,
            f"listeners.ssl.local = 127.0.0.1:{self.tls_port}",
            f"ssl_options.cacertfile = {self.certificate.cert}",
            f"ssl_options.certfile = {self.certificate.cert}",
            f"ssl_options.keyfile = {self.certificate.key}",
            "ssl_options.verify = verify_none",
        ]


class Peer:
    """A broker that runs already, given as NAME=amqp://...,pid=N. It is never started or stopped here."""

    restartable = False

    def __init__(self, name: str, uri: str, pid: int) -> None:
        self.name = name
        self.uri = uri
        self.tls_uri: str | None = None
        self.pid = pid

    def start(self) -> float:
        return 0.0

    def stop(self) -> None:
        """It is not ours."""

    def kill(self) -> None:
        """It is not ours."""


def parse_peer(text: str) -> Peer:
    """`NAME=amqp://user:password@host:port/vhost,pid=N`; ValueError says what is wrong with it."""
    match = re.fullmatch(r"(?P<name>[^=,]+)=(?P<uri>amqps?://.+),pid=(?P<pid>\d+)", text)
    if match is None:
        raise ValueError(f"a peer is given as NAME=amqp://host:port,pid=N, not {text!r}")
    uri = match["uri"]
    if "heartbeat=" not in uri:
        uri += ("&" if "?" in uri else "?") + "heartbeat=0"
    return Peer(match["name"], uri, int(match["pid"]))


def version(broker: Broker) -> str:
    """As the broker introduces itself to clients."""
    return nodes.version(broker.uri) or broker.name
