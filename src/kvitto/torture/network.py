"""A network of the torture's own, in namespaces that nobody else sees, whose links are cut one way or both ways.

Each host has a namespace, and a router forwards between them. A cut is a rule of the router: it drops the packets from one address to
another, and tells nobody, as a cable would. The namespaces have no names. They are held by open files and by the processes in them, so the
system removes all of it when these have ended, however they ended. `cli.py` calls `set_apart`, clusters use `Network`.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
OWN = "/proc/thread-self/ns/net"
HERE = "here"
"""The host that the torture and its clients are on."""
SUBNET = "10.99"
RATE, BUFFER, QUEUE, DELAY = "4mbit", "32kb", "200ms", "50ms"
"""What a slow link lets through, and how long packets wait for that at most, or are late anyway if the kernel can do that (netem)."""
INSTALL_IP = "sudo apt-get install -y iproute2"

_libc = ctypes.CDLL(None, use_errno=True)


class NetworkFailed(OSError):
    """The system did not let the torture make or change its network."""


def refusal() -> str:
    """Return why no network can be made here; "" if one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return f"ip and tc are not installed; install them with: {INSTALL_IP}"
    try:
        os.close(_new_namespace())
    except OSError as error:
        return f"this system makes no network namespace: {error.strerror}"
    return ""


def set_apart() -> None:
    """Move this thread, and all that it starts from now on, to a new network, and give them mounts that nobody else sees.

    They cannot reach the machine's addresses from then on. In a program no other thread may have begun.
    """
    _check(_libc.unshare(CLONE_NEWNET | CLONE_NEWNS))
    _check(_libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))


class Network:
    """Hosts, which reach each other unless they are cut."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """Make the namespaces. The host HERE is that of the caller's thread, which `set_apart` has moved."""
        self.hosts = (HERE, *hosts)
        self._cuts: list[tuple[str, str]] = []
        self._slow: list[str] = []
        self._router = _new_namespace()
        self._spaces = {HERE: os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)}
        self._spaces |= {host: _new_namespace() for host in hosts}
        for number, (host, space) in enumerate(self._spaces.items(), 1):
            self._ip(
                self._router,
                f"link add {self._link(host)} type veth peer name eth0 netns /proc/self/fd/{space}",
                f"addr add {SUBNET}.{number}.1/24 dev {self._link(host)}",
                f"link set {self._link(host)} up",
                passed=space,
            )
            self._ip(
                space,
                "link set lo up",
                f"addr add {self.address(host)}/24 dev eth0",
                "link set eth0 up",
                f"route add default via {SUBNET}.{number}.1",
            )
        with _inside(self._router), open("/proc/sys/net/ipv4/ip_forward", "w") as forward:
            forward.write("1")

    def address(self, host: str) -> str:
        return f"{SUBNET}.{self._number(host)}.2"

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Be on that host: processes that are started, and sockets that are made, stay there."""
        with _inside(self._spaces[host]):
            yield

    def cut(self, sources: Iterable[str], targets: Iterable[str], *, both: bool = True) -> None:
        """Drop all packets from the sources to the targets from now on, and from the targets to the sources if `both`."""
        pairs = [(source, target) for source in sources for target in targets]
        pairs += [(target, source) for source, target in pairs] if both else []
        self._cuts += pairs
        self._ip(self._router, *(f"rule add {self._rule(pair)}" for pair in pairs))

    def slow(self, host: str) -> None:
        """Let only RATE through to and from that host from now on."""
        self._slow.append(host)
        for space, device in ((self._router, self._link(host)), (self._spaces[host], "eth0")):
            add = ["tc", "qdisc", "add", "dev", device, "root"]
            limits = (["netem", "delay", DELAY, "rate", RATE], ["tbf", "rate", RATE, "burst", BUFFER, "latency", QUEUE])
            with _inside(space):
                if all(subprocess.run([*add, *limit], capture_output=True, check=False).returncode for limit in limits):
                    raise NetworkFailed(f"tc cannot limit the rate of a link on this kernel: {' '.join(limits[-1])}")

    def heal(self) -> None:
        """Let everything through again."""
        self._ip(self._router, *(f"rule del {self._rule(pair)}" for pair in self._cuts))
        self._cuts.clear()
        for host in self._slow:
            for space, device in ((self._router, self._link(host)), (self._spaces[host], "eth0")):
                with _inside(space):
                    subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], capture_output=True, check=False)
        self._slow.clear()

    def close(self) -> None:
        """Let go of the namespaces: they are removed when no process is in them any more."""
        for space in (self._router, *self._spaces.values()):
            os.close(space)
        self._spaces.clear()

    def _number(self, host: str) -> int:
        return self.hosts.index(host) + 1

    def _link(self, host: str) -> str:
        """Return the name of the router's end of the link to a host."""
        return f"to-{self._number(host)}"

    def _rule(self, pair: tuple[str, str]) -> str:
        return f"from {self.address(pair[0])} to {self.address(pair[1])} blackhole"

    def _ip(self, space: int, *commands: str, passed: int | None = None) -> None:
        text = "".join(f"{command}\n" for command in commands)
        with _inside(space):
            done = subprocess.run(
                ["ip", "-batch", "-"],
                input=text,
                text=True,
                capture_output=True,
                check=False,
                pass_fds=() if passed is None else (passed,),
            )
        if done.returncode:
            raise NetworkFailed(f"ip did not do this: {text}{done.stderr}")


def _new_namespace() -> int:
    """Return an open file that keeps a new network namespace alive."""
    made: list[int | OSError] = []

    def make() -> None:
        try:
            _check(_libc.unshare(CLONE_NEWNET))
            made.append(os.open(OWN, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


@contextmanager
def _inside(space: int) -> Iterator[None]:
    """Have this thread alone in a namespace."""
    before = os.open(OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(space, CLONE_NEWNET))
        yield
    finally:
        _check(_libc.setns(before, CLONE_NEWNET))
        os.close(before)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
