"""The arguments of an archive: what is refused, and that they are part of what a queue is (Q, D1)."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.administration.argument_reader import age_ms
from tests.support.archived import about
from tests.support.harness import BrokerHarness


def refused(
    harness: BrokerHarness, says: str, arguments: dict[str, Any], durable: bool = True, exclusive: bool = False
) -> None:
    with pytest.raises(ChannelError) as refusal:
        harness.broker.vhosts["/"].declare_queue("q", durable, exclusive, False, arguments, object())
    assert refusal.value.code == PRECONDITION_FAILED
    assert says in refusal.value.text


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("x-archive", "true", "expected a boolean"),
        ("x-archive", 1, "expected a boolean"),
        ("x-archive-max-age", 7, "expected a string"),
        ("x-archive-max-age", "7", "expected a number and one of the units"),
        ("x-archive-max-age", "7d", "expected a number and one of the units"),
        ("x-archive-max-age", "-1D", "expected a number and one of the units"),
        ("x-archive-max-length-bytes", "1", "expected an integer"),
        ("x-archive-max-length-bytes", True, "expected an integer"),
        ("x-archive-max-length-bytes", -1, "-1 is not between"),
    ],
)
def test_a_wrong_value_is_refused(name: str, value: object, why: str) -> None:
    """Q: 406 that names the argument; nothing is left behind."""
    harness = BrokerHarness()
    refused(harness, f"invalid arg '{name}' for queue 'q' in vhost '/': {why}", {"x-archive": True, name: value})
    assert "q" not in harness.broker.vhosts["/"].queues and harness.disk.listdir("queues") == []


def test_bounds_need_an_archive_and_an_archive_a_durable_queue() -> None:
    """Q."""
    harness = BrokerHarness()
    refused(harness, "'x-archive-max-age' for queue 'q' in vhost '/': it needs x-archive", {"x-archive-max-age": "7D"})
    bound = {"x-archive-max-length-bytes": 1, "x-archive": False}
    refused(harness, "'x-archive-max-length-bytes' for queue 'q' in vhost '/': it needs x-archive", bound)
    refused(harness, "only a durable queue that is not exclusive", {"x-archive": True}, durable=False)
    refused(harness, "only a durable queue that is not exclusive", {"x-archive": True}, exclusive=True)
    refused(harness, "a stream has none", {"x-archive": True, "x-queue-type": "stream"})
    harness.declare("q", durable=False, x_archive=False)


@pytest.mark.parametrize("name", ["x-archive", "x-archive-max-age", "x-archive-max-length-bytes"])
def test_another_archive_is_another_queue(name: str) -> None:
    """D1: inequivalent arg, also after a start."""
    harness = BrokerHarness()
    arguments = {"x-archive": True, "x-archive-max-age": "7D", "x-archive-max-length-bytes": 1000}
    other = {"x-archive": False, "x-archive-max-age": "8D", "x-archive-max-length-bytes": 1001}
    queue_id = harness.broker.vhosts["/"].declare_queue("q", True, False, False, arguments, None).log.queue_id
    harness.restart()
    harness.broker.vhosts["/"].declare_queue("q", True, False, False, arguments, None)
    refused(harness, f"inequivalent arg '{name}'", {**arguments, name: other[name]})
    refused(harness, f"inequivalent arg '{name}'", {k: v for k, v in arguments.items() if k != name})
    assert about(harness.disk.files(), queue_id, "queues")["arguments"] == arguments


def test_ages_have_the_units_of_stream_arguments() -> None:
    """Q."""
    second, day = 1000, 86_400_000
    ages = {"1s": second, "2m": 120 * second, "3h": 10_800 * second, "7D": 7 * day, "1M": 30 * day, "2Y": 730 * day}
    assert {text: age_ms(text) for text in ages} == ages
    assert [age_ms(text) for text in ("", "D", "1.5h", "1 D", "1D ", "1w", "٣D")] == [-1] * 7


def test_a_declaration_that_finds_no_room_for_its_name_gets_it_later() -> None:
    """D4: queue.json is written by a later look."""
    harness = BrokerHarness()
    harness.disk.full = True
    queue_id = harness.declare("q", x_archive=True).log.queue_id
    harness.turn()
    assert f"queues/{queue_id}/queue.json" not in harness.disk.files()
    harness.disk.full = False
    harness.broker.retry_writes()
    harness.clock.advance(60.0)
    harness.broker.tick()
    harness.settle_down()
    assert about(harness.disk.files(), queue_id, "queues")["queue"] == "q"
