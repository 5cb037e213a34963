"""`kvitto cluster`: makes a cluster, shows it, and begins it anew by an operator's word. `main.main` calls it.

The sub-commands speak with etcd, not with a node. Exit codes: 0 done, 1 refused, and nothing has been changed, 2 wrong usage, 3 etcd does
not answer.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvitto.base.config import ConfigError
from kvitto.base.environment import variable
from kvitto.base.errors import StoreError
from kvitto.base.table import printable
from kvitto.cluster import levels
from kvitto.cluster.handshake import Refused
from kvitto.cluster.register import MEMBERS_MAX, Document, NotAllowed, RegisterError, Unanswered
from kvitto.cluster.state import Member, epoch_of, new_id, read_following, read_history, read_member, write_member
from kvitto.server.etcd import Access, Etcd
from kvitto.store import paths
from kvitto.store.disk import RealDisk
from kvitto.store.store import refuse_foreign, refuse_inside

ETCD, CLUSTER = "KVITTO_ETCD", "KVITTO_CLUSTER"
ACCESS = (
    ("etcd-ca", "PEM", "authorities of an https etcd (default: $KVITTO_ETCD_CA, or those of this machine)"),
    ("etcd-cert", "PEM", "certificate that is shown to etcd (default: $KVITTO_ETCD_CERT)"),
    ("etcd-key", "PEM", "its key (default: $KVITTO_ETCD_KEY)"),
    ("etcd-user-file", "FILE", "file with USER:PASSWORD of etcd (default: $KVITTO_ETCD_USER_FILE)"),
)
REFUSED, USAGE, UNANSWERED = 1, 2, 3
MINIMUM = 2


def add_parser(commands: Any) -> None:
    text = "make a cluster of nodes that elect their leader by etcd, and look after it"
    parser = commands.add_parser("cluster", help="make and show a cluster", description=text)
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace, Etcd], None], text: str) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
        etcd = os.environ.get(ETCD, "http://127.0.0.1:2379")
        command.add_argument("--etcd", default=etcd, metavar="URL,...", help=f"(default: ${ETCD}, or {etcd})")
        cluster = os.environ.get(CLUSTER, "kvitto")
        command.add_argument("--cluster", default=cluster, metavar="NAME", help=f"(default: ${CLUSTER}, or {cluster})")
        for option, metavar, text in ACCESS:
            value = os.environ.get(variable(option.replace("-", "_")))
            command.add_argument(
                f"--{option}", type=Path, default=Path(value) if value else None, metavar=metavar, help=text
            )
        command.set_defaults(run=lambda args: answered(run, args))
        return command

    init = add("init", begin, "make a cluster whose first node is this directory; the others begin with empty ones")
    init.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="a broker's directory, or a new one")
    text = f"confirm what so many nodes have synced, the leader among them (default: {MINIMUM})"
    init.add_argument("--min-in-sync", type=int, default=MINIMUM, metavar="N", help=text)
    text = "do nothing if there is a cluster of this name, for a start without people"
    init.add_argument("--once", action="store_true", help=text)
    status = add("status", show, "show who leads, and who is in sync")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    force = add(
        "force", begin_again, "begin a cluster anew with this directory alone; what only other nodes have is lost"
    )
    force.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="the directory that has everything")
    text = f"as of init (default: what the document says, {MINIMUM} if it is gone)"
    force.add_argument("--min-in-sync", type=int, metavar="N", help=text)
    text = "begin although etcd names other nodes as in sync, and not this one"
    force.add_argument("--lose-the-rest", action="store_true", help=text)
    text = "start three nodes and an etcd on this machine, kill the leader while somebody publishes, and show what was lost"
    demo = actions.add_parser("demo", help=text, description=text)
    demo.add_argument("--kills", type=int, default=3, metavar="N", help="how often the leader is killed (default: 3)")
    demo.add_argument(
        "--program", default="etcd", metavar="PATH", help="the program etcd (default: the one in the path)"
    )
    demo.set_defaults(run=demonstration)


def answered(run: Callable[[argparse.Namespace, Etcd], None], args: argparse.Namespace) -> int:
    try:
        known = Access(args.etcd_ca, args.etcd_cert, args.etcd_key, args.etcd_user_file)
        run(args, Etcd(args.etcd.split(","), args.cluster, known))
    except ConfigError as error:
        return told(error, USAGE)
    except (NotAllowed, RegisterError, Refused, StoreError) as error:
        return told(error, REFUSED)
    except Unanswered as error:
        return told(error, UNANSWERED)
    return 0


def demonstration(args: argparse.Namespace) -> int:
    from kvitto.cli.cluster_demo import demonstrate  # the client is loaded for this alone

    try:
        if args.kills < 1:
            return told(ConfigError(f"--kills must be 1 or more, not {args.kills}"), USAGE)
        for number in (signal.SIGTERM, signal.SIGHUP):  # what it has started ends with it, as with Ctrl-C
            signal.signal(number, signal.default_int_handler)
        return demonstrate(args.kills, args.program, lambda text: print(text, flush=True))
    except Refused as error:
        return told(error, REFUSED)


def told(error: Exception, code: int) -> int:
    print(f"kvitto cluster: {printable(str(error))}", file=sys.stderr)
    return code


def begin(args: argparse.Namespace, register: Etcd) -> None:
    check_minimum(args.min_in_sync)
    seen = register.read()
    if seen.document is not None and args.once:
        print(f"there is a cluster {register.name}")
        return
    if seen.document is not None:
        raise Refused(f"there is a cluster {register.name} in etcd at {register.where} already: start its nodes")
    disk = directory(args.data_dir)
    with Locked(disk):
        if read_following(disk) is not None:
            raise Refused(
                f"{args.data_dir} follows a leader: begin with that one's directory, or promote this one first"
            )
        own = read_member(disk)
        if own is not None and own.name != register.name:
            raise Refused(
                f"{args.data_dir} belongs to the cluster {own.name}: say --cluster {own.name}, or `kvitto promote` takes it out of it"
            )
        if own is not None:
            raise Refused(
                f"{args.data_dir} belongs to a cluster already, whose document is gone: `kvitto cluster force` writes it anew"
            )
        member = Member(new_id(), seen.identity, register.name)
        epoch = epoch_of(read_history(disk))  # it is above 0 if the directory was taken out of another cluster
        document = Document(member.cluster, epoch, "", (member.member,), args.min_in_sync, levels.LEVEL)
        write_member(disk, member)  # before the document, which would name somebody who is not there
        try:
            made = register.create(document)
        except Unanswered as error:
            found = register.read().document
            if found is None:
                raise Refused(
                    f"{error}; the cluster may still be made: look with `kvitto cluster status`; if it is not there after a minute, "
                    f"`kvitto cluster force --data-dir {args.data_dir}` makes it"
                ) from None
            made = found == document
        if not made:
            disk.unlink(paths.MEMBER)
            raise Refused(f"somebody else has just made a cluster {register.name}")
    print(f"cluster {register.name} is made; its first node is {args.data_dir} (member {member.member[:8]})")
    print("start it, and the others with empty directories: kvitto serve --data-dir DIR --etcd ... --cluster-key FILE")
    if args.min_in_sync > 1:
        print(f"nothing is confirmed before {args.min_in_sync} nodes are in sync")


def check_minimum(minimum: int | None) -> None:
    if minimum is not None and not 1 <= minimum <= MEMBERS_MAX:
        raise ConfigError(f"--min-in-sync must be 1 to {MEMBERS_MAX}, not {minimum}")


def begin_again(args: argparse.Namespace, register: Etcd) -> None:
    check_minimum(args.min_in_sync)
    seen = register.read()
    if not args.data_dir.is_dir():
        raise Refused(f"there is no directory {args.data_dir}")
    disk = directory(args.data_dir)
    with Locked(disk):
        member, following = read_member(disk), read_following(disk)
        if member is None:
            raise Refused(f"{args.data_dir} belongs to no cluster: `kvitto cluster init` makes one")
        if following is not None and not following.complete:
            raise Refused(f"{args.data_dir} is not complete: it is partly an older directory and partly the leader's")
        if member.name != register.name:
            raise Refused(f"{args.data_dir} belongs to the cluster {member.name}: say --cluster {member.name}")
        if seen.seat is not None:
            raise Refused(f"{seen.seat.member[:8]} leads at {seen.seat.address}: stop all nodes first")
        before = seen.document
        if before is not None and before.cluster != member.cluster:
            raise Refused(
                f"cluster {register.name} in etcd at {register.where} is another one than {args.data_dir} knows"
            )
        known = epoch_of(read_history(disk))
        # an etcd that was restored or set back may name nodes that lack messages, and says nothing against this one
        is_older = member.register != seen.identity or (before is not None and before.epoch < known)
        current = None if is_older else before
        if current is not None and member.member not in current.members and not args.lose_the_rest:
            others = ", ".join(each[:8] for each in current.members)
            raise Refused(
                f"{args.data_dir} (member {member.member[:8]}) was not in sync, and may lack what was confirmed: {others} "
                "had everything. Say this with the directory of one of them; only if they are lost for good, add --lose-the-rest"
            )
        epoch = max(known, before.epoch if before is not None else 0)
        minimum = args.min_in_sync or (before.minimum if before is not None else MINIMUM)
        level = before.level if before is not None else levels.LEVEL
        document = Document(member.cluster, epoch, "", (member.member,), minimum, level)
        made = register.create(document) if before is None else register.change(document, seen.version) is not None
        if not made:
            raise Refused("the document was changed meanwhile: stop all nodes first")
        write_member(disk, Member(member.cluster, seen.identity, member.name, member.member))
    print(f"cluster {register.name} begins anew with {args.data_dir}: start it, and the others with empty directories")
    print(f"it is at level {level}")
    if following is not None and following.damage:
        print(f"some of its files are damaged, and what was in there is lost: {following.damage}")
    if minimum > 1:
        print(f"nothing is confirmed before {minimum} nodes are in sync")


def show(args: argparse.Namespace, register: Etcd) -> None:
    seen = register.read()
    document, seat = seen.document, seen.seat
    if document is None:
        raise Refused(
            f"there is no cluster {register.name} in etcd at {register.where}: `kvitto cluster init` makes it, or, if there was one "
            "before etcd was lost, `kvitto cluster force`"
        )
    if args.json:
        print(json.dumps({**asdict(document), "seat": asdict(seat) if seat is not None else None}))
        return
    leader = f"{seat.member[:8]} at {seat.address}, clients at {seat.clients}" if seat is not None else "nobody"
    print(f"cluster   {register.name} ({document.cluster[:8]}), epoch {document.epoch}")
    print(f"leader    {leader}")
    if seat is not None and seat.since_ms:
        print(
            f"since     {datetime.fromtimestamp(seat.since_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC: {printable(seat.why)}"
        )
    print(f"in sync   {len(document.members)}: {', '.join(member[:8] for member in document.members)}")
    print(f"minimum   {document.minimum}")
    print(f"level     {document.level}")


def directory(path: Path) -> RealDisk:
    disk = RealDisk(str(path))
    refuse_inside(disk)
    disk.makedirs("")
    refuse_foreign(disk)
    return disk


class Locked:
    """Nobody else uses a directory meanwhile."""

    def __init__(self, disk: RealDisk) -> None:
        self._disk = disk

    def __enter__(self) -> None:
        self._lock = self._disk.lock(paths.LOCK)

    def __exit__(self, *_: object) -> None:
        close = getattr(self._lock, "close", None)
        if close is not None:
            close()
