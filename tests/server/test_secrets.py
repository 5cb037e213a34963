"""W7: passwords appear nowhere but where they are typed. All that can go wrong goes wrong, and then what was said is searched."""

from __future__ import annotations

import base64
import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

import kvitto
from kvitto.client import AMQPError, Connection
from kvitto.wire import methods as m
from kvitto.wire import tables
from kvitto.wire.methods import frame
from kvitto.wire.spec import FRAME_METHOD, PROTOCOL_HEADER
from tests.cli.process import kvitto as command
from tests.cli.process import serving
from tests.http.api import Http
from tests.protocol.raw import Raw

SECRET = "hunter2-s3cr3t"
FORMS = [
    SECRET,
    SECRET.encode().hex(),
    *(base64.b64encode(b" " * n + SECRET.encode())[4:-4].decode() for n in range(3)),
]
"""As it is, and as basic auth or a dump would show it, whatever stands before it."""
RESPONSES: list[tuple[str, bytes]] = [
    ("PLAIN", b"\0ada\0" + SECRET.encode() + b"-wrong"),
    ("PLAIN", b"\0nobody\0" + SECRET.encode()),
    ("PLAIN", SECRET.encode()),
    ("PLAIN", b"\0ada\0x\0" + SECRET.encode()),
    ("AMQPLAIN", tables.encode({"LOGIN": "ada", "PASSWORD": SECRET + "-wrong"})[4:]),
    ("AMQPLAIN", tables.encode({"LOGIN": "ada", "PASS": SECRET})[4:]),
    ("AMQPLAIN", b"\x05LOGINS\xff\xff\xff\xff" + SECRET.encode()),
    ("EXTERNAL", SECRET.encode()),
    ("SCRAM", SECRET.encode()),
]


def searched(*said: Any) -> list[str]:
    """Forms of the secret in what was said."""
    text = "\n".join(x.decode("latin-1") if isinstance(x, bytes) else str(x) for x in said)
    return [form for form in FORMS if form in text]


def talk(port: int, *parts: bytes) -> bytes:
    """All that the broker answers until it closes, or waits for more."""
    got = b""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(b"".join(parts))
        sock.shutdown(socket.SHUT_WR)
        while part := sock.recv(65536):
            got += part
    return got


def start_ok(mechanism: str, response: bytes) -> bytes:
    able: dict[str, Any] = {"capabilities": {"authentication_failure_close": True}}
    return frame(FRAME_METHOD, 0, m.ConnectionStartOk(able, mechanism, response, "en_US").encode())


def all_that_fails_over_amqp(port: int) -> list[bytes]:
    said = []
    for mechanism, response in RESPONSES:
        with Raw(port, login=False) as raw:
            raw.send(PROTOCOL_HEADER)
            raw.expect(m.ConnectionStart)
            raw.send(start_ok(mechanism, response))
            close = raw.expect(m.ConnectionClose)
            said.append(close.encode())
    whole = start_ok(*RESPONSES[0])
    said.append(talk(port, PROTOCOL_HEADER, whole[:-1] + b"\0"))  # a wrong frame end
    said.append(talk(port, PROTOCOL_HEADER, whole[:40]))
    said.append(talk(port, PROTOCOL_HEADER, frame(FRAME_METHOD, 0, whole[7:40] + SECRET.encode())))
    said.append(talk(port, PROTOCOL_HEADER, frame(2, 0, SECRET.encode())))
    said.append(talk(port, b"GET /?password=" + SECRET.encode()))
    with Raw(port, user="ada", password=SECRET) as raw:
        raw.call(0, m.ConnectionUpdateSecret(SECRET.encode(), SECRET), m.ConnectionUpdateSecretOk)
        raw.put(0, m.ConnectionSecureOk(SECRET.encode()))
        said.append(raw.expect(m.ConnectionClose).encode())
    return said


def all_that_fails_over_http(api: Http) -> list[bytes]:
    basic = base64.b64encode(f"ada:{SECRET}".encode()).decode()
    said = []

    def ask(method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, user: Http = api) -> None:
        answer = user.call(method, path, body, headers)
        said.extend([answer.body, str(answer.headers).encode(), str(answer.status).encode()])

    ask("GET", "/api/whoami", user=api.as_user("ada", SECRET + "-wrong"))
    ask("GET", "/api/whoami", user=api.as_user("nobody", SECRET))
    ask("GET", "/api/users", user=api.as_user("ada", SECRET))
    for value in (f"Bearer {SECRET}", f"Basic {SECRET}", f"Basic {basic}=x", f"Digest {basic}", SECRET):
        ask("GET", "/api/whoami", None, {"Authorization": value})
    for body in ({"password": [SECRET], "tags": ""}, {"password": SECRET}, {"tags": SECRET, "password": {"x": SECRET}}):
        ask("PUT", "/api/users/new", body)
    ask("PUT", "/api/users/new", b'{"password": "' + SECRET.encode(), {"Content-Type": "application/json"})
    ask("PUT", "/api/users/new", {"password_hash": SECRET, "tags": ""})
    ask("PUT", "/api/users/ada", {"password": SECRET, "password_hash": ""})
    ask("PUT", "/api/users/ada", {"password": SECRET, "tags": "management"})
    ask("GET", "/api/users/ada")
    ask("GET", "/api/definitions")
    ask("GET", "/api/connections")
    ask("GET", "/metrics")
    ask("GET", f"/nowhere?password={SECRET}")
    for request in (f"GET http://ada:{SECRET}@x/api/users HTTP/1.1\r\nHost: x\r\n\r\n", f"{SECRET}\r\n\r\n"):
        said.append(talk(api.port, request.encode()))
    return said


def test_passwords_are_in_no_log_no_answer_and_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All loggers at their most talkative; an internal error with the password at hand too."""
    caplog.set_level(logging.DEBUG)
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        assert broker._server is not None
        users = broker._server.broker.users
        users.cost = 4
        api = Http(broker.http_url)
        assert api.put("/api/users/ada", {"password": SECRET, "tags": "management"}) == 201
        assert api.put("/api/permissions/%2F/ada", {"configure": "", "write": "", "read": ""}) == 201
        said = [*all_that_fails_over_amqp(broker.port), *all_that_fails_over_http(api)]

        def broken(password: str) -> str:
            raise RuntimeError("no hash today")

        users.hash = broken  # type: ignore[method-assign]
        failed = api.call("PUT", "/api/users/ada", {"password": SECRET, "tags": ""})
        assert failed.status == 500 and b"no hash" not in failed.body
        said.append(failed.body)
        assert b"scrypt:4:" in b"".join(said), "the export has hashes, to administrators"
    assert "no hash today" in caplog.text and "login of user 'ada' refused" in caplog.text
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"scrypt:4:" in content for content in kept)
    assert searched(caplog.text, *said, *kept) == []
    assert searched(SECRET) and searched(base64.b64encode(f"ada:{SECRET}".encode())), "the search would find it"


@pytest.mark.slow
def test_passwords_are_in_no_line_of_a_process(tmp_path: Path) -> None:
    """The broker's JSON log, and what commands say that were given them in URIs that fail."""
    wrong = f"ada:{SECRET}"
    with serving(tmp_path / "data", "--log-json") as server:
        amqp, http = server.ready["amqp"], server.ready["http"]
        said = [
            command("ctl", "--url", f"http://{wrong}@127.0.0.1:{http}", "status"),
            command("ctl", "--url", f"http://{wrong}@127.0.0.1:nope", "status"),
            command("perf", "throughput", "--uri", f"amqp://{wrong}@127.0.0.1:{amqp}/%2f"),
            command("perf", "throughput", "--uri", f"amqp://{wrong}/@127.0.0.1:{amqp}/%2f"),
        ]
        assert all(done.returncode for done in said)
        for uri in (f"amqp://{wrong}@127.0.0.1:{amqp}/%2f", f"amqp://{wrong}#@127.0.0.1/"):
            with pytest.raises((AMQPError, ValueError)) as caught:
                Connection(uri)
            assert searched(caught.value, repr(caught.value)) == []
        _, out, err = server.stop()
    assert [line for line in err.splitlines() if "refused" in json.loads(line)["message"]]
    assert searched(out, err, *(done.stdout + done.stderr for done in said)) == []


def test_the_data_directory_is_its_users_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """0700 and 0600, whatever the umask; a directory that others can look into is said."""
    with kvitto.Broker(tmp_path / "data") as broker, Connection(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.queue_declare("q", durable=True)
        channel.publish(b"x", routing_key="q")
        channel.wait_for_confirms(10)
        channel.get("q", no_ack=True)
        for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
        assert "other users" not in caplog.text
    (tmp_path / "data").chmod(0o755)
    with kvitto.Broker(tmp_path / "data"):
        assert f"{tmp_path / 'data'} can be read by other users of this machine" in caplog.text
