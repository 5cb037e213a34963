"""D3: every file of a data directory, gone, empty, cut, flipped and swapped with one like it, after an end in order and after a kill.

Nothing is silent: where anything that waits is missing, back, unflagged or another, the start says so (an alarm, or it is refused) and
`kvitto check` does too. Where one of them says nothing, all that is served is what it was. `KVITTO_DAMAGES=10000` for more than 100.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from random import Random
from typing import Any

import pytest

from kvitto.base.errors import StoreError
from kvitto.store import journal as journals
from kvitto.store.record import Append, Record
from kvitto.store.repair.survey import Survey
from tests.support import stored
from tests.support.datadir import SEGMENT_BYTES, Home, Memory
from tests.support.harness import address

DAMAGES = int(os.environ.get("KVITTO_DAMAGES", "100"))
KINDS = {
    r"queues/.*\.log": "segment",
    r"queues/.*\.ack": "settlement log",
    r"queues/.*/offsets": "a stream's offsets",
    r"queues/.*/queue\.json": "queue.json",
    r"archive/.*/queue\.json": "an archive's queue.json",
    r"archive/.*\.log": "archived segment",
    r"archive/.*\.ack": "archived settlement log",
    r"journal/.*": "journal",
}
ARCHIVES = ("archived segment", "archived settlement log", "an archive's queue.json")
"""A start reads none of them through: whoever reads the archive verifies it, and `kvitto check` does."""


def kind_of(path: str) -> str:
    return next((kind for pattern, kind in KINDS.items() if re.fullmatch(pattern, path)), path)


def build(in_order: bool, unsynced: bool = False) -> Memory:
    """Two of everything. After a kill there are transactions in two journal files that nobody has applied.

    `unsynced`: the killed process has written some more to the journal, the definitions and the streams' offsets.
    """
    home = Home(Memory())
    plain, streams, kept = ("a", "b"), ("s", "t"), ("k", "l")
    for name in (*plain, *streams, *kept):
        more: dict[str, Any] = {"s": {"x_queue_type": "stream"}, "t": {"x_queue_type": "stream"}}.get(name, {})
        more = {"x_archive": True} if name in kept else more
        home.declare(name, **more).log.segment_bytes = SEGMENT_BYTES
    home.broker.vhosts["/"].bind("amq.topic", home.queue("a"), "a.#", {})
    for n in range(40):
        for name in (*plain, *streams, *kept):
            home.publish(name, b"%s %03d " % (name.encode(), n) + bytes(range(256)) * (n % 5))
        if n % 6 == 5:
            home.settle_down()
    for name in plain:
        home.take(name)
        for offset in (*range(2, 20), 30):
            home.queue(name).ack(offset, 1)
    for name in kept:
        home.drain(name)
        home.settle_down()
    home.broker.archives.look()
    home.settle_down()
    for name in (*plain, *kept):
        home.publish(name, b"%s last" % name.encode())
    for name, offset in zip(streams, (17, 23), strict=True):
        for at in (3, offset):
            home.queue(name).log.offsets.put("reader", at)  # type: ignore[attr-defined]
            home.queue(name).log.offsets.write()  # type: ignore[attr-defined]
    move(home)
    home.settle_down()
    if in_order:
        home.stop()
    else:
        for _ in range(4):
            move(home, apply=False)
        job = home.store.begin_sync(everything=True)
        job.run()
        home.store.commits._hurried.clear()
        home.store.end_sync(job)
        home.store.inventory.file.sync()
        if unsynced:
            for n in range(3):
                move(home, apply=False)
                home.declare(f"new {n}")
                for name in streams:
                    home.queue(name).log.offsets.put("reader" if n % 2 else "other", 30 + n)  # type: ignore[attr-defined]
                    home.queue(name).log.offsets.write()  # type: ignore[attr-defined]
        home.leave()
    assert isinstance(home.disk, Memory)
    home.disk.locks.clear()
    return home.disk


def move(home: Home, apply: bool = True) -> None:
    """A transaction over two queues."""
    ids = [home.queue(name).log.queue_id for name in "ab"]
    record = Record(appends=[Append(i, address(n), b"\0\0", b"moved" * 20) for i, n in zip(ids, "ab", strict=True)])
    if apply:
        home.broker.records.write(record, lambda: home.broker.apply(record), lambda: None)
        home.settle_down()
    else:
        home.store.journal.write(record)


def served(home: Home) -> dict[str, Any]:
    """All that anybody can see: messages with their flags, places of named consumers, definitions."""
    found: dict[str, Any] = {}
    for queue in home.broker.listed:
        if queue.settings.stream:
            offsets = range(queue.log.first, queue.next)  # type: ignore[attr-defined]
            found[queue.name] = [(m[2], False) for m in (stored.read(queue, o) for o in offsets) if m is not None]
            found[f"{queue.name}, reader"] = queue.log.offsets.get("reader")  # type: ignore[attr-defined]
        else:
            found[queue.name] = [(d.body, d.redelivered) for d in home.take(queue.name)]
    vhost = home.broker.vhosts["/"]
    found["definitions"] = sorted(vhost.queues), sorted(vhost.exchanges), len(home.broker.users.list())
    found["bindings"] = len(list(vhost.bindings_to(vhost.queues["a"]))) if "a" in vhost.queues else 0
    return found


def without_more_flags(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """A flag too many makes a careful consumer look twice, and is no loss."""
    result = dict(now)
    for name, messages in before.items():
        if isinstance(messages, list) and len(now.get(name, ())) == len(messages):
            result[name] = [(m[0], m[1] and b[1]) for m, b in zip(now[name], messages, strict=True)]
    return result


class Damages:
    """Of one directory: (what, path, the damaged disk)."""

    def __init__(self, disk: Memory, rng: Random) -> None:
        self.disk = disk
        self.rng = rng
        self.by_kind: dict[str, list[str]] = {}
        for path in disk.files():
            self.by_kind.setdefault(kind_of(path), []).append(path)

    def all(self) -> Iterator[tuple[str, str, Memory]]:
        """First one of each kind of file and damage, then others."""
        for what in ("gone", "empty", "cut", "flipped", "swapped"):
            for kind in sorted(self.by_kind):
                for path in self.rng.sample(self.by_kind[kind], 1):
                    yield from self.make(what, path)
        while True:
            kind = self.rng.choice(sorted(self.by_kind))
            yield from self.make(
                self.rng.choice(("gone", "empty", "cut", "flipped", "swapped")), self.rng.choice(self.by_kind[kind])
            )

    def make(self, what: str, path: str) -> Iterator[tuple[str, str, Memory]]:
        disk, content = self.disk.copy(), self.disk[path]
        likes = [other for other in self.by_kind[kind_of(path)] if other != path]
        if what == "gone":
            disk.unlink(path)
        elif what == "empty":
            disk[path] = b""
        elif what == "cut" and content:
            at = self.rng.choice((len(content) // 2, self.rng.randrange(len(content)), len(content.rstrip(b"\0")) - 1))
            disk[path] = content[: max(at, 0)]
            what = f"cut at {at}"
        elif what == "flipped" and content:
            at, bit = self.rng.randrange(len(content)), self.rng.randrange(8)
            disk.flip(path, at, bit)
            what = f"flipped at {at}"
        elif what == "swapped" and likes:
            like = self.rng.choice(likes)
            disk[path], disk[like] = disk[like], content
            what = f"swapped with {like}"
        else:
            return
        if disk.files() != self.disk.files():
            yield what, path, disk

    def rooms(self) -> Iterator[tuple[str, str, Memory]]:
        """Whole directories that are gone."""
        for room in sorted({path.rpartition("/")[0] for path in self.disk.files() if "/" in path}):
            disk = self.disk.copy()
            disk.rmtree(room)
            yield "gone", room, disk


def look(disk: Memory, before: dict[str, Any]) -> tuple[str, str]:
    """What the start says, and what `check` says; AssertionError where one of them is silent and should not be."""
    judged = disk.copy()
    judged.reading = True
    try:
        found = [str(finding) for finding in Survey(judged).findings]
    except StoreError as error:
        found = [str(error)]
    try:
        home = Home(disk)
    except StoreError as error:
        assert found, f"check is silent, and the start is refused: {error}"
        return "refused", "told"
    now = served(home)
    alarms = list(home.store.alarms)
    home.stop()
    disk.locks.clear()
    if without_more_flags(now, before) != before:
        changed = [name for name in before if now.get(name) != before[name]]
        assert alarms, f"the start is silent, and {changed} is another"
        assert found, f"check is silent, and {changed} is another"
    again = Home(disk)
    assert not again.store.alarms or alarms, f"only the second start says: {again.store.alarms}"
    again.leave()
    return ("alarm" if alarms else "without loss"), ("told" if found else "silent")


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "killed"])
def test_no_damage_to_a_file_is_silent(in_order: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "ROTATE_BYTES", 500)
    seed = Random().randrange(1 << 32)
    print(f"seed {seed}")
    disk = build(in_order)
    untouched = Home(disk.copy())
    before = served(untouched)
    assert not untouched.store.alarms and not Survey(disk.copy()).findings
    damages = Damages(disk, Random(seed))
    outcomes: Counter[str] = Counter()
    wrong = []
    for tried, (what, path, damaged) in enumerate(chain(damages.rooms(), first(damages.all(), DAMAGES))):
        kind = kind_of(path)
        try:
            start, check = look(damaged, before)
            if start == "alarm" and kind not in ARCHIVES:
                assert check == "told", "the start raises an alarm, and check is silent"
            if check == "told" and kind in ("segment", "settlement log", "journal") and not what.startswith("flipped"):
                assert start != "without loss", "check tells of it, and the start does not"
            outcomes[f"{kind}, {what.split()[0]}: start {start}, check {check}"] += 1
        except AssertionError as error:
            wrong.append(f"{tried}: {path} {what}: {str(error).splitlines()[0]}")
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:6} {outcome}")
    assert not wrong, "\n".join(wrong)


def first(damages: Iterator[tuple[str, str, Memory]], n: int) -> Iterator[tuple[str, str, Memory]]:
    for _ in range(n):
        yield next(damages)
