"""The register in etcd, by its JSON gateway and the standard library (etcd 3.4 and later).

Each call has a deadline, but for the resolution of names: TLS handshakes and logins are within it. None is made twice once it may have been
carried out: its caller knows then that it does not know the outcome (`Unanswered`). The keys are `kvitto/NAME/document`,
`kvitto/NAME/leader` and `kvitto/NAME/complaint`; the last two belong to leases.

Source: etcd's API reference (https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/). Numbers of 64 bits are strings there, and fields that
are zero or false are left out.
"""

from __future__ import annotations

import base64
import http.client
import io
import json
import logging
import re
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kvitto.base import private
from kvitto.base.config import Config, ConfigError
from kvitto.cluster.register import (
    Complaint,
    Document,
    NotAllowed,
    RegisterError,
    Seat,
    Seen,
    Unanswered,
    complaint_from,
    decoded,
    seat_from,
)
from kvitto.server.listening import in_url
from kvitto.server.node_tls import ETCD, Renewed, client_context, is_about_certificate, reason

log = logging.getLogger("kvitto")

NAME = r"[A-Za-z0-9_.-]{1,64}"
PORT = 2379
CALL_S = 2.0
"""The most time that one call takes, over all endpoints."""
ENDPOINT_S = 0.7
"""An endpoint that takes longer than this is tried last from then on."""
ANSWER_BYTES_MAX = 1 << 20
"""No answer is read beyond this. What Kvitto writes under the keys of a cluster is some kilobytes."""
HTTP_OK = 200
NOT_FOUND = 5
"""The code of gRPC that says that a lease is not there any more."""
NO_RIGHT = 7
NO_TOKEN = 16
REFUSED = (3, NO_RIGHT, 12, NO_TOKEN)
"""Codes of gRPC that mean that the same call fails again: wrong argument, not allowed, not known, not authenticated."""
NO_USERS = "authentication is not enabled"
STALE = ("user name is empty", "auth store is old")
"""If a login is missing or has ended, etcd answers with NO_TOKEN, or with a text that has one of these parts."""
NO_SPACE = "database space exceeded"
NO_SUCH_CALL = 404
LOGIN = "/v3/auth/authenticate"
USER_BYTES_MAX = 1024


@dataclass(frozen=True)
class Access:
    """The certificates and the user with which a node connects to etcd."""

    ca: Path | None = None
    """The authorities of etcd's certificates, None: those that this machine trusts."""
    cert: Path | None = None
    key: Path | None = None
    user_file: Path | None = None


NOTHING = Access()


Endpoint = tuple[str, str, int]
"""Scheme, host and port."""


class Unsent(Exception):
    """An endpoint could not be asked, so nothing has been sent. `denied`: another try will fail, too, until an operator has mended it."""

    def __init__(self, text: str, denied: bool = False) -> None:
        super().__init__(text)
        self.denied = denied


class NoUsers(Exception):
    """etcd has no users, and lets everybody in."""


class Stale(Exception):
    """A call was not carried out, because there is no login, or none any more."""


class Full(Unanswered):
    """etcd has no space left. The call that has used the last of it may have been carried out all the same."""


class TooLarge(NotAllowed):
    """An answer of etcd has more than ANSWER_BYTES_MAX, so another program than Kvitto has written one of the keys."""


class Etcd:
    """Implements `kvitto.cluster.register.Register`. Calls block, and may come from several threads, one at a time each."""

    def __init__(self, endpoints: Sequence[str], name: str, access: Access = NOTHING) -> None:
        """`endpoints`: URLs like http://10.0.0.1:2379. `name`: the name of the cluster. Raises ConfigError."""
        if not re.fullmatch(NAME, name):
            raise ConfigError(f"--cluster {name!r} is no name: up to 64 letters, digits, '_', '.' and '-'")
        self._endpoints = [_endpoint(text) for text in endpoints]
        self.where = ", ".join(endpoints)
        """For people."""
        self.name = name
        self._document = f"kvitto/{name}/document"
        self._leader = f"kvitto/{name}/leader"
        self._complaint = f"kvitto/{name}/complaint"
        self._said_large = False
        """Whether a warning about a complaint that is too large has been logged."""
        self._user_file = access.user_file
        self._token: str | None = None
        """The token that the last login has brought, "" if etcd has no users, None before a login."""
        self._tls = self._renewed(access)
        if self._user_file is not None:
            user_in(self._user_file)

    def _renewed(self, access: Access) -> Renewed | None:
        """Return the TLS for endpoints that have it."""
        ca, cert, key = access.ca, access.cert, access.key
        if (cert is None) != (key is None):
            raise ConfigError("--etcd-cert and --etcd-key belong together")
        if any(scheme == "https" for scheme, _, _ in self._endpoints):
            return Renewed(lambda: client_context(ETCD, ca, cert, key), (ca, cert, key))
        if ca is not None or cert is not None:
            raise ConfigError(f"--etcd-{'ca' if ca is not None else 'cert'} needs an address of etcd with https://")
        return None

    # -- the register ------------------------------------------------------------------------------------------

    def read(self) -> Seen:
        try:
            found = self._kept(self._document, self._leader, self._complaint)
        except TooLarge:  # a complaint is only a hint, and nobody may stop a leader by it
            found = self._without_complaint()
        with understood():
            kept = [response.get("response_range", {}).get("kvs", [{}])[0] for response in found["responses"]]
            document, leader, complaint = [*kept, {}][:3]  # the complaint may have been left out
            return Seen(
                identity=str(found["header"]["cluster_id"]),
                document=decoded(_plain(document["value"])) if document else None,
                version=int(document.get("mod_revision", 0)),
                seat=seat_from(_plain(leader["value"])) if leader else None,
                complaint=complaint_from(_plain(complaint.get("value", ""))),
            )

    def _kept(self, *keys: str) -> dict[str, Any]:
        """Read these keys in one transaction. Return etcd's answer. Raises TooLarge."""
        wanted = [{"requestRange": {"key": _coded(key)}} for key in keys]
        return self._call("/v3/kv/txn", {"success": wanted}, again=True)

    def _without_complaint(self) -> dict[str, Any]:
        """Read the document and the leader's key, but not the complaint. Raises NotAllowed if one of the two is too large, too."""
        try:
            found = self._kept(self._document, self._leader)
        except TooLarge:
            raise NotAllowed(self._which_is_too_large()) from None
        if not self._said_large:
            self._said_large = True
            key = self._complaint
            log.warning("the key %s holds more than Kvitto writes, and is passed over: `etcdctl del %s`", key, key)
        return found

    def _which_is_too_large(self) -> str:
        """Return in words which key an operator has to repair, and how."""
        leader, document = self._leader, self._document
        # The document is the cluster's truth, and must not be removed because of what the other key holds: it is looked at last, and alone.
        for key, advice in (
            (leader, f"`etcdctl del {leader}`; nodes go on by themselves then"),
            (
                document,
                f"stop all nodes, `etcdctl del {document}`, and say `kvitto cluster force --data-dir` with the directory of the "
                "last leader",
            ),
        ):
            try:
                self._kept(key)
            except TooLarge as error:
                return f"the key {key} holds what no Kvitto has written ({error}): {advice}"
        return f"the keys {leader} and {document} hold more than Kvitto writes: look at them with `etcdctl get`"

    def create(self, document: Document) -> bool:
        return self._put(document, [self._is_new(self._document)]) is not None

    def change(self, document: Document, version: int) -> int | None:
        return self._put(document, [self._is(version)])

    def elect(self, document: Document, version: int, seat: Seat, lease: str, old: Seat | None) -> int | None:
        if old is None:
            free = self._is_new(self._leader)
        else:
            free = {"key": _coded(self._leader), "target": "VALUE", "result": "EQUAL", "value": _coded(old.encoded())}
        return self._put(document, [self._is(version), free], self._taken(seat, lease))

    def sit_down_again(self, version: int, seat: Seat, lease: str) -> bool:
        compare = [self._is(version), self._is_new(self._leader)]
        found = self._call("/v3/kv/txn", {"compare": compare, "success": [self._taken(seat, lease)]})
        return bool(found.get("succeeded"))

    def complain(self, complaint: Complaint, lease: str) -> None:
        key, value = _coded(self._complaint), _coded(complaint.encoded())
        self._call(
            "/v3/kv/txn", {"success": [{"requestPut": {"key": key, "value": value, "lease": lease}}]}, again=True
        )

    def grant(self, seconds: int) -> str:
        found = self._call("/v3/lease/grant", {"TTL": seconds}, again=True)
        with understood():
            return str(found["ID"])

    def renew(self, lease: str) -> bool:
        found = self._call("/v3/lease/keepalive", {"ID": lease}, again=True)
        with understood():
            return "TTL" in found.get("result", {})

    def revoke(self, lease: str) -> None:
        self._call("/v3/lease/revoke", {"ID": lease}, again=True)

    # -- parts of transactions -----------------------------------------------------------------------------------

    def _put(self, document: Document, compare: list[dict[str, Any]], *more: dict[str, Any]) -> int | None:
        put = {"requestPut": {"key": _coded(self._document), "value": _coded(document.encoded())}}
        found = self._call("/v3/kv/txn", {"compare": compare, "success": [put, *more]})
        with understood():
            return int(found["header"]["revision"]) if found.get("succeeded") else None

    def _is(self, version: int) -> dict[str, Any]:
        return {"key": _coded(self._document), "target": "MOD", "result": "EQUAL", "mod_revision": str(version)}

    @staticmethod
    def _is_new(key: str) -> dict[str, Any]:
        return {"key": _coded(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}

    def _taken(self, seat: Seat, lease: str) -> dict[str, Any]:
        return {"requestPut": {"key": _coded(self._leader), "value": _coded(seat.encoded()), "lease": lease}}

    # -- one call --------------------------------------------------------------------------------------------------

    def _call(self, path: str, body: dict[str, Any], again: bool = False) -> dict[str, Any]:
        """Return the answer of the first endpoint that gives one. `again`: the call may be made twice without harm."""
        deadline, why, denied, full = time.monotonic() + CALL_S, "", "", None
        for endpoint in list(self._endpoints):
            if time.monotonic() >= deadline:
                break
            try:
                return self._asked(endpoint, path, body, deadline)
            except NotAllowed:
                raise
            except Unsent as error:
                why = str(error)
                denied = why if error.denied else denied
                self._last(endpoint)
            except (OSError, http.client.HTTPException, ValueError, Unanswered) as error:
                why, denied = f"{_where(endpoint)}: {error or type(error).__name__}", ""
                full = error if isinstance(error, Full) else full
                self._last(endpoint)
                if not again:
                    break
        if full is not None:
            raise full
        if denied:
            raise NotAllowed(denied)
        raise Unanswered(f"etcd does not answer: {why or 'no time left'}")

    def _asked(self, endpoint: Endpoint, path: str, body: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Ask one endpoint, with a login if there is a user. If the login has ended, log in once more."""
        try:
            return self._exchange(endpoint, path, body, deadline, self._login(endpoint, deadline))
        except Stale as error:
            if self._user_file is None:
                text = f"etcd at {_where(endpoint)} wants a user ({error}): --etcd-user-file names one"
                raise NotAllowed(text) from None
        self._token = None
        try:
            return self._exchange(endpoint, path, body, deadline, self._login(endpoint, deadline))
        except Stale as error:
            raise NotAllowed(f"etcd at {_where(endpoint)} refuses the user of {self._user_file}: {error}") from None

    def _login(self, endpoint: Endpoint, deadline: float) -> str:
        """Return the token of a login, "" without one. Raises Unsent or NotAllowed."""
        if self._user_file is None or self._token is not None:
            return self._token or ""
        where = _where(endpoint)
        try:
            name, password = user_in(self._user_file)
            found = self._exchange(endpoint, LOGIN, {"name": name, "password": password}, deadline, "")
            self._token = str(found["token"])
        except ConfigError as error:
            raise NotAllowed(str(error)) from None
        except RegisterError as error:
            raise NotAllowed(
                f"etcd at {where} does not take user and password of --etcd-user-file {self._user_file}: {error}"
            ) from None
        except NoUsers:
            self._token = ""
        except NotAllowed:
            raise
        except (OSError, http.client.HTTPException, ValueError, KeyError, Unanswered) as error:
            raise Unsent(f"{where}: no login: {error or type(error).__name__}") from None
        return self._token

    def _exchange(
        self, endpoint: Endpoint, path: str, body: dict[str, Any], deadline: float, token: str
    ) -> dict[str, Any]:
        """Make one call of one endpoint. Raises Unsent, Stale, NotAllowed, RegisterError, or other errors if the outcome is not known."""
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if token:
            headers["Authorization"] = token
        with self._connected(endpoint, deadline) as sock:
            connection = http.client.HTTPConnection(endpoint[1], endpoint[2])
            # etcd hashes a password slowly on purpose
            until = deadline if path == LOGIN else min(deadline, time.monotonic() + ENDPOINT_S)
            connection.sock = Bounded(sock, until)
            try:
                connection.request("POST", path, json.dumps(body), headers)
                response = connection.getresponse()
                data = response.read(ANSWER_BYTES_MAX + 1)
            except (ssl.SSLError, ConnectionError) as error:
                # in TLS 1.3 a server looks at a certificate when the client has ended its handshake
                if is_about_certificate(error):
                    raise self._unsent(endpoint, error) from None
                wants = "it may want another --etcd-cert" if endpoint[0] == "https" else "is it https:// there?"
                raise Unanswered(f"{reason(error)}; {wants}") from None
        if len(data) > ANSWER_BYTES_MAX and response.status == HTTP_OK:
            raise TooLarge(f"etcd at {_where(endpoint)} answers with more than {ANSWER_BYTES_MAX >> 20} MiB")
        return self._understood(endpoint, path, response.status, data)

    def _connected(self, endpoint: Endpoint, deadline: float) -> socket.socket:
        """Return a connection over which nothing has been sent, with TLS if the endpoint has it. Raises Unsent."""
        scheme, host, port = endpoint
        try:
            sock = connected(host, port, deadline)
            if scheme == "http" or self._tls is None:
                return sock
            return with_tls(sock, self._tls.context, host, min(deadline, time.monotonic() + ENDPOINT_S))
        except OSError as error:
            raise self._unsent(endpoint, error) from None

    @staticmethod
    def _unsent(endpoint: Endpoint, error: OSError) -> Unsent:
        where = _where(endpoint)
        if isinstance(error, ssl.SSLCertVerificationError):
            text = (
                f"the certificate of etcd at {where} is not accepted ({error.verify_message}): --etcd-ca has to have the authority that "
                "signed it, and it has to be valid and to have this host among its names"
            )
            return Unsent(text, denied=True)
        if is_about_certificate(error):
            text = f"etcd at {where} does not accept the certificate of this node ({reason(error)}): "
            return Unsent(
                f"{text}--etcd-cert has to be one that is valid, and signed by an authority of etcd's", denied=True
            )
        if isinstance(error, ssl.SSLError):
            return Unsent(f"{where}: no TLS handshake ({reason(error)}); is it http:// there?", denied=True)
        return Unsent(f"{where}: {error or type(error).__name__}")

    def _understood(self, endpoint: Endpoint, path: str, status: int, data: bytes) -> dict[str, Any]:
        """Return what an answer says. Raises an error that says what etcd refuses."""
        where = _where(endpoint)
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            if status == NO_SUCH_CALL:
                raise RegisterError(f"what answers at {where} is no etcd, or has no gRPC gateway")
            if b"CommonName" in data:
                raise NotAllowed(
                    f"etcd at {where} has users, and takes no certificate with a common name beside them: --etcd-cert has to be one "
                    "whose subject has no CN, such as /O=kvitto"
                )
            raise ValueError("an answer that is none of etcd's")
        if status == HTTP_OK and "error" not in found:
            return found
        code, text = found.get("code"), str(found.get("message") or found.get("error"))
        if code == NOT_FOUND and "lease" in text:  # it has ended
            return {}
        if status == NO_SUCH_CALL:
            raise RegisterError(f"etcd at {where} does not know {path}: etcd 3.4 or later has to be there")
        if path == LOGIN and NO_USERS in text:
            raise NoUsers
        if path != LOGIN and (code == NO_TOKEN or any(part in text for part in STALE)):
            raise Stale(text)
        if code == NO_RIGHT and self._user_file is None:
            raise Stale(text)
        if code == NO_RIGHT and path != LOGIN:
            keys = f"kvitto/{self.name}/"
            raise NotAllowed(
                f"etcd at {where} refuses ({text}): this node's user needs the right to read and write the keys {keys}, "
                f"`etcdctl role grant-permission ROLE readwrite --prefix=true {keys}`"
            )
        if code in REFUSED:
            raise RegisterError(f"etcd at {where} refuses: {text}")
        if NO_SPACE in text:
            raise Full(
                f"etcd at {where} has no space left: make room with `etcdctl compact REVISION`, `etcdctl defrag` and "
                "`etcdctl alarm disarm`"
            )
        raise Unanswered(text)

    def _last(self, endpoint: Endpoint) -> None:
        """Try this endpoint last from now on."""
        if len(self._endpoints) > 1:
            self._endpoints = [*(other for other in self._endpoints if other != endpoint), endpoint]


@contextmanager
def understood() -> Iterator[None]:
    """Raise Unanswered for an answer that lacks what every etcd says."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Unanswered(f"etcd's answer cannot be understood: {error!r}") from None


def access(config: Config) -> Access:
    """Return with what a node connects to etcd, as its settings say."""
    return Access(config.etcd_ca, config.etcd_cert, config.etcd_key, config.etcd_user_file)


def user_in(path: Path) -> tuple[str, str]:
    """Return the user of etcd and the password in a file. Raises ConfigError."""
    line = (
        private.read("--etcd-user-file", path, USER_BYTES_MAX).decode(errors="replace").partition("\n")[0].rstrip("\r")
    )
    name, colon, password = line.partition(":")
    if not (name and colon and password):
        raise ConfigError(f"--etcd-user-file {path}: the first line must be USER:PASSWORD")
    return name, password


# -- sockets with a deadline -----------------------------------------------------------------------------------------


def left(deadline: float) -> float:
    """Return how much time is left. Raises TimeoutError."""
    found = deadline - time.monotonic()
    if found <= 0:
        raise TimeoutError("no answer in time")
    return found


def connected(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to one of the addresses of a host. None of them takes more than ENDPOINT_S, and all together not more than is left."""
    failed: OSError = TimeoutError("no answer in time")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(min(left(deadline), ENDPOINT_S))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            sock.close()
            failed = error
        else:
            return sock
    raise failed


def with_tls(sock: socket.socket, context: ssl.SSLContext, host: str, deadline: float) -> ssl.SSLSocket:
    made = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        made.settimeout(left(deadline))
        made.do_handshake()  # the time is that of the whole handshake
    except OSError:
        made.close()
        raise
    return made


class Bounded:
    """The methods of a socket that `http.client` uses. All of them raise TimeoutError after the same deadline."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._sock.settimeout(left(self._deadline))
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(Incoming(self._sock, self._deadline))

    def close(self) -> None:
        """Do nothing: the answer is still to be read, and the caller closes the socket."""


class Incoming(io.RawIOBase):
    """What comes over a socket, as long as there is time."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        self._sock.settimeout(left(self._deadline))
        return self._sock.recv_into(into)


def _where(endpoint: Endpoint) -> str:
    return f"{in_url(endpoint[1])}:{endpoint[2]}"


def _endpoint(text: str) -> Endpoint:
    wrong = ConfigError(f"--etcd: {text!r} is no address of etcd: give http://HOST:{PORT}")
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port or PORT
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise wrong
    return parts.scheme, parts.hostname, port


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _plain(text: str) -> str:
    return base64.b64decode(text).decode(errors="replace")
