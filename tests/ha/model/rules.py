"""The rules of replication, as parts that can be left out, and the bounds of an exploration.

Each member of `Rule` is one sentence that the nodes follow. The steps (`node_steps.py`, `link_steps.py`, `etcd_steps.py`)
ask `Setting.keeps(rule)` where a rule decides; `mutations.py` leaves them out one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Rule(Enum):
    """What nodes do, in the order of the numbers in docs/cluster-model.md."""

    R1_OWN_SYNC = "R1: a leader confirms only what it has synced itself"
    R1_ALL = "R1: a leader confirms only what all nodes that it waits for have acknowledged, not a majority of them"
    R1_SYNC_FIRST = "R1: a follower acknowledges only what it has synced"
    R1_EPOCH = "R1: only acknowledgements of the leader's own epoch count"
    R1_INHERITED = "R1: what a new leader has inherited is announced only when all that it waits for have it"
    R2_REMOVE = "R2: a leader waits for a member until it knows that etcd has removed it"
    R2_ADD = "R2: a leader waits for a new member before it asks etcd to add it"
    R2_LOST_ADD = "R2: an addition without an answer is taken for done until another change has succeeded"
    R2_READ = "R2: a leader does not take its wait set from what it reads"
    R2_LATEST = "R2: an answer counts only if it is that of the latest request"
    R2_VERSION = "R2: a request is refused if the document has changed since its leader read it"
    R3_MEMBER = "R3: only a member is elected"
    R3_MIXED = "R3: a mixed node does not campaign"
    R3_VERSION = "R3: an election is refused if the document has changed since the candidate read it"
    R3_DEFEATS = "R3: an election makes all requests fail that are on their way"
    R4_STOPS = "R4: who was elected acknowledges nothing to older leaders"
    R4_STORES = "R4: the epoch is stored durably before anything is done in it"
    R4_SYNCS = "R4: who was elected syncs what it has before it leads"
    R4_COMPARED = "R4: the epoch of another leader is stored when its files were compared, or with the mark mixed"
    R4_REFUSES = "R4: streams of older epochs are refused"
    R5_WAITS = "R5: a new leader waits for all members"
    R6_INHERITED = "R6: a new member has all that the leader had at its election"
    R6_CONFIRMED = "R6: a new member has all that was confirmed since the leader's election"
    R7_REMOVED = "R7: a member is removed before its directory is cut"
    R7_MIXED = "R7: a directory is marked mixed before it is cut"
    R7_WHOLE = "R7: the mark mixed goes only when everything is synced"
    R8_MINIMUM = "R8: with fewer nodes in sync than the minimum nothing is confirmed"
    R9_MISSING = "R9: nobody writes a document where there is none"
    R9_CLUSTER = "R9: a document of another cluster is not obeyed"
    R9_EPOCH = "R9: a document whose epoch is older than the directory's is not obeyed"
    R9_RESTORED = "R9: a document in an etcd that was restored is not obeyed"
    R10_IDENTITY = "R10: a directory that was lost comes back as another node"


@dataclass(frozen=True)
class Setting:
    """How large the world is, which faults it has, and which rules are left out."""

    nodes: int = 3
    records: int = 1
    """The longest history. Leaders write nothing beyond."""
    epochs: int = 2
    """How many elections there are."""
    requests: int = 1
    """Requests of one node that are on their way to etcd at once."""
    minimum: int = 1
    etcd_faults: bool = False
    """etcd may lose everything, be restored from a backup, or be used by another cluster."""
    disk_faults: bool = False
    """One node may lose its directory."""
    without: frozenset[Rule] = field(default_factory=frozenset)

    def keeps(self, rule: Rule) -> bool:
        return rule not in self.without

    def told(self) -> str:
        """For people."""
        faults = [name for name, there in (("etcd", self.etcd_faults), ("disk", self.disk_faults)) if there]
        return (
            f"{self.nodes} nodes, {self.records} records, {self.epochs} epochs, {self.requests} requests, "
            f"minimum {self.minimum}" + (f", faults of {' and '.join(faults)}" if faults else "")
        )
