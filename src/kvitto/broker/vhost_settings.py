"""The settings of a virtual host: its description, its tags, and its default queue type."""

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
    protected: bool = False
    """Whether the virtual host cannot be deleted over HTTP."""

    def value(self) -> dict[str, Any]:
        """Return the settings as the definitions store them. Without any settings that is an empty object."""
        if self == VHostSettings():
            return {}
        return {
            "description": self.description,
            "tags": [*self.tags],
            "default_queue_type": self.default_queue_type,
            "tracing": self.tracing,
            **({"protected": True} if self.protected else {}),
        }

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> VHostSettings:
        """Make settings from what `value` returned."""
        return cls(
            value.get("description", ""),
            tuple(value.get("tags", ())),
            value.get("default_queue_type", "classic"),
            value.get("tracing", False),
            value.get("protected", False),
        )
