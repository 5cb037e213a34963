"""Documents of definitions, imported over what is there: of the broker or of one vhost, with a part that is refused, and again.

The handler of the HTTP request is run by hand. A document that has been taken is there when it is answered; before that a failure leaves
a beginning of it, in the order that docs/definitions.md names, each item as a whole. One that is refused changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Awaitable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

from kvitto.http.imports import import_definitions
from kvitto.http.request import Problem, Response
from kvitto.wire import methods as m
from tests.sim.ruling import some_policy
from tests.sim.setup import IMPORTED, Setup, stages

if TYPE_CHECKING:
    from random import Random

    from kvitto.broker.broker import Broker
    from tests.sim.actor import Actor

ORDER = ("vhost", "user", "permission", "operator_policy", "global_parameter", "policy", "exchange", "queue", "binding")
VHOSTS = ("/", "imp-v1", "imp-v2")
Item = tuple[tuple[str, ...], Any]


# -- documents -------------------------------------------------------------------------------------------------


def some_items(rng: Random, setup: Setup, vhost: str | None) -> list[Item]:
    """What a document may bring, in the order in which it is brought; `vhost`: it is for this one only."""
    known = [name for name in VHOSTS if name == "/" or ("vhost", name) in setup]
    found: dict[tuple[str, ...], Any] = {}
    if vhost is None:
        new = rng.sample(VHOSTS[1:], rng.randint(0, 2))
        known = sorted({*known, *new})
        found |= {("vhost", name): True for name in new}
        for name in rng.sample(("ann", "bo"), rng.randint(0, 2)):
            found["user", name] = sorted(rng.sample(("management", "monitoring", "policymaker"), rng.randint(0, 2)))
            found |= {
                ("permission", name, where): rng.choice(([".*", ".*", ".*"], ["", "^imp", ""]))
                for where in rng.sample(known, rng.randint(0, 1))
            }
        if rng.random() < 0.4:
            found["global_parameter", "imp-season"] = rng.choice(("spring", "autumn"))
    for where in [vhost] if vhost is not None else rng.sample(known, rng.randint(1, len(known))):
        found |= _of_vhost(rng, where)
        for _ in range(rng.randint(0, 2) if where == "/" else 0):
            key, value = some_policy(rng)
            found[key] = value
    return sorted(found.items(), key=lambda item: ORDER.index(item[0][0]))


def _of_vhost(rng: Random, vhost: str) -> Setup:
    queues = rng.sample(("1", "2", "3", "4"), rng.randint(0, 3))
    found: Setup = {("queue", vhost, IMPORTED + number): _arguments(number) for number in queues}
    if rng.random() < 0.6:
        exchange = IMPORTED + "x"
        found["exchange", vhost, exchange] = "direct"
        for number in queues:
            found["binding", vhost, exchange, IMPORTED + number, rng.choice(("k", "l"))] = True
    return found


def _arguments(number: str) -> dict[str, Any]:
    """A queue of one name always has the same ones."""
    return {"x-max-length": 5} if number in "24" else {}


def document(items: list[Item], whole: bool) -> dict[str, list[dict[str, Any]]]:
    """The items as another broker exports them."""
    lists: dict[str, list[dict[str, Any]]] = {}
    for key, value in items:
        name, item = _exported(key, value)
        if not whole:
            del item["vhost"]
        lists.setdefault(name, []).append(item)
    return lists


def _exported(key: tuple[str, ...], value: Any) -> tuple[str, dict[str, Any]]:
    kind, *names = key
    if kind == "vhost":
        return "vhosts", {"name": names[0]}
    if kind == "user":
        hashed = base64.b64encode(b"salt" + hashlib.sha256(b"salt" + names[0].encode()).digest()).decode()
        algorithm = "rabbit_password_hashing_sha256"
        return "users", {"name": names[0], "password_hash": hashed, "hashing_algorithm": algorithm, "tags": value}
    if kind == "permission":
        configure, write, read = value
        given = {"configure": configure, "write": write, "read": read}
        return "permissions", {"user": names[0], "vhost": names[1], **given}
    if kind == "global_parameter":
        return "global_parameters", {"name": names[0], "value": value}
    if kind == "operator_policy":
        return "parameters", {"vhost": names[0], "component": kind, "name": names[1], "value": value}
    if kind == "policy":
        return "policies", {"vhost": names[0], "name": names[1], **value}
    if kind == "exchange":
        return "exchanges", {
            "vhost": names[0], "name": names[1], "type": value, "durable": True, "auto_delete": False,
            "internal": False, "arguments": {},
        }  # fmt: skip
    if kind == "queue":
        return "queues", {
            "vhost": names[0], "name": names[1], "durable": True, "auto_delete": False, "arguments": value,
        }  # fmt: skip
    return "bindings", {
        "vhost": names[0], "source": names[1], "destination": names[2], "destination_type": "queue",
        "routing_key": names[3], "arguments": {},
    }  # fmt: skip


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("queues", {"name": "a", "durable": True, "auto_delete": False, "arguments": {"x-max-length": 3}}),
    ("queues", {"name": "imp-9", "durable": True, "auto_delete": False, "arguments": {"x-message-ttl": -4}}),
    ("bindings", {"source": "imp-none", "destination": "a", "destination_type": "queue", "routing_key": "k",
                  "arguments": {}}),
    ("policies", {"name": "bad", "pattern": "^ruled", "definition": {"max-lenght": 3}, "priority": 0}),
    ("policies", {"name": "bad", "pattern": "(", "definition": {"max-length": 3}, "priority": 0}),
    ("exchanges", {"name": "imp-y", "type": "dirrect", "durable": True, "auto_delete": False, "internal": False,
                   "arguments": {}}),
    ("parameters", {"component": "operator_policy", "name": "bad",
                    "value": {"pattern": "^ruled", "definition": {"dead-letter-exchange": ""}}}),
]  # fmt: skip
"""Each is refused by itself, in the vhost "/" of the simulation."""


# -- the request -----------------------------------------------------------------------------------------------


class Pause(Awaitable[None]):
    """The handler waits for another turn."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Slices:
    async def rest(self) -> None:
        await Pause()


@dataclass
class Request:
    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})

    def asks(self, name: str) -> bool:
        return False


class Api:
    """What a handler asks of the service that it belongs to."""

    def __init__(self, imports: Imports, broker: Broker) -> None:
        self.imports = imports
        self.broker = broker
        self.slices = Slices()
        self.applied = False

    async def perform(self, steps: Iterator[object]) -> None:
        self.applied = True
        after = self.imports.to_come
        assert after, "a document that is to be refused is applied"
        self.imports.actor.ruling.change(after, steps)


class Call:
    def __init__(self, api: Api, request: Request, vhost: str | None) -> None:
        self.api = api
        self.request = request
        self.args = {} if vhost is None else {"vhost": vhost}

    def vhost(self) -> Any:
        return self.api.broker.vhosts[self.args["vhost"]]


class Imports:
    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.to_come: list[Setup] = []
        """What the import that is running may leave, one after the other."""

    def step(self) -> None:
        if self.actor.rng.random() < 0.15:
            self.forget_one()
        else:
            self.bring()

    def bring(self) -> None:
        """Import a document; a third of them has something that is refused."""
        actor, rng, setup = self.actor, self.actor.rng, self.actor.ledger.setups[-1]
        able = [name for name in VHOSTS if name == "/" or ("vhost", name) in setup]
        vhost = rng.choice(able) if rng.random() < 0.4 else None
        items = some_items(rng, setup, vhost)
        lists = document(items, vhost is None)
        refused = vhost in (None, "/") and rng.random() < 0.35
        if refused:
            name, item = rng.choice(REFUSED)
            found = lists.setdefault(name, [])
            found.insert(rng.randint(0, len(found)), {**item, "vhost": "/"} if vhost is None else item)
        self.to_come = [] if refused else stages(setup, items)[1:] or [setup]
        names = rng.sample(sorted(lists), len(lists))
        answer = self.send(json.dumps({name: lists[name] for name in names}).encode(), vhost)
        told = getattr(answer, "status", None)
        expected = (400,) if refused else (200, 204)
        assert told in expected, f"an import is answered with {told}: {getattr(answer, 'body', b'')!r} {lists}"
        actor.ruling.check()

    def send(self, body: bytes, vhost: str | None) -> Response | Problem:
        """Run the handler, and everything else meanwhile."""
        call: Any = Call(Api(self, self.actor.harness.broker), Request(body), vhost)
        handler = import_definitions(call)
        while True:
            try:
                handler.send(None)
            except StopIteration as ended:
                answer: Response = ended.value
                return answer
            except Problem as problem:
                return problem
            self.actor.something_quick()

    def forget_one(self) -> None:
        """Delete a queue of the vhost "/" that an import has brought; a failure leaves it with some of its bindings, or nothing."""
        actor, setup = self.actor, self.actor.ledger.setups[-1]
        able = [key[2] for key in setup if key[:2] == ("queue", "/")]
        if not able:
            return
        name = actor.rng.choice(able)
        bound = [key for key in setup if key[0] == "binding" and key[1] == "/" and key[3] == name]
        fewer = [without(setup, gone) for n in range(len(bound) + 1) for gone in combinations(bound, n)]
        actor.ledger.setups = [*fewer, without(setup, [("queue", "/", name), *bound])]
        actor.ask(m.QueueDelete(name, False, False, False), m.QueueDeleteOk)
        actor.ledger.setups = actor.ledger.setups[-1:]
        actor.ruling.check()


def without(setup: Setup, gone: Iterable[tuple[str, ...]]) -> Setup:
    return {key: value for key, value in setup.items() if key not in gone}
