"""The kombu transport kvitto:// against a real broker; kombu's and Celery's own suites run in tests/compat."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import kombu
import pytest
from amqp.exceptions import ConsumerCancelled, MessageNacked, NotFound, PreconditionFailed, RecoverableConnectionError
from kombu.asynchronous import Hub

import kvitto
from benchmarks.tls import make_certificate
from kvitto.base.config import Config
from kvitto.kombu import transport


@pytest.fixture
def url(kvitto_broker: kvitto.Broker) -> str:
    return kvitto_broker.url.replace("amqp://", "kvitto://", 1)


@pytest.fixture
def connection(url: str) -> Iterator[kombu.Connection]:
    with kombu.Connection(url) as connection:
        yield connection


@pytest.fixture
def channel(connection: kombu.Connection) -> Any:
    return connection.channel()


def publish(channel: Any, body: str | bytes, key: str, **more: Any) -> None:
    channel.basic_publish(channel.prepare_message(body, **more), routing_key=key)


def test_the_entry_point_adds_the_transport_when_anything_serializes() -> None:
    """Celery and kombu's messages import kombu.serialization, which loads the entry point."""
    code = (
        "import kombu.serialization, sys; from kombu.transport import TRANSPORT_ALIASES as known;"
        "assert known['kvitto'] and known['kvittos'] and 'kvitto.client' not in sys.modules;"
        "from kombu import Connection; assert Connection('kvitto://').transport.driver_name == 'kvitto';"
        "assert Connection('kvittos://').transport.client.ssl is True"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_message_comes_back_with_its_properties_and_headers(channel: Any) -> None:
    headers = {
        "text": "é",
        "none": None,
        "yes": True,
        "small": -3,
        "large": 1 << 40,
        "list": [1, "a"],
        "table": {"x": 1.5},
    }
    name = channel.queue_declare(exclusive=True).queue
    message = channel.prepare_message(
        "text", 3, "text/plain", "utf-8", headers, {"correlation_id": "c", "timestamp": 7, "delivery_mode": 2}
    )
    channel.basic_publish(message, routing_key=name)
    got = channel.basic_get(name)
    assert (got.body, got.headers, got.content_type, got.content_encoding) == ("text", headers, "text/plain", "utf-8")
    assert got.properties["correlation_id"] == "c" and got.properties["timestamp"] == 7
    assert got.properties["priority"] == 3 and got.properties["delivery_mode"] == 2
    assert got.delivery_info == {
        "delivery_tag": 1, "redelivered": False, "exchange": "", "routing_key": name, "message_count": 0,
    }  # fmt: skip
    assert channel.basic_get(name) is None


@pytest.mark.parametrize("encoding", [None, "binary", "base64", "ascii"])
def test_bytes_that_are_no_text_of_their_encoding_stay_bytes(channel: Any, encoding: str | None) -> None:
    name = channel.queue_declare(exclusive=True).queue
    publish(channel, b"\xff", name, content_encoding=encoding)
    assert channel.basic_get(name).body == b"\xff"


def test_a_large_body_comes_back(channel: Any) -> None:
    name = channel.queue_declare(exclusive=True).queue
    body = bytes(range(256)) * 2000
    publish(channel, body, name)
    assert channel.basic_get(name).body == body


def test_a_closed_channel_opens_again_after_its_error_was_raised(channel: Any) -> None:
    number = channel.channel_id
    with pytest.raises(NotFound, match="no queue 'nowhere'"):
        channel.queue_declare("nowhere", passive=True)
    assert channel.channel_id == number and channel.queue_declare(exclusive=True).message_count == 0


def test_the_error_of_a_publish_is_raised_by_whoever_drains_events(connection: kombu.Connection, channel: Any) -> None:
    channel.basic_publish(channel.prepare_message("lost"), exchange="nowhere")
    with pytest.raises(NotFound, match="no exchange 'nowhere'"):
        connection.drain_events(timeout=30)
    channel.queue_declare(exclusive=True)


def test_drain_events_hands_out_one_delivery_at_a_time(connection: kombu.Connection, channel: Any) -> None:
    name = channel.queue_declare(exclusive=True).queue
    for number in range(3):
        publish(channel, str(number), name)
    seen: list[Any] = []
    tag = channel.basic_consume(name, callback=seen.append)
    for number in range(3):
        connection.drain_events(timeout=30)
        assert [message.body for message in seen] == [str(k) for k in range(number + 1)]
    assert seen[0].delivery_info["consumer_tag"] == tag
    with pytest.raises(socket.timeout):
        connection.drain_events(timeout=0)


def test_a_call_runs_no_callbacks_and_a_cancel_hands_out_what_was_received(channel: Any) -> None:
    name = channel.queue_declare(exclusive=True).queue
    for number in range(3):
        publish(channel, str(number), name)
    seen: list[Any] = []
    tag = channel.basic_consume(name, callback=seen.append)
    channel.queue_declare(exclusive=True)  # the deliveries come before its answer
    assert not seen
    channel.basic_cancel(tag)
    assert [message.body for message in seen] == ["0", "1", "2"]


def test_acks_rejects_and_requeues(channel: Any) -> None:
    name = channel.queue_declare(exclusive=True).queue
    for body in ("acked", "rejected", "requeued"):
        publish(channel, body, name)
    first, second, third = (channel.basic_get(name) for _ in range(3))
    first.ack()
    second.reject()
    third.requeue()
    again = channel.basic_get(name)
    assert again.body == "requeued" and again.delivery_info["redelivered"]
    again.ack()
    assert channel.basic_get(name) is None


def test_no_ack_consumers_are_known(connection: kombu.Connection, channel: Any) -> None:
    name = channel.queue_declare(exclusive=True).queue
    seen: list[Any] = []
    tag = channel.basic_consume(name, no_ack=True, callback=seen.append)
    assert channel.no_ack_consumers == {tag}
    publish(channel, "x", name)
    connection.drain_events(timeout=30)
    seen[0].ack()  # kombu sends nothing for it
    channel.basic_cancel(tag)
    assert not channel.no_ack_consumers


def test_a_consumer_that_the_server_cancels_is_told_or_the_error_is_raised(
    connection: kombu.Connection, channel: Any
) -> None:
    cancelled: list[str] = []
    other = connection.channel()
    for on_cancel in (cancelled.append, None):
        name = other.queue_declare(auto_delete=False).queue
        tag = channel.basic_consume(name, callback=print, on_cancel=on_cancel)
        other.queue_delete(name)
        if on_cancel is None:
            with pytest.raises(ConsumerCancelled):
                connection.drain_events(timeout=30)
        else:
            while not cancelled:
                connection.drain_events(timeout=30)
            assert cancelled == [tag]


def test_a_returned_message_goes_to_the_handler_or_is_an_error(connection: kombu.Connection, channel: Any) -> None:
    returned: list[Any] = []
    channel.events["basic_return"].add(lambda *arguments: returned.append(arguments))
    channel.basic_publish(channel.prepare_message("lost"), routing_key="nowhere", mandatory=True)
    while not returned:
        connection.drain_events(timeout=30)
    error, exchange, routing_key, message = returned[0]
    assert (error.reply_code, exchange, routing_key, message.body) == (312, "", "nowhere", "lost")
    channel.events["basic_return"].clear()
    channel.basic_publish(channel.prepare_message("lost"), routing_key="nowhere", mandatory=True)
    with pytest.raises(connection.channel_errors, match="NO_ROUTE"):
        connection.drain_events(timeout=30)


def test_with_confirm_publish_an_error_of_the_broker_is_raised_by_publish(url: str) -> None:
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        channel = connection.channel()
        name = channel.queue_declare(
            exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        ).queue
        publish(channel, "taken", name)
        with pytest.raises(MessageNacked) as error:
            publish(channel, "refused", name)
        assert isinstance(error.value, connection.recoverable_connection_errors)
        with pytest.raises(NotFound):
            channel.basic_publish(channel.prepare_message("x"), exchange="nowhere")
        publish(channel, "again refused or taken", channel.queue_declare(exclusive=True).queue)


def test_confirms_are_counted_for_callbacks(connection: kombu.Connection, channel: Any) -> None:
    acks: list[tuple[int, bool]] = []
    channel.confirm_select()
    channel.events["basic_ack"].add(lambda tag, multiple: acks.append((tag, multiple)))
    publish(channel, "x", channel.queue_declare(exclusive=True).queue)
    while not acks:
        connection.drain_events(timeout=30)
    assert acks[0][0] == 1


def test_a_hub_hands_out_what_was_received_with_an_answer(connection: kombu.Connection, channel: Any) -> None:
    """The socket has nothing more for the hub to see, and the hub waits for files and timers only."""
    hub = Hub()
    try:
        name = channel.queue_declare(exclusive=True).queue
        for number in range(20):
            publish(channel, str(number), name)
        connection.register_with_event_loop(hub)
        seen: list[Any] = []
        channel.basic_consume(name, callback=seen.append)
        channel.queue_declare(exclusive=True)
        assert connection.connection.waiting and not seen
        rounds = 0
        while len(seen) < 20:
            hub.run_once()
            rounds += 1
        assert rounds <= 25
    finally:
        hub.close()


def test_a_hub_sends_what_was_settled_in_a_round_before_it_waits(url: str, connection: kombu.Connection) -> None:
    """In other threads, and without a hub, it is sent at once."""
    channel = connection.channel()
    name = channel.queue_declare(auto_delete=False).queue
    hub = Hub()
    try:
        for number in range(4):
            publish(channel, str(number), name)
        got = [channel.basic_get(name) for _ in range(4)]
        out = connection.connection.transport.out
        got[0].ack()
        assert out.n == 0
        connection.register_with_event_loop(hub)
        got[1].ack()
        got[2].reject()
        assert out.n == 42  # two frames
        connection.connection.bell.ring()  # the hub has nothing to wait for
        hub.run_once()
        assert out.n == 0
        thread = threading.Thread(target=got[3].ack)
        thread.start()
        thread.join()
        assert out.n == 0
    finally:
        hub.close()
    connection.release()
    with kombu.Connection(url) as other:
        assert other.channel().queue_delete(name) == 0


def test_settlements_of_a_hub_are_sent_when_the_connection_is_closed(url: str, connection: kombu.Connection) -> None:
    channel = connection.channel()
    name = channel.queue_declare(auto_delete=False).queue
    hub = Hub()
    publish(channel, "x", name)
    connection.register_with_event_loop(hub)
    channel.basic_get(name).ack()
    connection.release()
    assert not hub.on_tick
    hub.close()
    with kombu.Connection(url) as other:
        assert other.channel().queue_delete(name) == 0


def test_a_delivery_that_takes_long_ends_the_round_of_a_hub(connection: kombu.Connection, channel: Any) -> None:
    """A worker of pool `solo` runs tasks in the callback, and its heartbeats are between two of them."""
    hub = Hub()
    name = channel.queue_declare(exclusive=True).queue
    for _ in range(3):
        publish(channel, "x", name)
    connection.register_with_event_loop(hub)
    late: list[Any] = []

    def callback(message: Any) -> None:
        late.append(message)
        until = time.monotonic() + transport.TURN_S
        while time.monotonic() < until:
            pass

    channel.basic_consume(name, callback=callback)
    channel.queue_declare(exclusive=True)
    assert len(connection.connection.waiting) == 3
    connection.transport.on_readable(connection.connection, hub)
    assert len(late) == 1
    hub.close()


def test_a_lost_connection_is_a_recoverable_error(connection: kombu.Connection, channel: Any) -> None:
    connection.connection.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(connection.recoverable_connection_errors):
        channel.queue_declare(exclusive=True)
    assert not connection.connected
    with pytest.raises(RecoverableConnectionError):
        publish(channel, "x", "y")


def test_a_refused_login_and_a_missing_vhost_are_named(kvitto_broker: kvitto.Broker) -> None:
    host = kvitto_broker.url.rpartition("@")[2].partition("/")[0]
    with pytest.raises(Exception, match="ACCESS_REFUSED"):
        kombu.Connection(f"kvitto://guest:wrong@{host}//").connect()
    with pytest.raises(Exception, match="vhost nowhere"):
        kombu.Connection(f"kvitto://guest:guest@{host}/nowhere").connect()
    with pytest.raises(ConnectionRefusedError):
        kombu.Connection("kvitto://127.0.0.1:1//").connect()


def test_a_password_with_special_characters_and_amqplain(kvitto_broker: kvitto.Broker) -> None:
    host = kvitto_broker.url.rpartition("@")[2].partition("/")[0]
    connection = kombu.Connection(f"kvitto://guest:{quote('guest')}@{host}//", login_method="AMQPLAIN")
    assert connection.connect() and connection.connected
    connection.release()


def test_a_refused_declaration_is_an_irrecoverable_channel_error(connection: kombu.Connection, channel: Any) -> None:
    name = channel.queue_declare(exclusive=True).queue
    with pytest.raises(PreconditionFailed):
        channel.queue_declare(name, durable=True, exclusive=True)
    assert not issubclass(PreconditionFailed, connection.recoverable_channel_errors)


def test_heartbeats_are_sent_and_missed_ones_noticed(url: str) -> None:
    with kombu.Connection(url, heartbeat=10) as connection:
        connection.connect()
        transport = connection.connection.transport
        assert connection.get_heartbeat_interval() == 10 and connection.supports_heartbeats
        transport.sent_at -= 6
        before = transport.sent_at
        connection.heartbeat_check()
        assert transport.sent_at > before
        transport.received_at -= 21
        with pytest.raises(connection.connection_errors, match="heartbeats"):
            connection.heartbeat_check()


def test_threads_publish_on_one_connection(connection: kombu.Connection, channel: Any) -> None:
    """Each frame reaches the broker whole; channels are not shared."""
    name = channel.queue_declare(exclusive=True).queue
    channels = [connection.channel() for _ in range(4)]

    def run(channel: Any) -> None:
        for number in range(200):
            publish(channel, f"{number:05}" * 50, name)

    threads = [threading.Thread(target=run, args=(each,)) for each in channels]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in channels:
        each.close()
    assert channel.queue_declare(name, passive=True, exclusive=True).message_count == 800


def test_on_blocked_is_called(connection: kombu.Connection) -> None:
    opened = connection.connect()
    said: list[str] = []
    opened.on_blocked, opened.on_unblocked = said.append, lambda: said.append("")
    from kvitto.wire import methods as m

    opened._handle((0, 1, m.ConnectionBlocked("low on disk").encode()))
    assert opened.blocked == "low on disk"
    opened._handle((0, 1, m.ConnectionUnblocked().encode()))
    assert said == ["low on disk", ""] and opened.blocked is None


def test_a_socket_that_is_readable_without_data_is_no_timeout(connection: kombu.Connection) -> None:
    """A TLS socket is readable for session tickets, too, of which OpenSSL gives no data."""
    opened = connection.connect()
    read, left = opened.read, [False, False]
    opened.read = lambda: left.pop() if left else read()
    assert connection.channel().queue_declare(exclusive=True).message_count == 0
    assert not left


def test_over_tls_a_hub_hands_out_all_that_was_decrypted(tmp_path: Path) -> None:
    """A read of a TLS socket may leave decrypted bytes, of which no loop is told."""
    certificate = make_certificate(tmp_path / "tls")
    if certificate is None:
        pytest.skip("needs the openssl command (Debian: apt install openssl) to make a certificate")
    broker = kvitto.Broker(tmp_path / "data")
    broker._config = Config(
        data_dir=tmp_path / "data",
        port=0,
        http_port=None,
        tls_port=0,
        tls_cert=certificate.cert,
        tls_key=certificate.key,
    )
    with broker:
        assert broker._server is not None
        address = f"kvittos://guest:guest@localhost:{broker._server.tls_port}//"
        checked = {"ca_certs": str(certificate.cert), "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": "localhost"}
        with kombu.Connection(address, ssl=checked) as connection:
            channel = connection.channel()
            assert isinstance(connection.connection.sock, ssl.SSLSocket)
            name = channel.queue_declare(exclusive=True).queue
            bodies = [str(number) * 1000 for number in range(100)] + ["x" * 300_000]
            for body in bodies:
                publish(channel, body, name)
            hub = Hub()
            connection.register_with_event_loop(hub)
            seen: list[str] = []
            channel.basic_consume(name, callback=lambda message: seen.append(message.body))
            while len(seen) < len(bodies):
                hub.run_once()
            assert seen == bodies
            connection.release()
            hub.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            kombu.Connection(address, ssl=checked | {"ca_certs": None, "server_hostname": "localhost"}).connect()


@pytest.mark.parametrize("scheme", ["amqp", "kvitto"])
def test_a_limit_that_is_raised_reaches_a_consumer_that_runs(kvitto_broker: kvitto.Broker, scheme: str) -> None:
    """Celery does that for each task with a countdown, which it holds until then: without it no other task came."""
    got: list[Any] = []
    with kombu.Connection(kvitto_broker.url.replace("amqp://", f"{scheme}://", 1)) as connection:
        whole = not connection.qos_semantics_matches_spec
        channel = connection.channel()
        name = channel.queue_declare(exclusive=True).queue
        channel.basic_qos(0, 2, whole)
        channel.basic_consume(name, callback=got.append)
        for number in range(5):
            publish(channel, b"%d" % number, name)
        while len(got) < 2:
            connection.drain_events(timeout=30)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.1)
        channel.basic_qos(0, 5, whole)
        while len(got) < 5:
            connection.drain_events(timeout=30)
    assert [message.body for message in got] == [b"0", b"1", b"2", b"3", b"4"]
