"""Nodes of a cluster as processes: their leader is killed, stopped and cut off, and nothing that was confirmed is lost (R1 to R9)."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from kvitto.cli.candidate import FULL_S
from kvitto.client import Connection, Properties
from kvitto.client.errors import AMQPError
from kvitto.torture.proxy import Proxy
from tests.cli.process import kvitto as command
from tests.cluster.nodes import Cluster, Node, lines, numbers, port
from tests.cluster.roomless import IS_ELECTED, STARTS
from tests.crash.serve import STOP_S
from tests.http.api import Http
from tests.support.etcd import FakeEtcd, RealEtcd, real_etcd
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow

NO_ROOM = "this node does not try to lead for some seconds, because it had no room when it tried last"
Etcds = FakeEtcd | RealEtcd


@pytest.fixture(params=["fake", "real"])
def etcd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Etcds]:
    if request.param == "real" and real_etcd() is None:
        pytest.skip("needs Debian's etcd-server")
    found: Etcds = FakeEtcd() if request.param == "fake" else RealEtcd(tmp_path)
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def cluster(tmp_path: Path, etcd: Etcds) -> Iterator[Cluster]:
    found = Cluster(tmp_path, etcd)
    try:
        yield found
    finally:
        found.end()


def check(cluster: Cluster, confirmed: list[int]) -> None:
    """All that was confirmed is there, once."""
    found = numbers(cluster.wait_for_leader())
    missing = set(confirmed) - set(found)
    assert not missing, f"confirmed and not there: {sorted(missing)[:5]} of {len(missing)}"
    assert len(found) == len(set(found)) and found == sorted(found)
    for node in cluster.nodes:
        assert "Traceback" not in node.log(), node.log()


def test_whoever_is_elected_has_everything_that_was_confirmed(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    with cluster.publisher() as publisher:
        for _ in range(3):
            publisher.more(300)
            leader = cluster.wait_for_leader()
            leader.kill()
            publisher.more(300)
            leader.start()
            cluster.wait_in_sync(3)
    check(cluster, publisher.confirmed)


def test_a_killed_leader_is_followed_at_once_and_others_need_not_compare_their_files(cluster: Cluster) -> None:
    """Its listener refuses connections, so nobody waits for its lease.

    The kill may come when the latest record was sent to one follower only, and that one has to compare then. But not each time.
    """
    with cluster.publisher() as publisher:
        for _ in range(4):
            cluster.wait_in_sync(3)
            publisher.more(100)
            leader = cluster.wait_for_leader()
            others = [node for node in cluster.nodes if node is not leader]
            before = sum(len(lines(node, "comparing files with")) for node in others)
            leader.kill()
            publisher.more(100)
            compared = sum(len(lines(node, "comparing files with")) for node in others) - before
            if not compared:
                break
            leader.start()
    assert not compared
    check(cluster, publisher.confirmed)


def test_a_leader_that_stands_still_is_replaced_and_follows_when_it_goes_on(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    with cluster.publisher() as publisher:
        publisher.more(100)
        leader = cluster.wait_for_leader()
        leader.signal(signal.SIGSTOP)
        cluster.wait_for_leader(other=leader)
        leader.signal(signal.SIGCONT)
        publisher.more(100)
        cluster.wait_in_sync(3)
    assert lines(leader, "this node leads no more: .*")
    check(cluster, publisher.confirmed)


def test_a_follower_that_dies_is_removed_and_comes_back(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    with cluster.publisher() as publisher:
        publisher.more(100)
        leader = cluster.wait_for_leader()
        follower = next(node for node in cluster.nodes if node is not leader)
        follower.kill()
        cluster.wait_in_sync(2)
        publisher.more(100)
        follower.start()
        cluster.wait_in_sync(3)
    check(cluster, publisher.confirmed)


def test_with_too_few_nodes_nothing_is_confirmed(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    with cluster.publisher() as publisher:
        publisher.more(100)
        leader = cluster.wait_for_leader()
        for node in cluster.nodes:
            if node is not leader:
                node.kill()
        wait_until(lambda: bool(lines(leader, "publishers are blocked: low on nodes: 1 in sync")), what="blocked")
        for node in cluster.nodes:
            if node is not leader:
                node.start()
        publisher.more(100)
        cluster.wait_in_sync(3)
    check(cluster, publisher.confirmed)


def test_a_node_that_was_elected_and_waits_for_others_says_that_it_is_alive(cluster: Cluster) -> None:
    """Its broker does not listen yet. Whoever runs containers would take it for dead, and end it."""
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()
    cluster.kill_all()
    before = len(lines(leader, "elected: this node leads"))
    leader.start()
    http = Http(f"http://127.0.0.1:{leader.http}")
    wait_until(lambda: len(lines(leader, "elected: this node leads")) > before, what="it is elected")
    assert http.call("GET", "/healthz/live").status == 200
    assert http.call("GET", "/healthz/ready").status == 503
    with pytest.raises((AMQPError, OSError)):
        leader.connect()
    for node in cluster.nodes:
        if node is not leader:
            node.start()
    assert cluster.wait_for_leader() is leader
    assert http.call("GET", "/healthz/leader").status == 200


def test_a_leader_that_no_follower_reaches_gives_its_seat_up(cluster: Cluster) -> None:
    """An operator has mistyped its address, as a network between some of the nodes may be cut: nothing could be confirmed."""
    cluster.wait_in_sync(3)
    with cluster.publisher() as publisher:
        publisher.more(100)
        mistaken = cluster.wait_for_leader()
        mistaken.kill()
        publisher.more(100)
        mistaken.options = [*mistaken.options, "--advertise", f"127.0.0.1:{port()}"]
        mistaken.start()
        cluster.wait_in_sync(3)
        leader = cluster.wait_for_leader()
        uri = f"http://127.0.0.1:{leader.http}"
        assert command("ctl", "--uri", uri, "cluster_transfer", mistaken.member).returncode == 0
        wait_until(lambda: bool(lines(mistaken, "elected: this node leads")), what="it is elected")
        assert cluster.wait_for_leader() is not mistaken
        publisher.more(100)
        cluster.wait_in_sync(3)
    check(cluster, publisher.confirmed)


def test_all_nodes_are_killed_at_once(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    with cluster.publisher() as publisher:
        publisher.more(200)
        cluster.kill_all()
        for node in reversed(cluster.nodes):
            node.start()
        publisher.more(200)
    check(cluster, publisher.confirmed)


def test_a_node_with_little_room_leaves_the_lead_to_others(tmp_path: Path) -> None:
    def own(node: Node) -> Sequence[str]:
        return ["--disk-free-limit", "1000000GB"] if node.name == "two" else []

    etcd = FakeEtcd()
    cluster = Cluster(tmp_path, etcd, own=own)
    one, two, three = cluster.nodes
    try:
        cluster.wait_in_sync(3)
        for leader, other in ((one, three), (three, one)):
            assert cluster.wait_for_leader() is leader
            leader.kill()
            assert cluster.wait_for_leader() is other
            leader.start()
            cluster.wait_in_sync(3)
        for node in (one, three):
            node.kill()
        wait_until(lambda: lines(two, "elected: this node leads"), what="it leads if nobody else does")
    finally:
        cluster.end()
        etcd.stop()


def test_a_comparison_that_takes_long_deposes_nobody(tmp_path: Path) -> None:
    """While a node reads its files it hears nothing, and while it waits for the leader it says nothing."""
    etcd = FakeEtcd()
    cluster = Cluster(tmp_path, etcd, program="tests.cluster.slow")
    try:
        cluster.wait_in_sync(3)
        with cluster.wait_for_leader().connect() as connection, connection.channel() as channel:
            channel.queue("large", durable=True)
            for number in range(12):
                channel.publish(b"%d " % number + os.urandom(1 << 20), "large")
        cluster.kill_all()
        before = cluster.document().epoch
        for node in cluster.nodes:
            node.start()
        assert numbers(cluster.wait_for_leader(), "large") == list(range(12))
        cluster.wait_in_sync(3)
        assert cluster.document().epoch == before + 1, "there was one election"
    finally:
        cluster.end()
        etcd.stop()


def test_a_node_ends_in_order_and_another_one_leads(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    with cluster.publisher() as publisher:
        publisher.more(100)
        leader = cluster.wait_for_leader()
        assert leader.stop() == 0
        publisher.more(100)
        leader.start()
        cluster.wait_in_sync(3)
    check(cluster, publisher.confirmed)
    assert [node.stop() for node in cluster.nodes] == [0, 0, 0]


def test_an_end_in_order_waits_neither_for_a_client_nor_for_a_follower_that_stands_still(tmp_path: Path) -> None:
    etcd = FakeEtcd()
    cluster = Cluster(tmp_path, etcd, program="tests.cluster.lingering")
    try:
        cluster.wait_in_sync(3)
        leader = cluster.wait_for_leader()
        heir, still = (node for node in cluster.nodes if node is not leader)
        with Connection(f"amqp://guest:guest@127.0.0.1:{leader.port}/") as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_select()
            channel.publish(b"1", "", "q", Properties(delivery_mode=2))
            channel.wait_for_confirms(60)
            still.signal(signal.SIGSTOP)
            assert leader.stop() == 0  # this client reads only what it is asked to wait for
            still.signal(signal.SIGCONT)
            assert numbers(cluster.wait_for_leader(leader)) == [1]
            assert lines(heir, "elected: this node leads")
            with suppress(AMQPError, OSError):
                connection.close()
    finally:
        cluster.end()
        etcd.stop()


def test_after_an_end_in_order_nothing_is_flagged_but_what_was_delivered(cluster: Cluster) -> None:
    """The followers have what the leader's directory was when it ended, so the next one starts as if it were that one."""
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()
    with leader.connect() as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        for number in range(20):
            channel.publish(str(number).encode(), "q")
        assert [queue.get().body for _ in range(3)] == [b"0", b"1", b"2"]
        assert leader.stop() == 0
    with cluster.wait_for_leader(leader).connect() as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        found = [queue.get() for _ in range(20)]
        assert [(message.body, message.redelivered) for message in found if message is not None] == [
            (str(number).encode(), number < 3) for number in range(20)
        ]


def test_all_nodes_end_in_order_and_the_last_leader_leads_again_at_once_with_nothing_flagged(cluster: Cluster) -> None:
    """Its directory is as the end has left it, as that of a broker alone."""
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()
    with leader.connect() as connection, connection.channel() as channel:
        channel.queue("q", durable=True)
        for number in range(20):
            channel.publish(str(number).encode(), "q")
    others = [node for node in cluster.nodes if node is not leader]
    assert [node.stop() for node in [*others, leader]] == [0, 0, 0]
    leader.start()
    wait_until(lambda: len(lines(leader, "elected: this node leads")) == 2, what="it is elected, and waits for others")
    for node in others:
        node.start()
    assert cluster.wait_for_leader() is leader
    with leader.connect() as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        found = [queue.get() for _ in range(20)]
        assert [message.redelivered for message in found if message is not None] == 20 * [False]
    assert not lines(leader, "this node has promised to wait")


def segments(node: Node) -> list[Path]:
    return sorted((path for path in node.data.glob("queues/*/0*.log")), key=lambda path: -path.stat().st_size)


def damage(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    with path.open("r+b") as file:
        at = path.stat().st_size // 3
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def spoil_and_start_first(cluster: Cluster, spoil: Callable[[Node], object], said: str) -> Node:
    """Kill all nodes, and spoil the leader's files. Start it, and start the others once its log has said this. Return it."""
    cluster.wait_in_sync(3)  # a follower that was slow for a moment may be none
    leader = cluster.wait_for_leader()
    others = [node for node in cluster.nodes if node is not leader]
    cluster.kill_all()
    spoil(leader)
    leader.start()
    wait_until(lambda: lines(leader, said), what=f"its log says: {said}")
    for node in others:
        node.start()
    return leader


def test_a_node_that_starts_with_damage_does_not_lead_and_gets_a_good_copy(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    with cluster.publisher() as publisher:
        publisher.more(500)
    leader = spoil_and_start_first(
        cluster, lambda node: damage(segments(node)[0]), "leads no more, and copies what is damaged"
    )
    assert cluster.wait_for_leader() is not leader
    cluster.wait_in_sync(3)
    check(cluster, publisher.confirmed)


def test_a_leader_that_is_low_on_disk_removes_what_earlier_leaders_have_replaced(tmp_path: Path) -> None:
    etcd = FakeEtcd()
    low = "--disk-free-limit", str(1 << 60)
    cluster = Cluster(tmp_path, etcd, options=low)
    try:
        leader = cluster.wait_for_leader()
        replaced = leader.data / "replaced"
        for name in ("0-20991231-235959", f"{cluster.document().epoch}-20991231-235959"):
            (replaced / name / "queues").mkdir(parents=True)
        wait_until(lambda: lines(leader, "removed from replaced/, as the disk is nearly full: 0-20991231-235959"))
        assert [path.name for path in replaced.iterdir()] == [f"{cluster.document().epoch}-20991231-235959"]
    finally:
        cluster.end()
        etcd.stop()


def test_a_damaged_directory_may_be_chosen_if_it_is_the_last_one(cluster: Cluster) -> None:
    """It lets others lead that are members. If their machines are lost for good, an operator decides."""
    cluster.wait_in_sync(3)
    with cluster.publisher() as publisher:
        publisher.more(500)
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()
    cluster.kill_all()
    damage(segments(leader)[0])
    leader.start()
    wait_until(lambda: lines(leader, "leads no more, and copies what is damaged"), what="it resigns")
    wait_until(lambda: cluster.register.read().seat is None, what="it has given its seat up")
    leader.kill()
    force = ("force", "--data-dir", str(leader.data))
    refused = cluster.command(*force)
    assert refused.returncode == 1 and "had everything" in refused.stderr
    done = cluster.command(*force, "--lose-the-rest")
    assert done.returncode == 0 and "some of its files are damaged" in done.stdout, done.stderr


def test_a_leader_that_finds_damage_lets_another_one_lead(cluster: Cluster) -> None:
    """What it cannot read any more others can, and it gets their copy."""
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()
    body = bytes(50_000)
    with leader.connect() as connection, connection.channel() as channel:
        queue = channel.queue("large", durable=True)
        for number in range(400):
            channel.publish(b"%d " % number + body, "large")
        damage(segments(leader)[0])
        got: list[int] = []
        with suppress(AMQPError, OSError):
            while (message := queue.get()) is not None:
                got.append(int(message.body.split()[0]))
                message.ack()
    assert len(got) < 400
    wait_until(lambda: lines(leader, "leads no more, and copies what is damaged"), what="it resigns")
    found = numbers(cluster.wait_for_leader(other=leader), "large")
    assert set(range(400)) <= set(got) | set(found)
    cluster.wait_in_sync(3)
    check(cluster, [])


def test_a_leader_goes_on_without_etcd_as_long_as_all_follow_it(tmp_path: Path) -> None:
    """Their promises stand in for its lease. Without one of them it ends, and SIGTERM ends it for good."""
    etcd = FakeEtcd()
    cluster = Cluster(tmp_path, etcd)
    try:
        cluster.wait_in_sync(3)
        leader = cluster.wait_for_leader()
        with cluster.publisher() as publisher:
            etcd.deaf = True
            wait_until(lambda: len(lines(leader, "cannot renew the lease")) > 0, what="the lease ends")
            publisher.more(2000)
            etcd.deaf = False
            publisher.more(100)
        assert not lines(leader, "leads no more")
        check(cluster, publisher.confirmed)
        etcd.deaf = True
        for node in cluster.nodes:
            if node is not leader:
                node.signal(signal.SIGSTOP)
        wait_until(lambda: lines(leader, "leads no more"), what="it ends")
        wait_until(lambda: lines(leader, "INFO kvitto: etcd does not answer"), what="it has begun anew")
        assert leader.stop() == 0
    finally:
        cluster.end()
        etcd.stop()


def test_a_node_that_starts_while_etcd_is_away_says_that_it_is_alive(tmp_path: Path) -> None:
    etcd = FakeEtcd()
    cluster = Cluster(tmp_path, etcd)
    try:
        cluster.wait_in_sync(3)
        leader = cluster.wait_for_leader()
        node = next(node for node in cluster.nodes if node is not leader)
        node.kill()
        etcd.deaf = True
        node.start()
        wait_until(lambda: bool(lines(node, "etcd does not answer")), what="it waits for etcd")
        http = Http(f"http://127.0.0.1:{node.http}")
        assert http.call("GET", "/healthz/live").status == 200
        assert http.call("GET", "/healthz/ready").status == 503
        etcd.deaf = False
        wait_until(lambda: http.call("GET", "/healthz/ready").status == 200, what="it follows")
    finally:
        cluster.end()
        etcd.stop()


def test_a_link_that_breaks_while_etcd_is_away_is_made_again(tmp_path: Path) -> None:
    """Else the leader would have to end, because it is not promised any more that nobody tries to lead."""
    etcd, proxies = FakeEtcd(), dict[Node, Proxy]()

    def own(node: Node) -> Sequence[str]:
        proxy = proxies[node] = Proxy()
        proxy.target = "127.0.0.1", int(node.address.rpartition(":")[2])
        proxy.start()
        return "--advertise", f"127.0.0.1:{proxy.port}"

    cluster = Cluster(tmp_path, etcd, count=2, own=own)
    try:
        cluster.wait_in_sync(2)
        seat = cluster.register.read().seat
        assert seat is not None
        leader, follower = sorted(cluster.nodes, key=lambda node: not seat.address.endswith(f":{proxies[node].port}"))
        with cluster.publisher() as publisher:
            publisher.more(100)
            etcd.deaf = True
            wait_until(lambda: lines(leader, "cannot renew the lease"), what="the leader misses etcd")
            before = len(lines(follower, "kvitto: following"))
            assert proxies[leader].cut(lambda: True, reset=False)
            wait_until(lambda: len(lines(follower, "kvitto: following")) > before, what="it follows again")
            publisher.more(100)
        assert not lines(leader, "leads no more") and len(lines(follower, "comparing files with")) == 1
        etcd.deaf = False
    finally:
        cluster.end()
        etcd.stop()
        for proxy in proxies.values():
            proxy.close()


def test_a_node_whose_broker_cannot_start_lets_another_one_lead(cluster: Cluster) -> None:
    """Its supervisor starts it again and again, and its lease has not ended by then."""
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()
    bad, good = [node for node in cluster.nodes if node is not leader]
    bad.kill()
    bad.options = ["--definitions", str(cluster.place / "missing.json")]
    bad.start()
    cluster.wait_in_sync(3)
    good.signal(signal.SIGSTOP)
    leader.kill()
    wait_until(lambda: lines(bad, "elected: this node leads"), what="the bad one is elected")
    good.signal(signal.SIGCONT)

    def leads() -> bool:
        if not bad.alive:
            bad.start()
        return cluster.leader() is good

    wait_until(leads, what="the good one leads")


@pytest.mark.parametrize("when", [IS_ELECTED, STARTS])
def test_a_node_that_finds_no_room_to_lead_lets_another_one_lead_and_goes_on(when: str, tmp_path: Path) -> None:
    etcd = FakeEtcd()
    cluster = Cluster(tmp_path, etcd, program="tests.cluster.roomless")
    try:
        cluster.wait_in_sync(3)
        with cluster.publisher() as publisher:
            publisher.more(100)
            leader = cluster.wait_for_leader()
            full, good = [node for node in cluster.nodes if node is not leader]
            full.data.with_name(full.data.name + when).touch()
            good.signal(signal.SIGSTOP)
            leader.kill()
            wait_until(lambda: lines(full, f"{NO_ROOM}: cannot write to .*free some space"), what="it gives up")
            good.signal(signal.SIGCONT)
            assert cluster.wait_for_leader() is good
            publisher.more(100)
        leader.start()
        cluster.wait_in_sync(3)
        assert full.alive, "nobody has to start it again"
        check(cluster, publisher.confirmed)
    finally:
        cluster.end()
        etcd.stop()


@pytest.mark.parametrize("when", [IS_ELECTED, STARTS])
def test_a_node_alone_that_finds_no_room_to_lead_tries_again_and_again_with_pauses(when: str, tmp_path: Path) -> None:
    etcd = FakeEtcd()
    cluster = Cluster(tmp_path, etcd, count=1, minimum=1, program="tests.cluster.roomless")
    (node,) = cluster.nodes

    try:
        cluster.wait_for_leader()
        room = node.data.with_name(node.data.name + when)
        room.touch()
        node.kill()
        node.start()
        wait_until(lambda: lines(node, NO_ROOM), what="it waits")
        began, before = time.monotonic(), cluster.document().epoch
        wait_until(lambda: cluster.document().epoch >= before + 2, what="it has tried twice again")
        assert time.monotonic() - began >= FULL_S
        room.unlink()
        assert cluster.wait_for_leader() is node
        assert node.alive, "nobody has to start it again"
    finally:
        cluster.end()
        etcd.stop()


def test_a_node_that_was_killed_when_it_noted_its_name_begins_again(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()
    node = next(node for node in cluster.nodes if node is not leader)
    node.kill()
    cluster.wait_in_sync(2)
    shutil.rmtree(node.data)
    node.data.mkdir()
    (node.data / "member.new").write_text("{")
    node.start()
    cluster.wait_in_sync(3)
    assert not (node.data / "member.new").exists()


def test_a_copy_of_the_leaders_directory_is_refused(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    with cluster.publisher() as publisher:
        publisher.more(100)
        leader = cluster.wait_for_leader()
        copy = Node(cluster, "copy")
        shutil.copytree(leader.data, copy.data)
        copy.start()
        assert copy.process.wait(STOP_S) == 1
        publisher.more(100)
    assert "another process leads with a copy of" in copy.log()
    copy.kill()
    copy.errors.close()
    assert cluster.wait_for_leader() is leader
    check(cluster, publisher.confirmed)


def test_a_warm_standby_does_not_count_as_a_member(cluster: Cluster) -> None:
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()
    data = str(cluster.place / "standby")
    followed = command("serve", "--data-dir", data, "--follow", leader.address, "--cluster-key", str(cluster.key))
    assert followed.returncode == 1 and "belongs to no cluster: start it with --etcd" in followed.stderr
    nodes = Http(f"http://127.0.0.1:{leader.http}").get("/api/nodes")
    assert len(nodes) == 3 and all(node["running"] for node in nodes), "nor as a node that is away"
