"""The offsets of a query in Spark's offset log, as JSON with a fixed order of keys.

    {"v": 1, "mode": "range", "group": "spark-1f...", "flush": 0,
     "queues": {"/:orders": {"inc": "9f3c...", "begin": 0, "next": 12345, "count": 1000}}}

The meaning of `inc` and the numbers depends on the read mode, and a checkpoint belongs to one mode: `Position` has the
table. Spark compares offsets as strings, so equal positions must give equal texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvitto.spark.errors import SourceError
from kvitto.spark.options import AUTO, MODES, RANGE

VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """A position in one queue. Its fields depend on the read mode:

        mode    begin, next             incarnation
        range   offsets of the queue    the queue's incarnation
        stream  offsets of the stream   digest of the message before `next`, to recognise the stream; "" = not known
        staged  numbers of files        identity of the staging directory

    `begin` is where the query started in the queue. Spark logs only the end of its first batch and asks again for the
    start after a crash, when `latest` would be another position. `next` is the next offset to read.
    """

    incarnation: str
    begin: int
    next: int
    count: int | None = None
    """The number of messages in the batch that ends here; None if nothing was read, or the mode does not count."""

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"inc": self.incarnation, "begin": self.begin, "next": self.next}
        return value if self.count is None else {**value, "count": self.count}


@dataclass(frozen=True, slots=True)
class Offsets:
    """The positions in all queues of a query, by queue name. `group` is stored so that a restarted query attaches as
    the same group."""

    group: str
    queues: dict[str, Position]
    mode: str = RANGE
    waiting: dict[str, int] | None = None
    """The number of waiting messages in each queue; only in a report, never in a checkpoint."""

    def to_json(self, vhost: str) -> dict[str, Any]:
        """Return the form that Spark stores."""
        queues = {f"{vhost}:{name}": at.to_json() for name, at in sorted(self.queues.items())}
        value = {"v": VERSION, "mode": self.mode, "group": self.group, "flush": 0, "queues": queues}
        if self.waiting is not None:
            value["waiting"] = {f"{vhost}:{name}": count for name, count in sorted(self.waiting.items())}
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any], vhost: str) -> Offsets:
        """Read that form. Raise SourceError if the checkpoint belongs to something else."""
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
    """Return the first offset of a batch that goes from `start` to `end`."""
    same = start is not None and (start.incarnation, start.begin) == (end.incarnation, end.begin)
    return start.next if same and start is not None else end.begin
