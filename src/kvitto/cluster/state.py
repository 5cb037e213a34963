"""What a data directory remembers of replication, in small files of its own that are never sent.

`history` has one random id for each time when a directory has begun to lead: the first one when it gets its first followers, another one
with each promotion. A follower has that of its leader. A directory may follow another one if its own history is the beginning of that
one's; else it has been promoted itself since, or belongs to others. In a cluster the ids of elections begin with the epoch, and the
register says whom to follow. `follows` is there as long as the directory follows, and no broker starts on it. `member` says which member of
which cluster the directory is.
"""

from __future__ import annotations

import json
import re
import secrets
import zlib
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from kvitto.base.errors import StoreError
from kvitto.cluster.records import StreamError
from kvitto.store import paths
from kvitto.store.disk import Disk, replace_small
from kvitto.store.store import UNKNOWN_BOOT

HISTORY_MAX = 500
RESIGNED_MS = 24 * 3600 * 1000
RESIGNED_MAX = 30
"""A node gives the lead up at most this often within RESIGNED_MS because its files are damaged."""
HISTORY_KEPT = 100
"""A directory remembers this many of the latest elections."""

CHECKED = re.compile("((?:[0-9]+:)?k[0-9a-f]{24})([0-9a-f]{8})")
"""An entry of a history. It ends with the CRC-32 of what is before."""
EARLIER = re.compile("([0-9]+:)?[0-9a-f]{32}")
"""An entry that an earlier Kvitto has written."""

T = TypeVar("T")


def new_id() -> str:
    return secrets.token_hex(16)


@dataclass
class Following:
    """The content of the file `follows`."""

    leader: str
    """The address of the last leader, to be shown to people."""
    complete: bool
    """Whether the directory is what the leader's was at some moment. Else it is partly its own and partly the leader's ("mixed" in ADR 30),
    and no broker may ever start on it."""
    session: str
    """The run of the leader that the directory was last completed from."""
    member: str = field(default_factory=new_id)
    """The name of this directory, made with it: a copy of it that follows at the same time is found out."""
    damage: str = ""
    """What is damaged here, in words, until a leader has sent a good copy. Until then another node should lead."""


def is_whole(entry: str) -> bool:
    """Return whether an entry of a history has the right form, and the checksum of its text if it has one."""
    if (checked := CHECKED.fullmatch(entry)) is not None:
        return int(checked[2], 16) == zlib.crc32(checked[1].encode())
    return EARLIER.fullmatch(entry) is not None


def new_entry(epoch: int | None = None) -> str:
    """Return a new entry for the history of a directory. `epoch`: that of its election, None if it begins to lead without one."""
    text = f"{'' if epoch is None else f'{epoch}:'}k{secrets.token_hex(12)}"
    return f"{text}{zlib.crc32(text.encode()):08x}"


def read_history(disk: Disk) -> list[str]:
    """Return the history of a directory, or [] if there is none. Raises StoreError if it cannot be read."""
    if not disk.exists(paths.HISTORY):
        return []
    *found, end = disk.read_file(paths.HISTORY).decode("ascii", "replace").split("\n")
    if end or not all(map(is_whole, found)):
        raise StoreError(f"{paths.HISTORY} cannot be read: let this node follow with an empty directory")
    return found


def write_history(disk: Disk, history: list[str]) -> None:
    if len(history) > HISTORY_MAX:
        raise StoreError(f"this directory has been promoted {HISTORY_MAX} times: make a new one by a backup")
    replace_small(disk, paths.HISTORY, "\n".join([*history, ""]).encode())


def begin_history(disk: Disk) -> list[str]:
    """Return the history of a directory that leads. If it has none, begin one."""
    history = read_history(disk)
    if not history:
        history = [new_entry()]
        write_history(disk, history)
    return history


def read_following(disk: Disk) -> Following | None:
    """Read the file `follows`. Return None if the directory does not follow."""
    return _read(disk, paths.FOLLOWS, Following, "follow with an empty directory")


def write_following(disk: Disk, following: Following) -> None:
    _write(disk, paths.FOLLOWS, following)


@dataclass
class Member:
    """The content of the file `member`. It is made with the directory, so a directory that was lost comes back as another member (R10)."""

    cluster: str
    """The id in the cluster's document."""
    register: str
    """Which register the document is in. One that was restored from a backup is another one, and is not obeyed (R9)."""
    name: str = ""
    """The name of the cluster in the register."""
    member: str = field(default_factory=new_id)
    resigned: dict[str, int] = field(default_factory=dict)
    """The damage because of which this node has given up the lead lately, with the time in ms."""

    def has_resigned(self, damage: str, now_ms: int) -> bool:
        """Return whether this node should not give up the lead because of this damage. That is so if it has done so within RESIGNED_MS, and
        nobody had a better copy, or if it has given up the lead RESIGNED_MAX times in that time."""
        late = self._lately(now_ms)
        return damage in late or len(late) >= RESIGNED_MAX

    def resign(self, damage: str, now_ms: int) -> None:
        self.resigned = self._lately(now_ms) | {damage: now_ms}

    def _lately(self, now_ms: int) -> dict[str, int]:
        return {damage: ms for damage, ms in self.resigned.items() if 0 <= now_ms - ms < RESIGNED_MS}


def read_member(disk: Disk) -> Member | None:
    """Read the file `member`. Return None if the directory belongs to no cluster."""
    return _read(disk, paths.MEMBER, Member, "join the cluster with an empty directory")


def write_member(disk: Disk, member: Member) -> None:
    _write(disk, paths.MEMBER, member)


def _read(disk: Disk, path: str, kind: type[T], advice: str) -> T | None:
    """Read a file that holds one object of this kind. Return None if there is no such file, and raise StoreError if it cannot be read."""
    if not disk.exists(path):
        return None
    try:
        return kind(**json.loads(disk.read_file(path)))
    except (ValueError, TypeError):
        raise StoreError(f"{path} cannot be read: {advice}") from None


def _write(disk: Disk, path: str, value: Following | Member) -> None:
    replace_small(disk, path, json.dumps(asdict(value)).encode() + b"\n")


def epoch_of(history: list[str]) -> int:
    """Return the epoch of the last election in a history, 0 if there is none."""
    epoch, colon, _ = history[-1].partition(":") if history else ("", "", "")
    return int(epoch) if colon and epoch.isascii() and epoch.isdigit() else 0


def forget_boot(disk: Disk) -> None:
    """Have the next broker flag all that waits, as after a power cut: the leader's last deliveries may not have come."""
    replace_small(disk, paths.BOOT, UNKNOWN_BOOT)


def why_not(own: list[str], leaders: list[str]) -> str:
    """Return why a directory with the history `own` may not follow a leader with the history `leaders`; "" if it may."""
    if leaders[: len(own)] == own:
        return ""
    if own[: len(leaders)] == leaders:
        return (
            "this directory has a newer epoch than that leader, which was replaced by a promotion: "
            "have the old leader follow the new one, not the other way round"
        )
    if own[0] == leaders[0]:
        return (
            "this directory and that leader have both been promoted from the same one, and each has messages of its own: "
            "decide which of them is right, and let the other one follow with an empty directory"
        )
    return "this directory belongs to another leader: choose an empty directory, or one that has followed that leader"


def why_not_elected(own: list[str], leaders: list[str], epoch: int) -> str:
    """Return why a directory with the history `own` may not follow the leader of this epoch, which has another one; "" if it may.

    Who was elected has everything that was confirmed, so nothing else is asked. Raises StreamError if another epoch is led there.
    """
    if epoch_of(leaders) != epoch or epoch_of(own) > epoch:
        raise StreamError(f"it leads epoch {epoch_of(leaders)}, and not {epoch}")
    if epoch_of(own) == epoch and own != leaders:
        return f"two nodes were elected in epoch {epoch}: etcd was set back. Stop all nodes, and choose one of them"
    return ""
