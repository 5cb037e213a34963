"""POST /api/definitions over the wire: JSON and forms, as a whole and item by item, and back to the byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvitto
from kvitto.client import Connection
from tests.http.api import Answer, Http
from tests.support.definitions import bound, everything, salted


@pytest.fixture
def api() -> Iterator[Http]:
    """A broker for each test: definitions are all that there is."""
    with kvitto.Broker(http_port=0) as broker:
        yield Http(broker.http_url)


def exported(api: Http, path: str = "/api/definitions") -> bytes:
    answer = api.call("GET", path)
    assert answer.status == 200
    return answer.body


def form(api: Http, body: bytes, headers: dict[str, str] | None = None, name: str = "file") -> Answer:
    """As a page with a file field, or `curl -F`."""
    parts = b'--sep\r\nContent-Disposition: form-data; name="redirect"\r\n\r\n../#/\r\n'
    parts += f'--sep\r\nContent-Disposition: form-data; name="{name}"; filename="defs.json"\r\n'.encode()
    parts += b"Content-Type: application/json\r\n\r\n" + body + b"\r\n--sep--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=sep"}
    return api.call("POST", "/api/definitions", parts, {**kind, **(headers or {})})


def test_an_export_comes_back_to_the_byte_from_an_empty_broker(api: Http) -> None:
    assert api.post("/api/definitions", everything()).status == 200
    first = exported(api)
    with kvitto.Broker(http_port=0) as other:
        there = Http(other.http_url)
        answer = there.call("POST", "/api/definitions", first, {"Content-Type": "application/json"})
        assert answer.status == 200 and answer.json["refused"] == []
        assert exported(there) == first
        assert exported(there, "/api/definitions/orders") == exported(api, "/api/definitions/orders")


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=12).filter(
    lambda name: not name.startswith("amq.")
)
ARGUMENTS = st.dictionaries(
    st.sampled_from(["x-max-length", "y", "size"]), st.integers(0, 1 << 62) | st.booleans(), max_size=2
).filter(lambda found: not isinstance(found.get("x-max-length"), bool))


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    vhosts = ["/", *draw(st.lists(NAMES.filter(lambda name: name != "/"), max_size=2, unique=True))]
    described = [
        {"name": name, "description": draw(NAMES), "default_queue_type": draw(st.sampled_from(["classic", "quorum"]))}
        for name in vhosts
    ]
    queues = {(draw(st.sampled_from(vhosts)), name) for name in draw(st.lists(NAMES, max_size=4))}
    exchanges = {(draw(st.sampled_from(vhosts)), name) for name in draw(st.lists(NAMES, max_size=4))}
    kinds = st.sampled_from(["direct", "fanout", "topic", "headers"])
    common = {"durable": True, "auto_delete": False}
    bindings = [
        bound(draw(st.sampled_from(["amq.topic", *(x for v, x in exchanges if v == vhost)])), name, draw(NAMES), vhost)
        for vhost, name in sorted(queues)
        for _ in range(draw(st.integers(0, 3)))
    ]
    users = draw(st.lists(NAMES.filter(lambda name: name != "guest"), max_size=3, unique=True))
    return {
        "vhosts": described,
        "users": [{"name": name, "password_hash": salted(name), "tags": draw(st.lists(NAMES, max_size=2))} for name in users],
        "permissions": [
            {"user": user, "vhost": vhost, "configure": "^a", "write": "", "read": ".*"} for user in users for vhost in vhosts
        ],
        "queues": [{"vhost": v, "name": n, **common, "arguments": draw(ARGUMENTS)} for v, n in sorted(queues)],
        "exchanges": [
            {"vhost": v, "name": n, "type": draw(kinds), "internal": draw(st.booleans()), **common, "arguments": {}}
            for v, n in sorted(exchanges)
        ],
        "bindings": bindings,
        "policies": [
            {"vhost": vhost, "name": name, "pattern": "^b", "definition": {"max-length": 7}, "priority": draw(st.integers(-9, 9))}
            for vhost in vhosts
            for name in draw(st.lists(NAMES, max_size=2, unique=True))
        ],
        "global_parameters": [{"name": name, "value": draw(st.lists(NAMES, max_size=2))} for name in users],
    }  # fmt: skip


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(documents())
def test_whatever_was_imported_its_export_comes_back_to_the_byte(document: dict[str, Any]) -> None:
    with kvitto.Broker(http_port=0) as one, kvitto.Broker(http_port=0) as other:
        here, there = Http(one.http_url), Http(other.http_url)
        answer = here.post("/api/definitions", document)
        assert answer.status in (200, 204), answer.body
        first = exported(here)
        assert there.call("POST", "/api/definitions", first, {"Content-Type": "application/json"}).status in (200, 204)
        assert exported(there) == first


def test_queues_of_a_vhost_with_another_default_keep_their_type(api: Http) -> None:
    api.put("/api/vhosts/v")
    api.put("/api/queues/v/old", {"durable": True})
    api.put("/api/vhosts/v", {"default_queue_type": "quorum"})
    first = exported(api)
    with kvitto.Broker(http_port=0) as other:
        there = Http(other.http_url)
        assert there.call("POST", "/api/definitions", first, {"Content-Type": "application/json"}).status == 204
        assert there.get("/api/queues/v/old")["type"] == "classic"
        assert exported(there) == first


def test_the_answer_says_what_is_refused_and_what_has_no_effect(api: Http) -> None:
    assert api.post("/api/definitions", {"vhosts": [{"name": "v"}]}).status == 204
    bad = {"queues": [{"name": "q", "vhost": "none"}], "vhosts": [{"name": "w"}]}
    answer = api.post("/api/definitions", bad)
    item = {"kind": "queue", "name": "q", "vhost": "none", "reason": "there is no vhost 'none'"}
    assert answer.status == 400 and answer.json["refused"] == [item]
    assert answer.reason == (
        "1 of 2 definitions cannot be taken: queue 'q' in vhost 'none': there is no vhost 'none'. Nothing was changed"
    )
    assert api.call("GET", "/api/vhosts/w").status == 404
    answer = api.post("/api/definitions?skip_errors=true", bad)
    assert answer.status == 200 and answer.json == {"taken": 1, "refused": [item], "without_effect": []}
    assert api.call("GET", "/api/vhosts/w").status == 200
    assert "component 'federation-upstream'" in api.post("/api/definitions", everything()).json["without_effect"]


def test_a_form_with_a_file_is_taken(api: Http) -> None:
    body = json.dumps({"vhosts": [{"name": "v\u00e9"}]}).encode()
    assert form(api, body).status == 204
    assert form(api, body, {"Origin": f"http://{api.host}:{api.port}", "Sec-Fetch-Site": "same-origin"}).status == 204
    assert api.call("GET", "/api/vhosts/v%C3%A9").status == 200
    assert form(api, body, name="other").status == 400


def test_a_form_from_a_page_of_another_origin_is_refused(api: Http) -> None:
    body = json.dumps({"vhosts": [{"name": "forged"}]}).encode()
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Referer": "http://evil.example/"},
    ):
        assert form(api, body, headers).status in (403, 415), headers
    assert api.call("GET", "/api/vhosts/forged").status == 404
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        assert api.call("POST", "/api/definitions", body, {"Content-Type": kind}).status == 415
    sent = {"Content-Type": "multipart/form-data; boundary=sep"}
    assert api.call("POST", "/api/users/bulk-delete", b"--sep--", sent).status == 415, "other routes take no forms"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "multipart/form-data"),
        (b"", "multipart/form-data; boundary=sep"),
        (b"--sep", "multipart/form-data; boundary=sep"),
        (b"--sep--", "multipart/form-data; boundary=sep"),
        (b"--sep--", 'multipart/form-data; boundary=sep; "' + ";" * 60_000),  # Python parses this for two seconds
        (
            b"--sep\r\nContent-Disposition: form-data; name*" + b"1" * 5000 + b"*=x\r\n\r\n{}"
            b"\r\n--sep\r\n\r\n{}\r\n--sep--",
            "multipart/form-data; boundary=sep",
        ),
        (b"--sep\r\n\r\n--sep--", "multipart/form-data; boundary=sep"),
        (b"--sep\r\na: b\r\n\r\n{}", "multipart/form-data; boundary=sep"),
        (b"--sep\r\n" + b"a" * 10_000 + b"\r\n\r\n{}\r\n--sep--", "multipart/form-data; boundary=sep"),
        (b"--sep\r\na: b\r\n\r\n{}\r\n" * 20 + b"--sep--", "multipart/form-data; boundary=sep"),
        (b"{}", 'multipart/form-data; boundary="\xff"'),
        (b"", "application/json"),
        (b"[]", "application/json"),
        (b"{", "application/json"),
        (b'{"queues":[],"queues":[]}', "application/json"),
        (b'{"queues":' + b"[" * 200_000, "application/json"),
    ],
)
def test_a_body_that_is_no_document_is_answered_with_400(api: Http, body: bytes, kind: str) -> None:
    answer = api.call("POST", "/api/definitions", body, {"Content-Type": kind})
    assert answer.status == 400 and answer.reason, answer.body


def test_a_document_that_is_too_large_is_answered_with_413() -> None:
    with kvitto.Broker(http_port=0, limits={"http_definitions_max": 1024}) as broker:
        api = Http(broker.http_url)
        assert api.post("/api/definitions", {"x": "y" * 2000}).status == 413
        assert api.post("/api/definitions", {"queues": [], "x": "y" * 900}).status == 204


def test_one_vhost_is_exported_and_imported_into_another(api: Http) -> None:
    api.post("/api/definitions", everything())
    api.put("/api/vhosts/copy", {"default_queue_type": "quorum"})
    document = exported(api, "/api/definitions/orders")
    answer = api.call("POST", "/api/definitions/copy", document, {"Content-Type": "application/json"})
    assert answer.status == 200 and answer.json["refused"] == []
    assert exported(api, "/api/definitions/copy") == document
    assert api.post("/api/definitions/nowhere", {}).status == 404


def test_only_an_administrator_imports(api: Http) -> None:
    api.put("/api/users/u", {"password": "secret", "tags": "management,policymaker,monitoring"})
    for path in ("/api/definitions", "/api/definitions/%2F", "/api/all-configuration"):
        assert api.as_user("u").post(path, {"vhosts": [{"name": "v"}]}).status == 401
    assert api.call("POST", "/api/all-configuration", b"{}", {"Content-Type": "application/json"}).status == 204


def test_users_log_in_with_the_passwords_of_the_other_broker_and_get_hashes_of_ours() -> None:
    hashes = {
        "rabbit_password_hashing_sha256": salted("pw"),
        "rabbit_password_hashing_sha512": salted("pw", "sha512"),
        "rabbit_password_hashing_md5": salted("pw", "md5"),
    }
    users = [
        {"name": algorithm[-6:], "password_hash": text, "hashing_algorithm": algorithm, "tags": ["management"]}
        for algorithm, text in hashes.items()
    ]
    permissions = [{"user": u["name"], "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"} for u in users]
    with kvitto.Broker(http_port=0) as broker:
        api = Http(broker.http_url)
        document = {"users": users, "permissions": permissions}
        assert api.post("/api/definitions", document).status == 204
        for user in users:
            name = str(user["name"])
            shown = api.get(f"/api/users/{name}")
            assert (shown["password_hash"], shown["hashing_algorithm"]) == (
                user["password_hash"],
                user["hashing_algorithm"],
            )
            assert api.as_user(name, "wrong").call("GET", "/api/whoami").status == 401
            assert api.get(f"/api/users/{name}")["password_hash"] == user["password_hash"]
            url = broker.url.replace("guest:guest", f"{name}:pw")
            with Connection(url):
                pass
            shown = api.get(f"/api/users/{name}")
            assert shown["hashing_algorithm"] == "kvitto_scrypt" and shown["password_hash"].startswith("scrypt:14:5:")
            assert api.as_user(name, "pw").call("GET", "/api/whoami").status == 200
            assert api.post("/api/definitions", document).status == 204
            assert api.get(f"/api/users/{name}") == shown, "the same document again does not bring the weak hash back"
        assert api.put("/api/users/sha256", {"password": "new"}) == 204
        assert api.post("/api/definitions", document).status == 204
        assert api.get("/api/users/sha256")["password_hash"] == hashes["rabbit_password_hashing_sha256"]


def test_a_user_is_made_with_a_hash(api: Http) -> None:
    body = {"password_hash": salted("pw"), "tags": "management"}
    assert api.put("/api/users/h", body) == 201 and api.put("/api/users/h", body) == 204
    assert api.as_user("h", "pw").call("GET", "/api/whoami").status == 200
    for wrong in (
        {"password_hash": "AAAA"},
        {"password_hash": salted("pw"), "hashing_algorithm": "rabbit_password_hashing_md5"},
        {"password_hash": "scrypt:1"},
        {"password_hash": salted("pw"), "password": "pw"},
        {"password_hash": 7},
    ):
        assert api.call("PUT", "/api/users/w", {"tags": "", **wrong}).status == 400
