"""Virtual hosts over HTTP: what describes them is kept, and who creates one may use it."""

import pathlib

import pytest

import kvitto
from kvitto.client import Connection
from tests.http.api import Http
from tests.http.test_users import make_user


def described(found: dict[str, object]) -> tuple[object, ...]:
    return tuple(found[name] for name in ("description", "tags", "default_queue_type", "tracing"))


GIVEN = {"description": "orders of Lund", "tags": "red, blue", "default_queue_type": "quorum", "tracing": True}


def test_what_describes_a_vhost_is_kept_over_a_restart_and_exported(tmp_path: pathlib.Path) -> None:
    kept = ("orders of Lund", ["red", "blue"], "quorum", True)
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        api = Http(broker.http_url)
        assert api.put("/api/vhosts/kept", GIVEN) == 201
        assert described(api.get("/api/vhosts/kept")) == kept
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        api = Http(broker.http_url)
        assert described(api.get("/api/vhosts/kept")) == kept
        exported = {vhost["name"]: vhost for vhost in api.get("/api/definitions")["vhosts"]}
        assert described(exported["kept"]) == kept
        assert described(exported["/"]) == ("", [], "classic", False)


def test_describing_a_vhost_anew_leaves_its_queue_type_and_tracing_as_with_rabbitmq(api: Http) -> None:
    assert api.put("/api/vhosts/anew", GIVEN) == 201
    assert api.put("/api/vhosts/anew", {"description": "other"}) == 204
    assert described(api.get("/api/vhosts/anew")) == ("other", [], "quorum", True)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"default_queue_type": "fast"}, "classic, quorum, stream"),
        ({"description": 7}, "description"),
        ({"tags": [1]}, "tags"),
        ({"tracing": "maybe"}, "tracing"),
    ],
)
def test_a_vhost_that_is_described_wrongly_is_not_made(api: Http, wrong: dict[str, object], word: str) -> None:
    answer = api.call("PUT", "/api/vhosts/wrong", wrong)
    assert (answer.status, word in answer.reason) == (400, True)
    assert api.call("GET", "/api/vhosts/wrong").status == 404


def test_who_creates_a_vhost_may_do_everything_in_it(api: Http, broker: kvitto.Broker) -> None:
    creator = make_user(api, "creator", "administrator")
    assert creator.put("/api/vhosts/created") == 201
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert creator.get("/api/vhosts/created/permissions") == [{"user": "creator", "vhost": "created", **everything}]
    with Connection(broker.url.replace("guest:guest", "creator:secret").replace("%2f", "created")) as connection:
        connection.channel().queue_declare("mine")
    other = make_user(api, "no-creator", "administrator")
    assert other.put("/api/vhosts/created") == 204
    assert [found["user"] for found in api.get("/api/vhosts/created/permissions")] == ["creator"]


def test_nothing_is_made_in_a_vhost_that_is_being_deleted(api: Http, broker: kvitto.Broker) -> None:
    """Connections cannot open it any more; what HTTP made in it could be left behind in the definitions."""
    assert api.put("/api/vhosts/going") == 201
    assert broker._server is not None
    broker._server.broker.vhosts["going"].deleting = True
    for path, body in (
        ("queues/going/q", {"durable": True}),
        ("exchanges/going/x", {"type": "direct", "durable": True}),
        ("policies/going/p", {"pattern": "", "definition": {"max-length": 1}}),
        ("parameters/shovel/going/s", {"value": {}}),
    ):
        answer = api.call("PUT", f"/api/{path}", body)
        assert answer.status == 400 and answer.reason == "vhost 'going' is being deleted", path
    assert api.call("POST", "/api/vhosts/going/deletion/protection", {}).reason == "vhost 'going' is being deleted"
    assert api.call("GET", "/api/definitions/going").reason == "vhost 'going' is being deleted"
    broker._server.broker.vhosts["going"].deleting = False
    assert api.delete("/api/vhosts/going") == 204


def test_the_export_leaves_out_a_vhost_that_is_being_deleted(api: Http, broker: kvitto.Broker) -> None:
    """An import of the document would make it again, with some of what it had."""
    assert api.put("/api/vhosts/leaving") == 201
    permission = {"exchange": "amq.topic", "write": ".*", "read": ".*"}
    assert api.put("/api/topic-permissions/leaving/guest", permission) == 201
    assert api.put("/api/queues/leaving/q", {"durable": True}) == 201
    exported = str(api.get("/api/definitions"))
    assert exported.count("'leaving'") == 4
    assert broker._server is not None
    broker._server.broker.vhosts["leaving"].deleting = True
    assert "leaving" not in str(api.get("/api/definitions"))
    broker._server.broker.vhosts["leaving"].deleting = False
    assert api.delete("/api/vhosts/leaving") == 204
