"""A target that is not Kvitto, for a source with offsets: how far it has come is the one message of a queue at the target."""

from __future__ import annotations

from kvitto.client.aio import Channel, Connection
from kvitto.shovel.load import Dress, Load
from kvitto.shovel.targets import ConfirmTarget

QUEUE_ARGUMENTS = {"x-max-length": 1}


class MarkedTarget(ConfirmTarget):
    """Publishes with confirms, and then notes the end of the load. A load whose note is missing is published again."""

    def __init__(self, connection: Connection, channel: Channel, dress: Dress, queue: str) -> None:
        super().__init__(connection, channel, dress)
        self.queue = queue

    @classmethod
    async def open(cls, connection: Connection, queue: str, dress: Dress) -> MarkedTarget:  # type: ignore[override]
        channel = await connection.channel()
        await channel.queue(queue, durable=True, arguments=dict(QUEUE_ARGUMENTS))
        return cls(connection, channel, dress, queue)

    async def last(self) -> int:
        """Return the end of the last load that is noted, 0 if none is."""
        message = await self._channel.get(self.queue)
        if message is None:
            return 0
        end = int(message.body)
        message.reject(requeue=True)
        return end

    async def put(self, load: Load) -> None:
        await super().put(load)
        await self._channel.publish(str(load.end).encode(), self.queue, mandatory=True)
