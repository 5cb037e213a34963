"""The lab: consumer A fails with a notification in hand, consumer B gets it."""

from pathlib import Path

import pytest

from tests.examples.conftest import messages_in
from tests.examples.script import Script

A = "notifications/email_consumer.py"
B = "notifications/sms_consumer.py"


@pytest.mark.parametrize("way", ["nack", "crash"])
def test_b_gets_what_a_could_not_send(way: str, broker_url: str, tmp_path: Path) -> None:
    """Whether A gives the notification back or dies with it: B sends all of them, the first as redelivered."""
    with Script(A, way, url=broker_url, cwd=tmp_path) as a:
        a.wait_for("A is waiting")
        with Script("notifications/publisher.py", 3, url=broker_url, cwd=tmp_path) as publisher:
            assert publisher.wait_end() == 0, publisher.lines
        a.wait_for("A failed")
        if way == "crash":
            assert a.wait_end() == 1
        with Script(B, url=broker_url, cwd=tmp_path) as b:
            b.wait_for("B sent by SMS", count=3)
            sent = [line for line in b.lines if "B sent by SMS" in line]
        for number in (1, 2, 3):
            assert sum(f"Notification {number}" in line for line in sent) == 1
        assert any("Notification 1 (somebody had it before me" in line for line in sent)
    assert messages_in(broker_url, "notifications") == 0
