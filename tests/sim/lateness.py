"""Consumer timeouts: a channel with a delivery that is older than its queue or consumer allows is closed, and never before that (A16).

The broker looks at its channels 20 times in the length of a timeout, and at the earliest every 50 ms, so what is late is sure to be
noticed only while the clock goes in such steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.base.errors import PRECONDITION_FAILED
from kvitto.wire.methods import ChannelClose

if TYPE_CHECKING:
    from tests.sim.actor import Actor

SLOW = "slow"
"""A queue with a timeout."""
TIMEOUT_MS = 1000
STEP_MS = 50
LATEST_MS = TIMEOUT_MS + TIMEOUT_MS // 10 + 4 * STEP_MS
"""Later than the broker may notice it."""


class Lateness:
    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.since: dict[tuple[int, int], int] = {}
        """Channel and tag of a delivery that has a timeout -> when it came, in ms."""
        self.impatient: set[str] = set()
        """Consumers with a timeout of their own."""

    def came(self, channel: int, tag: int, timed: bool) -> None:
        """A delivery has come; a channel that was opened again gives the tags of the one before it."""
        self.since.pop((channel, tag), None)
        if timed:
            self.since[channel, tag] = self.actor.now_ms()

    def closed(self, channel: int, close: ChannelClose) -> None:
        """The broker has closed a channel."""
        text = close.reply_text
        assert close.reply_code == PRECONDITION_FAILED, f"channel {channel} is closed: {text}"
        assert "timed out" in text, f"channel {channel} is closed: {text}"
        assert f"{TIMEOUT_MS} ms" in text, text
        ages = [self.actor.now_ms() - since for (where, _), since in self.held() if where == channel]
        assert max(ages, default=0) >= TIMEOUT_MS, f"channel {channel} is closed after {ages} ms"

    def held(self) -> list[tuple[tuple[int, int], int]]:
        self.since = {key: since for key, since in self.since.items() if key in self.actor.held}
        return list(self.since.items())

    def doze(self) -> None:
        """Nobody settles anything for longer than the timeout."""
        actor = self.actor
        if SLOW in actor.queues:
            actor.attend(SLOW, 3)
            actor.send(SLOW)
        actor.rest()
        before = dict(self.held())
        for _ in range(LATEST_MS // STEP_MS):
            actor.let_tick(STEP_MS)
            if actor.harness.broker.full:
                return
        late = [key for key, since in self.held() if before.get(key) == since]
        assert not late, f"channel {late[0][0]} is not closed: {len(late)} deliveries are late"
        actor.rest()
