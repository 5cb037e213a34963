"""Streamed confirms: every message confirmed, and in the queue."""

from pathlib import Path

from tests.examples.conftest import messages_in
from tests.examples.script import Script


def test_every_message_is_confirmed_and_stored(broker_url: str, tmp_path: Path) -> None:
    """With a healthy broker each message is published once, confirmed once, and in the queue once."""
    with Script("confirms/publish.py", 5000, url=broker_url, cwd=tmp_path) as publisher:
        assert publisher.wait_end() == 0, publisher.lines
        assert publisher.count("5000 confirmed") == 1
        assert publisher.count(" 0 of them were published again") == 1
    assert messages_in(broker_url, "confirmed_messages") == 5000
