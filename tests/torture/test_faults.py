"""The plan follows from the seed, the proxy does what it is told, and a slope is told from noise."""

import random
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvitto.torture import plan
from kvitto.torture.nodes import PORTS, Command, free_port
from kvitto.torture.proxy import Proxy
from kvitto.torture.run import through
from kvitto.torture.sampling import Sample, regression, slope

WAIT_S = 10.0


def test_the_plan_follows_from_the_seed_alone() -> None:
    plans = [[plan.fault(seed, k, plan.FAULTS) for k in range(200)] for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert set(Counter(fault.kind for fault in plans[0])) == set(plan.FAULTS)
    assert all(0 <= fault.after_s <= plan.LIFE_S for fault in plans[0])
    assert {plan.fault(1, k, (plan.KILL,)).kind for k in range(20)} == {plan.KILL}


def test_which_starts_are_killed_follows_from_the_seed() -> None:
    faults = [plan.fault(1, k, (plan.KILL_START,)) for k in range(200)]
    starts = [fault.killed_starts() for fault in faults]
    assert starts == [fault.killed_starts() for fault in faults]
    assert {len(row) for row in starts} == set(range(1, plan.STARTS + 1))
    assert all(0 <= part < 1 for row in starts for part, _ in row)
    assert {of_recovery for row in starts for _, of_recovery in row} == {False, True}
    mix = Counter(plan.fault(1, k, plan.DEFAULT).kind for k in range(1000))
    assert set(mix) == {plan.KILL, plan.KILL_START} and 200 < mix[plan.KILL_START] < 300


class Pair:
    """A connection through the proxy, and its other end."""

    def __init__(self, proxy: Proxy, listener: socket.socket) -> None:
        self.client = socket.create_connection(("127.0.0.1", proxy.port), WAIT_S)
        self.server, _ = listener.accept()
        self.server.settimeout(WAIT_S)
        for sender, receiver in ((self.client, self.server), (self.server, self.client)):
            sender.sendall(b"hello")
            assert receiver.recv(5) == b"hello"

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(WAIT_S)
        yield made


@pytest.fixture
def proxy(listener: socket.socket) -> Iterator[Proxy]:
    made = Proxy()
    made.start()
    made.target = listener.getsockname()
    yield made
    made.close()


def ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_ends_both_sides(proxy: Proxy, listener: socket.socket, reset: bool) -> None:
    pairs = [Pair(proxy, listener) for _ in range(4)]
    chosen = iter((True, False, True, False))
    assert proxy.cut(lambda: next(chosen), reset=reset) == 2
    assert all(ended(sock) for pair in pairs[::2] for sock in (pair.client, pair.server))
    pairs[1].client.sendall(b"on")
    assert pairs[1].server.recv(2) == b"on"
    for pair in pairs:
        pair.close()


@pytest.mark.parametrize("from_client", [False, True])
def test_a_half_open_connection_drops_what_one_side_says(
    proxy: Proxy, listener: socket.socket, from_client: bool
) -> None:
    pair = Pair(proxy, listener)
    assert proxy.half_open(lambda: True, from_client=from_client) == 1
    muted, heard = (pair.client, pair.server) if from_client else (pair.server, pair.client)
    muted.sendall(b"lost")
    heard.sendall(b"kept")
    assert muted.recv(4) == b"kept"
    assert proxy.cut_half_open() == 1
    assert ended(heard) and ended(muted)
    assert proxy.bytes_dropped in (0, 4), "dropped, or not even read"
    pair.close()


def test_much_goes_through_and_the_end_arrives_behind_it(proxy: Proxy, listener: socket.socket) -> None:
    pair = Pair(proxy, listener)
    text = random.Random(1).randbytes(3_000_000)
    received = bytearray()
    pair.client.setblocking(False)
    rest = memoryview(text)
    while rest:
        try:
            rest = rest[pair.client.send(rest) :]
        except BlockingIOError:
            received += pair.server.recv(1 << 16)
    pair.client.shutdown(socket.SHUT_WR)
    while piece := pair.server.recv(1 << 16):
        received += piece
    assert received == text
    pair.close()


def test_without_a_broker_a_connection_ends_at_once(proxy: Proxy) -> None:
    proxy.target = None
    with socket.create_connection(("127.0.0.1", proxy.port), WAIT_S) as client:
        assert ended(client)


def test_a_uri_by_way_of_the_proxy() -> None:
    given = "amqp://me:secret@broker:5672/%2f?heartbeat=0"
    assert through(given, 99) == "amqp://me:secret@127.0.0.1:99/%2f?heartbeat=0"
    assert Command(Path("/nowhere").parent / "tmp", "/opt/lavinmq -D x", "amqp://h").uri == "amqp://h?heartbeat=0"
    assert free_port() in PORTS


def test_a_slope_and_its_error() -> None:
    rng = random.Random(3)
    flat = [Sample(float(s), 1, 10_000_000 + rng.randrange(100_000), 9, 0) for s in range(3600)]
    grown = [Sample(s.at_s, 1, s.rss_bytes + round(50 * s.at_s), 9, 0) for s in flat]
    still, growing = slope(flat), slope(grown)
    assert still is not None and not still.grows and abs(still.bytes_per_h) < 20_000
    assert growing is not None and growing.grows and growing.bytes_per_h == pytest.approx(180_000, rel=0.1)
    assert slope(flat[:2]) is None and slope([]) is None
    # the longest life counts
    assert slope([*grown[:100], *(Sample(s.at_s, 2, s.rss_bytes, 9, 0) for s in flat[100:])]) == slope(flat[100:])


def test_regression_of_a_known_line() -> None:
    """y = 1, 3, 2, 5 over x = 0..3: slope 1.1, standard error 0.5196."""
    found = regression([(0.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 5.0)])
    assert found.bytes_per_h / 3600 == pytest.approx(1.1)
    assert found.error / 3600 == pytest.approx(0.5196, abs=1e-4)
