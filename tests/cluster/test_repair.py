"""What is damaged on one side is got from the other side, and never goes over a good copy (docs/adr/0038)."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from random import Random

import pytest

from kvitto.cluster import link
from kvitto.cluster.link import Link
from kvitto.cluster.records import CHUNK_BYTES, DOUBTED, StreamError
from kvitto.cluster.state import read_following
from kvitto.store import paths
from kvitto.store.scrub import Damage, Pass
from tests.cluster.pairs import Pair
from tests.cluster.test_follower import bodies, following, publish, replaced
from tests.support.simdisk import SimDisk


def sealed(pair: Pair) -> list[str]:
    """The sealed segments of the queue."""
    found = (path for path in pair.theirs if path.startswith("queues/") and path.endswith(paths.SEGMENT_SUFFIX))
    return sorted(found)[:-1]


def together() -> Pair:
    """A pair with some sealed segments."""
    pair = following(0)
    pair.leading.queue("q").log.segment_bytes = 3000
    for number in range(12):
        publish(pair.leading, f"message {number} " + "x" * 900)
    pair.rest()
    assert pair.own == pair.theirs and len(sealed(pair)) >= 3
    return pair


def scrub(disk: SimDisk) -> list[Damage]:
    found: list[Damage] = []
    for _ in Pass(disk, lambda damage, _: found.append(damage)).run():
        pass
    return found


def listen(pair: Pair) -> list[Damage]:
    told: list[Damage] = []
    pair.leading.leader.on_damage = told.append
    return told


def start_follower_again(pair: Pair) -> None:
    pair.disk = pair.disk.kill()
    pair.begin()
    pair.pump()
    assert pair.link.state == "following"


def test_what_is_damaged_at_a_follower_it_gets_from_the_leader() -> None:
    pair = together()
    good, path = pair.own, sealed(pair)[1]
    pair.disk.flip(path, 500, 3)
    bad = pair.own[path]
    (damage,) = scrub(pair.disk)
    pair.follower.damage = str(damage)
    pair.connect()
    following = read_following(pair.disk)
    assert following is not None and following.damage == str(damage) and following.complete
    told = listen(pair)
    pair.pump()
    assert pair.link.state == "following" and pair.own == pair.theirs == good and not told
    assert replaced(pair.disk)[path] == bad and not scrub(pair.disk)
    following = read_following(pair.disk)
    assert following is not None and not following.damage and following.complete


def test_what_is_damaged_at_the_leader_does_not_go_over_a_good_copy() -> None:
    pair = together()
    good, path = pair.own, sealed(pair)[1]
    pair.leading.inner.flip(path, 500, 3)
    told = listen(pair)
    start_follower_again(pair)
    assert [damage.path for damage in told] == [path]
    assert pair.own == good and path not in replaced(pair.disk)
    assert pair.leading.leader.kept == {path: {pair.link.member}}
    publish(pair.leading, "more")
    pair.rest()
    assert bodies(pair.disk)[-1] == b"more" and len(bodies(pair.disk)) == 13


@pytest.mark.parametrize("offset", [0, 20, 60, 66, 100, 500, 1500, -1, -9, -30, -70])
def test_any_place_of_a_file_may_be_damaged_at_the_leader(offset: int) -> None:
    pair = together()
    for path in [*sealed(pair), paths.DEFINITIONS]:
        good = pair.own
        at = offset % len(good[path])
        pair.leading.inner.flip(path, at, 3)
        told = listen(pair)
        start_follower_again(pair)
        assert [damage.path for damage in told] == [path]
        assert pair.own == good
        pair.leading.inner.flip(path, at, 3)


def test_both_have_damage_in_one_file_and_neither_spreads() -> None:
    """What the leader has whole comes, where the leader is damaged the follower keeps what it has. In one chunk that is not told apart."""
    pair = together()
    path, other = sealed(pair)[:2]
    good = pair.own
    pair.leading.inner.flip(path, 500, 3)
    pair.disk.flip(other, 500, 3)
    told = listen(pair)
    start_follower_again(pair)
    assert [damage.path for damage in told] == [path]
    assert pair.own == good


def test_a_history_that_was_given_up_is_not_kept_because_the_leader_is_damaged() -> None:
    """The follower's file is whole, but another one: messages in it were never confirmed."""
    pair = together()
    path = sealed(pair)[1]
    whole = pair.own[path]
    data = bytearray(whole)
    data[1500:1510] = b"another on"
    pair.disk.open(path).write_at(0, [bytes(data)])
    pair.leading.inner.flip(path, 500, 3)
    told = listen(pair)
    start_follower_again(pair)
    assert [damage.path for damage in told] == [path]
    assert pair.own == pair.theirs and replaced(pair.disk)[path] == bytes(data)


def test_a_leader_that_trusts_itself_damages_its_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look at its own file, the leader's damage becomes the truth: that is what the look is for."""
    monkeypatch.setattr(Link, "_verify", lambda self, path, node: iter_nothing())
    pair = together()
    good, path = pair.own, sealed(pair)[1]
    pair.leading.inner.flip(path, 500, 3)
    start_follower_again(pair)
    assert pair.own != good and replaced(pair.disk)[path] == good[path]


def iter_nothing() -> Generator[bytes, None, list[Damage]]:
    yield b""
    return []


def test_a_chunk_with_damage_goes_out_in_one_step() -> None:
    """What is behind the follower's end of the file may change with any record, and would be stale in a later step."""
    pair = following()
    path = max(path for path in pair.theirs if path.startswith("queues/") and path.endswith(paths.SEGMENT_SUFFIX))
    pair.disk = pair.disk.kill()
    publish(pair.leading, "more", "and more")
    pair.leading.inner.flip(path, 100, 3)
    pair.begin()
    pair.leading.ring.told = pair.leading.ring.next
    pieces = pair.link.pieces

    def changed() -> list[bytes]:
        found = pieces()
        if pair.leading.leader.kept and not changes:
            changes.append(path)
            file = pair.leading.tapped.open(path)
            file.write_at(len(pair.theirs[path]) - 4, [b"late"])
            file.close()
            pair.leading.ring.told = pair.leading.ring.next
        return found

    changes: list[str] = []
    pair.link.pieces = changed  # type: ignore[method-assign]
    pair.pump()
    assert changes and pair.link.state == "following"
    assert pair.own[path][101:] == pair.theirs[path][101:] and pair.own[path].endswith(b"late")


def test_damage_that_spans_chunks_of_a_large_file() -> None:
    pair = following(0)
    for size in (10, CHUNK_BYTES // 2, 3 * CHUNK_BYTES, 10, CHUNK_BYTES, 10):
        pair.leading.publish("q", Random(size).randbytes(size))
        pair.leading.settle_down()
    pair.rest()
    good = pair.own
    path = max(good, key=lambda path: len(good[path]))
    for at in (100, CHUNK_BYTES // 3, CHUNK_BYTES + 5, 2 * CHUNK_BYTES + 5, 4 * CHUNK_BYTES):
        pair.leading.inner.flip(path, at, 3)
        told = listen(pair)
        start_follower_again(pair)
        assert [damage.path for damage in told] == [path] and pair.own == good
        pair.leading.inner.flip(path, at, 3)
        pair.disk.flip(path, at, 3)
        told = listen(pair)
        start_follower_again(pair)
        assert not told and pair.own == good


@pytest.mark.parametrize("payload", [b"", b"x", DOUBTED.pack(5, 4_000_000_000), DOUBTED.pack(9, 3)])
def test_a_doubt_that_makes_no_sense_does_no_harm(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = together()
    monkeypatch.setattr(link, "doubted", lambda holes, at, size: payload if holes else b"")
    pair.leading.inner.flip(sealed(pair)[1], 500, 3)
    pair.disk = pair.disk.kill()
    pair.begin()
    with suppress(StreamError):
        pair.pump()
    assert pair.link.state in ("following", "copying")
