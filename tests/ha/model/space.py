"""All states that follow from one, as small integers, so that millions of them can be looked at.

Nodes, documents and confirmed histories are numbered when they are first seen, and a state is a tuple of such numbers
(`Key`). The steps are worked out once for each part of a state that they depend on, and looked up from then on: the rules
may be written for people. States that differ only in the names of nodes are one state; `canonical` gives it, and calls
the node that was elected last A.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import permutations
from typing import Generic, TypeVar

from tests.ha.model import promises
from tests.ha.model.etcd_steps import arrivals, etcd_faults, outdated
from tests.ha.model.link_steps import link_steps
from tests.ha.model.node_steps import node_steps
from tests.ha.model.rules import Setting
from tests.ha.model.state import NOBODY, Etcd, History, Kind, Node, State, etcd_renamed, initial, renamed

Key = tuple[int, ...]
"""Numbers of the document, of what is confirmed, and of each node."""
Next = tuple[str, Key, Kind, str]
"""A step that is possible: its words, the state after it, what it means for others, and a promise that it breaks."""
Alone = list[tuple[str, int, int, int, Kind, str]]
"""Steps of one node: words, node, document, confirmed, kind, wrong."""
T = TypeVar("T", bound=Hashable)


class Numbers(Generic[T]):
    """Values and their numbers."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self.known: dict[T, int] = {}

    def number(self, value: T) -> int:
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = len(self.values)
            self.values.append(value)
        return found


class Space:
    """The states of a setting, and the steps between them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.each = range(setting.nodes)
        self.nodes, self.etcds, self.histories = Numbers[Node](), Numbers[Etcd](), Numbers[History]()
        self.alone: dict[Key, Alone] = {}
        self.links: dict[Key, list[tuple[str, int, int]]] = {}
        self.faults: dict[int, list[tuple[str, int, bool]]] = {}
        self.judged: dict[Key, str] = {}
        self.counted: dict[Key, str] = {}
        self.stale: tuple[dict[int, int], dict[int, int]] = ({}, {})
        self.names = list(permutations(self.each))
        """Each way to call the nodes: node `i` becomes `names[i]`."""
        self.ways: dict[int, list[tuple[int, dict[int, int], Key]]] = {}
        self.called: list[dict[int, int]] = [{} for _ in self.names]

    def first(self) -> Key:
        return self.key(initial(self.setting.nodes))

    def key(self, state: State) -> Key:
        nodes = (self.nodes.number(node) for node in state.nodes)
        return (self.etcds.number(state.etcd), self.histories.number(state.confirmed), *nodes)

    def state(self, key: Key) -> State:
        nodes = tuple(self.nodes.values[number] for number in key[2:])
        return State(self.etcds.values[key[0]], self.histories.values[key[1]], nodes)

    def next(self, key: Key) -> Iterator[Next]:
        """All steps that are possible in this state."""
        for me in self.each:
            yield from self.next_alone(key, me)
            if self.nodes.values[key[2 + me]].lead is not None:
                for other in self.each:
                    if other != me:
                        yield from self.next_on_link(key, other, me)
        if self.setting.etcd_faults:
            for words, etcd, changed in self.steps_of_etcd(key[0]):
                nodes = [self.outdated(other, Kind.CHANGES) for other in key[2:]] if changed else key[2:]
                yield words, (etcd, key[1], *nodes), Kind.CHANGES, ""

    def next_alone(self, key: Key, me: int) -> Iterator[Next]:
        nodes = key[2:]
        situation = (me, nodes[me], key[0], key[1])
        known = self.alone.get(situation)
        if known is None:
            known = self.alone[situation] = self.steps_alone(*situation)
        for words, new, etcd, confirmed, kind, wrong in known:
            if kind < Kind.CHANGES:
                after = (etcd, confirmed, *nodes[:me], new, *nodes[me + 1 :])
                if kind == Kind.CONFIRMS:
                    wrong = wrong or self.copies(after)
            else:
                others = [self.outdated(other, kind) for other in nodes]
                others[me] = new
                after = (etcd, confirmed, *others)
            yield words, after, kind, wrong

    def steps_alone(self, me: int, number: int, etcd: int, confirmed: int) -> Alone:
        seen = self.nodes.values[number], self.etcds.values[etcd], self.histories.values[confirmed]
        found: Alone = []
        for step in (*node_steps(self.setting, me, *seen), *arrivals(self.setting, me, *seen)):
            new = outdated(self.setting, step.node, step.kind) if step.kind == Kind.ELECTS else step.node
            numbers = self.nodes.number(new), self.etcds.number(step.etcd), self.histories.number(step.confirmed)
            found.append((step.words, *numbers, step.kind, step.wrong))
        return found

    def next_on_link(self, key: Key, me: int, boss: int) -> Iterator[Next]:
        situation = (me, key[2 + me], boss, key[2 + boss], key[0])
        known = self.links.get(situation)
        if known is None:
            node, leader, etcd = (
                self.nodes.values[situation[1]],
                self.nodes.values[situation[3]],
                self.etcds.values[key[0]],
            )
            steps = link_steps(self.setting, me, node, boss, leader, etcd)
            known = [(step.words, self.nodes.number(step.follower), self.nodes.number(step.leader)) for step in steps]
            self.links[situation] = known
        for words, follower, leads in known:
            after = list(key)
            after[2 + me], after[2 + boss] = follower, leads
            yield words, tuple(after), Kind.QUIET, ""

    def steps_of_etcd(self, etcd: int) -> list[tuple[str, int, bool]]:
        known = self.faults.get(etcd)
        if known is None:
            faults = etcd_faults(self.setting, self.etcds.values[etcd])
            known = self.faults[etcd] = [(words, self.etcds.number(new), changed) for words, new, changed in faults]
        return known

    def outdated(self, number: int, kind: Kind) -> int:
        known = self.stale[kind == Kind.ELECTS]
        found = known.get(number)
        if found is None:
            found = known[number] = self.nodes.number(outdated(self.setting, self.nodes.values[number], kind))
        return found

    def wrong(self, key: Key) -> str:
        """What this state breaks of promise 1, if anything."""
        for me in self.each:
            situation = (me, key[2 + me], key[0], key[1])
            found = self.judged.get(situation)
            if found is None:
                seen = self.nodes.values[key[2 + me]], self.etcds.values[key[0]], self.histories.values[key[1]]
                found = self.judged[situation] = promises.lost(self.setting, me, *seen)
            if found:
                return found
        return ""

    def copies(self, after: Key) -> str:
        """What a confirm breaks of promise 3, if anything."""
        found = self.counted.get(after[1:])
        if found is None:
            nodes = tuple(self.nodes.values[number] for number in after[2:])
            found = promises.too_few(self.setting, nodes, self.histories.values[after[1]])
            self.counted[after[1:]] = found
        return found

    def canonical(self, key: Key) -> Key:
        """The one among the states that differ from this one only in names."""
        nodes, confirmed = key[2:], key[1]
        ways = self.ways.get(key[0])
        if ways is None:
            ways = self.ways[key[0]] = list(self.ways_to_call(key[0]))
        best: Key | None = None
        for etcd, called, order in ways:
            try:
                fresh = (etcd, confirmed, *[called[nodes[old]] for old in order])
            except KeyError:
                self.call(nodes)
                fresh = (etcd, confirmed, *[called[nodes[old]] for old in order])
            if best is None or fresh < best:
                best = fresh
        assert best is not None
        return best

    def ways_to_call(self, number: int) -> Iterator[tuple[int, dict[int, int], Key]]:
        """The document with other names, what nodes are then, and which node comes to which place."""
        etcd = self.etcds.values[number]
        for names, called in zip(self.names, self.called, strict=True):
            if etcd.leader == NOBODY or names[etcd.leader] == 0:
                order = tuple(names.index(place) for place in self.each)
                yield self.etcds.number(etcd_renamed(etcd, names)), called, order

    def call(self, nodes: Key) -> None:
        """Work out what these nodes are with all names."""
        for names, called in zip(self.names, self.called, strict=True):
            for number in nodes:
                if number not in called:
                    called[number] = self.nodes.number(renamed(self.nodes.values[number], names))
