from __future__ import annotations

from typing import Any

import pytest

from kvitto.shovel.settings import SettingsError, is_local, read, shown

GOOD = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://u:hush@there/%2f", "dest-queue": "b"}


def test_what_rabbitmqs_pages_store_is_read() -> None:
    settings = read(
        {
            **GOOD,
            "src-protocol": "amqp091",
            "dest-protocol": "amqp091",
            "src-delete-after": "queue-length",
            "src-prefetch-count": 10,
            "ack-mode": "on-publish",
            "add-forward-headers": True,
            "reconnect-delay": 1,
            "src-queue-args": [],
        }
    )
    assert settings.forward_headers and settings.delete_after == "queue-length" and settings.prefetch == 10
    assert is_local(settings.src_uris[0]) and not is_local(settings.dest_uris[0])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"src-que": "a"}, "is it 'src-queue'?"),
        ({"src-protocol": "amqp10"}, "AMQP 0-9-1"),
        ({"src-uri": "amqp://u:hush@[::/"}, "src-uri"),
        ({"src-uri": []}, "a URI"),
        ({"src-uri": "http://here/"}, "src-uri"),
        ({"src-uri": None}, "src-uri"),
        ({"src-exchange": "x"}, "either src-queue or src-exchange"),
        ({"src-queue": ""}, "either src-queue or src-exchange"),
        ({"src-queue": "a" * 256}, "255"),
        ({"src-queue": 7}, "text"),
        ({"dest-exchange": "x"}, "either dest-queue or dest-exchange"),
        ({"src-prefetch-count": True}, "number"),
        ({"src-prefetch-count": -1}, "number"),
        ({"src-delete-after": "later"}, "number"),
        ({"reconnect-delay": 1e9}, "number"),
        ({"ack-mode": "never"}, "on-confirm"),
        ({"dest-secret": "s"}, "means nothing"),
        ({"dest-uri": ["http://a/", "http://b/"]}, "one URI"),
        ({"dest-uri": "http://there/"}, "means nothing"),
        ({"dest-uri": "http://there/#x"}, "URL"),
        ({"dest-publish-properties": {"a": {"b": 1 << 70}}}, "dest-publish-properties"),
        ({"ack-mode": "on-commit", "src-delete-after": 5}, "on-commit"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_shows_no_password(change: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read({**GOOD, **change})
    assert text in str(raised.value) and "hush" not in str(raised.value)


@pytest.mark.parametrize("value", [None, 1, "x", [], [GOOD]])
def test_a_shovel_is_an_object(value: Any) -> None:
    with pytest.raises(SettingsError):
        read(value)


def test_headers_of_a_webhook_cannot_split_the_request() -> None:
    hook = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "https://u:hush@there/?key=hush"}
    for headers in ({"A\r\nB": "c"}, {"A": "b\r\nC: d"}, {"Content-Length": "1"}, {"A": 1}, {"": "b"}):
        with pytest.raises(SettingsError):
            read({**hook, "dest-headers": headers})
    assert "hush" not in str(shown({**hook, "dest-secret": "hush", "dest-headers": {"Authorization": "hush"}}))
