"""The default queue type of a virtual host: what a declaration without a type means there."""

from typing import Any

import pytest

from kvitto.base.errors import ChannelError
from kvitto.broker.queues.queue import Queue
from kvitto.broker.vhost_settings import VHostSettings
from tests.support.harness import BrokerHarness


def declare(harness: BrokerHarness, name: str = "q", arguments: dict[str, Any] | None = None, **options: Any) -> Queue:
    given = {"durable": True, "exclusive": False, "auto_delete": False, **options}
    return harness.broker.vhosts["/"].declare_queue(name, arguments=arguments or {}, owner=None, **given)


def harness_with(default: str) -> BrokerHarness:
    harness = BrokerHarness()
    harness.broker.vhosts["/"].settings = VHostSettings(default_queue_type=default)
    return harness


@pytest.mark.parametrize("default", ["quorum", "stream"])
def test_a_declaration_without_a_type_gets_the_default_one(default: str) -> None:
    harness = harness_with(default)
    made = declare(harness)
    assert made.arguments == {"x-queue-type": default} and made.stream == (default == "stream")
    assert (
        declare(harness)
        is declare(harness, arguments={"x-queue-type": default})
        is declare(harness, arguments={"x-queue-type": None})
    )
    with pytest.raises(ChannelError, match="received 'classic' but current is"):
        declare(harness, arguments={"x-queue-type": "classic"})


def test_the_type_that_was_filled_in_lasts() -> None:
    harness = harness_with("quorum")
    declare(harness)
    harness.restart()
    assert harness.broker.vhosts["/"].queues["q"].arguments == {"x-queue-type": "quorum"}


@pytest.mark.parametrize("other", [{"durable": False}, {"exclusive": True}, {"auto_delete": True}, {"generated": True}])
def test_a_queue_that_is_not_to_last_is_classic(other: dict[str, Any]) -> None:
    assert declare(harness_with("quorum"), **other).arguments == {}


def test_a_classic_queue_has_no_argument_that_nobody_gave() -> None:
    harness = harness_with("classic")
    assert declare(harness).arguments == {}
    assert declare(harness, arguments={"x-queue-type": "classic"}).arguments == {}
