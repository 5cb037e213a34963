"""The passage of an exchange that deduplicates (broker/routing/deduplicated.py): the hidden queue by which messages come to it.

A message is compared and stored here like in any queue that deduplicates, so its key cannot be parted from it. Once it is durable, a
record of the journal moves it to all queues that the exchange finds then (transfers/onward.py): after any crash it is here or in all of
them. No client sees this queue, it has no consumers, and its messages have no time to live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.broker.queues.deduplicating import DeduplicatingQueue
from kvitto.broker.queues.queue import Declaration
from kvitto.broker.transfers.onward import Onward
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.broker.administration.arguments import QueueSettings
    from kvitto.broker.queues.hosts import Turns
    from kvitto.broker.routing.exchange import Exchange
    from kvitto.broker.vhost import VHost
    from kvitto.store.log import Log


class Passage(DeduplicatingQueue):
    routes_later = True

    def __init__(self, broker: Turns, vhost: VHost, log: Log, settings: QueueSettings, exchange: Exchange) -> None:
        name = f"passage of exchange '{exchange.name}'"
        super().__init__(broker, vhost, log, settings, Declaration(name, {}, durable=exchange.durable))
        self.exchange = exchange
        self.onward = Onward(self)

    def append_bytes(self, key: bytes, props: bytes, body: bytes | Buf, ttl_ms: int, flags: int) -> int:
        """Append a message. Its time to live begins when it comes to its queues."""
        if isinstance(body, Buf):
            return self.append_whole(key, props, body, ttl_ms, flags)
        return super().append_bytes(key, props, body, -1, flags)

    def append_whole(self, key: bytes, props: bytes, body: Buf, ttl_ms: int, flags: int) -> int:
        return super().append_whole(key, props, body, -1, flags)

    def kept_ms(self, props: bytes, ttl_ms: int) -> int:
        return -1

    def has_been_here(self, props: bytes) -> bool:
        """Every dead letter may have: it was in a queue, and perhaps it came there by this exchange. Then it has the same key."""
        return True

    def refuse(self, yes: bool) -> None:
        """Whether publishes are refused, because a message that is here has to wait for one of its queues."""
        self.limited = self.rejects = yes

    def is_full(self, body_len: int) -> bool:
        return self.rejects

    def refuses(self, more: int, more_bytes: int) -> bool:
        return self.rejects

    def drop(self, n: int) -> None:
        """Count n messages that no queue takes any more."""
        for _ in range(n):
            self.exchange.traffic.miss(False)

    def expire(self) -> None:
        """Nothing expires here."""

    def flush(self) -> None:
        super().flush()
        self.onward.go_on()

    def cancel_timers(self) -> None:
        super().cancel_timers()
        self.onward.cancel()
