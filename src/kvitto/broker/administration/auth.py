"""Users, their passwords, and what they may do in which virtual host.

Permissions are those of RabbitMQ: for each virtual host three regular expressions (configure, write, read) that are searched
in the name of the resource. An empty one allows nothing, and a user without an entry cannot open the virtual host. Passwords
are stored as salted scrypt hashes (W7) and appear in no text; a hash of another broker is replaced by ours with the first right login.
A `User` is changed in place, so open connections see the change; `Users.generation` tells them to drop cached permissions.
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
from kvitto.broker.administration import foreign_hashes
from kvitto.broker.administration.foreign_hashes import OWN, UnusableHash
from kvitto.broker.administration.topics import TopicPermission
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

TOPIC_PERMISSION = "topic_permission"
"""The kind of these objects in the definitions."""
ADMINISTRATOR = "administrator"
IMPERSONATOR = "impersonator"
"""The tag of a user who may publish with the `user_id` of others."""
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


def is_own_hash(stored: str) -> bool:
    """Whether `check_password` can read this hash."""
    scheme, *parts = stored.split(":")
    try:
        cost, lanes, salt, expected = int(parts[0]), int(parts[1]), bytes.fromhex(parts[2]), bytes.fromhex(parts[3])
    except (ValueError, IndexError):
        return False
    known = scheme == "scrypt" and len(parts) == 4
    return known and 1 <= cost <= COST_MAX and 1 <= lanes <= LANES_MAX and len(salt) > 0 and len(expected) == 32


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


@dataclass(frozen=True, slots=True)
class Hash:
    """A password's hash and its algorithm, with the names that exports use. An empty hash is that of a user without a password."""

    text: str
    algorithm: str = OWN

    @classmethod
    def of(cls, text: str, algorithm: str) -> Hash:
        """Make a hash from what an export or a request says. Without an algorithm it is RabbitMQ's default. Raises UnusableHash."""
        if text.startswith("scrypt:") or not (text or algorithm):
            return cls(text)
        return cls(text, foreign_hashes.algorithm_of(algorithm or foreign_hashes.DEFAULT))

    def check(self, foreign: bool) -> None:
        """Raises UnusableHash unless this is a hash that can be checked. `foreign`: whether those of other brokers are taken."""
        if self.text == "":
            return
        if self.algorithm == OWN:
            if not is_own_hash(self.text):
                raise UnusableHash("password_hash is no hash of Kvitto")
        elif not foreign:
            raise UnusableHash(
                "hashes of other brokers are refused here (--foreign-hashes off): set a password instead"
            )
        else:
            foreign_hashes.check_form(self.algorithm, self.text)


class User:
    """A user of the broker. `password_hash` is "" for a user who cannot log in by password, and may be that of another broker."""

    def __init__(self, name: str, password_hash: str, tags: Iterable[str]) -> None:
        self.name = name
        self.password_hash = password_hash
        self.tags = tuple(tags)
        self.permissions: dict[str, Permission] = {}
        self.topics: dict[str, dict[str, TopicPermission]] = {}
        """Topic permissions by virtual host and exchange."""
        self.limits: dict[str, int] = {}
        self.proof = b""
        self.algorithm = OWN
        self.replaced = ""
        """The fingerprint of the foreign hash which ours has replaced, "" for a password that was set here."""
        self.replacement: tuple[str, str, bytes] | None = None
        """A foreign hash that was found right, our own of the same password, and the proof for that, until they are stored."""

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

    def authorise_topic(self, vhost: str, operation: Operation, exchange: str, routing_key: str) -> None:
        """Raises ChannelError 403 unless this user may do this with the routing key at a topic exchange."""
        permission = self.topics.get(vhost, {}).get(exchange)
        if permission is not None and not permission.grants(operation, routing_key):
            text = (
                f"{operation} access to topic '{routing_key}' in exchange '{exchange}' in vhost '{vhost}' "
                f"refused for user '{self.name}'"
            )
            raise ChannelError(ACCESS_REFUSED, text)


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
        self._lent: dict[str, User] = {}
        self._logins: dict[str, tuple[str, str]] = {}
        """Name and password of the lent user of each virtual host."""
        self.foreign_hashes = True
        """Whether hashes of other brokers are taken and can be used to log in."""

    def __iter__(self) -> Iterator[User]:
        return iter(self._users.values())

    def __contains__(self, name: str) -> bool:
        return name in self._users

    def get(self, name: str) -> User | None:
        return self._users.get(name) or self._lent.get(name)

    def lend(self, vhost: str) -> tuple[str, str]:
        """Return name and password of a user who may do everything in one virtual host, for a program that belongs to the broker.
        It is in no list, is not stored, and ends with this process."""
        if vhost not in self._logins:
            name, password = f"kvitto-{secrets.token_hex(8)}", secrets.token_urlsafe(24)
            user = self._lent[name] = User(name, "lent", (IMPERSONATOR,))
            user.permissions[vhost] = Permission.of(".*", ".*", ".*")
            user.proof = self._proof(user, password)
            self._logins[vhost] = name, password
        return self._logins[vhost]

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

    def add_with_hash(self, name: str, given: Hash, tags: Iterable[str], limits: Mapping[str, int]) -> User:
        """Add a user from an export, with a hash that has been checked. Raises ValueError if there is one of this name."""
        if name in self._users:
            raise ValueError(f"there is a user {name!r} already")
        user = self._users[name] = User(name, given.text, tags)
        user.algorithm, user.limits = given.algorithm, dict(limits)
        self._keep(user)
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
        for vhost in (*user.topics,):
            self.clear_topic_permissions(name, vhost)
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

    def set_hash(self, name: str, given: Hash) -> None:
        """Set a hash from an export or from a request. It must have been checked.

        A foreign one that ours has replaced since stays replaced: the same document may be imported again and again.
        """
        user = self._user(name)
        if user.replaced and user.replaced == foreign_hashes.fingerprint(given.algorithm, given.text):
            return
        if (user.password_hash, user.algorithm) != (given.text, given.algorithm):
            user.password_hash, user.algorithm, user.replaced, user.proof = given.text, given.algorithm, "", b""
            self._keep(user)

    def replace_foreign(self, user: User) -> None:
        """Replace a foreign hash by our own. The login that has just succeeded has shown the password."""
        replacement, user.replacement = user.replacement, None
        if replacement is None or self._users.get(user.name) is not user or user.password_hash != replacement[0]:
            return
        user.replaced = foreign_hashes.fingerprint(user.algorithm, user.password_hash)
        user.algorithm = OWN
        _, user.password_hash, user.proof = replacement
        self._keep(user)

    def _set_password(self, user: User, password: str | None, hashed: str) -> None:
        user.password_hash = "" if password is None else hashed or self.hash(password)
        user.algorithm, user.replaced = OWN, ""
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

    def set_topic_permission(self, name: str, vhost: str, exchange: str, write: str, read: str) -> None:
        """Set a user's permission for the routing keys of an exchange. Raises InvalidPattern."""
        user = self._user(name)
        made = TopicPermission.of(name, vhost, write, read)
        user.topics.setdefault(vhost, {})[exchange] = made
        self.generation += 1
        self._define(TOPIC_PERMISSION, (vhost, name, exchange), {"write": write, "read": read})

    def clear_topic_permissions(self, name: str, vhost: str, exchange: str | None = None) -> bool:
        """Remove a user's topic permission for an exchange, or for all of them. Returns whether there was one."""
        user = self._user(name)
        of_vhost = user.topics.get(vhost, {})
        gone = [each for each in of_vhost if exchange in (None, each)]
        for each in gone:
            del of_vhost[each]
            self.generation += 1
            self._define(TOPIC_PERMISSION, (vhost, name, each), None)
        if not of_vhost:
            user.topics.pop(vhost, None)
        return bool(gone)

    def set_limits(self, name: str, limits: Mapping[str, int]) -> None:
        """Replace a user's limits, which have been checked."""
        user = self._user(name)
        if user.limits != limits:
            user.limits = dict(limits)
            self._keep(user)

    def forget_vhost(self, vhost: str) -> None:
        """Remove all permissions in a virtual host that was deleted."""
        for name, user in self._users.items():
            if vhost in user.permissions or vhost in user.topics:
                self.clear_permission(name, vhost)
                self.clear_topic_permissions(name, vhost)

    def restore(self, kind: str, key: tuple[str, ...], value: Mapping[str, Any]) -> None:
        """Take a stored definition of a user or of a permission, as `define` got it. Users must come first."""
        self.generation += 1
        if kind == "user":
            user = self._users[key[0]] = User(key[0], value["password_hash"], value["tags"])
            user.algorithm = value.get("hashing_algorithm", OWN)
            user.replaced = value.get("replaced", "")
            user.limits = value.get("limits", {})
        elif kind == TOPIC_PERMISSION:
            if key[1] in self._users:
                topic = TopicPermission.of(key[1], key[0], value["write"], value["read"], stored=True)
                self._users[key[1]].topics.setdefault(key[0], {})[key[2]] = topic
        elif key[1] in self._users:
            permission = Permission.of(value["configure"], value["write"], value["read"], stored=True)
            self._users[key[1]].permissions[key[0]] = permission

    # -- logging in ------------------------------------------------------------------------------------------

    def authenticate(self, name: str, password: str, peer_is_loopback: bool) -> User | None:
        """Return the user if the password is right and the user may log in from that address (W7), else None.

        The first right password of a user costs an scrypt, the next ones a fast keyed hash, whose key exists only in
        this process. A wrong password and an unknown name always cost an scrypt, so the time reveals nothing.
        """
        user = self.get(name)
        if user is None or not user.password_hash:
            decoy = f"scrypt:{self.cost}:{LANES}:{'00' * SALT_BYTES}:{'00' * 32}"
            check_password(decoy, password)
            return None
        proof = self._proof(user, password)
        if not (user.proof and hmac.compare_digest(proof, user.proof)):
            if not self._is_right(user, password):
                return None
            user.proof = proof
        return self.known(name, peer_is_loopback)

    def _is_right(self, user: User, password: str) -> bool:
        """Check a password by the slow way. For a foreign hash it takes as long: right or wrong, there is one scrypt."""
        if user.algorithm == OWN:
            return check_password(user.password_hash, password)
        stored = user.password_hash
        ours = hash_password(password, self.cost)
        if not self.foreign_hashes or not foreign_hashes.matches(user.algorithm, stored, _bytes(password)):
            return False
        user.replacement = stored, ours, self._proof_for(ours, password)
        return True

    def known(self, name: str, peer_is_loopback: bool) -> User | None:
        """Return the user if there is one who may log in from that address, else None. The caller has authenticated the name."""
        return self.get(name) if peer_is_loopback or name not in self.loopback_only else None

    def remembers(self, name: str, password: str) -> bool:
        """Whether `authenticate` needs no slow hash, because it has accepted this password before."""
        user = self.get(name)
        return user is not None and bool(user.proof) and hmac.compare_digest(self._proof(user, password), user.proof)

    def _proof(self, user: User, password: str) -> bytes:
        """Return the fast keyed hash. It depends on the stored hash, too, so a change of password invalidates it."""
        return self._proof_for(user.password_hash, password)

    def _proof_for(self, password_hash: str, password: str) -> bytes:
        keyed = hashlib.blake2b(_bytes(password_hash), key=self._key)
        keyed.update(b"\0" + _bytes(password))
        return keyed.digest()

    def _keep(self, user: User) -> None:
        self.generation += 1
        value: dict[str, Any] = {"password_hash": user.password_hash, "tags": [*user.tags]}
        if user.algorithm != OWN:
            value["hashing_algorithm"] = user.algorithm
        if user.replaced:
            value["replaced"] = user.replaced
        if user.limits:
            value["limits"] = user.limits
        self._define("user", (user.name,), value)

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
