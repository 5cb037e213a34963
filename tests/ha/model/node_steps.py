"""What one node does by itself: it leads, asks etcd, fails, is elected.

Each function gives the steps that are possible for a node at one moment. It sees the node, the document and what has
been confirmed, nothing of other nodes. The lease has no place here, because it may end at any moment: an election is
possible in every state. A node that is down is a node that does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.ha.model.rules import Rule, Setting
from tests.ha.model.state import (
    LOST,
    MISSING,
    OTHER,
    RESTORED,
    SILENT,
    UNSURE,
    Etcd,
    History,
    Kind,
    Lead,
    Node,
    Request,
    Step,
    is_prefix,
    listed,
    name,
    told,
)


def node_steps(setting: Setting, me: int, node: Node, etcd: Etcd, confirmed: History) -> Iterator[Step]:
    """All of them."""
    if node.gone:
        return
    yield from elections(setting, me, node, etcd, confirmed)
    yield from failures(setting, me, node, etcd, confirmed)
    if node.lead is not None:
        yield from leading(setting, me, node, node.lead, etcd, confirmed)
        if trusts(setting, node, etcd) and (etcd.leader, etcd.epoch) == (me, node.epoch):
            yield from asking(setting, me, node, node.lead, etcd, confirmed)


def trusts(setting: Setting, node: Node, etcd: Etcd) -> bool:
    """By rule R9: whether the node may go by this document."""
    if etcd.condition == RESTORED and setting.keeps(Rule.R9_RESTORED):
        return False
    if etcd.condition == OTHER and setting.keeps(Rule.R9_CLUSTER):
        return False
    if node.epoch > etcd.epoch and setting.keeps(Rule.R9_EPOCH):
        return False
    return etcd.condition != MISSING


def may_be_elected(setting: Setting, me: int, node: Node, etcd: Etcd) -> bool:
    """By rules R3 and R9: whether etcd and the node itself would let it lead now."""
    if node.gone or not trusts(setting, node, etcd):
        return False
    if node.mixed and setting.keeps(Rule.R3_MIXED):
        return False
    return me in etcd.members or not setting.keeps(Rule.R3_MEMBER)


def has_won(setting: Setting, me: int, node: Node, etcd: Etcd) -> bool:
    """Whether the node will find, as soon as it looks, that it was elected. It leads no epoch twice, not even its own."""
    if node.gone or (node.mixed and setting.keeps(Rule.R3_MIXED)):
        return False
    return etcd.leader == me and etcd.epoch > node.epoch and trusts(setting, node, etcd)


def elections(setting: Setting, me: int, node: Node, etcd: Etcd, confirmed: History) -> Iterator[Step]:
    """By rules R3 and R4. The leader's own lease may have ended too: then it may be elected again, in place."""
    won = has_won(setting, me, node, etcd)
    if won:
        yield takes_up(setting, me, node, etcd, confirmed)
    if etcd.epoch >= setting.epochs or won:
        return
    elected = etcd._replace(epoch=etcd.epoch + 1, leader=me)
    words = f"{name(me)} is elected: epoch {elected.epoch}, members {listed(etcd.members)}"
    if may_be_elected(setting, me, node, etcd):
        yield Step(words, node, elected, confirmed, Kind.ELECTS)
        if not setting.keeps(Rule.R3_VERSION) and not node.campaign:
            yield Step(f"{name(me)} sends its election", node._replace(campaign=True), etcd, confirmed)
    if node.campaign:
        new = node._replace(campaign=False)
        yield Step(f"the election of {name(me)} arrives, and {words}", new, elected, confirmed, Kind.ELECTS)
    if etcd.condition == MISSING and not setting.keeps(Rule.R9_MISSING) and node.epoch < setting.epochs:
        fresh = Etcd(frozenset([me]), node.epoch + 1, me)
        words = f"{name(me)} finds no document and writes one: epoch {fresh.epoch}"
        yield Step(words, node, fresh, confirmed, Kind.ELECTS)


def takes_up(setting: Setting, me: int, node: Node, etcd: Etcd, confirmed: History) -> Step:
    """By rules R4 and R5: the winner has learnt that it was elected. It syncs what it has, stores the epoch, and leads."""
    had = node.history
    silent = tuple(SILENT for _ in range(setting.nodes))
    acked = node.lead.acked if node.lead and not setting.keeps(Rule.R1_EPOCH) else silent
    waits = etcd.members if setting.keeps(Rule.R5_WAITS) else frozenset([me])
    lead = Lead(waits | {me}, acked, len(had) if setting.keeps(Rule.R6_INHERITED) else 0)
    new = node._replace(synced=len(had) if setting.keeps(Rule.R4_SYNCS) else node.synced, epoch=etcd.epoch, lead=lead)
    words = f"{name(me)} has learnt of its election and leads epoch {etcd.epoch} with {told(had)}"
    if setting.keeps(Rule.R1_INHERITED):
        return Step(words, new, etcd, confirmed)
    return confirming(f"{words}, and announces it", me, new, had, etcd, confirmed)


def leading(setting: Setting, me: int, node: Node, lead: Lead, etcd: Etcd, confirmed: History) -> Iterator[Step]:
    """A leader writes, syncs, confirms, and hears etcd's answers, as long as it has not noticed that it is deposed."""
    had = node.history
    if len(had) < setting.records:
        new = node._replace(history=(*had, node.epoch))
        yield Step(f"{name(me)} writes record {len(had) + 1} of epoch {node.epoch}", new, etcd, confirmed)
    if node.synced < len(had):
        yield Step(f"{name(me)} syncs", node._replace(synced=len(had)), etcd, confirmed)
    safe = confirmable(setting, me, node, lead)
    if safe > 0 and (safe > lead.floor or not is_prefix(had[:safe], confirmed)):
        new = node._replace(
            lead=lead._replace(floor=max(lead.floor, safe)) if setting.keeps(Rule.R6_CONFIRMED) else lead
        )
        words = f"{name(me)} confirms {told(had[:safe])}, having waited for {listed(lead.waits)}"
        yield confirming(words, me, new, had[:safe], etcd, confirmed)
    if lead.answer is not None:
        adds, member = lead.answer
        waits = lead.waits | {member} if adds else lead.waits - {member}
        new = node._replace(lead=lead._replace(waits=waits, answer=None))
        done = "added" if adds else "removed, and waits for it no more"
        yield Step(f"{name(me)} hears that {name(member)} is {done}", new, etcd, confirmed)


def confirmable(setting: Setting, me: int, node: Node, lead: Lead) -> int:
    """By rules R1 and R8: up to where the leader may confirm."""
    if len(lead.waits) < setting.minimum and setting.keeps(Rule.R8_MINIMUM):
        return 0
    own = node.synced if setting.keeps(Rule.R1_OWN_SYNC) else len(node.history)
    reached = sorted(own if member == me else lead.acked[member] for member in lead.waits)
    return reached[0] if setting.keeps(Rule.R1_ALL) else reached[(len(reached) - 1) // 2]


def confirming(words: str, me: int, node: Node, records: History, etcd: Etcd, confirmed: History) -> Step:
    """A step that tells clients that these records are safe. Promise 2, no two truths: no two leaders ever confirm different
    records in the same position.
    """
    wrong = ""
    if not is_prefix(records, confirmed) and not is_prefix(confirmed, records):
        wrong = f"{name(me)} confirms {told(records)} where {told(confirmed)} was confirmed before"
    return Step(words, node, etcd, max(records, confirmed, key=len), Kind.CONFIRMS, wrong)


def asking(setting: Setting, me: int, node: Node, lead: Lead, etcd: Etcd, confirmed: History) -> Iterator[Step]:
    """By rules R2 and R6: a leader reads the document and asks for a change of it."""
    for member in range(setting.nodes):
        if member == me:
            continue
        if member in lead.waits:
            waits = lead.waits if setting.keeps(Rule.R2_REMOVE) else lead.waits - {member}
            yield sent(setting, me, node, lead._replace(waits=waits), Request(False, member), etcd, confirmed)
        if member not in etcd.members and lead.acked[member] >= lead.floor:
            waits = lead.waits | {member} if setting.keeps(Rule.R2_ADD) else lead.waits
            yield sent(setting, me, node, lead._replace(waits=waits), Request(True, member), etcd, confirmed)
    if lead.asked is not None and lead.asked.adds and not setting.keeps(Rule.R2_LOST_ADD):
        member = lead.asked.member
        new = given_up(node._replace(lead=lead._replace(waits=lead.waits - {member})), lead.asked)
        words = f"{name(me)} gets no answer, and waits for {name(member)} no more"
        yield Step(words, new, etcd, confirmed)
    if lead.waits != etcd.members and not setting.keeps(Rule.R2_READ):
        new = given_up(node._replace(lead=lead._replace(waits=etcd.members)), lead.asked)
        yield Step(
            f"{name(me)} reads that the members are {listed(etcd.members)}, and waits for them", new, etcd, confirmed
        )


def sent(setting: Setting, me: int, node: Node, lead: Lead, request: Request, etcd: Etcd, confirmed: History) -> Step:
    """A request leaves, and the leader waits for no other answer; that of the one before may come all the same."""
    before = node if lead.asked in (None, request) or setting.requests == 1 else given_up(node, lead.asked)
    answer = None if setting.keeps(Rule.R2_LATEST) else lead.answer
    new = before._replace(lead=lead._replace(asked=request, answer=answer))
    words = f"{name(me)} asks etcd to {'add' if request.adds else 'remove'} {name(request.member)}"
    return Step(words, new, etcd, confirmed)


def given_up(node: Node, request: Request | None) -> Node:
    """Nobody waits for this request any more, but it is still on its way."""
    if request is None:
        return node
    late = tuple(sorted({*node.late, request}))
    return node._replace(lead=node.lead and node.lead._replace(asked=None), late=late)


def failures(setting: Setting, me: int, node: Node, etcd: Etcd, confirmed: History) -> Iterator[Step]:
    """The process is killed, or the power fails: one that starts again follows, and has its directory and nothing else."""
    after = node
    if node.lead is not None:
        after = given_up(node, node.lead.asked)._replace(lead=None)
        yield Step(f"{name(me)} stops leading, and keeps its files", after, etcd, confirmed, Kind.FAILS)
    if node.synced == UNSURE:
        cut = after._replace(history=(LOST,) * len(node.history), synced=0)
        yield Step(
            f"the power of {name(me)} fails, and files of its copy are missing", cut, etcd, confirmed, Kind.FAILS
        )
        return
    for left in range(node.synced, len(node.history)):
        cut = after._replace(history=node.history[:left])
        yield Step(
            f"the power of {name(me)} fails, and {told(cut.history)} is left there", cut, etcd, confirmed, Kind.FAILS
        )
    if not setting.keeps(Rule.R4_STORES) and node.epoch:
        cut = after._replace(history=node.history[: node.synced], epoch=0)
        yield Step(f"the power of {name(me)} fails, and it forgets its epoch", cut, etcd, confirmed, Kind.FAILS)
    if setting.disk_faults:
        if setting.keeps(Rule.R10_IDENTITY):
            new, words = Node(gone=True, late=after.late), "is lost"
        else:
            new, words = Node(mixed=True, late=after.late), "is lost, and an empty one takes its place"
        yield Step(f"the directory of {name(me)} {words}", new, etcd, confirmed, Kind.FAILS)
