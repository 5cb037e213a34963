"""The client of etcd, with a real one where it is installed: compare-and-swap, the seat, and what is not answered."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kvitto.base.config import ConfigError
from kvitto.cluster.register import Complaint, Document, NotAllowed, RegisterError, Seat, Unanswered
from kvitto.server import etcd as module
from kvitto.server.etcd import ANSWER_BYTES_MAX, Etcd
from kvitto.server.lease import Lease
from tests.support.etcd import FakeEtcd, Json, RealEtcd, free_port, real_etcd
from tests.support.wait import wait_until

FIRST = Document("c", 0, "", ("A",), 2)
SEAT = Seat("A", "p", "10.0.0.1:5690", "10.0.0.1:5672")


@pytest.fixture(params=["fake", "real"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeEtcd | RealEtcd]:
    if request.param == "real" and real_etcd() is None:
        pytest.skip("needs Debian's etcd-server")
    found: FakeEtcd | RealEtcd = FakeEtcd() if request.param == "fake" else RealEtcd(tmp_path)
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def register(server: FakeEtcd | RealEtcd) -> Etcd:
    return Etcd([server.url], "test")


def test_a_document_is_made_once_and_changed_by_compare_and_swap(register: Etcd) -> None:
    assert register.read().document is None
    assert register.create(FIRST)
    assert not register.create(FIRST)
    seen = register.read()
    assert seen.document == FIRST and seen.identity and seen.seat is None
    second = FIRST.with_members({"A", "B"})
    version = register.change(second, seen.version)
    assert version is not None and version > seen.version
    assert register.change(FIRST, seen.version) is None
    found = register.read()
    assert (found.document, found.version) == (second, version)


def test_one_of_two_candidates_is_elected(register: Etcd) -> None:
    register.create(FIRST)
    version = register.read().version
    first, second = register.grant(5), register.grant(5)
    elected = FIRST.elected("A")
    assert (new := register.elect(elected, version, SEAT, first, None)) is not None
    other = Seat("B", "q", "10.0.0.2:5690")
    assert register.elect(elected.elected("B"), version, other, second, None) is None
    assert register.elect(elected.elected("B"), new, other, second, None) is None, "somebody sits there"
    seen = register.read()
    assert (seen.document, seen.seat) == (elected, SEAT)
    # who knows that the process is dead may take its place
    assert register.elect(elected.elected("B"), new, other, second, SEAT) is not None
    assert register.read().seat == other


def test_the_seat_goes_with_its_lease(register: Etcd) -> None:
    register.create(FIRST)
    lease = register.grant(2)
    version = register.elect(FIRST.elected("A"), register.read().version, SEAT, lease, None)
    assert version is not None and register.renew(lease)
    register.revoke(lease)
    assert register.read().seat is None and not register.renew(lease)
    register.revoke(lease)
    again = register.grant(2)
    assert not register.sit_down_again(version - 1, SEAT, again)
    assert register.sit_down_again(version, SEAT, again)
    assert not register.sit_down_again(version, SEAT, again)
    wait_until(lambda: register.read().seat is None, what="the lease ends by itself")


def test_a_complaint_takes_the_place_of_an_earlier_one_and_goes_with_its_lease(register: Etcd) -> None:
    assert register.read().complaint is None
    first, second = register.grant(5), register.grant(5)
    register.complain(Complaint("B", "p"), first)
    register.complain(Complaint("C", "p"), second)
    assert register.read().complaint == Complaint("C", "p")
    register.revoke(first)
    assert register.read().complaint == Complaint("C", "p")
    register.revoke(second)
    assert register.read().complaint is None


LARGE = base64.b64encode(b"x" * (ANSWER_BYTES_MAX + 1)).decode()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take its time for a MiB of JSON."""
    monkeypatch.setattr(module, "ENDPOINT_S", module.CALL_S)


def spoil(register: Etcd, key: str, value: str = LARGE) -> None:
    """Write more under a key than Kvitto ever does."""
    put = {"key": base64.b64encode(key.encode()).decode(), "value": value}
    register._call("/v3/kv/txn", {"success": [{"requestPut": put}]})


@pytest.mark.usefixtures("patient")
def test_a_complaint_that_is_too_large_is_none(register: Etcd) -> None:
    """A leader would not know any more whether the seat is still its own, and who was elected."""
    register.create(FIRST)
    version = register.elect(FIRST.elected("A"), register.read().version, SEAT, register.grant(5), None)
    spoil(register, "kvitto/test/complaint")
    seen = register.read()
    assert (seen.document, seen.version, seen.seat) == (FIRST.elected("A"), version, SEAT)
    assert seen.complaint is None
    register.complain(Complaint("B", "p"), register.grant(5))
    assert register.read().complaint == Complaint("B", "p")


@pytest.mark.usefixtures("patient")
def test_keys_that_are_too_large_together_are_not_to_be_removed(register: Etcd) -> None:
    """The document is the cluster's truth: nobody is told to remove it for what another key holds."""
    for key in ("kvitto/test/document", "kvitto/test/leader"):
        spoil(register, key, LARGE[: len(LARGE) * 3 // 5 // 4 * 4])
    with pytest.raises(
        NotAllowed, match="the keys kvitto/test/leader and kvitto/test/document hold more than Kvitto writes: look at"
    ):
        register.read()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("key", ["kvitto/test/document", "kvitto/test/leader"])
def test_a_key_that_is_too_large_is_named(register: Etcd, key: str) -> None:
    """Nodes try again, as if etcd were away: an operator has to mend it."""
    register.create(FIRST)
    register.elect(FIRST.elected("A"), register.read().version, SEAT, register.grant(5), None)
    spoil(register, key)
    spoil(register, "kvitto/test/complaint")
    with pytest.raises(NotAllowed, match=f"the key {key} holds .* than 1 MiB.*: .*`etcdctl del {key}`"):
        register.read()


def test_a_leader_takes_its_seat_again_if_an_operator_has_removed_it() -> None:
    """Its lease is renewed meanwhile, so nobody else was elected."""
    with FakeEnd(FakeEtcd()) as server:
        register = Etcd([server.url], "test")
        register.create(FIRST)
        lease = register.grant(5)
        version = register.elect(FIRST.elected("A"), register.read().version, SEAT, lease, None)
        assert version is not None
        held = Lease(register, SEAT, lease, 0.0)
        held.version = lambda: version

        def seats() -> list[Seat | None]:
            with suppress(Unanswered):  # a busy machine may take longer than a call may
                return [register.read().seat]
            return []

        try:
            spoil(register, "kvitto/test/leader")
            wait_until(lambda: "kvitto/test/leader" in held._said, what="the key is named")
            del server.kept[base64.b64encode(b"kvitto/test/leader").decode()]
            wait_until(lambda: SEAT in seats(), what="the seat is its own again")
        finally:
            held.stop(give_up=True)
        wait_until(lambda: None in seats(), what="it has given the seat up")


def test_what_is_not_answered_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDPOINT_S", 0.1)
    silent = FakeEtcd()
    silent.deaf = True
    with pytest.raises(Unanswered, match="etcd does not answer"):
        Etcd([silent.url], "test").create(FIRST)
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unanswered, match=nobody):
        Etcd([nobody], "test").read()
    with FakeEnd(FakeEtcd()) as good:
        # a read is asked of the next endpoint; a change is not, as it may have been made
        assert Etcd([silent.url, good.url], "test").read().document is None
        with pytest.raises(Unanswered):
            Etcd([silent.url, good.url], "test").create(FIRST)
        assert Etcd([nobody, good.url], "test").create(FIRST)
    silent.stop()


class FullEtcd(FakeEtcd):
    """An etcd that has no space left."""

    def answer(self, path: str, body: Json) -> tuple[int, Json]:
        if any("requestPut" in request for request in body.get("success", ())):
            return 503, {"message": "etcdserver: mvcc: database space exceeded", "code": 8}
        return super().answer(path, body)


def test_an_etcd_without_space_is_named_with_what_makes_room() -> None:
    with FakeEnd(FullEtcd()) as full, FakeEnd(FakeEtcd()) as good:
        register = Etcd([full.url], "test")
        assert register.read().document is None
        with pytest.raises(Unanswered, match=r"etcd at \S+ has no space left: make room with `etcdctl compact"):
            register.create(FIRST)
        # the call with which the space ran out may have been carried out, so no other endpoint is asked
        with pytest.raises(Unanswered, match="no space left"):
            Etcd([full.url, good.url], "test").create(FIRST)
        assert Etcd([good.url], "test").read().document is None


class FakeEnd:
    def __init__(self, fake: FakeEtcd) -> None:
        self.fake = fake

    def __enter__(self) -> FakeEtcd:
        return self.fake

    def __exit__(self, *_: object) -> None:
        self.fake.stop()


def test_what_cannot_be_read_is_refused_with_words() -> None:
    with FakeEnd(FakeEtcd()) as server:
        register = Etcd([server.url], "test")
        register.create(FIRST)
        key = next(iter(server.kept))
        for value, why in (("bm9uZQ==", "cannot be read"), ("eyJsZXZlbCI6IDl9", "level 9")):
            server.kept[key]["value"] = value
            with pytest.raises(RegisterError, match=why):
                register.read()


@pytest.mark.parametrize("text", ["ftp://host", "http://", "host:port", "http://host/path", "http://[::1"])
def test_an_endpoint_is_an_address(text: str) -> None:
    with pytest.raises(ConfigError, match="is no address of etcd"):
        Etcd([text], "test")
