"""The table of queue arguments: what is read is in it, and what follows from it."""

from __future__ import annotations

from kvitto.broker.administration import arguments
from kvitto.broker.administration.arguments import (
    ARGUMENTS,
    EQUIVALENCE_ARGUMENTS,
    NOT_FOR_STREAMS,
    QUEUE_POLICY,
    read_settings,
)
from kvitto.broker.administration.queue_types import TYPE


class Recording(dict[str, object]):
    """Arguments that note which names are asked for."""

    def __init__(self, **given: object) -> None:
        super().__init__(given)
        self.asked: set[str] = set()

    def get(self, name: str, default: object = None) -> object:
        self.asked.add(name)
        return super().get(name, default)


def test_every_argument_that_is_read_is_in_the_table() -> None:
    asked: set[str] = set()
    for kind in arguments.QUEUE_TYPES:
        given = Recording(**{TYPE: kind})
        read_settings(given)
        asked |= given.asked
    assert asked == {*EQUIVALENCE_ARGUMENTS, TYPE}


def test_what_follows_from_the_table() -> None:
    assert len(set(EQUIVALENCE_ARGUMENTS)) == len(ARGUMENTS)
    assert QUEUE_POLICY == (
        "message-ttl",
        "expires",
        "max-length",
        "max-length-bytes",
        "delivery-limit",
        "consumer-timeout",
        "max-age",
        "overflow",
        "dead-letter-exchange",
        "dead-letter-routing-key",
        "on-alarm",
        "retry-delay-min",
        "retry-delay-max",
        "delayed-retry-type",
        "delayed-retry-min",
        "delayed-retry-max",
    ), "the order in which an error lists them"
    assert set(EQUIVALENCE_ARGUMENTS) - set(NOT_FOR_STREAMS) == {
        "x-max-length",
        "x-max-length-bytes",
        "x-on-alarm",
        "x-consumer-timeout",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-archive",
        "x-archive-max-age",
        "x-archive-max-length-bytes",
    }
