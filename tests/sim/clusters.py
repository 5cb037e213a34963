"""Runs of a cluster that elects its leader: whoever can be elected has, at every moment, all that a client has been told.

One leader, a real broker with a tap, and two or three followers, real ones, each on a simulated disk. Between them are bytes that come in
pieces, late or not at all. The register is a document with a version; requests to it are made late, refused, lost, or their answers are.
At any step the register may let somebody be elected, while the leader does not notice and goes on. Each node that the document names is
lost to a kill and to a power cut: a broker starts on what is left, and has everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

from kvitto.cluster.follower import Follower, Inherited
from kvitto.cluster.gate import Gate, acknowledged, in_sync
from kvitto.cluster.link import Behind, Leader, Link
from kvitto.cluster.membership import Membership
from kvitto.cluster.promotion import begin_epoch, ended_in_order
from kvitto.cluster.records import Kind
from kvitto.cluster.register import Document, Seen
from kvitto.cluster.ring import Ring
from kvitto.cluster.state import Member, read_following, read_history, why_not_elected
from kvitto.store.commit import Commit
from tests.protocol.sansio import ProtocolHarness
from tests.sim.cuts import Shown, play
from tests.sim.result import Result, finding
from tests.sim.standbys import KEY, RINGS, TELLS, LeaderDisk, compare, go_on_alone, small_pieces
from tests.sim.world import ENDS, SeededIds, SimulatedRun, check_start, small_world
from tests.support.clock import ManualClock
from tests.support.simdisk import SimDisk

CLUSTER, REGISTER = "a cluster", "etcd"
CALM_MAX = 20_000
PATIENCE = 20
"""After so many steps in which confirms waited for followers nothing goes wrong until they have all."""
ELECTIONS = 0.02
"""How often somebody is elected at a step, and the leader does not notice."""
LOSSES = 0.3


@dataclass
class Request:
    """A change that a leader has asked for."""

    document: Document
    version: int
    leader: Membership
    done: bool = False
    granted: int | None = None
    forgotten: bool = False
    """Whether its leader waits for the answer no more."""


class FakeRegister:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.version = 1
        self.requests: list[Request] = []

    def seen(self) -> Seen:
        return Seen(REGISTER, self.document, self.version, None)

    def store(self, document: Document, version: int) -> int | None:
        if version != self.version:
            return None
        self.document, self.version = document, self.version + 1
        return self.version

    def do(self, request: Request) -> None:
        """A request arrives."""
        request.done, request.granted = True, self.store(request.document, request.version)

    def answer(self, request: Request) -> None:
        """An answer arrives."""
        self.requests.remove(request)
        if request.forgotten:
            return
        if request.granted is not None:
            request.leader.changed(request.granted)
        else:
            request.leader.not_changed(self.seen())

    def lose(self, request: Request, reads: bool) -> None:
        """Its leader gives up waiting, and may read the document then. The request may still arrive."""
        if not request.forgotten:
            request.forgotten = True
            request.leader.not_changed(self.seen() if reads else None)


class Leading(ProtocolHarness):
    """The broker that leads."""

    def __init__(self, disk: SimDisk, clock: ManualClock, cluster: Cluster) -> None:
        inherited, cluster.inherited = cluster.inherited, None
        self.cluster = cluster
        self._starts = True
        self.ring = (
            inherited.ring if inherited is not None else Ring(cluster.rng.choice(RINGS), tell=cluster.rng.choice(TELLS))
        )
        until = self.ring.next
        self.tapped = LeaderDisk(disk, self.ring, inherited.tree if inherited is not None else None)
        counted = inherited.counted if inherited is not None else None
        super().__init__(self.tapped, clock, counted=counted)  # type: ignore[arg-type]
        self.leader = Leader(self.tapped, self.ring, KEY)
        self.leader.session, self.leader.cluster = cluster.new_session(), CLUSTER
        self.leader.continued = (inherited.session, until) if inherited is not None else None
        self.leader.history = read_history(disk)
        cluster.lead(self)
        cluster.calm()
        commits = self.store.commits
        cluster.gate = Gate(self.ring, cluster.membership, commits.allow)
        commits.allow(commits.syncs)

    def _start(self) -> None:
        self.cluster.gate = None
        self.store.commits.begun = self.begun
        self.ring.put(Kind.TIME, 0, 0, ())  # as `Followers.begin` does
        super()._start()

    def begun(self, commit: Commit) -> None:
        before = self.ring.next
        self.tapped.sync_point(commit.files, commit.dirs)
        if self.cluster.gate is not None:
            self.cluster.gate.begun(commit.number, before)

    def settle_down(self) -> None:
        super().settle_down()
        while self.cluster.gate is not None and (self.store.commits.behind or self._starts):
            self._starts = False  # what a start has come to is durable when all whom it waits for have it, and the ledger relies on it
            self.cluster.calm()
            super().settle_down()

    def end_sync(self, job: Commit) -> None:
        super().end_sync(job)
        self.cluster.step()

    def turn(self) -> None:
        self.cluster.step()
        super().turn()


class Node:
    """A node that follows: its disk, its process, and the connection to the leader."""

    def __init__(self, cluster: Cluster, name: str, disk: SimDisk) -> None:
        self.cluster = cluster
        self.name = name
        self.disk = disk
        self.link: Link | None = None
        self.elected = 0
        """The epoch in which the node was elected. It follows nobody from then on."""
        self.left = 0
        """The epoch whose leader has told the node that it ended in order."""
        self.follower: Follower
        self.begin()

    def begin(self) -> None:
        """The process starts."""
        self.cut()
        with SeededIds.others(self.cluster.rng):
            member = Member(CLUSTER, REGISTER, "kvitto", self.name)
            self.follower = Follower(
                self.disk, self.cluster.world.clock, KEY, "leader", lambda line: None, self.judge, member
            )

    def judge(self, own: list[str], leaders: list[str]) -> str:
        return why_not_elected(own, leaders, self.cluster.led)

    def cut(self) -> None:
        self._to_follower, self._to_leader = bytearray(), bytearray()
        if self.link is not None and self.link in self.link.leader.links:
            self.link.leader.links.remove(self.link)
        self.link = None

    def crash(self) -> None:
        rng = self.cluster.rng
        self.cluster.result.notes["crashes of followers"] += 1
        self.cut()
        self.disk = self.disk.crash(rng, hostile=rng.random() < 0.5) if rng.random() < 0.6 else self.disk.kill()
        self.begin()

    def pump(self) -> None:
        leading = self.cluster.leading
        if leading is None or self.elected:
            return
        if self.link is None:
            self.link = Link(leading.leader, self.name)
            leading.leader.links.append(self.link)
            self._to_leader += self.follower.begin()
        try:
            self._to_follower += b"".join(self.link.pieces())
        except Behind:
            self.cluster.result.notes["too far behind"] += 1
            self.cut()

    def deliver(self, size: int) -> None:
        """So many bytes arrive, on both sides."""
        data, self._to_follower = bytes(self._to_follower[:size]), self._to_follower[size:]
        for answer in self.follower.feed(data):
            self._to_leader += answer
        back, self._to_leader = bytes(self._to_leader[:size]), self._to_leader[size:]
        if self.link is not None:
            self.link.take(back)
            if back:
                self.cluster.acknowledged()

    def hear_of_the_end(self, leader: Leader) -> None:
        """Take everything, and hear that the leader has ended in order."""
        end = leader.ring.put(Kind.TIME, 0, 0, ()) + 1
        for _ in range(CALM_MAX):
            self.pump()
            self.deliver(1 << 20)
            if self.link is not None and self.link.leave(end):
                break
        self.pump()
        self.deliver(1 << 20)
        if self.follower.left is not None:
            self.cluster.result.notes["ends in order"] += 1
            self.left = self.cluster.led

    @property
    def idle(self) -> bool:
        return not self._to_leader and not self._to_follower


class Cluster:
    def __init__(self, world: ClusterRun, result: Result, part: float) -> None:
        self.world = world
        self.result = result
        self.part = part
        self.rng = Random(f"{world.seed} cluster")
        names = ["A", "B", "C", "D"][: self.rng.choice((2, 3, 3, 4))]
        minimum = self.rng.choice((1, 1, min(2, len(names))))
        self.register = FakeRegister(Document(CLUSTER, 0, "", ("A",), minimum))
        self.leading: Leading | None = None
        self.membership: Membership
        self.gate: Gate | None = None
        self.inherited: Inherited | None = None
        self.me = ""
        """The member that leads."""
        self.led = 0
        """Its epoch."""
        self.nodes: list[Node] = []
        self._sessions = self._behind = 0
        self.next = "A"
        """The member that the next broker is."""
        for number, name in enumerate(names[1:]):
            disk = SimDisk(1000 * (number + 1))
            disk.linking = True
            self.nodes.append(Node(self, name, disk))

    def new_session(self) -> str:
        self._sessions += 1
        return f"run {self._sessions}"

    # -- the leader --------------------------------------------------------------------------------------------------

    def elect(self, name: str, disk: SimDisk, node: Node | None = None) -> None:
        """Somebody is elected, and notes that."""
        register = self.register
        last = register.document
        in_order = node is not None and node.follower.left is not None and node.left == last.epoch
        in_order = in_order or (last.leader == name and ended_in_order(disk, last.epoch))
        assert name in register.document.members
        assert register.store(register.document.elected(name), register.version) is not None
        with SeededIds.others(self.rng):
            begin_epoch(disk, register.document.epoch, in_order)

    def lead(self, leading: Leading) -> None:
        self.leading, self.me = leading, self.next
        self.led = self.register.document.epoch
        self.membership = Membership(self.me, self.register.document, self.register.version)
        leading.leader.may_be_cut = self.membership.may_be_cut
        for node in self.nodes:
            node.elected = 0
            node.cut()

    def acknowledged(self) -> None:
        if self.gate is not None and self.leading is not None:
            self.gate.look(self.leading.leader.links)

    def manage(self, lost: Collection[str] = ()) -> None:
        """The leader looks who should be a member."""
        leading = self.leading
        assert leading is not None
        announced = self.gate.announced if self.gate is not None else leading.ring.next
        links = leading.leader.links
        synced = [link.member for link in in_sync(links) if link.acknowledged >= announced and link.member not in lost]
        version = self.membership.version
        connected = [link.member for link in links if link.member not in lost]
        document = self.membership.propose(synced, lost, [link.member for link in links if link.waits], connected)
        if document is not None:
            self.register.requests.append(Request(document, version, self.membership))
        if not self.membership.waits:
            self.acknowledged()

    # -- what happens ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Something happens to the network, to a follower, or to the register."""
        if self.leading is None or not self.world.up:
            return
        self.result.notes["steps"] += 1
        rng, choice = self.rng, self.rng.random()
        node = rng.choice(self.nodes)
        self._behind = self._behind + 1 if self.leading.store.commits.behind else 0
        if self._behind > PATIENCE:
            self._behind = 0
            self.calm()
            return
        with finding(self.result, f"operation {self.world.disk.operations}"), SeededIds.others(rng):
            if choice < 0.45:
                self.some(node, rng.randint(1, 8))
            elif choice < 0.5:
                node.cut()
            elif choice < 0.53:
                node.crash()
            elif choice < 0.63:
                self.manage([other.name for other in self.nodes if rng.random() < 0.3 or other.elected])
            elif choice < 0.8:
                self.disturb_register()
            elif choice < 0.8 + ELECTIONS:
                self.elect_unnoticed()
            elif choice < 0.82 + LOSSES * 0.6 * self.part:
                self.lose()
        if self.result.findings:
            raise Shown

    def some(self, node: Node, count: int) -> None:
        for _ in range(count):
            node.pump()
            if node.follower.copying and self.rng.random() < 0.02:
                node.crash()
                return
            node.deliver(self.rng.choice((1, 30, 100, 1000, 1 << 20)))

    def disturb_register(self) -> None:
        if not self.register.requests:
            return
        request = self.rng.choice(self.register.requests)
        choice = self.rng.random()
        if choice < 0.15:
            self.result.notes["requests without an answer"] += 1
            self.register.lose(request, self.rng.random() < 0.5)
        elif choice < 0.2 and not request.done:
            self.register.lose(request, self.rng.random() < 0.5)
            self.register.requests.remove(request)
        elif request.done:
            self.register.answer(request)
            self.acknowledged()
        else:
            self.register.do(request)

    def elect_unnoticed(self) -> None:
        """A follower is elected. The leader goes on, and can confirm nothing that this one does not have."""
        document = self.register.document
        able = [node for node in self.nodes if node.name in document.members and not node.elected]
        if document.epoch != self.led or document.leader != self.me or not able:
            return
        node = self.rng.choice(able)
        self.result.notes["elections that the leader did not notice"] += 1
        node.cut()
        node.follower.settle()
        self.elect(node.name, node.disk)
        node.elected = self.register.document.epoch

    def lose(self) -> None:
        """All power goes: whoever may be elected has everything."""
        world = self.world
        for node in self.nodes:
            if node.name not in self.register.document.members:
                continue
            self.result.notes["losses"] += 1
            rng = Random(f"{world.seed} {node.name} {world.disk.operations}")
            for image, how in (
                (node.disk.copy().kill(), "kill"),
                (node.disk.survivor(rng, hostile=rng.random() < 0.5), "power cut"),
            ):
                self.result.tried += 1
                with finding(self.result, f"{node.name} after a {how}"), SeededIds.others(rng):
                    begin_epoch(image, self.register.document.epoch + 1, False)
                    check_start(image, world.clock, world.ledger)

    # -- when nothing goes wrong -------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Until everybody whom the leader waits for has everything. If another one was elected meanwhile that never comes."""
        leading = self.leading
        assert leading is not None
        place = leading.ring.put(Kind.TIME, 0, 0, ()) + 1
        self._until(
            lambda: (self.membership.reached(acknowledged(leading.leader.links), place) or 0) >= place,
            "the cluster never comes to rest",
        )
        self.acknowledged()

    def everybody(self) -> None:
        """Until all nodes are members, and their files are those of the leader."""
        leading = self.leading
        assert leading is not None
        self.calm()
        self._until(
            lambda: (
                len(self.register.document.members) == len(self.nodes) + 1
                and not self.register.requests
                and all(node.idle and node.follower.place == leading.ring.next for node in self.nodes)
            ),
            "somebody never becomes a member",
        )
        for node in self.nodes:
            compare(leading.leader, node.disk)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        with SeededIds.others(self.rng):
            for _ in range(CALM_MAX):
                if self.register.document.epoch != self.led:
                    raise Deposed
                if condition():
                    return
                for node in self.nodes:
                    node.pump()
                    node.deliver(1 << 20)
                self.manage()
                for request in list(self.register.requests):
                    if not request.done:
                        self.register.do(request)
                    self.register.answer(request)
        raise AssertionError(what)


class Deposed(BaseException):
    """The leader waits for confirms that cannot come, since another one has been elected."""


class ClusterRun(SimulatedRun):
    harness: Leading
    cluster: Cluster

    def play(self, steps: int = 60, ends: int = 2) -> None:
        """Live, die and live again, also when the leader waits for confirms that cannot come."""
        when = {self.rng.randrange(1, steps) for _ in range(ends)}
        i, starts = 0, True
        while i <= steps:
            try:
                if starts:
                    self.start()
                starts = False
                if i in when:
                    when.remove(i)
                    starts = True
                    self.end(self.rng.choice(ENDS))
                elif i < steps:
                    self.actor.step()
                    i += 1
                else:
                    self.actor.rest()
                    self.cluster.everybody()
                    i += 1
            except Deposed:
                self.cluster.result.notes["leaders that were deposed"] += 1
                self.end("kill" if self.rng.random() < 0.5 else "power")
                starts = True

    def open_harness(self) -> ProtocolHarness:
        cluster = self.cluster
        cluster.leading = None
        if cluster.register.document.epoch == 0:
            cluster.elect("A", self.disk)
        return Leading(self.disk, self.clock, cluster)

    def end(self, kind: str) -> None:
        if kind == "order":
            try:
                self.actor.rest()
            except Deposed:
                kind = "kill"
        if kind == "order":
            self.cluster.gate = None
            self.harness.store.commits.allow(None)
        super().end(kind)

    def found_after(self, old: SimDisk, kind: str) -> SimDisk:
        """Somebody who may be elected is, if that has not happened yet; the leader of before follows, if it is another one."""
        cluster = self.cluster
        rng, document = cluster.rng, cluster.register.document
        if kind == "order" and cluster.leading is not None:
            cluster.gate = None
            for follower in [node for node in cluster.nodes if not node.elected and rng.random() < 0.7]:
                with finding(cluster.result, "an end in order"), SeededIds.others(rng):
                    follower.hear_of_the_end(cluster.leading.leader)
        found = super().found_after(old, kind)
        before, cluster.leading = cluster.me, None
        elected = [node for node in cluster.nodes if node.elected == document.epoch]
        able = elected or [node for node in cluster.nodes if node.name in document.members]
        if before in document.members and not elected:
            able.append(None)  # type: ignore[arg-type]
        node = rng.choice(able)
        if node is None:
            cluster.result.notes["the same leads again"] += 1
            cluster.elect(before, found)
            return found
        cluster.result.notes["another one leads"] += 1
        node.cut()
        if not node.elected:
            if rng.random() < 0.3:
                node.crash()
            node.follower.settle()
            cluster.elect(node.name, node.disk, node)
        with SeededIds.others(rng):
            if rng.random() < 0.5:
                go_on_alone(found, self.clock)
                found = found.kill()
        found.watch, found.trace, found.linking = None, None, True
        found.fail_at, found.fail_read_at = {}, {}
        cluster.inherited, new = node.follower.inherit(), node.disk
        if cluster.inherited is not None:
            cluster.result.notes["streams that go on"] += 1
        cluster.nodes.remove(node)
        cluster.nodes.append(Node(cluster, before, found))
        cluster.next = node.name
        assert (following := read_following(new)) is None or following.complete
        return new


def cluster(seed: int, part: float = 1.0) -> Result:
    """Whoever may be elected is, at any step: it has all that a client has been told (R1 to R8)."""
    result = Result(seed)
    with small_world(seed), small_pieces(seed):
        world = ClusterRun(seed)
        world.cluster = Cluster(world, result, part)
        play(world, result)
    return result
