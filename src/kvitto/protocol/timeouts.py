"""Consumer timeout (x-consumer-timeout, A16): a channel that holds a delivery of such a queue for too long is closed.

Deliveries have no timestamps. Delivery tags ascend, so the next tag of a channel at some moment tells what was delivered before. All
channels with a similar timeout are checked 20 times (LOOKS) in its length, and a delivery that is still unacked after that many checks
is late. Checks are counted instead of time, so a change of the clock or a sleep of the machine makes no delivery late. Timeouts that
differ by less than a thirtieth are checked together, as the longest of them, since each consumer may have its own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker import walls
from kvitto.broker.administration.equivalence import describe
from kvitto.broker.walls import Service
from kvitto.protocol.channel import MORE

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.consumer import Consumer
    from kvitto.protocol.channel import Channel
    from kvitto.protocol.connection import Connection

log = logging.getLogger("kvitto.amqp")

LOOKS = 20
"""A channel is looked at so many times in the time of a timeout."""
INTERVAL_MS_MIN = 50
"""The least time between two looks, in ms."""
CHANNELS_PER_PIECE = 100
WATCHES_SPARE = 8
"""A channel may have so many watches, and two for each consumer, before those that no consumer needs any more are looked for."""


class Timeouts(Service):
    stopped = "x-consumer-timeout closes no channel"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.store)
        self._broker = broker
        self._channels: dict[int, dict[Channel, Watch]] = {}
        """Timeouts of similar length are checked together: the watched channels, by the longest of such timeouts in ms."""
        self._watches: dict[Channel, dict[int, Watch]] = {}
        """The same by channel."""

    def watch(self, channel: Channel, timeout_ms: int) -> None:
        """From now on deliveries of queues with this timeout may be unacked on the channel."""
        longest_ms = _longest_ms(timeout_ms)
        if len(self._watches.get(channel, ())) >= 2 * len(channel.slots) + WATCHES_SPARE:
            self._forget_unused(channel)
        channels = self._channels.get(longest_ms)
        if channels is None:
            channels = self._channels[longest_ms] = {}
            self._look_later(longest_ms)
        if channel not in channels:
            watch = channels[channel] = Watch(-(-longest_ms // _interval_ms(longest_ms)))
            self._watches.setdefault(channel, {})[longest_ms] = watch

    def watch_again(self, channel: Channel, timeout_ms: int) -> None:
        """A policy gives this timeout to a consumer of the channel. What it holds was looked at for another one, or for none.

        It may be called for each of 10,000 consumers, so it looks at one of the channel's timeouts and not at all of them.
        """
        watch = self._watches.get(channel, {}).get(_longest_ms(timeout_ms))
        if watch is None:
            self.watch(channel, timeout_ms)
        else:
            watch.looked = 0

    def forget(self, channel: Channel) -> None:
        """Stop watching a channel that is closed."""
        for longest_ms in self._watches.pop(channel, ()):
            self._channels[longest_ms].pop(channel, None)

    def _look_later(self, longest_ms: int) -> None:
        self._broker.timers.after(_interval_ms(longest_ms), self._look, longest_ms)

    def look_again(self, channel: Channel, tag: int) -> None:
        """Deliveries from this tag on may be late that could not be when they were looked at."""
        for watch in self._watches.get(channel, {}).values():
            watch.looked = min(watch.looked, tag)

    def _look(self, longest_ms: int) -> None:
        self._broker.jobs.start(self._looks(longest_ms), owner=self)

    def _looks(self, longest_ms: int) -> Iterator[None]:
        channels = self._channels[longest_ms]
        for number, (channel, watch) in enumerate(list(channels.items()), 1):
            while channel in channels:
                if channel.holds_nothing():
                    self._forget_one(channel, longest_ms)
                elif walls.run(channel, watch.look, channel, longest_ms) is not MORE:
                    break
                else:
                    yield
            if not number % CHANNELS_PER_PIECE:
                yield
        if channels:
            self._look_later(longest_ms)
        else:
            del self._channels[longest_ms]

    def _forget_unused(self, channel: Channel) -> None:
        """Stop watching the channel for timeouts that it had before a consumer was cancelled, or a policy changed."""
        used = {_longest_ms(channel.timeout_of(consumer)) for consumer in channel.slots if consumer is not None}
        for longest_ms in [each for each in self._watches[channel] if each not in used]:
            self._forget_one(channel, longest_ms)

    def _forget_one(self, channel: Channel, longest_ms: int) -> None:
        """Stop watching the channel for these timeouts: nothing that it holds, or will get, has one of them."""
        del self._channels[longest_ms][channel]
        watches = self._watches[channel]
        del watches[longest_ms]
        if not watches:
            del self._watches[channel]


class Watch:
    """What is known of a channel whose deliveries with timeouts that are looked at together are watched."""

    __slots__ = ("_postponed", "looked", "seen")

    def __init__(self, looks: int) -> None:
        self.seen: deque[int] = deque(maxlen=looks)
        """The next tag of the channel at the last looks."""
        self.looked = 0
        """No delivery with a lower tag can be late."""
        self._postponed = (0, 0)
        """The delivery that was late when a look found that input was left to a next turn, and how often that had been handled to its end.
        """

    def look(self, channel: Channel, longest_ms: int) -> int | None:
        """Close the channel if it holds a delivery for too long. MORE: there are so many that another piece has to go on."""
        if len(self.seen) == self.seen.maxlen:
            shorter_ms = longest_ms - _step_ms(longest_ms)
            consumer, self.looked = channel.late(self.looked, self.seen[0], shorter_ms, longest_ms)
            if consumer is None and self.looked < self.seen[0]:
                return MORE
            if consumer is not None and not self._may_be_acked(channel.connection):
                _close(channel, consumer, self.looked)
        self.seen.append(channel.next_tag)
        return None

    def _may_be_acked(self, connection: Connection) -> bool:
        """Whether the ack of the late delivery may be in input that the broker holds back.

        It does so while publishers are blocked, or until a next turn has time for it. A connection that sends much has such input at each
        look, so only what was held back at the first of them is waited for.
        """
        if connection.stalled:
            return True
        if not connection.yielded or not connection.rest:
            return False
        tag, caught_up = self._postponed
        if tag == self.looked:
            return connection.caught_up == caught_up
        self._postponed = (self.looked, connection.caught_up)
        return True


def _interval_ms(timeout_ms: int) -> int:
    return max(-(-timeout_ms // LOOKS), INTERVAL_MS_MIN)


def _step_ms(timeout_ms: int) -> int:
    """By how much timeouts about as long as this one may differ that are looked at together.

    Short ones may by an interval, which makes no difference; others by a 32nd at most, a power of 2, so that it is the same for all.
    """
    if timeout_ms <= LOOKS * INTERVAL_MS_MIN:
        return INTERVAL_MS_MIN
    return 1 << ((timeout_ms - 1) // 32).bit_length() - 1


def _longest_ms(timeout_ms: int) -> int:
    """Return the longest of the timeouts that are looked at together with this one."""
    step_ms = _step_ms(timeout_ms)
    return -(-timeout_ms // step_ms) * step_ms


def _close(channel: Channel, consumer: Consumer, tag: int) -> None:
    timeout_ms = channel.timeout_of(consumer)
    who = f"consumer {consumer.tag!r}" if consumer.tag else "basic.get"
    thing = describe("queue", consumer.queue.name, consumer.queue.vhost.name)
    text = "%s: delivery %d to %s of %s on channel %d is unacknowledged for longer than its x-consumer-timeout, %d ms"
    log.warning(text, channel.connection.peer, tag, who, thing, channel.number, timeout_ms)
    text = (
        f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: {timeout_ms} ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    channel.connection.fail_channel(channel, ChannelError(PRECONDITION_FAILED, text))
