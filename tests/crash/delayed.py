"""Delayed messages under `kill -9`: none is lost, none comes early, and none comes twice without its flag.

    python -m tests.crash.delayed [--kills 100] [--seed N]

A publisher sends messages with delays of up to three seconds, each once, and waits for each confirm. A consumer acks what comes. The broker
is killed again and again, at any moment. In the end every confirmed message must have come.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import kvitto
from kvitto.client.errors import AMQPError
from kvitto.torture.nodes import Kvitto
from kvitto.wire.tables import Value

DELAY_MAX_MS = 3000
QUIET_S = 60.0
"""If nothing comes for so long at the end, what is missing is lost."""
CLOCK_S = 0.002
"""The broker counts whole milliseconds, and so does the delay."""


class Ledger:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.confirmed: set[int] = set()
        self.sent = 0
        self.came: Counter[int] = Counter()
        self.early: list[int] = []
        self.twice: list[int] = []
        self.last = time.monotonic()

    def arrived(self, number: int, due: float, redelivered: bool) -> None:
        with self.lock:
            self.last = time.monotonic()
            if time.time() < due - CLOCK_S:
                self.early.append(number)
            if self.came[number] and not redelivered:
                self.twice.append(number)
            self.came[number] += 1

    @property
    def missing(self) -> set[int]:
        with self.lock:
            return self.confirmed - set(self.came)


def publish(uri: str, ledger: Ledger, ending: threading.Event, seed: int) -> None:
    rng = random.Random(f"{seed} {uri} {ledger.sent}")
    try:
        with kvitto.connect_sync(uri, reconnect=False) as connection, connection.channel() as channel:
            while not ending.is_set():
                number = ledger.sent = ledger.sent + 1
                delay_ms = rng.randrange(1, DELAY_MAX_MS)
                body = f"{number} {time.time() + delay_ms / 1000!r}".encode()
                channel.publish(body, "k", exchange="later", headers={"x-delay": delay_ms})
                ledger.confirmed.add(number)
    except (AMQPError, OSError):
        return  # the broker was killed


def consume(uri: str, ledger: Ledger, ending: threading.Event) -> None:
    try:
        with kvitto.connect_sync(uri, reconnect=False) as connection, connection.channel() as channel:
            queue = channel.queue("q", durable=True)
            while not ending.is_set():
                message = queue.get()
                if message is None:
                    ending.wait(0.002)
                    continue
                number, due = message.body.decode().split()
                ledger.arrived(int(number), float(due), message.redelivered)
                message.ack()
    except (AMQPError, OSError):
        return


def life(broker: Kvitto, ledger: Ledger, seconds: float, seed: int) -> None:
    """Serve for so long, then be killed."""
    ending = threading.Event()
    threads = [
        threading.Thread(target=publish, args=(broker.uri, ledger, ending, seed)),
        threading.Thread(target=consume, args=(broker.uri, ledger, ending)),
    ]
    for thread in threads:
        thread.start()
    ending.wait(seconds)
    broker.kill()
    ending.set()
    for thread in threads:
        thread.join()


def run(kills: int, seed: int, place: Path) -> Ledger:
    ledger, rng = Ledger(), random.Random(seed)
    broker = Kvitto(place / "broker")
    try:
        broker.start()
        with kvitto.connect_sync(broker.uri) as connection, connection.channel() as channel:
            given: dict[str, Value] = {"x-delayed-type": "direct"}
            exchange = channel.exchange("later", "x-delayed-message", durable=True, arguments=given)
            channel.queue("q", durable=True).bind(exchange, "k")
        for _ in range(kills):
            life(broker, ledger, rng.uniform(0.2, 1.5), seed)
            broker.start()
        ending = threading.Event()
        last = threading.Thread(target=consume, args=(broker.uri, ledger, ending))
        last.start()
        ledger.last = time.monotonic()
        while ledger.missing and time.monotonic() - ledger.last < QUIET_S:
            ending.wait(0.05)
        ending.set()
        last.join()
        broker.stop()
    finally:
        broker.close()
    return ledger


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.delayed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="kvitto-delayed-") as place:
        ledger = run(args.kills, args.seed, Path(place))
    again = sum(count - 1 for count in ledger.came.values())
    print(
        f"seed {args.seed}: {args.kills} kills, {len(ledger.confirmed):,} confirmed of {ledger.sent:,} sent, {again} came again, flagged"
    )
    print(f"lost {len(ledger.missing)}, early {len(ledger.early)}, twice without a flag {len(ledger.twice)}")
    return 1 if ledger.missing or ledger.early or ledger.twice else 0


if __name__ == "__main__":
    sys.exit(main())
