"""AMQP URIs."""

import pytest

from kvitto.client.uri import parse_uri


def test_every_part_of_a_uri_is_read() -> None:
    address = parse_uri("amqps://us%20er:p%40ss@broker.test:1234/a%2fb?heartbeat=5&connection_timeout=1500")
    assert (address.host, address.port, address.tls) == ("broker.test", 1234, True)
    assert (address.user, address.password, address.vhost) == ("us er", "p@ss", "a/b")
    assert (address.heartbeat_s, address.connect_timeout_s) == (5, 1.5)


@pytest.mark.parametrize("uri", ["amqp://", "amqp://localhost", "amqp://localhost/", "amqp://localhost:5672/%2f"])
def test_what_is_left_out_has_the_usual_default(uri: str) -> None:
    address = parse_uri(uri)
    assert (address.host, address.port, address.user, address.vhost) == ("localhost", 5672, "guest", "/")


@pytest.mark.parametrize(
    ("uri", "part"),
    [
        ("http://localhost", "amqps://"),
        ("amqp://localhost:99999/", "port"),
        ("amqp://localhost/?heartbeat=soon", "heartbeat"),
        ("amqp://localhost/?heartbeet=5", "heartbeet"),
        ("amqps://localhost/?verify=maybe", "verify"),
    ],
)
def test_a_mistake_is_named(uri: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_uri(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "amqp://app:secret@localhost:56x72",
        "amqp://app:secret/more@localhost:5672",
        "amqp://app:secret?more@localhost:5672",
        "amqp://app:secret#more@localhost:5672",
        "amqp://app:secret@more@localhost:x",
        "amqp://app:secret[more@localhost:5672",
        "amqp://app:secret\u2100@localhost:5672",
        "amqp://app:12#secret@localhost:5672",
    ],
)
def test_a_mistake_does_not_show_the_password(uri: str) -> None:
    with pytest.raises(ValueError, match="localhost") as caught:
        parse_uri(uri)
    assert "secret" not in str(caught.value) and "more" not in str(caught.value)
    assert "percent-encode" in str(caught.value)


def test_the_password_is_not_in_messages() -> None:
    assert "secret" not in str(parse_uri("amqp://user:secret@localhost/"))
