"""Makes a broker's directory of one that has followed (`kvitto promote`). Nothing is asked of the old leader, which may be gone."""

from __future__ import annotations

from kvitto.cluster.handshake import Refused
from kvitto.cluster.state import forget_boot, new_id, read_following, read_history, write_history
from kvitto.store import paths
from kvitto.store.disk import Disk


def promote(disk: Disk) -> int:
    """End the follower's role. Returns the new epoch. Raises Refused if no broker can start on what is there, or StoreError."""
    where = getattr(disk, "root", "the directory")
    if not disk.exists(""):
        raise Refused(f"{where} is not there")
    lock = disk.lock(paths.LOCK)
    try:
        return _promote(disk, where)
    finally:
        close = getattr(lock, "close", None)
        if close is not None:
            close()


def _promote(disk: Disk, where: str) -> int:
    following = read_following(disk)
    if following is None:
        raise Refused(
            f"{where} does not follow a leader: `kvitto serve --data-dir {where}` starts a broker on it as it is"
        )
    if not following.complete:
        raise Refused(
            f"{where} is not complete: its files are partly older ones and partly those of the leader {following.leader}, since "
            "they were being compared when the connection ended. Let it follow until its log says that it follows, "
            "or promote another follower"
        )
    forget_boot(disk)
    history = [*read_history(disk), new_id()]
    write_history(disk, history)
    disk.unlink(paths.FOLLOWS)
    disk.sync_dir("")
    return len(history)
