"""How a follower and a leader begin a connection: both prove that they have the shared key, and it never travels.

    follower   KVITREP1, {version, nonce}
    leader     {version, nonce, proof}            or {refused, again}
    follower   {proof, member, process, session, place, cluster, level}   or {refused}
    leader     {history, session, place, resume, cluster, proof}  or {refused, again}

Each message is four bytes of length and JSON. Then both send frames and records (`records.py`), whose checksums are seeded from the key
and both nonces. Nothing is encrypted. `link.py` and `follower.py` use this.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import Any

from kvitto.base import private
from kvitto.base.config import ConfigError
from kvitto.cluster.records import Nonces, StreamError

MAGIC = b"KVITREP1"
VERSION = 1
REASON_MAX = 500
"""The most characters of a reason that the other side gives."""
MESSAGE_BYTES_MAX = 1 << 16
LENGTH_BYTES = 4
STRANGERS = {
    b"AMQP": "an AMQP port",
    b"HTTP": "an HTTP port",
    **{bytes((21, 3, minor, 0)): "a port with TLS of its own" for minor in range(1, 4)},
}
"""The first four bytes of what other listeners answer: AMQP's header, a line of HTTP, an alert of TLS."""
NONCE_BYTES = 32
KEY_BYTES_MIN, KEY_BYTES_MAX = 16, 4096
LEADER, FOLLOWER = b"leader", b"follower"


class Refused(Exception):
    """One side ends the connection until an operator has done something; the text says what.

    `again`: the reason may pass by itself within some seconds.
    """

    def __init__(self, text: str, again: bool = False) -> None:
        super().__init__(text)
        self.again = again


def nonce() -> str:
    return secrets.token_hex(NONCE_BYTES)


def proof(key: bytes, who: bytes, followers: str, leaders: str, said: dict[str, Any]) -> str:
    """Return an HMAC of both nonces and of the fields of a message. Only somebody who has the key can make it."""
    fields = json.dumps({name: value for name, value in said.items() if name != "proof"}, sort_keys=True)
    covered = b"kvitto %s %s %s %s" % (who, followers.encode(), leaders.encode(), fields.encode())
    return hmac.digest(key, covered, "sha256").hex()


def proved(key: bytes, who: bytes, followers: str, leaders: str, said: dict[str, Any]) -> bytes:
    """Return an encoded message that carries its proof."""
    return message(**said, proof=proof(key, who, followers, leaders, said))


def proves(key: bytes, who: bytes, followers: str, leaders: str, said: dict[str, Any]) -> bool:
    """Return whether the proof in a message shows that its sender has the key."""
    found = said.get("proof")
    wanted = proof(key, who, followers, leaders, said)
    return isinstance(found, str) and hmac.compare_digest(wanted.encode(), found.encode())


def nonces(key: bytes, followers: str, leaders: str) -> Nonces:
    digest = hmac.digest(key, b"kvitto stream %s %s" % (followers.encode(), leaders.encode()), "sha256")
    return Nonces(*(int.from_bytes(digest[at : at + 8], "little") for at in range(0, 32, 8)))


def message(**fields: Any) -> bytes:
    data = json.dumps(fields).encode()
    assert len(data) <= MESSAGE_BYTES_MAX
    return len(data).to_bytes(LENGTH_BYTES, "little") + data


def length_of(head: bytes) -> int:
    """Return the length of the message that begins with these bytes. Raise StreamError if it is too long, or no message at all."""
    if head in STRANGERS:
        raise StreamError(f"{STRANGERS[head]} answers there: give the address of the other node's --followers")
    length = int.from_bytes(head, "little")
    if length > MESSAGE_BYTES_MAX:
        raise StreamError(f"a message of {length} bytes")
    return length


class Inbox:
    """Splits received bytes into messages. `rest` holds the bytes behind the last complete message."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> None:
        self.rest += data

    def magic(self) -> bool:
        """Remove the magic from the beginning. Return whether it is there already. Raise StreamError if other bytes are."""
        if not MAGIC.startswith(self.rest[: len(MAGIC)]):
            raise StreamError("no follower of Kvitto's")
        if len(self.rest) < len(MAGIC):
            return False
        self.rest = self.rest[len(MAGIC) :]
        return True

    def next(self) -> dict[str, Any] | None:
        """Return the next message, None if it is not complete yet. Raise StreamError if it is malformed, Refused if it is a refusal."""
        if len(self.rest) < LENGTH_BYTES:
            return None
        length = length_of(self.rest[:LENGTH_BYTES])
        if len(self.rest) < LENGTH_BYTES + length:
            return None
        data, self.rest = self.rest[LENGTH_BYTES : LENGTH_BYTES + length], self.rest[LENGTH_BYTES + length :]
        try:
            found = json.loads(data)
            json.dumps(found, ensure_ascii=False).encode()  # half a surrogate cannot be covered by a proof
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise StreamError("a message that cannot be read")
        if "refused" in found:
            raise Refused(str(found["refused"])[:REASON_MAX], found.get("again") is True)
        return found


def read_key(path: Path) -> bytes:
    """Read the shared key from its file. Raises ConfigError if it cannot be used, or if others may read it."""
    key = private.read("--cluster-key", path, KEY_BYTES_MAX + 1).strip()
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise ConfigError(
            f"--cluster-key {path} must have {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes: openssl rand -hex 32 > {path} makes one"
        )
    return hashlib.sha256(key).digest()
