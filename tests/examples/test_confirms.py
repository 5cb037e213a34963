"""Streamed confirms: every message confirmed, and in the queue, whatever happens to the broker."""

from pathlib import Path

import pika

from tests.crash.serve import Served
from tests.examples.conftest import messages_in
from tests.examples.script import Script
from tests.support.wait import wait_until


def test_every_message_is_confirmed_and_stored(broker_url: str, tmp_path: Path) -> None:
    """With a healthy broker each message is published once, confirmed once, and in the queue once."""
    with Script("confirms/publish.py", 5000, url=broker_url, cwd=tmp_path) as publisher:
        assert publisher.wait_end() == 0, publisher.lines
        assert publisher.count("5000 confirmed") == 1
        assert publisher.count(" 0 of them were published again") == 1
    assert messages_in(broker_url, "confirmed_messages") == 5000


def test_broker_killed_twice_and_every_message_is_there(tmp_path: Path) -> None:
    """SIGKILL while the publisher streams: it publishes the unconfirmed again, and none of the messages is missing."""
    count, port = 20_000, 0
    publisher: Script | None = None
    try:
        for kills_left in (2, 1, 0):
            with Served(tmp_path / "data", "--port", str(port)) as broker:
                port = broker.port
                url = f"amqp://guest:guest@127.0.0.1:{port}/%2f"
                publisher = publisher or Script("confirms/publish.py", count, url=url, cwd=tmp_path)
                if kills_left:
                    before = stored(url)
                    wait_until(lambda before=before, url=url: stored(url) > before + 1000, 30, "messages arrive")  # type: ignore[misc]
                    broker.kill()
                    publisher.wait_for("Connection lost", count=3 - kills_left)
                else:
                    assert publisher.wait_end() == 0, publisher.lines
                    assert publisher.count(f"{count} confirmed") == 1
                    assert message_ids(url) == {str(n) for n in range(1, count + 1)}
    finally:
        if publisher is not None:
            publisher.kill()


def stored(url: str) -> int:
    """Messages in the queue, 0 while it is not there yet."""
    try:
        return messages_in(url, "confirmed_messages")
    except pika.exceptions.ChannelClosedByBroker:
        return 0


def message_ids(url: str) -> set[str]:
    """Which messages the queue holds."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        waiting = channel.queue_declare("confirmed_messages", passive=True).method.message_count
        found = set()
        for _, properties, _ in channel.consume("confirmed_messages", auto_ack=True):
            found.add(properties.message_id)
            waiting -= 1
            if not waiting:
                break
        channel.cancel()
    return found
