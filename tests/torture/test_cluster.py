"""`kvitto torture --nodes`: it passes a cluster that keeps its promises, and finds out one that does not."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import kvitto
from kvitto.torture import cli, disks, etcd, load, network, plan, rabbits
from kvitto.torture.cluster import Cluster, KvittoCluster
from kvitto.torture.nodes import Node
from kvitto.torture.oracle import Journal, Terms
from kvitto.torture.run import DOES, Run, Wanted
from tests.cli.process import KVITTO
from tests.cli.process import kvitto as command
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow

needs_etcd = pytest.mark.skipif(shutil.which("etcd") is None, reason="needs Debian's etcd-server")


def torture(node: KvittoCluster, wanted: Wanted) -> Run:
    run = Run(node, wanted, "", lambda text: None)
    run.go()
    return run


@needs_etcd
@pytest.mark.timeout(600)
def test_a_cluster_keeps_its_promises(tmp_path: Path) -> None:
    faults = (plan.KILL, plan.FOLLOWER_KILL, plan.ALL_KILL, plan.RESTART)
    run = torture(KvittoCluster(tmp_path, 3), Wanted(faults, 5, cycles=4))
    assert run.outcome.passed(run.oracle), (run.outcome.broke, run.outcome.failures(run.oracle))


class Forgetful(KvittoCluster):
    """All nodes lose their messages with every kill. If one had them still the others would leave the lead to that one."""

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
            for path in node.data.glob("queues/*/0*.*"):
                path.unlink()
        for node in self.nodes:
            node.begin()


@needs_etcd
@pytest.mark.timeout(600)
def test_a_cluster_that_forgets_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvitto.torture.run.LATE_S", 0.5)
    run = torture(Forgetful(tmp_path, 3), Wanted((plan.KILL,), 1, cycles=1))
    assert run.oracle.findings["lost"] > 0


APART = network.refusal() or disks.refusal()


def tortured(place: Path, *words: str) -> dict[str, object]:
    """Run the command, and return its report. It has to pass."""
    report = place / "report.json"
    done = subprocess.run(
        [*KVITTO, "torture", "--nodes", "3", "--place", str(place / "place"), "--report", str(report), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(report.read_text())
    return found


@needs_etcd
@pytest.mark.skipif(APART != "", reason=APART)
@pytest.mark.timeout(600)
def test_a_cluster_survives_partitions_and_a_full_disk(tmp_path: Path) -> None:
    found = tortured(tmp_path, "--faults", "cut-nodes,leader-mute,follower-full", "--cycles", "3", "--seed", "45")
    assert found["cycles"] == {"cut-nodes": 1, "follower-full": 1, "leader-mute": 1}


@needs_etcd
@pytest.mark.skipif(etcd.restore_refusal() != "", reason=etcd.restore_refusal())
@pytest.mark.timeout(600)
def test_a_cluster_survives_an_etcd_that_was_lost_or_set_back(tmp_path: Path) -> None:
    faults = "etcd-wipe,etcd-restore,etcd-rollback,etcd-kill"
    found = tortured(tmp_path, "--faults", faults, "--cycles", "4", "--seed", "158")
    assert found["cycles"] == {"etcd-kill": 1, "etcd-restore": 1, "etcd-rollback": 1, "etcd-wipe": 1}


def test_two_nodes_that_both_confirm_are_found(tmp_path: Path) -> None:
    """R1: here they are two brokers that know nothing of each other."""
    journal = Journal(tmp_path / "journal")
    with kvitto.Broker() as old, kvitto.Broker() as new:
        target = load.Target()
        work = load.Load(journal, target)
        work.oracle.terms = Terms()
        for broker in (old, new):
            load.declare(broker.url)
        target.uri = old.url
        target.up.set()
        stays, leaves = work.publishers
        for publisher in work.publishers:
            publisher.behind = lambda: 0  # nobody consumes, and it has to go on publishing
            publisher.start()
        assert wait_until(lambda: stays.moves > 0 and leaves.moves > 0)
        assert work.oracle.findings["two epochs"] == 0
        target.uri = new.url
        leaves.leave()
        assert wait_until(lambda: work.oracle.findings["two epochs"] > 0)
        target.ended.set()
        work.join()
    journal.close()
    samples = work.oracle.findings.samples["two epochs"]
    assert any(text.startswith("publisher p: up to ") for text in samples)


class Named(Node):
    """A node that is not even started."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.uri = f"amqp://{place.name}/?heartbeat=0"


class Undecided(Cluster):
    """Says who leads without asking anybody."""

    now: Node | None = None

    def _serving(self) -> Node | None:
        return self.now


def test_the_load_follows_a_leader_that_gives_up_when_the_fault_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease had not been renewed in time. The run waited for two minutes, and broke off."""
    monkeypatch.setattr("kvitto.torture.run.LOOK_S", 0.0)
    cluster = Undecided(tmp_path, [Named(tmp_path / name) for name in ("one", "other")], None)
    run = Run(cluster, Wanted((), 1), "", lambda text: None)
    cluster.now = cluster.nodes[0]
    assert cluster.look() and cluster.uri == cluster.nodes[0].uri
    run._aim()
    cluster.now = cluster.nodes[1]
    run._alive()
    assert run.target.uri.startswith("amqp://other/") and cluster.leader is cluster.nodes[1]
    cluster.now = None
    run._alive()
    assert run.target.uri.startswith("amqp://other/"), "as long as nobody leads the load tries the last one"
    run.journal.close()


def test_a_node_that_leads_after_another_one_is_no_finding() -> None:
    terms = Terms()
    terms.confirmed("old", 1.0)
    assert not terms.deposed("new", 2.0), "the old one has confirmed nothing since the connection was made"
    terms.confirmed("new", 3.0)
    assert terms.deposed("old", 0.5) and not terms.deposed("old", 3.5) and not terms.deposed("new", 2.0)


def test_each_fault_of_nodes_is_known_and_lasts_as_long_as_it_should() -> None:
    assert set(plan.OF_NODES) | set(plan.FAULTS) == set(DOES)
    kinds = plan.default_of_nodes(plan.OF_NODES)
    faults = [plan.fault(1, k, kinds, nodes=True) for k in range(3000)]
    assert faults == [plan.fault(1, k, kinds, nodes=True) for k in range(3000)]
    assert set(Counter(fault.kind for fault in faults)) == set(kinds)
    for sort, (least, most) in ((plan.OF_LINKS, plan.APART_S), (plan.OF_DISKS, plan.FULL_S)):
        lasts = [fault.lasts_s for fault in faults if fault.kind in sort]
        assert least <= min(lasts) and 0.9 * most < max(lasts) <= most
    assert max(fault.lasts_s for fault in faults if fault.kind == plan.STOP) > 20


def test_short_faults_come_while_others_last() -> None:
    kinds = plan.default_of_nodes(plan.OF_NODES)
    faults = [plan.fault(1, k, kinds, nodes=True, overlap=True) for k in range(3000)]
    assert faults == [plan.fault(1, k, kinds, nodes=True, overlap=True) for k in range(3000)]
    assert [replace(fault, meanwhile=()) for fault in faults] == [
        plan.fault(1, k, kinds, nodes=True) for k in range(3000)
    ]
    lasting = [fault for fault in faults if fault.kind in plan.LASTING]
    assert {len(fault.meanwhile) for fault in lasting} == set(plan.MEANWHILE)
    assert {fault.kind for fault in faults if fault.meanwhile} == set(plan.LASTING)
    assert {other.kind for fault in faults for other in fault.meanwhile} == set(plan.OF_A_MOMENT)
    assert all(0 <= other.part <= 1 for fault in faults for other in fault.meanwhile)
    assert not plan.fault(1, 0, (plan.SLOW,), nodes=True, overlap=True).meanwhile, "kills are not wanted"


def test_faults_of_nodes_need_nodes() -> None:
    result = command("torture", "--faults", "all-kill", "--cycles", "1")
    assert result.returncode == 2 and "all-kill is for --nodes only" in result.stderr


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    return parser.parse_args(["torture", "--nodes", "3", *words])


def test_what_cannot_be_had_here_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(network, "refusal", lambda: "network namespaces need root")
    monkeypatch.setattr(etcd, "restore_refusal", lambda: "etcdctl is not installed")
    wanted = cli.wanted_of(arguments())
    assert not {*plan.OF_LINKS, *plan.OF_DISKS, plan.ETCD_RESTORE} & set(wanted.faults)
    assert {plan.ETCD_WIPE, plan.ALL_KILL, plan.STOP} < set(wanted.faults)
    said = capsys.readouterr().err
    assert "without cut-followers, cut-etcd" in said and "need root" in said and "etcdctl" in said
    asked = arguments("--faults", "kill,slow")
    assert cli.impossible(asked) in ("slow: network namespaces need root", etcd.INSTALL_ETCD)
    assert not cli.needs_apart(asked, (plan.KILL,)) and cli.needs_apart(asked, (plan.SLOW,))


def test_nodes_of_rabbitmq_have_the_faults_that_need_no_etcd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "rabbitmq_script", lambda: "rabbitmq-server")
    asked = arguments("--rabbitmq", "--faults", "kill,etcd-wipe")
    assert cli.impossible(asked) == "etcd-wipe is for nodes of Kvitto only"
    wanted = cli.wanted_of(arguments("--rabbitmq", "--faults", "kill"))
    assert wanted.queue_type == load.QUORUM
    assert "etcd" not in " ".join(cli.possible(arguments("--rabbitmq")))
    assert "only" in cli.impossible(arguments("--start", "x", "--uri", "amqp://h"))


def test_nodes_of_rabbitmq_know_each_other(tmp_path: Path) -> None:
    cluster = rabbits.RabbitCluster(tmp_path, 3)
    names = [node.member for node in cluster.nodes]
    assert len(set(names)) == 3 and len({node.port for node in cluster.nodes}) == 3
    for node in cluster.nodes:
        settings, environment = node._settings(), node._environment()
        assert [line.rpartition(" ")[2] for line in settings if "classic_config.nodes" in line] == names
        assert "cluster_partition_handling = pause_minority" in settings
        assert environment["RABBITMQ_NODENAME"] == node.member and environment["HOME"] == str(node.place)
    assert len({(node.place / ".erlang.cookie").read_text() for node in cluster.nodes}) == 1
    assert len({node.epmd_port for node in cluster.nodes}) == 1
