"""How far a query has read: what stands in Spark's offset log, as JSON with one order of keys.

    {"v": 1, "mode": "range", "group": "spark-1f...", "flush": 0,
     "queues": {"/:orders": {"inc": "9f3c...", "begin": 0, "next": 12345}}}

Spark compares offsets as strings, so the same place must always give the same text. `begin` is where the query
started: Spark logs only the end of its first batch and asks again for the start after a crash, and by then `latest`
would be another place. `group` is in it for the same reason: it makes a restarted query the same reader again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvitto.spark.errors import SourceError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """A place in one queue: the queue's incarnation, where this query began in it, and the next offset to read."""

    incarnation: str
    begin: int
    next: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """A place in all queues of a query, by queue name."""

    group: str
    queues: dict[str, Position]

    def to_json(self, vhost: str) -> dict[str, Any]:
        """The form that Spark keeps."""
        queues = {
            f"{vhost}:{name}": {"inc": at.incarnation, "begin": at.begin, "next": at.next}
            for name, at in sorted(self.queues.items())
        }
        return {"v": VERSION, "mode": "range", "group": self.group, "flush": 0, "queues": queues}

    @classmethod
    def from_json(cls, value: dict[str, Any], vhost: str) -> Offsets:
        """Read it back; SourceError if this checkpoint belongs to something else."""
        if value.get("v") != VERSION or value.get("mode") != "range":
            raise SourceError(
                f"this checkpoint has offsets of version {value.get('v')!r}, mode {value.get('mode')!r}; this version of"
                f" Kvitto reads version {VERSION}, mode 'range': use the version that wrote it, or a new checkpoint"
            )
        queues: dict[str, Position] = {}
        for key, at in value["queues"].items():
            if not key.startswith(f"{vhost}:"):
                raise SourceError(
                    f"this checkpoint is of queue {key!r}, but option uri leads to virtual host {vhost!r}:"
                    " use that virtual host, or a new checkpoint"
                )
            queues[key[len(vhost) + 1 :]] = Position(at["inc"], at["begin"], at["next"])
        return cls(value["group"], queues)


def start_of(start: Position | None, end: Position) -> int:
    """The first offset of a batch that goes from `start` to `end`."""
    same = start is not None and (start.incarnation, start.begin) == (end.incarnation, end.begin)
    return start.next if same and start is not None else end.begin
