"""`kvitto cluster demo`: three nodes and an etcd on this machine, whose leader is killed again and again while somebody publishes.

Everything is in a temporary directory, on free ports of the loopback interface, and ends with the command. `cli/cluster.py` calls it.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import kvitto
from kvitto.base.table import table
from kvitto.cli.cluster import REFUSED
from kvitto.client.errors import AMQPError
from kvitto.cluster.handshake import Refused
from kvitto.cluster.register import Unanswered
from kvitto.server.etcd import Etcd
from kvitto.torture.cluster import KvittoCluster
from kvitto.torture.nodes import BrokerFailed

QUEUE = "demo"
NODES = 3
BETWEEN_S = 1.0
"""Before each kill messages are published for this time."""
WAIT_S = 60.0
POLL_S = 0.01
PAUSE_S = 0.02


class Publisher:
    """Publishes numbers one after the other, to whichever node leads, and remembers those that were confirmed."""

    def __init__(self, cluster: KvittoCluster) -> None:
        self.confirmed: list[int] = []
        self.confirmed_at = 0.0
        self.longest_s = 0.0
        """The longest time between two confirms, until somebody sets it to 0."""
        self._uris = [node.uri for node in cluster.nodes]
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
                    now = time.monotonic()
                    self.longest_s = max(self.longest_s, now - (self.confirmed_at or now))
                    self.confirmed_at = now
                    self.confirmed.append(number)
            self._ended.wait(PAUSE_S)

    def confirms_after(self, at: float) -> None:
        """Wait until a message has been confirmed after this time."""
        wait(lambda: self.confirmed_at > at, "a message is confirmed")

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def demonstrate(kills: int, program: str, say: Callable[[str], None]) -> int:
    """Run it, and return the exit code: 0 if everything that was confirmed is there. Raises Refused."""
    with tempfile.TemporaryDirectory(prefix="kvitto-demo-") as place:
        cluster = KvittoCluster(Path(place), NODES, program)
        try:
            return _demonstrate(kills, cluster, say)
        except BrokerFailed as error:
            raise Refused(str(error)) from None
        finally:
            cluster.close()


def _demonstrate(kills: int, cluster: KvittoCluster, say: Callable[[str], None]) -> int:
    cluster.start()
    register = Etcd([cluster.etcd_url], "kvitto")
    in_sync(register)
    say(f"{NODES} nodes are in sync, and somebody publishes one message after the other")
    publisher = Publisher(cluster)
    rows: list[tuple[object, ...]] = []
    try:
        wait(lambda: publisher.confirmed, "a first message is confirmed")
        for number in range(kills):
            time.sleep(BETWEEN_S)
            old, before = leader(cluster), len(publisher.confirmed)
            publisher.longest_s = 0.0
            cluster.kill()
            cluster.start()  # the node that was killed, when another one leads
            new = leader(cluster)
            publisher.confirms_after(time.monotonic())  # a confirm of the old leader may still have been on its way
            took = publisher.longest_s
            rows.append((number + 1, old, new, round(1000 * took), before))
            say(f"kill -9 of {old}: {new} leads, and has confirmed a message after {1000 * took:.0f} ms")
            in_sync(register)
    finally:
        publisher.end()
    there = drained(cluster.uri)
    lost = set(publisher.confirmed) - set(there)
    doubled = len(there) - len(set(there))
    say("")
    say(table(("kill", "of", "then leads", "ms without a confirm", "confirmed before"), rows))
    say("")
    say(f"{len(publisher.confirmed):,} messages were confirmed; lost: {len(lost)}; doubled: {doubled}")
    return REFUSED if lost or doubled else 0


def leader(cluster: KvittoCluster) -> str:
    """Return what people call the node that leads."""
    return f"node {cluster.nodes.index(cluster.leader) + 1}"


def in_sync(register: Etcd) -> None:
    """Wait until all nodes are in sync."""

    def all_there() -> bool:
        with suppress(Unanswered):
            document = register.read().document
            return document is not None and len(document.members) == NODES
        return False

    wait(all_there, "all nodes are in sync")


def drained(uri: str) -> list[int]:
    """Take all messages out of the queue."""
    with kvitto.connect_sync(uri) as connection, connection.channel() as channel:
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
