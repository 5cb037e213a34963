"""What a node knows of its cluster, for people and for programs that watch it. Leaders and followers tell it in the same form.

`http/cluster.py` shows it for a leader, and `server/front_http.py` for a node that does not lead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvitto.cluster import levels
from kvitto.cluster.register import Document, Seat

LEADING, FOLLOWING, COMPARING, WAITING = "leading", "following", "comparing", "waiting"


@dataclass(frozen=True)
class Standing:
    """What a node that does not lead knows. A new one is made with each change, as several threads read it."""

    name: str
    """The name of the cluster."""
    member: str
    document: Document | None = None
    """What the register said last."""
    seat: Seat | None = None
    """The seat of the leader, None if this node knows of no leader."""
    state: str = WAITING
    """following, comparing or waiting."""
    since_ms: int = 0
    """The time from which on it has been in this state."""
    why: str = ""
    """Why it waits."""
    silent_s: float = 0.0
    """The seconds since the leader that it follows last sent something."""


def node_name(member: str) -> str:
    """Return the name of a node of a cluster, as RabbitMQ's tools want it."""
    return f"kvitto@{member[:8]}"


def shown(name: str, member: str, document: Document, seat: Seat | None, nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a node knows of its cluster as /api/cluster shows it."""
    leader, failover = None, None
    if seat is not None:
        leader = {
            "member": seat.member,
            "node": node_name(seat.member),
            "address": seat.address,
            "clients": seat.clients,
            "since_ms": seat.since_ms,
        }
        failover = {"at_ms": seat.since_ms, "before": seat.before or None, "why": seat.why}
    return {
        "name": name,
        "id": document.cluster,
        "epoch": document.epoch,
        "minimum": document.minimum,
        "level": document.level,
        "member": member,
        "node": node_name(member),
        "leads": seat is not None and seat.member == member,
        "leader": leader,
        "last_failover": failover,
        "members": list(document.members),
        "nodes": nodes,
    }


def alone(name: str, minimum: int) -> dict[str, Any]:
    """Return what a broker of this name tells that belongs to no cluster. `minimum`: its --min-in-sync."""
    found = shown("", "", Document("", 0, "", (), minimum), None, [])
    return {**found, "name": None, "id": None, "member": None, "node": name, "leads": True}


def node(member: str, document: Document, seat: Seat | None, **more: Any) -> dict[str, Any]:
    """Return what is known of one node. What is not known is null."""
    known = dict.fromkeys(("state", "since_ms", "address", "lag_bytes", "lag_ms", "free_bytes", "level_max"))
    leads = seat is not None and seat.member == member
    return {
        "member": member,
        "node": node_name(member),
        "leads": leads,
        "in_sync": member in document.members,
        **known,
        **more,
    }


def follows(standing: Standing) -> dict[str, Any]:
    """Return what a node that does not lead knows, as `shown` does. Of the others it knows only what the register says."""
    document, seat = standing.document, standing.seat
    if document is None:
        document = Document("", 0, "", (), 0)
    nodes = []
    for member in sorted({*document.members, standing.member, *((seat.member,) if seat is not None else ())}):
        more: dict[str, Any] = {}
        if member == standing.member:
            more = {"state": standing.state, "since_ms": standing.since_ms, "why": standing.why or None}
            more["level_max"] = levels.LEVEL
        elif seat is not None and seat.member == member:
            more = {"state": LEADING, "since_ms": seat.since_ms, "address": seat.address}
        nodes.append(node(member, document, seat, **more))
    return shown(standing.name, standing.member, document, seat, nodes)
