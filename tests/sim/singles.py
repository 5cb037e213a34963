"""Single active consumers: who is served, in which order, and who comes next (docs/protocol-extensions.md).

The model is the order of registration: the first is served until it ends, and a newcomer goes behind those that wait with the same or a
higher priority. The consumers are on three channels of two connections, one of which is lost now and then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvitto.wire import methods as m
from kvitto.wire.methods import BasicDeliver, ChannelClose, Method, decode
from kvitto.wire.spec import FRAME_BODY, FRAME_METHOD, PROTOCOL_HEADER

if TYPE_CHECKING:
    from tests.protocol.sansio import Frame, Wire
    from tests.sim.actor import Actor

SINGLE = "single"
CHANNELS = (7, 8, 9)
MATE = 9
"""This channel is on a connection of its own."""
PRIORITIES = (None, None, None, -1, 2, 3)
MOST = 5
"""So many consumers are there at once."""


@dataclass
class Registered:
    tag: str
    channel: int
    priority: int
    room: int
    leaving: bool = False
    """Its cancel, or the end of its channel, was sent, and may have been done."""
    holds: set[int] = field(default_factory=set)
    """Delivery tags."""


class Singles:
    """The consumers of the queue SINGLE, as they are registered."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.order: list[Registered] = []
        self.unsure: set[bytes] = set()
        """These came back since the broker was last at rest: what was on its way then was delivered before."""
        self.coming: dict[bytes, int] = {}
        """The bodies that were read together -> their channels. Which of them came first is known within a connection only."""
        self.number = 0
        self.mate = self._connect()
        for channel in CHANNELS[:2]:
            actor.inbox_put(m.ChannelOpen(), channel=channel)

    def _connect(self) -> Wire:
        wire = self.actor.harness.wire(login=False)
        self.actor.wires.append(wire)
        wire.feed(PROTOCOL_HEADER)
        wire.put(0, m.ConnectionStartOk({"capabilities": {}}, "PLAIN", b"\0guest\0guest", "en_US"))
        wire.put(0, m.ConnectionTuneOk(2047, 131072, 0), m.ConnectionOpen("/"))
        wire.put(MATE, m.ChannelOpen())
        return wire

    def wire_of(self, channel: int) -> Wire:
        return self.mate if channel == MATE else self.actor.inbox

    # -- what comes back -------------------------------------------------------------------------------------

    def foresee(self, frames: list[Frame]) -> None:
        """Called with all that was read from both connections, before any of it is looked at."""
        self.coming = {payload: channel for kind, channel, payload in frames if kind == FRAME_BODY}
        for kind, channel, payload in frames:
            if kind == FRAME_METHOD and isinstance(decode(payload), ChannelClose):
                self.leave(channel)

    def heard(self, channel: int, method: Method) -> None:
        """In the order of the connection: from here on the next one is served."""
        if isinstance(method, m.BasicCancelOk):
            self.order = [each for each in self.order if each.tag != method.consumer_tag]
        elif isinstance(method, m.ChannelClose | m.ChannelCloseOk):
            self.order = [each for each in self.order if each.channel != channel]

    def served(self, delivery: BasicDeliver, channel: int, body: bytes) -> None:
        """A delivery has come: it is the active consumer's, and no message before it was ready."""
        active = next((each for each in self.order if not each.leaving), None)
        able = [each for each in self.order if each.leaving] + ([active] if active else [])
        able = able[: able.index(active) + 1] if active else able
        got = next((each for each in able if each.tag == delivery.consumer_tag), None)
        registered = " ".join(each.tag for each in self.order)
        assert got is not None, f"{SINGLE}: {delivery.consumer_tag} is served, of {registered}"
        assert got.channel == channel
        got.holds.add(delivery.delivery_tag)
        assert len(got.holds) <= got.room, f"{SINGLE}: {got.tag} has more than it asked for"
        self.in_order(body, channel)

    def in_order(self, body: bytes, channel: int) -> None:
        told = self.actor.ledger.queue(SINGLE)
        before = told.sent[: told.sent.index(body)]
        ready = self.ready()
        wire = self.wire_of(channel)
        ready -= {other for other, where in self.coming.items() if self.wire_of(where) is not wire}
        passed = [other for other in before if other in ready and other not in self.unsure]
        assert not passed, f"{SINGLE}: {body!r} is delivered before {passed}"

    def ready(self) -> set[bytes]:
        """What must be in the queue, and nobody has."""
        ledger = self.actor.ledger
        told = ledger.queue(SINGLE)
        held = {body for queue, body in self.actor.held.values() if queue == SINGLE}
        moved = {body for queue, body in ledger.moves if queue == SINGLE}
        return told.confirmed - told.settled - told.gone - told.doomed - told.refused - held - moved

    def settled(self, channel: int, tag: int) -> None:
        for each in self.order:
            if each.channel == channel:
                each.holds.discard(tag)

    def at_rest(self) -> None:
        self.unsure.clear()

    def check_goes_on(self) -> None:
        """The active one has what it has room for."""
        actor = self.actor
        for _ in range(20):
            actor.rest()
            if not self.order or len(self.order[0].holds) >= self.order[0].room or not self.ready():
                return
            actor.harness.turn()
        raise AssertionError(f"{SINGLE}: {self.order[0]} gets nothing of {sorted(self.ready())}")

    # -- what is done ----------------------------------------------------------------------------------------

    def step(self) -> None:
        actor, rng = self.actor, self.actor.rng
        actor.rest()
        while len(self.order) < 2:
            self.come()
        if len(self.order) < MOST and rng.random() < 0.2:
            self.come()
        elif rng.random() < 0.4:
            self.go()
        else:
            for channel, tag in [key for key in actor.held if key[0] in CHANNELS][: rng.randint(1, 4)]:
                if (channel, tag) in actor.held:
                    actor.settle(tag, channel)
        if rng.random() < 0.5:
            self.check_goes_on()

    def come(self) -> None:
        """One more consumer."""
        rng, self.number = self.actor.rng, self.number + 1
        channel, priority, room = rng.choice(CHANNELS), rng.choice(PRIORITIES), rng.randint(1, 4)
        tag = f"single {self.number}"
        self.actor.consumers[tag] = SINGLE
        arguments: dict[str, Any] = {} if priority is None else {"x-priority": priority}
        self.actor.read()
        self.register(Registered(tag, channel, priority or 0, room))
        consume = m.BasicConsume(SINGLE, tag, False, False, False, False, arguments)
        self.actor.inbox_put(m.BasicQos(0, room, False), consume, channel=channel)
        assert any(isinstance(answer, m.BasicConsumeOk) for answer in self.actor.rest()), f"{tag} is not registered"

    def register(self, new: Registered) -> None:
        """The active one stays; among those that wait the priority decides, then who was first."""
        at = len(self.order)
        while at > 1 and self.order[at - 1].priority < new.priority:
            at -= 1
        self.order.insert(at, new)

    def go(self) -> None:
        """A consumer, a channel or a connection ends; often the one that is served."""
        actor, rng = self.actor, self.actor.rng
        one = self.order[0] if rng.random() < 0.6 else rng.choice(self.order)
        actor.read()
        what = rng.choice(("cancel", "cancel", "channel", "connection"))
        if what == "cancel":
            one.leaving = True
            actor.inbox_put(m.BasicCancel(one.tag, False), channel=one.channel)
            actor.rest()
        elif what == "channel" or one.channel != MATE:
            self.leave(one.channel)
            actor.inbox_put(m.ChannelClose(200, "", 0, 0), channel=one.channel)
            actor.rest()
            actor.inbox_put(m.ChannelOpen(), channel=one.channel)
            actor.give_back(one.channel)
        else:
            self.leave(MATE)
            actor.wires.remove(self.mate)
            actor.give_back(MATE)
            self.order = [each for each in self.order if each.channel != MATE]
            self.mate.connection.lost()
            self.mate = self._connect()
        actor.rest()

    def leave(self, channel: int) -> None:
        """The channel of these consumers ends."""
        for each in self.order:
            each.leaving = each.leaving or each.channel == channel
