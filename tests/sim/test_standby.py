"""What is left out of replication is found by the simulation (kind `standby`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from kvitto.base.errors import StoreFull
from kvitto.cluster import follower
from kvitto.cluster.counting import Copy
from kvitto.cluster.follower import Follower
from kvitto.cluster.gate import Gate
from kvitto.cluster.link import Link, Read, Step
from kvitto.cluster.records import Kind, Record
from kvitto.cluster.state import Following, write_following
from kvitto.cluster.tapping import TapDisk
from kvitto.cluster.tree import Node
from kvitto.store import paths
from kvitto.store.disk import Disk, File
from tests.sim.kinds import KINDS

SEEDS = 30
PART = 0.05


def acknowledge_only(self: Follower, files: Sequence[int], directories: Sequence[str]) -> None:
    """Sync nothing."""
    self.synced, self._due = self.place + 1, True


def sync_files_only(self: Follower, files: Sequence[int], directories: Sequence[str]) -> None:
    sync(self, files, [])


late: dict[int, tuple[Sequence[int], Sequence[str]]] = {}


def sync_one_late(self: Follower, files: Sequence[int], directories: Sequence[str]) -> None:
    """Apply what comes behind a sync point before that is done."""
    before = late.pop(id(self), ([], []))
    late[id(self)] = files, directories
    sync(self, *before)


def complete_at_once(disk: Disk, following: Following) -> None:
    """Never say that the directory is mixed."""
    write_following(disk, Following(following.leader, True, following.session, following.member))


def complete_without_syncs(self: Follower) -> None:
    self.following = Following(self.where, True, self._session, self.following.member)
    write_following(self.disk, self.following)
    self.session, self.copying, self.synced = self._session, False, self.place
    for node in self.nodes.values():
        node.original = 0
    self._aside = ""


def send_names_late(self: Link) -> Iterator[bytes]:
    """Send the records from a later place on than the names are of."""
    tree = self.leader.disk.tree
    self.state, self._found = "copying", tree.files()
    parts = [self._frames.encode(Kind.NAME, 0, 0, path.encode()) for path in tree.directories()]
    parts += [self._frames.encode(Kind.NAME, node.number, node.length, path.encode()) for path, node in self._found]
    yield from parts
    self.place, self._streaming = self.leader.ring.next, True
    yield self._frames.encode(Kind.NAMES, 0, self.place)


def read_before(self: Link, path: str, node: Node) -> Iterator[Step]:
    """Read a file in one step and send it in a later one, behind records that came meanwhile."""
    for part in list(send_file(self, path, node)):
        yield b""
        yield part


def take_what_was_read(self: Read, node: Node, at: int) -> bytes:
    """A chunk was read ahead, and has changed since."""
    return self._data


def look_once(self: Link) -> Iterator[Step]:
    """Take for the same what was so, whatever has changed since."""
    yield from look(self)
    self._same = {path: (node, 1 << 62) for path, (node, _) in self._same.items()}


def say_nothing(self: TapDisk, files: Sequence[File], directories: Sequence[str]) -> None:
    """No sync point of a commit."""


def rename_quietly(self: TapDisk, a: str, b: str) -> None:
    self.inner.rename(a, b)
    if not paths.is_local(a):
        node = self.tree.forget(a)
        assert node is not None
        self.tree.name(b, node)


def leave_out(self: Follower, record: Record) -> None:
    """What a full disk has refused is not asked for again."""
    try:
        apply(self, record)
    except StoreFull:
        self.place += 1
        raise


def no_end(self: Follower, node: Copy, length: int) -> None:
    """What is longer than the leader's stays so."""
    node.original = 0


def wait_for_nothing(self: Gate, number: int, before: int) -> None:
    """Take what a follower has acknowledged for all that a commit covers."""
    self._begun.append((number, 0))


sync, apply = Follower._sync, Follower._apply
send_file, look = Link._send_file, Link._look


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (Follower, "_sync", acknowledge_only),
        (Follower, "_sync", sync_files_only),
        (Follower, "_sync", sync_one_late),
        (follower, "write_following", complete_at_once),
        (Follower, "_complete", complete_without_syncs),
        (Link, "_send_names", send_names_late),
        (Link, "_send_file", read_before),
        (Link, "_look", look_once),
        (Read, "found", take_what_was_read),
        (TapDisk, "sync_point", say_nothing),
        (TapDisk, "rename", rename_quietly),
        (Follower, "_apply", leave_out),
        (Follower, "_end_of_file", no_end),
        (Gate, "begun", wait_for_nothing),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_planted_bug_is_found(
    where: object, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken)
    assert any(KINDS["standby"](seed, PART).findings for seed in range(SEEDS))


pytestmark = pytest.mark.slow
