"""The register of a cluster: one document, outside of all nodes, that says who leads and who has everything (docs/adr/0030).

The document changes only by compare-and-swap on its version, so two nodes never change it in different ways. Beside it there is the
**seat** of the leader, which goes by itself if the leader does not renew it: it says when somebody else may try to lead, and nothing that
was confirmed depends on it. `etcd.py` keeps both in etcd; tests have a register of their own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from kvitto.cluster import levels

MEMBERS_MAX = 17
LATER = ("since_ms", "before", "why")
"""The fields of a seat that an earlier Kvitto neither writes nor reads."""


class RegisterError(Exception):
    """The register cannot be used as it is, and trying again would not help. The text says what an operator has to do."""


class Unanswered(Exception):
    """The register has not answered in time, or cannot be reached. A change that was asked for may have been made, or may be made later."""


class NotAllowed(Unanswered):
    """The register does not let this node in, or is not trusted: a certificate, a password or a right. Nothing has been changed.

    An operator has to mend it, in the register or in a file, and then it works again by itself.
    """


@dataclass(frozen=True)
class Document:
    """What all nodes of a cluster agree on."""

    cluster: str
    """A random id, made with the document."""
    epoch: int
    """How many elections there were. 0: nobody has led yet."""
    leader: str
    """The member that was elected last, "" if none was."""
    members: tuple[str, ...]
    """The nodes that have everything that was confirmed, the leader among them. Only one of these can be elected (R3)."""
    minimum: int
    """How many nodes have to have synced what is confirmed (R8)."""
    level: int = levels.FIRST
    """What the nodes may write (`levels.py`)."""

    def elected(self, member: str) -> Document:
        return replace(self, epoch=self.epoch + 1, leader=member)

    def with_members(self, members: set[str]) -> Document:
        return replace(self, members=tuple(sorted(members)))

    def encoded(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Seat:
    """Who sits in the leader's seat."""

    member: str
    process: str
    """A random id of the leader's process."""
    address: str
    """Where followers connect, HOST:PORT."""
    clients: str = ""
    """Where clients connect, for people."""
    since_ms: int = 0
    """When the leader was elected, in milliseconds since 1970 by its own clock. This and what follows is for people."""
    before: str = ""
    """The member that led before, "" if it was the same, or none."""
    why: str = ""
    """Why there was an election."""

    def encoded(self) -> str:
        """Return the seat as text. Fields of LATER that have no value are left out, so that the seat of an earlier Kvitto becomes the same
        text again: it is compared with what etcd holds."""
        later = {name: getattr(self, name) for name in LATER if getattr(self, name)}
        return json.dumps({name: value for name, value in asdict(self).items() if name not in LATER} | later)


@dataclass(frozen=True)
class Complaint:
    """A member's statement that it does not reach the leader's process."""

    member: str
    process: str

    def encoded(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Seen:
    """The content of the register at one moment."""

    identity: str
    """Which register this is. After it has been restored from a backup it is another one (R9)."""
    document: Document | None
    version: int
    """The version of the document, which each change makes another one."""
    seat: Seat | None
    complaint: Complaint | None = None
    """The latest complaint, if it has not ended yet. Nothing that was confirmed depends on it."""


class Register(Protocol):
    """All calls block, for some seconds at most. They raise Unanswered, or RegisterError."""

    def read(self) -> Seen: ...

    def create(self, document: Document) -> bool:
        """Store the first document. Return False if there is one."""
        ...

    def change(self, document: Document, version: int) -> int | None:
        """Replace the document if it still has this version. Return the new version, or None if somebody has changed the document."""
        ...

    def elect(self, document: Document, version: int, seat: Seat, lease: str, old: Seat | None) -> int | None:
        """Replace the document as `change` does, and take the leader's seat in the same step. The seat has to be free, or that of `old`."""
        ...

    def sit_down_again(self, version: int, seat: Seat, lease: str) -> bool:
        """Take the leader's seat, which has been lost. Return False if somebody has it, or the document is not of this version any more."""
        ...

    def complain(self, complaint: Complaint, lease: str) -> None:
        """Write a complaint over an earlier one. It is removed when this lease ends."""
        ...

    def grant(self, seconds: int) -> str:
        """Make a lease. The seat that is taken with it goes when the lease has not been renewed for so many seconds."""
        ...

    def renew(self, lease: str) -> bool:
        """Renew a lease. Return False if it has ended already."""
        ...

    def revoke(self, lease: str) -> None:
        """End a lease, and give the seat up."""
        ...


def decoded(text: str) -> Document:
    """Return a document from its text. Raises RegisterError if this Kvitto cannot read it."""
    found = as_object(text)
    try:
        level = _number(found, "level")
        if level > levels.LEVEL:
            raise RegisterError(f"the cluster is at level {level}, and this Kvitto knows {levels.LEVEL}: update it")
        document = Document(
            cluster=_text(found, "cluster"),
            epoch=_number(found, "epoch"),
            leader=_text(found, "leader"),
            members=tuple(found["members"]),
            minimum=_number(found, "minimum"),
            level=level,
        )
        named = bool(document.members) and all(isinstance(member, str) for member in document.members)
        if not named or document.minimum < 1 or document.epoch < 0 or level < 1:
            raise TypeError
    except (KeyError, TypeError):
        raise RegisterError("the cluster's document cannot be read: something else has written it") from None
    return document


def seat_from(text: str) -> Seat:
    """Return a seat from its text. Raises RegisterError if this Kvitto cannot read it."""
    found = as_object(text)
    try:
        later = {"since_ms": 0, "before": "", "why": ""} | found
        return Seat(
            member=_text(found, "member"),
            process=_text(found, "process"),
            address=_text(found, "address"),
            clients=_text(found, "clients"),
            since_ms=_number(later, "since_ms"),
            before=_text(later, "before"),
            why=_text(later, "why"),
        )
    except (KeyError, TypeError):
        raise RegisterError("the leader's seat cannot be read: something else has written it") from None


def complaint_from(text: str) -> Complaint | None:
    """Return a complaint from its text. A text that cannot be read is no error, because a complaint is only a hint: the result is None."""
    try:
        found = as_object(text)
        return Complaint(_text(found, "member"), _text(found, "process"))
    except (RegisterError, KeyError, TypeError):
        return None


def as_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RegisterError("the cluster's document cannot be read: something else has written it")
    return found


def _text(found: dict[str, Any], name: str) -> str:
    if not isinstance(found[name], str):
        raise TypeError
    return str(found[name])


def _number(found: dict[str, Any], name: str) -> int:
    if type(found[name]) is not int:  # True is an int, too
        raise TypeError
    return int(found[name])
