"""What a process did to its files, as strace has seen it, done again on a simulated disk that knows what was synced.

Written, cut, renamed and removed is what has returned; a sync covers what had been done when it was called, and only once it has returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvitto.wire.methods import Method, decode
from kvitto.wire.spec import FRAME_METHOD
from tests.support.simdisk import Inode, NameChange, SimDisk, Write

CALLS = (
    "openat,close,pwrite64,pwritev,pwritev2,ftruncate,fallocate,rename,renameat,renameat2,link,linkat,unlink,unlinkat,"
    "mkdir,mkdirat,rmdir,fsync,fdatasync,sendto"
)
STRACE = [
    "strace",
    "-f",
    "--seccomp-bpf",
    "-qq",
    "-v",
    "-xx",
    "-s",
    "4000000",
    "-e",
    f"trace={CALLS}",
    "-e",
    "signal=none",
]
_LINE = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_UNFINISHED = " <unfinished ...>"


@dataclass
class Call:
    """`begun`: it was called, and has not returned yet."""

    name: str
    arguments: str
    result: int
    thread: str
    begun: bool = False

    @property
    def strings(self) -> list[bytes]:
        return [bytes.fromhex(text.replace("\\x", "")) for text in _STRING.findall(self.arguments)]

    @property
    def numbers(self) -> list[int]:
        """The arguments that are plain numbers, in order."""
        bare = re.sub(r"\[.*\]", "[]", _STRING.sub('""', self.arguments))
        return [int(part) for part in bare.split(", ") if re.fullmatch(r"-?\d+", part)]


def calls(log: Path) -> Iterator[Call]:
    """In the order in which they returned; one that takes its time comes twice."""
    waiting: dict[str, str] = {}
    for line in log.read_text().splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        thread, resumed, name, rest = found.groups()
        if rest.endswith(_UNFINISHED):
            waiting[thread] = rest.removesuffix(_UNFINISHED)
            yield Call(name, waiting[thread], 0, thread, begun=True)
            continue
        text, _, result = (waiting.pop(thread, "") + rest if resumed else rest).rpartition(" = ")
        number = re.match(r"-?\d+", result)
        if number is not None and int(number[0]) >= 0:
            yield Call(resumed or name, text.rstrip().removesuffix(")"), int(number[0]), thread)


class Replay:
    """`step` does one call again. `told`: the methods that have been sent to clients so far."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.disk = SimDisk()
        self.told: list[tuple[int, Method]] = []
        self._files: dict[int, tuple[str, Inode | None]] = {}
        self._syncing: dict[str, tuple[list[Write], list[NameChange]]] = {}
        self._sent: dict[int, bytearray] = {}

    def step(self, call: Call) -> bool:
        """Whether the disk is another now."""
        if call.name in ("fsync", "fdatasync"):
            return self._sync(call)
        if call.begun:
            return False
        if call.name == "sendto":
            self._send(call)
            return False
        before = self.disk.operations
        getattr(self, f"_{call.name}", self._other)(call)
        return self.disk.operations > before

    def _path(self, call: Call, k: int = 0) -> str | None:
        """The path in the data directory, None for any other."""
        text = call.strings[k].decode()
        if not text.startswith("/"):
            above = call.arguments.split(", ")[0]
            text = self._files.get(int(above), ("", None))[0] + "/" + text if above.isdigit() else "?"
        elif text == self.root or text.startswith(self.root + "/"):
            text = text[len(self.root) + 1 :]
        else:
            return None
        return None if text.startswith("?") else text

    def _openat(self, call: Call) -> None:
        path = self._path(call)
        if path is not None:
            if "O_DIRECTORY" in call.arguments or (self.disk.exists(path) and self.disk._names.get(path) is None):
                self._files[call.result] = (path, None)
            else:
                self._files[call.result] = (path, self.disk.open(path, create="O_CREAT" in call.arguments)._inode)
        else:
            self._files.pop(call.result, None)

    def _close(self, call: Call) -> None:
        self._files.pop(call.numbers[0], None)

    def _change(self, call: Call, write: Write) -> None:
        inode = self._files.get(call.numbers[0], ("", None))[1]
        if inode is not None:
            self.disk.change(call.name, lambda: inode.change(write))

    def _pwritev2(self, call: Call) -> None:
        """Writes that were cut short come with less than they had been given."""
        self._change(call, Write(call.numbers[2], b"".join(call.strings)[: call.result]))

    _pwritev = _pwritev2

    def _pwrite64(self, call: Call) -> None:
        self._change(call, Write(call.numbers[-1], b"".join(call.strings)[: call.result]))

    def _ftruncate(self, call: Call) -> None:
        self._change(call, Write(call.numbers[1], None))

    def _fallocate(self, call: Call) -> None:
        descriptor, mode, start, length = call.numbers
        inode = self._files.get(descriptor, ("", None))[1]
        assert mode == 0
        if inode is not None and start + length > len(inode.live):
            self._change(call, Write(len(inode.live), bytes(start + length - len(inode.live))))

    def _mkdir(self, call: Call) -> None:
        path = self._path(call)
        if path:
            self.disk.makedirs(path)

    _mkdirat = _mkdir

    def _rename(self, call: Call) -> None:
        a, b = self._path(call, 0), self._path(call, 1)
        if a is not None and b is not None:
            self.disk.rename(a, b)

    _renameat = _renameat2 = _rename

    def _link(self, call: Call) -> None:
        a, b = self._path(call, 0), self._path(call, 1)
        if a is not None and b is not None:
            self.disk.link(a, b)

    _linkat = _link

    def _unlink(self, call: Call) -> None:
        path = self._path(call)
        if path is not None:
            self.disk._rename(NameChange(path, None, made=False))

    _unlinkat = _rmdir = _unlink

    def _other(self, call: Call) -> None:
        raise AssertionError(f"a call that nobody does again: {call.name}")

    def _sync(self, call: Call) -> bool:
        known = self._files.get(call.numbers[0])
        if known is None:
            return False
        path, inode = known
        if inode is not None:
            now: tuple[list[Write], list[NameChange]] = list(inode.pending), []
        else:
            chosen = self.disk._certain_with(path)
            now = [], [change for change in self.disk._pending if id(change) in chosen]
        if call.begun:
            self._syncing[call.thread] = now
            return False
        writes, changes = self._syncing.pop(call.thread, now)
        if inode is not None:
            for write in writes:
                write.apply(inode.certain)
            inode.pending = [write for write in inode.pending if not any(write is other for other in writes)]
        for change in changes:
            change.apply(self.disk._certain)
            gone = "" if change.made else f"{change.path}/"
            self.disk._pending = [
                other
                for other in self.disk._pending
                if other is not change and not (gone and other.path.startswith(gone))
            ]
        return bool(writes or changes)

    def _send(self, call: Call) -> None:
        data = self._sent.setdefault(call.numbers[0], bytearray())
        data += call.strings[0][: call.result]
        while len(data) >= 8 and len(data) >= 8 + int.from_bytes(data[3:7], "big"):
            size = int.from_bytes(data[3:7], "big")
            if data[0] == FRAME_METHOD:
                self.told.append((int.from_bytes(data[1:3], "big"), decode(bytes(data[7 : 7 + size]))))
            del data[: 8 + size]
