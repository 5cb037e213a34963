"""RealDisk against the operating system, and its errors against a failing one."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvitto.base.errors import StoreError, StoreFull
from kvitto.store import disk as disk_module
from kvitto.store.disk import RealDisk, RealFile


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    made = RealDisk(str(tmp_path / "data"))
    made.makedirs("")
    return made


def failing(code: int) -> Callable[..., int]:
    def call(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


def mode(path: str) -> int:
    return os.stat(path).st_mode & 0o777


def test_bytes_come_back_from_where_they_were_written(disk: RealDisk) -> None:
    file = disk.open("a", create=True)
    assert file.write_at(3, [b"one", bytearray(b""), memoryview(b"xtwox")[1:4]]) == 6
    assert file.size() == 9
    assert file.read_at(0, 100) == b"\0\0\0onetwo"
    assert file.read_at(6, 2) == b"tw"
    assert file.read_at(9, 5) == b""
    buf = bytearray(8)
    assert file.read_into(3, memoryview(buf)) == 6
    assert buf == b"onetwo\0\0"
    file.truncate(4)
    file.sync()
    file.close()
    file.close()
    assert disk.read_file("a") == b"\0\0\0o"


def test_more_buffers_than_one_call_takes(disk: RealDisk) -> None:
    file = disk.open("a", create=True)
    buffers = [bytes([i % 251]) * (i % 3) for i in range(5000)]
    assert file.write_at(0, buffers) == len(b"".join(buffers))
    assert file.read_at(0, 1 << 20) == b"".join(buffers)
    file.close()


def test_very_many_buffers_are_looked_at_once(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction's record has a buffer for each message: passing on what is left after each call took seconds."""
    looked_at = 0

    class Counted(list[bytes]):
        def __getitem__(self, key: Any) -> Any:
            nonlocal looked_at
            found = super().__getitem__(key)
            looked_at += len(found) if isinstance(key, slice) else 0
            return found

    file = disk.open("a", create=True)
    assert file.write_at(0, Counted([b"ab"] * 20_000)) == 40_000
    assert looked_at == 20_000
    file.close()


def test_short_writes_go_on(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open("a", create=True)
    real = os.pwritev

    def short(fd: int, views: list[memoryview], pos: int) -> int:
        return real(fd, [views[0][:3]], pos)

    monkeypatch.setattr(os, "pwritev", short)
    assert file.write_at(1, [b"abcde", b"f", b"ghij"]) == 10
    assert file.read_at(1, 99) == b"abcdefghij"
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with pytest.raises(StoreError, match="takes no more"):
        file.write_at(0, [b"x", b"y"])
    file.close()


def test_short_reads_go_on(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open("a", create=True)
    file.write_at(0, [b"abcdefgh"])
    monkeypatch.setattr(disk_module, "MAX_IO_BYTES", 3)
    assert file.read_at(0, 100) == b"abcdefgh"
    buf = bytearray(7)
    assert file.read_into(1, memoryview(buf)) == 7
    assert buf == b"bcdefgh"
    file.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_is_store_full(disk: RealDisk, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    file = disk.open("a", create=True)
    monkeypatch.setattr(os, "pwritev", failing(code))
    with pytest.raises(StoreFull, match="free some space"):
        file.write_at(0, [b"x", b"y"])
    file.close()


def test_a_small_write_says_what_is_wrong() -> None:
    """It does not go through Python at first."""
    full = RealFile("/dev/full", os.open("/dev/full", os.O_RDWR))
    with pytest.raises(StoreFull, match=r"cannot write to /dev/full: .*free some space"):
        full.write_at(0, [b"x"])
    full.close()
    with pytest.raises(StoreError, match="cannot write to /dev/full"):
        full.write_at(0, [b"x"])


def test_other_failures_name_the_file(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open("a", create=True)
    monkeypatch.setattr(os, "pwritev", failing(errno.EIO))
    with pytest.raises(StoreError, match=r"data/a: .*the device failed") as caught:
        file.write_at(0, [b"x", b"y"])
    assert not isinstance(caught.value, StoreFull)
    file.close()


def test_a_failed_sync_is_never_store_full(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open("a", create=True)
    monkeypatch.setattr(disk_module, "datasync", failing(errno.ENOSPC))
    with pytest.raises(StoreError, match="cannot sync") as caught:
        file.sync()
    assert not isinstance(caught.value, StoreFull)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(StoreError, match="cannot sync"):
        disk.sync_dir("")
    file.close()


def test_closed_file_refuses(disk: RealDisk) -> None:
    file = disk.open("a", create=True)
    file.close()
    calls: list[Callable[[], object]] = [
        lambda: file.write_at(0, [b"x"]),
        lambda: file.read_at(0, 1),
        lambda: file.read_into(0, memoryview(bytearray(1))),
        file.size,
        lambda: file.truncate(0),
        file.sync,
    ]
    for call in calls:
        with pytest.raises(StoreError):
            call()


def test_names(disk: RealDisk) -> None:
    assert disk.listdir("") == []
    assert disk.listdir("nowhere") == []
    disk.makedirs("queues/b")
    disk.makedirs("queues/b")
    disk.makedirs("queues/a")
    assert disk.listdir("queues") == ["a", "b"]
    disk.open("queues/a/1", create=True).close()
    disk.open("queues/a/2", create=True).close()
    disk.rename("queues/a/1", "queues/a/2")
    disk.sync_dir("queues/a")
    disk.sync_dir("")
    assert disk.listdir("queues/a") == ["2"]
    assert disk.exists("queues/a/2") and not disk.exists("queues/a/1")
    disk.unlink("queues/a/2")
    assert not disk.exists("queues/a/2")
    disk.open("queues/b/3", create=True).close()
    disk.rmtree("queues/b")
    disk.rmtree("queues/b")
    assert disk.listdir("queues") == ["a"]
    assert disk.free_bytes() > 0


def test_names_that_are_not_there(disk: RealDisk) -> None:
    calls: list[Callable[[], object]] = [
        lambda: disk.open("x"),
        lambda: disk.open("x/y", create=True),
        lambda: disk.unlink("x"),
        lambda: disk.rename("x", "y"),
        lambda: disk.read_file("x"),
        lambda: disk.lock("x/lock"),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="x"):
            call()
    disk.open("file", create=True).close()
    with pytest.raises(StoreError):
        disk.listdir("file")
    with pytest.raises(StoreError):
        disk.sync_dir("file")
    with pytest.raises(StoreError):
        disk.makedirs("file/below")
    with pytest.raises(StoreError):
        RealDisk(os.path.join(disk.root, "file", "data")).makedirs("")


def test_a_directory_may_be_removed_while_a_sync_runs(disk: RealDisk) -> None:
    disk.makedirs("queues/a")
    file = disk.open("queues/a/1", create=True)
    disk.rmtree("queues/a")
    file.sync()
    disk.sync_dir("queues/a")
    file.close()


def test_only_the_owner_can_look(disk: RealDisk) -> None:
    disk.makedirs("queues/a")
    disk.open("queues/a/1", create=True).close()
    lock = disk.lock("lock")
    assert mode(disk.root) == mode(disk.root + "/queues") == mode(disk.root + "/queues/a") == 0o700
    assert mode(disk.root + "/queues/a/1") == mode(disk.root + "/lock") == 0o600
    lock.close()


def test_a_new_data_directory_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(disk_module, "_sync_dir", synced.append)
    RealDisk(str(tmp_path / "a" / "b")).makedirs("")
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    RealDisk(str(tmp_path / "a" / "b")).makedirs("")
    assert len(synced) == 2


def test_d5_one_process_per_data_directory(disk: RealDisk) -> None:
    lock = disk.lock("lock")
    text = f"data is in use by process {os.getpid()}: stop it or choose another --data-dir"
    with pytest.raises(StoreError, match=text):
        RealDisk(disk.root).lock("lock")
    assert disk.read_file("lock") == f"{os.getpid()} {disk.boot_id()}\n".encode()
    lock.close()
    disk.lock("lock").close()


def test_d5_the_lock_ends_with_its_process(disk: RealDisk) -> None:
    code = (
        "import os, sys; from kvitto.store.disk import RealDisk; "
        "lock = RealDisk(sys.argv[1]).lock('lock'); print('held', flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [sys.executable, "-c", code, disk.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(StoreError, match=f"process {child.pid}:"):
        disk.lock("lock")
    child.kill()
    child.communicate(timeout=20)
    disk.lock("lock").close()


def test_boot_id_is_empty_where_there_is_none(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk.boot_id() == disk.boot_id()
    monkeypatch.setattr(disk_module, "BOOT_ID", "/proc/there/is/none")
    assert disk.boot_id() == ""


def test_a_file_may_have_two_names(disk: RealDisk) -> None:
    disk.makedirs("d")
    file = disk.open("a", create=True)
    file.write_at(0, [b"one"])
    assert disk.link("a", "d/b")
    disk.unlink("a")
    file.write_at(3, [b"two"])
    assert disk.read_file("d/b") == b"onetwo"
    file.close()
    for missing, there in (("a", "c"), ("d/b", "d/b"), ("d/b", "x/b")):
        with pytest.raises(StoreError):
            disk.link(missing, there)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV])
def test_a_file_system_without_second_names_is_no_failure(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    disk.open("a", create=True).close()
    monkeypatch.setattr(os, "link", failing(code))
    assert not disk.link("a", "b") and not disk.exists("b")


def test_a_link_without_room_is_a_full_disk(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.open("a", create=True).close()
    monkeypatch.setattr(os, "link", failing(errno.ENOSPC))
    with pytest.raises(StoreFull):
        disk.link("a", "b")


class Remover:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[int] = []

    @property
    def freeing(self) -> int:
        return len(self.given)

    def free(self, fd: int) -> None:
        self.given.append(fd)


def test_the_bytes_of_a_large_file_are_freed_by_whoever_does_so(disk: RealDisk) -> None:
    """Not if the file has another name, as a segment that is in the archive, nor while somebody still reads the file."""
    assert disk.freeing == 0
    disk.remover = remover = Remover()
    for name, size in (("small", disk_module.LARGE_BYTES), ("large", disk_module.LARGE_BYTES + 1)):
        file = disk.open(name, create=True)
        file.write_at(size - 1, [b"x"])
        file.close()
    assert disk.link("large", "kept")
    reader = disk.open("kept")
    disk.unlink("small")
    assert disk.freeing == 0
    disk.unlink("large")
    disk.unlink("kept")
    assert disk.freeing == 2 and disk.listdir("") == []
    for fd in remover.given:
        os.close(fd)
    assert reader.read_at(disk_module.LARGE_BYTES, 9) == b"x"
    reader.close()


def test_a_large_file_goes_although_there_is_no_descriptor_left(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.remover = remover = Remover()
    file = disk.open("large", create=True)
    file.write_at(disk_module.LARGE_BYTES, [b"x"])
    file.close()
    monkeypatch.setattr(os, "open", failing(errno.EMFILE))
    disk.unlink("large")
    assert not disk.exists("large") and not remover.given
