"""The commands of `kvitto ctl` that look at the broker as a whole, and the few that set something of it while it runs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from kvitto.base.log import LEVELS
from kvitto.base.table import printable, table
from kvitto.cli.lists import LISTS, Shown, listing
from kvitto.cli.management import REFUSED, UNREACHABLE, USAGE, Failure, Management

STARTUP_S = 300.0
PAUSE_S = 0.1
HIDDEN = "(shown to monitoring and administrator)"
CHECKS = {
    "check_running": (("is-in-service",), "exit code 0 if the broker runs and has opened its virtual hosts"),
    "check_port_listener": (("port-listener", "port"), "exit code 0 if the broker listens on this port"),
    "check_protocol_listener": (
        ("protocol-listener", "protocol"),
        "exit code 0 if the broker listens for this protocol: amqp, amqps, http",
    ),
    "check_certificate_expiration": (
        ("certificate-expiration", "within", "unit"),
        "exit code 1 if the certificate for TLS expires within so many days, weeks, months or years",
    ),
}
"""Command -> the last parts of the path, of which all but the first are arguments; help text."""
NODE = ("node", "state", "in_sync", "lag_bytes", "lag_ms", "level_max", "address")


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    add("status", status, "version, address and state of the broker")
    add("ping", ping, "exit code 0 if the broker answers within 5 s, with alarms too; needs no login")
    sub = add("await_startup", await_startup, "wait until the broker answers")
    sub.add_argument(
        "--timeout", type=float, default=STARTUP_S, metavar="S", help=f"give up after S seconds ({STARTUP_S:g})"
    )
    add("alarms", alarms, "current alarms; exit code 1 if there are any")
    for name, (path, text) in CHECKS.items():
        add(name, check(*path), text, *path[1:])
    add("environment", environment, "all settings of the broker, and where each comes from")
    add(
        "cluster_status",
        cluster_status,
        "name, version, listeners and alarms of the node, and the nodes of its cluster",
    )
    sub = add("cluster_transfer", cluster_transfer, "have another node of the cluster lead; nothing is flagged then")
    sub.add_argument("node", nargs="?", default="", metavar="NODE", help="which one (default: whichever is first)")
    sub = add("cluster_remove", cluster_remove, "forget a node of the cluster that is away and will not come back")
    sub.add_argument("node", metavar="NODE", help="which one")
    text = "have the cluster use what its nodes know, once all of them have been updated"
    add("cluster_upgrade", cluster_upgrade, text)
    add("report", report, "status, alarms, settings and all lists, for whoever helps")
    sub = add("set_log_level", set_log_level, "change what the broker logs, until it stops")
    sub.add_argument("level", choices=LEVELS, metavar="LEVEL", help=", ".join(LEVELS))
    sub = add("set_log_format", set_log_format, "change the form of log lines, until the broker stops")
    sub.add_argument("format", choices=("text", "json"), metavar="FORMAT", help="text or json")
    add("set_cluster_name", set_cluster_name, "give the broker a name that monitoring shows", "name")


def status(api: Management, _args: argparse.Namespace) -> Shown:
    overview = api.get("overview")
    kvitto, totals, messages = overview["kvitto"], overview["object_totals"], overview["queue_totals"]
    listeners = [f"{item['protocol']} {item['ip_address']}:{item['port']}" for item in overview["listeners"]]
    objects = f"{totals['connections']} with {totals['channels']} channels and {totals['consumers']} consumers"
    rows = [
        ("version", f"Kvitto {kvitto['version']}{'' if kvitto['compiled'] else ', interpreted (slow)'}"),
        ("process", f"{kvitto.get('pid', HIDDEN)}, up for {kvitto['uptime_ms'] // 1000} s"),
        ("data directory", kvitto.get("data_dir", HIDDEN)),
        ("sync", "on" if kvitto["sync"] else "OFF: confirms do not wait for the disk"),
        ("log", f"{kvitto['log_level']} and above, as {'JSON' if kvitto['log_json'] else 'text'}"),
        ("listeners", listeners or HIDDEN),
        ("connections", objects),
        ("queues", totals["queues"]),
        ("messages", f"{messages['messages_ready']} ready, {messages['messages_unacknowledged']} unacked"),
        ("alarms", kvitto["alarms"] or "none"),
    ]
    return overview, "\n".join(table(("", ""), rows).splitlines()[1:]), 0


def ping(api: Management, _args: argparse.Namespace) -> Shown:
    well = api.ping()
    text = f"the broker at {api.where} answers{'' if well else ', and reports alarms'}"
    return {"answers": True, "alarms": not well}, text, 0


def await_startup(api: Management, args: argparse.Namespace) -> Shown:
    end = time.monotonic() + args.timeout
    while True:
        try:
            return ping(api, args)
        except Failure as failure:
            if failure.code != UNREACHABLE:
                raise
            if time.monotonic() + PAUSE_S >= end:
                raise Failure(UNREACHABLE, f"after {args.timeout:g} s {failure}") from None
        time.sleep(PAUSE_S)


def alarms(api: Management, _args: argparse.Namespace) -> Shown:
    found = api.get("health", "checks", "alarms", accept=(503,)).get("alarms", [])
    texts = [item["alarm"] for item in found]
    return texts, "\n".join(map(printable, texts)) or "no alarms", REFUSED if texts else 0


def check(name: str, *arguments: str) -> Callable[[Management, argparse.Namespace], Shown]:
    def run(api: Management, args: argparse.Namespace) -> Shown:
        path = (name, *(getattr(args, argument) for argument in arguments))
        answer = api.get("health", "checks", *path, accept=(503,))
        failed = answer["status"] != "ok"
        return answer, f"failed: {answer['reason']}" if failed else "passed", REFUSED if failed else 0

    return run


def environment(api: Management, _args: argparse.Namespace) -> Shown:
    found: list[dict[str, Any]] = api.get("settings")
    rows = [(item["name"], "none" if item["value"] is None else item["value"], item["from"]) for item in found]
    return found, table(("setting", "value", "from"), rows), 0


def cluster_status(api: Management, _args: argparse.Namespace) -> Shown:
    overview, (texts, told, _) = api.get("overview"), alarms(api, _args)
    listeners = [f"{item['protocol']} {item['ip_address']}:{item['port']}" for item in overview["listeners"]]
    cluster = overview["kvitto"].get("cluster")
    nodes = cluster["nodes"] if cluster is not None else []
    found = {
        "cluster_name": overview["cluster_name"],
        "running_nodes": [node["node"] for node in nodes if node["state"] != "away"] or [overview["node"]],
        "version": overview["kvitto"]["version"],
        "listeners": listeners,
        "alarms": texts,
    }
    rows = [*found.items()][:-1] + ([("level", cluster["level"])] if cluster is not None else [])
    lines = table(("", ""), rows).splitlines()[1:]
    if cluster is not None:
        found["cluster"] = cluster
        shown = [[shown_of(node, name) for name in NODE] for node in nodes]
        lines += ["", *table(tuple(name.replace("_", " ") for name in NODE), shown).splitlines(), ""]
    return found, "\n".join([*lines, told]), 0


def cluster_transfer(api: Management, args: argparse.Namespace) -> str:
    found = api.post("cluster", "transfer", body={"to": args.node})
    return f"{found['to'][:8] if found['to'] else 'another node'} is to lead; `kvitto ctl cluster_status` says when it does"


def cluster_remove(api: Management, args: argparse.Namespace) -> str:
    found = api.post("cluster", "remove", body={"node": args.node})
    return f"{found['removed'][:8]} is removed"


def cluster_upgrade(api: Management, _args: argparse.Namespace) -> str:
    found = api.post("cluster", "upgrade", body={})
    if found["before"] == found["level"]:
        return f"the cluster is at level {found['level']}, the highest that its nodes know"
    return f"the cluster goes from level {found['before']} to {found['level']}; `kvitto ctl cluster_status` says when it is there"


def shown_of(node: dict[str, Any], name: str) -> Any:
    """Return a value of a node for people."""
    value = node[name]
    return "unknown" if value is None else ("yes" if value else "no") if isinstance(value, bool) else value


def report(api: Management, args: argparse.Namespace) -> Shown:
    """Return everything in sections. A part that this user may not see says so, and the others follow."""
    parts: dict[str, Callable[[Management, argparse.Namespace], Shown]] = {
        "status": status,
        "alarms": alarms,
        "environment": environment,
        **{name: listing(path, columns) for name, (path, columns, _) in LISTS.items()},
    }
    args.columns = ()
    values, texts = {}, []
    for name, command in parts.items():
        try:
            value, text, _ = command(api, args)
        except Failure as failure:
            if failure.code == UNREACHABLE:
                raise
            value, text = {"error": str(failure)}, printable(str(failure))
        values[name] = _without_hashes(value)
        texts.append(f"{name}\n{'-' * len(name)}\n{text}\n")
    return values, "\n".join(texts), 0


def _without_hashes(value: Any) -> Any:
    """Return a list without the hashes of passwords, which nobody needs who helps."""
    if not isinstance(value, list):
        return value
    return [
        {k: v for k, v in item.items() if k != "password_hash"} if isinstance(item, dict) else item for item in value
    ]


def set_log_level(api: Management, args: argparse.Namespace) -> str:
    api.put("settings", "log", body={"level": args.level})
    return f"the broker logs {args.level} and above, until it stops"


def set_log_format(api: Management, args: argparse.Namespace) -> str:
    api.put("settings", "log", body={"json": args.format == "json"})
    return f"the broker logs {args.format}, until it stops"


def set_cluster_name(api: Management, args: argparse.Namespace) -> str:
    if not args.name:
        raise Failure(USAGE, "the name is empty")
    api.put("cluster-name", body={"name": args.name})
    return f"the broker is called '{args.name}'"
