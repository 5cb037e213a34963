"""Queue types: the default of a declaration without a type, and when two declarations name the same type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TYPE = "x-queue-type"
CLASSIC = "classic"


def type_of(arguments: Mapping[str, Any]) -> str:
    """Return the type that these arguments name, or `classic` if they name none."""
    return arguments.get(TYPE) or CLASSIC


def with_default(arguments: dict[str, Any], default: str, lasting: bool) -> dict[str, Any]:
    """Return the arguments of a declaration, with the virtual host's default queue type if they name none.

    `lasting`: the queue is durable, not exclusive, not deleted automatically, and its name is not generated. As with RabbitMQ, all
    other queues are classic whatever the default is. `classic` is not written into the arguments, since it is what no argument means.
    """
    if default == CLASSIC or not lasting or arguments.get(TYPE) is not None:
        return arguments
    return {**arguments, TYPE: default}
