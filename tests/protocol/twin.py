"""Run sessions from a file, one hex line each, through this process's form of the data plane; print what was answered.

`python -m tests.protocol.twin FILE`: the first line says which form it was, then one line per session.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
import sys
from pathlib import Path

import kvitto
from kvitto.base.errors import StoreError
from tests.protocol.sansio import ProtocolHarness, Wire


def answers(data: bytes) -> tuple[ProtocolHarness, Wire]:
    """Whole and then in pieces of 7 bytes, with a turn after each piece: deliveries and acks meet half a frame."""
    harness = ProtocolHarness()
    for pieces in ([data], [data[i : i + 7] for i in range(0, len(data), 7)]):
        wire = harness.wire(login=False)
        for piece in pieces:
            if not wire.reading:
                harness.settle_down()
            if wire.closed or not wire.reading:
                break
            wire.feed(piece)
            harness.turn()
        harness.settle_down()
    return harness, wire


def line(data: bytes) -> str:
    """What came back, and what is on the disk in the end; an error is an answer too, and must be the same one."""
    count = itertools.count()
    secrets.token_urlsafe = lambda nbytes=0: f"made-up-{next(count)}"
    secrets.token_hex = lambda nbytes=0: f"{next(count):032x}"
    try:
        harness, wire = answers(data)
    except (ArithmeticError, AssertionError, LookupError, StoreError, TypeError, ValueError) as error:
        return repr(error)
    digest = hashlib.sha256(wire.written)
    queues = [(q.name, q.ready, q.unacked, q.cursor, q.next) for q in harness.broker.queues.values()]
    return f"{len(wire.written)} {digest.hexdigest()} {sorted(queues)}"


def main(path: str) -> None:
    logging.disable(logging.CRITICAL)
    print("compiled" if kvitto.compiled() else "interpreted")
    for data in Path(path).read_text().split("\n"):
        print(line(bytes.fromhex(data)))


if __name__ == "__main__":
    main(sys.argv[1])
