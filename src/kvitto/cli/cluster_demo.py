"""`kvitto cluster demo`: three nodes and an etcd on this machine, whose leader is killed again and again while somebody publishes.

Everything is in a temporary directory, on free ports of the loopback interface, and ends with the command. `cli/cluster.py` calls it.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import kvitto
from kvitto.base.table import table
from kvitto.cli.cluster import REFUSED
from kvitto.client.errors import AMQPError
from kvitto.cluster.handshake import Refused
from kvitto.cluster.register import Seat, Unanswered
from kvitto.server.etcd import Etcd
from kvitto.torture.nodes import free_port, kvitto_command

QUEUE = "demo"
NODES = 3
BETWEEN_S = 1.0
"""Before each kill messages are published for so long."""
WAIT_S = 60.0
POLL_S = 0.01
PAUSE_S = 0.02
INSTALL = (
    "etcd is not there: install it (Debian and Ubuntu: apt install etcd-server), or say with --program where it is"
)


class Node:
    """A process of `kvitto serve`."""

    def __init__(self, place: Path, number: int, etcd: str, key: Path) -> None:
        self.name = f"node {number}"
        self.data = place / f"node-{number}"
        self.port = free_port()
        self.address = f"127.0.0.1:{free_port()}"
        self.uri = f"amqp://guest:guest@127.0.0.1:{self.port}/"
        self._log = place / f"node-{number}.log"
        self._command = [*kvitto_command(), "serve", "--data-dir", str(self.data), "--port", str(self.port)]
        self._command += ["--http-port", "off", "--followers", self.address, "--cluster-key", str(key), "--etcd", etcd]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None


class Publisher:
    """Publishes numbers one after the other, to whichever node leads, and remembers those that were confirmed."""

    def __init__(self, nodes: list[Node]) -> None:
        self.confirmed: list[int] = []
        self.confirmed_at = 0.0
        self._uris = [node.uri for node in nodes]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ended.is_set():
            with (
                suppress(AMQPError, OSError),
                kvitto.connect_sync(self._uris, reconnect=False) as connection,
                connection.channel() as channel,
            ):
                channel.queue(QUEUE, durable=True)
                while not self._ended.is_set():
                    number += 1
                    channel.publish(str(number).encode(), QUEUE)
                    self.confirmed_at = time.monotonic()
                    self.confirmed.append(number)
            self._ended.wait(PAUSE_S)

    def confirms_after(self, at: float) -> None:
        """Wait until a message has been confirmed after this time."""
        wait(lambda: self.confirmed_at > at, "a message is confirmed")

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def demonstrate(kills: int, program: str | None, say: Callable[[str], None]) -> int:
    """Run it, and return the exit code: 0 if everything that was confirmed is there. Raises Refused."""
    found = shutil.which(program or "etcd")
    if found is None:
        raise Refused(INSTALL if program is None else f"there is no program {program}")
    with tempfile.TemporaryDirectory(prefix="kvitto-demo-") as place, ExitStack() as stack:
        return _demonstrate(kills, found, Path(place), stack, say)


def _demonstrate(kills: int, program: str, place: Path, stack: ExitStack, say: Callable[[str], None]) -> int:
    register = stack.enter_context(started(program, place))
    key = place / "key"
    key.touch(0o600)
    key.write_text(secrets.token_hex(32))
    nodes = [Node(place, number + 1, register.where, key) for number in range(NODES)]
    for node in nodes:
        stack.callback(node.end, signal.SIGKILL)
    made = ["cluster", "init", "--etcd", register.where, "--data-dir", str(nodes[0].data)]
    subprocess.run([*kvitto_command(), *made], check=True, stdout=subprocess.DEVNULL)
    for node in nodes:
        node.start()
    in_sync(register)
    say(f"{NODES} nodes are in sync, and somebody publishes one message after the other")
    publisher = Publisher(nodes)
    rows: list[tuple[object, ...]] = []
    try:
        wait(lambda: publisher.confirmed, "a first message is confirmed")
        for number in range(kills):
            time.sleep(BETWEEN_S)
            old = sits(register, nodes)
            before, killed_at = len(publisher.confirmed), time.monotonic()
            old.end(signal.SIGKILL)
            new = sits(register, nodes, old)
            publisher.confirms_after(killed_at)
            took = publisher.confirmed_at - killed_at
            rows.append((number + 1, old.name, new.name, round(1000 * took), before))
            say(f"kill -9 of {old.name}: {new.name} leads, and has confirmed a message after {1000 * took:.0f} ms")
            old.start()
            in_sync(register)
    finally:
        publisher.end()
    there = drained(sits(register, nodes))
    lost = set(publisher.confirmed) - set(there)
    doubled = len(there) - len(set(there))
    say("")
    say(table(("kill", "of", "then leads", "ms without a confirm", "confirmed before"), rows))
    say("")
    say(f"{len(publisher.confirmed):,} messages were confirmed; lost: {len(lost)}; doubled: {doubled}")
    return REFUSED if lost or doubled else 0


@contextmanager
def started(program: str, place: Path) -> Iterator[Etcd]:
    """Start an etcd of one node."""
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = [program, "--data-dir", str(place / "etcd"), "--name", "one", "--listen-client-urls", client]
    command += ["--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    with (place / "etcd.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--initial-cluster", f"one={peer}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    register = Etcd([client], "kvitto")

    def answers() -> bool:
        if process.poll() is not None:
            raise Refused(f"etcd has ended:\n{(place / 'etcd.log').read_text(errors='replace')[-2000:]}")
        with suppress(Unanswered):
            register.read()
            return True
        return False

    try:
        wait(answers, "etcd answers")
        yield register
    finally:
        process.kill()
        process.wait()


def sits(register: Etcd, nodes: list[Node], but: Node | None = None) -> Node:
    """Return the node in the leader's seat, once there is one."""
    found: list[Node] = []

    def there() -> bool:
        seat: Seat | None = None
        with suppress(Unanswered):
            seat = register.read().seat
        found[:] = [node for node in nodes if seat is not None and node.address == seat.address and node is not but]
        return bool(found)

    wait(there, "a node leads")
    return found[0]


def in_sync(register: Etcd) -> None:
    def all_there() -> bool:
        with suppress(Unanswered):
            document = register.read().document
            return document is not None and len(document.members) == NODES
        return False

    wait(all_there, "all nodes are in sync")


def drained(node: Node) -> list[int]:
    """Take all messages out of the queue."""
    with kvitto.connect_sync(node.uri) as connection, connection.channel() as channel:
        queue, found = channel.queue(QUEUE, durable=True), []
        while (message := queue.get()) is not None:
            found.append(int(message.body))
            message.ack()
    return found


def wait(condition: Callable[[], object], what: str) -> None:
    """Wait until it is true. Raises Refused if it does not become so."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise Refused(f"given up after {WAIT_S:g} s in which it was not so that {what}")
        time.sleep(POLL_S)
