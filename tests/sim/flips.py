"""One bit of a file is another when the broker starts, after an end in order (D3)."""

from __future__ import annotations

import logging
from random import Random

from kvitto.base.errors import StoreError
from kvitto.store.judge import batches
from kvitto.store.repair.survey import Survey
from kvitto.store.segment import salts
from tests.sim.ledger import short
from tests.sim.plan import HIDDEN
from tests.sim.result import Result, finding
from tests.sim.setup import settings_of
from tests.sim.world import Found, SeededIds, SimulatedRun, hidden_queues, served, small_world
from tests.support.simdisk import SimDisk

FLIPS = 300
"""Of one run."""
SEGMENT, SETTLEMENTS, JOURNAL, DEFINITIONS, OFFSETS, ARCHIVE = (
    "segment",
    "settlement log",
    "journal",
    "definitions",
    "a stream's offsets",
    "archive",
)


def bitflip(seed: int, part: float = 1.0) -> Result:
    """Every flip is told of, or changes nothing; no wrong body is served; at most the messages of one batch are missing."""
    result = Result(seed)
    with small_world(seed), finding(result, "the run itself"):
        world = SimulatedRun(seed)
        world.play(ends=1)
        world.end("order")
        Flips(world, result).run(round(FLIPS * part))
    return result


class Errors(logging.Handler):
    """How often something was logged that is wrong."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def kind_of(path: str) -> str | None:
    if path.startswith("archive/"):
        return ARCHIVE
    ends = ((".log", SEGMENT), (".ack", SETTLEMENTS), (".jnl", JOURNAL), ("/offsets", OFFSETS))
    if path == "definitions.log":
        return DEFINITIONS
    return next((kind for end, kind in ends if path.endswith(end)), None)


class Flips:
    def __init__(self, world: SimulatedRun, result: Result) -> None:
        self.world = world
        self.result = result
        self.rng = Random(f"{world.seed} flips")
        self.errors = Errors()
        logging.getLogger("kvitto").addHandler(self.errors)
        self.files: dict[str, dict[str, bytes]] = {}
        for path, content in world.disk.files().items():
            kind = kind_of(path)
            if kind is not None and content:
                self.files.setdefault(kind, {})[path] = content
        with SeededIds.others(self.rng):
            harness = world.begin(world.disk.copy())
            vhost = harness.broker.vhosts["/"]
            self.names = {queue.log.queue_id: name for name, queue in vhost.queues.items()}
            self.names |= {queue.log.queue_id: name for name, queue in hidden_queues(harness.broker).items()}
            self.by_policy = {
                name: {f"x-{key}": value for key, value in settings.items()}
                for name, settings in settings_of(harness.broker).items()
            }
            self.before = served(harness)

    def run(self, flips: int) -> None:
        for _ in range(flips):
            kind = self.rng.choice(sorted(self.files))
            path = self.rng.choice(sorted(self.files[kind]))
            position, bit = self.rng.randrange(len(self.files[kind][path])), self.rng.randrange(8)
            with finding(self.result, f"{path}, byte {position}, bit {bit}"), SeededIds.others(self.rng):
                self.result.tried += 1
                disk = self.world.disk.copy()
                disk.flip(path, position, bit)
                told = self.look(disk.copy(), kind, path, position)
                if told == "changes nothing" and Survey(disk).findings:
                    told += ", kvitto check tells"
                self.result.notes[f"{kind}: {told}"] += 1

    def look(self, disk: SimDisk, kind: str, path: str, position: int) -> str:
        """How it came out; AssertionError if it did not, and it matters."""
        self.errors.count = 0
        try:
            harness = self.world.begin(disk)
        except StoreError:
            assert kind in (JOURNAL, DEFINITIONS), "the start is refused"
            return "start refused"
        found = served(harness)
        told = bool(harness.store.alarms or self.errors.count)
        self.check_bodies(found)
        if found != self.before:
            assert told, "nothing is told of what is missing or back"
            assert kind in (SEGMENT, SETTLEMENTS), "other files change what is served"
            self.compare(found, self.names[path.split("/")[1]], kind, path, position)
        return "alarm" if told else "changes nothing"

    def check_bodies(self, found: Found) -> None:
        for name, messages in found.items():
            sent = set(self.world.ledger.queue(name).sent)
            wrong = [body for body, _ in messages if body not in sent]
            assert not wrong, f"{name}: wrong bodies: {wrong}"

    def compare(self, found: Found, hit: str, kind: str, path: str, position: int) -> None:
        """The damaged file's queue may lack a batch, or have back what was settled; the others are as they were.

        A queue with a limit passes messages to its dead-letter queue while they are served. So that one may lack what was in the batch,
        and, after damage in a settlement log, which has the counts of deliveries, have more or fewer of the damaged queue's messages.
        """
        assert set(found) == set(self.before)
        arguments = self.world.queues.get(hit, {}) | self.by_policy.get(hit, {})
        limited: object = hit in HIDDEN or {"x-max-length", "x-delivery-limit", "x-message-ttl"} & set(arguments)
        target = (
            str(arguments["x-dead-letter-routing-key"]) if limited and "x-dead-letter-exchange" in arguments else ""
        )
        if hit in HIDDEN:
            target = HIDDEN[hit]
        bodies = {name: {body for body, _ in messages} for name, messages in found.items()}
        missing = {name: [b for b, _ in messages if b not in bodies[name]] for name, messages in self.before.items()}
        for name in set(found) - {hit, target}:
            assert found[name] == self.before[name], f"{name}: {self.difference(name, found)}"
        back = bodies[hit] - {body for body, _ in self.before[hit]}
        count, batch = self.batch_at(path, position) if kind == SEGMENT else (0, b"")
        if kind == SEGMENT:
            lost = [body for name in filter(None, (hit, target)) for body in missing[name]]
            assert len(lost) <= count, f"{hit}: missing {short(lost)} of {count}"
            elsewhere = [body for body in lost if body not in batch]
            assert not elsewhere, f"{hit}: missing {short(elsewhere)} of another batch"
            if target:
                left = [message for message in self.before[target] if message[0] not in missing[target]]
                assert found[target] == left, f"{target}: {self.difference(target, found)}"
            # the journal brings what is missing of a transaction or a move, and does not know that it was settled; a stream flags
            # nothing, and may keep an older segment, since its retention counts fewer messages behind that
            kept = self.stored(path) if self.world.ledger.queue(hit).stream else b""
            back = {body for body in back if body not in kept}
        elif target:
            neither = [body for body in missing[hit] if body not in bodies[target]]
            neither += [body for body in missing[target] if body not in bodies[hit]]
            assert not neither, f"missing in {hit} and in {target}: {short(neither)}"
        else:
            assert limited or not missing[hit], f"{hit}: missing {short(missing[hit])}"
        flagged = {body for body, again in self.before[hit] if again} | back
        unflagged = [body for body, again in found[hit] if body in flagged and not again]
        assert not unflagged, f"{hit}: not flagged: {short(unflagged)}"
        # what the journal brings of the damaged batch comes to the end of the queue
        order = [body for body, _ in self.before[hit] if body in bodies[hit] and body not in batch]
        here = [body for body, _ in found[hit]]
        assert [body for body in here if body in order] == order, f"{hit}: order: {short(here)}"

    def difference(self, name: str, found: Found) -> str:
        """What a finding says of a queue that is not as it was."""
        before, here = dict(self.before[name]), dict(found[name])
        missing, back = [body for body in before if body not in here], [body for body in here if body not in before]
        return f"missing {short(missing)}, back {short(back)}"

    def stored(self, path: str) -> bytes:
        """The content of all segments beside this one."""
        directory = path.rpartition("/")[0]
        return b"".join(content for other, content in self.files[SEGMENT].items() if other.startswith(directory))

    def batch_at(self, path: str, position: int) -> tuple[int, bytes]:
        """How many messages are in the batch at this place, and its bytes; none between batches."""
        data = self.files[SEGMENT][path]
        for at, head, end in batches(data, len(data), salts(data)[0], int(path.rpartition("/")[2][:20])):
            if head is not None and at <= position < end:
                return head.count, data[at:end]
        return 0, b""
