"""Dead-lettering: the x-death headers (X1-X3) and the atomic move (X4).

The moves of a turn are gathered here. Those from durable queues become journal records: written, synced, then applied, so that
after any crash a message is in its source or in its targets. Others are applied at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ConnectionError_
from kvitto.store.batch import DEAD
from kvitto.store.journal import Append, Record, Settle
from kvitto.store.settlements import DEAD_LETTERED, DROPPED
from kvitto.wire import tables
from kvitto.wire.properties import Properties

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queue import Queue

RECORD_BYTES = 4 << 20
RETRY_MS = 1000


class DeadLetters:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.moves: list[tuple[Queue, int, str]] = []

    def add(self, queue: Queue, offset: int, reason: str) -> None:
        self.moves.append((queue, offset, reason))
        queue.mark_dirty()

    def run(self) -> None:
        """Send the moves of this turn on their way."""
        moves, self.moves = self.moves, []
        record, size = Record(), 0
        transient: list[Any] = []
        done: list[tuple[Queue, int, str]] = []
        for queue, offset, reason in moves:
            message = None if queue.deleted else queue.read(offset)
            if message is None:
                queue.moved(offset, DROPPED)
                continue
            key, props, body, targets = self.address(queue, reason, message)
            if targets is None:
                queue.moved(offset, DROPPED)
                continue
            if not self._taken(targets, body):
                self.broker.park(queue, offset, reason)
                continue
            if not queue.log.durable:
                for target in targets:
                    target.append_bytes(key, props, body, -1, DEAD)
                queue.moved(offset)
                continue
            done.append((queue, offset, reason))
            self._enter(record, transient, queue, offset, (key, props, body, targets))
            size += len(body) * len(targets)
            if size > RECORD_BYTES:
                self._write(record, transient, done)
                record, transient, done, size = Record(), [], [], 0
        if done:
            self._write(record, transient, done)

    @staticmethod
    def _taken(targets: list[Queue], body: bytes) -> bool:
        return bool(targets) and not any(t.rejects and t.is_full(len(body)) for t in targets)

    @staticmethod
    def _enter(
        record: Record, transient: list[Any], queue: Queue, offset: int, letter: tuple[bytes, bytes, bytes, list[Queue]]
    ) -> None:
        key, props, body, targets = letter
        record.settles.append(Settle(queue.log.queue_id, offset, 1, DEAD_LETTERED))
        for target in targets:
            if target.log.durable:
                record.appends.append(Append(target.log.queue_id, key, props, body, flags=DEAD))
            else:
                transient.append((target, key, props, body, -1, DEAD))

    def join(self, record: Record, transient: list[Any], queue: Queue, offset: int) -> bool:
        """Make the move of a rejected message part of a transaction's record. False if nobody takes it (or it was a cycle)."""
        message = queue.read(offset)
        if message is None:
            return False
        key, props, body, targets = self.address(queue, "rejected", message)
        if targets is None or not self._taken(targets, body):
            return False
        self._enter(record, transient, queue, offset, (key, props, body, targets))
        return True

    def refused(self, queue: Queue, key: bytes, props: bytes, body: bytes) -> None:
        """A message that the queue did not take (reject-publish-dlx) goes straight to the dead-letter exchange."""
        new_key, new_props, body, targets = self.address(queue, "maxlen", (key, props, body, 0))
        for target in targets or ():
            target.append_bytes(new_key, new_props, body, -1, DEAD)

    def _write(self, record: Record, transient: list[Any], done: list[tuple[Queue, int, str]]) -> None:
        def apply() -> None:
            self.broker.apply(record)
            for target, key, props, body, ttl_ms, flags in transient:
                target.append_bytes(key, props, body, ttl_ms, flags)
            for queue, offset, _ in done:
                if not queue.deleted:
                    queue.moved(offset)

        def full() -> None:
            for queue, offset, reason in done:
                if not queue.deleted:
                    self.broker.park(queue, offset, reason)

        self.broker.journal(record, apply, full)

    def address(
        self, queue: Queue, reason: str, message: tuple[bytes, bytes, bytes, int]
    ) -> tuple[bytes, bytes, bytes, list[Queue] | None]:
        """(key, props, body, queues) of the dead letter; queues None: a cycle without a rejection in it (X3)."""
        key, props, body, flags = message
        exchange, routing_key = split_key(key)
        try:
            properties = Properties.decode(props)
        except ConnectionError_:
            properties = Properties()
        headers: dict[str, Any] = dict(properties.headers or {})
        routing_keys = [routing_key, *strings(headers.get("CC"))]
        deaths = deaths_of(headers) if flags & DEAD else []
        self._note_death(queue, reason, properties, headers, deaths, exchange, routing_keys)
        properties.headers = headers
        to_exchange = queue.settings.dead_letter_exchange or ""
        to_key = queue.settings.dead_letter_routing_key
        keys = [to_key] if to_key is not None else routing_keys
        if to_key is not None:
            headers.pop("CC", None)
        targets = queue.vhost.targets(to_exchange, keys, headers)
        if reason != "rejected":
            kept = [t for t in targets if not is_cycle(t.name, deaths)]
            if targets and not kept:
                return key, props, body, None
            targets = kept
        new_key = tables.encode_shortstr(to_exchange) + tables.encode_shortstr(keys[0])
        return new_key, properties.encode(), body, targets

    def _note_death(
        self,
        queue: Queue,
        reason: str,
        properties: Properties,
        headers: dict[str, Any],
        deaths: list[dict[str, Any]],
        exchange: str,
        routing_keys: list[str],
    ) -> None:
        """Put this death in front of x-death (X2)."""
        old = next((d for d in deaths if d["queue"] == queue.name and d["reason"] == reason), None)
        if old is not None:
            deaths.remove(old)
            old["count"] += 1
        else:
            old = {
                "count": 1,
                "reason": reason,
                "queue": queue.name,
                "time": tables.Timestamp(self.broker.now_ms // 1000),
                "exchange": exchange,
                "routing-keys": routing_keys,
            }
            if properties.expiration is not None:
                old["original-expiration"] = properties.expiration
        properties.expiration = None
        deaths.insert(0, old)
        headers["x-death"] = deaths
        for name, value in (("reason", reason), ("queue", queue.name), ("exchange", exchange)):
            headers.setdefault(f"x-first-death-{name}", value)
            headers[f"x-last-death-{name}"] = value


def is_cycle(queue: str, deaths: list[dict[str, Any]]) -> bool:
    """Whether the message would come back to a queue it has died in, with no rejection since (X3)."""
    for death in deaths:
        if death["reason"] == "rejected":
            return False
        if death["queue"] == queue:
            return True
    return False


def deaths_of(headers: dict[str, Any]) -> list[dict[str, Any]]:
    """The well-formed entries of x-death."""
    value = headers.get("x-death")
    if not isinstance(value, list):
        return []
    return [
        d
        for d in value
        if isinstance(d, dict)
        and isinstance(d.get("count"), int)
        and isinstance(d.get("queue"), str)
        and isinstance(d.get("reason"), str)
    ]


def split_key(key: bytes) -> tuple[str, str]:
    """Exchange and routing key from their short strings."""
    exchange, at = tables.read_shortstr(key, 0)
    return exchange, tables.read_shortstr(key, at)[0]


def strings(value: object) -> list[str]:
    """The strings of a CC or BCC header."""
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []
