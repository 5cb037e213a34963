"""A connection that reconnects, so that a query goes on while its broker is restarted. `driver.py`, `stream.py`,
`staged.py` and `reading.py` use it.

An action is any function of a channel that may be repeated. If a connection is lost or refused, the action is tried
again, with growing pauses, until `reconnectTimeout`. If the server refuses the request itself, the error is raised at
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kvitto.client import AMQPError, Channel, ChannelClosed, ConnectFailed, Connection, ConnectionLost
from kvitto.spark.errors import SourceError, TakenError

T = TypeVar("T")

PAUSE_S = 0.1
PAUSE_S_MAX = 2.0
TAKEN_S = 10.0
"""How long a queue that another query has is asked for again: a driver that was killed may live a moment longer."""
LOST = (ConnectionLost, TimeoutError, OSError)
QUERY_ADVICE = "Start the broker; the query goes on from its checkpoint when it is started again"
NO_USE = {403, 404, 501, 502, 503, 504, 505, 530, 540}
"""Reply codes of a closed connection with which trying again does not help."""


class Patience:
    """Decides whether to try again. `progress()` starts the time again."""

    def __init__(self, timeout_s: float, error: type[Exception] = SourceError, advice: str = QUERY_ADVICE) -> None:
        self.timeout_s = timeout_s
        self.error = error
        self.advice = advice
        self.progress()

    def progress(self) -> None:
        self._since: float | None = None
        self._pause_s = PAUSE_S

    def wait(self, error: Exception) -> None:
        """Pause before the next attempt. Raise an error if the time is over or another attempt does not help."""
        if isinstance(error, ConnectFailed) and error.code in NO_USE:
            raise self.error(f"{error} (option uri)") from None
        if isinstance(error, ConnectionLost) and error.code in NO_USE:
            raise self.error(f"the broker ended the connection: {error}") from None
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if now - self._since >= self.timeout_s:
            raise self.error(
                f"{error}; tried again for {self.timeout_s:g} s (option reconnectTimeout). {self.advice}"
            ) from None
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)


class Link:
    """One connection with one channel, opened when first needed. `prepare` runs on every new channel.

    `by_range`: the server has to support reading by range of offsets.
    """

    def __init__(
        self, uri: str, name: str, prepare: Callable[[Channel], None] | None = None, *, by_range: bool = True
    ) -> None:
        self.uri = uri
        self.name = name
        self.prepare = prepare
        self.by_range = by_range
        self._connection: Connection | None = None
        self._channel: Channel | None = None

    def channel(self) -> Channel:
        """Return an open channel, if necessary on a new connection. Raises ConnectFailed, ConnectionLost, ChannelClosed."""
        connection = self._connection
        if connection is None or connection.closed is not None:
            self.close()
            connection = self._connection = Connection(self.uri, name=self.name)
            if self.by_range and not has_ranges(connection):
                product = str(connection.server_properties.get("product", "the broker"))
                self.close()
                raise SourceError(
                    f"{connection.address}: {product} cannot be read by range of offsets, only Kvitto can; leave option"
                    " readMode out (auto), or set it to stream for a stream and to staged for any other queue"
                )
            if self.by_range and not has_holds(connection):
                self.close()
                raise SourceError(
                    f"{connection.address}: this Kvitto is older than its Spark source and cannot hold what a query has"
                    " planned to read: update the broker first"
                )
        if self._channel is None or self._channel.closed is not None:
            self._channel = None
            channel = connection.channel()
            if self.prepare is not None:
                self.prepare(channel)
            self._channel = channel
        return self._channel

    def call(self, action: Callable[[Channel], T], timeout_s: float) -> T:
        """Return the result of an action that may be repeated. ChannelClosed, a refusal of the server, is raised unchanged."""
        patience = Patience(timeout_s)
        began = time.monotonic()
        while True:
            try:
                return action(self.channel())
            except TakenError:
                if time.monotonic() - began >= TAKEN_S:
                    raise
                time.sleep(PAUSE_S)
            except (ConnectFailed, *LOST) as error:
                self.close()
                patience.wait(error)

    def close(self) -> None:
        """Close; the next call connects again."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.close()


def has_ranges(connection: Connection) -> bool:
    """Return whether the server supports class `log`."""
    capabilities = connection.server_properties.get("capabilities")
    return isinstance(capabilities, dict) and bool(capabilities.get("kvitto_log"))


def has_holds(connection: Connection) -> bool:
    """Return whether the server's class `log` can hold a range."""
    capabilities = connection.server_properties.get("capabilities")
    return isinstance(capabilities, dict) and bool(capabilities.get("kvitto_log_hold"))


def ack_timed_out(error: ChannelClosed) -> bool:
    """Return whether a broker closed a channel because a message stayed unacked for too long (RabbitMQ: 30 minutes)."""
    return error.code == 406 and "timed out" in error.text


def explain(error: AMQPError, queue: str) -> SourceError:
    """Return a refusal of the server as an error with advice."""
    if not isinstance(error, ChannelClosed):
        return SourceError(f"queue {queue!r}: {error}")
    hint = "see docs/spark.md"
    if error.code == 404:
        hint = "declare the queue first (durable), or correct option queue"
    elif error.code == 403 and "by group" in error.text:
        return TakenError(
            f"queue {queue!r}: {error}; another query reads this queue: stop it, or let one query read for both"
        )
    elif error.code == 403 and "exclusive" in error.text:
        hint = "another consumer has exclusive use of this queue: end it"
    elif error.code == 403 and "consumers" in error.text:
        hint = "end the ordinary consumers of this queue: reading by range needs exclusive use of a queue"
    elif error.code == 403:
        hint = "give the user of option uri the permission to read the queue"
    return SourceError(f"queue {queue!r}: {error}; {hint}")
