"""What passes between a follower and a leader: joining, records, acknowledgements.

A connection keeps its order, and a follower and the leader of its epoch agree on all that it has. So what is on its way
needs no place in a state: a record that arrives late is one that is received later, and an acknowledgement that is on its
way is one that the leader knows of and has not used yet. A connection that breaks is one where nothing happens any more;
one that is made again in the same epoch goes on where it was. A mixed follower acknowledges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.ha.model.rules import Rule, Setting
from tests.ha.model.state import LOST, UNSURE, Etcd, Lead, LinkStep, Node, is_prefix, name, told


def link_steps(setting: Setting, me: int, node: Node, boss: int, leader: Node, etcd: Etcd) -> Iterator[LinkStep]:
    """All steps between a node and a leader, which need not be the one that the document names."""
    lead = leader.lead
    if lead is None or node.gone:
        return
    if node.lead is not None:
        if not setting.keeps(Rule.R4_STOPS) and node.epoch > leader.epoch and lead.acked[me] >= 0:
            words = f"{name(me)}, which leads epoch {node.epoch}, goes on acknowledging to {name(boss)}"
            yield acknowledged(words, me, node, leader, lead, len(leader.history))
        return
    if node.epoch < leader.epoch or (node.epoch > leader.epoch and not setting.keeps(Rule.R4_REFUSES)):
        yield from joining(setting, me, node, boss, leader, lead, etcd)
    elif node.epoch == leader.epoch:
        yield from streaming(setting, me, node, boss, leader, lead)


def joining(
    setting: Setting, me: int, node: Node, boss: int, leader: Node, lead: Lead, etcd: Etcd
) -> Iterator[LinkStep]:
    """By rule R7: a follower whose files begin the leader's goes on there; another one is cut, unless it may be elected."""
    if not node.mixed and is_prefix(node.history, leader.history):
        new = node._replace(epoch=leader.epoch)
        words = f"{name(me)} joins {name(boss)} in epoch {leader.epoch} with {told(node.history)}"
        yield acknowledged(words, me, new, leader, lead, node.synced)
        return
    if not setting.keeps(Rule.R4_COMPARED):
        yield LinkStep(
            f"{name(me)} stores epoch {leader.epoch} of {name(boss)}, and fails",
            node._replace(epoch=leader.epoch),
            leader,
        )
    if me not in etcd.members or not setting.keeps(Rule.R7_REMOVED):
        broken = (LOST,) * len(node.history)
        mixed = setting.keeps(Rule.R7_MIXED)
        new = node._replace(epoch=leader.epoch, mixed=mixed, history=() if mixed else broken, synced=0)
        words = f"{name(me)} joins {name(boss)} in epoch {leader.epoch}, and begins to cut and copy"
        yield LinkStep(words, new, leader)


def streaming(setting: Setting, me: int, node: Node, boss: int, leader: Node, lead: Lead) -> Iterator[LinkStep]:
    """Records, syncs with their acknowledgements, and the end of a copy. Positions are taken on trust within an epoch."""
    had = len(node.history)
    if node.mixed:
        synced = len(leader.history) if setting.keeps(Rule.R7_WHOLE) else UNSURE
        new = node._replace(history=leader.history, synced=synced, mixed=False)
        words = f"{name(me)} has copied {told(leader.history)} from {name(boss)}, and is no more mixed"
        yield acknowledged(words, me, new, leader, lead, synced)
        return
    if had < len(leader.history):
        new = node._replace(history=(*node.history, leader.history[had]))
        yield LinkStep(
            f"{name(me)} receives record {had + 1} of epoch {new.history[had]} from {name(boss)}", new, leader
        )
    if node.synced < had:
        words = f"{name(me)} syncs, and acknowledges {had} to {name(boss)}"
        yield acknowledged(words, me, node._replace(synced=had), leader, lead, had)
    if lead.acked[me] < had and not setting.keeps(Rule.R1_SYNC_FIRST):
        yield acknowledged(
            f"{name(me)} acknowledges {had} to {name(boss)} before it syncs", me, node, leader, lead, had
        )


def acknowledged(words: str, me: int, node: Node, leader: Node, lead: Lead, position: int) -> LinkStep:
    acked = (*lead.acked[:me], position, *lead.acked[me + 1 :])
    return LinkStep(words, node, leader._replace(lead=lead._replace(acked=acked)))
