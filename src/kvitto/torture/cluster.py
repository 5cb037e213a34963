"""Nodes of Kvitto that elect their leader, with an etcd, as one broker that is tortured (`kvitto torture --nodes N`).

`uri` is where the leader is. `kill` kills the leader, and `start` waits until another node serves clients; the killed one starts again
behind that. Other faults hit followers, all nodes, the network, disks, or etcd. `Cluster` is what `rabbits.py` has too.
"""

from __future__ import annotations

import json
import random
import secrets
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from kvitto.torture.disks import SmallDisk
from kvitto.torture.etcd import HOST as ETCD_HOST
from kvitto.torture.etcd import INSTALL_ETCD, EtcdServer
from kvitto.torture.network import Network
from kvitto.torture.nodes import START_S, BrokerFailed, Node, answers, free_port, kvitto_command, last_lines, uri_for

POLL_S = 0.01
PORT, FOLLOWERS_PORT = 5672, 5690
USER = "torture"
"""Name and password where clients are on another host, from which guest may not log in."""
PROBE = "&connection_timeout=2000"
REFUSED = 1
"""The exit code of `kvitto cluster status` if there is no cluster."""
REFUSED_S = 120.0
"""Nodes that may not lead have to say so, and end, within this time of their start."""


def host_of(number: int) -> str:
    """Return the name of a node's host in the network."""
    return f"node-{number + 1}"


class Cluster(Node):
    """Nodes that are one broker for their clients."""

    def __init__(self, place: Path, nodes: Sequence[Node], network: Network | None) -> None:
        super().__init__(place)
        self.nodes = nodes
        self.network = network
        self.may_end = False
        """Whether nodes may end by themselves now, because they have lost their etcd for good."""
        self._leader: Node | None = None
        self._dead: set[Node] = set()

    def _serving(self) -> Node | None:
        """Return the node that clients have to use now, None if there is none."""
        raise NotImplementedError

    def look(self) -> bool:
        """Look which node serves clients now. Return whether there is one."""
        node = self._serving()
        if node is not None:
            self._leader, self.uri = node, node.uri
        return node is not None

    def _wait_ready(self) -> None:
        """Wait until a node serves clients; then start those that were killed."""
        self._wait(self.look, "a node serves clients")
        self.revive()

    def revive(self) -> None:
        """Start the nodes that are down."""
        for node in self._dead:
            node.begin()
        self._dead.clear()

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            if not self.running:
                raise BrokerFailed(self.ended)
            if time.monotonic() > deadline:
                raise BrokerFailed(f"not within {START_S:g} s: {what}; see {self.place}")
            time.sleep(POLL_S)

    @property
    def running(self) -> bool:
        return self.may_end or not self.ended

    @property
    def ended(self) -> str:
        """Say which nodes have ended by themselves; "" if none has."""
        nodes = [node for node in self.nodes if node not in self._dead and self._has_ended(node)]
        return "; ".join(f"{node.log}: the node has ended{last_lines(node.log)}" for node in nodes)

    def _has_ended(self, node: Node) -> bool:
        """Return whether a node that was started does not run, although it should."""
        return bool(node.pid) and not node.running

    def stop(self) -> int:
        """Stop the leader in order. Another node is elected then."""
        return self.take(self.leader, in_order=True)

    def kill(self) -> None:
        self.take(self.leader)

    def take(self, node: Node, in_order: bool = False) -> int:
        """End a node, which is down until `revive`."""
        self._dead.add(node)
        if in_order:
            return node.stop()
        node.kill()
        return 0

    def kill_all(self) -> None:
        """Kill all nodes, and start them."""
        for node in self.nodes:
            self.take(node)
        self.revive()

    @property
    def leader(self) -> Node:
        assert self._leader is not None
        return self._leader

    @property
    def followers(self) -> list[Node]:
        return [node for node in self.nodes if node is not self._leader]

    def follower(self, rng: random.Random) -> Node:
        return rng.choice(self.followers)

    def host(self, node: Node) -> str:
        """Return the name of a node's host."""
        return host_of(self.nodes.index(node))

    def pause(self) -> None:
        self.leader.pause()

    def resume(self) -> None:
        """End all faults that last."""
        for node in self.nodes:
            node.resume()
        if self.network is not None:
            self.network.heal()

    def mend(self) -> None:
        """Undo a fault that was interrupted."""
        self.resume()
        for node in self.nodes:
            if not node.running:
                node.kill()
                node.begin()
        self._dead.clear()

    def close(self) -> None:
        self.resume()
        for node in self.nodes:
            node.close()
        if self.network is not None:
            self.network.close()
            self.network = None

    def members(self) -> list[int]:
        return [pid for node in self.nodes for pid in node.members()]

    @property
    def at_its_files(self) -> bool:
        return True

    @property
    def listens(self) -> bool:
        return self._leader is not None and self._leader.listens


class Member(Node):
    """One node of Kvitto."""

    name = "a node"

    def __init__(self, place: Path, etcd: str, key: Path, network: Network | None, host: str, small: bool) -> None:
        """`small`: its directory is on a disk of its own."""
        super().__init__(place)
        self.disk = SmallDisk(place / "disk") if small else None
        if self.disk is not None:
            self.data = self.disk.top / "data"
        self._network, self._host = network, host
        address = "127.0.0.1" if network is None else network.address(host)
        self.port, followers = (PORT, FOLLOWERS_PORT) if network is not None else (free_port(), free_port())
        self.uri = uri_for(self.port)
        if network is not None:
            self.uri = self.uri.replace("guest:guest@127.0.0.1", f"{USER}:{USER}@{address}")
        self._command = ["serve", "--data-dir", str(self.data), "--host", address, "--port", str(self.port)]
        self._command += ["--http-port", "off", "--followers", f"{address}:{followers}", "--cluster-key", str(key)]
        self._command += ["--etcd", etcd, *(["--default-user", USER] if network is not None else [])]
        self.leads_since = 0.0
        """The time at which the node said that it leads, 0 if it does not lead."""
        self.led_at = 0.0
        """The time at which it last said so."""

    def begin(self) -> None:
        command = [*kvitto_command(), *self._command]
        self._process = self._spawn(command, {"KVITTO_DEFAULT_PASS": USER} if self._network else {}, listen=True)
        self.pid, self.leads_since = self._process.pid, 0.0
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def _around_spawn(self) -> AbstractContextManager[None]:
        return nullcontext() if self._network is None else self._network.inside(self._host)

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Read the node's output, and note when it begins to lead and when it stops."""
        assert process.stdout is not None
        with suppress(ValueError):  # it may be closed when the node has ended
            for line in process.stdout:
                if process is self._process:
                    self.leads_since = time.monotonic() if line.startswith("kvitto ready") else 0.0
                    self.led_at = self.leads_since or self.led_at

    def _wait_ready(self) -> None:
        """Do not wait: a node that follows serves no clients."""

    def put_away(self) -> None:
        """Begin with an empty directory next time. The last one is kept until then, but on a small disk, which has no room for both."""
        if self.disk is not None:
            shutil.rmtree(self.data, ignore_errors=True)
            return
        old = self.data.with_name("old")
        shutil.rmtree(old, ignore_errors=True)
        with suppress(FileNotFoundError):  # it has not been started since the last time
            self.data.rename(old)

    def close(self) -> None:
        super().close()
        if self.disk is not None:
            self.disk.close()
            self.disk = None


class KvittoCluster(Cluster):
    """A cluster of several nodes, and an etcd of one."""

    name = "Kvitto cluster"
    nodes: list[Member]

    def __init__(
        self,
        place: Path,
        count: int,
        program: str = "etcd",
        network: Network | None = None,
        small_disks: bool = False,
        copies: tuple[Callable[[EtcdServer], None], ...] = (),
    ) -> None:
        """`program`: the name or the path of etcd. `network`: with the hosts of `hosts_of`; without one all are on loopback.
        `copies`: which of `EtcdServer.save` and `keep` are done at the start, and when etcd was lost."""
        place.mkdir(parents=True, exist_ok=True)
        self.etcd = EtcdServer(place, program, network)
        self.etcd_url = self.etcd.url
        key = place / "key"
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        nodes = []
        for number in range(count):
            host = host_of(number)
            nodes.append(Member(place / host, self.etcd.url, key, network, host, small_disks))
        super().__init__(place, nodes, network)
        self._copies = copies
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.etcd.begin()
            self._wait(lambda: self.etcd.answers, "etcd answers")
            self._command("init", "--data-dir", str(self.nodes[0].data))
            self._copy_etcd()
            for node in self.nodes:
                node.begin()

    def _copy_etcd(self) -> None:
        for copy in self._copies:
            copy(self.etcd)
            self._wait(lambda: self.etcd.answers, "etcd answers")

    def _command(self, *words: str) -> None:
        """Do what an operator does with `kvitto cluster`."""
        done = self._asked(*words)
        if done.returncode:
            raise BrokerFailed(f"kvitto cluster {' '.join(words)} failed: {done.stderr.strip()}")

    def _asked(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*kvitto_command(), "cluster", *words, "--etcd", self.etcd.url]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def wait_in_sync(self) -> None:
        """Wait until all nodes are in sync, and so know the epoch."""
        self._wait(lambda: len(self._members()) == len(self.nodes), "all nodes are in sync")

    def _members(self) -> list[str]:
        done = self._asked("status", "--json")
        return list(json.loads(done.stdout)["members"]) if done.returncode == 0 else []

    def _seat_is_free(self) -> bool:
        """Return whether etcd has no leader: one that it had in an older state is gone after some seconds."""
        done = self._asked("status", "--json")
        return done.returncode == REFUSED or (done.returncode == 0 and json.loads(done.stdout)["seat"] is None)

    @property
    def leader(self) -> Member:
        assert isinstance(self._leader, Member)
        return self._leader

    def _serving(self) -> Node | None:
        """The node that said last that it leads. One that stands still says nothing."""
        node = max(self.nodes, key=lambda node: node.leads_since if node.running else 0.0)
        return node if node.running and node.leads_since and answers(node.uri + PROBE) else None

    def says_it_leads(self, uri: str) -> bool:
        """Return whether the node to which this URI leads has said so last."""
        return any(node.leads_since for node in self.nodes if uri.startswith(node.uri))

    def victim(self, rng: random.Random, leads: bool, awake: bool) -> Member:
        """Return the node that leads, or one of the others, for a fault that hits while another one lasts. If there is none of that sort,
        return any that runs. `awake`: it may not stand still, since it has to end by itself.

        If nobody leads now, the last leader counts as the one."""
        self.look()
        running = [node for node in self.nodes if node.running and not (awake and node.paused)]
        return rng.choice([node for node in running if (node is self._leader) == leads] or running)

    def others_since(self, at: float) -> list[str]:
        """Return the nodes other than the leader that have begun to lead since then."""
        return [str(node.place) for node in self.nodes if node is not self._leader and node.led_at > at]

    def resume(self) -> None:
        super().resume()
        self.etcd.resume()
        for node in self.nodes:
            if node.disk is not None:
                node.disk.free()

    def restart_refused(self) -> None:
        """Kill all nodes and start them, and wait until each has refused to lead, and ended. Raise BrokerFailed if one leads."""
        began = time.monotonic()
        self.kill_all()
        while any(node.running for node in self.nodes):
            if leads := [str(node.place) for node in self.nodes if node.led_at > began]:
                raise BrokerFailed(f"leads although etcd is not the one that it was: {', '.join(leads)}")
            if time.monotonic() > began + REFUSED_S:
                still = ", ".join(str(node.place) for node in self.nodes if node.running)
                raise BrokerFailed(f"has not refused an etcd that is not the one that it was: {still}")
            time.sleep(POLL_S)

    def begin_anew(self) -> None:
        """Do what operators are told to do when etcd was lost: stop all, begin anew with the last leader's directory, the others empty."""
        self._wait(lambda: self.etcd.answers, "etcd answers")
        last = max(self.nodes, key=lambda node: node.led_at)
        for node in self.nodes:
            if node.running:
                node.stop()
            node.kill()
        self._wait(self._seat_is_free, "etcd has no leader any more")
        # etcd may be in an older state, in which this node was not in sync
        self._command("force", "--data-dir", str(last.data), "--lose-the-rest")
        for node in self.nodes:
            if node is not last:
                node.put_away()
            node.begin()
        self._dead.clear()
        self.may_end = False
        self._copy_etcd()

    def mend(self) -> None:
        self.etcd.begin()
        if self.may_end:
            self.resume()
            self.begin_anew()
        super().mend()

    def close(self) -> None:
        super().close()
        self.etcd.kill()


def hosts_of(count: int) -> list[str]:
    """Return the hosts of a cluster of so many nodes."""
    return [ETCD_HOST, *(host_of(number) for number in range(count))]


def refusal() -> str:
    """Return why no cluster can be started here; "" if one can."""
    return "" if shutil.which("etcd") else f"etcd is not installed; install it with: {INSTALL_ETCD}"
