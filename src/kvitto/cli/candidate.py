"""`kvitto serve --etcd`: a node of a cluster, which follows the leader, and leads when it has been elected. `cli.serve` calls it.

A node that has led and may not any more begins anew in the same process (`exec`), so that nothing of its broker is left.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from kvitto.base import limits
from kvitto.base.clock import SystemClock
from kvitto.base.config import Config, address
from kvitto.base.errors import StoreFull
from kvitto.cli.following import AGAIN_S, ANEW, STOPS, Patience, Stopped, connected, scrub, stop, talk, why_ended
from kvitto.cli.leaders import WATCH_S, LastLeader, Watch, answers, unheard_s
from kvitto.cluster.belonging import belong
from kvitto.cluster.follower import Follower
from kvitto.cluster.handshake import Refused, read_key
from kvitto.cluster.promotion import begin_epoch, ended_in_order
from kvitto.cluster.records import StreamError
from kvitto.cluster.register import Complaint, Document, NotAllowed, Register, RegisterError, Seat, Seen, Unanswered
from kvitto.cluster.standing import COMPARING, FOLLOWING, WAITING, Standing
from kvitto.cluster.state import (
    Following,
    Member,
    new_id,
    read_following,
    read_member,
    why_not_elected,
    write_following,
    write_member,
)
from kvitto.server.etcd import Etcd, access
from kvitto.server.front import Front
from kvitto.server.front_http import OwnAnswers
from kvitto.server.lanes import Lanes
from kvitto.server.lease import TTL_S, Lease, boottime
from kvitto.server.listening import ANY_IPV4, ANY_IPV6, bind, in_url
from kvitto.server.node_tls import node_tls
from kvitto.server.notify import Notify
from kvitto.server.scrubbing import Scrubbing, place_of
from kvitto.server.tenure import Damaged, Deposed, Election, NoRoom
from kvitto.store import paths
from kvitto.store.disk import Disk, RealDisk
from kvitto.store.store import refuse_incomplete, refuse_inside

log = logging.getLogger("kvitto")

SILENCE_S = 4.0
"""A follower gives a connection up if nothing comes from the leader for this time. A leader sends something four times a second."""
AGAIN_SILENCE_S = 1.0
"""If a leader has been silent, the next connection is given up after this shorter time."""
CONNECT_AGAIN_S = 0.4
"""If a leader has been silent, and does not even accept a connection within this time, the register is asked whether its seat is free."""
COMPLAIN_S = 3.0
"""A member that has not reached the leader for this time says so in the register, where the leader sees it."""
COMPLAINT_TTL_S = 3
"""A complaint ends after this time, and is not taken back when the leader is heard again."""
COMPLAIN_AGAIN_S = 1.0
"""A complaint is written again with the first attempt that fails after this time. Each one is two writes of etcd."""
REST_S = 0.2
AT_ONCE_S = 0.01
STARTS_S = 0.03
"""A leader whose broker starts is tried again after this time, since its clients wait for its followers."""
DEFER_S = 2.0
"""If an operator has chosen another node as the next leader, this node waits this long before it tries to lead."""
AGAIN_MAX_S = 1.0
LOW_S = 2.0
"""A node with little free space tries to lead only if nobody has led for this time, because its publishers would be blocked."""
FULL_S = 5.0
"""A node that was elected, and had no room to begin, does not try to lead again for this time."""
DAMAGED_S = 10.0
"""A node with damaged files tries to lead if nobody has led for this time: the others may have damage, too, or be lost."""


def run_node(config: Config, lead: Callable[[Election], int]) -> int:
    """Follow and lead until a signal. `lead` runs a broker. Raises Refused, StoreError or ConfigError."""
    disk = RealDisk(str(config.data_dir))
    refuse_inside(disk)
    disk.makedirs("")
    for number in STOPS:
        signal.signal(number, stop)
    notify = Notify(os.environ)
    try:
        lock = disk.lock(paths.LOCK)
        refuse_incomplete(disk)
        register = Etcd(config.etcd.split(","), config.cluster, access(config))
        candidate = Candidate(config, disk, register, notify)
        election = candidate.wait()
        del lock, candidate
    except Stopped:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        log.info("stopping")
        notify.stopping()
        return 0
    except RegisterError as error:
        raise Refused(str(error)) from None

    def give_up(number: int, _frame: object) -> None:
        """End a start, which may take long. Nobody has been told anything yet."""
        log.info("stopped by %s before it led", signal.Signals(number).name)
        election.lease.stop(give_up=True)
        os._exit(0)

    for number in STOPS:
        signal.signal(number, give_up)
    try:
        return lead(election)
    except Damaged as error:
        resign(election, disk, str(error))
        begin_anew()
    except NoRoom as error:
        log.warning("this node gives the lead up, and lets others lead first: %s", error)
        election.lease.stop(give_up=True)
        begin_anew(str(error))
    except Deposed:
        if election.lease.gives_up:
            election.lease.stop(give_up=True)
        begin_anew()
    finally:
        election.lease.stop(give_up=True)  # whatever the end was, this process confirms nothing more


def resign(election: Election, disk: Disk, why: str) -> None:
    """Give the lead up, because files are damaged. This node does not lead again before it has compared its files with another leader's."""
    log.warning("this node leads no more, and copies what is damaged from another one: %s", why)
    write_following(disk, Following(election.seat.address, True, "", election.member, why))
    own = read_member(disk)
    if own is not None:
        own.resign(place_of(why), SystemClock().now_ms())
        write_member(disk, own)
    register, document = election.register, election.document
    try:
        seen = register.read()
        found = seen.document
        if found is not None and (found.epoch, found.leader) == (document.epoch, election.member):
            register.change(found.with_members(set(found.members) - {election.member}), seen.version)
    except (Unanswered, RegisterError) as error:
        log.warning("the register still takes this node for a member; it lets others lead first: %s", error)
    election.lease.stop(give_up=True)


def begin_anew(no_room: str = "") -> NoReturn:
    """Start this process once more, with the same number and the same arguments. `no_room`: why its broker had none, if it had none."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ[ANEW] = no_room
    # a signal that comes now is delivered when the new process has set its handlers
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


class Candidate:
    """A node that does not lead: it follows whoever does, and is elected when nobody does."""

    def __init__(self, config: Config, disk: RealDisk, register: Etcd, notify: Notify) -> None:
        self._config = config
        self._disk = disk
        self._register: Register = register
        self._where = f"cluster {register.name} in etcd at {register.where}"
        self._notify = notify
        self._clock = SystemClock()
        self._key = read_key(config.cluster_key) if config.cluster_key is not None else b""
        self._tls = node_tls(config)
        self._process = new_id()
        self._said = ""
        self._patience = Patience()
        self._pause = AGAIN_S
        self._epoch = 0
        """The epoch of the leader that is being followed."""
        self._follower: Follower | None = None
        self._scrubbing: Scrubbing | None = None
        self._free_since = time.monotonic()
        """The time from which on nobody has led, as far as this node knows."""
        self._last = LastLeader()
        self._sock: socket.socket | None = None
        """The connection to the leader that is being followed."""
        self._kept: list[socket.socket] = []
        """Sockets that keep the port for followers, which this node needs when it leads."""
        self._tried = ""
        """The leader's process that this node has tried to reach last."""
        self._in_touch_at = boottime()
        """The time at which this node has last heard the leader or worked on what it had sent; before that, of the first attempt."""
        self._complained = "", 0.0
        """The leader's process about which this node has complained last, and when."""
        no_room = os.environ.pop(ANEW, None)
        self._is_anew = no_room is not None
        """Whether this process has led before: then others are to lead first."""
        self._deferred_until = 0.0
        """Until then others are to lead, for the reason `_deferred_for`."""
        self._deferred_for = ""
        if no_room:
            self._defer_for_room(no_room)
        self.member: Member
        self.front: Front
        """The listeners for clients, until this node leads."""
        self._standing = Standing(config.cluster, "")
        self._document: Document | None = None
        """What the register said last. A thread of its own writes it while this node follows."""

    def wait(self) -> Election:
        """Follow until this node is elected. Raises Refused, StoreError, RegisterError, or Stopped."""
        self._listen()
        try:
            self.member = self._belongs(self._seen(at_start=True))
            self._standing = replace(self._standing, member=self.member.member)
            self.front.cluster = self.member.cluster
            election = self._elected()
        except BaseException:
            self.front.close()
            raise
        finally:
            for sock in self._kept:
                sock.close()
        self._stand_as(WAITING, "this node was elected, and its broker starts, or waits until enough nodes are in sync")
        return election

    def _elected(self) -> Election:
        """Follow until this node is elected, while clients are passed on."""
        line = f"kvitto node member={self.member.member[:8]} cluster={self._config.cluster} data={self._disk.root} pid={os.getpid()}"
        print(line, flush=True)
        self._notify.ready(line)
        while True:
            self._notify.alive()
            try:
                seen = self._register.read()
            except Unanswered as error:
                self._without_register(error)
                continue
            self._belongs(seen)
            document, seat = seen.document, seen.seat
            assert document is not None
            self._document = document
            if seat is not None and seat.member != self.member.member and not self._last.has_ended(seat):
                self._led_by(seat)
                self._follow(seat, document.epoch)
                self._free_since = time.monotonic()
                continue
            self._led_by(None)
            # as this process has locked the directory, an earlier process of this member has ended
            why = self._why_not(document, seat)
            try:
                if not why and (election := self._stand(seen)) is not None:
                    if self._scrubbing is not None:  # the broker verifies its files itself
                        self._scrubbing.stop()
                    return election
                if not why:
                    # The register has changed meanwhile: somebody else leads, or a seat has just become free.
                    time.sleep(AT_ONCE_S)
                    continue
            except StoreFull as error:
                self._defer_for_room(str(error))
                continue
            except StreamError as error:
                why = f"nobody leads; this node cannot: {error}"
            self._say(why)
            promised_s = self._last.promised_until - boottime()
            time.sleep(min(promised_s, REST_S) if promised_s > 0 else REST_S)

    def _seen(self, at_start: bool = False) -> Seen:
        """Read the register, again and again until it answers. Raises Refused at a start that the register does not allow."""
        while True:
            try:
                return self._register.read()
            except Unanswered as error:
                if at_start and isinstance(error, NotAllowed) and not self._is_anew:
                    raise Refused(str(error)) from None
                self._notify.alive()
                self._say(str(error))
                time.sleep(REST_S)

    def _without_register(self, error: Unanswered) -> None:
        """Follow the last leader again, because the register does not answer. This is as safe as a connection that was never interrupted:
        the leader has to prove its epoch, and this node has not tried to lead."""
        seat = self._last.seat
        follows = self._follower is not None and self._follower.session
        if seat is not None and not self._last.has_ended(seat) and follows:
            self._led_by(seat)
            self._follow(seat, self._epoch)
            self._free_since = time.monotonic()
        else:
            self._say(str(error))
            time.sleep(REST_S)

    def _belongs(self, seen: Seen) -> Member:
        """Return which member the directory is. Raises Refused if it does not belong to the cluster that the register knows."""
        return belong(self._disk, self._disk.root, seen, self._config.cluster, self._where)

    def _say(self, text: str) -> None:
        if text and text != self._said:
            log.info("%s", text)
            self._said = text
            self._stand_as(WAITING, text)

    # -- clients ---------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Listen for clients, whose connections are passed on to the leader. Raises Refused."""
        config = self._config
        host, port = address(config.followers)
        try:
            self._kept = asyncio.run(bind([host], port))
            for sock in self._kept:
                # with this option another program could have the port as long as this one does not listen
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError as error:
            why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else error.strerror
            raise Refused(
                f"cannot listen on {config.followers}: {why}. This node could not lead: choose another --followers"
            ) from None

        def standing() -> Standing:
            return replace(self._standing, document=self._document, silent_s=unheard_s(self._sock, self._in_touch_at))

        own = OwnAnswers(limits.of(config.limits), standing)
        self.front = Front(config, self._key, own, self._tls)
        try:
            self.front.start()
        except OSError as error:
            why = os.strerror(error.errno).lower() if error.errno else str(error)
            raise Refused(
                f"cannot listen on {error.filename or config.host}: {why}. This node could not serve clients either if it led"
            ) from None

    def _led_by(self, seat: Seat | None) -> None:
        """Pass clients on to this leader; None: there is none."""
        self._standing = replace(self._standing, seat=seat)
        self.front.lead_by(seat)

    def _stand_as(self, state: str, why: str = "") -> None:
        """Note in which state this node is, for those who ask."""
        if (state, why) != (self._standing.state, self._standing.why):
            self._standing = replace(self._standing, state=state, why=why, since_ms=self._clock.now_ms())

    # -- following -----------------------------------------------------------------------------------------------

    def _follow(self, seat: Seat, epoch: int) -> None:
        """Follow a leader until the connection ends."""
        follower, self._epoch = self._follower, epoch
        if follower is None:
            follower = self._follower = Follower(
                self._disk, self._clock, self._key, seat.address, log.info, self._judge, self.member, Lanes().sync
            )
            self._scrubbing = scrub(follower)
        follower.turn_to(seat.address)
        watch, why, before, began = None, "", follower.place, boottime()
        pause: float | None = None  # before the next attempt, if the way in which this one ends decides that
        again = self._last.is_at(seat)
        silence = AGAIN_SILENCE_S if again else SILENCE_S
        connect_s = CONNECT_AGAIN_S if again and self._last.silent_s() > WATCH_S else AGAIN_SILENCE_S
        if seat.process != self._tried:
            self._tried, self._in_touch_at = seat.process, began
        try:
            with connected(address(seat.address), connect_s, self._tls, silence) as sock:
                self._sock = sock
                watch = Watch(self._register, seat, sock, self._last.silent_s, self._watched)
                why = talk(follower, sock, silence, lambda: self._heard(seat, sock), self._alive)
            if follower.left is not None:
                self._is_dead(seat)
                if follower.left not in ("", self.member.member):
                    self._defer(DEFER_S, "another node is to lead next")
                return
        except ConnectionRefusedError as error:
            why = str(error)
            if again:
                self._is_dead(seat)
                return
            pause = STARTS_S  # it listens as soon as its broker has started, which others wait for
            self._complain(seat)
        except Refused as error:
            why = self._patience.bear(error)
        except StoreFull as error:
            why = f"{error}; nothing more is taken until there is room"
            if follower.make_room():
                why = f"{error}; what was replaced has been removed"
            else:
                pause = AGAIN_MAX_S  # it may have to compare all its files each time
        except StreamError as error:
            why = f"refused what came: {error}"
        except OSError as error:
            why = why_ended(error)
            if boottime() - began >= CONNECT_AGAIN_S:
                pause = AT_ONCE_S  # if it was silent, its seat may be free at any moment
            self._complain(seat)
        finally:
            self._sock = None
            if watch is not None:
                watch.stop()
            self._stand_as(WAITING, why)
        self._say(f"{seat.address}: {why}; trying again")
        if pause is None and (follower.place > before or (watch is not None and watch.over)):
            pause = AT_ONCE_S  # if its process has ended, its machine refuses the next connection
        self._pause = pause if pause is not None else min(max(2 * self._pause, AGAIN_S), AGAIN_MAX_S)
        time.sleep(self._pause)

    def _is_dead(self, seat: Seat) -> None:
        """Note that the process of a leader has ended, because it has said so, or because its machine refuses connections."""
        self._last.ended(seat)
        self._led_by(None)  # before the register is read, which may not answer
        self._say(f"the leader at {seat.address} has ended")

    def _look_whether_dead(self) -> None:
        """Look whether the last leader's process has ended, if its seat is free."""
        seat = self._last.seat
        if seat is not None and not self._last.has_ended(seat) and not answers(seat.address, REST_S):
            self._is_dead(seat)

    def _watched(self, seen: Seen) -> None:
        """Note what the register says while this node follows. A thread of its own calls this."""
        if seen.document is not None:
            self._document = seen.document

    def _complain(self, seat: Seat) -> None:
        """Write into the register that this node does not reach the leader, if it could lead itself. It is called when an attempt failed.

        A leader that cannot confirm anything without this node gives its seat up then: it may be cut off from the others, or give them a
        wrong address (`Tenure`). The time in which this node was busy with what had come is not the leader's.
        """
        document, me = self._document, self.member.member
        if document is None or me not in document.members or boottime() - self._in_touch_at < COMPLAIN_S:
            return
        if self._follower is not None and self._follower.damage:
            return
        process, at = self._complained
        if process == seat.process and boottime() - at < COMPLAIN_AGAIN_S:
            return
        self._complained = seat.process, boottime()
        with suppress(Unanswered, RegisterError):
            self._register.complain(Complaint(me, seat.process), self._register.grant(COMPLAINT_TTL_S))

    def _alive(self) -> None:
        """Note that this node works on what its leader has sent."""
        self._notify.alive()
        self._in_touch_at = boottime()

    def _heard(self, seat: Seat, sock: socket.socket) -> None:
        self._alive()
        follower = self._follower
        if follower is not None and follower.session and not follower.copying:
            self._stand_as(FOLLOWING)
            self._deferred_until = 0.0  # another one leads
        else:
            self._stand_as(COMPARING)
        if sock.gettimeout() != SILENCE_S:
            sock.settimeout(SILENCE_S)
        self._last.heard(seat)

    def _judge(self, own: list[str], leaders: list[str]) -> str:
        """Return why this directory may not follow a leader with this history; "" if it may."""
        return why_not_elected(own, leaders, self._epoch)

    # -- elections -------------------------------------------------------------------------------------------------

    def _why_not(self, document: Document, seat: Seat | None) -> str:
        """Return why this node may not try to lead; "" if it may."""
        me = self.member.member
        if me not in document.members:
            return (
                f"nobody leads; this node has not everything: waiting for {', '.join(m[:8] for m in document.members)}"
            )
        following = read_following(self._disk)
        if following is not None and not following.complete:
            return "nobody leads; this directory is not complete"
        if boottime() < self._deferred_until:
            return f"nobody leads; {self._deferred_for}"
        damage = (self._follower.damage if self._follower is not None else "") or (
            following.damage if following else ""
        )
        free_s = time.monotonic() - self._free_since
        if damage and document.members != (me,) and free_s < DAMAGED_S:
            return f"nobody leads; this node waits for others, because its files are damaged: {damage}"
        if free_s < LOW_S and document.members != (me,) and self._disk.free_bytes() < self._config.disk_free_limit:
            return "nobody leads; this node waits for others, because less of its disk is free than --disk-free-limit"
        if seat is not None and seat.member == me and answers(seat.address):
            raise Refused(
                f"another process leads with a copy of {self._disk.root}, and followers connect to it at {seat.address}: stop one of "
                "them, and start it with an empty directory"
            )
        alone = document.members == (me,) or not document.epoch
        if not alone and seat is None and boottime() < self._last.promised_until and not self._led_last(document):
            self._look_whether_dead()
            if self._last.promised_until:
                return "nobody leads; this node has promised to wait"
        return ""

    def _defer(self, seconds: float, why: str) -> None:
        """Let others lead first."""
        self._deferred_until, self._deferred_for = boottime() + seconds, why

    def _defer_for_room(self, why: str) -> None:
        self._defer(
            FULL_S, f"this node does not try to lead for some seconds, because it had no room when it tried last: {why}"
        )

    def _led_last(self, document: Document) -> bool:
        """Return whether this directory was the last leader's, and that leader has ended in order.

        Such a node has promised nothing to anybody, and has nothing to flag if it leads again.
        """
        return (
            not self._is_anew and document.leader == self.member.member and ended_in_order(self._disk, document.epoch)
        )

    def _stand(self, seen: Seen) -> Election | None:
        """Try to be elected. Return None if another one was, or nobody."""
        document = seen.document
        assert document is not None
        follower = self._follower
        if follower is not None:
            follower.settle()
        in_order = follower is not None and follower.left is not None and document.epoch == self._epoch
        in_order = in_order or self._led_last(document)
        me = self.member.member
        config = self._config
        host, port = config.advertised
        clients = f"{in_url(host if config.host in (ANY_IPV4, ANY_IPV6) else config.host)}:{config.port}"
        before = document.leader if document.leader != me else ""
        why = self._why(seen)
        seat = Seat(me, self._process, f"{in_url(host)}:{port}", clients, self._clock.now_ms(), before, why)
        sent = boottime()
        try:
            lease = self._register.grant(TTL_S)
            wanted = document.elected(me)
            version = self._register.elect(wanted, seen.version, seat, lease, seen.seat)
        except Unanswered as error:
            self._say(str(error))
            now = self._seen()  # it may have happened all the same
            if now.seat != seat or now.document is None or now.document.epoch != document.epoch + 1:
                time.sleep(REST_S)  # an etcd whose disk is full still answers reads, at once
                return None
            wanted, version = now.document, now.version
        if version is None:
            self._say("not elected: the register has changed meanwhile")
            return None
        held = Lease(self._register, seat, lease, sent)
        try:
            begin_epoch(self._disk, wanted.epoch, in_order)
        except BaseException:
            held.stop(give_up=True)
            raise
        inherited = follower.inherit() if follower is not None else None
        log.info("elected: this node leads epoch %d, since %s", wanted.epoch, why)
        return Election(self._register, wanted, version, seat, held, inherited, before, self.front.close)

    def _why(self, seen: Seen) -> str:
        """Return why there is an election, for people."""
        document = seen.document
        if document is None or not document.leader:
            return "nobody has led yet"
        if document.leader == self.member.member:
            return "this node has led before, and has been started again"
        leader = document.leader[:8]
        if self._follower is not None and self._follower.left is not None:
            return f"{leader} has ended in order"
        if self._last.has_ended(self._last.seat):
            return f"the process of {leader} has ended"
        return f"{leader} has given its seat up, or its lease has ended"
