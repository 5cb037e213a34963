"""Makes a broker's directory of one that has followed (`kvitto promote`, and elections). Nothing is asked of the old leader, which may be
gone.
"""

from __future__ import annotations

from kvitto.base.errors import StoreError
from kvitto.cluster.handshake import Refused
from kvitto.cluster.state import (
    HISTORY_KEPT,
    Member,
    epoch_of,
    forget_boot,
    new_entry,
    read_following,
    read_history,
    read_member,
    write_history,
)
from kvitto.store import paths
from kvitto.store.disk import Disk, replace_small
from kvitto.store.store import IN_ORDER, how_it_ended


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
    if following is None and disk.exists(paths.MEMBER) and not disk.exists(paths.FORMAT):
        raise Refused(f"{where} belongs to a cluster, and no broker has ever written to it")
    if following is None and disk.exists(paths.MEMBER):
        disk.unlink(paths.MEMBER)  # it leaves its cluster
        disk.sync_dir("")
        return len(read_history(disk))
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
    history = [*read_history(disk), new_entry()]
    write_history(disk, history)
    disk.unlink(paths.FOLLOWS)
    if disk.exists(paths.MEMBER):
        disk.unlink(paths.MEMBER)
    disk.sync_dir("")
    return len(history)


def begin_epoch(disk: Disk, epoch: int, in_order: bool) -> None:
    """Note durably that this directory leads in an epoch, before anything is done in it (R4). Its process has locked it.

    `in_order`: it is what the last leader's was after an end in order, so nothing has to be flagged.

    Raises Refused if the directory is partly the old leader's and partly its own, which no member's is.
    """
    following = read_following(disk)
    if following is not None and not following.complete:
        raise Refused(
            f"{getattr(disk, 'root', 'the directory')} is not complete, and was elected all the same, which is a mistake of Kvitto's: "
            "start another node"
        )
    history = read_history(disk)
    if in_order:
        replace_small(disk, paths.BOOT, IN_ORDER)
    else:
        forget_boot(disk)
    write_history(disk, [*history[:1], *history[1:][-HISTORY_KEPT:], new_entry(epoch)])
    if following is not None:
        disk.unlink(paths.FOLLOWS)
        disk.sync_dir("")


def ended_in_order(disk: Disk, epoch: int) -> bool:
    """Return whether this directory was elected in this epoch, and the last process that used it has ended in order."""
    if disk.exists(paths.FOLLOWS) or not disk.exists(paths.BOOT):
        return False
    return epoch_of(read_history(disk)) == epoch and how_it_ended(disk).in_order


def refuse_member(disk: Disk) -> None:
    """Raise Refused if a directory belongs to a cluster, which may have gone on without it."""
    try:
        own = read_member(disk) if disk.exists("") else None
    except StoreError:
        own = Member("", "")
    if own is not None:
        where = getattr(disk, "root", "the directory")
        raise Refused(
            f"{where} belongs to a cluster: serve it with --etcd. If the cluster is gone for good, `kvitto promote {where}` makes a "
            "broker of it that stands alone"
        )
