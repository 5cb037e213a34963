"""What a client knows of its messages, and what it may therefore expect after a power cut (C2, A11, T4, X4)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Told:
    """One queue: bodies in the order in which they were sent, and what became of them as far as the client was told."""

    exists: bool | None = False
    """None: a declare or a delete has not been answered."""
    sent: list[bytes] = field(default_factory=list)
    confirmed: set[bytes] = field(default_factory=set)
    delivered: set[bytes] = field(default_factory=set)
    settled: set[bytes] = field(default_factory=set)
    """Acked, rejected or about to be."""
    gone: set[bytes] = field(default_factory=set)
    """Settled, and that was synced."""


@dataclass
class Transaction:
    publishes: dict[str, list[bytes]]
    acks: dict[str, list[bytes]]
    told: bool = False


@dataclass
class Ledger:
    queues: dict[str, Told] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    moves: dict[bytes, tuple[str, str]] = field(default_factory=dict)
    """Rejected messages: source and dead-letter queue."""
    ends: dict[str, int] = field(default_factory=dict)
    """Incarnation -> the highest offset that a reader by range could have been told to be the end."""

    def queue(self, name: str) -> Told:
        return self.queues.setdefault(name, Told())

    def forget(self, name: str) -> None:
        """The queue was deleted: one of that name is another."""
        self.queues[name] = Told()
        for transaction in self.transactions:
            transaction.publishes.pop(name, None)
            transaction.acks.pop(name, None)

    def tell_end(self, incarnation: str, end: int) -> None:
        assert end >= self.ends.get(incarnation, 0), "the end of a queue goes back"
        self.ends[incarnation] = end

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
        here = {name: [body for body, _ in messages] for name, messages in found.items()}
        for transaction in self.transactions:
            self._check_whole(transaction, here)
        for body, (source, target) in self.moves.items():
            if body in self.queue(source).confirmed and source in here and target in here:
                places = here[source].count(body) + here[target].count(body)
                assert places == 1, f"{body!r} is {places} times in {source} and {target}"

    def _check_queue(self, name: str, told: Told, messages: list[tuple[bytes, bool]]) -> None:
        bodies = [body for body, _ in messages]
        assert len(set(bodies)) == len(bodies), f"{name}: twice: {bodies}"
        order = {body: i for i, body in enumerate(told.sent)}
        assert set(bodies) <= set(order), f"{name}: never sent: {set(bodies) - set(order)}"
        places = [
            order[body] for body in bodies if self.moves.get(body, ("", ""))[1] != name
        ]  # moves may be tried again
        assert places == sorted(places), f"{name}: order: {bodies}"
        lost = told.confirmed - told.settled - set(bodies)
        assert not lost, f"{name}: lost: {lost}"
        back = told.gone & set(bodies)
        assert not back, f"{name}: came back: {back}"
        unflagged = {body for body, again in messages if body in told.delivered and not again}
        assert not unflagged, f"{name}: not flagged: {unflagged}"

    @staticmethod
    def _check_whole(transaction: Transaction, here: dict[str, list[bytes]]) -> None:
        effects = [body in here[q] for q, bodies in transaction.publishes.items() if q in here for body in bodies]
        effects += [body not in here[q] for q, bodies in transaction.acks.items() if q in here for body in bodies]
        assert all(effects) or (not any(effects) and not transaction.told), f"half a transaction: {transaction}: {here}"
