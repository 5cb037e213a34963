"""Starts, stops, kills and freezes brokers, each in a process group and on a directory of its own.

Nothing else on the machine is changed: ports are free ones, and only process groups that were started here get signals.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from urllib.parse import urlsplit

from kvitto.base.process import group_members
from kvitto.base.readable import readable
from kvitto.client import AMQPError, Connection

START_S = 600.0
"""A broker may have to read millions of messages first."""
RABBITMQ_TRIES = 3
"""RabbitMQ sometimes ends while it starts on a busy machine, so a test starts it up to this many times."""
LAST_LINES = 20
STOP_S = 300.0
INSTALL_RABBITMQ = "sudo apt-get install -y rabbitmq-server"
RABBITMQ_PLACES = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
"""Debian's own script is the first: the one in the path is a wrapper that insists on the system's directories."""
READY = re.compile(r"^kvitto ready amqp=(?P<amqp>\S+) http=(?P<http>\S+) data=.* pid=(?P<pid>\d+)(?: tls=\S+)?$")
PORTS = range(20000, 32000)
"""Ports below those that the system gives to connections. Otherwise a client that tries again while a broker is down
could be given the broker's own port, connect to itself, and block the port for the broker."""


class BrokerFailed(Exception):
    """A broker did not start or stop; the text says where to look."""


def free_port() -> int:
    """Return a port that is not in use now."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise BrokerFailed(f"no free port on 127.0.0.1 from {PORTS[0]} to {PORTS[-1]}")


def last_lines(log: Path) -> str:
    """Return the end of a log, to be shown after its name, because the log may be in a directory that is removed soon."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "".join(f"\n    {line}" for line in lines[-LAST_LINES:])


def uri_for(port: int, scheme: str = "amqp", query: str = "") -> str:
    """Return a URI for guest on this machine. Heartbeats are off, because a generator that is busy for a minute is not dead."""
    return f"{scheme}://guest:guest@127.0.0.1:{port}/%2f?heartbeat=0{query}"


class Node:
    """A broker on `place`. `start` may be called again after `stop` or `kill`."""

    name = ""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.data = place / "data"
        """The directory of its files."""
        self.log = place / "log"
        self.uri = ""
        self.tls_uri: str | None = None
        self.http_uri: str | None = None
        self.pid = 0
        """The pid of the broker. Its process group is that of the command that started it."""
        self.paused = False
        """Whether it stands still since `pause`."""
        self._process: subprocess.Popen[str] | None = None
        place.mkdir(parents=True, exist_ok=True)

    def start(self) -> float:
        """Start it, and return the seconds until it accepted connections. Raise BrokerFailed if it does not."""
        started = time.perf_counter()
        self.begin()
        self._wait_ready()
        return time.perf_counter() - started

    def begin(self) -> None:
        """Start it without waiting, for a start that is killed."""
        raise NotImplementedError

    def _around_spawn(self) -> AbstractContextManager[None]:
        """Set what the process inherits."""
        return nullcontext()

    def _spawn(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        listen: bool = False,
        directory: Path | None = None,
    ) -> subprocess.Popen[str]:
        """Return the process. With `listen` its output is read, else it goes to the log. `directory` is its working directory."""
        with self.log.open("a") as log, self._around_spawn():
            return subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if listen else log,
                stderr=log,
                cwd=directory,
                text=True,
                start_new_session=True,  # Ctrl-C is for the harness, which then stops its brokers in order
            )

    def _wait_ready(self) -> None:
        """Wait until a handshake succeeds."""
        deadline = time.monotonic() + START_S
        while not answers(self.uri):
            if not self.running or time.monotonic() > deadline:
                self.kill()
                raise BrokerFailed(f"{self.name} did not start; see {self.log}{last_lines(self.log)}")
            time.sleep(0.01)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """Stop it in order, with SIGTERM, and return the exit code. Raise BrokerFailed if it does not end."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to its whole group."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Send SIGSTOP to its whole group; its sockets stay open."""
        self.paused = True
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        self.paused = False
        self._signal_group(signal.SIGCONT)

    def close(self) -> None:
        """End all its processes, in whatever state it is."""
        self.kill()

    def members(self) -> list[int]:
        """Return the living processes of its group, from /proc."""
        return group_members(self._process.pid) if self._process is not None else []

    @property
    def at_its_files(self) -> bool:
        """Whether any of its processes has a file of its directory open, from /proc."""
        below = f"{self.data.resolve()}/"
        return any(path.startswith(below) for pid in self.members() for path in open_files(pid))

    @property
    def listens(self) -> bool:
        """Whether its port is open."""
        parts = urlsplit(self.uri)
        with contextlib.suppress(OSError), socket.create_connection((parts.hostname, parts.port or 5672), 1.0):
            return True
        return False

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _end(self, number: signal.Signals) -> int:
        process, self.paused = self._process, False
        if process is None:
            return 0
        if number == signal.SIGKILL:
            self._signal_group(number)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or process.pid, number)
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._signal_group(signal.SIGKILL)
            process.wait()
            raise BrokerFailed(
                f"{self.name} did not end within {STOP_S:g} s of {number.name}; see {self.log}"
            ) from None
        finally:
            self._process = None
            self.pid = 0
            if process.stdout is not None:
                process.stdout.close()
        deadline = time.monotonic() + STOP_S
        while group_members(process.pid):  # a script that started the broker may end before the broker
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                raise BrokerFailed(f"processes of {self.name} are left after {STOP_S:g} s; see {self.log}")
            time.sleep(0.01)
        return code


class Kvitto(Node):
    """`kvitto serve` of this installation."""

    name = "Kvitto"

    def _options(self) -> list[str]:
        """Return more options of `kvitto serve`."""
        return []

    def _kvitto(self) -> list[str]:
        """Return the words of the command that starts `kvitto`."""
        return kvitto_command()

    def begin(self) -> None:
        command = [*self._kvitto(), "serve", "--data-dir", str(self.data), "--port", "0", "--http-port", "0"]
        self._process = self._spawn([*command, *self._options()], {}, listen=True)

    def _wait_ready(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline() if readable(self._process.stdout, START_S) else ""
        match = READY.match(line.rstrip("\n"))
        if match is None:
            self.kill()
            raise BrokerFailed(
                f"kvitto serve did not get ready (it said {line!r}); see {self.log}{last_lines(self.log)}"
            )
        self.pid = int(match["pid"])
        self.uri = uri_for(int(match["amqp"].rpartition(":")[2]))
        self.http_uri = f"http://127.0.0.1:{match['http'].rpartition(':')[2]}"

    def members(self) -> list[int]:
        """It has no children, and to search for them takes time that its start does not have."""
        return [self._process.pid] if self.running and self._process is not None else []

    @property
    def listens(self) -> bool:
        """Whether it has printed its ready line."""
        assert self._process is not None and self._process.stdout is not None
        return readable(self._process.stdout, 0.0)


class Command(Node):
    """Any broker that a command starts in the foreground and a URI reaches."""

    def __init__(self, place: Path, command: str, uri: str) -> None:
        super().__init__(place)
        self.command = command
        self.uri = uri if "heartbeat=" in uri else uri + ("&" if "?" in uri else "?") + "heartbeat=0"
        self.name = command.split()[0].rpartition("/")[2]

    def begin(self) -> None:
        if answers(self.uri):
            raise BrokerFailed(f"a broker that was not started here answers already at {self.uri.rpartition('@')[2]}")
        self._process = self._spawn(["/bin/sh", "-c", f"exec {self.command}"], {})
        self.pid = self._process.pid


class RabbitMQ(Node):
    """Debian's RabbitMQ as a separate node, with its own name, ports, cookie, port mapper and directories."""

    name = "RabbitMQ"
    _address = "127.0.0.1"
    """Where it listens."""

    def __init__(self, place: Path) -> None:
        super().__init__(place.resolve())
        self.data = self.place / "mnesia"
        self.port, self.tls_port, self.dist_port, self.epmd_port = (free_port() for _ in range(4))
        self._epmd: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        for _ in range(RABBITMQ_TRIES - 1):
            with contextlib.suppress(BrokerFailed):
                return super().start()
        return super().start()

    def begin(self) -> None:
        script = rabbitmq_script()
        if script is None:
            raise BrokerFailed(f"RabbitMQ is not installed; install it with: {INSTALL_RABBITMQ}")
        self._write_config()
        if self._epmd is None:
            # else Erlang leaves a daemon running, which other nodes of this machine would use
            command = [shutil.which("epmd") or "epmd", "-port", str(self.epmd_port), "-address", self._address]
            with self._around_spawn():
                self._epmd = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        # it writes core dumps to its working directory
        self._process = self._spawn([script], self._environment(), directory=self.place)
        self.uri = uri_for(self.port)

    def _wait_ready(self) -> None:
        super()._wait_ready()
        assert self._process is not None
        self.pid = next((pid for pid in self.members() if is_erlang(pid)), self._process.pid)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._end_epmd()

    def stop(self) -> int:
        try:
            return super().stop()
        finally:
            self._end_epmd()

    def _end_epmd(self) -> None:
        if self._epmd is not None:
            self._epmd.terminate()
            self._epmd.wait()
            self._epmd = None

    def _settings(self) -> list[str]:
        """Return the lines of rabbitmq.conf."""
        return [f"listeners.tcp.local = 127.0.0.1:{self.port}", f"log.file = {self.place / 'rabbitmq.log'}"]

    def _write_config(self) -> None:
        (self.place / "rabbitmq.conf").write_text("\n".join(self._settings()) + "\n")
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


def answers(uri: str) -> bool:
    """Return whether a complete handshake succeeds."""
    try:
        Connection(uri, heartbeat_thread=False).close()
    except (AMQPError, TimeoutError, OSError):
        return False
    return True


def version(uri: str) -> str:
    """Return the broker's name and version from its server properties; "" if it has none."""
    with Connection(uri, heartbeat_thread=False) as connection:
        properties = connection.server_properties
        return " ".join(str(properties.get(name, "")) for name in ("product", "version")).strip()


def rabbitmq_script() -> str | None:
    """Return RabbitMQ's start script, if it is installed."""
    return next((found for place in RABBITMQ_PLACES if (found := shutil.which(place))), None)


def kvitto_command() -> list[str]:
    """Return the `kvitto` beside this interpreter."""
    beside = Path(sys.executable).with_name("kvitto")
    return [str(beside)] if os.access(beside, os.X_OK) else [sys.executable, "-m", "kvitto.cli.main"]


def open_files(pid: int) -> Iterator[str]:
    """Yield the paths that a process has open, as far as the system shows them."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{name}")


def is_erlang(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("beam")
    except OSError:
        return False
