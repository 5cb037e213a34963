"""The model of replication: all states of small worlds keep the promises, and each rule that is left out is missed."""

from __future__ import annotations

import inspect
import os
from dataclasses import replace

import pytest

from tests.ha.model import etcd_steps, link_steps, node_steps
from tests.ha.model.mutations import (
    BOTH_BELTS,
    EVERY_NODE,
    LARGE_WORLDS,
    SECOND_BELTS,
    SMALL,
    WORLDS,
    leaving_out,
)
from tests.ha.model.node_steps import confirming
from tests.ha.model.promises import broken_lemmas
from tests.ha.model.rules import Rule, Setting
from tests.ha.model.search import Finding, search
from tests.ha.model.space import Key, Space
from tests.ha.model.state import Etcd, Node
from tests.ha.model.walk import walks

SEED = int(os.environ["KVITTO_SEED"])
LARGE = os.environ.get("KVITTO_MODEL") == "large"
NEEDED = [rule for rule in Rule if rule not in SECOND_BELTS]
WALKED = Setting(nodes=4, records=6, epochs=12, requests=3, minimum=2)


def reached(setting: Setting) -> tuple[Space, set[Key]]:
    """All states, with every name: nothing is left out because of symmetry."""
    space = Space(setting)
    seen, todo = {space.first()}, [space.first()]
    while todo:
        for _, key, _, wrong in space.next(todo.pop()):
            assert not wrong
            if key not in seen:
                seen.add(key)
                todo.append(key)
    return space, seen


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("world", WORLDS, ids=Setting.told)
def test_in_no_state_of_a_small_world_is_a_promise_broken(world: Setting) -> None:
    found = search(world)
    assert found.complete and found.states > 50_000, found.told()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not LARGE, reason="KVITTO_MODEL=large looks at these worlds too, for some minutes each")
@pytest.mark.parametrize("world", LARGE_WORLDS, ids=Setting.told)
def test_in_no_state_of_a_larger_world_is_a_promise_broken(world: Setting) -> None:
    found = search(world)
    assert found.complete, found.told()


@pytest.mark.slow
@pytest.mark.parametrize("rule", NEEDED, ids=lambda rule: rule.name)
def test_a_rule_that_is_left_out_is_missed(rule: Rule) -> None:
    found = search(leaving_out(rule))
    assert found.wrong and len(found.trace) >= 5, rule.value


@pytest.mark.slow
@pytest.mark.parametrize("rule", SECOND_BELTS, ids=lambda rule: rule.name)
def test_a_second_belt_is_not_missed(rule: Rule) -> None:
    """If one is, another rule has been lost."""
    found = search(leaving_out(rule))
    assert found.complete, found.told()


def test_without_both_belts_a_member_is_cut_and_elected() -> None:
    found = search(BOTH_BELTS)
    assert found.wrong == "A may be elected, and has nothing where e1 was confirmed"
    assert "begins to cut and copy" in found.trace[-1]


def test_a_minimum_of_all_nodes_is_not_kept_by_a_leader_that_was_deposed() -> None:
    """A limit of the rules as they are: a node that has acknowledged may be copying from the next leader."""
    found = search(EVERY_NODE)
    assert found.wrong == "e1 is confirmed, and of 3 nodes that must have it only A C does"


def test_every_rule_is_asked_for_where_it_decides() -> None:
    """A rule that no step asks for could be left out without any effect."""
    sources = "".join(inspect.getsource(module) for module in (node_steps, link_steps, etcd_steps))
    assert [rule.name for rule in Rule if f"Rule.{rule.name}" not in sources] == []


def test_a_trace_can_be_walked_step_by_step_and_ends_in_what_is_wrong() -> None:
    found = search(leaving_out(Rule.R6_CONFIRMED))
    space = Space(found.setting)
    key = space.first()
    for number, words in enumerate(found.trace):
        key, wrong = next((after, wrong) for told, after, _, wrong in space.next(key) if told == words)
        assert bool(wrong or space.wrong(key)) == (number == len(found.trace) - 1)
    assert found.told().splitlines()[-1] == f"Then {found.wrong}."


@pytest.mark.parametrize(
    "world", [Setting(nodes=2, records=2, epochs=2, requests=2), Setting(epochs=1)], ids=Setting.told
)
def test_names_do_not_matter(world: Setting) -> None:
    """The search, which takes states that differ in names for one, sees what can be seen without that."""
    space, seen = reached(world)
    one_of_each = {space.canonical(key) for key in seen}
    assert all(space.canonical(key) in seen for key in seen)
    assert len(one_of_each) == search(world).states < len(seen)
    assert not any(space.wrong(key) for key in seen)


@pytest.mark.parametrize(
    "world",
    [
        Setting(nodes=2, epochs=3, requests=2, etcd_faults=True, disk_faults=True),
        Setting(epochs=1, requests=2),
    ],
    ids=Setting.told,
)
def test_the_lemmas_hold_in_every_state(world: Setting) -> None:
    space, seen = reached(world)
    assert [lemma for key in seen for lemma in broken_lemmas(world, space.state(key))] == []


def test_two_leaders_that_confirm_different_records_are_found() -> None:
    etcd = Etcd(frozenset([0, 1]))
    assert confirming("", 1, Node(), (1, 3), etcd, (1, 2)).wrong == "B confirms e1 e3 where e1 e2 was confirmed before"
    assert not confirming("", 1, Node(), (1,), etcd, (1, 2)).wrong
    assert confirming("", 1, Node(), (1, 2, 2), etcd, (1, 2)).confirmed == (1, 2, 2)


def test_walks_through_a_wide_world_break_no_promise() -> None:
    found = walks(WALKED, SEED, 10_000)
    assert not found.wrong, f"KVITTO_SEED={SEED}\n{found.told()}"


@pytest.mark.parametrize("rule", [Rule.R1_ALL, Rule.R2_REMOVE, Rule.R4_STOPS], ids=lambda rule: rule.name)
def test_walks_miss_a_rule_too_and_a_seed_is_a_walk(rule: Rule) -> None:
    setting = replace(WALKED, without=frozenset([rule]))
    first, again = walks(setting, 1, 20_000), walks(setting, 1, 20_000)
    assert first.wrong and (first.wrong, first.trace) == (again.wrong, again.trace)


def test_a_search_that_is_cut_short_does_not_claim_to_be_complete() -> None:
    assert isinstance(found := search(SMALL, states_max=500), Finding)
    assert not found.complete and not found.wrong and found.states > 500
