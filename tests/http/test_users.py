"""Users, virtual hosts and permissions over HTTP: who may log in, what he sees, what he may change."""

import asyncio
import json
import socket
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

import kvitto
from kvitto.broker.administration.auth import Users
from kvitto.client import ChannelClosed, ConnectFailed, Connection, ConnectionLost
from kvitto.http.slices import Slices
from kvitto.http.vhosts import list_permissions
from tests.http.api import TIMEOUT_S, Http
from tests.support.wait import wait_until


def make_user(api: Http, name: str, tags: str, vhost: str | None = None) -> Http:
    assert api.put(f"/api/users/{name}", {"password": "secret", "tags": tags}) == 201
    if vhost is not None:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        assert api.put(f"/api/permissions/{vhost}/{name}", everything) == 201
    return api.as_user(name)


def test_whoami(api: Http) -> None:
    assert api.get("/api/whoami")["name"] == "guest"
    assert api.get("/api/whoami")["tags"] == ["administrator"]


@pytest.mark.parametrize(
    ("user", "password"), [("guest", "wrong"), ("nobody", "x"), ("", ""), ("guest", ""), ("gu\u00e9st", "\u00fc")]
)
def test_a_wrong_login_is_a_401_that_asks_for_basic(
    api: Http, user: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = api.as_user(user, password).call("GET", "/api/overview")
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"].startswith("Basic ")
    assert answer.json["error"] == "not_authorized"
    assert not user or f"127.0.0.1: login of user {user!r} refused" in caplog.text


@pytest.mark.parametrize("value", ["Basic", "Basic !!!", "Basic /w==", "Bearer abc", "Basic bm9jb2xvbg=="])
def test_a_malformed_login_is_a_401(api: Http, value: str) -> None:
    assert api.as_user("").call("GET", "/api/overview", headers={"Authorization": value}).status == 401


def test_a_new_user_can_log_in_until_deleted(api: Http, broker: kvitto.Broker) -> None:
    user = make_user(api, "carla", "management", "%2F")
    assert user.get("/api/whoami") == {"name": "carla", "tags": ["management"], "is_internal_user": True}
    url = broker.url.replace("guest:guest", "carla:secret")
    Connection(url).close()
    assert api.put("/api/users/carla", {"password": "other", "tags": "management"}) == 204
    assert user.call("GET", "/api/whoami").status == 401
    assert api.as_user("carla", "other").get("/api/whoami")["name"] == "carla"
    assert api.delete("/api/users/carla") == 204
    assert api.delete("/api/users/carla") == 404
    with pytest.raises((ConnectFailed, ConnectionLost)):
        Connection(url)


def test_deleting_a_user_closes_its_connections(api: Http, broker: kvitto.Broker) -> None:
    make_user(api, "leaver", "", "%2F")
    api.put("/api/queues/%2F/left", {})
    with Connection(broker.url) as staying, Connection(broker.url.replace("guest:guest", "leaver:secret")) as leaving:
        leaving.channel().consume("left")
        assert api.delete("/api/users/leaver") == 204
        with pytest.raises(ConnectionLost, match="user 'leaver' was deleted") as caught:
            leaving.channel()
        assert caught.value.code == 320
        staying.channel()
    assert [user["name"] for user in api.get("/api/users") if user["name"] == "leaver"] == []


def test_a_user_with_a_long_name_is_deleted_with_its_connections(api: Http, broker: kvitto.Broker) -> None:
    name = quote("\u00e9" * 127)
    make_user(api, name, "", "%2F")
    with Connection(broker.url.replace("guest:guest", f"{name}:secret")) as connection:
        assert api.delete(f"/api/users/{name}") == 204
        with pytest.raises(ConnectionLost, match="CONNECTION_FORCED"):
            connection.channel()


def test_clearing_a_permission_closes_no_connection(api: Http, broker: kvitto.Broker) -> None:
    make_user(api, "narrowed", "", "%2F")
    with Connection(broker.url.replace("guest:guest", "narrowed:secret")) as connection:
        assert api.delete("/api/permissions/%2F/narrowed") == 204
        with pytest.raises(ChannelClosed, match="refused for user 'narrowed'"):
            connection.channel().queue_declare("mine")
        connection.channel()


def test_tags_can_be_changed_without_the_password(api: Http) -> None:
    user = make_user(api, "tagged", "")
    assert user.call("GET", "/api/whoami").status == 401
    assert api.put("/api/users/tagged", {"tags": ["monitoring", "management"]}) == 204
    assert user.get("/api/whoami")["tags"] == ["monitoring", "management"]


def test_a_user_survives_a_restart(tmp_path: str) -> None:
    """D2"""
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        make_user(Http(broker.http_url), "stays", "administrator", "%2F")
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        assert Http(broker.http_url, "stays", "secret").get("/api/queues/%2F") == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"tags": ""}, "password is missing"),
        ({"password": "", "tags": ""}, "empty"),
        ({"password": "x"}, "tags must be given"),
        ({"password": "x", "tags": [1]}, "tags"),
        ({"password_hash": "abc", "tags": ""}, "password_hash"),
        ({"password": "\ud800", "tags": ""}, "password is not UTF-8"),
        ({"password": "x" * 5000, "tags": ""}, "at most 4096"),
    ],
)
def test_an_incomplete_user_is_refused(api: Http, body: dict[str, object], reason: str) -> None:
    answer = api.call("PUT", "/api/users/incomplete", body)
    assert answer.status == 400
    assert reason in answer.reason


def test_only_administrators_change_users_vhosts_and_permissions(api: Http) -> None:
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    for tag in ("management", "monitoring"):
        user = make_user(api, f"no-admin-{tag}", tag, "%2F")
        for answer in (
            user.call("GET", "/api/users"),
            user.call("GET", "/api/permissions"),
            user.call("GET", "/api/definitions"),
            user.call("PUT", f"/api/users/no-admin-{tag}", {"password": "x", "tags": "administrator"}),
            user.call("PUT", "/api/vhosts/theirs", {}),
            user.call("DELETE", "/api/vhosts/%2F"),
            user.call("PUT", f"/api/permissions/%2F/no-admin-{tag}", everything),
            user.call("DELETE", "/api/users/guest"),
        ):
            assert answer.status == 401
            assert "has none of the tags administrator" in answer.reason
    assert "theirs" not in {vhost["name"] for vhost in api.get("/api/vhosts")}


def test_other_users_see_only_the_vhosts_that_they_may_open(api: Http) -> None:
    for vhost in ("red", "blue"):
        assert api.put(f"/api/vhosts/{vhost}") == 201
        make_user(api, f"{vhost}-user", "management", vhost)
        assert api.as_user(f"{vhost}-user").put(f"/api/queues/{vhost}/in-{vhost}", {}) == 201
    red = api.as_user("red-user")
    assert [vhost["name"] for vhost in red.get("/api/vhosts")] == ["red"]
    assert [queue["name"] for queue in red.get("/api/queues")] == ["in-red"]
    assert {binding["vhost"] for binding in red.get("/api/bindings")} == {"red"}
    overview = red.get("/api/overview")
    assert overview["object_totals"]["queues"] == 1
    assert overview["listeners"] == overview["contexts"] == [] and not {"pid", "data_dir"} & overview["kvitto"].keys()
    assert red.call("GET", "/api/queues/blue").status == 401
    assert red.call("GET", "/api/queues/blue/in-blue").status == 401
    assert red.put("/api/queues/blue/mine") == 401
    watcher = make_user(api, "watcher", "monitoring")
    assert {"/", "red", "blue"} <= {vhost["name"] for vhost in watcher.get("/api/vhosts")}
    assert watcher.put("/api/queues/red/mine") == 401


def test_permissions_hold_for_queues_exchanges_and_messages(api: Http) -> None:
    user = make_user(api, "narrow", "management")
    narrow = {"configure": "^own-", "write": "^own-", "read": "^own-"}
    assert api.put("/api/permissions/%2F/narrow", narrow) == 201
    assert api.get("/api/permissions/%2F/narrow") == {"user": "narrow", "vhost": "/", **narrow}
    assert user.put("/api/queues/%2F/own-q", {}) == 201
    api.put("/api/queues/%2F/foreign-q", {})
    for answer in (
        user.call("PUT", "/api/queues/%2F/other-q", {}),
        user.call("DELETE", "/api/queues/%2F/foreign-q"),
        user.call("DELETE", "/api/queues/%2F/foreign-q/contents"),
        user.post("/api/queues/%2F/foreign-q/get", {"count": 1}),
        user.post("/api/bindings/%2F/e/amq.topic/q/own-q", {"routing_key": "x"}),
        user.post("/api/exchanges/%2F/amq.topic/publish", {"routing_key": "x", "payload": "x"}),
        user.call("PUT", "/api/queues/%2F/own-dead", {"arguments": {"x-dead-letter-exchange": "amq.topic"}}),
    ):
        assert answer.status == 401
        assert "refused for user 'narrow'" in answer.reason
    assert api.delete("/api/permissions/%2F/narrow") == 204
    assert api.delete("/api/permissions/%2F/narrow") == 404
    assert user.call("PUT", "/api/queues/%2F/own-q", {}).status == 401


def test_a_permission_must_be_a_regular_expression_for_a_user_and_vhost_that_exist(api: Http) -> None:
    body = {"configure": "(", "write": "", "read": ""}
    for expression, reason in (
        ("(", "cannot be a pattern"),
        ("a{1001}", "invalid repetition size"),
        ("a" * 100_000, "at most 8192 bytes"),
        ("a(?!b)", "a lookahead is possible only at the start"),
        ("\ud800", "not UTF-8"),
    ):
        answer = api.call("PUT", "/api/permissions/%2F/guest", {**body, "configure": expression})
        assert answer.status == 400 and reason in answer.reason
    assert api.put("/api/permissions/%2F/no-such", {**body, "configure": ""}) == 404
    assert api.put("/api/permissions/no-such/guest", {**body, "configure": ""}) == 404
    assert api.put("/api/permissions/%2F/guest", {"configure": ""}) == 400


def test_deleting_a_vhost_closes_its_connections(api: Http, broker: kvitto.Broker) -> None:
    assert api.put("/api/vhosts/going") == 201
    assert api.put("/api/vhosts/going") == 204
    connection = Connection(broker.url.replace("%2f", "going"))
    connection.channel().queue_declare("inside", durable=True)
    assert [queue["name"] for queue in api.get("/api/queues/going")] == ["inside"]
    assert api.delete("/api/vhosts/going") == 204
    assert api.call("GET", "/api/queues/going").status == 404
    with pytest.raises(ConnectionLost):
        connection.channel()
    wait_until(lambda: "going" not in {c["vhost"] for c in api.get("/api/connections")})


def test_the_last_vhost_stays() -> None:
    with kvitto.Broker(http_port=0) as broker:
        assert Http(broker.http_url).delete("/api/vhosts/%2F") == 400


def test_a_user_who_is_deleted_while_the_body_comes_changes_nothing(api: Http) -> None:
    """The login was checked before the body came: an administrator who had been deleted made another one."""
    api.put("/api/users/leaving", {"password": "secret", "tags": "administrator"})
    leaving = api.as_user("leaving")
    assert leaving.get("/api/whoami")["name"] == "leaving"
    body = b'{"password": "secret", "tags": "administrator"}'
    head = f"PUT /api/users/successor HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n"
    with socket.create_connection((api.host, api.port), TIMEOUT_S) as connection:
        connection.sendall(f"{head}Authorization: {leaving.headers['Authorization']}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100"), "the login has been checked"
        assert api.delete("/api/users/leaving") == 204
        connection.sendall(body)
        assert connection.recv(100).startswith(b"HTTP/1.1 401")
    assert api.call("GET", "/api/users/successor").status == 404


def test_a_permission_that_goes_while_all_are_listed_does_not_break_the_answer() -> None:
    """It was looked up again when it was shown."""
    users = Users(lambda kind, key, value: None)
    user = users.add("a", None)
    for vhost in ("x", "y", "z"):
        users.set_permission("a", vhost, "", "", ".*")
    seen: list[str] = []

    class Going(Slices):
        async def rest(self) -> None:
            seen.append("rest")
            users.clear_permission("a", "z")

    broker = SimpleNamespace(users=users)
    request = SimpleNamespace(query={"sort": "vhost"})
    call: Any = SimpleNamespace(request=request, api=SimpleNamespace(slices=Going(), broker=broker))

    async def ask() -> Any:
        response = await list_permissions(call)
        assert response.pieces is not None
        return json.loads(b"".join([piece async for piece in response.pieces]))

    assert [each["vhost"] for each in asyncio.run(ask())] == ["x", "y", "z"] and seen
    assert [*user.permissions] == ["x", "y"]


def test_no_password_is_logged(api: Http, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "kvitto.http")
    assert api.get("/api/auth/hash_password/hushhush")["ok"].startswith("scrypt:")
    assert api.call("PUT", "/api/users/logged", {"password": "hushhush", "tags": ""}).status == 201
    wait_until(lambda: "PUT /api/users/logged" in caplog.text)
    assert "GET /api/auth/hash_password/...: 200" in caplog.text and "hushhush" not in caplog.text
