"""Password hashes of RabbitMQ and LavinMQ, which are kept as they are until their user's first right login.

They are weaker than ours, so they are only read, never made: `Users` replaces one by our own hash as soon as it has seen the password.
Used by `auth.py`, for logins and for whatever brings such a hash.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import importlib
import re
from typing import Any

OWN = "kvitto_scrypt"
"""The name of our own hashes in exports."""
SALTED = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
"""By RabbitMQ's name, the digest. The hash is base64 of a salt of 4 bytes and the digest of the salt and the password."""
DEFAULT = "rabbit_password_hashing_sha256"
BCRYPT = "rabbit_password_hashing_bcrypt"
BCRYPT_NAMES = (BCRYPT, "Bcrypt", "bcrypt")
"""LavinMQ's names, of several versions."""
SALT_BYTES = 4
BCRYPT_COST_MAX = 15
"""log2 of the rounds. A check takes about 2 s with this many, and twice as long with one more; logins of others wait for it."""
BCRYPT_PASSWORD_MAX = 72
_BCRYPT = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")


class UnusableHash(ValueError):
    """A hash cannot be taken. The text says why."""


def algorithm_of(name: str) -> str:
    """Return the name under which we keep an algorithm. Raises UnusableHash."""
    if name in BCRYPT_NAMES:
        return BCRYPT
    for known in (*SALTED, OWN):
        if name.lower() in (known, known.removeprefix("rabbit_password_hashing_")):
            return known
    raise UnusableHash(f"hashing algorithm {name!r} is none of {', '.join((*SALTED, BCRYPT, OWN))}")


def check_form(algorithm: str, stored: str) -> None:
    """Raises UnusableHash unless this is a hash of the algorithm, which is none of our own."""
    if algorithm == BCRYPT:
        found = _BCRYPT.fullmatch(stored)
        if found is None:
            raise UnusableHash("password_hash is no bcrypt hash")
        if not 4 <= int(found[1]) <= BCRYPT_COST_MAX:
            raise UnusableHash(f"the cost of the bcrypt hash is {int(found[1])}, at most {BCRYPT_COST_MAX} is possible")
        if _bcrypt() is None:
            raise UnusableHash("bcrypt hashes need the library bcrypt: pip install 'kvitto[bcrypt]'")
        return
    size = hashlib.new(SALTED[algorithm], usedforsecurity=False).digest_size
    if len(_decoded(stored)) != SALT_BYTES + size:
        raise UnusableHash(f"password_hash is not base64 of {SALT_BYTES + size} bytes, which {algorithm} has")


def matches(algorithm: str, stored: str, password: bytes) -> bool:
    """Whether a hash of another broker is that of this password; False for one that cannot be read."""
    try:
        check_form(algorithm, stored)
    except (UnusableHash, KeyError):
        return False
    if algorithm == BCRYPT:
        return len(password) <= BCRYPT_PASSWORD_MAX and bool(_bcrypt().checkpw(password, stored.encode()))
    known = _decoded(stored)
    salt, expected = known[:SALT_BYTES], known[SALT_BYTES:]
    found = hashlib.new(SALTED[algorithm], salt + password, usedforsecurity=False).digest()
    return hmac.compare_digest(found, expected)


def fingerprint(algorithm: str, stored: str) -> str:
    """Return what is remembered of a hash that was replaced, so that the same document can be imported again.

    It helps nobody to find the password: the salt is not known any more, so one guess costs 2**32 digests, more than our own hash.
    """
    return hashlib.sha256(f"{algorithm}:{stored}".encode()).hexdigest()


def _decoded(stored: str) -> bytes:
    try:
        return base64.b64decode(stored, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _bcrypt() -> Any:
    """Return the module, or None if it is not installed."""
    try:
        return importlib.import_module("bcrypt")
    except ImportError:
        return None
