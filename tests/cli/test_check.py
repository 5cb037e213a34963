"""`kvitto check` and `kvitto salvage`: what they print, their exit codes, and a broker on what was saved."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kvitto
from kvitto.cli import main
from kvitto.client import Connection
from kvitto.store.disk import RealDisk
from tests.cli.process import serving
from tests.support import datadir
from tests.support.datadir import Memory

Answer = tuple[int, str, str]
Run = Callable[..., Answer]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("original") / "data"
    datadir.build(RealDisk(str(root)))
    return root


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    disk = Memory(original)
    for path, content in disk.files().items():
        (tmp_path / "data" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / path).write_bytes(content)
    return tmp_path / "data"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> Answer:
        code = main.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return call


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def break_sector(path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nobody can read the 4096 bytes around `at`."""
    inode, begin, real = path.stat().st_ino, at // 4096 * 4096, os.pread

    def pread(fd: int, n: int, pos: int) -> bytes:
        if os.fstat(fd).st_ino == inode and pos < begin + 4096 and pos + n > begin:
            if pos >= begin:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            n = begin - pos
        return real(fd, n, pos)

    monkeypatch.setattr(os, "pread", pread)


def plain(data: Path, pattern: str) -> Path:
    """A file of the queue `plain`: the only one with settlements in its first segment."""
    return next(data.glob("queues/*/00000000000000000000.ack")).with_name(pattern)


def test_a_sound_directory(data: Path, run) -> None:  # type: ignore[no-untyped-def]
    code, out, err = run("check", data)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["vhost", "queue", "ready", "settled", "damaged", "segments", "directory"]
    rows = {(line.split()[1], line.split()[-1].split("/")[0]): line.split()[2:6] for line in lines[1:-1]}
    assert rows["plain", "queues"] == ["36", "24", "0", "4"] and rows["kept", "archive"] == ["0", "54", "0", "3"]
    assert lines[-1] == f"{data} is sound (left in order)"


def test_what_the_device_cannot_read_is_told_and_the_rest_is_saved(
    data: Path,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """D3: one bad sector, and neither of the two did anything at all."""
    log = plain(data, "00000000000000000018.log")
    whole = datadir.read(Memory(data))
    break_sector(log, 5000, monkeypatch)
    place = log.relative_to(data)
    code, out, _ = run("check", data)
    assert code == 1 and f"damage: {place}, byte 4096: 4096 bytes cannot be read from the device" in out
    code, out, _ = run("salvage", data, "--to", tmp_path / "saved")
    assert code == 1 and f"damage: {place}, byte 4096" in out
    saved = datadir.read(Memory(tmp_path / "saved"))
    assert len(whole["plain"]) - 12 <= len(saved["plain"]) < len(whole["plain"])
    assert {**saved, "plain": []} == {**whole, "plain": []} and set(saved["plain"]) < {
        (body, True) for body, _ in whole["plain"]
    } | set(whole["plain"])


def test_damage_is_shown_with_its_place_and_1(data: Path, run) -> None:  # type: ignore[no-untyped-def]
    log = plain(data, "00000000000000000018.log")
    flip(log, 100)
    code, out, _ = run("check", data)
    assert code == 1
    place = log.relative_to(data)
    assert f"damage: {place}, byte 72: " in out and "and with them offsets 18 to 23" in out
    assert (
        out.splitlines()[-1]
        == f"1 damaged place in {data} (left in order); `kvitto salvage {data} --to DIR2` saves what can be read"
    )
    code, out, _ = run("check", data, "--json")
    found = json.loads(out)
    assert code == 1 and not found["sound"] and found["in_order"] and found["notes"] == []
    assert [(d["path"], d["byte"], d["offsets"]) for d in found["damage"]] == [(str(place), 72, [18, 24])]
    queue = next(q for q in found["queues"] if q["queue"] == "plain")
    assert (queue["ready"], queue["settled"], queue["damaged"]) == (36, 18, 0)


def test_what_is_salvaged_is_sound_and_served(data: Path, tmp_path: Path, run) -> None:  # type: ignore[no-untyped-def]
    """P4, A9: all that could be read, in order, with its marks, from a broker on the fresh directory."""
    flip(plain(data, "00000000000000000036.log"), 100)
    definitions = data / "definitions.log"
    flip(definitions, definitions.read_bytes().index(b'"again"') + 2)
    code, out, err = run("salvage", data, "--to", tmp_path / "to")
    assert (code, err) == (1, "")
    assert "is now queue salvaged." in out and "and with them offsets 36 to 41" in out
    assert out.splitlines()[-1].startswith(f"{tmp_path / 'to'} holds all that could be read; ")
    assert run("check", tmp_path / "to")[0] == 0
    with serving(tmp_path / "to") as server, Connection(server.amqp_url) as connection:
        channel = connection.channel()
        got = []
        while (delivery := channel.get("plain", no_ack=True)) is not None:
            assert delivery.redelivered
            got.append(int(bytes(delivery.body).split()[1]))
        assert got == [*range(3), *range(25, 36), *range(42, 60)]
        name = next(word for word in out.split() if word.startswith("salvaged."))
        assert channel.queue_declare(name, passive=True).message_count == 60
        assert server.stop()[0] == 0
    assert run("salvage", data, "--to", tmp_path / "json", "--json")[0] == 1


def test_a_directory_in_use_is_left_alone(tmp_path: Path, run) -> None:  # type: ignore[no-untyped-def]
    """D5: by name of the process; and no broker starts while it is read."""
    with kvitto.Broker(tmp_path / "data"):
        why = f"{tmp_path / 'data'} is in use by process {os.getpid()}: stop the broker first\n"
        assert run("check", tmp_path / "data") == (2, "", f"kvitto: cannot check: {why}")
        code, _, err = run("salvage", tmp_path / "data", "--to", tmp_path / "to")
        assert (code, err) == (2, f"kvitto: cannot salvage: {why}")
        assert not (tmp_path / "to").exists()
    assert run("check", tmp_path / "data")[0] == 0


def test_what_is_no_data_directory(tmp_path: Path, run) -> None:  # type: ignore[no-untyped-def]
    missing = tmp_path / "missing"
    assert run("check", missing)[::2] == (
        2,
        f"kvitto: cannot check: cannot read the data directory {missing}: No such file or directory\n",
    )
    (tmp_path / "other").mkdir()
    why = "this is no data directory: it has no file `format`"
    assert run("check", tmp_path / "other")[::2] == (2, f"kvitto: cannot check {tmp_path / 'other'}: {why}\n")
    (tmp_path / "file").write_bytes(b"")
    assert run("check", tmp_path / "file")[0] == 2
    assert [p.name for p in tmp_path.iterdir()] == ["other", "file"] or not missing.exists()


def test_a_target_that_is_in_use_for_anything_is_refused(data: Path, tmp_path: Path, run) -> None:  # type: ignore[no-untyped-def]
    before = Memory(data).files()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"x")
    for target, why in (
        (tmp_path / "full", "exists and is not an empty directory: give --to another directory"),
        (data, "exists and is not an empty directory: give --to another directory"),
        (data / "x", f"lies in {data}: give --to a directory elsewhere"),
        (tmp_path / "full" / "x", "exists and is not an empty directory: give --to another directory"),
    ):
        which = "" if str(data) in f"{target} {why}" else f" {data}"
        assert run("salvage", data, "--to", target) == (2, "", f"kvitto: cannot salvage{which}: {target} {why}\n")
    assert Memory(data).files() == before
    (tmp_path / "empty").mkdir()
    assert run("salvage", data, "--to", tmp_path / "empty")[0] == 0


def test_somebody_else_s_directory_cannot_be_checked(data: Path, run) -> None:  # type: ignore[no-untyped-def]
    if os.geteuid():
        pytest.skip("needs the right to become another user: run as root")
    assert run("check", data)[0] == 0
    os.seteuid(65534)
    try:
        answer = run("check", data)
    finally:
        os.seteuid(0)
    why = f"cannot read the data directory {data}: Permission denied (the data directory must belong to the user that runs Kvitto)"
    assert answer == (2, "", f"kvitto: cannot check: {why}\n")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory with room for a part of it."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "kvitto-test", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs: run as root on Linux")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_no_room_for_what_is_saved(data: Path, small: Path, run) -> None:  # type: ignore[no-untyped-def]
    """D4: it says so, and what is there already cannot be mistaken for all."""
    target = small / "to"
    code, out, err = run("salvage", data, "--to", target)
    assert (code, out) == (2, "")
    assert "No space left on device (free some space on this file system)" in err
    assert err.endswith(f"; {target} is not complete, and no broker starts in it: remove it\n")
    assert run("check", target)[0] != 0
