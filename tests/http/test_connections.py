"""Connections and channels over HTTP, and closing them."""

from urllib.parse import quote

import pytest

import kvitto
from kvitto.client import Connection, ConnectionLost
from tests.http.api import Http
from tests.support.wait import wait_until


def test_a_connection_and_its_channels_are_shown(api: Http, broker: kvitto.Broker) -> None:
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.qos(9)
        channel.queue_declare("shown", durable=True)
        channel.consume("shown", consumer_tag="ctag")
        (found,) = wait_until(lambda: api.get("/api/connections"))
        assert found["name"].endswith(f"-> 127.0.0.1:{broker.port}")
        assert (found["user"], found["vhost"], found["state"], found["ssl"]) == ("guest", "/", "running", False)
        assert found["channels"] == 1 and found["recv_oct"] > 0 and found["send_oct"] > 0
        assert isinstance(found["client_properties"], dict)
        path = f"/api/connections/{quote(found['name'], safe='')}"
        assert api.get(path)["name"] == found["name"]
        (view,) = api.get("/api/channels")
        assert api.get(f"{path}/channels") == [view]
        assert (view["confirm"], view["transactional"], view["consumer_count"]) == (True, False, 1)
        assert view["connection_details"]["name"] == found["name"]
        details = api.get(f"/api/channels/{quote(view['name'], safe='')}")["consumer_details"]
        assert [(c["consumer_tag"], c["prefetch_count"]) for c in details] == [("ctag", 9)]
    wait_until(lambda: api.get("/api/connections") == [])


def test_a_single_active_consumer_and_those_that_wait(api: Http, broker: kvitto.Broker) -> None:
    """Q: as RabbitMQ 3.10 shows them."""
    path = "/api/queues/%2F/single"
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.queue_declare("single", durable=True, arguments={"x-single-active-consumer": True})
        assert api.get(path)["single_active_consumer_tag"] is None
        for tag in ("a", "b", "c"):
            channel.consume("single", consumer_tag=tag)

        def shown() -> tuple[str, list[tuple[str, bool, str]]]:
            view = api.get(path)
            assert view["consumer_details"] == [c for c in api.get("/api/consumers") if c["queue"]["name"] == "single"]
            states = [(c["consumer_tag"], c["active"], c["activity_status"]) for c in view["consumer_details"]]
            return view["single_active_consumer_tag"], states

        waiting = [("b", False, "waiting"), ("c", False, "waiting")]
        assert shown() == ("a", [("a", True, "single_active"), *waiting])
        channel.cancel("a")
        assert shown() == ("b", [("b", True, "single_active"), waiting[1]])
    assert api.delete(path) == 204


def test_a_connection_can_be_closed(api: Http, broker: kvitto.Broker) -> None:
    connection = Connection(broker.url)
    (found,) = wait_until(lambda: api.get("/api/connections"))
    path = f"/api/connections/{quote(found['name'], safe='')}"
    assert api.call("DELETE", path, headers={"X-Reason": "enough"}).status == 204
    with pytest.raises(ConnectionLost, match=r"320.*enough"):
        connection.channel()
    wait_until(lambda: api.call("GET", path).status == 404)
    assert api.delete(path) == 404


def test_others_neither_see_nor_close_a_connection(api: Http, broker: kvitto.Broker) -> None:
    api.put("/api/users/other", {"password": "secret", "tags": "management"})
    api.put("/api/permissions/%2F/other", {"configure": ".*", "write": ".*", "read": ".*"})
    other = api.as_user("other")
    with Connection(broker.url):
        (found,) = wait_until(lambda: api.get("/api/connections"))
        assert other.get("/api/connections") == other.get("/api/channels") == []
        assert other.delete(f"/api/connections/{quote(found['name'], safe='')}") == 401
        assert len(api.get("/api/connections")) == 1
