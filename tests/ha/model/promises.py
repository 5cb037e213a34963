"""What must hold after every step: three promises, and the lemmas that are the reason why they hold.

The search asks for the promises in each state (`lost`), in each confirm (`too_few`, `node_steps.confirming`), and so also
in every state that a request on its way can lead to. The lemmas are asked for only while no rule is left out, because a
rule is there to keep a promise, not a lemma.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.ha.model.node_steps import has_won, may_be_elected
from tests.ha.model.rules import Setting
from tests.ha.model.state import Etcd, History, Node, State, is_prefix, listed, name, told


def durable(node: Node) -> History:
    """What is left after a power cut, as far as anybody may rely on it."""
    return () if node.gone or node.mixed else node.history[: node.synced]


def lost(setting: Setting, me: int, node: Node, etcd: Etcd, confirmed: History) -> str:
    """Promise 1, nothing confirmed is lost: each node that could be elected now, and one that was elected and does not know
    it yet, has after a power cut every record that any leader has ever confirmed.
    """
    if not confirmed or is_prefix(confirmed, durable(node)):
        return ""
    if has_won(setting, me, node, etcd):
        return f"{name(me)} has been elected, and has {told(durable(node))} where {told(confirmed)} was confirmed"
    if may_be_elected(setting, me, node, etcd):
        return f"{name(me)} may be elected, and has {told(durable(node))} where {told(confirmed)} was confirmed"
    return ""


def too_few(setting: Setting, nodes: tuple[Node, ...], confirmed: History) -> str:
    """Promise 3, enough copies: when a record is confirmed, as many nodes as the minimum have it after a power cut. A
    directory that was lost after its acknowledgement counts: that is the failure that the other copies are for.
    """
    holders = frozenset(i for i, node in enumerate(nodes) if is_prefix(confirmed, durable(node)))
    if len(holders) + sum(node.gone for node in nodes) >= setting.minimum:
        return ""
    return (
        f"{told(confirmed)} is confirmed, and of {setting.minimum} nodes that must have it only {listed(holders)} does"
    )


def broken_lemmas(setting: Setting, state: State) -> Iterator[str]:
    """There is one leader in an epoch. The leader that the document names waits for all members. A follower's history is
    the beginning of the history of the leader of its epoch, and it has acknowledged no more. A mixed node is no member.
    """
    etcd, nodes = state.etcd, state.nodes
    leaders = [(i, node) for i, node in enumerate(nodes) if node.lead]
    if len({node.epoch for _, node in leaders}) < len(leaders):
        yield "two nodes lead in the same epoch"
    for i, node in leaders:
        assert node.lead is not None
        if not etcd.condition and etcd.leader == i and etcd.epoch == node.epoch and not etcd.members <= node.lead.waits:
            yield f"{name(i)} leads, and does not wait for all members"
        for j, other in enumerate(nodes):
            if other.lead is None and other.epoch == node.epoch and not is_prefix(other.history, node.history):
                yield f"{name(j)} follows {name(i)}, and its history is no prefix of the leader's"
            if node.lead.acked[j] > len(node.history):
                yield f"{name(j)} has acknowledged to {name(i)} what that has not written"
    for i, node in enumerate(nodes):
        if not node.synced <= len(node.history) <= setting.records:
            yield f"{name(i)} has synced what it does not have"
        if node.mixed and i in etcd.members and not etcd.condition:
            yield f"{name(i)} is mixed, and may be elected"
