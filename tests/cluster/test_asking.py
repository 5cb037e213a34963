"""What nodes of a cluster ask of etcd while something lasts that they cannot change: little, since etcd writes to a disk, too."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvitto.cli.candidate import COMPLAIN_AGAIN_S, REST_S
from kvitto.cluster.register import Seat
from tests.cluster.nodes import Cluster, Node, port
from tests.support.etcd import FakeEtcd, Json
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow

COMPLAINT, LEADER = (base64.b64encode(f"kvitto/kvitto/{name}".encode()).decode() for name in ("complaint", "leader"))
ENOUGH = 8


class WatchedEtcd(FakeEtcd):
    """It notes when something was asked, and refuses all that writes if it is full."""

    def __init__(self) -> None:
        self.full = False
        self.complaints: list[float] = []
        self.refused: list[float] = []
        super().__init__()

    def answer(self, path: str, body: Json) -> tuple[int, Json]:
        puts = [request["requestPut"]["key"] for request in body.get("success", ()) if "requestPut" in request]
        if COMPLAINT in puts:
            self.complaints.append(time.monotonic())
        if self.full and (puts or path == "/v3/lease/grant"):
            self.refused.append(time.monotonic())
            return 503, {"message": "etcdserver: mvcc: database space exceeded", "code": 8}
        return super().answer(path, body)

    def seat(self, seat: Seat) -> None:
        """Have somebody sit in the leader's seat for good."""
        value = base64.b64encode(seat.encoded().encode()).decode()
        with self._lock:
            self._txn({"success": [{"requestPut": {"key": LEADER, "value": value}}]})


@pytest.fixture
def etcd() -> Iterator[WatchedEtcd]:
    found = WatchedEtcd()
    yield found
    found.stop()


@pytest.fixture
def cluster(etcd: WatchedEtcd, tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path, etcd, count=2, minimum=1)
    yield found
    found.end()


def follower_of(cluster: Cluster) -> tuple[Node, Node]:
    """Return the leader and the follower of two nodes in sync."""
    cluster.wait_in_sync(2)
    leader = cluster.wait_for_leader()
    (follower,) = [node for node in cluster.nodes if node is not leader]
    return leader, follower


def each_after(times: list[float], seconds: float, what: str) -> None:
    """Wait until something has happened ENOUGH times more, and look how long that has taken."""
    before = len(times)
    reached: Callable[[], bool] = lambda: len(times) > before + ENOUGH  # noqa: E731
    wait_until(reached, what=what)
    assert times[before + ENOUGH] - times[before] >= (ENOUGH - 1) * seconds


def test_a_leader_that_cannot_be_reached_gets_a_complaint_a_second(cluster: Cluster, etcd: WatchedEtcd) -> None:
    """Each is two writes of etcd. A leader whose broker starts is tried again thirty times a second, for as long as the start takes."""
    leader, follower = follower_of(cluster)
    seat = cluster.register.read().seat
    assert seat is not None
    follower.kill()
    leader.kill()
    etcd.seat(Seat(seat.member, "another process", f"127.0.0.1:{port()}"))
    follower.start()
    wait_until(lambda: etcd.complaints, what="it complains")
    each_after(etcd.complaints, COMPLAIN_AGAIN_S, "it complains again and again")


def test_an_etcd_without_room_is_asked_for_an_election_with_pauses(cluster: Cluster, etcd: WatchedEtcd) -> None:
    """It answers reads as ever, and refuses at once what writes."""
    leader, follower = follower_of(cluster)
    etcd.full = True
    leader.kill()
    wait_until(lambda: etcd.refused, what="the other node stands for election")
    each_after(etcd.refused, REST_S, "it stands for election again and again")
    etcd.full = False
    assert cluster.wait_for_leader() is follower
