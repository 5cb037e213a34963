"""etcd for tests: Debian's if it is installed, and one of our own that speaks as much of the JSON gateway as Kvitto uses."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.certificates import Authority
from tests.support.wait import wait_until

Json = dict[str, Any]
LOOPBACK = "IP:127.0.0.1,DNS:localhost"


class FakeEtcd:
    """One node that keeps nothing on a disk."""

    def __init__(self, identity: str = "1") -> None:
        self.identity = identity
        self.revision = 1
        self.kept: dict[str, Json] = {}
        self.leases: dict[str, tuple[float, int]] = {}
        """When each lease ends, and for how long it is renewed."""
        self.deaf = False
        """Whether requests are not answered."""
        self._leases = 100
        self._lock = threading.Lock()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                body = self.rfile.read(length)
                if fake.deaf or len(body) < length:  # the node may have been killed
                    return
                with fake._lock:
                    code, found = fake.answer(self.path, json.loads(body))
                data = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: Json) -> tuple[int, Json]:
        now = time.monotonic()
        for lease in [lease for lease, (end, _) in self.leases.items() if end < now]:
            self._end(lease)
        header = {"cluster_id": self.identity, "member_id": "1", "raft_term": "2"}
        if path == "/v3/kv/txn":
            found = self._txn(body)
        elif path == "/v3/lease/grant":
            self._leases += 1
            seconds = max(int(body["TTL"]), 2)
            self.leases[str(self._leases)] = now + seconds, seconds
            found = {"ID": str(self._leases), "TTL": str(seconds)}
        elif path == "/v3/lease/keepalive":
            found = {"header": header, "ID": body["ID"]}
            if body["ID"] in self.leases:
                seconds = self.leases[body["ID"]][1]
                self.leases[body["ID"]] = now + seconds, seconds
                found["TTL"] = str(seconds)
            return 200, {"result": found}
        elif path == "/v3/lease/revoke":
            if body["ID"] not in self.leases:
                return 404, {"error": "etcdserver: requested lease not found", "code": 5}
            self._end(body["ID"])
            found = {}
        else:
            return 404, {"error": "Not Found", "code": 5}
        return 200, {"header": {**header, "revision": str(self.revision)}, **found}

    def _end(self, lease: str) -> None:
        del self.leases[lease]
        for key in [key for key, kept in self.kept.items() if kept.get("lease") == lease]:
            del self.kept[key]

    def _txn(self, body: Json) -> Json:
        if not all(self._holds(compare) for compare in body.get("compare", ())):
            return {}
        puts = [request["requestPut"] for request in body["success"] if "requestPut" in request]
        self.revision += bool(puts)
        for put in puts:
            created = self.kept.get(put["key"], {"create_revision": str(self.revision)})["create_revision"]
            self.kept[put["key"]] = {**put, "create_revision": created, "mod_revision": str(self.revision)}
        responses = []
        for request in body["success"]:
            if "requestRange" in request:
                kept = self.kept.get(request["requestRange"]["key"])
                responses.append({"response_range": {"kvs": [kept], "count": "1"} if kept else {}})
            else:
                responses.append({"response_put": {}})
        return {"succeeded": True, "responses": responses}

    def _holds(self, compare: Json) -> bool:
        kept = self.kept.get(compare["key"], {"create_revision": "0", "mod_revision": "0", "value": ""})
        name = {"CREATE": "create_revision", "MOD": "mod_revision", "VALUE": "value"}[compare["target"]]
        return bool(kept[name] == compare[name])


def real_etcd() -> str | None:
    """The path of an etcd, None if there is none."""
    return shutil.which("etcd")


class RealEtcd:
    """A process of etcd with one node. With `tls` clients need TLS, and a certificate of the same authority."""

    def __init__(self, place: Path, tls: Authority | None = None) -> None:
        path = real_etcd()
        assert path is not None
        client, peer = free_port(), free_port()
        self.url = f"{'https' if tls is not None else 'http'}://127.0.0.1:{client}"
        peers = f"http://127.0.0.1:{peer}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._command = [path, "--data-dir", str(place / "etcd"), "--name", "one", "--listen-client-urls", self.url]
        self._command += ["--advertise-client-urls", self.url, "--listen-peer-urls", peers]
        self._command += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"one={peers}"]
        self._command += ["--bcrypt-cost", "4"]  # a login costs nothing then
        self._context: ssl.SSLContext | None = None
        self._known: list[str] = []
        if tls is not None:
            own, admin = tls.sign("etcd", "/CN=etcd", LOOPBACK), tls.sign("admin", "/CN=admin")
            self._command += ["--cert-file", str(own.cert), "--key-file", str(own.key)]
            self._command += ["--client-cert-auth", "--trusted-ca-file", str(tls.cert)]
            self._context = ssl.create_default_context(cafile=tls.cert)
            self._context.load_cert_chain(admin.cert, admin.key)
            self._known = [f"--cacert={tls.cert}", f"--cert={admin.cert}", f"--key={admin.key}"]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log)
        wait_until(self._answers, what="etcd answers")

    def control(self, *arguments: str, user: str = "") -> str:
        """Run `etcdctl`."""
        known = [*self._known, *([f"--user={user}"] if user else [])]
        done = subprocess.run(
            ["etcdctl", f"--endpoints={self.url}", *known, *arguments],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add_users(self, name: str) -> None:
        """Let in only users: root (secret), node (node's) with the right to one cluster's keys, and other (other's) without any."""
        for user in ("root:secret", "node:node's", "other:other's"):
            self.control("user", "add", user)
        self.control("role", "add", "root")
        self.control("role", "add", "kvitto")
        self.control("role", "grant-permission", "kvitto", "readwrite", "--prefix=true", f"kvitto/{name}/")
        self.control("user", "grant-role", "root", "root")
        self.control("user", "grant-role", "node", "kvitto")
        self.control("auth", "enable")

    def _answers(self) -> bool:
        assert self.process.poll() is None, "etcd has ended"
        where = self.url.partition("://")[2]
        if self._context is not None:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                where, timeout=5, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(where, timeout=5)
        try:
            connection.request("GET", "/health")
            return b"true" in connection.getresponse().read()
        except OSError:
            return False
        finally:
            connection.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.kill()
        self._log.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
