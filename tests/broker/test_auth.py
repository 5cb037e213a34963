"""Users, passwords, permissions."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from kvitto.broker.administration import auth
from kvitto.broker.administration.auth import User, Users, check_password, hash_password

Definitions = dict[tuple[str, tuple[str, ...]], dict[str, Any]]


class Kept:
    """What `define` was told, and users that tell it. Cheap hashes unless a test is about their cost."""

    def __init__(self, cost: int = 4) -> None:
        self.definitions: Definitions = {}
        self.users = Users(self.define, cost=cost)

    def define(self, kind: str, key: tuple[str, ...], value: dict[str, Any] | None) -> None:
        if value is None:
            del self.definitions[kind, key]
        else:
            self.definitions[kind, key] = value

    def restarted(self) -> Users:
        users = Users(self.define, cost=4)
        for (kind, key), value in sorted(self.definitions.items(), key=lambda item: item[0][0] == "permission"):
            users.restore(kind, key, value)
        return users


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def scrypts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each scrypt."""
    calls: list[str] = []
    real = auth._scrypt

    def counted(password: str, salt: bytes, cost: int, lanes: int) -> bytes:
        calls.append("scrypt")
        return real(password, salt, cost, lanes)

    monkeypatch.setattr(auth, "_scrypt", counted)
    return calls


def login(users: Users, name: str, password: str, loopback: bool = True) -> User | None:
    return users.authenticate(name, password, loopback)


def test_w7_passwords_are_kept_as_slow_salted_hashes(kept: Kept) -> None:
    one, two = hash_password("hunter2", 4), hash_password("hunter2", 4)
    assert one != two and one.startswith(f"scrypt:4:{auth.LANES}:")
    assert check_password(one, "hunter2") and not check_password(one, "hunter3")
    began = time.process_time()
    assert hash_password("hunter2").startswith(f"scrypt:{auth.COST}:{auth.LANES}:")
    assert time.process_time() - began > 0.01
    kept.users.add("u", "hunter2")
    assert "hunter2" not in repr(kept.definitions) + repr(kept.users.get("u")) + repr(vars(kept.users.list()[0]))


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "plain",
        "md5:14:00:00",
        "scrypt:99:00:00",
        "scrypt:x:00:00",
        "scrypt:4:zz:00",
        "scrypt:4:99:00:00",
        "scrypt:4:1:1:00:00",
    ],
)
def test_a_hash_that_cannot_be_read_lets_nobody_in(stored: str) -> None:
    assert not check_password(stored, "")
    assert not check_password(stored, "00")


def test_w7_the_hash_is_as_slow_as_owasp_wants(kept: Kept) -> None:
    """Its password storage cheat sheet: for scrypt n=2^17 r=8 p=1, or as here n=2^14 r=8 p=5, or others like these."""
    assert (auth.COST, auth.BLOCK, auth.LANES) == (14, 8, 5)


def test_w7_a_hash_of_before_still_lets_its_user_in(kept: Kept) -> None:
    """Made with one lane; the next password gets as many as all."""
    salt = b"0123456789abcdef"
    old = f"scrypt:4:{salt.hex()}:{auth._scrypt('secret', salt, 4, 1).hex()}"
    kept.users.restore("user", ("u",), {"password_hash": old, "tags": []})
    assert login(kept.users, "u", "wrong") is None
    assert login(kept.users, "u", "secret") is not None


def test_login(kept: Kept) -> None:
    kept.users.add("u", "right", ["monitoring"])
    for users in (kept.users, kept.restarted()):
        assert login(users, "u", "wrong") is None
        assert login(users, "u", "") is None
        assert login(users, "nobody", "right") is None
        user = login(users, "u", "right", loopback=False)
        assert user is users.get("u") and user is not None
        assert user.tags == ("monitoring",) and not user.is_administrator


def test_a_user_without_hash_cannot_log_in(kept: Kept) -> None:
    kept.users.restore("user", ("u",), {"password_hash": "", "tags": []})
    assert login(kept.users, "u", "") is None


def test_w7_guest_only_from_loopback(kept: Kept) -> None:
    guest = kept.users.add_first("guest", "guest", "/")
    assert guest.is_administrator and guest.may("/", "configure", "anything") and not guest.may_open("other")
    for users in (kept.users, kept.restarted()):
        assert login(users, "guest", "guest") is not None
        assert login(users, "guest", "guest", loopback=False) is None
    everywhere = Users(kept.define, cost=4, loopback_only=())
    everywhere.add_first("guest", "guest", "/")
    assert login(everywhere, "guest", "guest", loopback=False) is not None


def test_a_thousand_logins_cost_one_scrypt(kept: Kept, scrypts: list[str]) -> None:
    kept.users.add("u", "right")
    users = kept.restarted()
    scrypts.clear()
    for _ in range(1000):
        assert login(users, "u", "right") is not None
    assert len(scrypts) == 1


def test_wrong_passwords_and_unknown_names_cost_the_same(kept: Kept, scrypts: list[str]) -> None:
    kept.users.add("u", "right")
    login(kept.users, "u", "right")
    for name, password in (("u", "wrong"), ("u", "wrong"), ("nobody", "right")):
        scrypts.clear()
        assert login(kept.users, name, password) is None
        assert len(scrypts) == 1


def test_a_new_password_ends_the_old_one(kept: Kept) -> None:
    kept.users.add("u", "old")
    assert login(kept.users, "u", "old") is not None
    kept.users.set_password("u", "new")
    for users in (kept.users, kept.restarted()):
        assert login(users, "u", "old") is None
        assert login(users, "u", "new") is not None


def test_a_deleted_user_is_gone_and_may_nothing_more(kept: Kept) -> None:
    user = kept.users.add("u", "p")
    kept.users.set_permission("u", "/", ".*", ".*", ".*")
    kept.users.set_permission("u", "v", ".*", ".*", ".*")
    kept.users.delete("u")
    assert not user.may("/", "read", "q") and not user.may_open("/")
    assert login(kept.users, "u", "p") is None
    assert kept.definitions == {} and "u" not in kept.users
    assert login(kept.users, "u", "p") is None
    kept.users.add("u", "other")
    assert login(kept.users, "u", "p") is None


@pytest.mark.parametrize(
    ("expression", "resource", "allowed"),
    [
        (".*", "anything", True),
        (".*", "", True),
        ("", "anything", False),
        ("", "", False),
        ("", "\n", False),
        ("^$", "anything", False),
        ("tasks", "my-tasks-1", True),
        ("^tasks", "my-tasks-1", False),
        ("^(amq\\.default|tasks)$", "", True),
        ("^(amq\\.default|tasks)$", "tasks", True),
        ("^(amq\\.default|tasks)$", "task", False),
    ],
)
def test_permissions_are_searched_in_the_name(kept: Kept, expression: str, resource: str, allowed: bool) -> None:
    user = kept.users.add("u", "p")
    kept.users.set_permission("u", "/", "", expression, "")
    assert user.may("/", "write", resource) is allowed
    assert not user.may("/", "configure", "q") and not user.may("/", "read", "q")
    assert not user.may("other", "write", resource)


def test_permissions_survive_a_restart(kept: Kept) -> None:
    kept.users.add("u", "p", ["management"])
    kept.users.set_permission("u", "/", "^c", "^w", "^r")
    kept.users.set_permission("u", "v", "", "", "")
    kept.users.clear_permission("u", "v")
    kept.users.clear_permission("u", "never there")
    users = kept.restarted()
    user = users.get("u")
    assert user is not None and user.may_open("/") and not user.may_open("v")
    assert user.may("/", "configure", "c") and user.may("/", "write", "w") and user.may("/", "read", "r")
    assert (user.permissions["/"].configure, user.permissions["/"].write, user.permissions["/"].read) == (
        "^c",
        "^w",
        "^r",
    )
    users.forget_vhost("/")
    assert not user.may_open("/")
    assert ("permission", ("/", "u")) not in kept.definitions
    users.restore("permission", ("/", "long gone"), {"configure": "", "write": "", "read": ""})


def test_each_change_makes_a_new_generation(kept: Kept) -> None:
    seen = [kept.users.generation]
    changes: list[Callable[[], object]] = [
        lambda: kept.users.add("u", "p"),
        lambda: kept.users.set_tags("u", ["administrator"]),
        lambda: kept.users.set_password("u", "q"),
        lambda: kept.users.set_permission("u", "/", "", "", ""),
        lambda: kept.users.clear_permission("u", "/"),
        lambda: kept.users.delete("u"),
    ]
    for change in changes:
        change()
        seen.append(kept.users.generation)
    assert seen == sorted(set(seen))


def test_what_cannot_be_is_refused_with_a_reason(kept: Kept) -> None:
    users = kept.users
    users.add("u", "p")
    before = dict(kept.definitions)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: users.add("u", "p"), "already"),
        (lambda: users.add("", "p"), "1 to 255 bytes"),
        (lambda: users.add("é" * 128, "p"), "1 to 255 bytes"),
        (lambda: users.add("v", ""), "password is empty"),
        (lambda: users.set_password("u", ""), "password is empty"),
        (lambda: users.set_permission("u", "/", "(", "", ""), "cannot be a pattern"),
    ]
    for bad, text in refused:
        with pytest.raises(ValueError, match=text):
            bad()
    missing: list[Callable[[], object]] = [
        lambda: users.delete("x"),
        lambda: users.set_password("x", "p"),
        lambda: users.set_tags("x", []),
        lambda: users.set_permission("x", "/", "", "", ""),
        lambda: users.clear_permission("x", "/"),
    ]
    for call in missing:
        with pytest.raises(LookupError, match="there is no user 'x'"):
            call()
    assert kept.definitions == before and [user.name for user in users] == ["u"]
