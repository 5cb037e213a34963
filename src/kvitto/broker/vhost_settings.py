"""What a virtual host is described by: its description, its tags, and the type of a queue that is declared without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

QUEUE_TYPES = ("classic", "quorum", "stream")


@dataclass(frozen=True, slots=True)
class VHostSettings:
    """`tracing` is kept for RabbitMQ's tools and has no effect."""

    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = "classic"
    tracing: bool = False

    def value(self) -> dict[str, Any]:
        """As the definitions hold them: a virtual host that is described by nothing has an empty object."""
        if self == VHostSettings():
            return {}
        return {
            "description": self.description,
            "tags": [*self.tags],
            "default_queue_type": self.default_queue_type,
            "tracing": self.tracing,
        }

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> VHostSettings:
        """The opposite of `value`."""
        return cls(
            value.get("description", ""),
            tuple(value.get("tags", ())),
            value.get("default_queue_type", "classic"),
            value.get("tracing", False),
        )
