"""A cluster of RabbitMQ nodes, to compare with one of Kvitto (`kvitto torture --rabbitmq --nodes N`).

Clients use one node as long as that one serves them, else another. The nodes find each other by their configuration, pause when they
are a minority (`pause_minority`), and send dead letters again after DEAD_LETTERS_MS; all else is as RabbitMQ comes.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from kvitto.torture.cluster import PORT, PROBE, USER, Cluster, host_of
from kvitto.torture.network import Network
from kvitto.torture.nodes import Node, RabbitMQ, answers, free_port, is_erlang, uri_for

CONTROL = ("/usr/lib/rabbitmq/bin/rabbitmqctl", "rabbitmqctl")
"""Debian's own script is the first, as for the server."""
EPMD_PORT, DIST_PORT = 4369, 25672
CONTROL_S = 30.0
DEAD_LETTERS_MS = 20_000
"""After this time dead letters are sent to their queue once more. RabbitMQ's own 180 s are longer than the load may stand still here."""


class Rabbit(RabbitMQ):
    """One node of the cluster."""

    def __init__(self, place: Path, network: Network | None, host: str, epmd_port: int, cookie: str) -> None:
        super().__init__(place)
        self._network, self._host = network, host
        self._address = "127.0.0.1" if network is None else network.address(host)
        if network is not None:
            self.port, self.epmd_port, self.dist_port = PORT, EPMD_PORT, DIST_PORT
        else:
            self.epmd_port = epmd_port
        self.uri = uri_for(self.port).replace("127.0.0.1", self._address)
        self.member = f"{USER}-{host}@localhost" if network is None else f"{USER}@{self._address}"
        """The node's name in the cluster."""
        self.members_of_cluster: list[str] = []
        jar = self.place / ".erlang.cookie"
        jar.write_text(cookie)
        jar.chmod(0o400)

    def begin(self) -> None:
        uri = self.uri
        super().begin()
        assert self._process is not None
        self.uri, self.pid = uri, self._process.pid

    def _around_spawn(self) -> AbstractContextManager[None]:
        return nullcontext() if self._network is None else self._network.inside(self._host)

    def _wait_ready(self) -> None:
        """Do not wait: a node may need the others."""

    def stop(self) -> int:
        self.pid = next((pid for pid in self.members() if is_erlang(pid)), self.pid)
        return Node.stop(self)  # the port mapper goes on, for the next start

    def _settings(self) -> list[str]:
        lines = [f"listeners.tcp.local = {self._address}:{self.port}", f"log.file = {self.place / 'rabbitmq.log'}"]
        lines += ["loopback_users = none", "cluster_partition_handling = pause_minority"]
        lines += ["cluster_formation.peer_discovery_backend = classic_config"]
        for number, member in enumerate(self.members_of_cluster, 1):
            lines.append(f"cluster_formation.classic_config.nodes.{number} = {member}")
        return lines

    def _write_config(self) -> None:
        super()._write_config()
        text = f"[{{rabbit, [{{dead_letter_worker_publisher_confirm_timeout, {DEAD_LETTERS_MS}}}]}}].\n"
        (self.place / "advanced.config").write_text(text)

    def _environment(self) -> dict[str, str]:
        advanced = {"RABBITMQ_ADVANCED_CONFIG_FILE": f"{self.place}/advanced.config"}
        long = {"RABBITMQ_USE_LONGNAME": "true"} if self._network is not None else {}
        own = {"RABBITMQ_NODENAME": self.member, "ERL_EPMD_ADDRESS": self._address}
        return {**super()._environment(), **own, **advanced, **long}

    def running_members(self) -> list[str]:
        """Return which nodes of the cluster run, as this one sees it; none if it does not answer."""
        script = next((found for place in CONTROL if (found := shutil.which(place))), CONTROL[-1])
        command = [script, "-n", self.member, "cluster_status", "--formatter", "json"]
        with self._around_spawn():
            try:
                done = subprocess.run(
                    command,
                    env={**os.environ, **self._environment()},
                    capture_output=True,
                    timeout=CONTROL_S,
                    check=True,
                )
                return list(json.loads(done.stdout)["running_nodes"])
            except (OSError, subprocess.SubprocessError, ValueError, KeyError):
                return []


class RabbitCluster(Cluster):
    """Several nodes of RabbitMQ."""

    name = "RabbitMQ cluster"
    nodes: list[Rabbit]

    def __init__(self, place: Path, count: int, network: Network | None = None) -> None:
        port, cookie = free_port(), secrets.token_hex(16)
        hosts = [host_of(number) for number in range(count)]
        super().__init__(place, [Rabbit(place / host, network, host, port, cookie) for host in hosts], network)
        for node in self.nodes:
            node.members_of_cluster = [other.member for other in self.nodes]
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            for node in self.nodes:
                node.begin()
            self._wait(lambda: len(self.nodes[0].running_members()) == len(self.nodes), "all nodes are in the cluster")

    @property
    def ended(self) -> str:
        """RabbitMQ sometimes ends while it starts: it is started again."""
        for node in self.nodes:
            if node not in self._dead and node.pid and not node.running:
                node.kill()
                node.begin()
        return ""

    def _serving(self) -> Node | None:
        nodes: list[Node] = [self._leader] if self._leader is not None else []
        nodes += [node for node in self.nodes if node is not self._leader]
        return next((node for node in nodes if node.running and answers(node.uri + PROBE)), None)
