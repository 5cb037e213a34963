"""Nodes of a cluster as processes, with an etcd."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import kvitto
from kvitto.client.blocking.connection import SyncConnection
from kvitto.client.errors import AMQPError
from kvitto.cluster.register import Document, Seen, Unanswered
from kvitto.server.etcd import NOTHING, Access, Etcd
from kvitto.torture.nodes import free_port
from tests.cli.process import kvitto as command
from tests.cluster.publisher import Publisher
from tests.crash.serve import STOP_S
from tests.support.etcd import FakeEtcd, RealEtcd
from tests.support.wait import wait_until

TAKEN: set[int] = set()


def port() -> int:
    """Return a port of a node's own, which the system gives to no connection while the node does not run."""
    while (found := free_port()) in TAKEN:
        pass
    TAKEN.add(found)
    return found


class Node:
    """`kvitto serve --etcd` on a data directory."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.data = cluster.place / name
        self.address = f"127.0.0.1:{port()}"
        self.port = port()
        self.http = port()
        self.tls = port()
        self.options: list[str] = []
        self.program = cluster.program
        """The module that it runs when it is started next."""
        self.said: list[str] = []
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the node
        self.process: subprocess.Popen[str]

    def start(self) -> None:
        arguments = ["serve", "--data-dir", str(self.data), "--port", str(self.port), "--http-port", str(self.http)]
        arguments += ["--followers", self.address, "--etcd", self.cluster.etcd.url, "--cluster-key"]
        arguments += [str(self.cluster.key), *self.cluster.options, *self.options, *self.cluster.access]
        if "--tls-cert" in self.cluster.options:
            arguments += ["--tls-port", str(self.tls)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.program, *arguments],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self.process,))
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as out:
            for line in out:
                self.said.append(line)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def member(self) -> str:
        """The name by which the cluster knows it, as it has said last."""
        return str(re.findall("member=([0-9a-f]+)", "".join(self.said))[-1])

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._end()

    def signal(self, number: int) -> None:
        if self.alive:
            self.process.send_signal(number)

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        code = self.process.wait(STOP_S)
        self._reader.join()
        return code

    def connect(self) -> SyncConnection:
        return kvitto.connect_sync(f"amqp://guest:guest@127.0.0.1:{self.port}/", reconnect=False)


def nothing(_node: Node) -> Sequence[str]:
    """The `own` of nodes that differ in nothing."""
    return ()


class Cluster:
    def __init__(
        self,
        place: Path,
        etcd: FakeEtcd | RealEtcd,
        count: int = 3,
        minimum: int = 2,
        options: Sequence[str] = (),
        known: Access = NOTHING,
        program: str = "kvitto.cli.main",
        own: Callable[[Node], Sequence[str]] = nothing,
    ) -> None:
        """`options`: further ones of all nodes, `own` of each. `known`: how nodes and commands get into etcd. `program`: the module that
        they run."""
        self.place = place
        self.program = program
        self.etcd = etcd
        self.options = list(options)
        files = {"ca": known.ca, "cert": known.cert, "key": known.key, "user-file": known.user_file}
        self.access = [
            word for name, path in files.items() if path is not None for word in (f"--etcd-{name}", str(path))
        ]
        self.register = Etcd([etcd.url], "kvitto", known)
        self.key = place / "key"
        self.key.write_text("a key that all of them share\n")
        self.key.chmod(0o600)
        self.nodes = [Node(self, name) for name in ["one", "two", "three", "four"][:count]]
        made = self.command("init", "--data-dir", str(self.nodes[0].data), "--min-in-sync", str(minimum))
        assert made.returncode == 0, made.stderr
        for node in self.nodes:
            node.options = list(own(node))
            node.start()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        name, *rest = arguments
        return command("cluster", name, "--etcd", self.etcd.url, *self.access, *rest)

    def leader(self) -> Node | None:
        """The node that sits in the leader's seat, if it serves."""
        seen = self._seen()
        seat = seen.seat if seen is not None else None
        found = [node for node in self.nodes if seat is not None and node.address == seat.address and node.alive]
        with suppress(AMQPError, OSError):
            for node in found:
                node.connect().close()
                return node
        return None

    def wait_for_leader(self, other: Node | None = None) -> Node:
        """Wait until a node leads, which is not `other`."""
        found: list[Node] = []

        def leads() -> bool:
            if (node := self.leader()) is not None and node is not other:
                found.append(node)
            return bool(found)

        wait_until(leads, what="a node leads")
        return found[0]

    def wait_in_sync(self, count: int) -> None:
        def all_there() -> bool:
            seen = self._seen()
            return seen is not None and seen.document is not None and len(seen.document.members) == count

        wait_until(all_there, what=f"{count} nodes are in sync")

    def _seen(self) -> Seen | None:
        """What the register holds, None if it has not answered: on a busy machine that may take longer than a call may."""
        with suppress(Unanswered):
            return self.register.read()
        return None

    def wait_for_register(self) -> Seen:
        """Return what the register holds, as soon as it answers."""
        found: list[Seen] = []

        def answered() -> bool:
            found.extend(filter(None, [self._seen()]))
            return bool(found)

        wait_until(answered, what="the register answers")
        return found[0]

    def document(self) -> Document:
        """Return what all nodes agree on, as soon as the register answers."""
        found = self.wait_for_register().document
        assert found is not None
        return found

    def publisher(self) -> Publisher:
        """Return one that publishes to whichever node leads."""
        return Publisher(lambda: [node.connect for node in self.nodes])

    def kill_all(self) -> None:
        """Kill all nodes at once: one that was killed later than the leader could have been elected."""
        for node in self.nodes:
            node.signal(signal.SIGKILL)
        for node in self.nodes:
            node.kill()

    def end(self) -> None:
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.kill()
            node.errors.close()


def numbers(node: Node, queue: str = "q") -> list[int]:
    """What is in the queue, in order."""
    with node.connect() as connection, connection.channel() as channel:
        found = []
        waiting = channel.queue(queue, durable=True)
        while (message := waiting.get()) is not None:
            found.append(int(message.body.split()[0]))
    return found


def lines(node: Node, pattern: str) -> list[str]:
    return re.findall(pattern, node.log())
