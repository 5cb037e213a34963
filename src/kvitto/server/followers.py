"""Decides from what followers have acknowledged whom a leader waits for, what it announces, and when it pauses or blocks publishers.

`follower_links.py` has their connections. `Server` calls this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from kvitto.base.clock import SystemClock
from kvitto.base.config import Config, address
from kvitto.cluster.gate import Count, Enough, Gate, acknowledged, few, in_sync
from kvitto.cluster.handshake import read_key
from kvitto.cluster.link import Leader, Link
from kvitto.cluster.records import Kind
from kvitto.cluster.ring import Ring, nothing
from kvitto.cluster.state import begin_history
from kvitto.cluster.tapping import TapDisk
from kvitto.server.follower_links import FollowerLinks
from kvitto.server.listening import in_url
from kvitto.server.node_tls import node_tls
from kvitto.server.passed import PassedOn
from kvitto.server.tenure import Deposed, Election, Tenure
from kvitto.store.commit import Commit, GroupCommit
from kvitto.store.disk import Disk
from kvitto.store.scrub import Damage

log = logging.getLogger("kvitto")

TIME_S = 0.25
SHOW_S = 60.0
SHOW_BYTES = 1 << 20
"""A follower that is further behind than this is logged every SHOW_S."""
FINISH_S = 5.0
"""At the end a follower gets this much time to take what is left."""
OTHERS_S = 0.2
"""Once a member that may lead has everything, the others get this much: a follower that stands still must not delay the next leader."""
LOOK_S, LOOK_LATER_S = 0.005, 0.05
"""The pauses between two looks of a start whether its followers are in sync: the first one during SILENT_S, and then the second one."""
SILENT_S = 3.0
"""Publishers are blocked as if a follower were not in sync if nothing has come from it for this time. It answers four times a second."""
WELL_S = 5.0
"""A leader whose disk has not synced for so long, or whose loop stands still, lets another node lead."""
MARKS_MAX = 2400
"""A lag of more than ten minutes is shown as one of ten minutes."""
AWAY_KEPT_MS = 24 * 3600 * 1000
"""A node that has been away for this time is forgotten: it may have been replaced by one with an empty directory."""
SLOW_BYTES = 16 << 20
"""Fast publishers are paused while the followers that they wait for are further behind than this, until that is a quarter of it. A
follower that the ring loses would have to compare its files, and could not be promoted meanwhile."""


class Clients(Protocol):
    """The clients of the broker, which wait for followers. The server implements this."""

    def allow(self, number: int) -> None:
        """Tell clients that the commits up to this number are durable."""
        ...

    def block(self, reason: str | None, alarm: str) -> None:
        """Block publishers for this reason. With None they may go on."""
        ...

    def pause(self, lagging: bool) -> None:
        """Pause fast publishers from the next turn on if followers are far behind, and resume them if not."""
        ...

    def step_down(self, why: str) -> None:
        """End at once, without confirming anything more: somebody else leads, or may."""
        ...


class Followers:
    def __init__(self, config: Config, disk: Disk, election: Election | None = None) -> None:
        """`election`: by which this node leads, if leaders are elected."""
        assert config.cluster_key is not None
        inherited = election.inherited if election is not None else None
        self.ring = inherited.ring if inherited is not None else Ring()
        self.disk = TapDisk(disk, self.ring, inherited.tree if inherited is not None else None)
        self._host, self._wanted = address(config.followers)
        key = read_key(config.cluster_key)
        leader = self._leader = Leader(self.disk, self.ring, key)
        if inherited is not None:
            leader.continued = inherited.session, self.ring.next
        if election is not None:
            leader.session, leader.cluster = election.seat.process, election.document.cluster
        tls = node_tls(config)
        self.passed = PassedOn(key, leader.cluster, tls) if election is not None else None
        """Takes clients' connections that other nodes of the cluster pass on."""
        self._links = FollowerLinks(leader, tls, self.passed, self)
        self.tenure: Tenure | None = None
        """The time for which this node leads, None if there are no elections."""
        self._enough: Enough | None = Count(config.min_in_sync - 1) if config.min_in_sync > 1 else None
        """Who has to be in sync before anything is confirmed, None: nobody has."""
        if election is not None:
            self.tenure = self._enough = Tenure(election, self._links.silent_s)
            leader.may_be_cut = self.tenure.membership.may_be_cut
            leader.level = self.tenure.level
        self._clock = SystemClock()
        self._beat: asyncio.TimerHandle | None = None
        self.port = self._seen = self._shown = 0
        self._gate: Gate | None = None
        self._commits: GroupCommit
        self._clients: Clients
        self._blocked = self._lagging = False
        """Whether publishers are blocked because too few followers are in sync, and whether fast ones are paused."""
        self._marks: deque[tuple[int, float]] = deque(maxlen=MARKS_MAX)
        """Some times, each with the place that was the stream's next one then. It shows how old a record is."""
        self.away: dict[str, int] = {}
        """The nodes of the cluster that are not connected, each with the time at which it was last."""
        if election is not None:
            self.away = dict.fromkeys(set(election.document.members) - {election.member}, self._clock.now_ms())
        self._reached = 0
        """How many bytes of the stream enough followers have acknowledged."""
        self.given_up = False
        """Whether `wait_in_sync` was told to wait no longer."""
        self.why_over = ""
        """Why this broker leads no more."""
        self._running: Commit | None = None
        self._beaten_at, self._running_since = time.monotonic(), 0.0

    @property
    def address(self) -> str:
        return f"{in_url(self._host)}:{self.port}"

    @property
    def links(self) -> list[Link]:
        """The links of all followers that have proved that they have the key."""
        return self._links.accepted

    def on_damage(self, found: Callable[[Damage], None]) -> None:
        """Call `found` with damage of this leader's files that is found while they are compared with a follower's."""
        self._leader.on_damage = found

    @property
    def kept(self) -> dict[str, set[str]]:
        """The files that are damaged here, each with the followers that have been told to keep their own bytes."""
        return self._leader.kept

    def begin(self, commits: GroupCommit) -> None:
        """Begin, now that this process owns the directory. Followers are told of the sync of each commit."""
        self._leader.history = begin_history(self.disk)
        # Other followers of the old leader may not have synced what it sent last. They sync it with this record, and so before the
        # inventory of this start, which says that it is durable.
        self._tell_time()

        def begun(commit: Commit) -> None:
            before = self.ring.next
            self.disk.sync_point(commit.files, commit.dirs)
            if self._gate is not None:
                self._gate.begun(commit.number, before)
                if self.tenure is not None and not self.tenure.membership.waits:
                    asyncio.get_running_loop().call_soon(self._acknowledged)  # nobody else will

        self._commits = commits
        commits.begun = begun

    def cut(self) -> None:
        """Send followers nothing more, not even what is in the ring."""
        self._links.cut()
        self.ring.on_put = nothing

    # -- who has to be in sync ---------------------------------------------------------------------------------------

    async def wait_in_sync(self, failed: Callable[[], Exception | None]) -> None:
        """Wait until enough followers have everything that this broker has. If `given_up` becomes true, return at once.

        `failed` returns why the store has failed, None if it has not. Raises that, or Deposed.

        No client may see what this broker has before that, since it may be on this disk alone.
        """
        if self._enough is None:
            return
        if isinstance(self._enough, Count):
            needed = few(self._enough.followers)
            log.info("followers are accepted at %s; clients are served when %s", self.address, needed)
        place = self._tell_time() + 1
        began, said = time.monotonic(), False
        while not self.given_up and (self._enough.reached(acknowledged(self.links), place) or 0) < place:
            await asyncio.sleep(LOOK_S if time.monotonic() - began < SILENT_S else LOOK_LATER_S)
            if (error := failed()) is not None:
                raise error
            if self.why_over:
                log.warning("this node leads no more: %s", self.why_over)
                raise Deposed(self.why_over)
            if self.tenure is not None:
                self._look_at_members()
                if not said and time.monotonic() - began > SILENT_S:
                    said = True
                    why = self.tenure.why_blocked(self._awake()) or "members have not everything yet"
                    log.info("no clients are served yet: %s", why)

    def close_gate(self, clients: Clients) -> None:
        """Begin to make clients wait: only commits that enough followers have synced are announced, and publishers are blocked while there
        are too few followers.
        """
        if self._enough is not None:
            self._gate, self._clients = Gate(self.ring, self._enough, clients.allow), clients
            self._reached = self.ring.total
            clients.allow(self._commits.syncs)

    def open_gate(self) -> None:
        """Announce everything. The server calls this at its end, when no client is left that could be told anything."""
        self._gate = None
        self._commits.allow(None)

    def _awake(self) -> dict[str, int]:
        """Return `synced_bytes` of the followers that are in sync and not silent."""
        return synced_bytes(link for link in in_sync(self.links) if self._links.silent_s(link) < SILENT_S)

    def is_in_sync(self, link: Link) -> bool:
        """Return whether a follower has everything that was confirmed, and may lead; without elections, whether it may be promoted."""
        if self.tenure is not None:
            return link.member in self.tenure.membership.document.members
        return link.state == "following" and self._links.silent_s(link) < SILENT_S

    def lag_ms(self, link: Link) -> int | None:
        """Return the age of the oldest record that a follower has not synced, to a quarter of a second; None while it compares files."""
        if link.lag_bytes is None:
            return None
        if link.acknowledged >= self.ring.next or not self._marks:
            return 0
        since = next((at for place, at in reversed(self._marks) if place <= link.acknowledged), self._marks[0][1])
        return int((time.monotonic() - since) * 1000)

    def since_ms(self, link: Link) -> int:
        """Return the time at which a link has got into its state, 0 if that is not known."""
        return self._links.since_ms(link)

    @property
    def in_sync(self) -> set[str]:
        """The followers that are in sync, by their names."""
        return set(self._awake())

    def _look_at_members(self) -> None:
        """Ask the register to change the members, if others are in sync than it says."""
        if self.tenure is not None:
            self.tenure.look(self.links, self._gate.announced if self._gate is not None else self.ring.next)

    def _members_changed(self) -> None:
        """Confirm what the members that are left have, and go on with directories that may be changed now."""
        self._acknowledged()
        self._look_who_is_in_sync()
        self._wake()

    def _end_tenure(self, why: str) -> None:
        self.why_over = why
        if self._gate is not None:
            self._clients.step_down(why)

    def _is_well(self) -> bool:
        """Return whether the loop runs and the disk syncs. The thread of the lease asks, so that another node may lead if not."""
        now = time.monotonic()
        syncs = self._running is None or now - self._running_since < WELL_S
        return now - self._beaten_at < WELL_S and (syncs or self._is_alone)

    @property
    def _is_alone(self) -> bool:
        """Whether no other node could lead."""
        return self.tenure is not None and self.tenure.membership.alone

    def _look_whether_well(self) -> None:
        self._beaten_at = now = time.monotonic()
        if self._commits.running is not self._running:
            self._running, self._running_since = self._commits.running, now
        elif self._running is not None and now - self._running_since >= WELL_S and not self._is_alone:
            self._end_tenure(f"its disk has not synced for {WELL_S:g} s")

    def _acknowledged(self) -> None:
        """Announce what the latest acknowledgement of a follower allows, and let publishers go on that were paused for it."""
        if self.tenure is not None:
            self.tenure.heard(self.links)
        if self._gate is not None:
            self._gate.look(self.links)
            self._look_at_lag(synced_bytes(in_sync(self.links)))

    def _look_who_is_in_sync(self) -> None:
        """Block publishers while too few followers are in sync. A silent follower does not count."""
        if self._gate is None or self._enough is None:
            return
        awake = self._awake()
        why = self._enough.why_blocked(awake)
        if bool(why) != self._blocked:
            self._blocked = bool(why)
            self._clients.block(why or None, "followers")
        self._look_at_lag(awake)

    def _look_at_lag(self, awake: dict[str, int]) -> None:
        """Pause fast publishers while followers are far behind, unless all publishers are blocked anyway."""
        if self._gate is None:
            return
        reached = self._gate.reached(awake)
        if reached is not None:
            self._reached = reached
        lag = self.ring.total - self._reached
        lagging = not self._blocked and lag > (SLOW_BYTES // 4 if self._lagging else SLOW_BYTES)
        if lagging != self._lagging:
            self._lagging = lagging
            self._clients.pause(lagging)

    async def listen(self) -> None:
        """Listen for followers. Raise OSError if that is not possible."""
        self.port = await self._links.listen(self._host, self._wanted)
        self.ring.on_put = self._wake
        if self.tenure is not None:
            self.tenure.on_change, self.tenure.on_end = self._members_changed, self._end_tenure
            self.tenure.lease.is_well = self._is_well
            self.tenure.begin()
        self._every_time()

    def _every_time(self) -> None:
        """Four times a second: show followers that the leader is there, and log those that are behind once a minute."""
        loop = asyncio.get_running_loop()
        self._beat = loop.call_later(TIME_S, self._every_time)
        self._look_who_is_in_sync()
        self._look_at_members()
        self._links.beat()
        if self.tenure is not None:
            self._look_whether_well()
            if self._gate is not None and not self.tenure.holds():
                self._end_tenure("its lease has ended, and another node may lead")
            self.tenure.mark(self.ring.next)
        self._marks.append((self.ring.next, time.monotonic()))
        if self._leader.links and self._seen == self.ring.next:
            self._tell_time()
        self._seen = self.ring.next
        self._shown += 1
        if self._shown * TIME_S >= SHOW_S:
            self._shown = 0
            self.away = {
                name: since for name, since in self.away.items() if self._clock.now_ms() - since < AWAY_KEPT_MS
            }
            for link in self.links:
                if (lag := link.lag_bytes) is None:
                    log.info("follower %s is %s: %d of %d files", link.where, link.state, link.files_done, link.files)
                elif lag > SHOW_BYTES:
                    log.info("follower %s is %.1f MiB behind", link.where, lag / (1 << 20))

    def _tell_time(self) -> int:
        """Put a TIME record into the ring. Returns its place."""
        return self.ring.put(Kind.TIME, 0, int(time.time() * 1000), ())

    def _wake(self) -> None:
        if self._gate is not None and not self._lagging and self.ring.total - self._reached > SLOW_BYTES:
            self._look_at_lag(synced_bytes(in_sync(self.links)))
        self._links.wake()

    def end_copies(self) -> None:
        """End the connections over which files are compared, or will be, because the files are about to be closed. Accept no more."""
        self._links.end_copies()

    async def finish(self, in_order: bool, successor: str) -> None:
        """Have followers sync what is left, and end their connections. `end_copies` has been called.

        `in_order`: the directory has been left in order. `successor`: the member that is to lead next, "" for any.
        """
        if self._beat is not None:
            self._beat.cancel()
        end = self._tell_time() + 1  # they sync all, and say so
        began = time.monotonic()
        deadline = began + FINISH_S
        while any(link.acknowledged < end for link in in_sync(self.links)):
            if time.monotonic() >= (began + OTHERS_S if self._has_heir(end, successor) else deadline):
                break
            await asyncio.sleep(0.002)
        told = [link for link in self.links if in_order and link.leave(end, successor)]
        self._wake()
        while time.monotonic() < deadline and self._links.have_more(told):
            await asyncio.sleep(0.001)
        await self._links.end()
        if self.tenure is not None:
            self.tenure.stop(give_up=True)

    def _has_heir(self, end: int, successor: str) -> bool:
        """Return whether a member that may lead next has everything up to this place."""
        if self.tenure is None:
            return False
        heirs = {link.member for link in in_sync(self.links) if link.acknowledged >= end and self.is_in_sync(link)}
        return successor in heirs if successor else bool(heirs)

    # -- what its links report -----------------------------------------------------------------------------------------

    def heard(self, link: Link) -> None:
        """Take note that a follower has sent something. It may be an acknowledgement."""
        self._acknowledged()
        if self.tenure is not None and link.state == "following" and not self.tenure.knows(link.member):
            self._look_at_members()

    def changed(self, link: Link) -> None:
        """Note that the state of a link has changed."""
        self.away.pop(link.member, None)
        self._look_at_members()

    def gone(self, link: Link) -> None:
        """Note that the link of a follower that was accepted has ended."""
        if self.tenure is not None and all(other.member != link.member for other in self.links):
            self.away[link.member] = self._clock.now_ms()


def synced_bytes(links: Iterable[Link]) -> dict[str, int]:
    """Return up to which byte of the stream each of these followers has synced everything, by its name."""
    return {link.member: link.behind_at for link in links}
