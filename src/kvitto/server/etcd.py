"""The register in etcd, by its JSON gateway and the standard library (etcd 3.4 and later).

Each call has a deadline, but for the resolution of names, and none is made twice once it may have arrived: its caller knows then that it
does not know the outcome (`Unanswered`). The keys are `kvitto/NAME/document` and `kvitto/NAME/leader`; the second one belongs to a lease.

Source: etcd's API reference (https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/). Numbers of 64 bits are strings there, and fields that
are zero or false are left out.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from kvitto.base.config import ConfigError
from kvitto.cluster.register import (
    Document,
    RegisterError,
    Seat,
    Seen,
    Unanswered,
    decoded,
    seat_from,
)

NAME = r"[A-Za-z0-9_.-]{1,64}"
PORT = 2379
CALL_S = 2.0
"""The most time that one call takes, over all endpoints."""
ENDPOINT_S = 0.7
"""An endpoint that takes longer than this is tried last from then on."""
ANSWER_BYTES_MAX = 1 << 20
HTTP_OK = 200
NOT_FOUND = 5
"""The code of gRPC that says that a lease is not there any more."""
REFUSED = (3, 7, 12, 16)
"""Codes of gRPC that mean that the same call fails again: wrong argument, not allowed, not known, not authenticated."""
NO_SUCH_CALL = 404


class Etcd:
    """Implements `kvitto.cluster.register.Register`. Calls block, and may come from several threads, one at a time each."""

    def __init__(self, endpoints: Sequence[str], name: str) -> None:
        """`endpoints`: URLs like http://10.0.0.1:2379. `name`: the name of the cluster. Raises ConfigError."""
        if not re.fullmatch(NAME, name):
            raise ConfigError(f"--cluster {name!r} is no name: up to 64 letters, digits, '_', '.' and '-'")
        self._endpoints = [_endpoint(text) for text in endpoints]
        self.where = ", ".join(endpoints)
        """For people."""
        self.name = name
        self._document = f"kvitto/{name}/document"
        self._leader = f"kvitto/{name}/leader"

    # -- the register ------------------------------------------------------------------------------------------

    def read(self) -> Seen:
        wanted = [{"requestRange": {"key": _coded(key)}} for key in (self._document, self._leader)]
        found = self._call("/v3/kv/txn", {"success": wanted}, again=True)
        with understood():
            kept = [response.get("response_range", {}).get("kvs", [{}])[0] for response in found["responses"]]
            document, leader = kept
            return Seen(
                identity=str(found["header"]["cluster_id"]),
                document=decoded(_plain(document["value"])) if document else None,
                version=int(document.get("mod_revision", 0)),
                seat=seat_from(_plain(leader["value"])) if leader else None,
            )

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
        deadline, why = time.monotonic() + CALL_S, ""
        for endpoint in list(self._endpoints):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            connection = self._connection(endpoint, min(left, ENDPOINT_S))
            try:
                try:
                    connection.connect()
                except OSError as error:  # nothing has been sent
                    why = f"{endpoint[1]}:{endpoint[2]}: {error}"
                    continue
                try:
                    return self._exchange(connection, path, body)
                except (OSError, http.client.HTTPException, ValueError, Unanswered) as error:
                    why = f"{endpoint[1]}:{endpoint[2]}: {error or type(error).__name__}"
                    if not again:
                        break
            finally:
                connection.close()
                if why:
                    self._last(endpoint)
        raise Unanswered(f"etcd does not answer: {why or 'no time left'}")

    def _connection(self, endpoint: tuple[str, str, int], timeout_s: float) -> http.client.HTTPConnection:
        scheme, host, port = endpoint
        if scheme == "https":
            return http.client.HTTPSConnection(host, port, timeout=timeout_s)
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    @staticmethod
    def _exchange(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Connection": "close"})
        response = connection.getresponse()
        data = response.read(ANSWER_BYTES_MAX)
        where = f"{connection.host}:{connection.port}"
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            if response.status == NO_SUCH_CALL:
                raise RegisterError(f"what answers at {where} is no etcd, or has no gRPC gateway")
            raise ValueError("an answer that is none of etcd's")
        if response.status == HTTP_OK and "error" not in found:
            return found
        code, text = found.get("code"), str(found.get("message") or found.get("error"))
        if code == NOT_FOUND and "lease" in text:  # it has ended
            return {}
        if response.status == NO_SUCH_CALL:
            raise RegisterError(f"etcd at {where} does not know {path}: etcd 3.4 or later has to be there")
        if code in REFUSED:
            raise RegisterError(f"etcd at {where} refuses: {text}")
        raise Unanswered(text)

    def _last(self, endpoint: tuple[str, str, int]) -> None:
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


def _endpoint(text: str) -> tuple[str, str, int]:
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = parts.port or PORT
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or not port or parts.path.strip("/"):
        raise ConfigError(f"--etcd: {text!r} is no address of etcd: give http://HOST:{PORT}")
    return parts.scheme, parts.hostname, port


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _plain(text: str) -> str:
    return base64.b64decode(text).decode(errors="replace")
