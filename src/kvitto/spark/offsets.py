"""How far a query has read: what stands in Spark's offset log, as JSON with one order of keys.

    {"v": 1, "mode": "range", "group": "spark-1f...", "flush": 0,
     "queues": {"/:orders": {"inc": "9f3c...", "begin": 0, "next": 12345, "count": 1000}}}

What `inc` and the numbers are depends on the read mode, and a checkpoint belongs to one mode for ever:

    mode    begin, next             inc
    range   offsets of the queue    the queue's incarnation
    stream  offsets of the stream   digest of the message before `next`, to know the stream again; "" = not known
    staged  numbers of files        identity of the staging directory

Spark compares offsets as strings, so the same place must always give the same text. `begin` is where the query
started: Spark logs only the end of its first batch and asks again for the start after a crash, and by then `latest`
would be another place. `count`, in mode range, is how many messages the batch that ends there has: what is read is compared
with it. `group` is in it for the same reason: it makes a restarted query the same reader again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvitto.spark.errors import SourceError
from kvitto.spark.options import AUTO, MODES, RANGE

VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """A place in one queue: what tells the queue from another, where this query began in it, and the next to read."""

    incarnation: str
    begin: int
    next: int
    count: int | None = None
    """Messages of the batch that ends here; None where nothing was read, or nobody counts."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"inc": self.incarnation, "begin": self.begin, "next": self.next}
        return value if self.count is None else {**value, "count": self.count}


@dataclass(frozen=True, slots=True)
class Offsets:
    """A place in all queues of a query, by queue name."""

    group: str
    queues: dict[str, Position]
    mode: str = RANGE
    waiting: dict[str, int] | None = None
    """Only in a report, never in a checkpoint: messages that wait in each queue."""

    def to_json(self, vhost: str) -> dict[str, Any]:
        """The form that Spark keeps."""
        queues = {f"{vhost}:{name}": at.to_json() for name, at in sorted(self.queues.items())}
        value = {"v": VERSION, "mode": self.mode, "group": self.group, "flush": 0, "queues": queues}
        if self.waiting is not None:
            value["waiting"] = {f"{vhost}:{name}": count for name, count in sorted(self.waiting.items())}
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any], vhost: str) -> Offsets:
        """Read it back; SourceError if this checkpoint belongs to something else."""
        mode = value.get("mode")
        if value.get("v") != VERSION or mode not in MODES or mode == AUTO:
            raise SourceError(
                f"this checkpoint has offsets of version {value.get('v')!r}, mode {mode!r}; this version of"
                f" Kvitto reads version {VERSION}: use the version that wrote it, or a new checkpoint"
            )
        queues: dict[str, Position] = {}
        for key, at in value["queues"].items():
            if not key.startswith(f"{vhost}:"):
                raise SourceError(
                    f"this checkpoint is of queue {key!r}, but option uri leads to virtual host {vhost!r}:"
                    " use that virtual host, or a new checkpoint"
                )
            queues[key[len(vhost) + 1 :]] = Position(at["inc"], at["begin"], at["next"], at.get("count"))
        return cls(value["group"], queues, mode)


def start_of(start: Position | None, end: Position) -> int:
    """The first offset of a batch that goes from `start` to `end`."""
    same = start is not None and (start.incarnation, start.begin) == (end.incarnation, end.begin)
    return start.next if same and start is not None else end.begin
