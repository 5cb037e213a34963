"""HTTP itself: limits, keep-alive, errors as JSON, and that nothing a peer sends does harm (W8)."""

import json
import re
import socket
import subprocess
import sys
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvitto
from kvitto.base.limits import DEFAULTS
from kvitto.http.server import PARTS_AT_ONCE, Listener
from kvitto.http.slices import Slices
from tests.http.api import TIMEOUT_S, Http
from tests.support.wait import wait_until


def exchange(api: Http, data: bytes, end: bool = True) -> bytes:
    """Send bytes and read until the broker closes."""
    with socket.create_connection((api.host, api.port), timeout=TIMEOUT_S) as sock:
        try:
            sock.sendall(data)
            if end:
                sock.shutdown(socket.SHUT_WR)
            got = b""
            while part := sock.recv(65536):
                got += part
        except ConnectionError:  # it closed while we were sending
            return b""
        return got


def test_a_connection_is_kept_for_more_requests(api: Http) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    missing = b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"
    got = exchange(api, one + missing + one)
    assert re.findall(rb"HTTP/1.1 \d+", got) == [b"HTTP/1.1 200", b"HTTP/1.1 404", b"HTTP/1.1 200"]


def test_head_gives_the_headers_alone(api: Http) -> None:
    answer = api.call("HEAD", "/healthz")
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "15")


def test_http_1_0_is_served_and_closed(api: Http) -> None:
    got = exchange(api, b"GET /healthz HTTP/1.0\r\n\r\n", end=False)
    assert got.startswith(b"HTTP/1.1 200") and got.endswith(b'{"status":"ok"}')


def test_what_is_not_there_is_a_404_in_json(api: Http) -> None:
    for path in ("/nothing", "/api", "/api/queues/%2F/no-such-queue", "/api/queues//x", "/api/queues/no-such-vhost"):
        answer = api.call("GET", path)
        assert answer.status == 404
        assert answer.json["error"] == "Object Not Found"


def test_a_method_that_is_not_possible_is_a_405_that_names_the_others(api: Http) -> None:
    answer = api.call("POST", "/api/overview", {})
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert answer.json["error"] == "method_not_allowed"


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"durable": "perhaps"}', b'{"arguments": 5}'])
def test_a_body_that_makes_no_sense_is_a_400(api: Http, body: bytes) -> None:
    answer = api.call("PUT", "/api/queues/%2F/nonsense", body, {"Content-Type": "application/json"})
    assert answer.status == 400
    assert answer.json["error"] in ("not_json", "bad_request")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 2 * DEFAULTS.http_head_max + b"\r\n\r\n", b"431"),
        (b"PUT /api/queues/%2F/x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nAuthorization: ", b"413"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /api/overview?" + b"a=1&" * 200 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        # two lengths: what a proxy in front takes for a body would be a request to us
        (
            b"PUT /api/vhosts/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
            b"400",
        ),
    ],
)
def test_limits_are_kept(api: Http, data: bytes, status: bytes) -> None:
    if data.endswith(b"Authorization: "):
        data += api.headers["Authorization"].encode() + b"\r\n\r\n"
    got = exchange(api, data)
    assert got.startswith(b"HTTP/1.1 " + status)
    assert set(json.loads(got.partition(b"\r\n\r\n")[2])) == {"error", "reason"}


def refused(api: Http, limit: str) -> int:
    text = api.call("GET", "/metrics").body.decode()
    found = re.search(rf'^kvitto_refused_total{{limit="{limit}"}} (\d+)$', text, re.MULTILINE)
    return int(found[1]) if found else 0


LINES = DEFAULTS.http_head_max // 8
CHUNKED = b"Host: x\r\nTransfer-Encoding: chunked\r\nAuthorization: "


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("trailers", [False, True])
def test_many_lines_of_headers_are_refused_before_they_are_parsed(api: Http, trailers: bool, ended: bool) -> None:
    """16,000 empty ones in 64 KiB held the loop for 20 ms."""
    many = b"a:\r\n" * LINES + (b"\r\n" if ended else b"")
    if trailers:
        auth = api.headers["Authorization"].encode()
        data = b"PUT /api/vhosts/lines HTTP/1.1\r\n" + CHUNKED + auth + b"\r\n\r\n2\r\n{}\r\n0\r\n" + many
    else:
        data = b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + many
    before = refused(api, "http_head")
    got = exchange(api, data, end=False)
    assert got.startswith(b"HTTP/1.1 431") and b"there are more than 200 lines of headers" in got
    assert refused(api, "http_head") == before + 1
    assert "lines" not in [vhost["name"] for vhost in api.get("/api/vhosts")]


def test_lines_of_a_body_and_of_the_next_request_are_not_those_of_a_head(api: Http) -> None:
    auth = b"Authorization: " + api.headers["Authorization"].encode() + b"\r\n"
    body = b"{" + b"\n" * 5000 + b"}"
    several = b"".join(b"a%d:\r\n" % n for n in range(90)) + auth + b"\r\n"
    put = b"PUT /api/vhosts/lines2 HTTP/1.1\r\nHost: x\r\n" + auth + b"Content-Length: %d\r\n\r\n" % len(body) + body
    got = exchange(api, put + b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + several + put)
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"201", b"200", b"204"]
    assert api.call("DELETE", "/api/vhosts/lines2").status == 204


def test_the_body_is_not_read_before_the_caller_is_known(api: Http) -> None:
    head = b"PUT /api/queues/%2F/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    got = exchange(api, head, end=False)
    assert got.startswith(b"HTTP/1.1 401")
    assert b"Connection: close" in got


@pytest.mark.parametrize("head", [b"Content-Length: 1000000", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("request_line", [b"GET /healthz", b"HEAD /healthz", b"GET /metrics", b"GET /api/overview"])
def test_reading_takes_no_body(api: Http, request_line: bytes, head: bytes) -> None:
    """W8: /healthz is open to anybody, it must not hold what anybody sends."""
    got = exchange(api, request_line + b" HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n", end=False)
    assert got.startswith(b"HTTP/1.1 400")
    assert b"Connection: close" in got
    assert request_line.startswith(b"HEAD") or b"takes no body" in got


def test_an_empty_body_is_none(api: Http) -> None:
    assert api.call("GET", "/healthz", b"", {"Content-Length": "0"}).status == 200


def test_bodies_that_are_under_way_have_a_limit_together(
    broker: kvitto.Broker, api: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W8"""
    server: Any = broker._server
    monkeypatch.setattr(server.broker, "limits", replace(server.broker.limits, http_bodies_max=100_000))
    (listener,) = (found for found in server._servers if isinstance(found, Listener))
    auth = b"Authorization: " + api.headers["Authorization"].encode()
    head = b"PUT /api/queues/%2F/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n" + auth + b"\r\n\r\n"
    with socket.create_connection((api.host, api.port), timeout=TIMEOUT_S) as slow:
        slow.sendall(head + b" " * 60_000)
        wait_until(lambda: listener.body_bytes == 60_000)
        answer = api.call("PUT", "/api/queues/%2F/other", b" " * 60_000)
        assert (answer.status, answer.json["error"]) == (503, "busy")
        assert api.call("PUT", "/api/queues/%2F/other", {}).status == 201
    wait_until(lambda: listener.body_bytes == 0)
    assert api.call("PUT", "/api/queues/%2F/other", b" " * 60_000).status in (201, 204)


def test_very_many_chunks_leave_the_loop_to_others(api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of them come in one read: without a pause between them this took a quarter of a second in one piece."""
    pauses = 0
    rest = Slices.rest

    async def counted(slices: Slices) -> None:
        nonlocal pauses
        pauses += 1
        await rest(slices)

    monkeypatch.setattr(Slices, "rest", counted)
    auth = b"Authorization: " + api.headers["Authorization"].encode()
    head = b"PUT /api/vhosts/chunks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + auth + b"\r\n"
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in b"{%s}" % (b" " * 5000))
    got = exchange(api, head + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 201") and pauses > 5000 // PARTS_AT_ONCE


def test_very_many_requests_in_one_read_leave_the_loop_to_others(api: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    """400 of them took 100 ms in one piece."""
    rest, pauses = Slices.rest, 0

    async def counted(slices: Slices) -> None:
        nonlocal pauses
        pauses += 1
        await rest(slices)

    monkeypatch.setattr(Slices, "rest", counted)
    got = exchange(api, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
    assert got.count(b"HTTP/1.1 200") == 50 and pauses >= 50


def test_a_chunk_that_is_too_large_is_refused_when_it_is_announced(api: Http) -> None:
    """A chunk of 2^76 bytes that never came was waited for until the time for a body was over."""
    auth = b"Authorization: " + api.headers["Authorization"].encode()
    head = b"PUT /api/vhosts/chunk HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + auth + b"\r\n\r\n"
    got = exchange(api, head + b"1" + b"0" * 19 + b"\r\n{", end=False)
    assert got.startswith(b"HTTP/1.1 413 ")


def test_100_continue_is_sent_to_those_who_wait_for_it(api: Http) -> None:
    auth = b"Authorization: " + api.headers["Authorization"].encode()
    head = b"PUT /api/queues/%2F/waits HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n" + auth
    with socket.create_connection((api.host, api.port), timeout=TIMEOUT_S) as sock:
        sock.sendall(head + b"\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 100")
        sock.sendall(b"{}")
        assert sock.recv(1000).startswith(b"HTTP/1.1 201")


def test_pages_from_elsewhere_cannot_write(api: Http) -> None:
    """Browsers add a remembered password to requests of any page; only "simple" ones go out unasked."""
    path, body = "/api/exchanges/%2F/amq.default/publish", b'{"routing_key": "x", "payload": "x"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert api.call("POST", path, body, {"Content-Type": kind} if kind else {}).status == 415
    assert api.call("POST", path, body, {"Content-Type": "text/plain", "X-Requested-With": "me"}).status == 200
    assert api.call("POST", path, body, {"Content-Type": "application/json; charset=utf-8"}).status == 200
    own = urlsplit(api.url).netloc
    for origin, status in ((f"http://{own}", 201), ("http://evil.example", 403), ("null", 403), ("http://[", 403)):
        headers = {"Origin": origin, "Content-Type": "application/json"}
        assert api.call("PUT", f"/api/queues/%2F/from-{status}", b"{}", headers).status == status
    assert api.call("OPTIONS", "/api/queues").headers["Allow"] == "GET, HEAD, OPTIONS"


@given(st.binary(max_size=300))
@settings(max_examples=30)
def test_any_bytes_are_answered_in_http_or_not_at_all(noise: bytes) -> None:
    """W8"""
    api = shared()
    got = exchange(api, noise)
    assert got == b"" or got.startswith(b"HTTP/1.1 ")
    assert b"Traceback" not in got
    assert api.call("GET", "/healthz").status == 200


METHODS = st.sampled_from(["GET", "PUT", "POST", "DELETE"])
PATHS = st.lists(
    st.sampled_from(["api", "queues", "exchanges", "bindings", "users", "vhosts", "permissions", "%2F", "x", "e", "q"])
    | st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=5),
    max_size=7,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    ["arguments", "durable", "type", "routing_key", "payload", "properties", "count", "tags", "password", "configure"]
)


@given(METHODS, PATHS, st.dictionaries(FIELDS, JSON, max_size=4))
@settings(max_examples=150)
def test_no_request_is_a_mistake_in_kvitto(method: str, path: list[str], body: dict[str, object]) -> None:
    """Whatever is asked: success, or what was wrong with it; never a 500."""
    answer = shared().call(method, "/api/" + "/".join(path), body)
    assert answer.status < 500
    if answer.status >= 400:
        assert answer.reason


_broker: list[kvitto.Broker] = []


def shared() -> Http:
    """Hypothesis runs many examples in one test: they share the broker that `broker_of_examples` started."""
    return Http(_broker[0].http_url)


@pytest.fixture(autouse=True, scope="module")
def broker_of_examples(broker: kvitto.Broker) -> None:
    _broker[:] = [broker]


def test_without_an_http_port_nothing_of_http_is_loaded() -> None:
    code = (
        "import sys, kvitto\n"
        "with kvitto.Broker() as broker: pass\n"
        "assert not [m for m in sys.modules if m == 'h11' or m.startswith('kvitto.http')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S)
