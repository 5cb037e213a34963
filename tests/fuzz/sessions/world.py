"""The broker of a story, with all that happens to it: each kind of action is a method.

Time, disk, turns and syncs are moved by hand, as the server would; whatever comes out that is no peer's mistake is a finding.
"""

from __future__ import annotations

from random import Random
from typing import Any

from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.protocol.states import CLOSED, CLOSING
from kvitto.store.commit import Commit
from kvitto.wire import methods as m
from kvitto.wire.methods import Method, frame
from kvitto.wire.spec import FRAME_METHOD, PROTOCOL_HEADER
from tests.fuzz.sessions import management, oracle
from tests.fuzz.sessions.oracle import FOLLOWED, Finding, Oracle
from tests.fuzz.sessions.peer import Peer
from tests.fuzz.sessions.setting import Catcher, setting
from tests.fuzz.sessions.story import Action, Story
from tests.protocol.answers import check_service
from tests.protocol.sansio import ProtocolHarness
from tests.support.clock import ManualClock
from tests.support.limited import limit
from tests.support.simdisk import SimDisk

SETTLE_MAX = 10_000
"""Turns and syncs after which a broker that is left alone must have nothing more to do."""
USERS = {
    "u1": ("", ".*", ".*", ".*"),
    "u2": ("management", "^(q|k)", "^(q|k|amq)", "^(q|k)"),
    "u3": ("policymaker", "", ".*", ""),
}
"""Beside guest: tags, and what each may configure, write and read in "/" and in "v"."""
HARMLESS = (b'"^q"', b'"^dead"', b'"^log"', b'"^e"')
"""Patterns of policies that fit no queue that is followed."""
UNDEFINED = "holds messages of a queue that is not defined"
"""A power cut may leave the messages of a queue whose declaration was not durable, and not answered; the broker cannot know that."""


class StoryRun:
    def __init__(self, catcher: Catcher) -> None:
        self.catcher = catcher
        self.clock = ManualClock()
        self.disk = SimDisk()
        self.due = False
        self.cut = False
        """Whether this process has started after a power cut."""
        self.job: Commit | None = None
        self.peers: dict[int, Peer] = {}
        self.gone: list[Peer] = []
        self.oracle = Oracle(self)
        self.done: Story = []
        self._start()
        for name, (tags, *allowed) in USERS.items():
            self.harness.broker.users.add(name, name, [tags] if tags else [])
            for vhost in ("/", "v"):
                self.harness.broker.add_vhost(vhost)
                self.harness.broker.users.set_permission(name, vhost, *allowed)
        self.harness.settle_down()

    def _start(self) -> None:
        self.harness = ProtocolHarness(self.disk, self.clock, self.catcher.limits)
        self.management = management.Management(self)
        self.job = None

    # -- actions -----------------------------------------------------------------------------------------------

    def perform(self, action: Action) -> None:
        kind, *arguments = action
        self.done.append(action)
        getattr(self, "do_" + kind)(*arguments)
        self._look()

    def _look(self) -> None:
        """Sockets are read and written, requests go on, and nothing must have gone wrong."""
        for peer in self.peers.values():
            peer.take()
        self.management.spin()
        for peer in list(self.peers.values()):
            peer.look()
            if peer.aborted:
                self.do_vanish(peer.client.slot)
        if self.catcher.found:
            raise Finding("the broker logs a mistake of its own: " + self.catcher.found[0])
        alarms = [text for text in self.harness.store.alarms if not (self.cut and UNDEFINED in text)]
        if alarms:
            raise Finding(f"the broker gives an alarm: {alarms}")

    def do_connect(self, slot: int, user: str, vhost: str, frame_max: int, able: int, heartbeat: int = 0) -> None:
        """A new peer, as far as the server has let it in; who had its place is gone. `able`: capabilities, one bit each."""
        self.do_vanish(slot)
        peer = self.peers[slot] = Peer(self, slot)
        peer.client.user, peer.client.vhost, peer.client.frame_max = user, vhost, frame_max
        names = ("consumer_cancel_notify", "connection.blocked", "authentication_failure_close", "kvitto_offset_header")
        capabilities: dict[str, Any] = {name: True for i, name in enumerate(names) if able >> i & 1}
        methods: list[Method] = [
            m.ConnectionStartOk({"capabilities": capabilities}, "PLAIN", f"\0{user}\0{user}".encode(), "en_US"),
            m.ConnectionTuneOk(0, frame_max, heartbeat),
            m.ConnectionOpen(vhost),
        ]
        data = PROTOCOL_HEADER + b"".join(frame(FRAME_METHOD, 0, method.encode()) for method in methods)
        peer.client.sent(data)
        peer.input.append(data)

    def do_send(self, slot: int, pieces: int, data: bytes) -> None:
        """Whole, or in pieces of so many bytes."""
        peer = self.peers.get(slot)
        if peer is not None and not peer.closed:
            peer.client.sent(data)
            peer.input += [data[i : i + pieces] for i in range(0, len(data), pieces)] if pieces else [data]

    def do_vanish(self, slot: int) -> None:
        """The connection is gone, with what it has not read."""
        peer = self.peers.pop(slot, None)
        if peer is not None:
            peer.closed = True
            self.oracle.client_left(peer.client)
            peer.connection.lost()
            self.gone.append(peer)

    def do_turn(self) -> None:
        self.due = False
        self.harness.turn()

    def do_sync(self) -> None:
        """Turn, and a whole sync."""
        self.do_turn()
        self.do_end_sync()
        if self.harness.store.commits.waiting or self.harness.store.commits.dirty:
            self.do_begin_sync(1)
            self.do_end_sync()

    def do_begin_sync(self, everything: int = 0) -> None:
        if self.job is None and (everything or self.harness.store.commits.waiting):
            self.job = self.harness.store.begin_sync(everything=bool(everything))

    def do_end_sync(self) -> None:
        if self.job is not None:
            job, self.job = self.job, None
            job.run()
            self.harness.end_sync(job)
            self.do_turn()

    def do_time(self, seconds: float) -> None:
        """Time passes, and what is due is done."""
        self.clock.advance(seconds)
        due = self.harness.broker.timers.next_ms
        if due is not None and due <= self.clock.now_ms():
            self.harness.broker.tick()
        if seconds >= 1:
            self._look_after()
        self.do_turn()

    def _look_after(self) -> None:
        """What the server does once a second."""
        broker = self.harness.broker
        broker.read_clock()
        for connection_ in list(self.harness.hub.connections):
            if connection_.heartbeat and connection_.state < CLOSING and not connection_.beat():
                connection_.transport.abort()
            connection_.give_back()
        if broker.full:
            broker.retry_writes()
        if broker.full or self.harness.store.short:
            broker.make_room(broker.full)

    def do_later(self, seconds: float) -> None:
        """Time passes, and what comes next comes before the timers are looked at."""
        self.clock.advance(seconds)

    def do_clock(self, ms: int) -> None:
        """Somebody sets the machine's clock."""
        self.clock.wall_ms += ms

    def do_choke(self, slot: int, taking: int) -> None:
        peer = self.peers.get(slot)
        if peer is not None:
            peer.choke(bool(taking))

    def do_full(self, full: int) -> None:
        self.disk.full = bool(full)
        if not full:
            self.harness.broker.retry_writes()

    def do_block(self, alarm: str, on: int) -> None:
        self.harness.hub.alarms.block(f"low on {alarm}: there is little left" if on else None, alarm)

    def do_http(self, user: str, method: str, path: str, body: bytes) -> None:
        self._followed_by_http(method, path, body)
        self.management.request(management.request(user, method, path, body), f"{method} {path} {body!r}")

    def do_bytes(self, data: bytes) -> None:
        """Anything, to the HTTP port."""
        self.oracle.forget_all()
        self.management.request(data, repr(data))

    def _followed_by_http(self, method: str, path: str, body: bytes) -> None:
        """What a request may change under the oracle's eyes."""
        if method == "GET":
            return
        guest = oracle_client(self)
        for name in FOLLOWED:
            if f"/queues/%2F/{name}" in path:
                self.oracle.lose_sight(guest, name)
        settings = "policies" in path or "definitions" in path or "/vhosts/" in path
        if settings and not any(pattern in body for pattern in HARMLESS):
            self.oracle.forget_all()

    def do_restart(self, kind: str, dice: int = 0) -> None:
        """In order, by a kill, or by a power cut, where `dice` say what is lost; then the next one starts from what is left."""
        self._end_of_process()
        if self.harness.broker.full:
            self.oracle.forget_deliveries()
        if kind == "order":
            self.disk.full = False
            self.harness.broker.retry_writes()
            self.calm()
            self.harness.broker.finish()
            self.harness.store.shut()
        self.due, self.cut = False, kind == "power"
        self.disk = self.disk.crash(Random(dice)) if kind == "power" else self.disk.kill()
        self._start()
        self.calm()
        self.oracle.check_kept()

    def _end_of_process(self) -> None:
        """Nobody hears anything any more."""
        self.management.end()
        for peer in self.peers.values():
            peer.closed = True
            self.oracle.client_left(peer.client)
            peer.connection.lost()
        self.peers.clear()

    # -- the end ----------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Turns, syncs and timers until nothing is left to do."""
        self.do_end_sync()
        for _ in range(SETTLE_MAX):
            self.do_turn()
            if self.harness.store.commits.waiting or self.harness.store.commits.dirty:
                self.do_begin_sync(1)
                self.do_end_sync()
            elif self.harness.broker.idle() and not self.harness.hub.unfinished():
                return
        raise Finding("the broker never comes to rest")

    def end(self) -> None:
        """All go; nothing of them stays; the next peer is served; and a restart finds what there was."""
        self.disk.full = False
        self.harness.broker.retry_writes()
        for alarm in list(self.harness.hub.alarms.reasons):
            self.harness.hub.alarms.block(None, alarm)
        self.calm()
        self._look()
        for slot in list(self.peers):
            self.do_choke(slot, 1)
        self.calm()
        self._look()
        for slot in list(self.peers):
            self.do_vanish(slot)
        self.management.end()
        for _ in range(3):
            self.do_time(2.0)
            self.calm()
        while self.harness.broker.parking.under_way:  # slice by slice, each some ms after the one before
            self.do_time(0.2)
            self.calm()
        self._check_nothing_is_left()
        self._look()
        self.oracle.check_kept()
        before = self.there(lasting=True)
        check_others_are_served(self.harness)
        self.disk, self.cut = self.disk.kill(), False
        self._start()
        self.calm()
        self._look()
        after = self.there(lasting=False)
        self.oracle.check_kept()
        for name, bodies in before.items():
            lost = [body for body in bodies if body not in after.get(name, [])]
            if lost or (name in FOLLOWED and after[name] != bodies):
                raise Finding(f"{name} has other messages after a restart: {bodies} before, {after.get(name)} after")
        check_others_are_served(self.harness)

    def there(self, lasting: bool) -> dict[str, list[bytes]]:
        """Messages of the durable queues, or of those from which none leaves by itself."""
        found = [
            queue for queue in self.harness.broker.vhosts["/"].queues.values() if queue.durable and not queue.stream
        ]
        if lasting:
            found = [queue for queue in found if oracle.plain(queue) and not queue.may_expire]
        return {queue.name: [body[:12] for body in oracle.waiting(queue)] for queue in found}

    def close(self) -> None:
        """Leave nothing behind, whatever has been found."""
        self.management.end()

    def _check_nothing_is_left(self) -> None:
        hub_ = self.harness.hub
        for peer in self.gone:
            c = peer.connection
            assert c.state == CLOSED and not c.channels and not c.queues, "a connection that is gone has something left"
            assert c.in_transactions == c.unfinished == 0, "bytes of a connection that is gone are still counted"
        assert not hub_.connections and not hub_.channels, "peers that are gone are still counted"
        held = hub_.buffered.total
        assert not held, f"{held} bytes of peers that are gone are still counted"
        for queue_ in self.harness.broker.queues.values():
            assert queue_.unacked == 0 and not queue_.consumers, f"{queue_.name}: {queue_.unacked} unacked of nobody"
            if isinstance(queue_, WorkQueue):
                ready = queue_.next - queue_.cursor + len(queue_.backlog.requeued)
                assert queue_.ready == ready, f"{queue_.name}: {queue_.ready} ready, the books say {ready}"


def check_others_are_served(harness: ProtocolHarness) -> None:
    """Whatever policies were made: they do not count here."""
    vhost = harness.broker.vhosts["/"]
    for kind in ("policy", "operator_policy"):
        for name in list(vhost.policies_by_name(kind)):
            vhost.clear_policy(kind, name)
    if "probe" in vhost.queues:
        vhost.delete_queue(vhost.queues["probe"])
    harness.settle_down()
    limit(harness.broker, body_max=1000)
    check_service(harness)


def oracle_client(world: StoryRun) -> Any:
    """Somebody in "/", for what the oracle asks of clients."""
    from tests.fuzz.sessions.client import Client

    return Client(world.oracle, -1)


def run(story: Story, seed: int) -> None:
    """Perform a story that is written down, and its end."""
    with setting(seed) as catcher:
        world = StoryRun(catcher)
        try:
            for action in story:
                world.perform(action)
            world.end()
        finally:
            world.close()
