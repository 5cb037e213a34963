"""Checks a repeated declaration: it must have the same properties and arguments (D1).

People and test suites search for the error texts, so these are RabbitMQ's, letter for letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.routing.canonical import canonical
from kvitto.wire.tables import Timestamp, Value


def describe(kind: str, name: str, vhost: str) -> str:
    """Return the name of a thing for error texts, like `queue 'q' in vhost '/'`."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def check_field(thing: str, field: str, current: str | bool, received: str | bool) -> None:
    """Raises ChannelError 406 unless a property is the same as before. `thing` comes from `describe`."""
    if current != received:
        _refuse(thing, field, f"'{_text(received)}'", f"'{_text(current)}'")


def check_arguments(
    thing: str, names: Iterable[str], current: Mapping[str, Value], received: Mapping[str, Value]
) -> None:
    """Raises ChannelError 406 unless each of the named arguments is the same as before, or missing both times."""
    for name in names:
        there, here = name in current, name in received
        if there != here or (there and not _same(current[name], received[name])):
            _refuse(thing, name, _argument(name, received, there), _argument(name, current, here))


def _same(one: Value, other: Value) -> bool:
    """Whether two values are equal and of one type. As with RabbitMQ, 10 and 10.0 differ, but integers of 32 and 64 bits do not."""
    return isinstance(one, float) == isinstance(other, float) and canonical(one) == canonical(other)


def type_name(value: Value) -> str:
    """Return RabbitMQ's name for the type of a table value."""
    match value:
        case None:
            return "void"
        case bool():
            return "bool"
        case Timestamp() | datetime():
            return "timestamp"
        case int():
            return "signedint" if -(1 << 31) <= value < 1 << 31 else "long"
        case float():
            return "double"
        case str():
            return "longstr"
        case bytes():
            return "binary"
        case Decimal():
            return "decimal"
        case list():
            return "array"
        case dict():
            return "table"


def _refuse(thing: str, field: str, received: str, current: str) -> None:
    text = f"inequivalent arg '{field}' for {thing}: received {received} but current is {current}"
    raise ChannelError(PRECONDITION_FAILED, text)


def _argument(name: str, arguments: Mapping[str, Value], both: bool) -> str:
    """Describe an argument. `both` says that the other declaration has it, too."""
    if name not in arguments:
        return "none"
    value = arguments[name]
    return f"'{_text(value)}'" if both else f"the value '{_text(value)}' of type '{type_name(value)}'"


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
