"""A policy of very many queues is given to them in pieces; what is declared meanwhile has it at once, and a crash leaves no mixture."""

from __future__ import annotations

from random import Random

import pytest

from kvitto.broker import jobs
from kvitto.broker.administration import policing
from kvitto.broker.administration.policies import Policy, policy
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.vhost import POLICY, VHost
from tests.support.harness import BrokerHarness

QUEUES = 300


@pytest.fixture
def harness() -> BrokerHarness:
    harness = BrokerHarness()
    for number in range(QUEUES):
        harness.broker.vhosts["/"].declare_queue(f"q{number}", True, False, False, {}, None)
    harness.settle_down()
    return harness


def vhost(harness: BrokerHarness) -> VHost:
    return harness.broker.vhosts["/"]


def made(length: int, name: str = "p", pattern: str = "^q", priority: int = 0) -> Policy:
    return policy(name, {"pattern": pattern, "definition": {"max-length": length}, "priority": priority})


def queues(harness: BrokerHarness) -> list[WorkQueue]:
    return [queue for queue in vhost(harness).queues.values() if isinstance(queue, WorkQueue)]


def lengths(harness: BrokerHarness) -> set[int]:
    return {queue.max_length for queue in queues(harness)}


def test_a_policy_reaches_many_queues_in_pieces(harness: BrokerHarness) -> None:
    """It took as long as it took, in one piece."""
    pieces, changed = 0, 0
    for _ in policing.set_policy(vhost(harness), POLICY, made(7)):
        now = sum(queue.max_length == 7 for queue in queues(harness))
        assert now - changed < 20
        pieces, changed = pieces + 1, now
    assert pieces > QUEUES // 20
    assert lengths(harness) == {7}


def test_what_is_declared_while_a_policy_is_given_out_has_it_at_once(harness: BrokerHarness) -> None:
    harness.broker.jobs.start(policing.set_policy(vhost(harness), POLICY, made(7)))
    assert lengths(harness) == {-1, 7}
    assert harness.declare("q-new").max_length == 7
    vhost(harness).delete_queue(vhost(harness).queue(f"q{QUEUES - 1}"))
    while harness.broker.jobs.waiting:
        harness.broker.jobs.run()
    assert lengths(harness) == {7}


def test_changes_of_policies_side_by_side_come_to_the_same_end(harness: BrokerHarness) -> None:
    jobs = harness.broker.jobs
    jobs.start(policing.set_policy(vhost(harness), POLICY, made(7)))
    jobs.start(policing.set_policy(vhost(harness), POLICY, made(9, "higher", "^q[0-9]$", 1)))
    jobs.start(policing.set_policy(vhost(harness), POLICY, made(8)))
    jobs.start(policing.clear_policy(vhost(harness), POLICY, "higher"))
    while jobs.waiting:
        jobs.run()
    assert lengths(harness) == {8}
    jobs.start(policing.clear_policy(vhost(harness), POLICY, "p"))
    while jobs.waiting:
        jobs.run()
    assert lengths(harness) == {-1}


def test_a_policy_that_was_given_to_some_is_that_of_all_after_a_crash(harness: BrokerHarness) -> None:
    """D2"""
    harness.broker.jobs.start(policing.set_policy(vhost(harness), POLICY, made(7)))
    harness.sync()
    harness.cut(Random(1))
    assert lengths(harness) == {7}


def test_a_pattern_that_is_slow_to_search_makes_the_pieces_small(harness: BrokerHarness) -> None:
    slow = made(7, pattern="(q|.{1,100}){5}x|q")
    most = before = 0
    for _ in policing.set_policy(vhost(harness), POLICY, slow):
        now = sum(queue.max_length == 7 for queue in queues(harness))
        most, before = max(most, now - before), now
    assert lengths(harness) == {7}
    assert most <= 2


def test_a_policy_with_delays_comes_and_goes_in_pieces(harness: BrokerHarness) -> None:
    """3,000 exchanges stopped to delay in 7 pieces, of up to 1.5 ms each."""
    for number in range(QUEUES):
        vhost(harness).declare_exchange(f"x{number}", "fanout", True, False, False, {})
    harness.settle_down()
    settings = {"pattern": "^x", "definition": {"delayed-message": True}}

    def delaying() -> int:
        return sum(exchange.delays for exchange in vhost(harness).exchanges.values())

    for _ in range(2):
        for steps in (
            policing.set_policy(vhost(harness), POLICY, policy("later", settings)),
            policing.clear_policy(vhost(harness), POLICY, "later"),
        ):
            before = delaying()
            for _ in steps:
                now = delaying()
                assert abs(now - before) <= jobs.PIECE // policing.EXCHANGE
                before = now
        harness.settle_down()
    assert delaying() == 0
