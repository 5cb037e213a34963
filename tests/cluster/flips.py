"""Flips bits in the files of a running cluster, and looks what becomes of each: `python -m tests.cluster.flips --flips 1000`.

Three nodes as processes, in turns a follower, the leader, and both at once. After each round all three have to be in sync. A flipped bit
that the leader and another node have then has become the truth. At the end all messages are read and compared with what was sent.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

from kvitto.store import paths
from tests.cluster.nodes import Cluster, Node, lines
from tests.support.etcd import FakeEtcd, RealEtcd, real_etcd
from tests.support.wait import wait_until

ROUND_S = 240.0
QUEUES = 5
MESSAGES = 60
SIZES = (20, 300, 3000, 30_000)
PLAIN = "queue.json"
OUTCOMES = ("repaired", "alarmed", "neither", "became the truth")
SIDES = ("follower", "leader", "both")

Flip = tuple[str, int, int, int]
"""A file, the place in it, the byte that was there, and the one that is there now."""


def body(queue: int, number: int) -> bytes:
    return b"%d %d " % (queue, number) + Random(f"{queue} {number}").randbytes(SIZES[number % len(SIZES)])


def fill(node: Node) -> None:
    """Queues with messages of all sizes, some settled, and a stream with a named consumer."""
    with node.connect() as connection, connection.channel() as channel:
        for queue in range(QUEUES):
            own = channel.queue(f"q{queue}", durable=True)
            for number in range(MESSAGES):
                channel.publish(body(queue, number), f"q{queue}")
            for _ in range(10):
                message = own.get()
                assert message is not None
                message.ack()


def files(node: Node) -> dict[str, Path]:
    """The files of a node that all nodes have, and that have checksums."""
    found = {str(path.relative_to(node.data)): path for path in node.data.rglob("*") if path.is_file()}
    return {name: path for name, path in found.items() if not paths.is_local(name) and not name.endswith(PLAIN)}


def flip(node: Node, rng: Random, count: int) -> list[Flip]:
    """Flip some bits, each in a place of its own, where there is more than room that was reserved."""
    found, done = files(node), list[Flip]()
    names = sorted(name for name, path in found.items() if path.stat().st_size)
    while len(done) < count:
        name = rng.choice(names)
        data = found[name].read_bytes().rstrip(b"\0")
        if not data:
            continue
        at = rng.randrange(len(data))
        if any((name, at) == each[:2] for each in done):
            continue
        flipped = data[at] ^ 1 << rng.randrange(8)
        with found[name].open("r+b") as file:
            file.seek(at)
            file.write(bytes([flipped]))
        done.append((name, at, data[at], flipped))
    return done


def byte_at(node: Node, name: str, at: int) -> int | None:
    """The byte that is there now; None if the file has gone, or is shorter."""
    try:
        with (node.data / name).open("rb") as file:
            file.seek(at)
            data = file.read(1)
    except FileNotFoundError:
        return None
    return data[0] if data else None


def is_settled(cluster: Cluster) -> bool:
    document = cluster.register.read().document
    return document is not None and len(document.members) == 3


class Flips:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = Random(seed)
        self.counts = {side: Counter[str]() for side in SIDES}

    def round(self, side: str, count: int) -> None:
        cluster, rng = self.cluster, self.rng
        cluster.wait_in_sync(3)
        leader = cluster.wait_for_leader()
        follower = rng.choice([node for node in cluster.nodes if node is not leader])
        hit = {"follower": [follower], "leader": [leader], "both": [leader, follower]}[side]
        began = {node: len(node.log()) for node in hit}
        done = [(node, *each) for node in hit for each in flip(node, rng, count // len(hit))]

        def is_healed(node: Node, name: str, at: int, old: int, flipped: int) -> bool:
            """Whether the byte is what it was, or what all nodes have since: some files are written in place."""
            now = byte_at(node, name, at)
            return now in (old, None) or (
                now != flipped and all(byte_at(other, name, at) == now for other in cluster.nodes)
            )

        def healed() -> bool:
            return all(is_healed(*each) for each in done)

        with suppress(AssertionError):
            wait_until(lambda: healed() and is_settled(cluster), ROUND_S)
        cluster.wait_in_sync(3)
        new = cluster.wait_for_leader()
        said = {node: node.log()[began[node] :] for node in hit}
        counts = self.counts[side]
        for each in done:
            node, name, at, _, flipped = each
            spread = [byte_at(other, name, at) == flipped for other in cluster.nodes if other is not node]
            if is_healed(*each):
                counts["repaired"] += 1
            elif all(spread) or (any(spread) and byte_at(new, name, at) == flipped):
                counts["became the truth"] += 1
            else:
                counts["alarmed" if name in said[node] else "neither"] += 1
                print(f"not repaired: {node.name} {name}, byte {at}")
        resigned = sum("leads no more" in text for text in said.values())
        kinds = dict(Counter(kind(each[1]) for each in done))
        print(f"{side}: {len(done)} flips, {kinds}, {resigned} resigned", flush=True)

    def read_all(self) -> int:
        """Compare all messages with what was sent. Returns how many there are."""
        total = 0
        with self.cluster.wait_for_leader().connect() as connection, connection.channel() as channel:
            for queue in range(QUEUES):
                own = channel.queue(f"q{queue}", durable=True)
                got = []
                while (message := own.get()) is not None:
                    got.append(bytes(message.body))
                wanted = [body(queue, number) for number in range(10, MESSAGES)]
                assert got == wanted, f"q{queue} has other messages"
                total += len(got)
        return total


def kind(name: str) -> str:
    return re.sub(r".*\.(log|ack|jnl)$", r"\1", name) if "/" in name else name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        etcd = RealEtcd(Path(place)) if real_etcd() is not None else FakeEtcd()
        cluster = Cluster(Path(place), etcd)
        try:
            cluster.wait_in_sync(3)
            fill(cluster.wait_for_leader())
            run = Flips(cluster, args.seed)
            for number in range(0, args.flips, args.at_once):
                side = SIDES[number // args.at_once % len(SIDES)]
                run.round(side, min(args.at_once, args.flips - number))
            total = run.read_all()
            print(f"{'':10}{''.join(f'{what:>18}' for what in OUTCOMES)}")
            for side, counts in run.counts.items():
                print(f"{side:10}{''.join(f'{counts[what]:18}' for what in OUTCOMES)}")
            print(f"{total} messages read, all as they were sent")
            for node in cluster.nodes:
                assert not lines(node, "Traceback"), node.log()
        finally:
            cluster.end()
            etcd.stop()


if __name__ == "__main__":
    main()
