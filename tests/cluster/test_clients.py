"""Clients of a cluster that connect to whichever node: nodes as processes, and what they tell of the cluster."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pika
import pika.exceptions
import pytest

import kvitto
from kvitto.base.config import address
from kvitto.cli.leaders import unheard_s
from kvitto.client.errors import AMQPError
from kvitto.cluster.handshake import Inbox, read_key
from kvitto.cluster.passing import AMQP, HTTP, MAGIC, Client, Elsewhere, Passing
from kvitto.cluster.records import StreamError
from kvitto.server.front import HEADS_MAX
from kvitto.server.lease import boottime
from tests.cli.process import kvitto as command
from tests.cluster.nodes import Cluster, Node, lines, numbers
from tests.http.api import Http
from tests.support.certificates import Authority
from tests.support.etcd import FakeEtcd
from tests.support.wait import TIMEOUT_S, wait_until

pytestmark = pytest.mark.slow

FAR = "203.0.113.7"
"""An address on another machine."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    etcd = FakeEtcd()
    found = Cluster(tmp_path, etcd)
    try:
        yield found
    finally:
        found.end()
        etcd.stop()
        for node in found.nodes:
            assert not any("Traceback" in line for line in node.said)


def api(node: Node) -> Http:
    return Http(f"http://127.0.0.1:{node.http}")


def roles(cluster: Cluster) -> tuple[Node, list[Node]]:
    """The leader and the others, all in sync."""
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()
    others = [node for node in cluster.nodes if node is not leader]
    wait_until(lambda: all(api(node).call("GET", "/healthz").status == 200 for node in others), what="all follow")
    return leader, others


def passed(node: Node, key: bytes, client: Client, cluster: str) -> socket.socket:
    """A connection that somebody with this key passes on to a leader. Raises Refused."""
    passing, inbox = Passing(key, cluster, client), Inbox()
    with ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(address(node.address), TIMEOUT_S))
        sock.sendall(passing.hello())
        for answer in (passing.names, None):
            while (found := inbox.next()) is None:
                data = sock.recv(65536)
                if not data:
                    raise ConnectionError
                inbox.feed(data)
            if answer is not None:
                sock.sendall(answer(found))
        stack.pop_all()
        return sock


def http_over(sock: socket.socket, path: str, login: bool = True) -> str:
    """The answer to a request over this connection."""
    given = f"Authorization: {Http('http://h:1').headers['Authorization']}\r\n" if login else ""
    with sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{given}Connection: close\r\n\r\n".encode())
        data = b""
        while more := sock.recv(65536):
            data += more
    return data.decode()


def test_a_client_of_a_follower_goes_on_when_the_leader_is_killed(cluster: Cluster) -> None:
    """With pika, which knows one node only. That one follows, and may lead later."""
    leader, (follower, _) = roles(cluster)
    parameters = pika.ConnectionParameters("127.0.0.1", follower.port, blocked_connection_timeout=TIMEOUT_S)
    confirmed: list[int] = []
    stop = threading.Event()

    def publish() -> None:
        number = 0
        while not stop.is_set():
            with suppress(pika.exceptions.AMQPError, OSError):
                connection = pika.BlockingConnection(parameters)
                channel = connection.channel()
                channel.queue_declare("q", durable=True)
                channel.confirm_delivery()
                while not stop.is_set():
                    number += 1
                    channel.basic_publish("", "q", b"%d x" % number, pika.BasicProperties(delivery_mode=2))
                    confirmed.append(number)
                connection.close()
            stop.wait(0.02)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        wait_until(lambda: len(confirmed) > 100, what="messages are confirmed by way of the follower")
        leader.kill()
        before = len(confirmed)
        wait_until(lambda: len(confirmed) > before + 100, what="messages are confirmed by the new leader")
    finally:
        stop.set()
        thread.join()
    found = numbers(cluster.wait_for_leader(other=leader))
    assert set(confirmed) <= set(found) and found == sorted(set(found))


def test_what_the_leader_says_of_clients_is_their_own_address(cluster: Cluster) -> None:
    """guest gets in from the machine of a node, and from no other one, whichever way the connection comes."""
    leader, (follower, _) = roles(cluster)
    document = cluster.document()
    key = read_key(cluster.key)
    far, near = (Client(HTTP, Elsewhere(host, 4711)) for host in (FAR, "127.0.0.1"))
    assert "HTTP/1.1 401" in http_over(passed(leader, key, far, document.cluster), "/api/overview")
    assert "HTTP/1.1 401" in http_over(passed(leader, key, far, document.cluster), "/metrics", login=False)
    assert "HTTP/1.1 200" in http_over(passed(leader, key, near, document.cluster), "/api/overview")
    assert api(follower).call("PUT", "/api/users/app", {"password": "secret", "tags": ""}).status == 201
    assert api(follower).put("/api/permissions/%2F/app", {"configure": "", "write": "", "read": ""}) == 201
    with socket.create_server(("127.0.0.1", 0)) as bridge:
        port = bridge.getsockname()[1]
        thread = threading.Thread(target=carry, args=(bridge, leader, key, document.cluster, 2))
        thread.start()
        with pytest.raises(AMQPError, match="ACCESS_REFUSED"):
            kvitto.connect_sync(f"amqp://guest:guest@127.0.0.1:{port}/", reconnect=False)
        with kvitto.connect_sync(f"amqp://app:secret@127.0.0.1:{port}/", reconnect=False):
            found = api(leader).get("/api/connections")
            assert [(item["peer_host"], item["peer_port"], item["user"]) for item in found] == [(FAR, 4711, "app")]
        thread.join()


def carry(bridge: socket.socket, leader: Node, key: bytes, cluster: str, times: int) -> None:
    """Pass connections on, one after the other, as a node does to which clients come from far away."""
    for _ in range(times):
        client, _ = bridge.accept()
        with client, passed(leader, key, Client(AMQP, Elsewhere(FAR, 4711)), cluster) as there:
            ways = [threading.Thread(target=copy, args=way) for way in ((client, there), (there, client))]
            for way in ways:
                way.start()
            for way in ways:
                way.join()


def copy(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


def test_nobody_without_the_key_makes_an_address_up(cluster: Cluster) -> None:
    """Neither at the listener for nodes, nor by a preface at those for clients, and neither leader nor followers believe one."""
    leader, (follower, _) = roles(cluster)
    proxy = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes([127, 0, 0, 1] * 2) + b"\x12\x34\x16\x28"
    for node in (leader, follower):
        for preface in (proxy, b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n", MAGIC):
            with socket.create_connection(("127.0.0.1", node.port), TIMEOUT_S) as sock:
                sock.sendall(preface + b"AMQP\x00\x00\x09\x01")
                assert sock.recv(65536)[:4] in (b"AMQP", b"")
    for data in (b"AMQP\x00\x00\x09\x01", proxy, MAGIC + b"\xff" * 50, MAGIC + b"\x05\0\0\0{...}"):
        with socket.create_connection(address(leader.address), TIMEOUT_S) as sock:
            sock.sendall(data)
            with suppress(ConnectionError):
                while sock.recv(65536):
                    pass
    with pytest.raises(StreamError, match="another key"):  # as the leader's proof shows, which is the first one
        passed(leader, b"guessed" * 5, Client(AMQP, Elsewhere("127.0.0.1", 1)), "?")
    assert api(leader).get("/api/connections") == []
    cluster.wait_in_sync(3)


def test_two_hundred_idle_connections_through_a_follower_cost_little_memory(cluster: Cluster) -> None:
    leader, (follower, _) = roles(cluster)

    def rss() -> int:
        text = Path(f"/proc/{follower.process.pid}/status").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) << 10

    follower.connect().close()
    before = rss()
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(follower.connect())
        assert len(api(leader).get("/api/connections")) == 200
        grown = rss() - before
        assert grown < 16 << 20, grown
        publisher = stack.enter_context(cluster.publisher())
        publisher.more(50)
        follower.signal(signal.SIGKILL)
        wait_until(lambda: len(api(leader).get("/api/connections")) < 10, what="the leader notices that they are gone")


def test_with_tls_the_leader_has_the_handshake_and_the_node_reads_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    pair = authority.sign("node", "/CN=node", "IP:127.0.0.1")
    etcd = FakeEtcd()
    more = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-ca", str(authority.cert))
    cluster = Cluster(tmp_path, etcd, 2, options=more)
    try:
        cluster.wait_in_sync(2)
        leader = cluster.wait_for_leader()
        (follower,) = [node for node in cluster.nodes if node is not leader]
        url = f"amqps://guest:guest@127.0.0.1:{follower.tls}/?cacertfile={authority.cert}"
        with kvitto.connect_sync(url, reconnect=False) as connection, connection.channel() as channel:
            channel.queue("q", durable=True)
            channel.publish(b"1 over TLS", "q")
            (shown,) = api(leader).get("/api/connections")
            assert shown["ssl"] and shown["peer_host"] == "127.0.0.1"
        assert numbers(leader) == [1]
    finally:
        cluster.end()
        etcd.stop()


def test_clients_of_a_leader_that_stands_still_are_closed_when_another_one_leads(cluster: Cluster) -> None:
    leader, others = roles(cluster)
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(("127.0.0.1", node.port), TIMEOUT_S)) for node in others]
        for sock in socks:
            sock.sendall(b"AMQP\x00\x00\x09\x01")
            assert sock.recv(65536)[:1] == b"\x01"
        leader.signal(signal.SIGSTOP)
        cluster.wait_for_leader(other=leader)
        for sock in socks:
            with suppress(ConnectionError):
                while sock.recv(65536):
                    pass
        leader.signal(signal.SIGCONT)
        cluster.wait_in_sync(3)
    wait_until(lambda: api(leader).call("GET", "/healthz/ready").status == 200, what="it listens again")


def test_a_node_whose_leader_stands_still_is_not_ready_until_it_is_heard_again(tmp_path: Path) -> None:
    """It says so long before it gives the leader up, which it does not here."""
    etcd = FakeEtcd()
    cluster = Cluster(tmp_path, etcd, program="tests.cluster.patient")
    try:
        leader, (node, _) = roles(cluster)
        leader.signal(signal.SIGSTOP)
        said = f"nothing has come from kvitto@{member(cluster, leader)[:8]}, which leads, for "
        wait_until(lambda: said in api(node).call("GET", "/healthz/ready").body.decode(), what="it is not ready")
        assert api(node).call("GET", "/healthz/live").status == 200
        leader.signal(signal.SIGCONT)
        wait_until(lambda: api(node).call("GET", "/healthz/ready").status == 200, what="it is ready again")
    finally:
        cluster.end()
        etcd.stop()


def test_a_node_that_reads_its_files_to_compare_them_does_not_take_its_leader_for_a_silent_one(
    cluster: Cluster,
) -> None:
    """It takes nothing from the connection meanwhile, and passes clients on as ever."""
    leader, (node, _) = roles(cluster)
    with leader.connect() as connection, connection.channel() as channel:
        channel.queue("large", durable=True)
        for _ in range(12):
            channel.publish(os.urandom(1 << 20), "large")
    node.kill()
    node.program = "tests.cluster.slow"
    begun, copied = len(lines(node, "comparing files with")), len(lines(leader, "is copying"))
    node.start()
    wait_until(lambda: len(lines(node, "comparing files with")) > begun, what="it compares its files")
    answers = []
    while len(lines(leader, "is copying")) == copied:
        answers.append(api(node).call("GET", "/healthz/ready").json)
    assert len(answers) > 1
    assert not [answer for answer in answers if "nothing has come from" in answer.get("reason", "")]


def member(cluster: Cluster, leader: Node) -> str:
    """The name of the member that sits in the leader's seat."""
    seat = cluster.wait_for_register().seat
    assert seat is not None and seat.address == leader.address
    return seat.member


def test_what_has_come_and_was_not_read_yet_is_no_silence() -> None:
    """A node that works on what its leader has sent does not take the leader for a silent one."""
    mine, others = socket.socketpair()
    with mine, others:
        since = boottime() - 100.0
        assert unheard_s(mine, since) >= 100.0
        others.sendall(b"x")
        assert unheard_s(mine, since) == 0.0
        mine.recv(1)
        assert unheard_s(mine, since) >= 100.0
    assert unheard_s(mine, since) >= 100.0, "it is closed"
    assert unheard_s(None, since) == 0.0, "there was no connection yet"


def test_clients_that_send_half_a_head_are_few(cluster: Cluster) -> None:
    """Each has up to 64 KiB in the memory of a node, without any login."""
    cluster.wait_in_sync(3)
    leader = cluster.wait_for_leader()
    node = next(node for node in cluster.nodes if node is not leader)
    clients = [socket.create_connection(("127.0.0.1", node.http)) for _ in range(HEADS_MAX + 20)]
    try:
        for client in clients:
            client.sendall(b"GET /api/overview HTTP/1.1\r\nHost: x\r\n")

        def ended() -> bool:
            readable, _, _ = select.select(clients, [], [], 0)
            return len(readable) >= 20

        wait_until(ended, what="the first ones are closed")
        assert api(node).call("GET", "/healthz/live").status == 200
    finally:
        for client in clients:
            client.close()


def test_without_a_leader_nodes_refuse_at_once_and_say_so(cluster: Cluster) -> None:
    leader, (one, two) = roles(cluster)
    two.kill()
    cluster.wait_in_sync(2)
    cluster.etcd.deaf = True
    leader.kill()
    wait_until(lambda: api(one).call("GET", "/healthz/ready").status == 503, what="it has lost the leader")
    with socket.create_connection(("127.0.0.1", one.port), TIMEOUT_S) as sock:
        assert sock.recv(1) == b""
    answer = api(one).call("GET", "/api/overview")
    assert answer.status == 503 and answer.headers["Retry-After"] == "1" and "this node does not lead" in answer.reason

    def why() -> str:
        found = command("ctl", "--uri", f"http://127.0.0.1:{one.http}", "cluster_status")
        assert found.returncode == 1 and "does not lead" in found.stderr
        return found.stderr

    wait_until(lambda: "etcd does not answer" in why(), what="it says why")
    assert [api(one).call("GET", f"/healthz{path}").status for path in ("", "/live", "/leader")] == [503, 200, 503]
    assert "kvitto_cluster_is_leader 0" in api(one).call("GET", "/metrics").body.decode()
    cluster.etcd.deaf = False


def test_all_nodes_tell_how_the_cluster_is(cluster: Cluster) -> None:
    leader, others = roles(cluster)
    seat = cluster.register.read().seat
    assert seat is not None
    for node in cluster.nodes:
        wait_until(lambda node=node: len(api(node).get("/api/cluster")["members"]) == 3, what="it knows of all")  # type: ignore[misc]
        found = api(node).get("/api/cluster")
        assert found["leads"] == (node is leader)
        assert (found["epoch"], found["minimum"], found["leader"]["member"]) == (1, 2, seat.member)
        assert found["last_failover"]["why"] == "nobody has led yet"
        status = api(node).call("GET", "/healthz/leader")
        assert status.status == (200 if node is leader else 503)
    told = wait_until(lambda: caught_up(api(leader).get("/api/cluster")["nodes"]), what="all have everything")
    assert {node["state"] for node in told} == {"leading", "following"} and all(node["in_sync"] for node in told)
    # over a connection that is passed on already the leader answers, and says the same
    with socket.create_connection(("127.0.0.1", others[0].http), TIMEOUT_S) as sock:
        for path, expected in (("/", b"HTTP/1.1 200"), ("/healthz/leader", b"HTTP/1.1 503")):
            sock.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
            assert sock.recv(65536).startswith(expected)
    metrics = api(leader).call("GET", "/metrics").body.decode()
    assert "kvitto_cluster_is_leader 1" in metrics and "kvitto_cluster_members 3" in metrics
    assert (
        metrics.count('kvitto_follower_in_sync{member="') == metrics.count('kvitto_follower_lag_seconds{member="') == 2
    )
    shown = command("ctl", "--uri", f"http://127.0.0.1:{others[0].http}", "cluster_status")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("following") == 2 and shown.stdout.count("leading") == 1

    others[0].kill()
    cluster.wait_in_sync(2)
    nodes = api(others[1]).get("/api/nodes")
    assert sorted(node["running"] for node in nodes) == [False, True, True]
    assert {node["type"] for node in nodes} == {"disc"} and len({node["name"] for node in nodes}) == 3
    away = next(node["name"] for node in nodes if not node["running"])
    assert api(leader).get(f"/api/nodes/{away}")["kvitto"]["state"] == "away"
    assert api(leader).call("GET", "/api/nodes/kvitto@nobody").status == 404
    leader.kill()
    others[0].start()
    new = cluster.wait_for_leader(other=leader)
    found = api(new).get("/api/cluster")
    assert found["epoch"] == 2 and found["last_failover"]["before"] == seat.member
    assert "has ended" in found["last_failover"]["why"]


def caught_up(nodes: list[dict[str, object]]) -> list[dict[str, object]] | None:
    return nodes if all(isinstance(lag := node["lag_ms"], int) and lag < 60_000 for node in nodes) else None


def test_an_operator_has_another_node_lead_and_nothing_is_flagged(cluster: Cluster) -> None:
    leader, others = roles(cluster)
    cluster.wait_in_sync(3)
    wanted, uri = others[1], f"http://127.0.0.1:{others[0].http}"
    member = api(wanted).get("/api/cluster")["member"]
    with cluster.publisher() as publisher:
        publisher.more(100)
        done = command("ctl", "--uri", uri, "cluster_transfer", "nobody")
        assert done.returncode == 1 and "no node 'nobody' could lead now; in sync are: " in done.stderr
        done = command("ctl", "--uri", uri, "cluster_transfer", member[:8])
        assert done.returncode == 0 and f"{member[:8]} is to lead" in done.stdout
        assert cluster.wait_for_leader(other=leader) is wanted
        publisher.more(100)
        cluster.wait_in_sync(3)
    with wanted.connect() as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        found = [message for _ in publisher.confirmed if (message := queue.get()) is not None]
        assert len(found) >= len(publisher.confirmed) and not any(message.redelivered for message in found)


def test_a_leader_is_not_moved_while_nobody_could_be_elected(cluster: Cluster) -> None:
    """It would give its seat up, and everybody would wait for etcd."""
    leader, _ = roles(cluster)
    cluster.wait_in_sync(3)

    def transfer() -> str:
        done = command("ctl", "--uri", f"http://127.0.0.1:{leader.http}", "cluster_transfer")
        return done.stderr if done.returncode else ""

    cluster.etcd.deaf = True
    wait_until(lambda: "cannot renew the lease" in leader.log(), what="it knows that etcd does not answer")
    assert "nobody could be elected now, and this node leads on: cannot renew the lease" in transfer()
    with cluster.publisher() as publisher:
        publisher.more(10)
    cluster.etcd.deaf = False
    wait_until(lambda: not transfer(), what="etcd answers again")
    cluster.wait_for_leader(other=leader)


def test_a_node_keeps_the_port_that_it_needs_when_it_leads(cluster: Cluster) -> None:
    _, others = roles(cluster)
    for node in others:
        host, _, port = node.address.rpartition(":")
        with pytest.raises(OSError, match="in use"):
            socket.create_server((host, int(port)))


def test_a_document_that_is_gone_is_an_alarm(cluster: Cluster) -> None:
    """All goes on, but no node that ends can start again."""
    leader, _ = roles(cluster)
    cluster.wait_in_sync(3)
    key = next(key for key in cluster.etcd.kept if b64decode(key).endswith(b"/document"))
    kept = cluster.etcd.kept.pop(key)
    alarm = "the document of this cluster is gone from etcd"
    wait_until(
        lambda: alarm in command("ctl", "--uri", f"http://127.0.0.1:{leader.http}", "alarms").stdout, what="it is told"
    )
    refused = command("ctl", "--uri", f"http://127.0.0.1:{leader.http}", "cluster_transfer")
    assert refused.returncode == 1 and alarm in refused.stderr
    assert leader.log().count(alarm) == 1 and api(leader).call("GET", "/healthz").status == 503
    cluster.etcd.kept[key] = kept
    wait_until(lambda: api(leader).call("GET", "/healthz").status == 200, what="it is there again")


def test_an_operator_removes_a_node_that_is_lost(cluster: Cluster) -> None:
    leader, others = roles(cluster)
    cluster.wait_in_sync(3)
    lost, other = others

    def remove(member: str) -> str:
        done = command("ctl", "--uri", f"http://127.0.0.1:{leader.http}", "cluster_remove", member)
        return done.stderr if done.returncode else done.stdout

    assert "leads: have another node lead, and stop it first" in remove(leader.member)
    assert "is here, and would come back: stop it first" in remove(f"kvitto@{other.member}")
    assert "no node 'nobody' is away; away are: none" in remove("nobody")
    lost.kill()
    wait_until(lambda: "is removed" in remove(lost.member), what="it is no member, and removed")
    shown = {node["member"][:8] for node in api(leader).get("/api/cluster")["nodes"]}
    assert shown == {leader.member, other.member}
    lost.start()
    cluster.wait_in_sync(3)
    for node in others:
        node.kill()
    # two have to be in sync, so one of them stays a member
    wait_until(lambda: any("still is a member" in remove(node.member) for node in others), what="it is refused")
