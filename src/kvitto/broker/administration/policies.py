"""Policies: what holds for all queues and exchanges of a virtual host whose names match, and may change while they live (A8, D2).

As RabbitMQ's: of the policies that match, the one with the highest priority counts, and of equal ones the first by name. Beside it an
operator policy may give limits, and say what a queue does that has reached one. `arguments.with_policy` has what they mean for a
queue; here is which of them applies.
"""

from __future__ import annotations

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
from kvitto.broker.routing.exchange import ALTERNATE
from kvitto.broker.routing.patterns import InvalidPattern, Pattern, compile_pattern, stored_pattern

QUEUE_TYPES = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}
EXCHANGE_KINDS = ("all", "exchanges")
APPLY_TO = (*EXCHANGE_KINDS, "queues", *QUEUE_TYPES.values())
HONOURED_POLICY = (*QUEUE_POLICY, ALTERNATE)
OPERATOR_POLICY = (*SMALLER_COUNTS, "overflow", *RETRIES)
"""What an operator policy may say."""
PRIORITY_MAX = (1 << 31) - 1


class InvalidPolicy(ValueError):
    """A policy that cannot be; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`pattern`: a regular expression that is looked for in names. `definition`: settings, named as the arguments without `x-`."""

    name: str
    pattern: Pattern
    apply_to: str
    definition: Mapping[str, Any]
    priority: int

    def fits(self, kinds: Collection[str], name: str) -> bool:
        return self.apply_to in kinds and self.pattern.found_in(name)

    def value(self) -> dict[str, Any]:
        """As the definitions have it."""
        return {
            "pattern": self.pattern.text,
            "apply-to": self.apply_to,
            "definition": dict(self.definition),
            "priority": self.priority,
        }


def policy(name: str, value: Mapping[str, Any], operator: bool = False, stored: bool = False) -> Policy:
    """From the body of a request or the value of a stored definition: pattern, definition, apply-to, priority. InvalidPolicy.

    A stored one is there even if its pattern cannot be searched for any more; it fits nothing then.
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
    arguments.setdefault("x-dead-letter-exchange", "")  # a queue may have one of its own
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
        raise InvalidPolicy(f"{key!r} is no setting of {sort}; these are: {', '.join(known)}")
    if value is None:
        raise InvalidPolicy(f"{key}: there is no value")
    if key == ALTERNATE and not (isinstance(value, str) and len(value.encode()) <= SHORTSTR_MAX):
        raise InvalidPolicy(f"{key}: expected the name of an exchange, got {value!r}")
    if key in SHORTER_COUNTS and not (isinstance(value, str) and age_ms(value) >= 0):
        raise InvalidPolicy(f"{key}: expected a number and one of the units {', '.join(AGE_UNITS_MS)}, got {value!r}")


def first_that_fits(policies: Iterable[Policy], kinds: Collection[str], name: str) -> Policy | None:
    """The one that counts for a queue or exchange; `kinds`: the values of apply-to that mean it."""
    fitting = [policy for policy in policies if policy.fits(kinds, name)]
    return min(fitting, key=lambda policy: (-policy.priority, policy.name), default=None)


def queue_kinds(arguments: Mapping[str, Any]) -> Collection[str]:
    kind = arguments.get("x-queue-type") or "classic"
    return ("all", "queues", QUEUE_TYPES[kind])


def for_queue(arguments: dict[str, Any], policy: Policy | None, operator: Policy | None) -> dict[str, Any]:
    """The arguments of a queue as if it had been declared with what its policies add."""
    effective = in_effect(policy, operator)
    return with_policy(arguments, effective) if effective else arguments


def in_effect(policy: Policy | None, operator: Policy | None) -> dict[str, Any]:
    """What both say together: of two limits the stricter one counts, of all else what the operator's policy says."""
    effective = dict(policy.definition) if policy is not None else {}
    operators = operator.definition if operator is not None else {}
    if any(key in operators for key in RETRIES):
        effective = {key: value for key, value in effective.items() if key not in RETRIES}
    for key, value in operators.items():
        counts = key in SMALLER_COUNTS and key in effective
        effective[key] = stricter(key, effective[key], value) if counts else value
    return {key: value for key, value in effective.items() if key not in inert.POLICY}
