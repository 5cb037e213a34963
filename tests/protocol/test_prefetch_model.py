"""Two connections with two channels each act on the same queues: who gets what, under which prefetch, against a model.

Consumers with and without a prefetch of their own, prefetch for whole channels, gets, settlements of every kind, cancelled consumers,
closed channels and lost connections are mixed. After each step: no message is in two places or nowhere, nobody holds more
than he may, and no message waits while a consumer has room for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from kvitto.wire import methods as m
from kvitto.wire.methods import Method, decode
from kvitto.wire.spec import FRAME_BODY, FRAME_METHOD
from tests.protocol.raw import NO_PROPERTIES, content
from tests.protocol.sansio import ProtocolHarness, Wire

QUEUES = ("q0", "q1")
READY, HELD, GONE = "ready", "held", "gone"
HOW = ("ack", "ack", "ack", "nack", "reject", "drop")


@dataclass
class Message:
    queue: str
    place: str = READY
    delivered: int = 0


@dataclass
class Consumer:
    queue: str
    prefetch: int
    no_ack: bool
    holds: int = 0


@dataclass
class Channel:
    """What a peer knows of one of its channels."""

    prefetch_all: int = 0
    prefetch: int = 0
    consumers: dict[str, Consumer] = field(default_factory=dict)
    held: dict[int, tuple[int, Consumer | None]] = field(default_factory=dict)
    """By delivery tag: the message, and the consumer that got it; None for a get."""
    answers: list[Method] = field(default_factory=list)

    @property
    def counted(self) -> int:
        return sum(consumer is not None for _, consumer in self.held.values())

    def credit(self, c: Consumer) -> bool:
        if c.no_ack:
            return True
        own = not c.prefetch or c.holds < c.prefetch
        return own and (not self.prefetch_all or self.counted < self.prefetch_all)


class Peer:
    def __init__(self, harness: ProtocolHarness) -> None:
        self.wire: Wire = harness.wire()
        self.wire.put(2, m.ChannelOpen())
        harness.settle_down()
        self.wire.frames()
        self.channels = {1: Channel(), 2: Channel()}


class PrefetchModel:
    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.harness = ProtocolHarness()
        self.peers = [Peer(self.harness), Peer(self.harness)]
        self.messages: list[Message] = []
        self.tags = 0
        self.steps: list[str] = []

    def declare(self, single: bool, limited: bool) -> None:
        self.single = {"q0": False, "q1": single}
        wire = self.peers[0].wire
        arguments: dict[str, Any] = {"x-single-active-consumer": True} if single else {}
        wire.put(1, m.QueueDeclare("q0", arguments={"x-delivery-limit": 100} if limited else {}))
        wire.put(1, m.QueueDeclare("q1", arguments=arguments))
        self.harness.settle_down()
        wire.frames()

    # -- what the peers see ----------------------------------------------------------------------------------

    def step(self) -> None:
        self.harness.settle_down()
        for peer in self.peers:
            frames = peer.wire.frames()
            for at, (kind, number, payload) in enumerate(frames):
                if kind == FRAME_METHOD:
                    assert number, f"the connection was closed: {decode(payload)}"
                    body = next((int(p) for k, _, p in frames[at + 1 : at + 3] if k == FRAME_BODY), -1)
                    self.see(peer.channels[number], decode(payload), body)

    def see(self, chan: Channel, method: Method, number: int) -> None:
        if isinstance(method, m.BasicDeliver):
            consumer = chan.consumers[method.consumer_tag]
            assert chan.credit(consumer), "more than the prefetch allows"
            self.take(chan, method.delivery_tag, method.redelivered, number, consumer.queue)
            if consumer.no_ack:
                self.messages[number].place = GONE
            else:
                chan.held[method.delivery_tag] = (number, consumer)
                consumer.holds += 1
        elif isinstance(method, m.BasicGetOk):
            self.take(chan, method.delivery_tag, method.redelivered, number, method.routing_key)
            chan.held[method.delivery_tag] = (number, None)
        else:
            assert not isinstance(method, m.ChannelClose), method
            chan.answers.append(method)

    def take(self, chan: Channel, tag: int, redelivered: bool, number: int, queue: str) -> None:
        message = self.messages[number]
        assert message.place == READY and message.queue == queue, f"{number} is {message}"
        assert redelivered == (message.delivered > 0), f"{number} is {message}"
        message.delivered += 1
        message.place = HELD
        assert tag not in chan.held

    def channel(self, which: int) -> tuple[Wire, int, Channel]:
        peer = self.peers[which % 2]
        number = which // 2 % 2 + 1
        return peer.wire, number, peer.channels[number]

    def back(self, chan: Channel, tags: list[int], place: str) -> None:
        for tag in tags:
            number, consumer = chan.held.pop(tag)
            self.messages[number].place = place
            if consumer is not None:
                consumer.holds -= 1

    # -- what they do ----------------------------------------------------------------------------------------

    def publish(self, which: int, queue: str, count: int) -> None:
        wire, number, _ = self.channel(which)
        for _ in range(count):
            body = b"%d" % len(self.messages)
            self.messages.append(Message(queue))
            wire.feed(content(number, m.BasicPublish("", queue), NO_PROPERTIES, body))
        self.step()

    def qos(self, which: int, count: int, everything: bool) -> None:
        wire, number, chan = self.channel(which)
        wire.put(number, m.BasicQos(0, count, everything))
        if everything:
            chan.prefetch_all = count
        else:
            chan.prefetch = count
        self.step()

    def consume(self, which: int, queue: str, no_ack: bool, priority: int) -> None:
        wire, number, chan = self.channel(which)
        if len(chan.consumers) > 3:
            return
        self.tags += 1
        tag = f"c{self.tags}"
        chan.consumers[tag] = Consumer(queue, chan.prefetch, no_ack)
        wire.put(number, m.BasicConsume(queue, tag, no_ack=no_ack, arguments={"x-priority": priority}))
        self.step()

    def cancel(self, which: int, index: int) -> None:
        wire, number, chan = self.channel(which)
        if chan.consumers:
            tag = [*chan.consumers][index % len(chan.consumers)]
            wire.put(number, m.BasicCancel(tag))
            del chan.consumers[tag]
            self.step()

    def get(self, which: int, queue: str) -> None:
        wire, number, chan = self.channel(which)
        before, ready = len(chan.held), self.ready(queue)
        chan.answers.clear()
        wire.put(number, m.BasicGet(queue))
        self.step()
        empty = [answer for answer in chan.answers if isinstance(answer, m.BasicGetEmpty)]
        assert (len(chan.held) - before, len(empty)) == ((1, 0) if ready else (0, 1))
        if ready:
            assert self.messages[ready[0]].place == HELD, "another one than the first"

    def settle(self, which: int, index: int, multiple: bool, how: str) -> None:
        wire, number, chan = self.channel(which)
        if not chan.held:
            return
        tags = sorted(chan.held)
        tag = tags[index % len(tags)]
        multiple = multiple and how != "reject"
        if how == "ack":
            method: Method = m.BasicAck(tag, multiple)
        elif how == "reject":
            method = m.BasicReject(tag, True)
        else:
            method = m.BasicNack(tag, multiple, how == "nack")
        wire.put(number, method)
        chosen = [t for t in tags if t <= tag] if multiple else [tag]
        self.back(chan, chosen, READY if how in ("nack", "reject") else GONE)
        self.step()

    def recover(self, which: int) -> None:
        wire, number, chan = self.channel(which)
        wire.put(number, m.BasicRecover(True))
        self.back(chan, [*chan.held], READY)
        self.step()

    def close(self, which: int) -> None:
        wire, number, chan = self.channel(which)
        wire.put(number, m.ChannelClose(200, "done"))
        self.harness.settle_down()
        wire.put(number, m.ChannelOpen())
        self.back(chan, [*chan.held], READY)
        self.peers[which % 2].channels[number] = Channel()
        self.step()

    def lose(self, which: int) -> None:
        for chan in self.peers[which].channels.values():
            self.back(chan, [*chan.held], READY)
        self.peers[which].wire.connection.lost()
        self.peers[which] = Peer(self.harness)
        self.step()

    # -- what holds after each step --------------------------------------------------------------------------

    def ready(self, queue: str) -> list[int]:
        return [n for n, message in enumerate(self.messages) if message.queue == queue and message.place == READY]

    def books(self) -> None:
        for name in QUEUES:
            queue = self.harness.broker.vhosts["/"].queues[name]
            places = [message.place for message in self.messages if message.queue == name]
            assert (queue.ready, queue.unacked) == (places.count(READY), places.count(HELD))
            consumers = [(chan, c) for p in self.peers for chan in p.channels.values() for c in chan.consumers.values()]
            served = [chan.credit(c) for chan, c in consumers if c.queue == name]
            if queue.ready and served:
                waits = all(served) if self.single[name] else any(served)
                assert not waits, "a message waits, and a consumer has room for it"
        for peer in self.peers:
            for number, chan in peer.channels.items():
                found = peer.wire.connection.channels[number]
                assert (found.unacked, found.unacked - found.got) == (len(chan.held), chan.counted)

    def act(self) -> None:
        """One step, chosen by chance: mostly messages come and are settled."""
        rng = self.rng
        which, queue = rng.randrange(4), rng.choice(QUEUES)
        steps: dict[str, tuple[int, Callable[[], None]]] = {
            "settle": (34, lambda: self.settle(which, rng.randrange(10), rng.random() < 0.3, rng.choice(HOW))),
            "publish": (20, lambda: self.publish(which, queue, rng.randrange(1, 7))),
            "consume": (14, lambda: self.consume(which, queue, rng.random() < 0.1, rng.choice([0, 0, 0, 1]))),
            "get": (8, lambda: self.get(which, queue)),
            "qos": (8, lambda: self.qos(which, rng.randrange(4), rng.random() < 0.5)),
            "cancel": (8, lambda: self.cancel(which, rng.randrange(4))),
            "recover": (3, lambda: self.recover(which)),
            "close": (3, lambda: self.close(which)),
            "lose": (2, lambda: self.lose(which % 2)),
        }
        name = rng.choices([*steps], [weight for weight, _ in steps.values()])[0]
        self.steps.append(f"{name} {which} {queue}")
        steps[name][1]()
        self.books()


@pytest.mark.parametrize("number", range(12))
def test_every_message_is_in_one_place_and_none_waits_for_a_consumer_with_room(number: int) -> None:
    """A1, A5, A6, A10, A12, A13, A14."""
    model = PrefetchModel(Random(number))
    model.declare(single=number % 3 == 0, limited=number % 2 == 0)
    for _ in range(250):
        try:
            model.act()
        except AssertionError as error:
            error.add_note("the last steps: " + ", ".join(model.steps[-12:]))
            raise
