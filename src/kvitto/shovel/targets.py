"""Where loads go over AMQP: published with confirms to any broker, or committed as stages to Kvitto."""

from __future__ import annotations

import asyncio
import secrets

from kvitto.client.aio import Channel, Connection, ManyFailed, Nacked, Returned
from kvitto.client.aio.ranges import need
from kvitto.client.errors import AMQPError
from kvitto.shovel.load import Dress, Load, Parcel, Refused

LOWER_BITS = 16
PAUSE_S, PAUSE_MAX_S = 0.1, 5.0
"""The pause after the target has refused messages, which doubles."""


class ConfirmTarget:
    """Publishes with confirms. Messages that the target refuses for now (basic.nack) are published again after a pause.

    They may be behind later ones of their load then; otherwise the order is kept.
    """

    def __init__(self, connection: Connection, channel: Channel, dress: Dress, mandatory: bool = True) -> None:
        self._connection = connection
        self._channel = channel
        self.dress = dress
        self._mandatory = mandatory
        self.refused = 0

    @property
    def waits(self) -> str:
        if self.refused:
            return f"the target refuses {self.refused} messages for now (basic.nack): is its queue full?"
        return why_blocked(self._connection)

    @classmethod
    async def open(cls, connection: Connection, dress: Dress, *, mandatory: bool = True) -> ConfirmTarget:
        """`mandatory`: whether a message that no queue takes is Refused; else it is lost, as with every publisher."""
        return cls(connection, await connection.channel(), dress, mandatory)

    async def put(self, load: Load) -> None:
        parcels = self.dress.parcels(load)
        pause = PAUSE_S
        while parcels:
            parcels = await self._publish(parcels)
            self.refused = len(parcels)
            if parcels:
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)

    async def _publish(self, parcels: list[Parcel]) -> list[Parcel]:
        """Return those that were refused for now, and those that were not sent because of them."""
        try:
            await self._channel.publish_many(parcels, mandatory=self._mandatory)  # type: ignore[arg-type]  # they have what a Message has
        except ManyFailed as error:
            raise_unless_nacked(error)
            return [parcels[index] for index, _ in error.failed] + parcels[error.taken :]
        return []

    async def close(self) -> None:
        await self._channel.close()


class StageTarget:
    """Commits each load once, as the batch of a writer whose number has the load's `end` in its upper bits. Only Kvitto has that.

    The lower bits number the batches by which `arrived` finds out that everything before them is in its queue.
    """

    refused = 0

    def __init__(self, connection: Connection, channel: Channel, writer: str, dress: Dress) -> None:
        self._connection = connection
        self._channel = channel
        self.writer = writer
        self.dress = dress
        self._task = secrets.token_hex(8)
        """Names the stages of this attempt, which claims the writer. Another attempt may not have ended yet, or its commit may still be
        on its way; behind the claim it is refused, so that `last` says how far that attempt has come."""

    @property
    def waits(self) -> str:
        return why_blocked(self._connection)

    @classmethod
    async def open(cls, connection: Connection, writer: str, dress: Dress) -> StageTarget:
        """Raise NotSupported if the broker is not Kvitto."""
        await need(connection, "kvitto_stage", "publish into stages")
        target = cls(connection, await connection.channel(), writer, dress)
        await target._channel.claim_writer(writer, target._task)
        return target

    async def last(self) -> int:
        """Return the `end` of the last load that was committed, 0 if there is none."""
        return (await self._channel.last_batch(self.writer) or 0) >> LOWER_BITS

    async def put(self, load: Load) -> None:
        parcels = self.dress.parcels(load)
        async with self._channel.stage(self.writer, load.end << LOWER_BITS, task=self._task) as stage:
            try:
                await stage.publish_many(parcels, mandatory=True)  # type: ignore[arg-type]
            except ManyFailed as error:
                raise_unless_nacked(error)
                raise AMQPError(
                    "the target refuses messages for now (basic.nack): it is low on disk or memory"
                ) from error

    async def arrived(self, wait_s: float) -> bool:
        """Wait until all committed messages are in their queues: Kvitto moves them in order, and a mark goes behind them."""
        last = await self._channel.last_batch(self.writer)
        if last is None:
            return True
        mark = await self._channel.queue(exclusive=True)
        async with self._channel.stage(self.writer, last + 1, task=self._task) as stage:
            await stage.publish(b"", mark.name, mandatory=True)
        consumer = mark.consume(no_ack=True)
        try:
            async with asyncio.timeout(wait_s), consumer:
                await anext(consumer)
                return True
        except TimeoutError:
            return False
        finally:
            await mark.delete()

    async def forget(self) -> None:
        """Forget the writer, whose source has no more messages."""
        await self._channel.forget_writer(self.writer)

    async def close(self) -> None:
        await self._channel.close()


def why_blocked(connection: Connection) -> str:
    """Return why a broker takes no publishes now, "" if it does: it has sent connection.blocked, and the client waits."""
    reason = connection.blocked
    return "" if reason is None else f"the target blocks publishers: {reason or 'it does not say why'}"


def raise_unless_nacked(error: ManyFailed) -> None:
    """Raise an error that is not just a refusal for now."""
    for _, each in error.failed:
        if isinstance(each, Returned):
            raise Refused(f"{each}; declare the queue or binding at the target, and begin again") from each
        if not isinstance(each, Nacked):
            raise each
