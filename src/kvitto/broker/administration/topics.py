"""Topic permissions, as RabbitMQ has them: what routing keys of a topic exchange a user may publish with, and bind with.

A user without an entry for an exchange may use all keys, if the other permissions allow the operation itself. `auth.py` keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass

import re2

from kvitto.broker.routing.patterns import InvalidPattern, Pattern, compile_pattern

NOTHING = "^$"
"""What an empty expression stands for, which finds the empty routing key only."""


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """The two expressions as text, and compiled for one user in one virtual host."""

    write: str
    read: str
    compiled: dict[str, Pattern]

    @classmethod
    def of(cls, user: str, vhost: str, write: str, read: str, stored: bool = False) -> TopicPermission:
        """Compile the expressions. Raises InvalidPattern. A `stored` one is never refused: it grants nothing if it cannot be used."""
        compiled = {}
        for operation, text in (("write", write), ("read", read)):
            expanded = expand(text or NOTHING, user, vhost)
            try:
                compiled[operation] = compile_pattern(expanded)
            except InvalidPattern as error:
                if not stored:
                    raise
                compiled[operation] = Pattern(text, (), str(error))
        return cls(write, read, compiled)

    def grants(self, operation: str, routing_key: str) -> bool:
        return self.compiled[operation].found_in(routing_key)


def expand(text: str, user: str, vhost: str) -> str:
    """Put the names in place of {username} and {vhost}. They stand for themselves, whatever characters they have.

    RabbitMQ inserts them as they are, so that a user with the name `.*` may use every key.
    """
    for variable, value in (("{username}", user), ("{vhost}", vhost)):
        if variable in text:
            text = text.replace(variable, re2.escape(value))
    return text
