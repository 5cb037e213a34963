"""The etcd of a cluster that is tortured: it is stopped, killed, wiped, and set back to an older state."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from kvitto.torture.network import Network
from kvitto.torture.nodes import BrokerFailed, free_port

INSTALL_ETCD = "sudo apt-get install -y etcd-server"
INSTALL_ETCDCTL = "sudo apt-get install -y etcd-client"
HOST = "etcd"
PORTS = (2379, 2380)
COPY, KEPT = "etcd.snapshot", "etcd-kept"


class EtcdServer:
    """An etcd of one member, with its files in `place`."""

    def __init__(self, place: Path, program: str, network: Network | None = None) -> None:
        """`program`: the name or the path of etcd. `network`: it is the host HOST of this one, else on loopback."""
        self._place = place
        self._program = program
        self._network = network
        address = "127.0.0.1" if network is None else network.address(HOST)
        ports = (free_port(), free_port()) if network is None else PORTS
        self.url, self._peer = (f"http://{address}:{port}" for port in ports)
        self._lives = self._restored = 0
        """How often it began with another directory; how often that was a backup."""
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it if it does not run, without waiting until it answers."""
        if self._process is not None:
            return
        program = shutil.which(self._program)
        if program is None:
            raise BrokerFailed(f"there is no program {self._program}; install it with: {INSTALL_ETCD}")
        command = [program, "--data-dir", str(self._data), "--name", "one", "--initial-cluster", f"one={self._peer}"]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer]
        with (self._place / "etcd.log").open("a") as log, self._at_home():
            self._process = subprocess.Popen(
                [*command, "--initial-cluster-token", self._token],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def answers(self) -> bool:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=1.0)
        try:
            connection.request("GET", "/health")
            return b"true" in connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def pause(self) -> None:
        """Send SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def wipe(self) -> None:
        """Kill it, and let it begin anew, with the same settings and nothing else."""
        self.kill()
        self._lives += 1
        self.begin()

    def save(self) -> None:
        """Make a backup."""
        self._control("save", str(self._place / f"{COPY}.new"), "--endpoints", self.url)
        (self._place / f"{COPY}.new").rename(self._place / COPY)

    def keep(self) -> None:
        """Kill it, keep a copy of its files, and start it."""
        self.kill()
        kept = self._place / KEPT
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self._data, kept)
        self.begin()

    def roll_back(self) -> None:
        """Kill it, and start it on the copy, as a storage does that is set back."""
        self.kill()
        self._lives += 1
        shutil.copytree(self._place / KEPT, self._data)
        self.begin()

    def restore(self) -> None:
        """Kill it, and start it from the backup, in the way that operators are told."""
        self.kill()
        self._lives += 1
        self._restored += 1
        new = ["--data-dir", str(self._data), "--name", "one", "--initial-cluster", f"one={self._peer}"]
        new += ["--initial-advertise-peer-urls", self._peer, "--initial-cluster-token", self._token]
        self._control("restore", str(self._place / COPY), *new)
        self.begin()

    @property
    def _data(self) -> Path:
        return self._place / (f"etcd-{self._lives}" if self._lives else "etcd")

    @property
    def _token(self) -> str:
        return f"torture-{self._restored}"

    def _control(self, *words: str) -> None:
        done = subprocess.run(
            ["etcdctl", "snapshot", *words],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BrokerFailed(f"etcdctl snapshot {' '.join(words)} failed: {done.stderr.strip()}")

    def _at_home(self) -> AbstractContextManager[None]:
        return nullcontext() if self._network is None else self._network.inside(HOST)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def restore_refusal() -> str:
    """Return why no backup of etcd can be made here; "" if one can."""
    return "" if shutil.which("etcdctl") else f"etcdctl is not installed; install it with: {INSTALL_ETCDCTL}"
