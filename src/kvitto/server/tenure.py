"""The time for which this node leads, from its election to its end: whom it waits for, and how long it may serve clients.

The rules are in `cluster/membership.py`. This asks the register in a thread of its own, knows who is silent, and counts the promises of
followers. `Followers` calls it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kvitto.base.errors import StoreError
from kvitto.cluster.follower import Inherited
from kvitto.cluster.gate import acknowledged, in_sync
from kvitto.cluster.link import Link
from kvitto.cluster.membership import Membership
from kvitto.cluster.register import Document, Register, Seat, Seen
from kvitto.cluster.ring import nothing
from kvitto.server.lease import MARGIN_S, Lease, boottime

log = logging.getLogger("kvitto")

GRACE_S = 0.25
"""A member whose connection is gone is removed after this time, if it has not come again."""
START_GRACE_S = 1.0
"""At the beginning members get this much time to find the new leader."""
SILENT_S = 3.0
"""A member is removed if it has acknowledged nothing for this time. A member that works acknowledges something four times a second."""
CHANGING_S = 30.0
"""While the files of one member are changed other members wait. They wait no longer if it has made no progress for this time."""
UNFINISHED = ("comparing", "copying")
"""The states of a link while files are compared."""
AGAIN_S = 0.5
"""A register that has not answered is asked again after this time."""
PROMISE_S = 5.0
"""A follower that hears of its leader does not try to lead for this time."""
MARKS_MAX = 64
GONE = (
    "the document of this cluster is gone from etcd: this node leads on, but no node that ends can start again. Stop all nodes "
    "when it suits, and say `kvitto cluster force --data-dir` with the directory of this one"
)


class Deposed(Exception):
    """This node may not lead any more. The text says why."""


class NoRoom(Deposed):
    """This node was elected, and its broker found no room on the disk when it started. The text says what could not be written."""


class Damaged(StoreError):
    """Files of this node's directory are damaged, and other members have good ones. It may not lead before it has copied theirs."""


def released() -> None:
    """The `release` of a node that does not listen."""


@dataclass
class Election:
    """What a node that was elected begins with."""

    register: Register
    document: Document
    version: int
    seat: Seat
    lease: Lease
    inherited: Inherited | None
    """What it has of the old leader's stream, None if followers have to compare their files."""
    before: str
    """The member that led before, "" if none did, or this one."""
    release: Callable[[], None] = released
    """Closes the node's listeners for clients. The broker calls this just before it listens on the same ports. Until then the node answers
    `/healthz/live` there, while the broker starts or waits for members."""

    @property
    def member(self) -> str:
        return self.seat.member


class Tenure:
    """Implements `kvitto.cluster.gate.Enough`."""

    def __init__(self, election: Election, silent_s: Callable[[Link], float]) -> None:
        """`silent_s` returns for how long nothing has come from a follower."""
        self.membership = Membership(election.member, election.document, election.version)
        self.lease = election.lease
        self.seat = election.seat
        self.release = election.release
        self._register = election.register
        self._silent_s = silent_s
        self._before = election.before
        self._began = time.monotonic()
        self._missing: dict[str, float] = {}
        """The time at which each missing member was first found to be missing."""
        self._connected: set[str] = set()
        """The nodes that reach this one. Each has sent something within SILENT_S, or its files are compared, and then it may be silent."""
        self._catching_up: set[str] = set()
        """The nodes whose files are being compared, and whose comparison makes progress."""
        self._progress: dict[str, tuple[object, float]] = {}
        """How far the comparison of each node's files has got, and since when."""
        self._acknowledged: dict[str, tuple[int, float]] = {}
        """The highest place that each member has acknowledged, and the time at which it did."""
        self._marks: deque[tuple[int, float]] = deque(maxlen=MARKS_MAX)
        """Some times, each with the place that was the stream's next one then. The record of that place was sent later, so a follower that
        acknowledges it has heard of this leader after that time."""
        self._promised_until = 0.0
        self._promised_by: set[str] = set()
        self.alarm = ""
        """What an operator has to know of the register, "" for nothing."""
        self._again_at = 0.0
        self._unchanged = ""
        """Why the register did not take the last change, "" if it did."""
        self._worker = ThreadPoolExecutor(1, "kvitto-register")
        self.on_change: Callable[[], None] = nothing
        """Called when the members have changed."""
        self.on_end: Callable[[str], None] = ended
        """Called when the register says that this node leads no more."""

    def begin(self) -> None:
        """Begin to look whether the seat is still this node's, now that followers can connect. The loop calls this."""
        self._began = time.monotonic()
        loop = asyncio.get_running_loop()

        def seen(found: Seen) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._saw, found)

        self.lease.version = lambda: self.membership.version
        self.lease.on_seen = seen

    def stop(self, give_up: bool) -> None:
        self.lease.stop(give_up)
        self._worker.shutdown(wait=False)

    # -- for the gate ----------------------------------------------------------------------------------------------

    def reached(self, values: Mapping[str, int], most: int) -> int | None:
        return self.membership.reached(values, most)

    def why_blocked(self, awake: Mapping[str, int]) -> str:
        membership = self.membership
        synced = 1 + len(membership.waits & awake.keys())
        if synced < membership.minimum:
            return f"low on nodes: {synced} in sync, and nothing is confirmed with fewer than {membership.minimum}"
        now = time.monotonic()
        late = [member for member, since in self._missing.items() if now - since > SILENT_S + GRACE_S]
        if late and membership.waits & set(late):
            return f"node {late[0][:8]} does not answer, and the register cannot be told to go on without it"
        return ""

    # -- who is in sync --------------------------------------------------------------------------------------------

    def look(self, links: Iterable[Link], announced: int) -> None:
        """Ask the register for a change if others should be members. `announced`: the place behind what has been confirmed."""
        links = list(links)
        now = time.monotonic()
        following = self._note_missing(links)
        lost = [member for member, since in self._missing.items() if now - since >= self._grace(member, now)]
        synced = [member for member, link in following.items() if link.acknowledged >= announced]
        cut = [link.member for link in links if link.waits]
        advancing = self._advancing(links, now)
        self._catching_up = {link.member for link in links if link.state in UNFINISHED}.intersection(advancing)
        if now < self._again_at:
            return
        document = self.membership.propose(synced, lost, cut, advancing)
        if document is not None:
            loop = asyncio.get_running_loop()
            asked = loop.run_in_executor(self._worker, self._ask, document, self.membership.version)
            asked.add_done_callback(self._answered)

    def _advancing(self, links: Iterable[Link], now: float) -> list[str]:
        """Return the nodes that have sent something, or whose comparison has made progress, within CHANGING_S."""
        found = []
        for link in links:
            at = link.state, link.files_done, link.prefetch, link.acknowledged
            if self._progress.get(link.member, (None, 0.0))[0] != at:
                self._progress[link.member] = at, now
            if min(now - self._progress[link.member][1], self._silent_s(link)) < CHANGING_S:
                found.append(link.member)
        return found

    def _note_missing(self, links: Sequence[Link]) -> dict[str, Link]:
        """Note since when which members are missing. Return the connections of those that are not."""
        now = time.monotonic()
        self._connected = {link.member for link in links if link.state in UNFINISHED or self._silent_s(link) < SILENT_S}
        following = {link.member: link for link in in_sync(links) if not self._is_late(link, now)}
        for member in self.membership.waits | set(self._missing):
            if member in following or member not in self.membership.waits:
                self._missing.pop(member, None)
                self._before = "" if member == self._before and member in following else self._before
            else:
                self._missing.setdefault(member, now)
        return following

    def _is_late(self, link: Link, now: float) -> bool:
        """Return whether a member is silent, or has not acknowledged anything new for SILENT_S although older records wait for that.

        A member whose disk is full is not silent: it connects again and again, and gets no further.
        """
        found, since = self._acknowledged.get(link.member, (-1, now))
        if link.acknowledged > found:
            found, since = self._acknowledged[link.member] = link.acknowledged, now
        owed = max((place for place, at in self._marks if at <= boottime() - SILENT_S), default=0)
        return self._silent_s(link) >= SILENT_S or (now - since >= SILENT_S and found < owed)

    def _grace(self, member: str, now: float) -> float:
        if member == self._before:  # it was elected out, and will have to compare its files
            return 0.0
        return START_GRACE_S if now - self._began < START_GRACE_S else GRACE_S

    def _ask(self, document: Document, version: int) -> tuple[int | None, Seen | None]:
        """Ask for a change. Return the new version, or what the register holds instead. It runs in the thread."""
        try:
            changed = self._register.change(document, version)
            found = self._register.read() if changed is None else None
            self._unchanged = ""
            return changed, found
        except Exception as error:  # noqa: BLE001 - top of the thread: whatever it was, the outcome is not known
            self._unchanged = f"the members cannot be changed: {error}"
            log.warning("%s", self._unchanged)
            return None, None

    def _answered(self, asked: asyncio.Future[tuple[int | None, Seen | None]]) -> None:
        if asked.cancelled():  # the loop has ended
            return
        version, seen = asked.result()
        level = self.membership.document.level
        if version is None:
            self.membership.not_changed(seen)
        else:
            self.membership.changed(version)
        if self.membership.document.level != level:  # an earlier request, whose answer was lost, may have raised it
            log.info("the cluster is at level %d", self.membership.document.level)
        if version is None:
            if seen is None:
                self._again_at = time.monotonic() + AGAIN_S
            self._end_if_over()
            return
        members = self.membership.document.members
        log.info("in sync: %d nodes, %s", len(members), ", ".join(member[:8] for member in members))
        self.on_change()

    def why_no_election(self) -> str:
        """Return why nobody could be elected now, "" if nothing is known against it."""
        return self.alarm or self.lease.trouble or self._unchanged

    def _saw(self, seen: Seen) -> None:
        """Look at the register's content after a renewal of the lease: has another node been elected, or should one be?"""
        alarm = GONE if seen.document is None else ""
        if alarm and not self.alarm:
            log.warning("%s", alarm)
        self.alarm = alarm
        self.membership.saw(seen)
        self._end_if_over()
        complaint = seen.complaint
        if (
            complaint is not None
            and complaint.process == self.seat.process
            and self._cannot_go_on_without(complaint.member)
        ):
            self.lease.gives_up = True
            self.on_end(
                f"too few nodes reach this one at {self.seat.address}, and node {complaint.member[:8]} is alive and may lead"
            )

    def _cannot_go_on_without(self, member: str) -> bool:
        """Return whether nothing can be confirmed without this member, although it has had SILENT_S or more to connect."""
        if member not in self.membership.document.members or member in self._connected:
            return False
        if member not in self._missing or time.monotonic() - self._began < SILENT_S:
            return False
        waits, minimum = self.membership.waits, self.membership.minimum
        enough = waits - self._missing.keys()
        if len(waits & self._missing.keys()) < minimum:
            # Any of the missing members would need a node that is not in sync if it led. With each change of the leader that node would
            # have to begin its comparison again, so none would ever end.
            enough |= self._catching_up
        return 1 + len(enough) < minimum

    def _end_if_over(self) -> None:
        if self.membership.why_over:
            self.on_end(self.membership.why_over)

    def knows(self, member: str) -> bool:
        """Return whether a follower is a member, or the register has been asked to add it."""
        return member in self.membership.waits

    def level(self) -> int:
        """Return the level that followers have to know."""
        return self.membership.level

    def others(self) -> list[str]:
        """Return the members beside this one. They have everything that was confirmed."""
        return [member for member in self.membership.document.members if member != self.membership.member]

    # -- how long clients are served -------------------------------------------------------------------------------

    def mark(self, place: int) -> None:
        """Note that this place of the stream is the next one. It is called four times a second."""
        self._marks.append((place, boottime()))

    def heard(self, links: Iterable[Link]) -> None:
        """Count what followers have promised by their acknowledgements: not to try to lead for a while."""
        others = self.membership.waits.union(self.others())
        if others != self._promised_by:
            self._promised_by, self._promised_until = others, 0.0
        found = acknowledged(links)
        if not others <= found.keys():
            return
        least = min((found[member] for member in others), default=0)
        sent = max((at for place, at in self._marks if place < least), default=0.0)
        self._promised_until = max(self._promised_until, sent + PROMISE_S - MARGIN_S)

    def holds(self) -> bool:
        """Return whether nobody else can have been elected, so that clients may be served."""
        now = boottime()
        return now < self.lease.until or now < self._promised_until or self.membership.alone


def ended(_why: str) -> None:
    """The `on_end` of a tenure that nobody watches."""
