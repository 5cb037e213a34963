"""Exchanges that deduplicate: a message whose key is known is dropped before it is routed (docs/deduplication.md).

An exchange deduplicates if its type is `x-message-deduplication`, which routes like `fanout`, as with RabbitMQ's plugin; or, as with
LavinMQ, if it has the argument of that name. Its messages go through a hidden queue that compares them (queues/passage.py), and
`walking.walk` sends them there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvitto.broker.administration.argument_reader import ArgumentReader
from kvitto.broker.administration.arguments import (
    DEDUPLICATION,
    DEDUPLICATION_ARGUMENTS,
    WINDOW,
    Deduplication,
    read_deduplication,
)

if TYPE_CHECKING:
    from kvitto.broker.routing.index import Arguments

TYPE = DEDUPLICATION
"""The exchange type has the name of the argument."""
DIGITS_MAX = 20


def deduplication_of(type: str, arguments: Arguments) -> Deduplication | None:
    """Return how an exchange recognises messages that came before, None if it does not compare them. Raises InvalidArgument.

    As with the plugin, numbers may be texts. The other arguments have no effect without `x-message-deduplication`.
    """
    wanted = arguments.get(DEDUPLICATION)
    if type != TYPE and not wanted:
        return None
    said: dict[str, Any] = {name: _as_number(value) for name, value in arguments.items() if name in WINDOW}
    said |= {name: arguments[name] for name in DEDUPLICATION_ARGUMENTS if name in arguments and name not in said}
    if wanted is None:
        said[DEDUPLICATION] = True
    return read_deduplication(ArgumentReader(said))


def _as_number(value: object) -> object:
    digits = value.strip() if isinstance(value, str) else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX else value
