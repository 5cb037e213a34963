"""A small sync waits a moment for other publishers, if there were some lately (docs/adr/0040). Confirms still come behind it (C2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvitto
from kvitto.server import driving, gathering
from kvitto.server.gathering import SYNCS, WAIT_S, Gathering
from kvitto.server.server import Server
from kvitto.wire import methods as m
from tests.protocol.raw import Raw, content

SYNC_S = 0.0001
LIMIT_S = SYNCS * SYNC_S


def test_a_publisher_that_is_alone_waits_for_nobody() -> None:
    gather, now = Gathering(), 100.0
    for _ in range(1000):
        assert gather.until(now, 1, SYNC_S) == 0.0
        gather.begun(now, 1)
        now += SYNC_S


def test_a_sync_waits_until_as_many_have_come_as_usual() -> None:
    gather = Gathering()
    gather.begun(100.0, 3)
    assert gather.until(100.0001, 1, SYNC_S) == pytest.approx(100.0 + LIMIT_S, abs=1e-9)
    assert gather.until(100.0002, 2, SYNC_S) == pytest.approx(100.0 + LIMIT_S, abs=1e-9)
    assert gather.until(100.0003, 3, SYNC_S) == 0.0
    assert gather.until(100.0 + LIMIT_S, 1, SYNC_S) == 0.0


def test_nobody_waits_for_long_where_syncs_are_slow_and_not_at_all_where_they_cost_nothing() -> None:
    gather = Gathering()
    gather.begun(100.0, 3)
    assert gather.until(100.0001, 1, 1.0) == pytest.approx(100.0 + WAIT_S, abs=1e-9)
    assert gather.until(100.0001, 1, 0.0) == 0.0


def test_a_wait_in_vain_is_the_last_one() -> None:
    """A busy publisher beside one that is seen now and then waits once for each time that one sync covered both."""
    gather = Gathering()
    gather.begun(100.0, 20)
    assert gather.until(100.0001, 1, SYNC_S)
    gather.begun(100.0 + LIMIT_S, 1)
    for _ in range(1000):
        assert gather.until(100.0001 + LIMIT_S, 1, SYNC_S) == 0.0
        gather.begun(100.0001 + LIMIT_S, 1)


def test_waits_go_on_while_they_bring_more() -> None:
    """They need not bring as many as the largest of the recent syncs had."""
    gather, now, waits = Gathering(), 100.0, 0
    gather.begun(now, 20)
    while gather.until(now + SYNC_S, 1, SYNC_S):
        now += LIMIT_S
        gather.begun(now, 2)
        waits += 1
        if waits == 100:
            break
    assert waits == 100, "2 are usual in the end, and one is fewer"


@given(st.lists(st.tuples(st.floats(0, 0.002), st.integers(1, 50)), max_size=200), st.floats(0, 0.01))
def test_no_sync_waits_longer_than_its_limit(arrivals: list[tuple[float, int]], sync_s: float) -> None:
    """Whatever comes: each answer is 0, or lies ahead and at most the limit behind the begin of the last sync."""
    gather, now, began, waiting = Gathering(), 100.0, 0.0, 0
    most = 0
    for pause, count in arrivals:
        now += pause
        waiting += count
        until = gather.until(now, waiting, sync_s)
        if until:
            assert now < until <= began + min(WAIT_S, SYNCS * sync_s) and waiting < most
            assert gather.until(until, waiting, sync_s) == 0.0
            continue  # the next ones come before it is due, or behind that
        gather.begun(now, waiting)
        began, most, waiting = now, max(most, waiting), 0


@contextmanager
def broker_with_a_confirming_client() -> Iterator[tuple[Server, Raw]]:
    """A broker on a disk, whose latest sync has covered what two channels have published."""
    with kvitto.Broker() as broker:
        server = broker._server
        assert server is not None
        with Raw(broker.port) as client:
            client.channel(1, confirm=True)
            client.declare("q", durable=True)
            client.channel(2, confirm=True)
            client.send(b"".join(content(number, m.BasicPublish("", "q"), b"\0\0", b"together") for number in (1, 2)))
            client.expect(m.BasicAck)
            client.expect(m.BasicAck)
            yield server, client


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message waits for the next one as long as it takes, also behind a turn that a loaded machine has interrupted. No lazy sync helps a
    sync that is never begun."""
    monkeypatch.setattr(driving, "LAZY_SYNC_S", 3600.0)
    monkeypatch.setattr(driving, "SYNCS_S", 3600.0)
    monkeypatch.setattr(gathering, "WAIT_S", 3600.0)
    monkeypatch.setattr(gathering, "SYNCS", 1e12)


@pytest.mark.usefixtures("waiting")
def test_one_message_waits_for_another_one_and_one_sync_covers_both() -> None:
    with broker_with_a_confirming_client() as (server, client):
        client.publish(1, "", "q", b"first")
        client.call(1, m.QueueDeclare("q", passive=True), m.QueueDeclareOk)
        assert (server.store.commits.awaited, server.store.commits.running) == (1, None)
        syncs = server.store.commits.syncs
        client.publish(2, "", "q", b"second")
        client.expect(m.BasicAck)
        client.expect(m.BasicAck)
        assert server.store.commits.syncs == syncs + 1 and server.rounds.due == 0.0


@pytest.mark.usefixtures("waiting")
def test_what_somebody_else_waits_for_makes_no_message_wait() -> None:
    """A durable queue is declared: its sync begins at once, and covers the message."""
    with broker_with_a_confirming_client() as (_, client):
        client.publish(1, "", "q", b"first")
        client.put(1, m.QueueDeclare("another", durable=True))
        answers = {type(client.method()[1]) for _ in range(2)}
        assert answers == {m.BasicAck, m.QueueDeclareOk}


@pytest.mark.usefixtures("waiting")
def test_a_transaction_makes_no_message_wait_and_waits_for_none() -> None:
    with broker_with_a_confirming_client() as (_, client):
        client.channel(3)
        client.call(3, m.TxSelect(), m.TxSelectOk)
        client.publish(3, "", "q", b"in a transaction")
        client.publish(1, "", "q", b"first")
        client.put(3, m.TxCommit())
        answers = {type(client.method()[1]) for _ in range(2)}
        assert answers == {m.BasicAck, m.TxCommitOk}


@pytest.mark.usefixtures("waiting")
def test_a_message_that_nobody_follows_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the time that is due begins its sync, if it has had to wait. The next ones do not wait."""
    monkeypatch.setattr(gathering, "WAIT_S", 0.2)
    with broker_with_a_confirming_client() as (_, client):
        for tag in (2, 3, 4):
            client.publish(1, "", "q", b"alone")
            assert client.expect(m.BasicAck).delivery_tag == tag


@pytest.mark.usefixtures("waiting")
def test_batches_of_a_publisher_that_is_alone_wait_for_nothing() -> None:
    """Their sizes do not matter: the publisher would only wait for itself."""
    with kvitto.Broker() as broker, Raw(broker.port) as client:
        client.channel(1, confirm=True)
        client.declare("q", durable=True)
        last = 0
        for size in (2, 1, 5, 1, 3, 2, 1):
            client.send(content(1, m.BasicPublish("", "q"), b"\0\0", b"together") * size)
            last += size
            while client.expect(m.BasicAck).delivery_tag < last:
                pass
