"""Nodes of Kvitto that elect their leader, with an etcd, as one broker that is tortured (`kvitto torture --nodes N`).

`uri` is where the leader is. `kill` kills the leader, and `start` waits until another node serves clients; the killed one starts again
behind that. Other faults hit followers, all nodes, or etcd.
"""

from __future__ import annotations

import http.client
import os
import random
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kvitto.torture.nodes import START_S, BrokerFailed, Node, answers, free_port, kvitto_command, last_lines, uri_for

INSTALL_ETCD = "sudo apt-get install -y etcd-server"
POLL_S = 0.01


class Member(Node):
    """One node of the cluster."""

    name = "a node"

    def __init__(self, place: Path, etcd: str, key: Path) -> None:
        super().__init__(place)
        self.port = free_port()
        self.address = f"127.0.0.1:{free_port()}"
        self.uri = uri_for(self.port)
        self._etcd = etcd
        self._key = key
        self.leads_since = 0.0
        """The time at which the node said that it leads, 0 if it does not lead."""

    def begin(self) -> None:
        command = [*kvitto_command(), "serve", "--data-dir", str(self.data), "--port", str(self.port)]
        command += ["--http-port", "off", "--followers", self.address, "--cluster-key", str(self._key)]
        self._process = self._spawn([*command, "--etcd", self._etcd], {}, listen=True)
        self.pid, self.leads_since = self._process.pid, 0.0
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Read the node's output, and note when it begins to lead and when it stops."""
        assert process.stdout is not None
        with suppress(ValueError):  # it may be closed when the node has ended
            for line in process.stdout:
                if process is self._process:
                    self.leads_since = time.monotonic() if line.startswith("kvitto ready") else 0.0

    def _wait_ready(self) -> None:
        """Do not wait: a node that follows serves no clients."""


class KvittoCluster(Node):
    """A cluster of several nodes, and an etcd of one."""

    name = "Kvitto cluster"

    def __init__(self, place: Path, count: int, program: str = "etcd") -> None:
        """`program`: the name or the path of etcd."""
        super().__init__(place)
        self._program = program
        client, self._peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._client = self.etcd_url = client
        key = place / "key"
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        self.nodes = [Member(place / f"node-{number + 1}", client, key) for number in range(count)]
        self._etcd: subprocess.Popen[bytes] | None = None
        self._leader: Member | None = None
        self._dead: set[Member] = set()

    # -- life ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        if self._etcd is None:
            self._start_etcd()
            made = ["cluster", "init", "--etcd", self._client, "--data-dir", str(self.nodes[0].data)]
            subprocess.run([*kvitto_command(), *made], check=True, stdout=subprocess.DEVNULL)
            for node in self.nodes:
                node.begin()

    def _start_etcd(self) -> None:
        program = shutil.which(self._program)
        if program is None:
            raise BrokerFailed(f"there is no program {self._program}; install it with: {INSTALL_ETCD}")
        command = [program, "--data-dir", str(self.place / "etcd"), "--name", "one"]
        command += ["--listen-client-urls", self._client, "--advertise-client-urls", self._client]
        command += ["--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer]
        with (self.place / "etcd.log").open("a") as log:
            self._etcd = subprocess.Popen(
                [*command, "--initial-cluster", f"one={self._peer}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait(self._etcd_answers, "etcd answers")

    def _etcd_answers(self) -> bool:
        connection = http.client.HTTPConnection(self._client.removeprefix("http://"), timeout=1.0)
        try:
            connection.request("GET", "/health")
            return b"true" in connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _wait_ready(self) -> None:
        """Wait until a node leads and answers; then start those that were killed."""
        self._wait(self._leads, "a node leads")
        for node in self._dead:
            node.begin()
        self._dead.clear()

    def _leads(self) -> bool:
        """Whether the node that said last that it leads answers. One that stands still says nothing."""
        node = max(self.nodes, key=lambda node: node.leads_since if node.running else 0.0)
        if not node.running or not node.leads_since or not answers(node.uri):
            return False
        self._leader, self.uri = node, node.uri
        return True

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            if ended := [node for node in self.nodes if node not in self._dead and not node.running and node.pid]:
                raise BrokerFailed(f"{ended[0].log}: the node has ended{last_lines(ended[0].log)}")
            if time.monotonic() > deadline:
                raise BrokerFailed(f"not within {START_S:g} s: {what}; see {self.place}")
            time.sleep(POLL_S)

    @property
    def running(self) -> bool:
        return all(node.running for node in self.nodes if node not in self._dead)

    def stop(self) -> int:
        """Stop the leader in order. Another node is elected then."""
        return self._ended(self.leader, lambda node: node.stop())

    def kill(self) -> None:
        self._ended(self.leader, lambda node: node.kill())

    def kill_all(self) -> None:
        for node in self.nodes:
            self._ended(node, lambda node: node.kill())
        for node in self._dead:
            node.begin()
        self._dead.clear()

    def _ended(self, node: Member, how: Callable[[Member], int | None]) -> int:
        self._dead.add(node)
        return how(node) or 0

    @property
    def leader(self) -> Member:
        assert self._leader is not None
        return self._leader

    def follower(self, rng: random.Random) -> Member:
        return rng.choice([node for node in self.nodes if node is not self._leader])

    def pause(self) -> None:
        self.leader.pause()

    def resume(self) -> None:
        for node in self.nodes:
            node.resume()
        self.resume_etcd()

    def pause_etcd(self) -> None:
        self._signal_etcd(signal.SIGSTOP)

    def resume_etcd(self) -> None:
        self._signal_etcd(signal.SIGCONT)

    def _signal_etcd(self, number: signal.Signals) -> None:
        if self._etcd is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._etcd.pid, number)

    def close(self) -> None:
        self.resume()
        for node in self.nodes:
            node.kill()
        if self._etcd is not None:
            self._signal_etcd(signal.SIGKILL)
            self._etcd.wait()
            self._etcd = None

    def members(self) -> list[int]:
        return [pid for node in self.nodes for pid in node.members()]

    @property
    def at_its_files(self) -> bool:
        return True

    @property
    def listens(self) -> bool:
        return self._leader is not None and self._leader.listens


def refusal() -> str:
    """Return why no cluster can be started here; "" if one can."""
    return "" if shutil.which("etcd") else f"etcd is not installed; install it with: {INSTALL_ETCD}"
