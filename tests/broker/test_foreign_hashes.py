"""Hashes of other brokers: read, checked by form, used once, and replaced by our own."""

from __future__ import annotations

import base64

import pytest

from kvitto.broker.administration import foreign_hashes
from kvitto.broker.administration.auth import Hash, Users
from kvitto.broker.administration.foreign_hashes import BCRYPT, SALTED, UnusableHash, algorithm_of, matches
from tests.broker.test_auth import Kept
from tests.support.definitions import salted

RABBITMQ = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
"""The hash of `test12` in RabbitMQ's documentation, by SHA-256."""
OF_BCRYPT = "$2b$04$RTYBgSnX6d3q/bgFzbfEdudO6B0yiM1XFX7OuqaoiPnJEK9OKcHG6"
"""Of `pw-bcrypt`."""


@pytest.mark.parametrize("digest", ["sha256", "sha512", "md5"])
def test_the_right_password_matches_and_no_other(digest: str) -> None:
    algorithm = next(name for name, of in SALTED.items() if of == digest)
    stored = salted("p\u00e4ss", digest)
    assert matches(algorithm, stored, "p\u00e4ss".encode())
    for wrong in (b"", b"pass", "p\u00e4ss ".encode()):
        assert not matches(algorithm, stored, wrong)


def test_the_example_of_rabbitmq_s_documentation_matches() -> None:
    assert matches("rabbit_password_hashing_sha256", RABBITMQ, b"test12")


def test_bcrypt_hashes_need_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_hashes, "_bcrypt", lambda: None)
    with pytest.raises(UnusableHash, match=r"pip install 'kvitto\[bcrypt\]'"):
        Hash.of(OF_BCRYPT, "Bcrypt").check(True)
    assert not matches(BCRYPT, OF_BCRYPT, b"pw-bcrypt")


def test_bcrypt_hashes_match() -> None:
    pytest.importorskip("bcrypt")
    assert matches(BCRYPT, OF_BCRYPT, b"pw-bcrypt") and not matches(BCRYPT, OF_BCRYPT, b"pw")
    assert not matches(BCRYPT, OF_BCRYPT, b"x" * 100), "bcrypt knows 72 bytes"
    with pytest.raises(UnusableHash, match="at most 15"):
        Hash.of(OF_BCRYPT.replace("$04$", "$31$"), "bcrypt").check(True)


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ("AAAA", "rabbit_password_hashing_sha256"),
        (RABBITMQ, "rabbit_password_hashing_sha512"),
        (RABBITMQ[:-1] + "*", "rabbit_password_hashing_sha256"),
        (base64.b64encode(b"x" * 37).decode(), "rabbit_password_hashing_sha256"),
        ("scrypt:14:5:00:00", ""),
        ("scrypt:99:5:00:" + "00" * 32, "kvitto_scrypt"),
        ("$2b$04$short", "bcrypt"),
        ("x", "kvitto_scrypt"),
    ],
)
def test_what_has_not_the_form_of_a_hash_is_refused(text: str, algorithm: str) -> None:
    with pytest.raises(UnusableHash):
        Hash.of(text, algorithm).check(True)


def test_algorithms_have_several_names() -> None:
    assert algorithm_of("SHA256") == algorithm_of("rabbit_password_hashing_sha256") == "rabbit_password_hashing_sha256"
    assert algorithm_of("Bcrypt") == BCRYPT
    with pytest.raises(UnusableHash, match="hashing algorithm 'rot13' is none of"):
        algorithm_of("rot13")


def users_with(kept: Kept) -> Users:
    kept.users.add_with_hash("ann", Hash.of(salted("pw"), ""), ("management",), {})
    return kept.users


def test_the_first_right_login_replaces_the_hash_for_good() -> None:
    kept = Kept()
    users = users_with(kept)
    before = kept.definitions["user", ("ann",)]
    assert before["hashing_algorithm"] == "rabbit_password_hashing_sha256"
    assert users.authenticate("ann", "wrong", True) is None
    assert kept.definitions["user", ("ann",)] == before
    ann = users.authenticate("ann", "pw", True)
    assert ann is not None
    users.replace_foreign(ann)
    after = kept.definitions["user", ("ann",)]
    assert after["password_hash"].startswith("scrypt:") and "hashing_algorithm" not in after
    assert users.remembers("ann", "pw"), "no second slow check"
    again = kept.restarted()
    assert again.authenticate("ann", "pw", True) is not None and again.authenticate("ann", "wrong", True) is None
    again.set_hash("ann", Hash.of(salted("pw"), ""))
    ann = again.get("ann")
    assert ann is not None and ann.password_hash == after["password_hash"]


def test_a_password_that_was_set_meanwhile_is_not_replaced() -> None:
    users = users_with(Kept())
    ann = users.authenticate("ann", "pw", True)
    assert ann is not None
    users.set_password("ann", "new")
    users.replace_foreign(ann)
    assert users.authenticate("ann", "new", True) is ann and users.authenticate("ann", "pw", True) is None


def test_the_switch_refuses_foreign_hashes_that_come_and_those_that_are_there() -> None:
    users = users_with(Kept())
    users.foreign_hashes = False
    assert users.authenticate("ann", "pw", True) is None
    with pytest.raises(UnusableHash, match="--foreign-hashes off"):
        Hash.of(salted("pw"), "").check(users.foreign_hashes)
    Hash.of("", "").check(False)
