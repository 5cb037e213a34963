"""The type of a queue: what a declaration without one means, and when two declarations name the same one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TYPE = "x-queue-type"
CLASSIC = "classic"


def type_of(arguments: Mapping[str, Any]) -> str:
    """The type that these arguments ask for; `classic` if they do not say."""
    return arguments.get(TYPE) or CLASSIC


def with_default(arguments: dict[str, Any], default: str, lasting: bool) -> dict[str, Any]:
    """The arguments of a declaration with its virtual host's default queue type, where they name none.

    `lasting`: the queue is durable, neither exclusive nor deleted automatically, and has a name of its own; as with RabbitMQ all
    others are classic whatever the default is. `classic` is not written into the arguments: no argument means just that.
    """
    if default == CLASSIC or not lasting or arguments.get(TYPE) is not None:
        return arguments
    return {**arguments, TYPE: default}
