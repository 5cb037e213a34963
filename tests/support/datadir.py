"""A real data directory with something of everything in it, and what a reader may expect of it."""

from __future__ import annotations

from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from kvitto.base.clock import SystemClock
from kvitto.base.errors import StoreError
from kvitto.broker.broker import Broker
from kvitto.format.settlement import ACKED
from kvitto.store.disk import Disk
from kvitto.store.record import Append, Record, Settle
from kvitto.store.store import Store
from tests.support import stored
from tests.support.harness import BrokerHarness, address
from tests.support.simdisk import SimDisk, SimFile

QUEUES = ("plain", "again", "stream", "kept", "journaled")
SEGMENT_BYTES = 12_000
Message = tuple[bytes, bool]
"""Body, redelivered."""


class Memory(SimDisk):
    """A data directory in memory, on this machine. `reading`: cutting does nothing, as on a `ReadOnlyDisk`."""

    def __init__(self, root: Path | None = None) -> None:
        super().__init__()
        self.reading = False
        self.boot = boot_id()
        for path in sorted(root.rglob("*")) if root is not None else ():
            name = str(path.relative_to(root))  # type: ignore[arg-type]
            if path.is_dir():
                self.makedirs(name)
            else:
                self[name] = path.read_bytes()

    def boot_id(self) -> str:
        return self.boot

    def open(self, path: str, *, create: bool = False) -> SimFile:
        file = super().open(path, create=create)
        if self.reading:
            file.truncate = lambda n: None  # type: ignore[method-assign]
        return file

    def copy(self) -> Memory:
        twin = Memory()
        twin.__dict__.update(super().copy().__dict__)
        return twin

    def __getitem__(self, path: str) -> bytes:
        return self.files()[path]

    def __setitem__(self, path: str, content: bytes) -> None:
        if self.exists(path):
            self.unlink(path)
        self.open(path, create=True).write_at(0, [content])

    def glob(self, pattern: str) -> list[str]:
        """Names of files, in order."""
        return [path for path in self.files() if fnmatch(path, pattern)]


def boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class Home(BrokerHarness):
    """A `BrokerHarness` on any disk, that can be left as a killed process leaves it."""

    def __init__(self, disk: Disk) -> None:
        self.clock = SystemClock()  # type: ignore[assignment]
        self.disk = disk  # type: ignore[assignment]
        self.start()

    def start(self) -> None:
        self.store = Store(self.disk, self.clock)
        self.store.open()
        try:
            self.broker = Broker(self.store, self.clock)
            self.broker.start()
        except StoreError:
            self.leave()
            raise

    def leave(self) -> None:
        """As a killed process does."""
        self.store._lock.close()  # type: ignore[attr-defined]

    def stop(self) -> None:
        self.settle_down()
        self.broker.finish()
        self.store.shut()


ARGUMENTS: dict[str, dict[str, Any]] = {"stream": {"x_queue_type": "stream"}, "kept": {"x_archive": True}}


def build(disk: Disk, *, in_order: bool = True) -> None:
    """Make the directory. Not in order: killed, with a transaction that was not applied."""
    home = Home(disk)
    for name in QUEUES:
        home.declare(name, **ARGUMENTS.get(name, {})).log.segment_bytes = SEGMENT_BYTES
    home.broker.vhosts["/"].declare_exchange("logs", "topic", True, False, False, {})
    home.broker.vhosts["/"].bind("logs", home.queue("plain"), "a.#", {})
    for n in range(60):
        for name in QUEUES[:4]:
            home.publish(name, b"%s %03d " % (name.encode(), n) + bytes(range(256)) * (n % 5))
        if n % 6 == 5:
            home.settle_down()
    home.publish("journaled", b"to be settled")
    home.settle_down()
    plain, again = home.queue("plain"), home.queue("again")
    taken = home.take("plain")
    for offset in (*range(3, 25), 40, 41):
        plain.ack(offset, 1)
    home.settle_down()
    for delivery in home.take("again")[:30]:
        again.requeue(delivery.offset, 1, len(delivery.body))
    home.drain("kept")
    home.settle_down()
    home.broker.archives.look()
    home.settle_down()
    home.publish("kept", b"kept again")
    home.queue("stream").log.offsets.put("reader", 17)  # type: ignore[attr-defined]
    home.queue("stream").log.offsets.write()  # type: ignore[attr-defined]
    home.settle_down()
    assert len(taken) == 60 and home.disk.listdir("archive") and len(plain.log.segments) > 2
    if in_order:
        home.stop()
    else:
        record = Record(
            appends=[
                Append(home.queue(n).log.queue_id, address(n), b"\0\0", b"from the journal")
                for n in ("plain", "journaled")
            ],
            settles=[Settle(home.queue("journaled").log.queue_id, 0, 1, ACKED)],
        )
        home.store.journal.write(record)
        home.leave()
    home.disk.close()


def read(disk: Memory) -> dict[str, list[Message]]:
    """What a start finds waiting in every queue, in order; the directory stays as it is."""
    home = Home(disk.copy())
    found: dict[str, list[Message]] = {}
    for queue in home.broker.listed:
        name = queue.name
        if queue.settings.stream:
            offsets = range(queue.log.first, queue.next)  # type: ignore[attr-defined]
            found[name] = [(m[2], False) for m in (stored.read(queue, o) for o in offsets) if m is not None]
        else:
            found[name] = [(d.body, d.redelivered) for d in home.take(name)]
    home.leave()
    return found
