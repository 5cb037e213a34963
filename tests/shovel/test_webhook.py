from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvitto
from kvitto.shovel.endpoint import refuse_link, retry_after
from kvitto.wire.properties import Properties
from tests.shovel.hostile import Answerer, babbles, drips, resets, says, server
from tests.shovel.running import bodies, count, declare, publish, shovelling
from tests.support.certificates import Authority
from tests.support.wait import wait_until


@pytest.fixture
def broker() -> Iterator[kvitto.Broker]:
    with kvitto.Broker() as running:
        declare(running.url, "out", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        declare(running.url, "dead")
        yield running


def test_a_message_is_acked_behind_a_2xx_and_says_who_it_is(broker: kvitto.Broker) -> None:
    properties = Properties(content_type="text/plain", message_id="m 1", delivery_mode=2)
    publish(broker.url, "out", b"hello", properties=properties)
    with (
        server(says(204)) as http,
        shovelling(
            src_uri=broker.url,
            src_queue="out",
            dest_uri=http.url,
            dest_secret="whsec_c2VjcmV0",
            dest_headers={"X-Key": "k"},
        ) as shovel,
    ):
        wait_until(lambda: shovel.status.moved == 1)
        wait_until(lambda: count(broker.url, "out") == 0)
    (seen,) = http.seen
    assert seen.path == "/hook?x=1" and seen.body == b"hello"
    assert seen.headers["content-type"] == "text/plain" and seen.headers["x-key"] == "k"
    assert seen.headers["kvitto-attempt"] == "1" and seen.headers["kvitto-message-id"] == "m%201"
    assert seen.headers["kvitto-routing-key"] == "out" and seen.headers["webhook-id"].endswith("-0")
    assert abs(int(seen.headers["webhook-timestamp"]) - time.time()) < 60
    signed = f"{seen.headers['webhook-id']}.{seen.headers['webhook-timestamp']}.".encode() + seen.body
    expected = base64.b64encode(hmac.new(b"secret", signed, hashlib.sha256).digest()).decode()
    assert seen.headers["webhook-signature"] == f"v1,{expected}"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (says(500), "500"),
        (says(404), "404"),
        (says(304), "304"),
        (says(302, Location="http://127.0.0.1:1/elsewhere?token=hush"), "http://127.0.0.1:1/..."),
        (says(307, Location="/again"), "not followed"),
        (resets, "connection"),
        (babbles, "not HTTP"),
    ],
    ids=["500", "404", "304", "302", "307", "resets", "babbles"],
)
def test_after_anything_else_the_message_stays_and_is_tried_again(
    broker: kvitto.Broker, answer: Answerer, reason: str
) -> None:
    publish(broker.url, "out", b"hello")
    said = set()
    with (
        server(answer, answer, says(200)) as http,
        shovelling(src_uri=broker.url, src_queue="out", dest_uri=http.url) as shovel,
    ):

        def moved() -> bool:
            said.add((shovel.status.state, shovel.status.reason))
            return shovel.status.moved == 1

        wait_until(moved)
    assert any(state == "blocked" and reason.lower() in text.lower() for state, text in said), said
    assert [seen.headers["kvitto-attempt"] for seen in http.seen] == ["1", "2", "3"]
    assert len({seen.headers["webhook-id"] for seen in http.seen}) == 1
    assert bodies(broker.url, "out") == bodies(broker.url, "dead") == []


def test_a_server_that_drips_is_cut_off_by_the_time_out(broker: kvitto.Broker) -> None:
    publish(broker.url, "out", b"hello")
    stop = threading.Event()
    with (
        server(drips(stop), says(200)) as http,
        shovelling(src_uri=broker.url, src_queue="out", dest_uri=http.url, dest_timeout=1) as shovel,
    ):
        wait_until(lambda: shovel.status.moved == 1)
        stop.set()
    assert len(http.seen) == 2


def test_a_refused_connection_blocks_until_the_server_is_there(broker: kvitto.Broker) -> None:
    publish(broker.url, "out", b"hello")
    with server(says(200)) as http:
        url = http.url
    with shovelling(src_uri=broker.url, src_queue="out", dest_uri=url) as shovel:
        wait_until(lambda: shovel.status.state == "blocked")
        assert shovel.status.reason
    assert bodies(broker.url, "out") == [b"hello"]


def test_after_the_last_attempt_a_message_is_dead_lettered(broker: kvitto.Broker) -> None:
    publish(broker.url, "out", b"poison", b"fine")

    def answer(seen: object, handler: object) -> None:
        says(400 if seen.body == b"poison" else 200)(seen, handler)  # type: ignore[attr-defined, arg-type]

    with (
        server(answer) as http,
        shovelling(src_uri=broker.url, src_queue="out", dest_uri=http.url, dest_attempts=2) as shovel,
    ):
        wait_until(lambda: shovel.status.rejected == 1 and shovel.status.moved == 1)
        wait_until(lambda: count(broker.url, "dead") == 1)
    assert bodies(broker.url, "dead") == [b"poison"]
    assert sorted(http.bodies()) == [b"fine", b"poison", b"poison"]


def test_retry_after_is_obeyed(broker: kvitto.Broker) -> None:
    publish(broker.url, "out", b"hello")
    with (
        server(says(503, Retry_After="2"), says(200)) as http,
        shovelling(src_uri=broker.url, src_queue="out", dest_uri=http.url) as shovel,
    ):
        started = time.monotonic()
        wait_until(lambda: shovel.status.moved == 1)
        assert time.monotonic() - started > 1.5


def test_a_batch_is_an_array_and_its_messages_are_tried_one_by_one_at_last(broker: kvitto.Broker) -> None:
    publish(broker.url, "out", b"0", b"1", b"\xff", b"poison")

    def answer(seen: object, handler: object) -> None:
        says(422 if b"poison" in seen.body else 200)(seen, handler)  # type: ignore[attr-defined, arg-type]

    with (
        server(answer) as http,
        shovelling(
            src_uri=broker.url, src_queue="out", dest_uri=http.url, dest_batch=10, dest_ordered=True, dest_attempts=2
        ) as shovel,
    ):
        wait_until(lambda: shovel.status.moved == 3 and shovel.status.rejected == 1)
        wait_until(lambda: count(broker.url, "dead") == 1)
    items = [item for seen in http.seen for item in json.loads(seen.body)]
    assert {item.get("body") for item in items} == {"0", "1", "poison", None}
    assert next(item for item in items if "body_base64" in item)["body_base64"] == base64.b64encode(b"\xff").decode()


def test_the_order_is_kept_if_that_is_asked_for(broker: kvitto.Broker) -> None:
    publish(broker.url, "out", *(b"%d" % n for n in range(30)))
    flaky = [says(200 if n % 7 else 500) for n in range(40)]
    with (
        server(*flaky, says(200)) as http,
        shovelling(src_uri=broker.url, src_queue="out", dest_uri=http.url, dest_ordered=True) as shovel,
    ):
        wait_until(lambda: shovel.status.moved == 30, 60.0)
    first = list(dict.fromkeys(http.bodies()))
    assert first == [b"%d" % n for n in range(30)]


def test_a_certificate_that_nobody_trusts_is_refused(broker: kvitto.Broker, tmp_path: Path) -> None:
    publish(broker.url, "out", b"hello")
    authority = Authority(tmp_path)
    pair = authority.sign("server", "/CN=localhost", "DNS:localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with server(says(200), tls=context) as http:
        url = http.url.replace("http://127.0.0.1", "https://localhost")
        with shovelling(src_uri=broker.url, src_queue="out", dest_uri=url) as shovel:
            wait_until(lambda: "not trusted" in shovel.status.reason)
        trusted = {"dest_uri": url, "dest_cacertfile": str(authority.cert)}
        with shovelling(src_uri=broker.url, src_queue="out", **trusted) as shovel:
            wait_until(lambda: shovel.status.moved == 1)


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "fe80::1%2", "::ffff:169.254.0.1", "0.0.0.0", "::", "224.0.0.1"]
)
def test_nothing_is_posted_to_the_own_link(address: str) -> None:
    with pytest.raises(OSError, match="no webhook is posted"):
        refuse_link(address)


def test_retry_after_is_read_in_both_forms_and_limited() -> None:
    assert retry_after("7") == 7.0
    assert retry_after("99999999") == 3600.0
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert retry_after("Fri, 31 Dec 9999 23:59:59 GMT") == 3600.0
    for text in ("", "-1", "soon", "1e9", "٣"):
        assert retry_after(text) <= 3600.0
