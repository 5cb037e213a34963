"""The network, the disks and the mounts of a tortured cluster: what is cut is cut, and nothing is left on the machine."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvitto.server.listening import PROBES, end_if_cut
from kvitto.torture import disks, network
from kvitto.torture.disks import SmallDisk
from kvitto.torture.network import HERE, Network
from tests.support.wait import wait_until

needs_network = pytest.mark.skipif(network.refusal() != "", reason=f"no network of its own: {network.refusal()}")
needs_disks = pytest.mark.skipif(
    (network.refusal() or disks.refusal()) != "", reason=f"no disk of its own: {network.refusal() or disks.refusal()}"
)
QUIET_S = 0.2


def apart(does: Callable[[], None]) -> None:
    """Do something in a thread that is on a network and has mounts of its own, which go with it."""

    def run() -> None:
        network.set_apart()
        does()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(run).result()


class Wires:
    """A connection between two hosts of a network."""

    def __init__(self, net: Network, one: str, other: str) -> None:
        with net.inside(one):
            listener = socket.create_server((net.address(one), 5000))
        with net.inside(other):
            self.other = socket.create_connection((net.address(one), 5000), 10.0)
        self.one, _ = listener.accept()
        listener.close()

    def passes(self, sender: socket.socket, receiver: socket.socket) -> bool:
        """Say whether a byte that is sent now comes soon, or at once if it has come already."""
        sender.send(b"x")
        receiver.settimeout(QUIET_S)
        try:
            return bool(receiver.recv(100))
        except TimeoutError:
            return False

    def arrives(self, receiver: socket.socket) -> bool:
        """Wait until what was held up comes."""
        receiver.settimeout(60.0)
        return bool(receiver.recv(100))

    def close(self) -> None:
        self.one.close()
        self.other.close()


@needs_network
def test_a_cut_may_be_one_way_and_is_healed() -> None:
    def check() -> None:
        net = Network(["a", "b", "c"])
        wires, others = Wires(net, "a", "b"), Wires(net, HERE, "a")
        assert wires.passes(wires.one, wires.other) and wires.passes(wires.other, wires.one)
        net.cut(["a"], ["b", "c"], both=False)
        assert not wires.passes(wires.one, wires.other), "from a to b nothing comes through"
        assert others.passes(others.one, others.other) and others.passes(others.other, others.one)
        # b reaches a, and its own packets are not acknowledged, so they come again: the first one has come all the same
        assert wires.passes(wires.other, wires.one)
        net.heal()
        assert wires.arrives(wires.other)
        net.cut(["a"], ["b"])
        assert not wires.passes(wires.other, wires.one) and not wires.passes(wires.one, wires.other)
        net.heal()
        assert wires.arrives(wires.other) and wires.arrives(wires.one)
        wires.close()
        others.close()
        net.close()

    apart(check)


@needs_network
def test_a_connection_between_nodes_ends_when_it_is_cut_although_nothing_is_sent() -> None:
    """A leader did not notice that it was cut off from followers that compared their files, and never gave its seat up."""

    def check() -> None:
        net = Network(["a", "b"])
        wires = Wires(net, "a", "b")
        for end in (wires.one, wires.other):
            end_if_cut(end, PROBES)
            end.settimeout(60.0)
        net.cut(["a"], ["b"])
        for end in (wires.one, wires.other):
            with pytest.raises(OSError) as ended:
                end.recv(1)
            assert ended.value.errno in (errno.ETIMEDOUT, errno.EHOSTUNREACH)
        wires.close()
        net.close()

    apart(check)


@needs_network
def test_a_connection_between_nodes_stays_while_nothing_is_sent() -> None:
    def check() -> None:
        net = Network(["a", "b"])
        wires = Wires(net, "a", "b")
        end_if_cut(wires.one, PROBES)
        wires.one.settimeout(3.0 * PROBES)
        with pytest.raises(TimeoutError) as ended:
            wires.one.recv(1)
        assert ended.value.errno is None, "nothing has come, and the connection is there"
        assert wires.passes(wires.one, wires.other)
        wires.close()
        net.close()

    apart(check)


@needs_network
def test_a_slow_host_is_slow_until_it_is_healed() -> None:
    def check() -> None:
        net = Network(["a", "b"])
        net.slow("a")
        assert limits(net) == 2, "the limit is at both ends of its link"
        net.heal()
        assert limits(net) == 0
        net.close()

    def limits(net: Network) -> int:
        spaces = [net._router, net._spaces["a"]]
        found = 0
        for space in spaces:
            with network._inside(space):
                shown = subprocess.run(["tc", "qdisc"], capture_output=True, text=True, check=True).stdout
                found += sum(" tbf " in line or " netem " in line for line in shown.splitlines())
        return found

    apart(check)


@needs_network
def test_a_process_on_a_host_has_the_address_of_that_host() -> None:
    def check() -> None:
        net = Network(["a"])
        with net.inside("a"):
            shown = subprocess.run(["ip", "-brief", "addr"], capture_output=True, text=True, check=True).stdout
        assert net.address("a") in shown and net.address(HERE) not in shown
        net.close()

    apart(check)


@needs_network
def test_a_network_leaves_nothing_on_the_machine() -> None:
    before = os.listdir("/sys/class/net"), os.readlink(network.OWN)

    def fail() -> None:
        Network(["a", "b"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apart(fail)
    assert (os.listdir("/sys/class/net"), os.readlink(network.OWN)) == before


@needs_disks
def test_a_small_disk_is_full_until_it_is_freed(tmp_path: Path) -> None:
    def check() -> None:
        disk = SmallDisk(tmp_path / "disk")
        (disk.top / "file").write_bytes(b"x")
        disk.fill()
        with pytest.raises(OSError) as refused, (disk.top / "more").open("wb", buffering=0) as more:
            os.posix_fallocate(more.fileno(), 0, 1 << 20)
        assert refused.value.errno == errno.ENOSPC
        disk.free()
        (disk.top / "more").write_bytes(bytes(1 << 20))
        assert str(tmp_path) in loops()
        disk.close()

    apart(check)
    assert list((tmp_path / "disk").iterdir()) == [], "nobody else has seen the mount"
    assert str(tmp_path) not in loops()


@needs_disks
def test_what_the_system_does_not_make_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "SIZE_BYTES", 1)
    with pytest.raises(OSError, match=r"^mkfs\.ext4 failed: "):
        SmallDisk(tmp_path / "disk")


def loops() -> str:
    """Return all files that are disks now."""
    found = subprocess.run(["losetup", "--list", "--output", "BACK-FILE"], capture_output=True, text=True, check=True)
    return found.stdout


@pytest.fixture
def heeded() -> Iterator[None]:
    """Ctrl-C counts in what is started: a shell that does not wait for the tests has them, and all below, ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def left(place: Path) -> list[str]:
    """Return what is left of a torture there: processes, disks and mounts that everybody sees."""
    found = [*loops().splitlines(), *Path("/proc/self/mountinfo").read_text().splitlines()]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended
    return [line for line in found if str(place) in line]


@needs_disks
@pytest.mark.slow
@pytest.mark.usefixtures("heeded")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_torture_of_nodes_that_is_ended_in_a_fault_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    """After SIGKILL only what it started runs on, as any process would; when that has ended, nothing is left either."""
    place, links = tmp_path / "place", os.listdir("/sys/class/net")
    command = [sys.executable, "-m", "kvitto.cli.main", "torture", "--nodes", "3", "--place", str(place), "--seed", "1"]
    with subprocess.Popen(
        [*command, "--faults", "cut-nodes,leader-full", "--cycles", "500"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        assert any(b" of 500 faults" in line for line in process.stderr)
        process.send_signal(how)
        if how == signal.SIGINT:
            assert any(b"interrupted" in line for line in process.stderr)
            process.send_signal(how)
        process.wait(120)
        for line in left(place) if how == signal.SIGKILL else ():
            assert "serve" in line or "etcd" in line or "disk.img" in line
        for path in Path("/proc").glob("[0-9]*/cmdline") if how == signal.SIGKILL else ():
            if path.exists() and str(place) in path.read_text():
                os.kill(int(path.parent.name), signal.SIGKILL)
    assert wait_until(lambda: not left(place)), left(place)
    assert os.listdir("/sys/class/net") == links
