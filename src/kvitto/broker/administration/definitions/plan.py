"""The import of a document of definitions: read, check all of it, then apply it in pieces. Nothing is half done.

`read` and `apply` are steps of long work; between two of them others may go on. After `read` the plan says what cannot be taken. Unless
`skip_errors` is set, one such item is enough for the caller not to apply anything. What is applied is written in the order of KINDS, so
that a crash leaves a beginning of it, and a second import of the same document does the rest. Used by http/definitions.py and by
server/definitions.py for the start.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kvitto.base.errors import ProtocolError
from kvitto.broker.administration.definitions import settings, topology
from kvitto.broker.administration.definitions.document import Broken, Document, Malformed
from kvitto.broker.administration.definitions.fields import Fields, Refused
from kvitto.broker.administration.definitions.settings import Apply
from kvitto.broker.administration.definitions.world import World, reason_of
from kvitto.broker.jobs import PIECE, Cost

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.vhost import VHost

Check = Callable[[World, Fields, "VHost | None"], Apply | None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """A list of the document. `of_vhosts`: its items belong to one virtual host. The costs are in units of about a microsecond."""

    name: str
    word: str
    check: Check
    of_vhosts: bool = False
    check_cost: int = 30
    apply_cost: int = 60


KINDS = (
    Kind("vhosts", "vhost", settings.vhost, apply_cost=100),
    Kind("users", "user", settings.user),
    Kind("permissions", "permission", settings.permission, check_cost=100, apply_cost=100),
    Kind("topic_permissions", "topic permission", settings.topic_permission, check_cost=100, apply_cost=100),
    Kind("parameters", "parameter", settings.parameter, True, check_cost=60),
    Kind("global_parameters", "global parameter", settings.global_parameter),
    Kind("policies", "policy", settings.a_policy, True, check_cost=60),
    Kind("exchanges", "exchange", topology.exchange, True),
    Kind("queues", "queue", topology.queue, True, apply_cost=150),
    Kind("bindings", "binding", topology.binding, True),
)
"""In the order in which they are checked and applied: each may need those before it."""
IGNORED = ("limits", "metadata", "tags", "explanation")
"""Members of RabbitMQ's exports of one virtual host that say the same as other ones, or nothing."""
COST_BYTES = 8
"""So many bytes of an item cost one unit, once to parse and check it, and once to apply it."""
REFUSALS_MAX = 10_000
"""The most refused items that are remembered. More are only counted."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An item that cannot be taken. `vhost` is "" for an item of the whole broker."""

    kind: str
    name: str
    vhost: str
    reason: str

    def value(self) -> dict[str, str]:
        return {"kind": self.kind, "name": self.name, "vhost": self.vhost, "reason": self.reason}

    def __str__(self) -> str:
        where = f" in vhost '{self.vhost}'" if self.vhost else ""
        return f"{self.kind} '{self.name}'{where}: {self.reason}"


class Plan:
    """One import. `vhost` is the virtual host for which the document is, or None if it is for the whole broker."""

    def __init__(self, broker: Broker, document: Document, vhost: VHost | None = None) -> None:
        self._broker = broker
        self._document = document
        self._vhost = vhost
        self.refused: list[Refusal] = []
        self.refusals = 0
        self.taken = 0
        """The number of items that can be taken, or that are there already."""
        self.inert: list[str] = []
        """What is taken and has no effect here, as words for people."""
        self._todo: deque[tuple[Kind, str, str, int, Apply]] = deque()

    # -- checking ------------------------------------------------------------------------------------------------

    def read(self) -> Generator[None, None, None]:
        """Read and check the whole document. Raises Malformed if it is no document of definitions at all."""
        yield from self._document.scan()
        self._check_members()
        world = World(self._broker)
        cost = Cost()
        for kind in KINDS:
            if self._vhost is not None and not kind.of_vhosts:
                continue
            for item in self._document.items(kind.name):
                self._check(kind, world, item)
                if cost.spend(kind.check_cost + self._document.size // COST_BYTES):
                    yield
        self.inert = list(world.inert)
        yield from world.empty()

    def _check_members(self) -> None:
        """Refuse lists that nobody knows: what they hold would be lost in silence. Raises Malformed if there are no others."""
        known = [kind.name for kind in KINDS]
        values = self._document.values
        if values and not self._document.lists and not any(name in values for name in known):
            said = ", ".join(f"{name} {values[name]!r}" for name in ("error", "reason") if name in values)
            hint = f"; it is the answer of a broker that refused: {said}" if said else ""
            raise Malformed(f"the document has no definitions, none of the lists {', '.join(known)}{shown(hint)}")
        for name in self._document.lists:
            count = self._document.count(name)
            if not count or name in IGNORED:
                continue
            if name not in known:
                alike = difflib.get_close_matches(name, known, 1)
                hint = f"; is it {alike[0]!r}?" if alike else ""
                self._refuse("list", name, "", f"there are no such definitions here{hint}")
            elif self._vhost is not None and not next(kind for kind in KINDS if kind.name == name).of_vhosts:
                self._refuse(
                    "list", name, "", "these do not belong to one vhost: import the document for the whole broker"
                )
        for name in known:
            if self._document.values.get(name) is not None:
                self._refuse("list", name, "", "it must be a list")

    def _check(self, kind: Kind, world: World, item: Any) -> None:
        try:
            if isinstance(item, Broken):
                raise Refused(item.reason)
            apply = kind.check(world, Fields(item), self._vhost)
        except (ValueError, ProtocolError) as error:
            self._refuse(kind.word, name_of(kind, item), self._vhost_of(item), reason_of(error))
            return
        self.taken += 1
        if apply is not None:
            size = self._document.size
            self._todo.append((kind, name_of(kind, item), self._vhost_of(item), size, apply))

    def _vhost_of(self, item: Any) -> str:
        if self._vhost is not None:
            return self._vhost.name
        return shown(item.get("vhost", "")) if isinstance(item, dict) else ""

    def _refuse(self, kind: str, name: str, vhost: str, reason: str) -> None:
        self.refusals += 1
        if len(self.refused) < REFUSALS_MAX:
            self.refused.append(Refusal(kind, name, vhost, reason))

    # -- applying ------------------------------------------------------------------------------------------------

    def apply(self) -> Iterator[object]:
        """Apply what was found good. An item that fails is refused: others have changed something since it was checked."""
        cost = Cost()
        while self._todo:
            kind, name, vhost, size, apply = self._todo.popleft()
            try:
                steps = apply(self._broker)
                if steps is not None:
                    yield from steps
            except (ValueError, LookupError, ProtocolError) as error:
                self.taken -= 1
                why = reason_of(error) if not isinstance(error, LookupError) else str(error.args[0])
                self._refuse(kind.word, name, vhost, f"{why} (since the document was checked)")
            units = kind.apply_cost + size // COST_BYTES
            if cost.spend(units):
                yield True
                for _ in range(units // PIECE):  # a large item is several pieces by itself
                    yield True

    def forget(self) -> Iterator[None]:
        """Free a plan that is not applied, in pieces."""
        while self._todo:
            for _ in range(min(500, len(self._todo))):
                self._todo.popleft()
            yield

    def summary(self) -> str:
        """Return what is wrong as one sentence for people, with the first few items."""
        first = "; ".join(str(refusal) for refusal in self.refused[:3])
        more = f"; and {self.refusals - 3} more" if self.refusals > 3 else ""
        return f"{self.refusals} of {self.taken + self.refusals} definitions cannot be taken: {first}{more}"


def name_of(kind: Kind, item: Any) -> str:
    """Return the name of an item for the report, whatever it is."""
    if not isinstance(item, dict):
        return ""
    if kind.name == "bindings":
        source, dest, key = (shown(item.get(field, "")) for field in ("source", "destination", "routing_key"))
        return f"{source} -> {dest} ({key})"
    if kind.name in ("permissions", "topic_permissions"):
        user = shown(item.get("user", ""))
        return f"{user} at {shown(item.get('exchange', ''))}" if kind.name == "topic_permissions" else user
    return shown(item.get("name", ""))


def shown(value: Any) -> str:
    """Return a name as text that any JSON can have, and not too long."""
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= 300 else text[:300] + "..."
