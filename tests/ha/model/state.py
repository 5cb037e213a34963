"""What a state of the model is: the document in etcd, what has been confirmed, and the nodes.

All values are immutable and small. A record is named by the epoch in which it was written; together with its position
that is unique, because an epoch has one leader, which writes each position once. A step is one of the things that may
happen next, with a sentence that tells it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

History = tuple[int, ...]
"""Records in the order of the stream, each named by the epoch of the leader that wrote it."""
LOST = -1
"""A record of a directory that was cut and not copied whole: nobody knows what is there."""
UNSURE = -1
"""As a synced position, only without `Rule.R7_WHOLE`: of a copy that is not synced a power cut leaves any mixture."""
NOBODY = -1
SILENT = -1
"""The acknowledged position of a node that has not joined the leader in its epoch."""


class Request(NamedTuple):
    """A change of the members that a leader has sent to etcd as a compare-and-swap."""

    adds: bool
    member: int


class Lead(NamedTuple):
    """What a leader has in its memory."""

    waits: frozenset[int]
    """The nodes whose acknowledgements it needs for a confirm, itself included."""
    acked: tuple[int, ...]
    """How far each node has acknowledged the stream of this epoch."""
    floor: int
    """How much a node must have before it may become a member."""
    asked: Request | None = None
    """The latest request, as long as etcd has not decided on it."""
    answer: Request | None = None
    """The latest request, when etcd has done it and the answer is on its way."""


class Node(NamedTuple):
    """A node: what is in its directory, and what it has in memory while it leads."""

    history: History = ()
    synced: int = 0
    """As many records survive a power cut."""
    epoch: int = 0
    """The latest epoch that it has followed or led; it is stored durably."""
    mixed: bool = False
    """Its directory is partly its own and partly the leader's; this is stored durably."""
    gone: bool = False
    """Its directory is lost for ever."""
    lead: Lead | None = None
    late: tuple[Request, ...] = ()
    """Requests on their way to etcd whose answers nobody waits for any more."""
    campaign: bool = False
    """Only without `Rule.R3_VERSION`: its election was sent, and nothing but its arrival can stop it."""


class Etcd(NamedTuple):
    """The document in etcd. Its version is not here: whatever changes the document makes all requests on their way fail."""

    members: frozenset[int]
    """The in-sync set: who may be elected."""
    epoch: int = 0
    leader: int = NOBODY
    condition: str = ""
    """Empty, or `MISSING`, `OTHER` or `RESTORED`."""
    backup: tuple[frozenset[int], int, int] | None = None
    """Members, epoch and leader when somebody took a backup of etcd."""


MISSING = "missing"
OTHER = "other"
"""The document is of another cluster that uses the same etcd."""
RESTORED = "restored"
"""Somebody has restored etcd from the backup."""


class State(NamedTuple):
    """All there is at one moment."""

    etcd: Etcd
    confirmed: History
    nodes: tuple[Node, ...]


class Kind(IntEnum):
    """What a step means for others than the node that does it."""

    QUIET = 0
    FAILS = 1
    """The node loses what it had in memory, and perhaps more."""
    CONFIRMS = 2
    """Clients are told that records are safe."""
    CHANGES = 3
    """The document changes, so that requests on their way fail."""
    ELECTS = 4
    """The document changes by an election."""


class Step(NamedTuple):
    """Something that one node does, alone or with etcd."""

    words: str
    node: Node
    etcd: Etcd
    confirmed: History
    kind: Kind = Kind.QUIET
    wrong: str = ""
    """A promise that this step itself breaks."""


class LinkStep(NamedTuple):
    """Something that passes between a follower and a leader."""

    words: str
    follower: Node
    leader: Node


def initial(count: int) -> State:
    """After `cluster init`: all directories are empty, all nodes are members, and nobody leads."""
    return State(Etcd(frozenset(range(count))), (), (Node(),) * count)


def is_prefix(short: History, long: History) -> bool:
    return long[: len(short)] == short


def renamed(node: Node, names: tuple[int, ...]) -> Node:
    """The same node where node `i` is called `names[i]`."""
    late = tuple(sorted(Request(request.adds, names[request.member]) for request in node.late))
    if (lead := node.lead) is None:
        return node._replace(late=late) if late else node
    acked = [SILENT] * len(names)
    for old, new in enumerate(names):
        acked[new] = lead.acked[old]
    asked, answer = (
        None if request is None else Request(request.adds, names[request.member])
        for request in (lead.asked, lead.answer)
    )
    return node._replace(
        lead=Lead(frozenset(names[i] for i in lead.waits), tuple(acked), lead.floor, asked, answer), late=late
    )


def etcd_renamed(etcd: Etcd, names: tuple[int, ...]) -> Etcd:
    """The same document where node `i` is called `names[i]`."""

    def of(leader: int) -> int:
        return leader if leader == NOBODY else names[leader]

    backup = etcd.backup and (frozenset(names[i] for i in etcd.backup[0]), etcd.backup[1], of(etcd.backup[2]))
    return etcd._replace(members=frozenset(names[i] for i in etcd.members), leader=of(etcd.leader), backup=backup)


def name(node: int) -> str:
    return "ABCDE"[node]


def listed(nodes: frozenset[int]) -> str:
    return " ".join(name(node) for node in sorted(nodes)) or "nobody"


def told(history: History) -> str:
    """Records for people: `e1 e1 e2`."""
    return " ".join("?" if record == LOST else f"e{record}" for record in history) or "nothing"
