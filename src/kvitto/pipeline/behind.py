"""Counts the messages that a query has not read yet. It asks the broker, because Spark's last report may be old."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kvitto.client import AMQPError, Connection

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ASK_S: Final = 1.0
"""The minimum time between two questions."""


class Behind:
    """`with Behind(uri, queues) as behind` keeps its connection; a lost one is opened again at the next question."""

    def __init__(self, uri: str, queues: Sequence[str]) -> None:
        self.uri = uri
        self.queues = queues
        self._connection: Connection | None = None
        self._said: int | None = None
        self._asked_at = -ASK_S
        self._why = ""

    def __enter__(self) -> Behind:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def count(self, query: StreamingQuery | None) -> int | None:
        """Return the number of messages behind the query's last batch, or without a query of all that wait; None if the
        broker does not answer."""
        read = _positions(query) if query is not None else {}
        try:
            if self._connection is None:
                self._connection = Connection(self.uri, name="kvitto pipeline")
            with self._connection.channel() as channel:
                return sum(channel.log_count(queue, "", read.get(queue, 0), 1 << 63).count for queue in self.queues)
        except (AMQPError, OSError) as error:
            self._why = str(error).partition("\n")[0]
            self._close()
            return None

    def text(self, query: StreamingQuery) -> str:
        """Return the same for a progress line."""
        if time.monotonic() - self._asked_at >= ASK_S:
            self._said, self._asked_at = self.count(query), time.monotonic()
        if self._said is None:
            return f"how many are behind is not known: {self._why}"
        return f"{self._said:,} behind"

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _positions(query: StreamingQuery) -> dict[str, int]:
    """Return the end of the last batch by queue; nothing before the first."""
    said: Any = query.lastProgress
    text = said["sources"][0].get("endOffset") if said else None
    places = json.loads(text) if isinstance(text, str) else text
    return {name.partition(":")[2]: at["next"] for name, at in places["queues"].items()} if places else {}
