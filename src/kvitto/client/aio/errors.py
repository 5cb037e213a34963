"""The errors of the asyncio client. Those of both clients are in `kvitto.client.errors`; all are `AMQPError`.

What is raised names what happened to the message or the call: whether it may have had an effect is in the class.
"""

from __future__ import annotations

from kvitto.client.errors import AMQPError
from kvitto.wire.properties import Properties


class PublishFailed(AMQPError):
    """A message was not confirmed: `Nacked`, `Returned` or `PublishUnknown`. In a `ManyFailed` of the synchronous `publish_many` it
    also stands for a message that was not sent, because an earlier one had failed."""


class Nacked(PublishFailed):
    """The broker refused the message (basic.nack): it is not in any queue, or not safe there. Publish it again later."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(f"the broker refused publish {number} of this channel (basic.nack); publish it again later")
        self.number = number


class Returned(PublishFailed):
    """A mandatory message was returned (basic.return), because no queue took it. `code` 312 means that no binding fits."""

    def __init__(
        self, code: int, text: str, exchange: str, routing_key: str, raw_properties: bytes = b"\0\0", body: bytes = b""
    ) -> None:
        super().__init__(f"{code} {text}: no queue took the message to exchange {exchange!r} with key {routing_key!r}")
        self.code = code
        self.text = text
        self.exchange = exchange
        self.routing_key = routing_key
        self.raw_properties = raw_properties
        self.body = body

    @property
    def properties(self) -> Properties:
        """The properties of the message."""
        return Properties.decode(self.raw_properties)


class PublishUnknown(PublishFailed):
    """The connection or channel ended before the confirm: the message may be in the queue or not. `__cause__` is the reason.

    To send such messages again by itself, connect with `on_unconfirmed="resend"`.
    """


class ManyFailed(PublishFailed):
    """`publish_many` ended before its last message. `failed` has (index, error) for each message that was not confirmed.

    `taken` is the number of messages that were taken from the iterable; all that are not in `failed` are confirmed.
    """

    def __init__(self, taken: int, failed: list[tuple[int, Exception]]) -> None:
        index, first = failed[0]
        super().__init__(f"{len(failed)} of {taken} messages were not confirmed; the first is number {index}: {first}")
        self.taken = taken
        self.failed = failed


class NotSupported(AMQPError):
    """The call needs an extension of AMQP that only Kvitto has, and the broker lacks it. Nothing was sent."""


class CommitUnknown(AMQPError):
    """The connection was lost while a batch was being committed, so it is unknown whether it is committed. `__cause__` says why.

    Commit the same batch again: that does nothing if it is committed.
    """


class AlreadySettled(AMQPError):
    """The message was acked or rejected before, or needs no ack. Nothing was sent."""


class Closed(AMQPError):
    """The connection, channel or consumer was closed by this program."""
