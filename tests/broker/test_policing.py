"""A policy of very many queues is given to them in pieces; what is declared meanwhile has it at once, and a crash leaves no mixture."""

from __future__ import annotations

from random import Random

import pytest

from kvitto.broker.administration import policing
from kvitto.broker.administration.policies import Policy, policy
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.vhost import POLICY, VHost
from tests.support.rig import Rig

QUEUES = 300


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for number in range(QUEUES):
        rig.broker.vhosts["/"].declare_queue(f"q{number}", True, False, False, {}, None)
    rig.settle_down()
    return rig


def vhost(rig: Rig) -> VHost:
    return rig.broker.vhosts["/"]


def made(length: int, name: str = "p", pattern: str = "^q", priority: int = 0) -> Policy:
    return policy(name, {"pattern": pattern, "definition": {"max-length": length}, "priority": priority})


def queues(rig: Rig) -> list[WorkQueue]:
    return [queue for queue in vhost(rig).queues.values() if isinstance(queue, WorkQueue)]


def lengths(rig: Rig) -> set[int]:
    return {queue.max_length for queue in queues(rig)}


def test_a_policy_reaches_many_queues_in_pieces(rig: Rig) -> None:
    """It took as long as it took, in one piece."""
    pieces, changed = 0, 0
    for _ in policing.set_policy(vhost(rig), POLICY, made(7)):
        now = sum(queue.max_length == 7 for queue in queues(rig))
        assert now - changed < 20
        pieces, changed = pieces + 1, now
    assert pieces > QUEUES // 20
    assert lengths(rig) == {7}


def test_what_is_declared_while_a_policy_is_given_out_has_it_at_once(rig: Rig) -> None:
    rig.broker.jobs.start(policing.set_policy(vhost(rig), POLICY, made(7)))
    assert lengths(rig) == {-1, 7}
    assert rig.declare("q-new").max_length == 7
    vhost(rig).delete_queue(vhost(rig).queue(f"q{QUEUES - 1}"))
    while rig.broker.jobs.waiting:
        rig.broker.jobs.run()
    assert lengths(rig) == {7}


def test_changes_of_policies_side_by_side_come_to_the_same_end(rig: Rig) -> None:
    jobs = rig.broker.jobs
    jobs.start(policing.set_policy(vhost(rig), POLICY, made(7)))
    jobs.start(policing.set_policy(vhost(rig), POLICY, made(9, "higher", "^q[0-9]$", 1)))
    jobs.start(policing.set_policy(vhost(rig), POLICY, made(8)))
    jobs.start(policing.clear_policy(vhost(rig), POLICY, "higher"))
    while jobs.waiting:
        jobs.run()
    assert lengths(rig) == {8}
    jobs.start(policing.clear_policy(vhost(rig), POLICY, "p"))
    while jobs.waiting:
        jobs.run()
    assert lengths(rig) == {-1}


def test_a_policy_that_was_given_to_some_is_that_of_all_after_a_crash(rig: Rig) -> None:
    """D2"""
    rig.broker.jobs.start(policing.set_policy(vhost(rig), POLICY, made(7)))
    rig.sync()
    rig.cut(Random(1))
    assert lengths(rig) == {7}


def test_a_pattern_that_is_slow_to_search_makes_the_pieces_small(rig: Rig) -> None:
    slow = made(7, pattern="(q|.{1,100}){5}x|q")
    most = before = 0
    for _ in policing.set_policy(vhost(rig), POLICY, slow):
        now = sum(queue.max_length == 7 for queue in queues(rig))
        most, before = max(most, now - before), now
    assert lengths(rig) == {7}
    assert most <= 2
