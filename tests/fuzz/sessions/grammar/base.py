"""What the themes share: who is there, names that meet each other, arguments, and how an action is put together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from kvitto.protocol.states import RUNNING
from kvitto.wire import methods as m
from kvitto.wire.codec import Method
from kvitto.wire.methods import frame
from kvitto.wire.properties import Properties
from kvitto.wire.spec import FRAME_METHOD
from tests.fuzz.sessions.client import Channel, Client
from tests.fuzz.sessions.story import Action
from tests.protocol.raw import content

if TYPE_CHECKING:
    from tests.fuzz.sessions.world import StoryRun

T = TypeVar("T")
SLOTS = 4
FOLLOWED = ("keep", "kept")
QUEUES = (*FOLLOWED, "q1", "q2", "q3", "q4", "dead", "log1", "ranked")
EXCHANGES = ("", "", "amq.topic", "amq.fanout", "amq.direct", "amq.match", "e1", "e2", "e3")
KEYS = (*QUEUES, "", "a", "a.b", "a.b.c", "#", "*.b", "1", "3")
TAGS = ("c1", "c2", "c3", "c4")
WRITERS = ("w1", "w2")
DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
ARGUMENTS: dict[str, Sequence[dict[str, Any]]] = {
    "keep": ({},),
    "kept": ({},),
    "q1": ({}, {"x-message-ttl": 50}, {"x-message-ttl": 50, **DEAD}, {"x-expires": 3000}, {"x-max-length": 2, **DEAD}),
    "q2": (
        {"x-delivery-limit": 1},
        {"x-delivery-limit": 0, **DEAD},
        {"x-max-length": 3, "x-overflow": "reject-publish"},
        {"x-max-length-bytes": 100, "x-overflow": "reject-publish-dlx", **DEAD},
        {"x-retry-delay-min": 100, "x-retry-delay-max": 1000, "x-delivery-limit": 3, **DEAD},
        {"x-single-active-consumer": True},
        {"x-consumer-timeout": 2000},
    ),
    "q3": ({"x-on-alarm": "nack"}, {"x-archive": True}, {"x-dead-letter-exchange": "e1"}, {"x-queue-type": "quorum"}),
    "q4": (
        {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q4", "x-message-ttl": 100},
        {"x-dead-letter-exchange": "amq.fanout", "x-max-length": 1},
        {"x-dead-letter-exchange": "nowhere", "x-message-ttl": 0},
        {"x-retry-delay-min": 1000, "x-consumer-timeout": 3000, "x-single-active-consumer": True},
    ),
    "dead": ({}, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q1", "x-message-ttl": 500}),
    "log1": (
        {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 300, "x-max-length": 6},
        {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 300, "x-max-age": "5s"},
        {"x-queue-type": "stream"},
    ),
    "ranked": ({"x-max-priority": 4}, {"x-max-priority": 2, "x-message-ttl": 200, **DEAD}, {"x-max-priority": 255}),
}
ODD_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"x-max-length": "none"},
    {"x-message-ttl": -1},
    {"x-expires": 1},
    {"x-overflow": 5},
    {"x-queue-type": "none"},
    {"x-match": "any", "k": 1},
    {"x-match": "all-with-x", "x-k": None},
    {"alternate-exchange": "e2"},
    {"k": [{"k": [None, 1.5, float("nan"), True, b"\xff"]}]},
    {"x-priority": 1 << 62},
    {"x-stream-offset": "first"},
    {"x-offset-header": True},
    {"x-delivery-limit": -1},
    {"x-message-ttl": 1 << 40},
)


class Grammar:
    """Where a theme's actions come from: dice, the world as it is, and shorthands."""

    def __init__(self, rng: Random, world: StoryRun) -> None:
        self.rng = rng
        self.world = world
        self.bodies = 0
        self.cast = [FOLLOWED[0], *rng.sample(QUEUES[1:], self.one(0, 1, 1, 2, 3))]
        """Queues that this story is mostly about: what several do meets in few of them."""

    def one(self, *of: T) -> T:
        return self.rng.choice(of)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    # -- who is there -----------------------------------------------------------------------------------------

    def slot(self) -> int:
        return self.rng.randrange(SLOTS)

    def client(self) -> Client | None:
        """Somebody who is connected."""
        there = [p.client for p in self.world.peers.values() if p.connection.state == RUNNING and not p.client.wild]
        return self.rng.choice(there) if there else None

    def anywhere(self) -> Iterator[tuple[Client, Channel]]:
        for peer in self.world.peers.values():
            if peer.connection.state == RUNNING and not peer.client.wild:
                for channel in peer.client.open():
                    yield peer.client, channel

    def channel(self, which: Callable[[Channel], bool] = lambda _: True) -> tuple[Client, Channel] | None:
        """An open channel somewhere, if there is one like this."""
        found = [(client, channel) for client, channel in self.anywhere() if which(channel)]
        return self.rng.choice(found) if found else None

    def queue(self) -> str:
        """One that is there, mostly."""
        if self.chance(0.8):
            return self.rng.choice(self.cast)
        there = [name for name in self.world.harness.broker.vhosts["/"].queues if name in QUEUES]
        return self.rng.choice(there) if there and self.chance(0.9) else self.rng.choice(QUEUES)

    # -- actions ---------------------------------------------------------------------------------------------

    def send(self, client: Client, data: bytes) -> list[Action]:
        pieces = self.one(0, 0, 0, 0, 0, 0, 1, 3, 7, 20, 61)
        after: list[Action] = self.one([("sync",)], [("sync",)], [("turn",)], [("turn",)], [])
        return [("send", client.slot, pieces if len(data) < 3000 else 0, data), *after]

    def put(self, client: Client, number: int, *methods: Method) -> list[Action]:
        return self.send(client, encoded(number, *methods))

    def anyhow(self, *methods: Method) -> list[Action]:
        """On some channel that is open."""
        found = self.channel()
        return [] if found is None else self.put(found[0], found[1].number, *methods)

    def message(self, client: Client, number: int, exchange: str, key: str, **of: Any) -> bytes:
        """A message that no other is equal to."""
        self.bodies += 1
        size = self.one(0, 0, 0, 10, 100, 100, 600, 5000)
        body = f"m{self.bodies}.".encode() + b"." * size
        method = m.BasicPublish(exchange, key, self.chance(0.1), self.chance(0.002))
        frame_max = self.one(client.frame_max, client.frame_max, 200, 18)
        return content(number, method, Properties(**of).encode(), body, frame_max)

    def some(self, kind: type[Method]) -> Method:
        """Any arguments that the method's types allow."""
        values: dict[str, Any] = {}
        for parameter in inspect.signature(kind).parameters.values():
            name_, name = (
                parameter.name,
                parameter.annotation.__name__ if isinstance(parameter.annotation, type) else "",
            )
            match name:
                case "bool":
                    value: Any = self.chance(0.3)
                case "int" if name_ in ("version_major", "version_minor"):
                    value = 9
                case "int":
                    value = self.one(0, 0, 1, 1, 2, 3, 7, 1 << 15, (1 << 16) - 1)
                case "str":
                    value = self.one(*QUEUES, *EXCHANGES, *TAGS, *WRITERS, "g", "topic", "fanout", "")
                case "bytes":
                    value = self.one(b"", b"0", b"0\n1", self.rng.randbytes(5))
                case _:
                    value = self.one({}, {}, *ODD_ARGUMENTS)
            values[parameter.name] = value
        return kind(**values)


def encoded(number: int, *methods: Method) -> bytes:
    return b"".join(frame(FRAME_METHOD, number, method.encode()) for method in methods)
