"""What is set up beside the queues of the client's day, and which settings follow from it; nothing here asks the broker what is right.

A set-up is a plain dictionary, so that two of them can be compared. `observed` reads one from a broker, and everything else is the
model: what a policy gives to a queue is written down again from docs/policies.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from kvitto.broker.administration.auth import User
from kvitto.broker.broker import Broker
from kvitto.broker.vhost import VHost

Setup = dict[tuple[str, ...], Any]
"""(kind, names...) -> value."""
Effective = dict[str, Any]
"""Settings of a queue, by their names in a policy."""

RULED = "ruled"
"""A queue without arguments, whose settings policies give and take while it is used."""
FLEETING = "fleeting"
"""A queue that a policy may have expire."""
IMPORTED = "imp-"
"""What an import brings begins with this, so that nobody else touches it."""
DEFAULT = ("overflow", "drop-head")
LIMITS = ("max-length", "message-ttl", "expires", "delivery-limit")
"""Of two the smaller one applies."""


# -- the model -------------------------------------------------------------------------------------------------


def effective(setup: Setup, queue: str) -> Effective:
    """What a queue without arguments in the vhost "/" does, as docs/policies.md has it."""
    settings = dict(_applying(setup, "policy", queue))
    for key, value in _applying(setup, "operator_policy", queue).items():
        settings[key] = min(value, settings.get(key, value)) if key in LIMITS else value
    if "dead-letter-exchange" not in settings:
        settings.pop("dead-letter-routing-key", None)
    return settings


def _applying(setup: Setup, kind: str, queue: str) -> dict[str, Any]:
    fitting = [
        (-value["priority"], key[2], value["definition"])
        for key, value in setup.items()
        if key[:2] == (kind, "/") and re.search(value["pattern"], queue)
    ]
    return min(fitting, key=lambda each: each[:2])[2] if fitting else {}


def drops(settings: Effective) -> int:
    """How many messages the queue keeps before it drops older ones; -1: all."""
    return settings.get("max-length", -1) if settings.get("overflow", "drop-head") == "drop-head" else -1


def refuses(settings: Effective) -> bool:
    return "max-length" in settings and settings.get("overflow") == "reject-publish"


def stages(before: Setup, items: Sequence[tuple[tuple[str, ...], Any]]) -> list[Setup]:
    """What there may be after a failure while items are brought in one after the other: a beginning of them."""
    found = [before]
    for key, value in items:
        found.append({**found[-1], key: value})
    return found


# -- the broker ------------------------------------------------------------------------------------------------


def observed(broker: Broker) -> Setup:
    """What a broker has of all this."""
    users = [user for user in broker.users if user.name != "guest"]
    found: Setup = {("user", user.name): sorted(user.tags) for user in users}
    for user in users:
        found |= {("permission", user.name, where): given_to(user, where) for where in user.permissions}
    found |= {("vhost", name): True for name in broker.vhosts if name != "/"}
    found |= {("global_parameter", name): value for name, value in broker.parameters.globals.items()}
    for vhost in broker.vhosts.values():
        found |= dict(_of_vhost(vhost))
    return found


def given_to(user: User, vhost: str) -> list[str]:
    given = user.permissions[vhost]
    return [given.configure, given.write, given.read]


def _of_vhost(vhost: VHost) -> Iterator[tuple[tuple[str, ...], Any]]:
    for kind in ("policy", "operator_policy"):
        for policy in vhost.policies_by_name(kind).values():
            yield (kind, vhost.name, policy.name), policy.value()
    for queue in vhost.queues.values():
        if queue.name.startswith(IMPORTED):
            yield ("queue", vhost.name, queue.name), dict(queue.arguments)
    for exchange in vhost.exchanges.values():
        if exchange.name.startswith(IMPORTED):
            yield ("exchange", vhost.name, exchange.name), exchange.type
            for binding in exchange.bindings():
                yield ("binding", vhost.name, exchange.name, binding.dest.name, binding.routing_key), True


def settings_of(broker: Broker) -> dict[str, Effective]:
    """The settings in force of the queues that policies are about, in the words of `effective`."""
    queues = broker.vhosts["/"].queues
    return {name: dict(_settings(queues[name].settings)) for name in (RULED, FLEETING) if name in queues}


def _settings(settings: Any) -> Iterator[tuple[str, Any]]:
    numbers = (settings.max_length, settings.ttl_ms, settings.expires_ms, settings.delivery_limit)
    yield from ((key, value) for key, value in zip(LIMITS, numbers, strict=True) if value >= 0)
    if settings.overflow != "drop-head":
        yield "overflow", settings.overflow
    if settings.dead_letter_exchange is not None:
        yield "dead-letter-exchange", settings.dead_letter_exchange
    if settings.dead_letter_routing_key is not None:
        yield "dead-letter-routing-key", settings.dead_letter_routing_key


def check_settings(found: dict[str, Effective], setup: Setup) -> None:
    """The queues do what their policies say."""
    for name, settings in found.items():
        expected = {key: value for key, value in effective(setup, name).items() if (key, value) != DEFAULT}
        assert settings == expected, f"{name} has {settings}, its policies say {expected}"
