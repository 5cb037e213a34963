"""Redeclaring: the same properties and arguments are fine, others are refused in RabbitMQ's words (D1).

People and test suites search for these texts, so they are the peer's, letter for letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker.routing.headers import comparable
from kvitto.wire.tables import Timestamp, Value


def describe(kind: str, name: str, vhost: str) -> str:
    """`queue 'q' in vhost '/'`, as error texts name a thing."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def check_field(thing: str, field: str, current: str | bool, received: str | bool) -> None:
    """406 unless a property is the same as before; `thing` comes from `describe`."""
    if current != received:
        _refuse(thing, field, f"'{_text(received)}'", f"'{_text(current)}'")


def check_arguments(
    thing: str, names: Iterable[str], current: Mapping[str, Value], received: Mapping[str, Value]
) -> None:
    """406 unless each of the named arguments is the same as before, or missing both times."""
    for name in names:
        there, here = name in current, name in received
        if there != here or (there and not _same(current[name], received[name])):
            _refuse(thing, name, _argument(name, received, there), _argument(name, current, here))


def _same(one: Value, other: Value) -> bool:
    """Equal and of one kind: with RabbitMQ 10 and 10.0 are two, 10 in 32 bits and in 64 is one."""
    return isinstance(one, float) == isinstance(other, float) and comparable(one) == comparable(other)


def type_name(value: Value) -> str:
    """What RabbitMQ calls the type of a table value."""
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
    """`both`: the other declaration has this argument too."""
    if name not in arguments:
        return "none"
    value = arguments[name]
    return f"'{_text(value)}'" if both else f"the value '{_text(value)}' of type '{type_name(value)}'"


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
