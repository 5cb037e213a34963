"""How a node that does not lead hands a client's connection to the leader: the messages at its beginning, without a socket.

    node      KVITPAS1, {version, nonce}
    leader    {version, nonce, proof}                        or {refused}
    node      {proof, cluster, service, host, port}
    leader    {passed, tls}                                  or {refused}

It comes to the leader's listener for followers. `service` is which of the leader's listeners the client belongs to, `host` and `port` are
its address at the node. Both are covered by the proof, and the leader's nonce is new each time, so nobody without the key can make an
address up, or use an old one again. Behind `passed` come the client's bytes as they are; or a TLS handshake, and then these
bytes, if nodes have TLS and the client does not encrypt them itself: the leader says so by `tls`. `server/front.py` and `server/passed.py`
use this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from kvitto.cluster import handshake
from kvitto.cluster.handshake import LEADER, LENGTH_BYTES, REASON_MAX, Inbox, Refused
from kvitto.cluster.records import StreamError

MAGIC = b"KVITPAS1"
VERSION = 1
PASSING = b"passing"
"""Stands in proofs for a node that passes connections on, so that the proof of a follower cannot be used as one of such a node."""
AMQP, AMQPS, HTTP, HTTPS = SERVICES = "amqp", "amqps", "http", "https"
READABLE = AMQP, HTTP
"""The services whose bytes anybody can read on their way."""
HOST_MAX = 100
PORT_MAX = 65535


class Elsewhere(NamedTuple):
    """The address of a client that has connected to another node, as that node sees it."""

    host: str
    port: int


@dataclass(frozen=True)
class Client:
    """A client whose connection is passed on."""

    service: str
    address: Elsewhere


class Passing:
    """What the node says that passes a client's connection on."""

    def __init__(self, key: bytes, cluster: str, client: Client) -> None:
        self._key = key
        self._cluster = cluster
        self._client = client
        self._nonce = handshake.nonce()

    def hello(self) -> bytes:
        return MAGIC + handshake.message(version=VERSION, nonce=self._nonce)

    def names(self, found: dict[str, Any]) -> bytes:
        """Return the answer to the leader's greeting. Raises StreamError if it is no leader with the same key."""
        theirs = str(found.get("nonce"))
        if found.get("version") != VERSION or not handshake.proves(self._key, LEADER, self._nonce, theirs, found):
            raise StreamError("the leader has another key, or another version")
        client = self._client
        said = {"cluster": self._cluster, "service": client.service, **client.address._asdict()}
        return handshake.proved(self._key, PASSING, self._nonce, theirs, said)

    def taken(self, found: dict[str, Any], tls: bool) -> bool:
        """Return whether a TLS handshake follows the leader's last answer. `tls`: whether this node has TLS between nodes.

        Raises StreamError if it is no such answer, or if only one side would encrypt what is readable.
        """
        if found.get("passed") is not True:
            raise StreamError("an answer that cannot be read")
        encrypted = found.get("tls") is True
        if encrypted != (tls and self._client.service in READABLE):
            what = "encrypts" if encrypted else "does not encrypt"
            raise StreamError(
                f"the leader {what} what nodes pass on, and this node does not agree: --cluster-tls-cert on all nodes"
            )
        return encrypted


class Passed:
    """What the leader says to a node that passes a client's connection on."""

    def __init__(self, key: bytes, cluster: str) -> None:
        self._key = key
        self._cluster = cluster
        self._nonce = handshake.nonce()
        self._theirs = ""

    def greet(self, found: dict[str, Any]) -> bytes:
        """Return the greeting. Raises Refused or StreamError."""
        if found.get("version") != VERSION:
            raise Refused(f"the leader passes connections by version {VERSION}, the node by {found.get('version')}")
        self._theirs = str(found.get("nonce"))
        if len(self._theirs) != 2 * handshake.NONCE_BYTES:
            raise StreamError("a nonce that is none")
        said = {"version": VERSION, "nonce": self._nonce}
        return handshake.proved(self._key, LEADER, self._theirs, self._nonce, said)

    def client(self, found: dict[str, Any]) -> Client:
        """Return whose connection it is. Raises Refused if the node has not the key, or is of another cluster, or StreamError."""
        if not handshake.proves(self._key, PASSING, self._theirs, self._nonce, found):
            raise Refused("the node has another key: --cluster-key has to be the same file on all nodes")
        if found.get("cluster") != self._cluster:
            raise Refused("the node belongs to another cluster")
        service, host, port = found.get("service"), found.get("host"), found.get("port")
        if service not in SERVICES or not isinstance(host, str) or not isinstance(port, int):
            raise StreamError("a message that cannot be read")
        if len(host) > HOST_MAX or not 0 <= port <= PORT_MAX:
            raise StreamError("an address that is none")
        return Client(str(service), Elsewhere(host, port))


def decoded(head: bytes, data: bytes) -> dict[str, Any]:
    """Return a message. Raises Refused if it is a refusal, and StreamError if it cannot be read."""
    inbox = Inbox()
    inbox.feed(head + data)
    found = inbox.next()
    assert found is not None and len(head) == LENGTH_BYTES
    return found


def refusal(text: str) -> bytes:
    return handshake.message(refused=text[:REASON_MAX])


def accepted(tls: bool) -> bytes:
    """Return the last answer. `tls`: whether a TLS handshake follows."""
    return handshake.message(passed=True, **({"tls": True} if tls else {}))
