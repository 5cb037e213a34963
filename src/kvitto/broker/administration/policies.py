"""Policies: settings for all queues and exchanges of a virtual host whose names match. They may change at any time (A8, D2).

As with RabbitMQ, the matching policy with the highest priority applies, and among equal priorities the first by name. An operator
policy may add limits, and say what a queue does at its limit. This module decides which policy applies; `arguments.with_policy`
merges it with the arguments of a queue.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvitto.base.limits import SHORTSTR_MAX
from kvitto.broker.administration import inert
from kvitto.broker.administration.argument_reader import AGE_UNITS_MS, InvalidArgument, age_ms
from kvitto.broker.administration.arguments import (
    QUEUE_POLICY,
    RETRIES,
    SHORTER_COUNTS,
    SMALLER_COUNTS,
    read_settings,
    stricter,
    with_policy,
)
from kvitto.broker.routing.delayed import POLICY_KEY as DELAYED
from kvitto.broker.routing.exchange import ALTERNATE
from kvitto.broker.routing.patterns import InvalidPattern, Pattern, compile_pattern, stored_pattern

QUEUE_TYPES = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}
EXCHANGE_KINDS = ("all", "exchanges")
APPLY_TO = (*EXCHANGE_KINDS, "queues", *QUEUE_TYPES.values())
HONOURED_POLICY = (*QUEUE_POLICY, ALTERNATE, DELAYED)
OPERATOR_POLICY = (*SMALLER_COUNTS, "overflow", *RETRIES)
"""The settings that an operator policy may have."""
PRIORITY_MAX = (1 << 31) - 1


class InvalidPolicy(ValueError):
    """A policy is invalid. The text says why."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`pattern`: a regular expression that is searched for in names. `definition`: settings, named like arguments without `x-`."""

    name: str
    pattern: Pattern
    apply_to: str
    definition: Mapping[str, Any]
    priority: int

    def fits(self, kinds: Collection[str], name: str) -> bool:
        return self.apply_to in kinds and self.pattern.found_in(name)

    def value(self) -> dict[str, Any]:
        """Return the policy as the definitions store it."""
        return {
            "pattern": self.pattern.text,
            "apply-to": self.apply_to,
            "definition": dict(self.definition),
            "priority": self.priority,
        }


def policy(name: str, value: Mapping[str, Any], operator: bool = False, stored: bool = False) -> Policy:
    """Make a policy from the body of a request or from a stored definition: pattern, definition, apply-to, priority.

    Raises InvalidPolicy. A stored policy is accepted even if this version cannot use its pattern, which then matches nothing.
    """
    pattern, definition = value.get("pattern"), value.get("definition")
    apply_to, priority = value.get("apply-to", "all"), value.get("priority", 0)
    if not isinstance(pattern, str):
        raise InvalidPolicy("pattern is missing, or no string")
    try:
        compiled = stored_pattern(pattern) if stored else compile_pattern(pattern)
    except InvalidPattern as error:
        raise InvalidPolicy(f"pattern: {error}") from None
    if not isinstance(definition, dict) or not definition:
        raise InvalidPolicy("definition is missing, or no object with settings")
    if apply_to not in APPLY_TO:
        raise InvalidPolicy(f"apply-to {apply_to!r} is none of {', '.join(APPLY_TO)}")
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > PRIORITY_MAX:
        raise InvalidPolicy(f"priority must be an integer up to {PRIORITY_MAX}, not {priority!r}")
    arguments = {"x-" + key: setting for key, setting in definition.items() if key in QUEUE_POLICY}
    arguments.setdefault("x-dead-letter-exchange", "")  # a key alone is valid: a queue may have an exchange of its own
    try:
        for key, setting in definition.items():
            _check_setting(key, setting, operator)
        read_settings(arguments)
    except UnicodeEncodeError as error:
        raise InvalidPolicy(f"definition: {error.object!r} is not UTF-8") from None
    except InvalidArgument as error:
        raise InvalidPolicy(f"{error.name.removeprefix('x-')}: {error.why}") from None
    return Policy(name, compiled, apply_to, dict(definition), priority)


def _check_setting(key: str, value: Any, operator: bool) -> None:
    known = OPERATOR_POLICY if operator else HONOURED_POLICY
    if key not in known and key not in (inert.OPERATOR_POLICY if operator else inert.POLICY):
        sort = "operator policies" if operator else "policies"
        alike = difflib.get_close_matches(key, (*known, *inert.POLICY), 1)
        hint = f", is it {alike[0]!r}?" if alike else f"; these are: {', '.join(known)}"
        raise InvalidPolicy(f"{key!r} is no setting of {sort}{hint}")
    if value is None:
        raise InvalidPolicy(f"{key}: there is no value")
    if key == ALTERNATE and not (isinstance(value, str) and len(value.encode()) <= SHORTSTR_MAX):
        raise InvalidPolicy(f"{key}: expected the name of an exchange, got {value!r}")
    if key == DELAYED and not isinstance(value, bool):
        raise InvalidPolicy(f"{key}: expected true or false, got {value!r}")
    if key in SHORTER_COUNTS and not (isinstance(value, str) and age_ms(value) >= 0):
        raise InvalidPolicy(f"{key}: expected a number and one of the units {', '.join(AGE_UNITS_MS)}, got {value!r}")


def first_that_fits(policies: Iterable[Policy], kinds: Collection[str], name: str) -> Policy | None:
    """Return the policy that applies to a queue or exchange. `kinds` are the values of apply-to that include it."""
    fitting = [policy for policy in policies if policy.fits(kinds, name)]
    return min(fitting, key=lambda policy: (-policy.priority, policy.name), default=None)


def queue_kinds(arguments: Mapping[str, Any]) -> Collection[str]:
    kind = arguments.get("x-queue-type") or "classic"
    return ("all", "queues", QUEUE_TYPES[kind])


def for_queue(arguments: dict[str, Any], policy: Policy | None, operator: Policy | None) -> dict[str, Any]:
    """Return the arguments of a queue with what its policies add."""
    effective = in_effect(policy, operator)
    return with_policy(arguments, effective) if effective else arguments


def in_effect(policy: Policy | None, operator: Policy | None) -> dict[str, Any]:
    """Merge both policies. Of two limits the stricter one applies, of other settings the operator policy's."""
    effective = dict(policy.definition) if policy is not None else {}
    operators = operator.definition if operator is not None else {}
    if any(key in operators for key in RETRIES):
        effective = {key: value for key, value in effective.items() if key not in RETRIES}
    for key, value in operators.items():
        counts = key in SMALLER_COUNTS and key in effective
        effective[key] = stricter(key, effective[key], value) if counts else value
    return {key: value for key, value in effective.items() if key not in inert.POLICY}
