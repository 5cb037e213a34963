"""What happens in etcd: requests of leaders arrive, and etcd itself is damaged.

A request names the version of the document that its leader had read. Whatever changes the document makes all other
requests on their way fail; who has sent one learns nothing from that, so they are simply taken out of the state
(`outdated`). A request may also never arrive: then it stays where it is, or another one takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.ha.model.rules import Rule, Setting
from tests.ha.model.state import MISSING, NOBODY, OTHER, RESTORED, Etcd, History, Kind, Node, Step, listed, name


def arrivals(setting: Setting, me: int, node: Node, etcd: Etcd, confirmed: History) -> Iterator[Step]:
    """A request of this node is done. The answer to the latest one is on its way then, and may never come."""
    if etcd.condition == MISSING:
        return
    asked = node.lead.asked if node.lead else None
    for request in sorted({*node.late, *([asked] if asked else [])}):
        adds, member = request
        after = etcd._replace(members=etcd.members | {member} if adds else etcd.members - {member})
        new = outdated(setting, node, Kind.CHANGES)
        if node.lead is not None and request == asked:
            # an addition that is done changes nothing for its leader, which waits for the member already
            answer = request if not adds or not setting.keeps(Rule.R2_ADD) else node.lead.answer
            new = new._replace(lead=node.lead._replace(asked=None, answer=answer))
        late = "" if request == asked else "late "
        what = f"the {late}request of {name(me)} to {'add' if adds else 'remove'} {name(member)}"
        yield Step(f"{what} is done: members {listed(after.members)}", new, after, confirmed, Kind.CHANGES)


def outdated(setting: Setting, node: Node, kind: Kind) -> Node:
    """The same node after the document has changed: what it has asked for will be refused."""
    if not setting.keeps(Rule.R3_DEFEATS if kind == Kind.ELECTS else Rule.R2_VERSION):
        return node
    if node.lead is None or node.lead.asked is None:
        return node._replace(late=()) if node.late else node
    return node._replace(late=(), lead=node.lead._replace(asked=None))


def etcd_faults(setting: Setting, etcd: Etcd) -> Iterator[tuple[str, Etcd, bool]]:
    """What nobody of the cluster does: the words, the document after it, and whether that is another one."""
    if not etcd.condition:
        if etcd.backup is None:
            backup = (etcd.members, etcd.epoch, etcd.leader)
            yield "somebody takes a backup of etcd", etcd._replace(backup=backup), False
        else:
            members, epoch, leader = etcd.backup
            words = f"etcd is restored from its backup: epoch {epoch}, members {listed(members)}"
            yield words, Etcd(members, epoch, leader, RESTORED), True
        yield "etcd loses everything", Etcd(frozenset(), 0, NOBODY, MISSING), True
    elif etcd.condition == MISSING:
        words = "another cluster writes its document: epoch 0, all nodes are members"
        yield words, Etcd(frozenset(range(setting.nodes)), 0, NOBODY, OTHER), True
