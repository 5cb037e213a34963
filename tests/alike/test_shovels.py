"""Dynamic shovels that are set by HTTP parameters: the answers of each broker, and what arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvitto.client import Connection
from kvitto.torture.nodes import uri_for
from kvitto.wire.properties import Properties
from tests.http.api import Answer, Http
from tests.support.wait import wait_until

START_S = 30.0
"""A shovel of RabbitMQ may need its second attempt, which comes after seconds."""

Put = Callable[..., Answer]


@pytest.fixture
def port(api: Http, request: pytest.FixtureRequest) -> int:
    """The AMQP port of the broker whose API it is."""
    found: int = request.getfixturevalue(f"{request.node.callspec.params['api']}_port")
    return found


@pytest.fixture
def put(api: Http, port: int, name: str) -> Iterator[Put]:
    """Set a shovel from queue `name`.a to queue `name`.b, which is deleted behind the test. Keys have _ for -; None leaves one out."""
    path = f"/api/parameters/shovel/%2f/{name}"

    def put(**changes: Any) -> Answer:
        value = {
            "src-uri": uri_for(port),
            "dest-uri": uri_for(port),
            "src-queue": f"{name}.a",
            "dest-queue": f"{name}.b",
        }
        value |= {key.replace("_", "-"): item for key, item in changes.items()}
        return api.call("PUT", path, {"value": {key: item for key, item in value.items() if item is not None}})

    yield put
    api.call("DELETE", path)
    for queue in ("a", "b"):
        api.call("DELETE", f"/api/queues/%2f/{name}.{queue}")


def running(api: Http, name: str) -> dict[str, Any]:
    """Wait until a shovel runs, and return what the list says of it."""

    def found() -> dict[str, Any] | None:
        listed: list[dict[str, Any]] = api.get("/api/shovels/%2f")
        return next((each for each in listed if each["name"] == name and each["state"] == "running"), None)

    return wait_until(found, START_S)


def publish(port: int, queue: str, *bodies: bytes, properties: Properties | None = None) -> None:
    with Connection(uri_for(port)) as connection:
        channel = connection.channel()
        channel.confirm_select()
        for body in bodies:
            channel.publish(body, "", queue, properties or Properties(delivery_mode=2))
        assert channel.wait_for_confirms(START_S)


def arrived(port: int, queue: str, count: int) -> list[Any]:
    """Wait for so many messages, and return them."""
    got: list[Any] = []

    def all_here() -> bool:
        while (message := channel.get(queue, no_ack=True)) is not None:
            got.append(message)
        return len(got) == count

    with Connection(uri_for(port)) as connection:
        channel = connection.channel()
        wait_until(all_here, START_S)
    return got


def test_a_new_one_is_201_and_a_changed_one_204(api: Http, put: Put, name: str) -> None:
    assert [put().status, put().status] == [201, 204]
    shown = api.get(f"/api/parameters/shovel/%2f/{name}")
    assert (shown["component"], shown["vhost"], shown["name"]) == ("shovel", "/", name)
    assert shown["value"]["src-queue"] == f"{name}.a"


@pytest.mark.parametrize(
    "wrong",
    [
        {"foo": 1},
        {"dest_uri": None},
        {"src_queue": None},
        {"src_exchange": "amq.direct"},
        {"dest_exchange": "amq.direct"},
        {"ack_mode": "sometimes"},
        {"src_prefetch_count": "x"},
        {"src_delete_after": "x"},
        {"reconnect_delay": "x"},
        {"src_uri": "http//"},
        {"dest_add_forward_headers": "yes"},
        {"dest_publish_properties": {"delivery_mode": "x"}},
        {"dest_publish_properties": {"foo": 1}},
        {"dest_properties": {"delivery_mode": 2}},
    ],
    ids=str,
)
def test_what_is_wrong_is_400_and_sets_nothing(api: Http, put: Put, name: str, wrong: dict[str, Any]) -> None:
    assert put(**wrong).status == 400
    assert api.call("GET", f"/api/parameters/shovel/%2f/{name}").status == 404


def test_the_list_has_the_same_fields_without_passwords(api: Http, port: int, put: Put, name: str) -> None:
    assert put().status == 201
    shown = running(api, name)
    expected = {
        "name": name,
        "vhost": "/",
        "type": "dynamic",
        "state": "running",
        "src_protocol": "amqp091",
        "dest_protocol": "amqp091",
        "src_queue": f"{name}.a",
        "dest_queue": f"{name}.b",
    }
    assert {key: shown[key] for key in expected} == expected
    assert (
        shown["src_uri"].startswith(f"amqp://127.0.0.1:{port}/") and {"node", "timestamp", "dest_uri"} <= shown.keys()
    )


def test_unknown_ones_are_404(api: Http, put: Put, name: str) -> None:
    for method, path in (
        ("GET", f"/api/parameters/shovel/%2f/{name}"),
        ("DELETE", f"/api/parameters/shovel/%2f/{name}"),
        ("DELETE", f"/api/shovels/vhost/%2f/{name}"),
        ("DELETE", f"/api/shovels/vhost/%2f/{name}/restart"),
    ):
        assert api.call(method, path).status == 404, path


def test_it_is_restarted_and_deleted_by_its_own_path(api: Http, put: Put, name: str) -> None:
    put()
    running(api, name)
    assert api.call("DELETE", f"/api/shovels/vhost/%2f/{name}/restart").status == 204
    running(api, name)
    assert api.call("DELETE", f"/api/shovels/vhost/%2f/{name}").status == 204
    assert api.call("GET", f"/api/parameters/shovel/%2f/{name}").status == 404


def test_messages_arrive_in_order_with_what_they_have(port: int, put: Put, api: Http, name: str) -> None:
    put(src_uri="amqp://", dest_uri="amqp://")
    running(api, name)
    properties = Properties(
        content_type="a/b", headers={"x": 1 << 40, "t": {"l": [1, "2"]}}, delivery_mode=2, priority=3, correlation_id="c",
        reply_to="r", message_id="m", timestamp=5, type="t", app_id="p",
    )  # fmt: skip
    publish(port, f"{name}.a", *(b"%d" % n for n in range(100)), properties=properties)
    got = arrived(port, f"{name}.b", 100)
    assert [message.body for message in got] == [b"%d" % n for n in range(100)]
    assert all((message.exchange, message.routing_key) == ("", f"{name}.b") for message in got)
    assert got[0].properties == properties


def test_queues_that_it_declares_have_its_arguments(port: int, put: Put, api: Http, name: str) -> None:
    put(src_queue_args={"x-max-length": 5}, dest_queue_args={"x-max-length": 6})
    running(api, name)
    for queue, length in (("a", 5), ("b", 6)):
        shown = api.get(f"/api/queues/%2f/{name}.{queue}")
        assert shown["durable"] and shown["arguments"].get("x-max-length") == length


def test_headers_and_properties_that_it_adds(port: int, put: Put, api: Http, name: str) -> None:
    put(dest_add_forward_headers=True, dest_add_timestamp_header=True, dest_publish_properties={"app_id": "s"})
    running(api, name)
    publish(port, f"{name}.a", b"1", properties=Properties(delivery_mode=2, headers={"kept": 1}, priority=4))
    (message,) = arrived(port, f"{name}.b", 1)
    assert (message.properties.app_id, message.properties.priority, message.properties.headers["kept"]) == ("s", 4, 1)
    (hop,) = message.properties.headers["x-shovelled"]
    assert (hop["shovel-name"], hop["shovel-vhost"], hop["shovel-type"]) == (name, "/", "dynamic")
    assert (hop["src-queue"], hop["dest-queue"]) == (f"{name}.a", f"{name}.b")
    assert isinstance(message.properties.headers["x-shovelled-timestamp"], int)


@pytest.mark.parametrize("after", ["queue-length", 3])
def test_it_deletes_itself_behind_what_it_was_to_carry(
    port: int, put: Put, api: Http, name: str, after: object
) -> None:
    assert api.call("PUT", f"/api/queues/%2f/{name}.a", {"durable": True}).status == 201
    publish(port, f"{name}.a", b"0", b"1", b"2")
    put(src_delete_after=after)
    path = f"/api/parameters/shovel/%2f/{name}"
    wait_until(lambda: api.call("GET", path).status == 404, START_S)
    assert [message.body for message in arrived(port, f"{name}.b", 3)] == [b"0", b"1", b"2"]


def test_from_exchange_to_exchange_the_routing_key_is_the_message_s_own_or_the_given_one(
    port: int, put: Put, api: Http, name: str
) -> None:
    for key, given in (("own", None), ("given", f"{name}.given")):
        with Connection(uri_for(port)) as connection:
            channel = connection.channel()
            channel.queue_declare(f"{name}.b", durable=True)
            channel.queue_bind(f"{name}.b", "amq.topic", f"{name}.#")
            put(src_queue=None, src_exchange="amq.direct", src_exchange_key=f"{name}.own", dest_queue=None,
                dest_exchange="amq.topic", dest_exchange_key=given)  # fmt: skip
            running(api, name)
            wait_until(lambda: len(api.get("/api/exchanges/%2f/amq.direct/bindings/source")) > 0, START_S)
            channel.publish(key.encode(), "amq.direct", f"{name}.own", Properties())
        (message,) = arrived(port, f"{name}.b", 1)
        assert (message.exchange, message.routing_key) == ("amq.topic", f"{name}.{key}")
        api.call("DELETE", f"/api/parameters/shovel/%2f/{name}")
