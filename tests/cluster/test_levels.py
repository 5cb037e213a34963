"""A cluster is updated node by node, and writes what is new only when all nodes can read it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
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
LEVEL, NEXT = levels.LEVEL, levels.LEVEL + 1
DOCUMENT = Document("c", 3, "A", ("A", "B"), 2, LEVEL)


def test_a_document_of_a_known_level_is_read_and_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoded(DOCUMENT.encoded()) == DOCUMENT
    newer = replace(DOCUMENT, level=NEXT)
    with pytest.raises(
        RegisterError, match=f"the cluster is at level {NEXT}, and this Kvitto knows {LEVEL}: update it"
    ):
        decoded(newer.encoded())
    monkeypatch.setattr(levels, "LEVEL", NEXT)
    assert decoded(newer.encoded()) == newer and decoded(DOCUMENT.encoded()) == DOCUMENT
    for wrong in (0, -1, "1", None, 1.0, True):
        with pytest.raises(RegisterError, match="cannot be read"):
            decoded(json.dumps({**json.loads(DOCUMENT.encoded()), "level": wrong}))
    with pytest.raises(RegisterError, match="cannot be read"):
        decoded("[" * 100_000)


def test_the_register_is_asked_for_a_level_until_it_has_it() -> None:
    membership = Membership("A", DOCUMENT, 7)
    assert membership.propose([], []) is None
    membership.level = NEXT
    asked = membership.propose([], [])
    assert asked == replace(DOCUMENT, level=NEXT)
    membership.not_changed(None)
    assert membership.propose([], []) == asked
    membership.not_changed(Seen("r", asked, 8, None))
    assert membership.document == asked, "the first request has been granted, and its answer was lost"
    membership.propose([], [])
    membership.changed(9)
    lost = membership.propose(["C"], [])
    assert lost is not None and lost.level == NEXT


def test_a_follower_that_does_not_know_the_level_is_refused() -> None:
    pair = Pair()
    pair.leading.leader.level = lambda: NEXT
    with pytest.raises(Refused, match=f"has level {NEXT}, and the follower knows {LEVEL}: update the follower"):
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


def control(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    return command("ctl", "--uri", f"http://127.0.0.1:{node.http}", *words)


def test_nodes_are_updated_one_after_another_while_clients_publish(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()

    def says(text: str) -> None:
        """Ask for the upgrade until this is the answer: a connection of a node may have just broken, or begun."""

        def said() -> bool:
            done = control(cluster.wait_for_leader(), "cluster_upgrade")
            return text in done.stdout + done.stderr

        wait_until(said, what=text)

    def leads(node: Node) -> bool:
        """Have a node lead."""
        leader = cluster.wait_for_leader()
        if leader is not node:
            control(leader, "cluster_transfer", node.member)
        return leader is node

    with cluster.publisher() as publisher:
        publisher.more(100)
        says(f"the cluster is at level {LEVEL}, the highest that its nodes know")
        for node in [*(node for node in cluster.nodes if node is not leader), leader]:
            change(cluster, node, NEW)
            publisher.more(100)
        assert cluster.document().level == LEVEL, "nobody has said that it may be raised"
        new = cluster.wait_for_leader()
        others = [node for node in cluster.nodes if node is not new]
        change(cluster, others[0], OLD)
        says(f"knows level {LEVEL}, this one {NEXT}: update it first")
        wait_until(lambda: leads(others[0]), what="the old one leads")
        cluster.wait_in_sync(3)
        says(f"knows level {NEXT}, and this one {LEVEL}: have that one lead, and update this one")
        change(cluster, others[0], NEW)
        new = cluster.wait_for_leader()
        others = [node for node in cluster.nodes if node is not new]
        for node in others:
            assert node.stop() == 0
        says("is away, so it is not known whether it has been updated")
        for node in others:
            node.start()
        says(f"goes from level {LEVEL} to {NEXT}")
        wait_until(lambda: lines(new, f"the cluster is at level {NEXT}"), what="the leader says so")
        publisher.more(100)
    shown = json.loads(control(new, "--json", "cluster_status").stdout)["cluster"]
    assert shown["level"] == NEXT and all(node["level_max"] in (NEXT, None) for node in shown["nodes"])
    assert others[0].stop() == 0
    others[0].program = OLD
    others[0].start()
    assert others[0].process.wait() == 1
    assert f"the cluster is at level {NEXT}, and this Kvitto knows {LEVEL}: update it" in others[0].log()
    new.connect().close()
