"""`kvitto torture --nodes`: it passes a cluster that keeps its promises, and finds out one that does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvitto.torture import plan
from kvitto.torture.cluster import KvittoCluster
from kvitto.torture.run import Run, Wanted
from tests.cli.process import kvitto

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


def test_faults_of_nodes_need_nodes() -> None:
    result = kvitto("torture", "--faults", "all-kill", "--cycles", "1")
    assert result.returncode == 2 and "all-kill is for --nodes only" in result.stderr
