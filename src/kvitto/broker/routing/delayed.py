"""Exchanges that delay: a message with the header `x-delay` waits before it is routed, as with RabbitMQ's plugin for delayed messages.

An exchange delays if its type is `x-delayed-message`, with the type that routes in `x-delayed-type`; or, as with LavinMQ, if it has the
argument `x-delayed-exchange`, or a policy with `delayed-message`. `DelayedIndex` is then around the index of its type. It sends a message
that has to wait to a hidden queue (`queues/delay_queue.py`), which routes it once more when it is due.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping
from typing import TYPE_CHECKING, Any

from kvitto.broker.administration.arguments import MS_MAX
from kvitto.broker.routing.index import Arguments, Dest, Index
from kvitto.wire.properties import Properties

if TYPE_CHECKING:
    from kvitto.broker.queues.delay_queue import DelayQueue
    from kvitto.broker.routing.headers import Hashed

HEADER = "x-delay"
DELAYED_MESSAGE = "x-delayed-message"
"""The exchange type."""
DELAYED_TYPE = "x-delayed-type"
DELAYED_EXCHANGE = "x-delayed-exchange"
POLICY_KEY = "delayed-message"
DIGITS_MAX = 20


def delay_ms(headers: Mapping[str, Any] | None) -> int:
    """Return how many ms a message with these headers has to wait. 0: it does not wait.

    As with RabbitMQ, the header may have any type of number, or be a text with one; fractions are cut. A delay of more than ten years
    counts as ten years.
    """
    value = headers.get(HEADER) if headers else None
    if isinstance(value, str):
        digits = value.strip().removeprefix("+")
        value = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX else 0
    elif value is None or isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return 0
    return 0 if value <= 0 else int(min(value, MS_MAX))


def spelt_alike(type: str, arguments: Arguments) -> Arguments:
    """Return the arguments of an exchange as both spellings together have them: LavinMQ takes them for the same exchange."""
    if type == DELAYED_MESSAGE:
        return {**arguments, DELAYED_EXCHANGE: True}
    return {**arguments, DELAYED_TYPE: type} if arguments.get(DELAYED_EXCHANGE) else arguments


class DelayedIndex(Index):
    """The index of an exchange that delays, around the index of its type."""

    needs_properties = True

    def __init__(self, inner: Index) -> None:
        self.inner = inner
        self.queue: DelayQueue | None = None
        """Where messages wait. None while the exchange is being made, or does not delay any more."""

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.inner.steps

    @property
    def cost(self) -> int:  # type: ignore[override]
        return self.inner.cost

    @property
    def first_key_only(self) -> bool:  # type: ignore[override]
        return self.inner.first_key_only

    def check_binding(self, routing_key: str, arguments: Arguments) -> None:
        self.inner.check_binding(routing_key, arguments)

    def add(self, routing_key: str, dest: Dest, hashed: Hashed) -> None:
        self.inner.add(routing_key, dest, hashed)

    def remove(self, routing_key: str, dest: Dest, digest: bytes) -> None:
        self.inner.remove(routing_key, dest, digest)

    def route(self, routing_key: str, properties: Properties) -> Collection[Dest]:
        if self.queue is not None and delay_ms(properties.headers):
            return (self.queue,)
        return self.inner.route(routing_key, properties)

    def search(self, routing_key: str, properties: Properties) -> Generator[bool, None, Collection[Dest]]:
        if self.queue is not None and delay_ms(properties.headers):
            return (self.queue,)
        return (yield from self.inner.search(routing_key, properties))
