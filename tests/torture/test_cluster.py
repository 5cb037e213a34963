"""`kvitto torture --nodes`: it passes a cluster that keeps its promises, and finds out one that does not."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import kvitto
from kvitto.client import ChannelClosed
from kvitto.torture import cli, disks, etcd, faults, load, network, plan, rabbits
from kvitto.torture.cluster import Cluster, KvittoCluster, Member
from kvitto.torture.nodes import Node
from kvitto.torture.oracle import NEVER, Journal, Terms
from kvitto.torture.run import DOES, Run, Stuck, Wanted
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


@needs_etcd
@pytest.mark.timeout(600)
def test_a_cluster_keeps_its_promises_when_faults_overlap(tmp_path: Path) -> None:
    """A node, and then etcd, stands still, while others are killed. The seed is one of short faults."""
    faults = (plan.STOP, plan.FOLLOWER_STOP, plan.ETCD_STOP, plan.ETCD_KILL, plan.KILL, plan.FOLLOWER_KILL)
    run = torture(KvittoCluster(tmp_path, 3), Wanted((*faults, plan.ALL_KILL, plan.RESTART), 2420, cycles=6))
    assert run.outcome.passed(run.oracle), (run.outcome.broke, run.outcome.failures(run.oracle))
    once = (plan.STOP, plan.ETCD_STOP, plan.RESTART, plan.ALL_KILL, plan.KILL, plan.FOLLOWER_KILL)
    assert run.outcome.cycles == dict.fromkeys(once, 1) and run.outcome.meanwhile == 4


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
    # either may be found first: each has confirmed what was published after the client of the other one had connected
    assert samples and all(text.startswith(("publisher p: up to ", "publisher q: up to ")) for text in samples)


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


def led_by_one_of_two(place: Path) -> tuple[Undecided, Run]:
    """A cluster whose first node leads, and a run whose load has been sent there."""
    cluster = Undecided(place, [Named(place / name) for name in ("one", "other")], None)
    run = Run(cluster, Wanted((), 1), "", lambda text: None)
    cluster.now = cluster.nodes[0]
    assert cluster.look() and cluster.uri == cluster.nodes[0].uri
    run._aim()
    return cluster, run


def test_the_load_follows_a_leader_that_gives_up_when_the_fault_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease had not been renewed in time. The run waited for two minutes, and broke off."""
    monkeypatch.setattr("kvitto.torture.run.LOOK_S", 0.0)
    cluster, run = led_by_one_of_two(tmp_path)
    cluster.now = cluster.nodes[1]
    run._alive()
    assert run.target.uri.startswith("amqp://other/") and cluster.leader is cluster.nodes[1]
    cluster.now = None
    run._alive()
    assert run.target.uri.startswith("amqp://other/"), "as long as nobody leads the load tries the last one"
    run.journal.close()


def test_the_load_goes_on_when_a_node_leads_while_a_fault_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader was killed: nobody has to serve clients before the other fault is over, and somebody may."""
    monkeypatch.setattr("kvitto.torture.run.LOOK_S", 0.0)
    cluster, run = led_by_one_of_two(tmp_path)
    run.down()
    cluster.now = None
    run._alive()
    assert not run.target.up.is_set()
    for node in (cluster.nodes[0], cluster.nodes[1]):
        cluster.now = node
        assert cluster.look()  # as a fault does that chooses its node
        run._alive()
        assert run.target.up.is_set() and run.target.uri.startswith(node.uri)
    run.journal.close()


class Asleep(Member):
    """A process that is no broker, so that it is quick."""

    def begin(self) -> None:
        self._process = self._spawn(["sleep", "600"], {})
        self.pid, self.leads_since = self._process.pid, 0.0


@pytest.fixture
def asleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KvittoCluster]:
    """A cluster in which nobody leads."""
    monkeypatch.setattr("kvitto.torture.cluster.Member", Asleep)
    cluster = KvittoCluster(tmp_path, 3)
    for node in cluster.nodes:
        node.begin()
    yield cluster
    cluster.close()


def test_a_fault_meanwhile_hits_a_node_that_it_can_hit(asleep: KvittoCluster) -> None:
    one, other, third = asleep.nodes
    asleep._leader = one
    rng = random.Random(1)
    assert {asleep.victim(rng, leads=True, awake=False) for _ in range(20)} == {one}
    assert {asleep.victim(rng, leads=False, awake=False) for _ in range(20)} == {other, third}
    one.pause()
    assert asleep.victim(rng, leads=True, awake=False) is one
    assert {asleep.victim(rng, leads=True, awake=True) for _ in range(20)} == {other, third}
    assert asleep.take(other) == 0 and not other.running
    assert {asleep.victim(rng, leads=False, awake=False) for _ in range(20)} == {third}
    assert asleep.ended == "", "it was killed"
    assert asleep.take(one) == 0 and not one.paused
    asleep.revive()
    assert one.running and other.running
    one.resume()  # the end of the fault that it stood still for
    assert one.running and asleep.ended == ""


def test_a_node_that_has_ended_by_itself_is_found_while_a_fault_lasts(
    asleep: KvittoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill of it, or of all nodes, would hide that."""
    run = Run(asleep, Wanted((), 1), "", lambda text: None)
    asleep._leader = node = asleep.nodes[0]
    os.kill(node.pid, signal.SIGKILL)
    assert wait_until(lambda: not node.running)
    fault = plan.Fault(0, plan.ETCD_STOP, 0.0, 0.0, False, False, 1, (plan.Meanwhile(plan.ALL_KILL, 0.0, True, 1),))
    with pytest.raises(Stuck, match="ended by itself"):
        run.endure(fault)
    assert run.outcome.meanwhile == 0
    run.journal.close()


def test_clients_that_wait_in_vain_are_found_although_deliveries_come_again(
    asleep: KvittoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishers were blocked for good, and so were the consumers, which publish as well. Their deliveries came each minute."""
    monkeypatch.setattr("kvitto.torture.run.MOVE_S", 0.05)
    run = Run(asleep, Wanted((), 1), "", lambda text: None)

    class Blocked:
        clients = (SimpleNamespace(moves=3),)

        @property
        def quiet(self) -> bool:
            delivered.append(1)
            return False

        def drain_idle(self, _drains: bool) -> None:
            pass

    delivered: list[int] = []
    monkeypatch.setattr(type(run.oracle), "delivered", property(lambda _oracle: len(delivered)))
    run.load = Blocked()  # type: ignore[assignment]
    with pytest.raises(Stuck, match="clients only wait for their promises"):
        run._judge()
    run.journal.close()


def test_an_interrupt_while_all_nodes_are_down_is_mended(
    asleep: KvittoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were killed while etcd stood still, and were to start again when that was over."""
    run = Run(asleep, Wanted((), 1), "", lambda text: None)
    asleep._leader = asleep.nodes[0]

    def interrupted(fault: plan.Fault) -> None:
        faults.meanwhile(run, fault.meanwhile[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "endure", interrupted)
    monkeypatch.setattr(asleep.etcd, "begin", lambda: None)
    others = (plan.Meanwhile(plan.ALL_KILL, 0.0, False, 1),)
    with pytest.raises(KeyboardInterrupt):
        faults.etcd_stop(run, plan.Fault(0, plan.ETCD_STOP, 0.0, 0.0, False, False, 1, others))
    assert not any(node.running for node in asleep.nodes) and not run.target.up.is_set() and asleep.ended == ""
    asleep.mend()
    assert all(node.running for node in asleep.nodes)
    run.journal.close()


def test_a_node_that_ends_because_its_disk_is_full_is_found_out(asleep: KvittoCluster) -> None:
    """It has to let others lead, and to go on when there is room."""
    node = asleep.nodes[0]
    os.kill(node.pid, signal.SIGKILL)
    assert wait_until(lambda: not node.running)
    node.log.write_text("kvitto: cannot write 1: No space left on device (free some space on this file system)\n")
    assert "the node has ended" in asleep.ended and "No space left on device" in asleep.ended


def test_a_node_that_leads_after_another_one_is_no_finding() -> None:
    terms = Terms()
    terms.confirmed("old", 1.0)
    assert not terms.deposed("new", 2.0), "the old one has confirmed nothing since the connection was made"
    terms.confirmed("new", 3.0)
    assert terms.deposed("old", 0.5) and not terms.deposed("old", 3.5) and not terms.deposed("new", 2.0)


def test_what_a_node_passes_on_says_nothing_of_that_node(tmp_path: Path) -> None:
    """A deposed leader that follows passes its clients on: the new one was taken for deposed, since the old one seemed to confirm."""
    journal = Journal(tmp_path / "journal")
    work = load.Load(journal, load.Target())
    leads = {"old": False, "new": True}
    terms = work.oracle.terms = Terms(leads.__getitem__)
    publisher = work.publishers[0]
    publisher.uri = "old"
    for at, led in ((1.0, False), (2.0, True)):
        publisher.bursts.append(load.Burst(int(at), at, led, deposed=True))
        publisher._confirmed_bursts(int(at))
        assert terms.deposed("new", 0.5) == led and bool(work.oracle.findings["two epochs"]) == led
    journal.close()


def test_a_commit_that_finds_no_room_is_no_finding_if_disks_are_filled(tmp_path: Path) -> None:
    """And nothing of the transaction may arrive."""
    journal, told = Journal(tmp_path / "journal"), "the transaction was not committed: the disk is full, or ..."

    class Full:
        """A channel of a broker without room."""

        closed = None

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None

        def tx_commit(self) -> None:
            raise ChannelClosed(406, told)

    work = load.Load(journal, load.Target())
    [client] = work.transactors
    with pytest.raises(ChannelClosed) as raised:
        client.talk(Full())  # type: ignore[arg-type]
    assert load.no_room(raised.value) and not load.no_room(ChannelClosed(404, told))
    assert not load.no_room(ChannelClosed(406, "another reason"))
    assert client.flow.next == load.GROUP and client.flow.marks == bytes([NEVER]) * load.GROUP
    journal.close()


def test_short_faults_hit_while_another_one_lasts() -> None:
    kinds = plan.default_of_nodes(plan.OF_NODES)
    faults = [plan.fault(1, k, kinds, nodes=True, overlap=True) for k in range(1000)]
    assert faults == [plan.fault(1, k, kinds, nodes=True, overlap=True) for k in range(1000)]
    alone = [plan.fault(1, k, kinds, nodes=True) for k in range(1000)]
    assert [replace(fault, meanwhile=()) for fault in faults] == alone, "nothing else is different"
    assert {other.kind for fault in faults for other in fault.meanwhile} == set(plan.SHORT)
    assert {fault.kind for fault in faults if fault.meanwhile} == set(plan.LASTING)
    counts = [len(fault.meanwhile) for fault in faults if fault.kind in plan.LASTING]
    assert set(counts) == set(range(plan.MEANWHILE + 1)) and 1.2 < sum(counts) / len(counts) < 1.8
    for fault in faults:
        moments = [other.at for other in fault.meanwhile]
        assert moments == sorted(moments) and all(0 <= at < 1 for at in moments)
        assert [len(fault.within(most).meanwhile) for most in (1, 2, 9)] == [0, min(len(moments), 1), len(moments)]
    only = [plan.fault(1, k, (plan.SLOW, plan.RESTART), nodes=True, overlap=True) for k in range(100)]
    assert {other.kind for fault in only for other in fault.meanwhile} == {plan.RESTART}
    none = [plan.fault(1, k, (plan.SLOW, plan.STOP), nodes=True, overlap=True) for k in range(100)]
    assert not any(fault.meanwhile for fault in none)


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
