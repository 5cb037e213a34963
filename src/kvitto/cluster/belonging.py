"""Whether a directory and the document of a cluster belong together (R9 of docs/cluster-model.md)."""

from __future__ import annotations

from kvitto.cluster.handshake import Refused
from kvitto.cluster.register import Seen
from kvitto.cluster.state import Member, epoch_of, read_history, read_member, write_member
from kvitto.store import paths
from kvitto.store.disk import Disk


def belong(disk: Disk, place: str, seen: Seen, name: str, where: str) -> Member:
    """Return the member whose directory this is. Raises Refused if it does not belong to the cluster that the document describes.

    An empty directory becomes that of a new member, and this writes its name into it. `place`: the directory, for people. `name`: of the
    cluster. `where`: the cluster and its register, for people, such as "cluster kvitto in etcd at http://10.0.0.1:2379".
    """
    document = seen.document
    own = read_member(disk)
    if own is not None and own.name != name:
        raise Refused(f"{place} belongs to the cluster {own.name}: say --cluster {own.name}")
    if document is None and own is not None:
        raise Refused(
            f"the document of the {where} is gone. Stop all nodes, choose the directory of the last leader, or of one that "
            "was in sync, and say `kvitto cluster force --data-dir` with it"
        )
    if document is None:
        raise Refused(f"there is no {where}: `kvitto cluster init` makes it, on the node whose messages are kept")
    if own is None:
        begun = paths.LOCK, paths.NOBODYS, paths.copying(paths.MEMBER)
        names = [found for found in disk.listdir("") if found not in begun]
        if names:
            raise Refused(
                f"{place} is not empty and belongs to no cluster, it holds {names[0]!r}: choose an empty directory, or "
                "`kvitto cluster init` makes a cluster of it"
            )
        own = Member(document.cluster, seen.identity, name)
        write_member(disk, own)
    if own.cluster != document.cluster:
        raise Refused(
            f"{place} belongs to another cluster than the {where}, although both have this name. If that one was made "
            f"by mistake, remove it with `etcdctl del --prefix kvitto/{name}/`; if not, use an empty directory there"
        )
    if own.register != seen.identity:
        raise Refused(
            f"the {where} is another etcd than the one that {place} knows, perhaps restored from a backup. It may "
            "name nodes that lack messages. If the cluster has begun anew there, move this directory aside and start with an empty "
            "one. If you know that this directory has everything, stop all nodes and say "
            f"`kvitto cluster force --data-dir {place}`"
        )
    if document.epoch < (epoch := epoch_of(read_history(disk))):
        raise Refused(
            f"{place} knows epoch {epoch}, and the {where} is at {document.epoch}: it was set back. If you know that "
            f"this directory has everything, stop all nodes and say `kvitto cluster force --data-dir {place}`"
        )
    return own
