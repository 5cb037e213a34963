"""Setting and deleting a policy, as a job (broker/jobs.py), since it may apply to 100,000 queues.

The first piece writes the definition. From then on new queues and exchanges get the new policy, and after a crash all of them do.
Existing ones get it piece by piece. Two changes that run side by side have the same result in any order, because each looks up the
policy that applies now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.base.limits import POLICY_COST_MAX
from kvitto.broker.administration import delaying, policies
from kvitto.broker.administration.arguments import read_settings, usable
from kvitto.broker.administration.equivalence import describe
from kvitto.broker.administration.removal import Steps
from kvitto.broker.jobs import Cost

if TYPE_CHECKING:
    from kvitto.broker.administration.policies import Policy
    from kvitto.broker.queues.queue import Queue
    from kvitto.broker.vhost import VHost

SETTINGS = 30
"""The cost of giving a queue other settings, in units of about a microsecond."""
CONSUMER = 2
EXCHANGE = 4
"""The cost of giving an exchange what its policy says, and of having it delay, or no longer."""
HIDDEN_QUEUE = 200
"""The cost of giving an exchange its hidden queue, because it delays from now on."""


def check_room(vhost: VHost, kind: str, policy: Policy, planned: int = 0) -> int:
    """Raises ChannelError 406 if the policies of the virtual host would take too long to search. `planned` is the cost of others that
    will be set. Returns by how much the cost grows."""
    before = vhost.policies_by_name(kind).get(policy.name)
    more = policy.pattern.cost - (0 if before is None else before.pattern.cost)
    if more > 0 and _search_cost(vhost) + planned + more > POLICY_COST_MAX:
        text = f"the patterns of all policies of vhost '{vhost.name}' would take too long to search: use fewer or simpler ones"
        raise ChannelError(PRECONDITION_FAILED, text)
    return more


def set_policy(vhost: VHost, kind: str, policy: Policy) -> Steps:
    """Add or replace a policy. `kind` is POLICY or OPERATOR_POLICY."""
    found = vhost.policies_by_name(kind)
    before = found.get(policy.name, policy)
    found[policy.name] = policy
    vhost.broker.define(kind, (vhost.name, policy.name), policy.value())
    thing = describe("policy", policy.name, vhost.name)
    vhost.broker.notices.without_effect(thing, policy.definition, policies.HONOURED_POLICY)
    yield from _apply(vhost, before, policy)


def clear_policy(vhost: VHost, kind: str, name: str) -> Steps:
    gone = vhost.policies_by_name(kind).pop(name)
    vhost.broker.undefine(kind, (vhost.name, name))
    yield from _apply(vhost, gone)


def _apply(vhost: VHost, *changed: Policy) -> Steps:
    """Apply a change of one policy. `changed` has its old and its new version. Queues that neither version matches keep their settings."""
    cost, few = Cost(), sum(policy.pattern.cost for policy in changed)
    for queue in list(vhost.queues.values()):
        kinds = policies.queue_kinds(queue.arguments)
        if not queue.deleted and any(policy.fits(kinds, queue.name) for policy in changed):
            _take(vhost, queue)
            more = SETTINGS + CONSUMER * len(queue.consumers) + _search_cost(vhost)
        else:
            more = 0
        if cost.spend(few + more):
            yield True
    for exchange in list(vhost.exchanges.values()):
        more = EXCHANGE + _search_cost(vhost)
        if not exchange.deleted:
            exchange.take_policy(vhost.policy_of_exchange(exchange.name))
            more += HIDDEN_QUEUE * delaying.follow(vhost, exchange)
        if cost.spend(more):
            yield True
    vhost.changed()


def _search_cost(vhost: VHost) -> int:
    """Return the cost of looking up the policies of one queue."""
    return 1 + sum(p.pattern.cost for found in (vhost.policies, vhost.operator_policies) for p in found.values())


def _take(vhost: VHost, queue: Queue) -> None:
    found = vhost.policies_of(queue.name, queue.arguments)
    if found != (queue.policy, queue.operator_policy):
        queue.policy, queue.operator_policy = found
        queue.take_settings(read_settings(policies.for_queue(usable(queue.arguments), *found)))
