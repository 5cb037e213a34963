"""The brokers under measurement: start on a fresh directory, stop and kill by pid, and say what they use.

Each has free loopback ports and a directory of its own; nothing on the machine is touched. A peer that somebody else
started is measured, never stopped.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from benchmarks import proc
from benchmarks.tls import Certificate
from kvitto.client import AMQPError, Connection

START_S = 600.0
"""A broker may have to read millions of messages first."""
STOP_S = 300.0
INSTALL_RABBITMQ = "sudo apt-get install -y rabbitmq-server"
RABBITMQ_PLACES = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
"""Debian's own script first: the one in the path is a wrapper that insists on the system's directories."""
READY = re.compile(r"^kvitto ready amqp=(?P<amqp>\S+) http=\S+ data=.* pid=(?P<pid>\d+)(?: tls=\S+)?$")


class BrokerFailed(Exception):
    """A broker did not start or stop; the text says where to look."""


class Broker(Protocol):
    """What a measurement needs of a broker."""

    name: str
    uri: str
    tls_uri: str | None
    pid: int
    restartable: bool

    def start(self) -> float: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def uri_for(port: int, scheme: str = "amqp", query: str = "") -> str:
    """For guest on this machine. No heartbeats: a generator that is busy for a minute is not dead."""
    return f"{scheme}://guest:guest@127.0.0.1:{port}/%2f?heartbeat=0{query}"


class Started:
    """A broker in a process of ours, on `place`, a directory of its own. `start` may be called again after `stop` or `kill`."""

    name = ""
    restartable = True

    def __init__(self, place: Path, cores: frozenset[int], certificate: Certificate | None) -> None:
        self.place = place
        self.cores = cores
        self.certificate = certificate
        self.log = place / "log"
        self.uri = ""
        self.tls_uri: str | None = None
        self.pid = 0
        self._process: subprocess.Popen[str] | None = None
        place.mkdir(parents=True, exist_ok=True)

    def start(self) -> float:
        """Seconds until it accepted connections. BrokerFailed if it does not."""
        started = time.perf_counter()
        self._start()
        return time.perf_counter() - started

    def _start(self) -> None:
        raise NotImplementedError

    def _spawn(
        self, command: Sequence[str], environment: Mapping[str, str], *, listen: bool = False
    ) -> subprocess.Popen[str]:
        """The process; `listen` to read what it prints, else that goes to the log."""
        with self.log.open("a") as log, proc.on(self.cores):
            return subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if listen else log,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the harness, which then stops its brokers in order
            )

    def stop(self) -> None:
        """In order, with SIGTERM. BrokerFailed if it does not end."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As if the power of this process were cut: SIGKILL."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid or process.pid, number)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            members = proc.tree(process.pid, proc.processes())
            for member in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
            process.wait()
            raise BrokerFailed(
                f"{self.name} did not end within {STOP_S:g} s of {number.name}; see {self.log}"
            ) from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
            self.pid = 0


class Kvitto(Started):
    """`kvitto serve` of this checkout."""

    name = "Kvitto"

    def _start(self) -> None:
        command = [
            *kvitto_command(),
            "serve",
            "--data-dir",
            str(self.place / "data"),
            "--port",
            "0",
            "--http-port",
            "0",
        ]
        if self.certificate is not None:
            tls_port = free_port()
            command += ["--tls-port", str(tls_port), "--tls-cert", str(self.certificate.cert)]
            command += ["--tls-key", str(self.certificate.key)]
            self.tls_uri = uri_for(tls_port, "amqps", self.certificate.query)
        self._process = self._spawn(command, {}, listen=True)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_S)
        line = self._process.stdout.readline() if ready else ""
        match = READY.match(line.rstrip("\n"))
        if match is None:
            self.kill()
            raise BrokerFailed(f"kvitto serve did not get ready (it said {line!r}); see {self.log}")
        self.pid = int(match["pid"])
        self.uri = uri_for(int(match["amqp"].rpartition(":")[2]))


class RabbitMQ(Started):
    """Debian's RabbitMQ as a node of its own: name, ports, cookie, port mapper and directories."""

    name = "RabbitMQ"

    def __init__(self, place: Path, cores: frozenset[int], certificate: Certificate | None) -> None:
        super().__init__(place, cores, certificate)
        self.port, self.tls_port, self.dist_port, self.epmd_port = (free_port() for _ in range(4))
        self._epmd: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        script = rabbitmq_script()
        if script is None:
            raise BrokerFailed(f"RabbitMQ is not installed; install it with: {INSTALL_RABBITMQ}")
        self._write_config()
        environment = self._environment()
        if self._epmd is None:
            # else Erlang leaves a daemon behind, and one that other nodes of this machine would use
            command = [shutil.which("epmd") or "epmd", "-port", str(self.epmd_port), "-address", "127.0.0.1"]
            self._epmd = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self._process = self._spawn([script], environment)
        self.uri = uri_for(self.port)
        if self.certificate is not None:
            self.tls_uri = uri_for(self.tls_port, "amqps", self.certificate.query)
        self._wait_ready(self._process)

    def _wait_ready(self, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + START_S
        while not answers(self.uri):
            if process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise BrokerFailed(f"RabbitMQ did not start; see {self.log} and {self.place / 'rabbitmq.log'}")
            time.sleep(0.01)
        beams = [s for s in proc.tree(process.pid, proc.processes()) if s.name.startswith("beam")]
        self.pid = beams[0].pid if beams else process.pid

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            if self._epmd is not None:
                self._epmd.terminate()
                self._epmd.wait()
                self._epmd = None

    def _write_config(self) -> None:
        lines = [f"listeners.tcp.local = 127.0.0.1:{self.port}", f"log.file = {self.place / 'rabbitmq.log'}"]
        if self.certificate is not None:
            lines += [
                f"listeners.ssl.local = 127.0.0.1:{self.tls_port}",
                f"ssl_options.cacertfile = {self.certificate.cert}",
                f"ssl_options.certfile = {self.certificate.cert}",
                f"ssl_options.keyfile = {self.certificate.key}",
                "ssl_options.verify = verify_none",
            ]
        (self.place / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.place / "plugins").write_text("[].\n")

    def _environment(self) -> dict[str, str]:
        place = str(self.place)
        return {
            "HOME": place,
            "RABBITMQ_NODENAME": f"kvitto-bench-{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONFIG_FILE": f"{place}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{place}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{place}/mnesia",
            "RABBITMQ_LOG_BASE": place,
            "RABBITMQ_PID_FILE": f"{place}/pid",
        }


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


def answers(uri: str) -> bool:
    """Whether a whole handshake succeeds."""
    try:
        Connection(uri, heartbeat_thread=False).close()
    except (AMQPError, TimeoutError, OSError):
        return False
    return True


def version(broker: Broker) -> str:
    """As the broker introduces itself to clients."""
    with Connection(broker.uri, heartbeat_thread=False) as connection:
        properties = connection.server_properties
        return " ".join(str(properties.get(name, "")) for name in ("product", "version")).strip() or broker.name


def rabbitmq_script() -> str | None:
    """RabbitMQ's start script, if it is installed."""
    return next((found for place in RABBITMQ_PLACES if (found := shutil.which(place))), None)


def kvitto_command() -> list[str]:
    """The `kvitto` beside this interpreter."""
    beside = Path(sys.executable).with_name("kvitto")
    return [str(beside)] if os.access(beside, os.X_OK) else [sys.executable, "-m", "kvitto.cli.main"]
