"""The leader's side: it does a little at a time, and says that a copy is complete when it is."""

from __future__ import annotations

import pytest

from kvitto.cluster import link as module
from kvitto.cluster.handshake import REASON_MAX, Refused
from kvitto.cluster.link import STEP_BYTES, STEP_RECORDS
from kvitto.cluster.records import CHUNK_BYTES, HEADER, Decoder, Kind, Record, StreamError
from tests.cluster.pairs import Pair


def begun(pair: Pair) -> Decoder:
    """The handshake is done, and the follower has sent its checksums. What the leader sends from now on can be decoded."""
    while not pair.link.wants or pair.link._steps is None:
        pair.link.take(pair.answers)
        pair.answers = b""
        for answer in pair.follower.feed(pair.link.give() if pair.link._steps is None else b""):
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
        for record in records(pair, decoder, pair.link.give()):
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
    while data := pair.link.give():
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


def test_an_acknowledgement_of_what_was_not_sent_is_refused() -> None:
    pair = Pair()
    pair.leading.declare("q")
    pair.leading.settle_down()
    pair.pump()
    pair.follower.synced = pair.leading.ring.next + 1
    with pytest.raises(StreamError, match="has not been sent"):
        pair.link.take(pair.follower._acknowledgement())
