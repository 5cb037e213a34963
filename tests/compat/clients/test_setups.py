"""What MassTransit, NServiceBus, Spring AMQP, Dramatiq and FastStream set up, how they publish and consume, and what KEDA asks.

Their sources say in which order and with which arguments; most of them are not Python, so these scripts do the same with pika.
"""

import asyncio
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import HTTPBasicAuthHandler, HTTPPasswordMgrWithDefaultRealm, Request, build_opener

import pika
import pytest
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitQueue

Channel = Any
TIMEOUT_S = 30.0


@contextmanager
def channels(url: str) -> Iterator[Callable[[], Channel]]:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        yield connection.channel


def next_message(channel: Channel, queue: str, *, ack: bool = True) -> tuple[Any, Any, bytes]:
    """The next message of a queue, by a consumer."""
    for method, properties, body in channel.consume(queue, inactivity_timeout=TIMEOUT_S):
        assert method is not None, f"nothing came from {queue}"
        if ack:
            channel.basic_ack(method.delivery_tag)
        channel.cancel()
        return method, properties, body
    raise AssertionError


def api(method: str, path: str, body: Any = None) -> Any:
    """Ask the management API."""
    parts = urlsplit(os.environ["COMPAT_HTTP"])
    base = f"{parts.scheme}://{parts.hostname}:{parts.port}"
    passwords = HTTPPasswordMgrWithDefaultRealm()
    passwords.add_password(None, base, parts.username or "guest", parts.password or "guest")
    data = None if body is None else json.dumps(body).encode()
    request = Request(base + path, data, {"Content-Type": "application/json"}, method=method)
    with build_opener(HTTPBasicAuthHandler(passwords)).open(request, timeout=TIMEOUT_S) as response:
        text = response.read()
    return json.loads(text) if text else None


# -- MassTransit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_masstransit_publishes_by_type_and_moves_faults(url: str, name: str, kind: str) -> None:
    """Queues before exchanges; an exchange for each type of message, bound to the endpoint's exchange, which is bound to its queue."""
    arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3} if kind == "quorum" else {}
    message, base = f"{name}:OrderSubmitted", f"{name}:IOrder"
    with channels(url) as channel_of:
        setup = channel_of()
        for _ in range(2):  # each instance of the service does
            setup.queue_declare(name, durable=True, arguments=arguments)
            for exchange in (name, message, base):
                setup.exchange_declare(exchange, "fanout", durable=True)
            setup.queue_bind(name, name, "")
            setup.exchange_bind(base, message, "")
            setup.exchange_bind(name, base, "")
        publisher = channel_of()
        publisher.confirm_delivery()
        sent = pika.BasicProperties(
            content_type="application/vnd.masstransit+json",
            delivery_mode=2,
            message_id=str(uuid.uuid4()),
            correlation_id=str(uuid.uuid4()),
            headers={"MT-Activity-Id": "00-0-0-00", "publishId": "1"},
        )
        publisher.basic_publish(message, "", b"{}", sent)
        consumer = channel_of()
        consumer.basic_qos(prefetch_count=16)
        _, got, _ = next_message(consumer, name)
        assert (got.message_id, got.content_type) == (sent.message_id, sent.content_type)
        for suffix in ("_error", "_skipped"):  # made when the first message fails
            setup.queue_declare(name + suffix, durable=True, arguments=arguments)
            setup.exchange_declare(name + suffix, "fanout", durable=True)
            setup.queue_bind(name + suffix, name + suffix, "")
        got.headers |= {"MT-Reason": "fault", "MT-Fault-Message": "it failed", "MT-Fault-Timestamp": "now"}
        publisher.basic_publish(name + "_error", "", b"{}", got, mandatory=True)
        _, failed, _ = next_message(consumer, name + "_error")
        assert failed.headers["MT-Reason"] == "fault" and failed.message_id == sent.message_id


def test_masstransits_request_client_is_answered(url: str, name: str) -> None:
    """The bus has a queue of its own that goes with it, and responses are sent to its exchange."""
    bus = f"{name}_bus_{uuid.uuid4().hex[:8]}"
    with channels(url) as channel_of:
        client, service = channel_of(), channel_of()
        client.queue_declare(bus, durable=False, auto_delete=True, arguments={"x-expires": 60_000})
        client.exchange_declare(bus, "fanout", durable=False, auto_delete=True)
        client.queue_bind(bus, bus, "")
        service.queue_declare(name, durable=True)
        service.exchange_declare(name, "fanout", durable=True)
        service.queue_bind(name, name, "")
        client.basic_publish(name, "", b"?", pika.BasicProperties(headers={"MT-Request": bus}), mandatory=True)
        _, request, _ = next_message(service, name)
        service.exchange_declare(bus, "fanout", durable=False, auto_delete=True)
        service.basic_publish(request.headers["MT-Request"], "", b"!", mandatory=True)
        assert next_message(client, bus)[2] == b"!"


# -- NServiceBus ---------------------------------------------------------------------------------------------


def test_nservicebus_checks_the_broker_and_sets_its_policy(url: str, name: str) -> None:
    """It asks for the version, the feature flag of streams and the queue's delivery limit, and then removes that by a policy."""
    version = tuple(int(part) for part in api("GET", "/api/overview")["rabbitmq_version"].split(".")[:2])
    assert version >= (3, 10)
    flags = {flag["name"]: flag["state"] for flag in api("GET", "/api/feature-flags")}
    assert flags["stream_queue"] == "enabled"
    with channels(url) as channel_of:
        channel_of().queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
    path = f"/api/queues/%2F/{quote(name, safe='')}"
    queue = api("GET", path)
    assert queue["arguments"]["x-queue-type"] == "quorum" and not queue.get("policy")
    assert "effective_policy_definition" in queue and queue["name"] == name
    policy = {
        "name": f"nsb.{name}.delivery-limit",
        "vhost": "/",
        "pattern": name,
        "apply-to": "quorum_queues",
        "definition": {"delivery-limit": -1},
        "priority": 100,
    }
    api("PUT", f"/api/policies/%2F/{quote(str(policy['name']), safe='')}", policy)
    try:
        end = time.monotonic() + TIMEOUT_S
        while api("GET", path).get("policy") != policy["name"]:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert api("GET", path)["effective_policy_definition"]["delivery-limit"] == -1
    finally:
        api("DELETE", f"/api/policies/%2F/{quote(str(policy['name']), safe='')}")


def test_nservicebus_subscribes_by_type_and_returns_what_nobody_gets(url: str, name: str) -> None:
    with channels(url) as channel_of:
        setup, publisher, consumer = channel_of(), channel_of(), channel_of()
        setup.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
        for exchange in (name, f"{name}:Event", f"{name}:Base"):
            setup.exchange_declare(exchange, "fanout", durable=True)
        setup.queue_bind(name, name, "")
        setup.exchange_bind(f"{name}:Base", f"{name}:Event", "")
        setup.exchange_bind(name, f"{name}:Base", "")
        publisher.confirm_delivery()
        headers = {"NServiceBus.EnclosedMessageTypes": "Event", "NServiceBus.Transport.RabbitMQ.ConfirmationId": "1"}
        properties = pika.BasicProperties(message_id="1", delivery_mode=2, headers=headers)
        publisher.basic_publish(f"{name}:Event", "", b"event", properties)
        consumer.basic_qos(prefetch_count=24)
        method, _, body = next_message(consumer, name, ack=False)
        consumer.basic_reject(method.delivery_tag, requeue=True)
        method, got, again = next_message(consumer, name)
        assert body == again == b"event" and method.redelivered and got.headers["x-delivery-count"] == 1
        with pytest.raises(pika.exceptions.UnroutableError):
            publisher.basic_publish("", name + ".nobody", b"command", properties, mandatory=True)


# -- Spring AMQP ---------------------------------------------------------------------------------------------


def test_spring_listens_and_publishes_with_confirms_and_returns(url: str, name: str) -> None:
    with channels(url) as channel_of:
        admin, template, listener = channel_of(), channel_of(), channel_of()
        admin.exchange_declare(f"{name}.dlx", "direct", durable=True)
        admin.exchange_declare(name, "topic", durable=True, arguments={})
        dead = {"x-dead-letter-exchange": f"{name}.dlx", "x-dead-letter-routing-key": "dead"}
        admin.queue_declare(name, durable=True, arguments=dead)
        admin.queue_declare(f"{name}.dlq", durable=True)
        admin.queue_bind(name, name, "order.#")
        admin.queue_bind(f"{name}.dlq", f"{name}.dlx", "dead")
        template.confirm_delivery()
        headers = {
            "__TypeId__": "com.example.Order",
            "spring_listener_return_correlation": "a",
            "list": [1, {"a": "b"}],
        }
        properties = pika.BasicProperties("application/json", "UTF-8", headers, 2, 0)
        template.basic_publish(name, "order.new", b"{}", properties, mandatory=True)
        with pytest.raises(pika.exceptions.UnroutableError):
            template.basic_publish(name, "nobody", b"{}", properties, mandatory=True)
        listener.queue_declare(name, passive=True)  # the container checks its queues first
        listener.basic_qos(prefetch_count=250)
        method, got, _ = next_message(listener, name, ack=False)
        assert got.headers == headers and got.content_encoding == "UTF-8"
        listener.basic_reject(method.delivery_tag, requeue=False)  # after its own retries
        _, failed, _ = next_message(listener, f"{name}.dlq")
        [death] = failed.headers["x-death"]
        assert (death["queue"], death["reason"], death["count"]) == (name, "rejected", 1)


def test_springs_anonymous_queue_and_hash_exchange(url: str, name: str) -> None:
    with channels(url) as channel_of:
        channel = channel_of()
        generated = "spring.gen-" + uuid.uuid4().hex[:22]
        arguments = {"x-queue-master-locator": "client-local"}
        channel.queue_declare(generated, exclusive=True, auto_delete=True, arguments=arguments)
        channel.exchange_declare(name, "x-consistent-hash", durable=True, arguments={"hash-header": "customer"})
        for n in range(3):
            channel.queue_declare(f"{name}.{n}", durable=True, arguments={"x-single-active-consumer": True})
            channel.queue_bind(f"{name}.{n}", name, str(n + 1))
        channel.confirm_delivery()
        for i in range(120):
            channel.basic_publish(name, "", b"%d" % (i % 40), pika.BasicProperties(headers={"customer": str(i % 40)}))
        places: dict[bytes, set[int]] = {}
        for n in range(3):
            while (found := channel.basic_get(f"{name}.{n}", auto_ack=True))[0] is not None:
                places.setdefault(found[2], set()).add(n)
        assert len(places) == 40 and all(len(place) == 1 for place in places.values())
        assert len({n for place in places.values() for n in place}) == 3


# -- Dramatiq ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priorities", [None, 10])
def test_dramatiqs_three_queues(url: str, name: str, priorities: int | None) -> None:
    """Messages with a delay wait at the worker, in a queue of their own; rejected ones go to the third queue for a week."""
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.XQ"}
    if priorities:
        arguments["x-max-priority"] = priorities
    with channels(url) as channel_of:
        channel = channel_of()

        def declare() -> list[int]:
            found = [channel.queue_declare(q, durable=True, arguments=arguments) for q in (name, f"{name}.DQ")]
            found.append(channel.queue_declare(f"{name}.XQ", durable=True, arguments={"x-message-ttl": 604_800_000}))
            return [answer.method.message_count for answer in found]

        assert declare() == [0, 0, 0]
        channel.confirm_delivery()
        for n in (1, 9):
            channel.basic_publish("", name, b"%d" % n, pika.BasicProperties(delivery_mode=2, priority=n))
        channel.basic_publish("", f"{name}.DQ", b"later", pika.BasicProperties(delivery_mode=2))
        assert declare() == [2, 1, 0]
        worker = channel_of()
        worker.basic_qos(prefetch_count=2)
        method, _, body = next_message(worker, name, ack=False)
        assert body == (b"9" if priorities else b"1")
        worker.basic_nack(method.delivery_tag, requeue=False)
        method, _, body = next_message(worker, f"{name}.DQ", ack=False)
        channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=2))
        worker.basic_ack(method.delivery_tag)
        end = time.monotonic() + TIMEOUT_S
        while declare() != [2, 0, 1]:
            assert time.monotonic() < end, declare()
            time.sleep(0.05)
        for queue in (name, f"{name}.DQ", f"{name}.XQ"):
            channel.queue_purge(queue)
        assert declare() == [0, 0, 0]


# -- FastStream ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ExchangeType.X_CONSISTENT_HASH, ExchangeType.X_MODULUS_HASH])
def test_faststreams_hash_exchanges(url: str, name: str, kind: ExchangeType) -> None:
    async def work() -> None:
        broker = RabbitBroker(url)
        got: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        exchange = RabbitExchange(name, type=kind, durable=True)

        def listen(n: int) -> None:
            @broker.subscriber(RabbitQueue(f"{name}.{n}", routing_key="1"), exchange)
            async def handle(body: str) -> None:
                await got.put((n, body))

        for n in range(3):
            listen(n)
        await broker.start()
        for i in range(60):
            await broker.publish(str(i % 20), exchange=exchange, routing_key=f"key-{i % 20}")
        found = [await got.get() for _ in range(60)]
        await broker.stop()
        places: dict[str, set[int]] = {}
        for n, body in found:
            places.setdefault(body, set()).add(n)
        assert len(places) == 20 and all(len(place) == 1 for place in places.values())
        assert len({n for place in places.values() for n in place}) > 1

    asyncio.run(asyncio.wait_for(work(), 60))


# -- KEDA ----------------------------------------------------------------------------------------------------


def test_kedas_requests(url: str, name: str) -> None:
    """By AMQP a passive declaration; by HTTP one queue by name, or those that a regular expression finds."""
    with channels(url) as channel_of:
        channel = channel_of()
        channel.confirm_delivery()
        for n, count in ((1, 3), (2, 4)):
            channel.queue_declare(f"{name}-{n}", durable=True)
            for _ in range(count):
                channel.basic_publish("", f"{name}-{n}", b"work")
        assert channel.queue_declare(f"{name}-1", passive=True).method.message_count == 3
    end = time.monotonic() + TIMEOUT_S
    while (found := api("GET", f"/api/queues/%2F/{name}-1")).get("messages") != 3:  # RabbitMQ's figures come later
        assert time.monotonic() < end, found
        time.sleep(0.05)
    assert (found["name"], found["messages"], found["messages_unacknowledged"]) == (f"{name}-1", 3, 0)
    assert found["message_stats"]["publish_details"]["rate"] >= 0
    query = f"page=1&use_regex=true&pagination=false&name={quote(f'^{name}-[12]$', safe='')}&page_size=100"
    listed = api("GET", f"/api/queues/%2F?{query}")
    assert sorted(item["messages"] for item in listed["items"]) == [3, 4] and listed["filtered_count"] == 2
