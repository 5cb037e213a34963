"""Users, their passwords, and what they may do in which virtual host.

Permissions are those of RabbitMQ: for each virtual host three regular expressions (configure, write, read) that are searched
in the name of the resource. An empty one allows nothing, and a user without an entry cannot open the virtual host. Passwords
are stored as salted scrypt hashes (W7) and appear in no text. A `User` is changed in place, so open connections see the
change; `Users.generation` tells them to drop cached permissions.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvitto.base.config import GUEST
from kvitto.base.errors import ACCESS_REFUSED, ChannelError
from kvitto.base.limits import NAME_MAX
from kvitto.broker.routing.patterns import Pattern, compile_pattern, stored_pattern

log = logging.getLogger("kvitto.access")

Operation = Literal["configure", "write", "read"]
Define = Callable[[str, tuple[str, ...], dict[str, Any] | None], None]
"""Keeps a definition (kind, key, value); None deletes it."""

COST = 14
"""log2 of scrypt's n. COST and LANES are one of the parameter sets that OWASP names as the minimum. Of these it needs the second least
memory, because an attacker can make the broker spend it: 16 MiB and about 0.25 s per check, once per user and process."""
LANES = 5
LANES_MAX = 16
PUBLIC_COST = 4
"""The cost for the first password of guest. That password is public, so a slow hash would only double the start-up time."""
COST_MAX = 20
BLOCK, SALT_BYTES = 8, 16

ADMINISTRATOR = "administrator"
DEFAULT_EXCHANGE = "amq.default"
"""The name of the default exchange in permissions."""


def hash_password(password: str, cost: int = COST) -> str:
    """Return `scrypt:cost:lanes:salt:hash`, the last two in hex digits."""
    salt = secrets.token_bytes(SALT_BYTES)
    return f"scrypt:{cost}:{LANES}:{salt.hex()}:{_scrypt(password, salt, cost, LANES).hex()}"


def check_password(stored: str, password: str) -> bool:
    """Whether `stored` is the hash of this password; False for one that this version cannot read."""
    try:
        scheme, cost, *given, salt, expected = stored.split(":")
        lanes = int(*given or "1")
        if scheme != "scrypt" or not 1 <= int(cost) <= COST_MAX or not 1 <= lanes <= LANES_MAX:
            return False
        found = _scrypt(password, bytes.fromhex(salt), int(cost), lanes)
        return hmac.compare_digest(found, bytes.fromhex(expected))
    except (ValueError, TypeError):
        return False


def _scrypt(password: str, salt: bytes, cost: int, lanes: int) -> bytes:
    memory = 2 * 128 * BLOCK * (1 << cost) + (1 << 20)
    return hashlib.scrypt(_bytes(password), salt=salt, n=1 << cost, r=BLOCK, p=lanes, maxmem=memory, dklen=32)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Permission:
    """The three expressions, as text and compiled."""

    configure: str
    write: str
    read: str
    compiled: Mapping[str, Pattern]

    @classmethod
    def of(cls, configure: str, write: str, read: str, stored: bool = False) -> Permission:
        """Compile the expressions. Raises InvalidPattern. A `stored` permission is never refused: an expression that this version
        cannot use grants nothing."""
        make = stored_pattern if stored else compile_pattern
        return cls(configure, write, read, {"configure": make(configure), "write": make(write), "read": make(read)})

    def grants(self, operation: Operation, resource: str) -> bool:
        """Whether the expression for this operation matches. An empty one grants nothing."""
        pattern = self.compiled[operation]
        return pattern.text != "" and pattern.found_in(resource)


class User:
    """A user of the broker. `password_hash` is "" for a user who cannot log in by password."""

    def __init__(self, name: str, password_hash: str, tags: Iterable[str]) -> None:
        self.name = name
        self.password_hash = password_hash
        self.tags = tuple(tags)
        self.permissions: dict[str, Permission] = {}
        self.proof = b""

    def __repr__(self) -> str:
        return f"<User {self.name!r} {', '.join(self.tags)}>"

    @property
    def is_administrator(self) -> bool:
        return ADMINISTRATOR in self.tags

    def may_open(self, vhost: str) -> bool:
        """Whether the virtual host lets this user in at all."""
        return vhost in self.permissions

    def may(self, vhost: str, operation: Operation, resource: str) -> bool:
        """Whether this user may do this with the exchange or queue of that name; "" is the default exchange."""
        permission = self.permissions.get(vhost)
        if permission is None:
            return False
        return permission.grants(operation, resource or DEFAULT_EXCHANGE)

    def authorise(self, vhost: str, operation: Operation, kind: str, name: str) -> None:
        """Raises ChannelError 403 unless this user may do this with the resource; `kind` says what it is."""
        if not self.may(vhost, operation, name):
            text = f"{operation} access to {kind} '{name}' in vhost '{vhost}' refused for user '{self.name}'"
            raise ChannelError(ACCESS_REFUSED, text)
        log.debug("user %r has %s access to %s %r in vhost %r", self.name, operation, kind, name, vhost)


@dataclass(frozen=True, slots=True)
class FirstUser:
    """The user of a new data directory. `password` is called only if the directory is new."""

    name: str = GUEST
    password: Callable[[], str] = field(default=lambda: GUEST, repr=False)
    vhost: str = "/"


class Users:
    """All users. `define` is called for each change and makes it durable.

    Methods raise ValueError for an invalid value and LookupError for an unknown user, both with a text for people.
    """

    def __init__(self, define: Define, *, cost: int = COST, loopback_only: Collection[str] = (GUEST,)) -> None:
        self.generation = 0
        self.loopback_only = loopback_only
        self._define = define
        self.cost = cost
        self._users: dict[str, User] = {}
        self._key = secrets.token_bytes(32)

    def __iter__(self) -> Iterator[User]:
        return iter(self._users.values())

    def __contains__(self, name: str) -> bool:
        return name in self._users

    def get(self, name: str) -> User | None:
        return self._users.get(name)

    def list(self) -> tuple[User, ...]:
        """All users, sorted by name."""
        return tuple(sorted(self._users.values(), key=lambda user: user.name))

    # -- changes ---------------------------------------------------------------------------------------------

    def add(self, name: str, password: str | None, tags: Iterable[str] = (), hashed: str = "") -> User:
        """Add a user without permissions. `hashed` is the result of `hash`, if the caller has it already. A user with password None can
        log in only by certificate."""
        if not name or len(_bytes(name)) > NAME_MAX:
            raise ValueError(f"a user's name must have 1 to {NAME_MAX} bytes")
        if name in self._users:
            raise ValueError(f"there is a user {name!r} already")
        user = User(name, "", tags)
        self._set_password(user, password, hashed)
        return user

    def add_first(self, name: str, password: str, vhost: str) -> User:
        """Add the user of a new data directory: an administrator with all permissions in this virtual host. Guest's password
        is public, and guest may log in from this machine only."""
        user = User(name, "", (ADMINISTRATOR,))
        self._set_password(user, password, hash_password(password, PUBLIC_COST if name == GUEST else self.cost))
        self.set_permission(name, vhost, ".*", ".*", ".*")
        return user

    def delete(self, name: str) -> None:
        """Delete a user. Open connections of the user lose every permission at once; the caller closes them."""
        user = self._user(name)
        for vhost in (*user.permissions,):
            self.clear_permission(name, vhost)
        user.proof = b""
        del self._users[name]
        self.generation += 1
        self._define("user", (name,), None)

    def set_password(self, name: str, password: str | None, hashed: str = "") -> None:
        """Set another password. `password` and `hashed` mean the same as in `add`."""
        self._set_password(self._user(name), password, hashed)

    def hash(self, password: str) -> str:
        """Return the hash to store for a password. This is slow and may run in any thread. Raises ValueError for an unusable password."""
        if not password:
            raise ValueError("the password is empty")
        return hash_password(password, self.cost)

    def _set_password(self, user: User, password: str | None, hashed: str) -> None:
        user.password_hash = "" if password is None else hashed or self.hash(password)
        user.proof = b"" if password is None else self._proof(user, password)
        self._users[user.name] = user
        self._keep(user)

    def set_tags(self, name: str, tags: Iterable[str]) -> None:
        user = self._user(name)
        user.tags = tuple(tags)
        self._keep(user)

    def set_permission(self, name: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Set a user's permission in a virtual host. The caller checks that the virtual host exists."""
        user = self._user(name)
        user.permissions[vhost] = Permission.of(configure, write, read)
        self.generation += 1
        self._define("permission", (vhost, name), {"configure": configure, "write": write, "read": read})

    def clear_permission(self, name: str, vhost: str) -> None:
        """Remove a user's permission in a virtual host, if there is one."""
        if self._user(name).permissions.pop(vhost, None) is not None:
            self.generation += 1
            self._define("permission", (vhost, name), None)

    def forget_vhost(self, vhost: str) -> None:
        """Remove all permissions in a virtual host that was deleted."""
        for name in self._users:
            self.clear_permission(name, vhost)

    def restore(self, kind: str, key: tuple[str, ...], value: Mapping[str, Any]) -> None:
        """Take a stored definition of kind "user" or "permission", as `define` got it. Users must come first."""
        self.generation += 1
        if kind == "user":
            self._users[key[0]] = User(key[0], value["password_hash"], value["tags"])
        elif key[1] in self._users:
            permission = Permission.of(value["configure"], value["write"], value["read"], stored=True)
            self._users[key[1]].permissions[key[0]] = permission

    # -- logging in ------------------------------------------------------------------------------------------

    def authenticate(self, name: str, password: str, peer_is_loopback: bool) -> User | None:
        """Return the user if the password is right and the user may log in from that address (W7), else None.

        The first right password of a user costs an scrypt, the next ones a fast keyed hash, whose key exists only in
        this process. A wrong password and an unknown name always cost an scrypt, so the time reveals nothing.
        """
        user = self._users.get(name)
        if user is None or not user.password_hash:
            decoy = f"scrypt:{self.cost}:{LANES}:{'00' * SALT_BYTES}:{'00' * 32}"
            check_password(decoy, password)
            return None
        proof = self._proof(user, password)
        if not (user.proof and hmac.compare_digest(proof, user.proof)):
            if not check_password(user.password_hash, password):
                return None
            user.proof = proof
        return self.known(name, peer_is_loopback)

    def known(self, name: str, peer_is_loopback: bool) -> User | None:
        """Return the user if there is one who may log in from that address, else None. The caller has authenticated the name."""
        return self._users.get(name) if peer_is_loopback or name not in self.loopback_only else None

    def remembers(self, name: str, password: str) -> bool:
        """Whether `authenticate` needs no slow hash, because it has accepted this password before."""
        user = self._users.get(name)
        return user is not None and bool(user.proof) and hmac.compare_digest(self._proof(user, password), user.proof)

    def _proof(self, user: User, password: str) -> bytes:
        """Return the fast keyed hash. It depends on the stored hash, too, so a change of password invalidates it."""
        keyed = hashlib.blake2b(_bytes(user.password_hash), key=self._key)
        keyed.update(b"\0" + _bytes(password))
        return keyed.digest()

    def _keep(self, user: User) -> None:
        self.generation += 1
        self._define("user", (user.name,), {"password_hash": user.password_hash, "tags": [*user.tags]})

    def _user(self, name: str) -> User:
        user = self._users.get(name)
        if user is None:
            raise LookupError(f"there is no user {name!r}")
        return user


@dataclass(frozen=True, slots=True, repr=False)
class Attempt:
    """A login by password from an address. `wanted` says whether somebody still waits for the answer. `check` may run in any thread."""

    users: Users
    name: str
    password: str
    address: str
    loopback: bool
    wanted: Callable[[], bool] = lambda: True

    @property
    def is_remembered(self) -> bool:
        return self.users.remembers(self.name, self.password)

    def check(self) -> User | None:
        return self.users.authenticate(self.name, self.password, self.loopback)
