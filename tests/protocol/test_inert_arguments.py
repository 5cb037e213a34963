"""Arguments that other brokers honour and this one does not: named once in the log."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from tests.protocol.sansio import ProtocolHarness


def answer(harness: ProtocolHarness, *methods: Method) -> Method:
    """To the last of them."""
    wire = harness.wire()
    for method in methods:
        wire.put(1, method)
        harness.settle_down()
    return wire.methods()[-1]


@pytest.mark.parametrize("arguments", [{"x-message-deduplication": False}, {"x-message-deduplication": None}])
def test_what_asks_for_nothing_is_not_refused(arguments: dict[str, Any]) -> None:
    assert isinstance(answer(ProtocolHarness(), m.QueueDeclare("q", arguments=arguments)), m.QueueDeclareOk)


def test_arguments_without_effect_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    harness = ProtocolHarness()
    queue: dict[str, Any] = {"x-queue-mode": "lazy", "x-expires": 1000, "x-queue-type": "classic", "x-foo": 1}
    for name in "ab":
        answer(harness, m.QueueDeclare(name, arguments=queue))
        answer(harness, m.ExchangeDeclare(name, "direct", arguments={"alternate-exchange": "x", "x-bar": 1}))
        answer(
            harness,
            m.QueueDeclare(name, arguments=queue),
            m.BasicConsume(name, arguments={"x-priority": 1, "x-baz": 1}),
        )
    assert [record.getMessage() for record in caplog.records] == [
        "queue 'a' in vhost '/': 'x-queue-mode' is accepted without effect; this is said once",
        "queue 'a' in vhost '/': 'x-foo' is accepted without effect; this is said once",
        "exchange 'a' in vhost '/': 'x-bar' is accepted without effect; this is said once",
        "a consumer of queue 'a' in vhost '/': 'x-baz' is accepted without effect; this is said once",
    ]


def test_what_is_there_already_starts_without_the_argument(caplog: pytest.LogCaptureFixture) -> None:
    """Of an earlier version, which took it without effect."""
    harness = ProtocolHarness()
    answer(harness, m.QueueDeclare("q", durable=True), m.ExchangeDeclare("e", "direct", durable=True))
    queue = harness.broker.vhosts["/"].queues["q"]
    value = {"id": queue.log.queue_id, "auto_delete": False, "arguments": {"x-cache-size": 5}}
    harness.broker.define("queue", ("/", "q"), value)
    value = {"type": "direct", "auto_delete": False, "internal": False, "arguments": {"x-delayed-exchange": True}}
    harness.broker.define("exchange", ("/", "e"), value)
    harness.settle_down()
    again = ProtocolHarness(harness.disk.kill(), harness.clock)
    assert "q" in again.broker.vhosts["/"].queues and "e" in again.broker.vhosts["/"].exchanges
    assert "x-cache-size=5" in caplog.text
