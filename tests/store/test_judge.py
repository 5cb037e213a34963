"""D3: a start, `kvitto check` and `kvitto salvage` say the same of a damaged journal, damaged definitions and damaged offsets.

Each of them asks `store/judge.py`, so what is shown here is that none of them judges for itself. `KVITTO_DAMAGES=10000` for more.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest

from kvitto.base.clock import SystemClock
from kvitto.base.errors import StoreError
from kvitto.store import journal as journals
from kvitto.store import paths
from kvitto.store.judge import Records
from kvitto.store.repair.salvage import Salvage
from kvitto.store.repair.survey import Survey
from kvitto.store.store import Store
from tests.store.test_damage_matrix import build
from tests.support.datadir import Home, Memory
from tests.support.older import without_inventory

DAMAGES = int(os.environ.get("KVITTO_DAMAGES", "100"))
JUDGED = re.compile(r"journal/[^ :,]+|definitions\.log|queues/[0-9a-f]+/offsets")
ENDINGS = ("in order", "killed", "killed in an upgrade", "power cut")


@dataclass
class Said:
    """What a start does, or what `kvitto check` says that a start does."""

    refused: bool
    damaged: set[str]
    """The journal's files, the definitions and offsets of which it says that they are damaged. Not compared if it is refused."""
    orphans: set[str]
    defined: list[object]
    read: dict[str, dict[str, int]]
    """By stream, how far named consumers have read."""


def start(disk: Memory) -> Said:
    try:
        opened = Store(disk.copy(), SystemClock())
        opened.open()
        defined: list[object] = [*opened.load_definitions()]
        home = Home(disk)
    except StoreError:
        return Said(True, set(), set(), [], {})
    orphans = {name for name in disk.listdir(paths.QUEUES) if disk.exists(paths.orphan(f"{paths.QUEUES}/{name}"))}
    read = {
        queue.log.queue_id: {tag: kept.offset for tag, kept in queue.log.offsets._kept.items()}  # type: ignore[attr-defined]
        for queue in home.broker.listed
        if queue.settings.stream
    }
    damaged = {found[0] for found in map(JUDGED.match, home.store.alarms) if found is not None}
    home.leave()
    return Said(False, damaged, orphans, defined, read)


def check(found: Survey) -> Said:
    damaged = {finding.path for finding in found.findings if JUDGED.fullmatch(finding.path)}
    # a start does not read the offsets of a stream that is not defined
    damaged -= {paths.offsets(folder.path) for folder in found.queues if not folder.defined[0]}
    refused = not found.definitions_intact or found.journal_gap
    refused = refused or any(journal.what is Records.DAMAGED for journal in found.journals.values())
    assert damaged or not refused, "it is not told why no broker starts"
    orphans = {folder.queue_id for folder in found.queues if folder.orphan}
    read: dict[str, dict[str, int]] = {}
    for folder in found.queues:
        if folder.stream and folder.defined[0]:
            read[folder.queue_id] = offsets_of(folder.slots)
    return Said(refused, damaged, orphans, [*found.definitions], read)


def offsets_of(slots: list[tuple[int, bytes]]) -> dict[str, int]:
    """The later one of two slots of a pair counts, by its number; of two pairs of one tag, which only damage leaves, by its time."""
    pairs: dict[int, tuple[int, str, int, int]] = {}
    for at, content in slots:
        sequence, offset, time_ms = (int.from_bytes(content[k : k + 8], "little") for k in (8, 16, 24))
        tag = content[33 : 33 + content[32]].decode()
        pairs[at // 1024] = max(pairs.get(at // 1024, (-1, "", 0, 0)), (sequence, tag, offset, time_ms))
    return {tag: offset for _, tag, offset, _ in sorted(pairs.values(), key=lambda pair: pair[3])}


def salvaged(found: Survey) -> Memory:
    """A sound directory, on which a broker starts and is not alarmed."""
    to = Memory()
    Salvage(found, to, SystemClock()).run()
    looked_at = to.copy()
    looked_at.reading = True
    again = Survey(looked_at)
    assert [str(finding) for finding in again.findings] == []
    records = [record for journal in found.journals.values() for _, _, record in journal.records]
    assert records == [record for journal in again.journals.values() for _, _, record in journal.records]
    home = Home(to)
    assert home.store.alarms == []
    home.leave()
    return to


def damage(disk: Memory, rng: Random) -> str:
    """Damage a file of those that are judged here. Returns what was done, "" for nothing."""
    kind = rng.choice(("journal/*", "definitions.log", "queues/*/offsets"))
    likes = disk.glob(kind)
    if not likes:
        return ""
    path, how = (
        rng.choice(likes),
        rng.choice(("gone", "flipped", "cut", "zeros", "noise", "more", "less", "swapped", "tail")),
    )
    content = disk[path]
    size = len(content.rstrip(b"\0"))
    at = rng.choice((rng.randrange(size + 1), max(size - rng.randrange(1, 400), 0)))
    n = rng.choice((1, 40, 512, rng.randrange(1, 2000)))
    if how == "gone":
        disk.unlink(path)
        return f"{path} gone"
    if how == "swapped":
        like = rng.choice(likes)
        disk[path], disk[like] = disk[like], content
        return f"{path} swapped with {like}"
    disk[path] = {
        "flipped": content[:at] + bytes(b ^ 1 << rng.randrange(8) for b in content[at : at + 1]) + content[at + 1 :],
        "cut": content[:at],
        "zeros": content[:at] + bytes(len(content[at : at + n])) + content[at + n :],
        "noise": content[:at] + rng.randbytes(len(content[at : at + n])) + content[at + n :],
        "more": content[:at] + rng.choice((bytes(n), rng.randbytes(n), content[:n])) + content[at:],
        "less": content[:at] + content[at + n :],
        "tail": content[:at] + bytes(len(content) - at),
    }[how]
    return f"{path} {how} at {at}, {n}"


def other_ending(disk: Memory, ending: str) -> None:
    if ending == "killed in an upgrade":
        disk["boot"] = disk["boot"].split()[0] + b" upgrading"
    elif ending == "power cut":
        disk.boot = "another boot of the machine"


@pytest.mark.parametrize("ending", ENDINGS)
def test_start_check_and_salvage_agree(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "ROTATE_BYTES", 500)
    rng, wrong = Random(f"{os.environ['KVITTO_SEED']} {ending}"), []
    sound = [build(ending == "in order", unsynced) for unsynced in {False, ending != "in order"}]
    outcomes: Counter[str] = Counter()
    for tried in range(DAMAGES):
        disk = rng.choice(sound).copy()
        if rng.random() < 0.2:
            without_inventory(disk)
        other_ending(disk, ending)
        done = list(filter(None, (damage(disk, rng) for _ in range(rng.choice((1, 1, 2, 3))))))
        judged = disk.copy()
        judged.reading = True
        try:
            found = Survey(judged)
            told = check(found)
            salvaged(found)
            began = start(disk.copy())
            assert began.refused == told.refused, "refused"
            outcomes["refused" if began.refused else "damaged" if began.damaged else "fine"] += 1
            if not began.refused:
                assert began == told
        except AssertionError as error:
            wrong.append(f"{tried}: {done}: {str(error)[:2000]}")
    print(dict(outcomes))
    assert not wrong, "\n".join(wrong)
