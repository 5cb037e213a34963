"""A server whose disk fails: it stops, says why, and confirms nothing more."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvitto
from kvitto.base.config import Config
from kvitto.base.errors import StoreError
from kvitto.server.driving import IDLE_BYTES, QUICK, WITHOUT
from kvitto.server.poller import run as run_loop
from kvitto.server.server import Server
from kvitto.store.commit import Commit
from kvitto.store.disk import RealDisk
from tests.support.harness import BrokerHarness
from tests.support.simdisk import SimDisk
from tests.support.wait import TIMEOUT_S


class LostDisk(RealDisk):
    """Its file system answers no question."""

    def free_bytes(self) -> int:
        raise StoreError("cannot ask for the free space: Input/output error")


def test_what_fails_beside_a_turn_ends_the_broker(tmp_path: Path) -> None:
    """C8: whatever the loop calls. It was taken for an end in order, and the next start may refuse what a failed write has left."""

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path, port=0, http_port=None), disk=LostDisk(str(tmp_path)))
        await server.start()
        try:
            await asyncio.wait_for(server.run_until_stopped(), TIMEOUT_S)
        finally:
            await server.stop()

    with pytest.raises(StoreError, match="free space"):
        run_loop(main())
    assert (tmp_path / "boot").read_bytes(), "it is not left in order"


def test_a_busy_broker_has_one_turn_in_each_round_of_the_loop(tmp_path: Path) -> None:
    """Each sync that ended had one turn more run in every round, while there was work: others waited for all of them."""

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path, port=0, http_port=None))
        await server.start()
        turn, turns, synced = server.hub.turn, 0, 0

        def busy() -> None:
            nonlocal turns
            turns += 1
            turn()
            server.schedule()

        def again() -> None:
            nonlocal synced
            synced += 1
            server.store.commits.wrote_file(server.store.definitions.file)
            server.store.commits.when_announced(again)

        server.hub.turn = busy  # type: ignore[method-assign]
        server.received = IDLE_BYTES  # a sync is run by the thread
        again()
        rounds = 0
        while synced < 10:
            server.received = IDLE_BYTES
            await asyncio.sleep(0)
            rounds += 1
        server.store.commits.when_announced = lambda *_: None  # type: ignore[method-assign]
        assert turns <= rounds + synced + 1
        await server.stop()

    run_loop(asyncio.wait_for(main(), 60))


def test_nobody_waits_for_two_commits_with_settlement_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A confirm waits for up to three commits, and those with settlement logs are slow."""
    monkeypatch.setattr("kvitto.server.driving.SETTLEMENT_LOGS_PER_COMMIT", 2)

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path, port=0, http_port=None))
        await server.start()
        store = server.store
        seen: list[Commit] = []
        queues = [f"q{number}" for number in range(20)]
        async with kvitto.connect(f"amqp://127.0.0.1:{server.port}") as connection, connection.channel() as channel:
            for name in queues:
                await channel.queue(name, durable=True)
                await channel.publish(b"x", name)
            store.commits.begun = seen.append
            for name in queues:
                message = await channel.get(name)
                assert message is not None
                message.ack()

            async def publish() -> None:
                while sum(len(commit.acks) for commit in seen) < len(queues):
                    await channel.publish(b"x", queues[0])

            await asyncio.gather(*(publish() for _ in range(5)))
        await server.stop()
        for earlier, before, commit in zip(seen, seen[1:], seen[2:], strict=False):
            if commit.acks and not commit.begins and (commit.hurried or commit.announcements):
                assert not earlier.acks and not before.acks

    run_loop(asyncio.wait_for(main(), 60))


def test_new_files_do_not_keep_settlements_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A11: while every other commit was full of new files, there was one commit per second with settlement logs."""
    monkeypatch.setattr("kvitto.server.driving.SETTLEMENT_LOGS_PER_COMMIT", 2)
    monkeypatch.setattr("kvitto.server.driving.NEW_FILES_PER_COMMIT", 4)
    monkeypatch.setattr("kvitto.broker.queues.later_writes.NEW_FILES_PER_COMMIT", 4)
    monkeypatch.setattr("kvitto.broker.turning.FIRST_COST", 1)

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path, port=0, http_port=None))
        await server.start()
        commits = server.store.commits
        settled, new = [f"q{number}" for number in range(20)], [f"n{number}" for number in range(200)]
        longest = without = 0

        def begun(commit: Commit) -> None:
            nonlocal longest, without
            without = without + 1 if commits.rest and not commit.acks else 0
            longest = max(longest, without)
            if not commits.rest:
                server._full_sync_at = 0.0  # the next one begins a full sync

        async with kvitto.connect(f"amqp://127.0.0.1:{server.port}") as connection, connection.channel() as channel:
            for name in (*settled, *new):
                await channel.queue(name, durable=True)
            await asyncio.gather(*(channel.publish(b"x", name) for name in settled))
            messages = [await channel.get(name) for name in settled]
            commits.begun = begun
            for message in messages:
                assert message is not None
                message.ack()
            await asyncio.gather(*(channel.publish(b"x", name) for name in new))
        await server.stop()
        assert 0 < longest <= WITHOUT + QUICK + 1

    run_loop(asyncio.wait_for(main(), 60))


def test_a_turn_syncs_for_a_moment_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a short sync may ask for the next one when it has ended, without end."""
    monkeypatch.setattr("kvitto.server.driving.SYNCS_S", 0.0)

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path, port=0, http_port=None))
        await server.start()
        synced: list[int] = []

        def again() -> None:
            synced.append(1)
            if len(synced) < 5:
                server.store.commits.when_announced(again)

        server.store.commits.when_announced(again)
        server._do_turn()
        assert len(synced) == 1
        while len(synced) < 5:
            await asyncio.sleep(0)
        await server.stop()

    run_loop(asyncio.wait_for(main(), 60))


def test_a_stop_ends_although_its_last_turn_fails_while_a_sync_runs(tmp_path: Path) -> None:
    """C8: nobody will say that the sync has ended."""

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path / "data", port=0, http_port=None))
        await server.start()
        server.store.begin_sync(everything=True)

        def fail() -> None:
            raise StoreError("the device failed")

        server.hub.turn = fail  # type: ignore[method-assign]
        await asyncio.wait_for(server.stop(), TIMEOUT_S)
        await server.run_until_stopped()

    with pytest.raises(StoreError, match="the device failed"):
        run_loop(main())


def test_a_stop_ends_although_its_last_writes_fail(tmp_path: Path) -> None:
    """C8"""

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path / "data", port=0, http_port=None))
        await server.start()
        shutil.rmtree(tmp_path / "data")
        await asyncio.wait_for(server.stop(), TIMEOUT_S)
        await server.run_until_stopped()

    with pytest.raises(StoreError):
        run_loop(main())


def test_a_stop_syncs_in_the_threads_what_it_cuts_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file after the other, a stop with 1,000 queues took 0.25 s for that, and so did an election."""

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path, port=0, http_port=None))
        await server.start()
        async with kvitto.connect(f"amqp://127.0.0.1:{server.port}") as connection, connection.channel() as channel:
            await channel.queue("q", durable=True)
            for _ in range(2):
                await channel.publish(b"x", "q")
        (segment,) = server.broker.vhosts["/"].queues["q"].log.segments
        assert segment.reserved > segment.size
        monkeypatch.setattr(server.broker, "sync_files", lambda: pytest.fail("the stop syncs in the loop"))
        await server.stop()
        assert server.store.ended_in_order and not segment.reserved

    run_loop(main())


def test_a_job_that_is_not_finished_does_not_go_on_when_the_directory_has_been_left(tmp_path: Path) -> None:
    """A broker with many queues that was stopped just behind its start read closed files, said that they were damaged, and ended with 1."""

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path, port=0, http_port=None))
        await server.start()
        left: list[bool] = []

        def work() -> Iterator[None]:
            while True:
                left.append(server.store.ended_in_order)
                server.schedule()
                yield

        server.broker.jobs.start(work())
        server.schedule()
        await server.stop()
        await server.run_until_stopped()
        for _ in range(3):
            server.schedule()
            await asyncio.sleep(0)
        assert left and not any(left)

    run_loop(main())


def test_a_full_disk_that_fails_next_has_confirmed_nothing() -> None:
    """C2, D4: what a full disk has refused is not stored if the next try ends in another error; its queue is out of service then."""
    harness = BrokerHarness()
    queue = harness.declare("q")
    harness.settle_down()
    harness.disk.full = True
    harness.publish("q", b"waits")
    harness.turn()
    assert harness.broker.full and queue in harness.broker.unwritten
    harness.disk.full = False
    harness.disk.fail_at[harness.disk.operations + 1] = StoreError("cannot write: Input/output error")
    harness.broker.retry_writes()
    assert queue.fault is not None and "Input/output" in queue.fault
    assert harness.broker.faults.fresh == [queue] and queue not in harness.broker.unwritten


def test_any_disk_is_told_who_frees_the_bytes_of_removed_files(tmp_path: Path) -> None:
    """It may be one that stands around another."""
    disk = SimDisk()

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path, port=0, http_port=None), disk)
        await server.start()
        assert disk.remover is not None
        await server.stop()
        assert disk.remover is None

    run_loop(main())


def test_a_timer_may_be_set_for_a_time_that_no_machine_lives_to_see(tmp_path: Path) -> None:
    """A stream may have a maximum age of a billion years. The broker ended, and could not be started again."""

    async def main() -> None:
        server = Server(Config(data_dir=tmp_path, port=0, http_port=None))
        await server.start()
        due = asyncio.Event()
        server.broker.timers.after(999_999_999 * 365 * 86_400_000, due.clear)
        server.schedule()
        await asyncio.sleep(0)
        server.broker.timers.after(1, due.set)
        server.schedule()
        await asyncio.wait_for(due.wait(), TIMEOUT_S)
        await server.stop()
        await server.run_until_stopped()

    run_loop(main())
