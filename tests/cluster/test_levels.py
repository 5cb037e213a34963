"""A cluster is updated node by node, and writes what is new only when all nodes can read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvitto.cluster import levels
from kvitto.cluster.handshake import Refused
from kvitto.cluster.membership import Membership
from kvitto.cluster.register import Document, RegisterError, Seen, decoded
from tests.cli.process import kvitto as command
from tests.cluster.nodes import Cluster, Node, lines
from tests.cluster.pairs import Pair
from tests.support.etcd import FakeEtcd
from tests.support.wait import wait_until

OLD, NEW = "kvitto.cli.main", "tests.cluster.newer"
DOCUMENT = Document("c", 3, "A", ("A", "B"), 2)


def test_a_document_of_a_known_level_is_read_and_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoded(DOCUMENT.encoded()) == DOCUMENT
    newer = Document("c", 3, "A", ("A", "B"), 2, 2)
    with pytest.raises(RegisterError, match=r"the cluster is at level 2, and this Kvitto knows 1: update it"):
        decoded(newer.encoded())
    monkeypatch.setattr(levels, "LEVEL", 2)
    assert decoded(newer.encoded()) == newer and decoded(DOCUMENT.encoded()) == DOCUMENT
    for wrong in (0, -1, "1", None, 1.0):
        with pytest.raises(RegisterError, match="cannot be read"):
            decoded(json.dumps({**json.loads(DOCUMENT.encoded()), "level": wrong}))


def test_the_register_is_asked_for_a_level_until_it_has_it() -> None:
    membership = Membership("A", DOCUMENT, 7)
    assert membership.propose([], []) is None
    membership.level = 2
    asked = membership.propose([], [])
    assert asked == Document("c", 3, "A", ("A", "B"), 2, 2)
    membership.not_changed(None)
    assert membership.propose([], []) == asked
    membership.not_changed(Seen("r", asked, 8, None))
    assert membership.document == asked, "the first request has been granted, and its answer was lost"
    membership.propose([], [])
    membership.changed(9)
    lost = membership.propose(["C"], [])
    assert lost is not None and lost.level == 2


def test_a_follower_that_does_not_know_the_level_is_refused() -> None:
    pair = Pair()
    pair.leading.leader.level = lambda: levels.LEVEL + 1
    with pytest.raises(
        Refused, match=r"what is written here has level 2, and the follower knows 1: update the follower"
    ):
        pair.pump()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    etcd = FakeEtcd()
    found = Cluster(tmp_path, etcd)
    yield found
    found.end()
    etcd.stop()


def change(cluster: Cluster, node: Node, program: str) -> None:
    """Stop a node in order, and start it with another Kvitto."""
    assert node.stop() == 0
    cluster.wait_in_sync(2)
    node.program = program
    node.start()
    cluster.wait_in_sync(3)


def test_nodes_are_updated_one_after_another_while_clients_publish(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()
    uri = f"http://127.0.0.1:{leader.http}"

    def level() -> int:
        document = cluster.register.read().document
        assert document is not None
        return document.level

    with cluster.publisher() as publisher:
        publisher.more(100)
        done = command("ctl", "--uri", uri, "cluster_upgrade")
        assert done.returncode == 0 and "at level 1, the highest that its nodes know" in done.stdout, done
        for node in [*(node for node in cluster.nodes if node is not leader), leader]:
            change(cluster, node, NEW)
            publisher.more(100)
        assert level() == 1, "nobody has said that it may be raised"
        new = cluster.wait_for_leader()
        others = [node for node in cluster.nodes if node is not new]
        change(cluster, others[0], OLD)
        uri = f"http://127.0.0.1:{new.http}"
        done = command("ctl", "--uri", uri, "cluster_upgrade")
        assert done.returncode == 1 and "knows level 1, this one 2: update it first" in done.stderr, done
        for node in others:
            assert node.stop() == 0
        done = command("ctl", "--uri", uri, "cluster_upgrade")
        assert done.returncode == 1 and "is away, so it is not known whether it has been updated" in done.stderr, done
        for node in others:
            node.program = NEW
            node.start()
        said: list[str] = []

        def accepted() -> bool:
            said.append(command("ctl", "--uri", uri, "cluster_upgrade").stdout)
            return bool(said[-1])

        wait_until(accepted, what="all nodes are back")
        assert "goes from level 1 to 2" in said[-1]
        wait_until(lambda: lines(new, "the cluster is at level 2"), what="the level is raised")
        publisher.more(100)
    shown = command("ctl", "--uri", uri, "--json", "cluster_status")
    assert json.loads(shown.stdout)["cluster"]["level"] == 2
    assert [node["level"] for node in json.loads(shown.stdout)["cluster"]["nodes"]] == [2, 2, 2]
    assert others[0].stop() == 0
    others[0].program = OLD
    others[0].start()
    assert others[0].process.wait() == 1
    assert "the cluster is at level 2, and this Kvitto knows 1: update it" in others[0].log()
    new.connect().close()
