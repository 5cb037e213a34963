"""The names of all files in a data directory. Paths are relative to it, and no other module makes one."""

from __future__ import annotations

import re

LOCK = "lock"
BOOT = "boot"
FORMAT = "format"
DEFINITIONS = "definitions.log"
JOURNALS = "journal"
QUEUES = "queues"
TRANSIENT = "transient"
ARCHIVE = "archive"
SPARE = "spare"
INVENTORY = "inventory"
STAGING = "backup"
INCOMPLETE = "incomplete-backup"
"""The file that a backup has until it is complete. No broker starts in a directory with this file."""

FOLLOWS = "follows"
"""The file that a directory has as long as it follows a leader (cluster/state.py). No broker starts in a directory with this file."""
HISTORY = "history"
"""The file that names the leaders that there have been of this directory."""
REPLACED = "replaced"
"""What a follower had and its leader had not."""
MEMBER = "member"
"""The file that says which member of which cluster a directory is."""

ROOT = frozenset(
    (
        LOCK,
        BOOT,
        FORMAT,
        DEFINITIONS,
        JOURNALS,
        QUEUES,
        TRANSIENT,
        ARCHIVE,
        SPARE,
        INVENTORY,
        STAGING,
        FOLLOWS,
        HISTORY,
        REPLACED,
        MEMBER,
    )
)
"""All names in the data directory itself. A file that is being written may have `.new` behind its name."""
NOBODYS = "lost+found"
"""A directory that file systems make in their own root."""

LOCAL = frozenset((LOCK, BOOT, SPARE, TRANSIENT, STAGING, INCOMPLETE, FOLLOWS, HISTORY, REPLACED, MEMBER, NOBODYS))
"""The names in the data directory itself that are of one machine: they are not replicated."""

SEGMENT_SUFFIX = ".log"
SETTLEMENTS_SUFFIX = ".ack"
QUARANTINE_SUFFIX = ".bad"


def is_local(path: str) -> bool:
    """Whether a file or directory is of one machine. Copies of what is damaged are, since another machine may have it undamaged."""
    return path.partition("/")[0].removesuffix(".new") in LOCAL or QUARANTINE_SUFFIX in path


def queue_dir(queue_id: str, durable: bool) -> str:
    return f"{QUEUES if durable else TRANSIENT}/{queue_id}"


def is_queue_id(name: str) -> bool:
    """Return whether this may be the directory of a queue. A start leaves all others alone, because no broker has made them."""
    return re.fullmatch("[0-9a-f]{32}", name) is not None


def scratch_dir(queue_id: str) -> str:
    """Where a queue keeps what can be made anew: nothing in it is synced, and a start removes it."""
    return f"{TRANSIENT}/{queue_id}.scratch"


def scratch(directory: str, number: int) -> str:
    return f"{directory}/{number:08d}.run"


def archive_dir(queue_id: str) -> str:
    return f"{ARCHIVE}/{queue_id}"


def about(directory: str) -> str:
    """The file that says which queue the segments in a directory belong to."""
    return f"{directory}/queue.json"


def segment(directory: str, base: int) -> str:
    return f"{directory}/{base:020d}{SEGMENT_SUFFIX}"


def settlements(directory: str, base: int) -> str:
    return f"{directory}/{base:020d}{SETTLEMENTS_SUFFIX}"


def quarantine(directory: str, base: int) -> str:
    return f"{directory}/{base:020d}{QUARANTINE_SUFFIX}"


def quarantined_settlements(directory: str, base: int) -> str:
    return settlements(directory, base) + QUARANTINE_SUFFIX


def offsets(directory: str) -> str:
    return f"{directory}/offsets"


def orphan(directory: str) -> str:
    return f"{directory}/orphan"


def copying(path: str) -> str:
    """The name of a copy until it is complete."""
    return path + ".new"


def staging(name: str) -> str:
    """The directory of a backup that is being taken: files that have been removed from their own place meanwhile, and copies."""
    return f"{STAGING}/{name}"


def staged(directory: str, path: str) -> str:
    """The name of the file `path` in a staging directory."""
    return f"{directory}/{path.replace('/', '.')}"


def journal(number: int, salt: int) -> str:
    return f"{JOURNALS}/{number:016d}-{salt:016x}.jnl"


def base_of(name: str) -> int:
    """The base offset in the file name of a segment or settlement log, -1 for any other name."""
    stem, dot, _ = name.partition(".")
    return int(stem) if dot and len(stem) == 20 and stem.isdigit() else -1


def journal_of(name: str) -> tuple[int, int] | None:
    """(number, salt) in the name of a journal file, None for any other name."""
    found = re.fullmatch(r"(\d{16})-([0-9a-f]{16})\.jnl", name)
    return (int(found[1]), int(found[2], 16)) if found else None
