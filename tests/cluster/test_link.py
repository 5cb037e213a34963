"""The leader's side: it does a little at a time, and says that a copy is complete when it is."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from kvitto.cluster import link as module
from kvitto.cluster.handshake import REASON_MAX, Refused
from kvitto.cluster.link import LINKS_MAX, STEP_BYTES, STEP_RECORDS, Link
from kvitto.cluster.records import CHUNK_BYTES, HEADER, Decoder, Kind, Record, StreamError
from kvitto.cluster.ring import nothing
from kvitto.cluster.state import new_id
from kvitto.cluster.tapping import TapFile
from kvitto.store.disk import Bytes
from tests.cluster.pairs import Leading, Pair


def begun(pair: Pair) -> Decoder:
    """The handshake is done, and the follower has sent its checksums. What the leader sends from now on can be decoded."""
    while not pair.link.wants or pair.link._steps is None:
        pair.link.take(pair.answers)
        pair.answers = b""
        for answer in pair.follower.feed(b"".join(pair.link.pieces()) if pair.link._steps is None else b""):
            pair.answers += answer
    secrets = pair.follower._secrets
    return Decoder(secrets.records, 0, secrets.frames)


def records(pair: Pair, decoder: Decoder, data: bytes) -> list[Record]:
    found = []
    for record in decoder.feed(data):
        if record.kind == Kind.NAMES:
            decoder.place = record.position
        found.append(record)
    return found


def test_a_copy_is_complete_when_the_records_up_to_its_last_chunk_have_been_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chunk has what later records say: before they have come, the directory is of no one moment."""
    monkeypatch.setattr(module, "STEP_RECORDS", 1)
    monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    pair = Pair()
    pair.leading.declare("q")
    pair.leading.publish("q", b"x" * 5000)
    pair.leading.settle_down()
    decoder = begun(pair)
    last, done = 0, None
    while done is None:
        if pair.link.state == "copying" and pair.leading.ring.next < 400:
            pair.leading.publish("q", b"more")
            pair.leading.settle_down()
        for record in records(pair, decoder, b"".join(pair.link.pieces())):
            if record.kind in (Kind.CHUNK, Kind.END):
                last = pair.leading.ring.next
            elif record.kind == Kind.DONE:
                done = record.position
    assert last > 300 and done >= last


def test_a_step_is_small_however_much_there_is_to_send() -> None:
    pair = Pair()
    pair.leading.declare("q")
    pair.leading.settle_down()
    pair.pump()
    for _ in range(3 * STEP_RECORDS):
        pair.leading.publish("q", b"x")
        pair.leading.turn()
    pair.leading.publish("q", b"y" * (5 * STEP_BYTES))
    pair.leading.settle_down()
    sizes, before = [], pair.link.place
    while data := b"".join(pair.link.pieces()):
        sizes.append(len(data))
        assert pair.link.place - before <= STEP_RECORDS
        before = pair.link.place
    assert len(sizes) > 3 and max(sizes) <= STEP_BYTES + CHUNK_BYTES + HEADER.size * STEP_RECORDS


def told(text: bytes) -> bytes:
    return b"KVITREP1" + len(text).to_bytes(4, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"KVITREP1" + b"\xff\xff\xff\x7f",
        told(b"[]"),
        told(b"[" * 50_000),
        told(b'{"version": 1, "nonce": "%s"}' % (rb"\ud800" * 32)),
    ],
)
def test_strangers_are_refused(data: bytes) -> None:
    with pytest.raises(StreamError):
        Pair().link.take(data)


def test_a_refusal_that_a_stranger_gives_is_short() -> None:
    with pytest.raises(Refused) as refused:
        Pair().link.take(told(b'{"refused": "%s"}' % (b"x" * 60_000)))
    assert len(str(refused.value)) == REASON_MAX


@pytest.mark.parametrize("silent", [True, False])
def test_a_new_process_of_a_follower_gets_in_if_the_connection_of_the_old_one_is_silent(silent: bool) -> None:
    """The machine was switched off, and the system still takes the old connection for a good one."""
    pair = Pair()
    pair.leading.declare("q")
    pair.leading.settle_down()
    pair.pump()
    old, leader = pair.link, pair.leading.leader
    leader.is_silent = lambda link: silent and link is old
    pair.begin()
    leader.links = [old, pair.link]
    if silent:
        pair.pump()
        assert old.replaced and pair.link.state == "following"
    else:
        with pytest.raises(Refused, match="another process follows with a copy of the same directory") as refused:
            pair.pump()
        assert not old.replaced and refused.value.again


def test_a_leader_has_no_more_than_some_followers() -> None:
    pair = Pair()
    pair.leading.declare("q")
    pair.leading.settle_down()
    others = [Link(pair.leading.leader, "another one") for _ in range(LINKS_MAX)]
    for other in others:
        other.member = new_id()
    pair.leading.leader.links = [*others, pair.link]
    with pytest.raises(Refused, match=f"there are {LINKS_MAX} followers already") as refused:
        pair.pump()
    assert refused.value.again
    pair.begin()
    pair.leading.leader.links = [*others[1:], pair.link]
    pair.pump()
    assert pair.link.state == "following"


def test_an_acknowledgement_of_what_was_not_sent_is_refused() -> None:
    pair = Pair()
    pair.leading.declare("q")
    pair.leading.settle_down()
    pair.pump()
    pair.follower.synced = pair.leading.ring.next + 1
    with pytest.raises(StreamError, match="has not been sent"):
        pair.link.take(pair.follower._acknowledgement())


def copied_while_publishing(seed: int) -> bool:
    """Copy a leader's files while it writes, and sends records in the middle of writes. Return whether the copy is the same."""
    rng, leading = Random(seed), Leading()
    names = [f"q{number}" for number in range(3)]
    for name in names:
        leading.declare(name)
        leading.publish(name, b"before" * rng.choice([10, 1000, 250_000]))
    leading.settle_down()
    pair = Pair(leading)
    link, wire, sizes = pair.link, list[bytes](), list[int]()

    def push() -> None:
        if link._decoder is not None:
            wire.extend(link.at_once())

    def step() -> None:
        link.take(pair.answers)
        pair.answers = b""
        if (ahead := link.read_ahead()) is not None:
            ahead.run()
        if link.is_copying and rng.random() < 0.7 and len(sizes) < 15:
            sizes.append(rng.choice([100, 70_000, 270_000, 600_000, 3 << 20]))
            leading.publish(rng.choice(names), bytes([rng.randrange(256)]) * sizes[-1])
            leading.turn()
        wire.extend(link.pieces())
        for answer in pair.follower.feed(b"".join(wire)):
            pair.answers += answer
        wire.clear()

    leading.ring.on_put = push
    try:
        while link.state != "following":
            step()
        leading.ring.on_put = nothing
        leading.settle_down()
        pair.rest()
    except StreamError:  # the follower has noticed
        return False
    return pair.own == pair.theirs


SEEDS = 12


def test_a_copy_is_whole_although_records_go_out_in_the_middle_of_writes() -> None:
    assert [seed for seed in range(SEEDS) if not copied_while_publishing(seed)] == []


def test_a_step_of_a_copy_in_the_middle_of_a_write_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would say what is known of a file before the write, behind the record of the write."""

    def write_at(self: TapFile, pos: int, buffers: Sequence[Bytes]) -> int:
        size = self._file.write_at(pos, buffers)
        self.node.changed = self._disk.tap.put(Kind.WRITE, self.node.number, pos, buffers) + 1
        self.node.length, self.node.dirty = max(self.node.length, pos + size), True
        return size

    monkeypatch.setattr(TapFile, "write_at", write_at)
    assert all(copied_while_publishing(seed) for seed in range(SEEDS)), "nobody looks at that moment"
    monkeypatch.setattr(Link, "at_once", Link.pieces)
    assert not all(copied_while_publishing(seed) for seed in range(10 * SEEDS))
