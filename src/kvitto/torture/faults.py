"""The faults of a cluster (`plan.OF_NODES`): what is done to its processes, links, disks and etcd. `run.py` calls them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvitto.torture import plan
from kvitto.torture.cluster import Cluster, KvittoCluster, Member
from kvitto.torture.etcd import HOST as ETCD
from kvitto.torture.network import Network
from kvitto.torture.nodes import BrokerFailed, Node

if TYPE_CHECKING:
    from kvitto.torture.run import Run


def follower_kill(run: Run, fault: plan.Fault) -> None:
    node = cluster_of(run).follower(random.Random(fault.seed))
    node.kill()
    node.begin()


def meanwhile(run: Run, fault: plan.Meanwhile) -> None:
    """Make a short fault while another one lasts. It always hits a node, so that the plan alone says how many faults there are.

    Perhaps no node serves clients before the lasting fault is over, because followers are cut off or etcd stands still."""
    cluster, rng = kvitto_of(run), random.Random(fault.seed)
    cluster.revive()
    in_order = fault.kind == plan.RESTART
    if fault.kind == plan.ALL_KILL:
        nodes = list(cluster.nodes)
    else:
        nodes = [cluster.victim(rng, leads=fault.kind != plan.FOLLOWER_KILL, awake=in_order)]
    if cluster.leader in nodes:
        run.down()
    for node in nodes:
        cluster.take(node, in_order)
    if fault.at_once:
        cluster.revive()


def follower_stop(run: Run, fault: plan.Fault) -> None:
    node = cluster_of(run).follower(random.Random(fault.seed))
    node.pause()
    last(run, fault, node.resume)


def all_kill(run: Run, fault: plan.Fault) -> None:
    run.down()
    cluster_of(run).kill_all()
    run.recovered()


def etcd_stop(run: Run, fault: plan.Fault) -> None:
    etcd = kvitto_of(run).etcd
    etcd.pause()
    last(run, fault, etcd.resume)


def etcd_kill(run: Run, fault: plan.Fault) -> None:
    etcd = kvitto_of(run).etcd
    etcd.kill()
    last(run, fault, etcd.begin)


def etcd_wipe(run: Run, fault: plan.Fault) -> None:
    etcd_lost(run, fault, kvitto_of(run).etcd.wipe)


def etcd_restore(run: Run, fault: plan.Fault) -> None:
    etcd_lost(run, fault, kvitto_of(run).etcd.restore)


def etcd_rollback(run: Run, fault: plan.Fault) -> None:
    """All nodes are in sync first: one that has not heard of the present epoch cannot know that etcd was set back (docs/cluster.md)."""
    cluster = kvitto_of(run)
    run.down()
    cluster.kill()
    run.recovered()
    cluster.wait_in_sync()
    etcd_lost(run, fault, cluster.etcd.roll_back)


def etcd_lost(run: Run, fault: plan.Fault, lose: Callable[[], None]) -> None:
    """Put another etcd in the place of the one that the nodes know. No other node may begin to lead by it, and none at all if all nodes are
    started again. Then an operator begins the cluster anew."""
    cluster = kvitto_of(run)
    cluster.may_end = True
    lose()
    began = time.monotonic()
    run.endure(fault)
    if others := cluster.others_since(began):
        raise BrokerFailed(f"leads by an etcd that is not the one that it was: {', '.join(others)}")
    run.down()
    if fault.reset:
        cluster.restart_refused()
    cluster.begin_anew()
    run.recovered()


def links(apart: Callable[[Cluster, Network, random.Random], None]) -> Callable[[Run, plan.Fault], None]:
    """Return the fault of which `apart` is the beginning."""

    def fault_of_links(run: Run, fault: plan.Fault) -> None:
        cluster = cluster_of(run)
        assert cluster.network is not None
        apart(cluster, cluster.network, random.Random(fault.seed))
        last(run, fault, cluster.network.heal)

    return fault_of_links


def cut_followers(cluster: Cluster, network: Network, rng: random.Random) -> None:
    network.cut([leader_host(cluster)], follower_hosts(cluster))


def cut_etcd(cluster: Cluster, network: Network, rng: random.Random) -> None:
    network.cut([leader_host(cluster)], [ETCD])


def cut_nodes(cluster: Cluster, network: Network, rng: random.Random) -> None:
    network.cut([leader_host(cluster)], [ETCD, *follower_hosts(cluster)])


def etcd_cut(cluster: Cluster, network: Network, rng: random.Random) -> None:
    network.cut([ETCD], [leader_host(cluster), *follower_hosts(cluster)])


def follower_cut(cluster: Cluster, network: Network, rng: random.Random) -> None:
    host = cluster.host(cluster.follower(rng))
    others = [ETCD] if ETCD in network.hosts else []
    others += [cluster.host(node) for node in cluster.nodes if cluster.host(node) != host]
    network.cut([host], others)


def leader_mute(cluster: Cluster, network: Network, rng: random.Random) -> None:
    network.cut([leader_host(cluster)], some(follower_hosts(cluster), rng), both=False)


def leader_deaf(cluster: Cluster, network: Network, rng: random.Random) -> None:
    network.cut(some(follower_hosts(cluster), rng), [leader_host(cluster)], both=False)


def slow(cluster: Cluster, network: Network, rng: random.Random) -> None:
    for host in some([leader_host(cluster), *follower_hosts(cluster)], rng):
        network.slow(host)


def leader_full(run: Run, fault: plan.Fault) -> None:
    full(run, fault, kvitto_of(run).leader)


def follower_full(run: Run, fault: plan.Fault) -> None:
    full(run, fault, kvitto_of(run).follower(random.Random(fault.seed)))


def full(run: Run, fault: plan.Fault, node: Node) -> None:
    assert isinstance(node, Member) and node.disk is not None
    disk = node.disk
    disk.fill()
    last(run, fault, disk.free)


def last(run: Run, fault: plan.Fault, mend: Callable[[], None]) -> None:
    """Let a fault last as long as it is planned, and mend it then, also if the torture is interrupted. Then have the clients look for the
    leader: it may be another one, or have given up meanwhile."""
    try:
        run.endure(fault)
    finally:
        mend()
    run.down()
    run.start()


def some(hosts: list[str], rng: random.Random) -> list[str]:
    """Return one of them, or all."""
    return hosts if rng.random() < 0.5 else [rng.choice(hosts)]


def leader_host(cluster: Cluster) -> str:
    return cluster.host(cluster.leader)


def follower_hosts(cluster: Cluster) -> list[str]:
    return [cluster.host(node) for node in cluster.followers]


def cluster_of(run: Run) -> Cluster:
    assert isinstance(run.node, Cluster)
    return run.node


def kvitto_of(run: Run) -> KvittoCluster:
    assert isinstance(run.node, KvittoCluster)
    return run.node


OF_NODES: dict[str, Callable[[Run, plan.Fault], None]] = {
    plan.FOLLOWER_KILL: follower_kill,
    plan.FOLLOWER_STOP: follower_stop,
    plan.ALL_KILL: all_kill,
    plan.ETCD_STOP: etcd_stop,
    plan.ETCD_KILL: etcd_kill,
    plan.ETCD_WIPE: etcd_wipe,
    plan.ETCD_RESTORE: etcd_restore,
    plan.ETCD_ROLLBACK: etcd_rollback,
    plan.CUT_FOLLOWERS: links(cut_followers),
    plan.CUT_ETCD: links(cut_etcd),
    plan.CUT_NODES: links(cut_nodes),
    plan.ETCD_CUT: links(etcd_cut),
    plan.FOLLOWER_CUT: links(follower_cut),
    plan.LEADER_MUTE: links(leader_mute),
    plan.LEADER_DEAF: links(leader_deaf),
    plan.SLOW: links(slow),
    plan.LEADER_FULL: leader_full,
    plan.FOLLOWER_FULL: follower_full,
}
