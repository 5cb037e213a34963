"""TLS of a node with etcd, and with the other nodes of its cluster.

Files are read again when they have changed, so that a certificate that is renewed needs no restart: connections that are open stay. A key
that other users can read is refused. `etcd.py`, `followers.py` and the two commands that follow a leader call this.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path

from kvitto.base import private
from kvitto.base.config import Config, ConfigError
from kvitto.server.tls import load_authorities, load_pair

log = logging.getLogger("kvitto")

ETCD, NODES = "--etcd", "--cluster-tls"
"""What the names of the options begin with."""
TLS_RECORD = 0x16
"""The first byte of a handshake."""
CERTIFICATE = ("CERT", "UNKNOWN_CA", "ACCESS_DENIED")
"""An alert with one of these in its name is about a certificate."""


class Renewed:
    """A context that is made again when one of its files has changed."""

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Sequence[Path | None]) -> None:
        """Raises ConfigError if the files cannot be used."""
        self._make = make
        self._files = [path for path in files if path is not None]
        self._made_of = self._state()
        self._context = make()

    @property
    def context(self) -> ssl.SSLContext:
        """The context of the files as they are. If they cannot be used, that is logged, and the old one stays."""
        state = self._state()
        if state != self._made_of:
            self._made_of = state
            try:
                self._context = self._make()
            except ConfigError as error:
                log.error("%s; the old files stay in use", error)
            else:
                log.info("%s: read again", ", ".join(map(str, self._files)))
        return self._context

    def _state(self) -> list[tuple[int, int, int]]:
        found = []
        for path in self._files:
            try:
                about = path.stat()
                found.append((about.st_mtime_ns, about.st_size, about.st_ino))
            except OSError:
                found.append((0, 0, 0))
        return found


class NodeTls:
    """The certificate that a node shows the other nodes, and the authorities whose certificates it accepts from them."""

    def __init__(self, cert: Path, key: Path, ca: Path) -> None:
        """Raises ConfigError if the files cannot be used."""
        self._cert, self._key, self._ca = cert, key, ca
        self._leading = Renewed(self._server, (cert, key, ca))
        self._following = Renewed(lambda: client_context(NODES, ca, cert, key), (cert, key, ca))

    def _server(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        load_private_pair(made, NODES, self._cert, self._key)
        load_authorities(made, NODES, self._ca)
        made.verify_mode = ssl.CERT_REQUIRED
        made.options |= ssl.OP_NO_RENEGOTIATION  # a write never has to wait for a read
        # each connection shows its certificate, which may have expired since the last one
        made.options |= ssl.OP_NO_TICKET
        made.num_tickets = 0
        return made

    @property
    def leading(self) -> ssl.SSLContext:
        return self._leading.context

    @property
    def following(self) -> ssl.SSLContext:
        return self._following.context

    def begin(self, sock: socket.socket, host: str, timeout_s: float) -> socket.socket:
        """Shake hands with the leader at the other end of a connection. Raises OSError, which says what is wrong."""
        made: socket.socket = sock
        try:
            made = tls = self.following.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
            tls.settimeout(timeout_s)
            tls.do_handshake()
        except OSError as error:
            made.close()
            raise OSError(why_not_leader(error)) from None
        return made


def node_tls(config: Config) -> NodeTls | None:
    """Return the TLS between nodes, None if their connections are not encrypted. Raises ConfigError."""
    cert, key, ca = config.cluster_tls_cert, config.cluster_tls_key, config.cluster_tls_ca
    return NodeTls(cert, key, ca) if cert is not None and key is not None and ca is not None else None


def client_context(options: str, ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return a context for connections to a server, whose name is checked. Without `ca` this machine's authorities are trusted."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert is not None and key is not None:
        load_private_pair(made, options, cert, key)
    if ca is not None:
        load_authorities(made, options, ca)
    else:
        made.load_default_certs()
    return made


def load_private_pair(made: ssl.SSLContext, options: str, cert: Path, key: Path) -> None:
    load_pair(made, options, cert, key)
    private.refuse_readable(f"{options}-key", key, key.stat())


# -- what went wrong, in words ---------------------------------------------------------------------------------------


def reason(error: OSError) -> str:
    """Return what is wrong with a handshake, in OpenSSL's words."""
    if isinstance(error, ssl.SSLError):
        words = (error.reason or "it ended").lower().replace("_", " ")
        flaw = getattr(error, "verify_message", "")
        return f"{words}: {flaw}" if flaw else words
    return str(error) or type(error).__name__


def is_about_certificate(error: OSError) -> bool:
    """Return whether the other side has said that it does not accept this one's certificate."""
    name = error.reason or "" if isinstance(error, ssl.SSLError) else ""
    return "ALERT" in name and any(part in name for part in CERTIFICATE)


def why_not_leader(error: OSError) -> str:
    """Return why a follower and its leader do not come together, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the leader's certificate is not accepted ({error.verify_message}): {NODES}-ca has to have the authority that signed it, "
            "and it has to be valid and to have the leader's host among its names"
        )
    if is_about_certificate(error):
        return (
            f"the leader does not accept this node's certificate ({reason(error)}): {NODES}-cert has to be valid, and signed by an "
            f"authority of the leader's {NODES}-ca"
        )
    if isinstance(error, TimeoutError):
        return "no TLS handshake in time"
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return f"the leader has ended the connection in the TLS handshake; does it have {NODES}-cert?"
    return f"no TLS handshake ({reason(error)}): {NODES}-cert has to be given on both sides, or on neither"


def why_not_follower(error: OSError) -> str:
    """Return why a leader does not accept a follower, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted ({error.verify_message}): it has to be valid, and signed by an authority of this node's "
            f"{NODES}-ca"
        )
    if is_about_certificate(error):
        return (
            f"it does not accept this node's certificate ({reason(error)}): {NODES}-cert has to be valid, signed by an authority of the "
            f"follower's {NODES}-ca, and to have the host of --advertise among its names"
        )
    if isinstance(error, ssl.SSLError) and error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return f"it has shown no certificate: a node needs {NODES}-cert"
    return f"no TLS handshake ({reason(error)})"
