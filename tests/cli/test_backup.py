"""`kvitto backup`: a copy of a broker that runs, a start on it, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvitto.client import Connection, Properties
from tests.cli.process import KVITTO, Serving, kvitto, serving
from tests.support.interrupts import heed_interrupts
from tests.support.wait import wait_until

PERSISTENT = Properties(delivery_mode=2)
QUEUES = 40
"""So many files take a while to be copied and synced."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "data") as found:
        fill(found, "first")
        yield found


def fill(broker: Serving, body: str, count: int = 10) -> None:
    with Connection(broker.amqp_url) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("kept", durable=True, arguments={"x-archive": True})
        channel.confirm_select()
        for i in range(QUEUES):
            channel.queue_declare(f"other {i}", durable=True)
            channel.publish(b"x", "", f"other {i}", PERSISTENT)
        for i in range(count):
            channel.publish(f"{body} {i}".encode(), "", "q", PERSISTENT)
            channel.publish(f"{body} {i}".encode(), "", "kept", PERSISTENT)
        assert channel.wait_for_confirms(10)


def bodies(broker: Serving) -> list[tuple[str, bool]]:
    found = []
    with Connection(broker.amqp_url) as connection:
        channel = connection.channel()
        while (got := channel.get("q", no_ack=True)) is not None:
            found.append((got.body.decode(), got.redelivered))
    return found


def backup(broker: Serving, target: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return kvitto("backup", str(target), "--uri", broker.http_url, *more)


@pytest.mark.parametrize("more", [(), ("--copy",)], ids=["links", "copies"])
def test_a_start_on_a_backup_has_what_was_there_when_the_command_was_given(
    broker: Serving, tmp_path: Path, more: tuple[str, ...]
) -> None:
    done = backup(broker, tmp_path / "copy", *more)
    assert done.returncode == 0, done.stderr
    assert f"backup of {tmp_path / 'data'} in {tmp_path / 'copy'}: " in done.stdout
    assert "is sound (a backup of a running broker)" in done.stdout
    fill(broker, "later")
    with serving(tmp_path / "copy") as copy:
        assert bodies(copy) == [(f"first {i}", False) for i in range(10)]
        assert copy.stop()[0] == 0
    assert len(bodies(broker)) == 20
    assert not list((tmp_path / "data" / "backup").iterdir())


def test_json(broker: Serving, tmp_path: Path) -> None:
    done = backup(broker, tmp_path / "copy", "--json")
    said = json.loads(done.stdout)
    assert said["sound"] is True and said["copied"] > 2 and said["directory"] == str(tmp_path / "copy")


def test_places_that_are_refused(broker: Serving, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    inside = tmp_path / "data" / "queues" / "copy"
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for target, text in (
        (full, "is not empty"),
        (full / "file", "cannot be used"),
        (inside, "is in the broker's data directory"),
        (tmp_path / "link" / "copy", "is in the broker's data directory"),
    ):
        done = backup(broker, target)
        assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr, (target, done)
    assert not inside.exists() and os.listdir(full) == ["file"]
    other = tmp_path / "other"
    other.mkdir()
    for name in ("format", "lock"):
        (other / name).touch()
    done = backup(broker, other / "copy")
    assert done.returncode == 1 and "lies inside" in done.stderr and "Traceback" not in done.stderr, done
    assert sorted(os.listdir(other)) == ["format", "lock"]
    assert backup(broker, tmp_path / "empty").returncode == 0, "the refused ones are over"


def test_who_may_not_and_where_nobody_answers(broker: Serving, tmp_path: Path) -> None:
    kvitto("ctl", "--uri", broker.http_url, "add_user", "eve", "--password-stdin", stdin="pw\n")
    eve = broker.http_url.replace("guest:guest", "eve:pw")
    done = kvitto("backup", str(tmp_path / "copy"), "--uri", eve)
    assert done.returncode == 4 and not (tmp_path / "copy").exists()
    done = kvitto("backup", str(tmp_path / "copy"), "--uri", "http://127.0.0.1:9")
    assert done.returncode == 3 and "no broker answers" in done.stderr


def test_a_second_backup_is_refused(broker: Serving, tmp_path: Path) -> None:
    with suspended(broker, tmp_path / "one"):
        done = backup(broker, tmp_path / "two")
        assert done.returncode == 1 and "another backup is being taken" in done.stderr
        assert not (tmp_path / "two").exists()


ATTEMPTS = 50


class suspended:
    """A `kvitto backup` that has begun to make files, and is stopped there."""

    def __init__(self, broker: Serving, target: Path) -> None:
        self.target = target
        self.command = [*KVITTO, "backup", str(target), "--copy", "--no-check", "--uri", broker.http_url]
        self.process: subprocess.Popen[str]

    def __enter__(self) -> subprocess.Popen[str]:
        """A backup that was too quick is removed, and another one is begun."""
        for _ in range(ATTEMPTS):
            self.process = subprocess.Popen(
                self.command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=heed_interrupts,  # noqa: PLW1509 - it takes no lock
            )
            wait_until(lambda: (self.target / "incomplete-backup").exists() or self.process.poll() is not None)
            self.process.send_signal(signal.SIGSTOP)
            wait_until(lambda: self.process.poll() is not None or self._is_stopped())
            if self.process.poll() is None and not (self.target / "format").exists():
                return self.process
            self.process.send_signal(signal.SIGCONT)
            self.process.communicate(timeout=20)
            shutil.rmtree(self.target, ignore_errors=True)
        raise AssertionError("each of them was too quick")

    def _is_stopped(self) -> bool:
        state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state in "TZ"

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cancelled_backup_leaves_nothing(broker: Serving, tmp_path: Path, number: signal.Signals) -> None:
    with suspended(broker, tmp_path / "copy") as process:
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 130 and "Traceback" not in said
    assert not (tmp_path / "copy").exists()
    assert backup(broker, tmp_path / "copy").returncode == 0, "the broker has let go of it"


def test_a_broker_that_is_killed_meanwhile_leaves_no_backup(broker: Serving, tmp_path: Path) -> None:
    with suspended(broker, tmp_path / "copy") as process:
        broker.process.kill()
        broker.process.wait()
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate(timeout=20)
        if process.returncode:
            assert process.returncode == 3 and "no broker answers" in said
    # else it had just asked for the last time, and had all files
    assert (tmp_path / "copy").exists() == (tmp_path / "copy" / "format").exists() == (process.returncode == 0)
    with serving(tmp_path / "data") as again:
        assert len(bodies(again)) == 10 and not list((tmp_path / "data").glob("backup/*"))


def test_what_a_killed_command_leaves_is_refused(broker: Serving, tmp_path: Path) -> None:
    with suspended(broker, tmp_path / "copy") as process:
        process.kill()
    for words in (("check",), ("serve", "--port", "0", "--http-port", "0", "--data-dir"), ("backup",)):
        done = kvitto(*words, str(tmp_path / "copy"))
        assert done.returncode and "never completed" in done.stderr, (words, done)


def test_without_room_nothing_is_left(broker: Serving, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=17m", "kvitto-test", str(small)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs: run as root on Linux")
    try:
        with Connection(broker.amqp_url) as connection:
            channel = connection.channel()
            channel.confirm_select()
            for _ in range(3):
                channel.publish(bytes(1 << 20), "", "q", PERSISTENT)
            assert channel.wait_for_confirms(10)
        done = backup(broker, small / "copy")
        assert done.returncode == 1 and "there is no room in" in done.stderr
        assert not (small / "copy").exists()
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    assert backup(broker, tmp_path / "copy").returncode == 0
