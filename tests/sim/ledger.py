"""What a client knows of its messages, and what it may therefore expect after a failure (C2, A11, T4, X4).

Bodies are unique. A message that a queue may pass to its dead-letter queue is in exactly one of the two (`Ledger.moves`), unless
the client has settled it there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.sim.setup import RULED, Effective, Setup, check_settings


@dataclass
class Told:
    """One queue: bodies in the order in which they were sent, and what became of them as far as the client was told."""

    exists: bool | None = False
    """None: a declare or a delete has not been answered."""
    sent: list[bytes] = field(default_factory=list)
    confirmed: set[bytes] = field(default_factory=set)
    delivered: set[bytes] = field(default_factory=set)
    settled: set[bytes] = field(default_factory=set)
    """Acked, purged, dropped, or about to be: may be there no more."""
    gone: set[bytes] = field(default_factory=set)
    """Settled, and that was synced."""
    refused: set[bytes] = field(default_factory=set)
    """The publisher got a nack (C6)."""
    doomed: set[bytes] = field(default_factory=set)
    """Expired, or delivered too often: may leave by itself."""
    expires: dict[bytes, int] = field(default_factory=dict)
    """When, in ms."""
    brought: set[bytes] = field(default_factory=set)
    """Dead letters, and what a stage held: they arrive when they arrive."""
    length: int = -1
    """All but the last so many may have been dropped; -1: none."""
    ordered: bool = True
    stream: bool = False
    """Nothing in it is flagged."""

    def may_lack(self, body: bytes) -> bool:
        """Whether the message may have left by itself, or been settled."""
        if body in self.settled or body in self.doomed:
            return True
        return self.length >= 0 and len(self.sent) - self.sent.index(body) > self.length


def short(bodies: Iterable[bytes]) -> str:
    """Bodies as a failure shows them: without what fills them up."""
    return " ".join(body.rstrip(b".").decode() for body in bodies)


@dataclass
class Transaction:
    publishes: dict[str, list[bytes]]
    acks: dict[str, list[bytes]]
    told: bool = False


@dataclass
class Ledger:
    queues: dict[str, Told] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    moves: dict[tuple[str, bytes], str] = field(default_factory=dict)
    """What may become or has become a dead letter: (queue, body) -> dead-letter queue."""
    ends: dict[str, int] = field(default_factory=dict)
    """Incarnation -> the highest offset that a reader by range could have been told to be the end."""

    not_before: dict[bytes, int] = field(default_factory=dict)
    """When delayed messages are due, in ms of the wall clock."""
    not_after: dict[bytes, int] = field(default_factory=dict)
    """When messages are sure to have expired."""
    limited: dict[bytes, int] = field(default_factory=dict)
    """The time to live that a policy was sure to give to messages that are not confirmed, in ms."""
    overdue: dict[bytes, None] = field(default_factory=dict)
    """Messages of the queue RULED that have expired. They stay as long as one before them does, which may be long."""
    tries: Counter[bytes] = field(default_factory=Counter)
    """How often messages of the queue RULED were delivered, at most."""
    setups: list[Setup] = field(default_factory=lambda: [{}])
    """What may be set up: one alone is what the client was told, others are on their way."""

    def queue(self, name: str) -> Told:
        return self.queues.setdefault(name, Told())

    def move(self, source: str, target: str, *bodies: bytes) -> None:
        """From now on the messages may be, or become, dead letters."""
        for body in bodies:
            if (source, body) not in self.moves:
                self.moves[source, body] = target
                self.queue(target).sent.append(body)
                self.queue(target).brought.add(body)

    def forget(self, name: str) -> None:
        """The queue was deleted: one of that name is another."""
        self.queues[name] = Told()
        for transaction in self.transactions:
            transaction.publishes.pop(name, None)
            transaction.acks.pop(name, None)

    def tell_end(self, incarnation: str, end: int) -> None:
        assert end >= self.ends.get(incarnation, 0), "the end of a queue goes back"
        self.ends[incarnation] = end

    def adopt(self, found: dict[str, list[tuple[bytes, bool]]]) -> None:
        """After a start from a disk that is certain: what is there is durable, what is not never comes back."""
        self.transactions.clear()
        self.tries.update(body for body, again in found.get(RULED, ()) if again)  # once, perhaps, that nobody has read
        for name, told in list(self.queues.items()):
            if name not in found:
                self.forget(name)
                continue
            told.exists = True
            here = {body for body, _ in found[name]}
            sure = set(told.sent) - (told.brought - told.settled) if told.length < 0 else set()
            told.gone |= {b for b in sure - here - told.doomed if (name, b) not in self.moves}
            told.settled -= here
            told.confirmed |= here
            told.delivered |= {body for body, again in found[name] if again}

    def forget_lost(self, keys: dict[str, set[bytes]]) -> None:
        """A message that a failure took, with its key, may be sent again. `keys`: by queue, the bodies whose keys are known."""
        for name, known in keys.items():
            told = self.queue(name)
            lost = set(told.sent) - known
            told.sent = [body for body in told.sent if body in known]
            for bodies in (told.confirmed, told.delivered, told.settled, told.gone, told.doomed, told.refused):
                bodies -= lost

    def check_keys(self, keys: dict[str, set[bytes]]) -> None:
        """The key of each message that a client was promised, or that was synced, is known: another one with it would be dropped."""
        for name, known in keys.items():
            told = self.queue(name)
            lacking = (told.confirmed | told.gone) & set(told.sent) - known
            assert not lacking, f"{name}: without a key: {short(lacking)}"

    def check_setup(self, found: Setup, settings: dict[str, Effective]) -> None:
        """What is set up is what the client was told, or one of the stages of a change, and the queues do what it says."""
        assert found in self.setups, f"the set-up is {found}, not one of {self.setups}"
        check_settings(settings, found)

    # -- after a failure -------------------------------------------------------------------------------------

    def check(self, found: dict[str, list[tuple[bytes, bool]]]) -> None:
        """`found`: queue -> (body, redelivered) in order."""
        for name, told in self.queues.items():
            if told.exists is not None:
                assert (name in found) == told.exists, (
                    f"{name} exists: {name in found}, the client was told {told.exists}"
                )
            if name in found:
                self._check_queue(name, told, found[name])
        assert set(found) <= set(self.queues)
        here = {name: {body for body, _ in messages} for name, messages in found.items()}
        self.check_lost(here)
        for (source, body), target in self.moves.items():
            if source in here and target in here and body in here[source]:
                assert body not in here[target], f"{body!r} is in {source} and in {target}"
                assert body not in self.queue(target).gone, f"{body!r} was acked in {target} and is back in {source}"
        for transaction in self.transactions:
            self._check_whole(transaction, here)

    def _check_queue(self, name: str, told: Told, messages: list[tuple[bytes, bool]]) -> None:
        bodies = [body for body, _ in messages]
        assert len(set(bodies)) == len(bodies), f"{name}: twice: {short(bodies)}"
        order = {body: i for i, body in enumerate(told.sent)}
        assert set(bodies) <= set(order), f"{name}: never sent: {short(set(bodies) - set(order))}"
        if told.ordered:
            places = [order[body] for body in bodies if body not in told.brought]
            assert places == sorted(places), f"{name}: order: {short(bodies)}"
        back = told.gone & set(bodies)
        assert not back, f"{name}: came back: {short(back)}"
        taken = told.refused & set(bodies)
        assert not taken, f"{name}: refused, but there: {short(taken)}"
        unflagged = {body for body, again in messages if body in told.delivered and not again}
        assert told.stream or not unflagged, f"{name}: not flagged: {short(unflagged)}"

    def check_lost(self, here: dict[str, set[bytes]]) -> None:
        """What was confirmed is in its queue, or in the dead-letter queue."""
        for name, bodies in here.items():
            told = self.queue(name)
            expected = told.confirmed | told.delivered if told.stream else told.confirmed
            missing = {body for body in expected - bodies if not told.may_lack(body)}
            lost = {body for body in missing if not self._has_moved(name, body, here)}
            assert not lost, f"{name}: lost: {short(lost)}"

    def _has_moved(self, name: str, body: bytes, here: dict[str, set[bytes]]) -> bool:
        target = self.moves.get((name, body))
        return target is not None and (target not in here or body in here[target] or self.queue(target).may_lack(body))

    def _check_whole(self, transaction: Transaction, here: dict[str, set[bytes]]) -> None:
        effects = [
            body in here[q]
            for q, bodies in transaction.publishes.items()
            for body in bodies
            if q in here and not self.queue(q).may_lack(body) and (q, body) not in self.moves
        ]
        effects += [body not in here[q] for q, bodies in transaction.acks.items() if q in here for body in bodies]
        assert all(effects) or (not any(effects) and not transaction.told), f"half a transaction: {transaction}: {here}"
