"""Whom a leader waits for, and what it asks of the register for that: the rules R2 and R5 to R8 of docs/cluster-model.md.

The wait set has every member that the register may name. A node enters it before the register is asked to add the node, and leaves it only
behind the answer that the register has removed the node: not when a request is sent, not when it is lost, and not because of what is read.
So whoever can be elected has synced everything that this leader has confirmed. Nothing here knows of sockets, threads or clocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from kvitto.cluster.register import Document, Seen


class Membership:
    def __init__(self, member: str, document: Document, version: int) -> None:
        """`document`: the one by which `member` was elected, of this version. Its other members have everything confirmed (R5)."""
        self.member = member
        self.document = document
        self.version = version
        self.waits = set(document.members) - {member}
        """The members whose syncs confirms wait for, beside this one's."""
        self.why_over = ""
        """Why this node leads no more, as the register says."""
        self._cut: set[str] = set()
        """The members that were removed so that their directories may be changed, and that have not been in sync since then."""
        self.level = document.level
        """The level that followers have to know. The register is asked to raise that of the document to it."""
        self._asked: Document | None = None
        """What the register has been asked for. There is one request at a time."""
        self._settled = True
        """Whether it is known what the register holds, so that no earlier request can still change it."""

    @property
    def minimum(self) -> int:
        return self.document.minimum

    @property
    def enough(self) -> bool:
        """Whether as many nodes as the minimum says have what this leader waits for (R8)."""
        return len(self.waits) + 1 >= self.minimum

    @property
    def alone(self) -> bool:
        """Whether nobody else can be elected."""
        return self.document.members == (self.member,) and not self.waits

    def reached(self, values: Mapping[str, int], most: int) -> int | None:
        """Return the value that all whom this leader waits for have reached, at most `most`; None if somebody is missing (R1, R8).

        `values`: what each follower that is in sync has reached, by its name.
        """
        if not self.enough or not self.waits <= values.keys():
            return None
        return min((values[member] for member in self.waits), default=most)

    # -- what the register is asked for ------------------------------------------------------------------------

    def propose(
        self, synced: Collection[str], lost: Collection[str], cut: Collection[str] = (), connected: Collection[str] = ()
    ) -> Document | None:
        """Return the document to ask the register for; None if there is nothing to ask for, or no answer to the last request yet.

        `synced`: the followers that have all that was confirmed and all that there was at the election, and get everything since (R6).
        `lost`: those that do not answer. They stay members if there would be too few: then nothing is confirmed anyway, and they may be
        elected. `cut`: those whose directories have to be changed in other ways than the stream does, so that they may not (R7).
        `connected`: the nodes whose connections are open and have made progress lately.
        """
        if self._asked is not None or self.why_over:
            return None
        members = set(self.document.members) | self.waits
        self._cut -= set(synced)
        cut = self._at_once(cut, members, connected)
        self._cut |= cut
        wanted = (members | set(synced)) - cut
        if len(fewer := wanted - set(lost)) >= self.minimum:
            wanted = fewer
        wanted.add(self.member)
        if wanted == set(self.document.members) and self.level == self.document.level and self._settled:
            return None
        self.waits |= wanted - {self.member}
        self._asked = replace(self.document.with_members(wanted), level=self.level)
        return self._asked

    def _at_once(self, cut: Collection[str], members: set[str], connected: Collection[str]) -> set[str]:
        """Return those of `cut` that are removed now.

        After a power cut all directories but the leader's have to be changed. As long as fewer members than the minimum would be left, only
        one is removed at a time: the next one waits until that one is in sync again, or its connection has ended.
        """
        changing = (self._cut & set(connected)) - members
        most = max(len(members) - self.minimum, 0 if changing else 1)
        return set(sorted(set(cut) & members)[:most])

    def changed(self, version: int) -> None:
        """The register has made the change that it was asked for, and the document has this version."""
        assert self._asked is not None
        self.document, self.version, self._asked, self._settled = self._asked, version, None, True
        self.waits = set(self.document.members) - {self.member}

    def not_changed(self, seen: Seen | None) -> None:
        """The register has refused a change, or has not answered. `seen`: what it held when it was read afterwards, None if it was not.

        What is read does not change the wait set: a request that is on its way may still be granted.
        """
        self._asked, self._settled = None, False
        if seen is not None and self.saw(seen) and seen.document is not None:
            self.document, self.version = seen.document, seen.version
            self.waits |= set(seen.document.members) - {self.member}

    def saw(self, seen: Seen) -> bool:
        """Return whether the document is still the one of this leader. If another node was elected since, this one's time is over.

        If there is no document any more, an older one, or another cluster's, nobody was elected by it (R9). The leader goes on, and can
        change nothing.
        """
        document, own = seen.document, self.document
        if document is None or document.cluster != own.cluster or document.epoch < own.epoch:
            return False
        if (document.epoch, document.leader) != (own.epoch, self.member):
            who = f"{document.leader[:8]} has been elected" if document.leader else "the cluster has begun anew"
            self.why_over = f"{who} (epoch {document.epoch})"
        return not self.why_over

    def may_be_cut(self, member: str) -> bool:
        """Return whether the directory of a follower may be changed in other ways than the stream does (R7)."""
        return member not in self.waits and member not in self.document.members
