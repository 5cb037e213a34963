"""A broker and its standby as processes: kills of both under load, the promotion, and what is refused."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kvitto
from kvitto.base.config import ConfigError
from kvitto.client import Connection
from kvitto.client.aio.events import Blocked, Event
from kvitto.client.blocking.connection import SyncConnection
from kvitto.cluster.handshake import read_key
from kvitto.server.follower_links import BEGINNERS_MAX, FILES
from kvitto.store import paths
from kvitto.store.store import IN_ORDER
from tests.cli.process import kvitto as command
from tests.cluster.publisher import Publisher
from tests.crash.serve import STOP_S, Served
from tests.http.api import Http
from tests.support.wait import wait_until

SMALL = b"x" * 100


class Follower:
    """`kvitto serve --follow` on a data directory."""

    def __init__(self, data: Path, leader: str, key: Path) -> None:
        self.data = data
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        arguments = ["serve", "--data-dir", str(data), "--follow", leader, "--cluster-key", str(key)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvitto.cli.main", *arguments], stdout=subprocess.PIPE, stderr=self.errors, text=True
        )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        self.process.terminate()
        return self.process.wait(STOP_S)


class Pair:
    """A leader with a follower, both in processes of their own, and their directories."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.key = place / "key"
        self.key.write_text("a key that both of them share\n")
        self.key.chmod(0o600)
        self.address = "127.0.0.1:0"
        self._all: list[Served | Follower] = []
        self.lead(place / "one")
        self.follow(place / "two")

    def lead(self, data: Path, *options: str) -> None:
        self.leader = Served(data, "--followers", self.address, "--cluster-key", str(self.key), *options)
        self._all.append(self.leader)
        found = re.search(r" http=(\S+) .* followers=(\S+)", self.leader.ready)
        assert found, self.leader.ready
        self.http = Http(f"http://{found[1]}")
        self.address = found[2]

    def follow(self, data: Path) -> None:
        self.follower = Follower(data, self.address, self.key)
        self._all.append(self.follower)
        assert self.follower.ready.startswith(f"kvitto follows leader={self.address} data={data} pid=")

    def publisher(self) -> Publisher:
        """Return one that publishes to whichever broker leads."""
        return Publisher(lambda: [partial(connect, self.leader)])

    @property
    def behind(self) -> tuple[str, int | None] | None:
        """State and lag of the follower, None without one."""
        found = self.http.get("/api/overview")["kvitto"]["followers"]
        return (found[-1]["state"], found[-1]["lag_bytes"]) if found else None

    def wait(self) -> None:
        """Until the follower has acknowledged all that has been confirmed by now."""
        wait_until(lambda: self.behind == ("following", 0), what="the follower has all")

    def end(self) -> None:
        for each in self._all:
            each.kill()
            each.errors.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path)
    try:
        yield found
    finally:
        found.end()


def connect(served: Served) -> SyncConnection:
    return kvitto.connect_sync(f"amqp://guest:guest@127.0.0.1:{served.port}/", reconnect=False)


def numbers(served: Served) -> list[int]:
    """What is in the queue, in order."""
    with connect(served) as connection, connection.channel() as channel:
        queue = channel.queue("q", durable=True)
        found = [queue.get() for _ in range(queue.message_count)]
        assert queue.get() is None
    return [int(message.body.split()[0]) for message in found if message is not None]


@pytest.mark.slow
def test_what_was_confirmed_and_acknowledged_survives_kills_of_both_and_a_promotion(pair: Pair) -> None:
    """C2, on another machine: all of it is there, in order."""
    with pair.publisher() as publisher:
        publisher.more(200)
        for _ in range(2):
            pair.follower.kill()
            publisher.more(200)
            pair.follow(pair.place / "two")
            publisher.more(200)
            pair.leader.kill()
            pair.lead(pair.place / "one")
            publisher.more(200)
    pair.wait()
    pair.leader.kill()
    assert pair.follower.stop() == 0
    assert "Traceback" not in pair.follower.log()
    checked = command("check", str(pair.place / "two"))
    assert checked.returncode == 0, checked.stdout
    promoted = command("promote", str(pair.place / "two"))
    assert promoted.returncode == 0 and "leads (epoch 2)" in promoted.stdout
    pair.lead(pair.place / "two")
    found = numbers(pair.leader)
    assert set(publisher.confirmed) <= set(found) and found == sorted(found) and len(found) == len(set(found))
    # the leader of before may follow now, and is the same then
    pair.follow(pair.place / "one")
    pair.wait()
    assert pair.leader.stop() == 0
    wait_until(lambda: files(pair.place / "one") == files(pair.place / "two"), what="both directories are the same")


@pytest.mark.slow
def test_with_two_in_sync_a_follower_has_all_that_was_confirmed_when_its_leader_dies(pair: Pair) -> None:
    pair.wait()
    assert pair.leader.stop() == 0
    pair.lead(pair.place / "one", "--min-in-sync", "2")
    with pair.publisher() as publisher:
        publisher.more(500)
        pair.leader.kill()
    assert pair.follower.stop() == 0
    assert command("promote", str(pair.place / "two")).returncode == 0
    pair.lead(pair.place / "two")
    found = numbers(pair.leader)
    assert set(publisher.confirmed) <= set(found) and len(found) == len(set(found))


@pytest.mark.slow
def test_with_two_in_sync_nothing_is_confirmed_without_a_follower(pair: Pair) -> None:
    pair.wait()
    assert pair.leader.stop() == 0
    pair.lead(pair.place / "one", "--min-in-sync", "2")
    confirmed = threading.Event()

    def publish() -> None:
        channel.publish(b"1", "q")
        confirmed.set()

    def about() -> dict[str, Any]:
        found: dict[str, Any] = pair.http.get("/api/overview")["kvitto"]
        return found

    events: list[Event] = []
    uri = f"amqp://guest:guest@127.0.0.1:{pair.leader.port}/"
    with (
        kvitto.connect_sync(uri, reconnect=False, on_event=events.append) as connection,
        connection.channel() as channel,
    ):
        channel.queue("q", durable=True)
        channel.publish(b"0", "q")
        pair.follower.kill()
        wait_until(lambda: about()["publishers_blocked"], what="publishers are blocked")
        # one that publishes one by one may wait for a confirm, and would be told nothing at its next publish
        wait_until(lambda: any(isinstance(event, Blocked) for event in events), what="the publisher is told")
        assert about()["followers"] == [] and about()["min_in_sync"] == 2
        assert pair.http.get("/api/cluster")["minimum"] == 2
        syncs, thread = about()["syncs"], threading.Thread(target=publish)
        thread.start()
        try:
            wait_until(lambda: about()["syncs"] > syncs, what="the message is synced here")
            assert not confirmed.is_set()
        finally:
            pair.follow(pair.place / "two")
            thread.join()
        assert confirmed.is_set()
        wait_until(lambda: not about()["publishers_blocked"], what="publishers may go on")
    assert (
        "publishers are blocked: low on followers: 0 in sync, and nothing is confirmed before 1 is" in pair.leader.log()
    )
    assert pair.leader.stop() == 0
    assert pair.follower.stop() == 0


@pytest.mark.slow
def test_with_two_in_sync_a_flood_waits_for_a_follower_that_stands_still(pair: Pair) -> None:
    """If it were lost to the ring it would have to compare its files, and nobody could promote it meanwhile."""
    pair.wait()
    assert pair.leader.stop() == 0
    pair.lead(pair.place / "one", "--min-in-sync", "2")

    def flood() -> None:
        with Connection(f"amqp://guest:guest@127.0.0.1:{pair.leader.port}/") as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            started.set()
            for _ in range(200):
                channel.publish(bytes(1 << 20), routing_key="q")
            channel.queue_declare("q", durable=True)

    started, thread = threading.Event(), threading.Thread(target=flood)
    thread.start()
    started.wait()
    os.kill(pair.follower.process.pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: pair.http.get("/api/overview")["kvitto"]["publishers_blocked"], what="publishers are blocked"
        )
    finally:
        os.kill(pair.follower.process.pid, signal.SIGCONT)
        thread.join()
    pair.wait()
    assert "has to compare its files again" not in pair.leader.log()
    assert pair.leader.stop() == 0


@pytest.mark.slow
def test_a_start_that_waits_for_a_follower_can_be_ended_in_order(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef")
    key.chmod(0o600)
    arguments = ["serve", "--data-dir", str(tmp_path / "data"), "--port", "0", "--http-port", "0"]
    arguments += ["--followers", "127.0.0.1:0", "--cluster-key", str(key), "--min-in-sync", "2"]
    with subprocess.Popen(
        [sys.executable, "-m", "kvitto.cli.main", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None and process.stdout is not None
        while "clients are served when 1 is in sync" not in (line := process.stderr.readline()):
            assert line, "the start has ended"
        process.terminate()
        assert process.wait(STOP_S) == 0
        assert process.stdout.read() == ""
    assert len((tmp_path / "data" / paths.BOOT).read_bytes()) == len(IN_ORDER)


@pytest.mark.slow
def test_strangers_who_hold_connections_do_not_keep_a_follower_out(pair: Pair) -> None:
    pair.wait()
    pair.follower.kill()
    host, port = pair.address.rsplit(":", 1)
    strangers = [socket.create_connection((host, int(port))) for _ in range(BEGINNERS_MAX + 4)]
    try:
        pair.follow(pair.place / "two")
        pair.wait()
    finally:
        for stranger in strangers:
            stranger.close()


@pytest.mark.slow
def test_strangers_who_come_often_are_a_line_of_the_log(pair: Pair) -> None:
    pair.wait()
    host, port = pair.address.rsplit(":", 1)
    for said in (b"GET / HTTP/1.1\r\n\r\n", b""):
        for _ in range(20):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(said)
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(1) == b""
    pair.wait()
    for reason in ("no follower of Kvitto's", "it is gone before it was a follower; does it have the same key?"):
        assert len(re.findall(f"follower {host}:[0-9]+: {re.escape(reason)}\n", pair.leader.log())) == 1


@pytest.mark.slow
def test_a_flood_of_strangers_takes_few_descriptors(pair: Pair) -> None:
    """They come faster than the loop looks: without a bound they would take those that queues and syncs need."""
    pair.wait()
    open_files = Path(f"/proc/{pair.leader.process.pid}/fd")
    before, most, count = len(list(open_files.iterdir())), 0, 4 * BEGINNERS_MAX
    host, port = pair.address.rsplit(":", 1)
    strangers = [socket.socket() for _ in range(count)]
    try:
        for stranger in strangers:
            stranger.setblocking(False)
            stranger.connect_ex((host, int(port)))

        def ended() -> bool:
            nonlocal most
            most = max(most, len(list(open_files.iterdir())))
            readable, _, _ = select.select(strangers, [], [], 0)
            return len(readable) >= BEGINNERS_MAX  # some may wait in the system's queue, and come late

        wait_until(ended, what="the first ones are closed")
        assert most <= before + FILES
    finally:
        for stranger in strangers:
            stranger.close()


def files(data: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(data)): path for path in data.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if not paths.is_local(name)}


@pytest.mark.slow
def test_a_follower_that_stands_still_does_not_hold_up_the_leader(pair: Pair) -> None:
    """It gets what it has missed when it goes on, by comparing files: the ring has not kept it."""
    pair.wait()
    os.kill(pair.follower.process.pid, signal.SIGSTOP)
    with connect(pair.leader) as connection, connection.channel() as channel:
        channel.queue("q", durable=True)
        body = bytes(1 << 20)
        for _ in range(100):
            channel.publish(body, "q")
    before = pair.leader.rss()
    assert before < 500 << 20
    os.kill(pair.follower.process.pid, signal.SIGCONT)
    wait_until(lambda: "has to compare its files again" in pair.leader.log(), what="the leader gives up the connection")
    pair.wait()
    assert pair.leader.stop() == 0
    wait_until(lambda: files(pair.place / "one") == files(pair.place / "two"), what="both directories are the same")


@pytest.mark.slow
def test_what_may_not_be_done_is_refused_with_words(pair: Pair) -> None:
    one, two, three = (str(pair.place / name) for name in ("one", "two", "three"))
    pair.wait()
    before = files(pair.place / "two")

    def refused(*arguments: str) -> str:
        result = command(*arguments)
        assert result.returncode in (1, 2) and result.stdout in ("", result.stdout), result
        assert "Traceback" not in result.stderr
        return result.stderr.strip().splitlines()[-1]

    follow = ("serve", "--follow", pair.address, "--cluster-key", str(pair.key), "--data-dir")
    serve = ("serve", "--port", "0", "--http-port", "off", "--data-dir")
    assert "is in use by process" in refused(*follow, two)
    assert "is in use by process" in refused("promote", two)
    pair.follower.stop()
    assert f"{two} follows another broker" in refused(*serve, two) and "kvitto promote" in refused(*serve, two)
    assert "does not follow a leader" in refused("promote", three) or "is not there" in refused("promote", three)
    other = pair.place / "other"
    other.write_text("another key, which is as long\n")
    other.chmod(0o600)
    wrong = refused("serve", "--follow", pair.address, "--cluster-key", str(other), "--data-dir", two)
    assert "has another key: --cluster-key has to be the same file on both sides" in wrong
    other.chmod(0o644)
    assert "chmod 600" in refused("serve", "--follow", pair.address, "--cluster-key", str(other), "--data-dir", two)
    assert "needs --cluster-key" in refused("serve", "--follow", pair.address, "--data-dir", two)
    assert "is no address" in refused("serve", "--follow", "nowhere", "--cluster-key", str(pair.key))
    with Served(pair.place / "three") as plain:
        assert plain.stop() == 0
    assert "has never followed a leader" in refused(*follow, three)
    assert "does not follow a leader" in refused("promote", one) or "is in use" in refused("promote", one)
    assert files(pair.place / "two") == before
    pair.follow(pair.place / "two")
    pair.wait()


def test_a_key_has_a_length_and_is_nobody_elses(tmp_path: Path) -> None:
    key = tmp_path / "key"
    with pytest.raises(ConfigError, match="No such file"):
        read_key(key)
    key.write_text("short")
    key.chmod(0o600)
    with pytest.raises(ConfigError, match="16 to 4096 bytes"):
        read_key(key)
    key.write_text("0123456789abcdef\n")
    found = read_key(key)
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by other users"):
        read_key(key)
    assert len(found) == 32
