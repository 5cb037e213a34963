"""/api/cluster, and the cluster's part of /api/nodes and of /metrics: who leads, who is in sync, and how far behind followers are.

The leader answers here. `server/front_http.py` answers for a node that does not lead, with the same forms (`cluster/standing.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from kvitto.base import process
from kvitto.base.build import compiled
from kvitto.base.version import __version__
from kvitto.cluster import levels, standing
from kvitto.cluster.register import Document, Seat
from kvitto.cluster.standing import LEADING, Standing
from kvitto.http import fields
from kvitto.http.access import Access
from kvitto.http.api import Api, Call
from kvitto.http.exposition import counter, gauge, head, labels, single
from kvitto.http.request import Problem, Response, answer, bad_request

AWAY = "away"
"""The state of a node that has followed this leader, or was in sync when it was elected, and is not connected."""


def tenure_of(api: Api) -> Any:
    """Return the time for which this node leads, None if it belongs to no cluster."""
    return api.host.followers.tenure if api.host.followers is not None else None


def needed_tenure(call: Call) -> Any:
    """Return the time for which this node leads. Raises an error with 400 if it belongs to no cluster."""
    tenure = tenure_of(call.api)
    if tenure is None:
        raise bad_request("this broker belongs to no cluster")
    return tenure


def cluster(call: Call) -> Response:
    tenure = tenure_of(call.api)
    if tenure is None:
        return answer(standing.alone(call.api.node, call.api.host.config.min_in_sync))
    document, seat = tenure.membership.document, tenure.seat
    name = call.api.host.config.cluster
    return answer(standing.shown(name, seat.member, document, seat, nodes(call.api)))


def nodes(api: Api) -> list[dict[str, Any]]:
    """Return what this leader knows of all nodes, in the order of their names."""
    followers, tenure = api.host.followers, tenure_of(api)
    document, seat = tenure.membership.document, tenure.seat
    found = {seat.member: leader(api, document, seat)}
    for link in followers.links:
        found[link.member] = standing.node(
            link.member,
            document,
            seat,
            state=link.state,
            since_ms=followers.since_ms(link),
            address=link.where,
            lag_bytes=link.lag_bytes,
            lag_ms=followers.lag_ms(link),
            free_bytes=link.free_bytes,
            level_max=link.level,
        )
    for member, since_ms in followers.away.items():
        if member not in found:
            found[member] = standing.node(member, document, seat, state=AWAY, since_ms=since_ms)
    return [found[member] for member in sorted(found)]


def leader(api: Api, document: Document, seat: Seat) -> dict[str, Any]:
    free = api.host.store.disk.free_bytes()
    known = {"state": LEADING, "since_ms": seat.since_ms, "address": seat.address}
    return standing.node(
        seat.member, document, seat, **known, lag_bytes=0, lag_ms=0, free_bytes=free, level_max=levels.LEVEL
    )


def other_nodes(api: Api) -> list[dict[str, Any]]:
    """Return the nodes beside this one in RabbitMQ's form. What they do not tell is left out, as RabbitMQ does with nodes that are down."""
    if tenure_of(api) is None:
        return []
    return [
        {
            "name": found["node"],
            "type": "disc",
            "running": found["state"] != AWAY,
            "being_drained": False,
            "partitions": [],
            **({"disk_free": found["free_bytes"]} if found["free_bytes"] else {}),
            "kvitto": {name: found[name] for name in ("member", "in_sync", "state", "since_ms", "lag_bytes", "lag_ms")},
        }
        for found in nodes(api)
        if not found["leads"]
    ]


# -- metrics ---------------------------------------------------------------------------------------------------------


def metrics(api: Api) -> Iterator[list[str]]:
    """Yield the groups of a leader, or of a broker with a warm standby."""
    followers, tenure = api.host.followers, tenure_of(api)
    if followers is None:
        return
    if tenure is not None:
        yield from of_cluster(tenure.membership.document, tenure.seat, True)
        taken = followers.passed.taken
        text = "Connections of clients that have come by way of other nodes."
        yield counter("kvitto_cluster_connections_taken_total", text, taken)
    links = {link.member: link for link in followers.links}
    lags = {member: (link.lag_bytes, followers.lag_ms(link)) for member, link in links.items()}
    name = "kvitto_follower_in_sync"
    yield [
        *head(
            name,
            "gauge",
            "1: the follower has everything that was confirmed. 0: it compares its files, or is far behind.",
        ),
        *(f"{name}{labels(member=member[:8])} {int(followers.is_in_sync(link))}" for member, link in links.items()),
    ]
    name = "kvitto_follower_lag_bytes"
    yield [
        *head(name, "gauge", "Bytes that a follower has not synced yet. Missing while it compares its files."),
        *(f"{name}{labels(member=m[:8])} {lag}" for m, (lag, _) in lags.items() if lag is not None),
    ]
    name = "kvitto_follower_lag_seconds"
    yield [
        *head(name, "gauge", "How old that is at most which a follower has not synced yet, to a quarter of a second."),
        *(f"{name}{labels(member=m[:8])} {lag / 1000}" for m, (_, lag) in lags.items() if lag is not None),
    ]


def of_cluster(document: Document | None, seat: Seat | None, leads: bool) -> Iterator[list[str]]:
    """Yield the groups that all nodes of a cluster have."""
    yield gauge("kvitto_cluster_is_leader", "1: this node leads its cluster. 0: it follows, or waits.", int(leads))
    if document is not None:
        yield gauge("kvitto_cluster_epoch", "How many elections there were.", document.epoch)
        yield gauge("kvitto_cluster_members", "Nodes in sync, the leader among them.", len(document.members))
        text = "How many nodes have to have synced what is confirmed."
        yield gauge("kvitto_cluster_members_min", text, document.minimum)
    if seat is not None and seat.since_ms:
        text = "When the leader was elected, Unix time."
        yield gauge("kvitto_cluster_last_failover_time_seconds", text, seat.since_ms / 1000)


def standing_metrics(
    found: Standing, connections: int, passed: int, refused: int, started_s: float
) -> Iterable[list[str]]:
    """Yield all groups of a node that does not lead.

    connections, passed, refused: how many connections are passed on now, were passed on, and could not be.
    """
    build = labels(version=__version__, compiled=str(compiled()).lower())
    yield single("kvitto_build_info", "gauge", "The version of Kvitto, and whether it is compiled.", 1, build)
    yield gauge("kvitto_uptime_seconds", "Seconds since this node started.", round(time.time() - started_s, 3))
    yield from of_cluster(found.document, found.seat, False)
    following = int(found.state == standing.FOLLOWING)
    yield gauge("kvitto_cluster_following", "1: this node gets all that the leader does. 0: it does not.", following)
    yield gauge("kvitto_cluster_connections_passed", "Connections that are passed on to the leader now.", connections)
    yield counter("kvitto_cluster_connections_passed_total", "Connections that were passed on to the leader.", passed)
    text = "Connections that could not be passed on, as nobody led, or there was no room."
    yield counter("kvitto_cluster_connections_refused_total", text, refused)
    yield from of_process(started_s)


def of_process(started_s: float) -> Iterator[list[str]]:
    yield gauge("process_resident_memory_bytes", "Resident memory.", process.resident_bytes())
    yield gauge("process_virtual_memory_bytes", "Virtual memory.", process.virtual_bytes())
    yield counter("process_cpu_seconds_total", "CPU time used, user and system.", round(process.cpu_seconds(), 3))
    yield gauge("process_open_fds", "Open files.", process.open_files())
    yield gauge("process_max_fds", "The limit of open files.", process.open_files_max())
    yield gauge("process_start_time_seconds", "Start time of the broker, Unix time.", started_s)


def transfer(call: Call) -> Response:
    """Have another node lead. It is accepted with 202: this node ends in order then, and follows."""
    tenure = needed_tenure(call)
    wanted = fields.text(call.request.json(), "to", "")
    ready = call.api.host.followers.in_sync & set(tenure.others())
    found = [member for member in sorted(ready) if wanted in ("", *names_of(member))]
    if wanted in names_of(me := tenure.membership.member):
        raise bad_request(f"node {me[:8]} leads already")
    if not found:
        names = ", ".join(member[:8] for member in sorted(ready)) or "none"
        raise bad_request(f"no {f'node {wanted!r}' if wanted else 'other node'} could lead now; in sync are: {names}")
    if why := tenure.why_no_election():
        raise Problem(503, "no_election", f"nobody could be elected now, and this node leads on: {why}")
    call.api.host.hand_over(found[0] if wanted else "")
    return answer({"to": found[0] if wanted else None}, status=202)


def remove(call: Call) -> Response:
    """Forget a node that is away. If it comes back all the same, it is accepted like any other node."""
    tenure = needed_tenure(call)
    followers, wanted = call.api.host.followers, fields.text(call.request.json(), "node")
    if wanted in names_of(me := tenure.membership.member):
        raise bad_request(f"node {me[:8]} leads: have another node lead, and stop it first")
    if here := called(wanted, (link.member for link in followers.links)):
        raise bad_request(f"node {here[:8]} is here, and would come back: stop it first")
    if member := called(wanted, tenure.membership.waits.union(tenure.others())):
        raise bad_request(
            f"node {member[:8]} still is a member, until enough others have everything and etcd has taken note of that: try again"
        )
    removed = called(wanted, followers.away)
    if not removed:
        away = ", ".join(member[:8] for member in sorted(followers.away)) or "none"
        raise bad_request(f"no node {wanted!r} is away; away are: {away}")
    del followers.away[removed]
    return answer({"removed": removed})


def called(name: str, members: Iterable[str]) -> str:
    """Return which of these members people call by this name, "" if none of them."""
    return next((member for member in members if name in names_of(member)), "")


def names_of(member: str) -> tuple[str, str, str]:
    """Return the names by which people may call a node."""
    return member, member[:8], standing.node_name(member)


def upgrade(call: Call) -> Response:
    """Raise the cluster's level to the highest that this node knows, if all nodes know it. It is accepted with 202: etcd is asked."""
    tenure = needed_tenure(call)
    followers, membership = call.api.host.followers, tenure.membership
    known = {link.member: link.level for link in followers.links}
    if away := sorted(membership.waits.union(tenure.others(), followers.away) - known.keys()):
        raise bad_request(
            f"node {away[0][:8]} is away, so it is not known whether it has been updated: start it, or say `kvitto ctl cluster_remove "
            f"{away[0][:8]}` if it is lost for good"
        )
    if old := sorted(member for member, level in known.items() if level < levels.LEVEL):
        raise bad_request(f"node {old[0][:8]} knows level {known[old[0]]}, this one {levels.LEVEL}: update it first")
    if newer := sorted(member for member, level in known.items() if level > levels.LEVEL):
        raise bad_request(
            f"node {newer[0][:8]} knows level {known[newer[0]]}, and this one {levels.LEVEL}: have that one lead, and update this one"
        )
    before, membership.level = membership.document.level, levels.LEVEL
    return answer({"before": before, "level": levels.LEVEL}, status=202)


ROUTES = (
    ("GET", "/api/cluster", Access.MONITORING, cluster),
    ("POST", "/api/cluster/transfer", Access.ADMINISTRATOR, transfer),
    ("POST", "/api/cluster/remove", Access.ADMINISTRATOR, remove),
    ("POST", "/api/cluster/upgrade", Access.ADMINISTRATOR, upgrade),
)
