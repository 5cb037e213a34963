"""The arguments of `kvitto torture`. The command line calls `add_parser`; `run` takes the parsed arguments."""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from kvitto.client.uri import parse_uri
from kvitto.torture import cluster, disks, etcd, load, network, plan, rabbits
from kvitto.torture.nodes import Command, Kvitto, Node, RabbitMQ, rabbitmq_script
from kvitto.torture.report import as_json, as_text
from kvitto.torture.run import Run, Wanted, say

CYCLES = 100
LEAST_NODES = 3
NOT_OF_NODES = (plan.KILL_START,)
SOAK_FAULTS = (plan.STOP, plan.CUT, plan.HALF_OPEN)
"""Faults that a process survives, because memory is watched from its start to its end."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "torture",
        help="kill, freeze and disconnect a broker under load, and check its promises",
        description="Kill, freeze and disconnect a broker under load, again and again, and check its promises: docs/torture.md. "
        "The default is Kvitto on a directory of its own. Exit code 0 means that it kept all promises.",
    )
    flag = parser.add_argument
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rabbitmq", action="store_true", help="the installed RabbitMQ, as a separate node")
    which.add_argument(
        "--start", metavar="COMMAND", help="any broker: the command that runs it in the foreground, with --uri"
    )
    flag(
        "--nodes",
        type=positive,
        metavar="N",
        help="a cluster of N nodes of Kvitto, with an etcd (Debian: etcd-server); with --rabbitmq one of RabbitMQ, with "
        "quorum queues",
    )
    flag("--uri", help="where that broker will be; its queues torture.* are emptied")
    flag(
        "--faults",
        type=faults,
        metavar="KIND,...",
        help=f"of {', '.join(plan.FAULTS)}; with --nodes {', '.join(plan.OF_NODES)} too; none (default: "
        f"{','.join(plan.DEFAULT)}; --publishes: none; --soak: {','.join(SOAK_FAULTS)}; --nodes: all of a cluster that are "
        "possible here). In a cluster of Kvitto the short ones also hit while another fault lasts",
    )
    flag(
        "--cycles",
        type=positive,
        metavar="N",
        help=f"faults, with those that hit while another one lasts ({CYCLES}, if nothing else limits the run)",
    )
    flag("--seconds", type=float, default=0.0, metavar="S", help="no more faults after S seconds")
    flag(
        "--publishes",
        type=positive,
        default=0,
        metavar="N",
        help="end when N messages were published with confirms",
    )
    flag(
        "--soak",
        type=float,
        default=0.0,
        metavar="S",
        help="run for S seconds, and watch the broker's memory, files and disk",
    )
    flag(
        "--queue-type", choices=load.QUEUE_TYPES, default="", help="x-queue-type of all queues (default: the broker's)"
    )
    flag("--seed", type=int, help="repeat the plan of an earlier run (default: a new one)")
    flag(
        "--place",
        type=Path,
        metavar="DIR",
        help="directory for the broker's data, kept (default: a temporary one, kept on failure)",
    )
    flag("--report", type=Path, metavar="FILE", help="write the report as JSON too")
    # its name before --json got one meaning in all commands, JSON on stdout
    flag("--json", type=Path, dest="report", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def faults(text: str) -> tuple[str, ...]:
    """The value of an argument that lists kinds of faults."""
    kinds = tuple(kind for kind in text.split(",") if kind and kind != "none")
    known = (*plan.FAULTS, *plan.OF_NODES)
    unknown = [kind for kind in kinds if kind not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: known are {', '.join(known)}, none")
    return kinds


def positive(text: str) -> int:
    """The value of an argument that is a number from 1 on."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a number from 1 on, not {text}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    problem = impossible(args)
    if problem:
        print(f"kvitto torture: {problem}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that no broker keeps running
    wanted = wanted_of(args)
    if needs_apart(args, wanted.faults):
        network.set_apart()  # before there is any thread
    place = args.place or Path(tempfile.mkdtemp(prefix="kvitto-torture-"))
    try:
        node = node_of(args, place, wanted.faults)
    except OSError as error:
        print(f"kvitto torture: {place} cannot be made ready: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    say(f"{node.name} in {place}, faults {', '.join(wanted.faults) or 'none'}, seed {wanted.seed}")
    doing = Run(node, wanted, again(args, wanted), say)
    outcome = doing.go()
    passed = outcome.passed(doing.oracle)
    if args.place or not (passed or outcome.untouched(doing.oracle)):
        outcome.place = str(place)
    else:
        shutil.rmtree(place, ignore_errors=True)
    if args.report:
        args.report.write_text(json.dumps(as_json(outcome, doing.oracle), indent=1) + "\n")
    print(as_text(outcome, doing.oracle))
    return 130 if outcome.interrupted and not outcome.judged else 0 if passed else 1


def impossible(args: argparse.Namespace) -> str:
    """Return what is wrong with this combination of arguments; "" if nothing is."""
    if (args.start is None) != (args.uri is None):
        return "--start and --uri belong together: the command that runs the broker, and where it will be"
    if args.uri:
        try:
            if parse_uri(args.uri).tls:
                return "--uri has to be amqp://; TLS connections do not pass the harness's proxy"
        except ValueError as error:
            return str(error)
    if args.rabbitmq and rabbitmq_script() is None:
        return "RabbitMQ is not installed"
    if args.nodes and args.start:
        return "--nodes is for Kvitto and RabbitMQ only"
    if args.nodes and args.nodes < LEAST_NODES:
        return f"--nodes has to be at least {LEAST_NODES}: two have to be left when one is killed"
    if args.nodes and not args.rabbitmq and (why := cluster.refusal()):
        return why
    single = [kind for kind in args.faults or () if kind in (plan.OF_NODES if not args.nodes else NOT_OF_NODES)]
    if single:
        return f"{', '.join(single)} {'is' if len(single) == 1 else 'are'} for {'one broker' if args.nodes else '--nodes'} only"
    if args.rabbitmq and (
        not_there := [kind for kind in args.faults or () if kind in plan.OF_NODES and kind not in plan.OF_RABBITMQ]
    ):
        return f"{', '.join(not_there)} {'is' if len(not_there) == 1 else 'are'} for nodes of Kvitto only"
    for kinds, why in refusals().items() if args.nodes else ():
        if why and (asked := [kind for kind in args.faults or () if kind in kinds]):
            return f"{', '.join(asked)}: {why}"
    if args.report and not args.report.resolve().parent.is_dir():
        return f"there is no directory for {args.report}"
    return "" if args.place is None else unfit(args.place)


def unfit(place: Path) -> str:
    """Return why a broker's data cannot be put there; "" if it can. This makes the directory."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            return f"--place {place} is not empty"
    except OSError as error:
        return f"--place {place}: {error.strerror}"
    return "" if os.access(place, os.W_OK | os.X_OK) else f"--place {place}: not writable"


def wanted_of(args: argparse.Namespace) -> Wanted:
    chosen = args.faults
    if chosen is None:
        usual = plan.default_of_nodes(possible(args)) if args.nodes else plan.DEFAULT
        chosen = SOAK_FAULTS if args.soak else () if args.publishes else usual
    seconds = args.soak or args.seconds
    limited = seconds or args.publishes
    cycles = args.cycles or (0 if limited or not chosen else CYCLES)
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    if not limited and not cycles:
        seconds = 60.0
    queue_type = args.queue_type or (load.QUORUM if args.nodes and args.rabbitmq else "")
    return Wanted(chosen, seed, cycles, seconds, args.publishes, bool(args.soak), queue_type)


def refusals() -> dict[tuple[str, ...], str]:
    """Return for each sort of faults of a cluster why it cannot be had here; "" if it can."""
    links = network.refusal()
    return {plan.OF_LINKS: links, plan.OF_DISKS: links or disks.refusal(), (plan.ETCD_RESTORE,): etcd.restore_refusal()}


def needs_apart(args: argparse.Namespace, faults: tuple[str, ...]) -> bool:
    """Return whether these faults need a network and mounts of the torture's own."""
    return bool(args.nodes and set(faults) & {*plan.OF_LINKS, *plan.OF_DISKS})


def possible(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the faults of a cluster that can be had here, and say which cannot."""
    found: tuple[str, ...] = plan.OF_RABBITMQ if args.rabbitmq else plan.OF_NODES
    for kinds, why in refusals().items():
        if why and (without := [kind for kind in found if kind in kinds]):
            say(f"without {', '.join(without)}: {why}")
            found = tuple(kind for kind in found if kind not in kinds)
    return found


def node_of(args: argparse.Namespace, place: Path, faults: tuple[str, ...]) -> Node:
    if args.nodes:
        apart, small = needs_apart(args, faults), bool(set(faults) & set(plan.OF_DISKS))
        links = network.Network(cluster.hosts_of(args.nodes)) if apart else None
        if args.rabbitmq:
            return rabbits.RabbitCluster(place, args.nodes, links)
        copies = {plan.ETCD_RESTORE: etcd.EtcdServer.save, plan.ETCD_ROLLBACK: etcd.EtcdServer.keep}
        needed = tuple(copy for kind, copy in copies.items() if kind in faults)
        return cluster.KvittoCluster(place, args.nodes, network=links, small_disks=small, copies=needed)
    if args.rabbitmq:
        return RabbitMQ(place)
    return Command(place, args.start, args.uri) if args.start else Kvitto(place)


def again(args: argparse.Namespace, wanted: Wanted) -> str:
    """Return the command that repeats the plan."""
    words = ["kvitto", "torture", f"--seed={wanted.seed}", f"--faults={','.join(wanted.faults) or 'none'}"]
    words += ["--rabbitmq"] if args.rabbitmq else []
    words += [f"--nodes={args.nodes}"] if args.nodes else []
    words += [f"--queue-type={wanted.queue_type}"] if wanted.queue_type else []
    words += [f"--start={args.start}", f"--uri={args.uri}"] if args.start else []
    words += [f"--cycles={wanted.cycles}"] if wanted.cycles else []
    words += [f"--publishes={wanted.publishes}"] if wanted.publishes else []
    seconds = f"{wanted.seconds:g}"
    words += [f"--soak={seconds}" if wanted.soak else f"--seconds={seconds}"] if wanted.seconds else []
    return " ".join(map(shlex.quote, words))
