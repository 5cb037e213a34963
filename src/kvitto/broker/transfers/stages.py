"""Stages: messages that many publishers put aside until one commit publishes them (docs/protocol-extensions.md, class `stage`).

A stage is a hidden queue. The commit is one line of the definitions, with the writer's batch and the committed stages. Once that line is
durable, journal records move the messages to their queues, in order: each record appends some of them and settles them in their stage,
so that after any crash a message is in its stage or in its queues.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import NOT_FOUND, PRECONDITION_FAILED, ChannelError
from kvitto.base.turn_part import TurnPart
from kvitto.broker import walls
from kvitto.broker.administration.admission import as_stored, expiration_ms
from kvitto.broker.administration.arguments import QueueSettings
from kvitto.broker.queues.queue import Declaration, Queue
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.transfers.deadletter import LETTER_MAX, RECORD_BYTES, Parcel, read_properties, split_key, weight
from kvitto.broker.transfers.in_order import fitting, in_the_way, takers, unmoved
from kvitto.broker.transfers.stage_reading import Place, read_next
from kvitto.broker.walls import Service
from kvitto.format.settlement import ACKED
from kvitto.store.batch import Batch
from kvitto.store.reading import Window
from kvitto.store.record import Append, Run, Settle
from kvitto.wire.buf import Buf

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.vhost import VHost

NONE = (1 << 64) - 1
"""The batch number that means that no batch was committed."""
STAGES_MAX = 10_000
"""The most uncommitted stages of one writer."""
WRITERS_MAX = 100_000
"""The most writers in all virtual hosts together."""
FORGOTTEN_MS = 24 * 3_600_000
"""A stage without a publish for this many ms is dropped."""
LOOK_MS = 600_000
FULL_MS = 100
"""The time after which a queue that was full is tried again."""
MOVED_PER_TURN = 100
SLICES_PER_TURN = 4
"""The most slices of a large message that are checked or read in one turn."""
LAST = object()
"""The most stages that may end in one turn."""
MESSAGES_MAX = 20_000
"""The most messages in one record."""

log = logging.getLogger("kvitto.broker")

Name = tuple[str, str]
"""The virtual host and the writer."""
Key = tuple[str, str, int, str]
"""The virtual host, the writer, the batch and the task."""


def name_of(key: Key) -> str:
    return f"stage of task '{key[3]}' for batch {key[2]} of writer '{key[1]}'"


def _unbound(key: bytes) -> str:
    """Say that an exchange and a routing key, both as short strings, lead nowhere."""
    exchange, routing_key = split_key(key)
    return f"exchange '{exchange}' leads to no queue any more with routing key '{routing_key}'"


def _warn_of_drop(vhost: VHost, count: int, why: str) -> None:
    words = "message is" if count == 1 else "messages are"
    log.warning("vhost '%s': %d committed %s dropped: %s", vhost.name, count, words, why)


class Stage:
    """The messages of one task. `closed`: no more can be added."""

    def __init__(self, key: Key, queue: WorkQueue, now_ms: int) -> None:
        self.key = key
        self.name = name_of(key)
        self.queue = queue
        self.window = Window()
        self.window.patient = True
        self.reading: Iterator[object] | None = None
        """The steps that read the next message if it is in a large batch."""
        self.body: tuple[int, Buf] | None = None
        """The offset and the body of a large message that has been read."""
        self.closed = False
        self.seen = 0
        self.used_ms = now_ms

    @property
    def definition(self) -> tuple[str, ...]:
        vhost, writer, batch, task = self.key
        return vhost, writer, str(batch), task

    @property
    def whole(self) -> bool:
        """Whether all its messages are durable."""
        return self.queue.log.synced_end == self.queue.next


@dataclass
class Commit:
    """A commit that waits until all messages of its stages are durable."""

    batch: int
    stages: list[Stage]
    done: list[Callable[[bool], None]]


class Writer:
    """`last` is the last batch whose commit is durable; that of `written` may not be durable yet. `moving`: committed stages with messages
    that are not in their queues yet. `busy`: a record is being written or applied. `owner`: the task that has claimed the writer, ""
    if none has; only its stages are opened and committed. A restart forgets it, since it ends all connections.
    """

    def __init__(self, name: Name, last: int = NONE) -> None:
        self.name = name
        self.last = self.written = last
        self.open: dict[tuple[int, str], Stage] = {}
        self.waiting: deque[Commit] = deque()
        self.moving: deque[Stage] = deque()
        self.busy = False
        self.owner = ""
        self.claimed_ms = 0

    @property
    def value(self) -> dict[str, Any]:
        return {"batch": self.written, "moving": [stage.queue.log.queue_id for stage in self.moving]}

    @property
    def idle(self) -> bool:
        """Whether nothing of the writer has to be kept."""
        return self.written == NONE and not (self.owner or self.open or self.waiting or self.moving)

    def check(self, task: str) -> None:
        """Raise ChannelError 406 if another task has claimed the writer."""
        if self.owner not in ("", task):
            text = f"writer '{self.name[1]}' was claimed by task '{self.owner}', not by '{task}'"
            raise ChannelError(PRECONDITION_FAILED, text)

    def has(self, batch: int) -> bool:
        """Whether this batch or a later one is committed, or about to be."""
        last = self.waiting[-1].batch if self.waiting else self.written
        return last != NONE and batch <= last


class Stages(Service, TurnPart):
    stopped = "committed stages do not move into their queues"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.store)
        self.broker = broker
        self.writers: dict[Name, Writer] = {}
        self.waiting: dict[Name, None] = {}
        """Writers that may have messages to move."""
        self._place = Place()
        self._looking = False

    @property
    def open_stages(self) -> list[Stage]:
        return [stage for writer in self.writers.values() for stage in writer.open.values()]

    # -- what a peer asks for --------------------------------------------------------------------------------

    def open(self, vhost: VHost, name: str, batch: int, task: str) -> Stage:
        """Open an empty stage, which replaces one of the same name. It is closed if the batch was committed. Raises ChannelError 406."""
        self._check(name, batch)
        self._check_task(task)
        self.broker.check_queues(name_of((vhost.name, name, batch, task)), vhost.name)
        writer = self._writer(vhost, name)
        writer.check(task)
        key = (vhost.name, name, batch, task)
        if writer.has(batch):
            return self._closed(vhost, key)
        if (batch, task) in writer.open:
            self._drop(writer.open.pop((batch, task)))
        elif len(writer.open) >= STAGES_MAX:
            text = f"writer '{name}' has {STAGES_MAX} stages: commit or forget them first"
            raise ChannelError(PRECONDITION_FAILED, text, limit="stages")
        queue_id = secrets.token_hex(16)
        stage = self._make(vhost, writer, key, queue_id)
        self.broker.define("stage", stage.definition, {"id": queue_id})
        self._look_later()
        return stage

    def claim(self, vhost: VHost, name: str, task: str, done: Callable[[int], None]) -> None:
        """From now on open and commit stages of this task only. Call `done` with the last batch when all commits that came before are
        durable: what an earlier task still sends has no effect. Raises ChannelError 406.
        """
        self._check(name)
        self._check_task(task)
        writer = self._writer(vhost, name)
        writer.owner, writer.claimed_ms = task, self.broker.timers.now_ms
        for stage in writer.open.values():
            self._drop(stage)
        writer.open.clear()
        self._look_later()
        if writer.waiting:
            writer.waiting[-1].done.append(lambda _: done(writer.last))
        else:
            self.broker.store.when_defined(lambda: done(writer.last), announced=True)

    def last(self, vhost: VHost, name: str) -> int:
        """Return the last batch whose commit is durable, or NONE."""
        found = self.writers.get((vhost.name, name))
        return found.last if found else NONE

    def commit(self, vhost: VHost, name: str, batch: int, tasks: list[str], done: Callable[[bool], None]) -> None:
        """Publish these stages, and drop the writer's other stages up to this batch. Once that is durable, `done` is called with whether
        this commit was the first one of the batch. Raises ChannelError 404, 406.
        """
        self._check(name, batch)
        writer = self._writer(vhost, name)
        tasks = list(dict.fromkeys(tasks))
        for task in tasks or [""]:
            writer.check(task)
        if writer.has(batch):
            if writer.waiting:
                writer.waiting[-1].done.append(lambda _: done(False))
            else:
                self.broker.store.when_defined(lambda: done(False), announced=True)
            return
        missing = next((task for task in tasks if (batch, task) not in writer.open), None)
        if missing is not None:
            if writer.idle:
                del self.writers[writer.name]
            raise ChannelError(NOT_FOUND, f"no {name_of((vhost.name, name, batch, missing))} in vhost '{vhost.name}'")
        for task in tasks:
            if writer.open[batch, task].queue.fault is not None:
                raise walls.out_of_service(writer.open[batch, task].queue)
        stages = [writer.open.pop((batch, task)) for task in tasks]
        for stage in stages:
            stage.closed = True
        vhost.epoch.value += 1
        writer.waiting.append(Commit(batch, stages, [done]))
        self._advance(writer)

    def forget(self, vhost: VHost, name: str) -> None:
        """Drop a writer's uncommitted stages and the number of its last batch. Raises ChannelError 406 while a commit waits."""
        writer = self.writers.get((vhost.name, name))
        if writer is None:
            return
        if writer.waiting:
            raise ChannelError(PRECONDITION_FAILED, f"writer '{name}' has a commit that waits for the disk")
        for stage in writer.open.values():
            self._drop(stage)
        writer.open.clear()
        writer.last = writer.written = NONE
        self._define(writer)

    def forget_vhost(self, vhost: VHost) -> None:
        """Drop all writers of a virtual host that is being deleted."""
        for writer in [w for w in self.writers.values() if w.name[0] == vhost.name]:
            for stage in (*writer.open.values(), *writer.moving, *(s for c in writer.waiting for s in c.stages)):
                self._drop(stage)
            del self.writers[writer.name]
            self.waiting.pop(writer.name, None)
            self.broker.timers.cancel(self._again, writer.name)
            self.broker.timers.cancel(self._advance, writer)
            self.broker.undefine("writer", writer.name)

    @staticmethod
    def _check_task(task: str) -> None:
        if not task or "\n" in task:
            raise ChannelError(PRECONDITION_FAILED, "a task needs a name without newlines")

    @staticmethod
    def _check(name: str, batch: int = 0) -> None:
        if not name:
            raise ChannelError(PRECONDITION_FAILED, "a writer needs a name")
        if batch == NONE:
            raise ChannelError(
                PRECONDITION_FAILED, f"batch {NONE} is not valid: the number means that there is no batch"
            )

    def _writer(self, vhost: VHost, name: str) -> Writer:
        found = self.writers.get((vhost.name, name))
        if found is None:
            if len(self.writers) >= WRITERS_MAX:
                text = (
                    f"there are {WRITERS_MAX} writers, the limit: call stage.forget for those that are no longer used"
                )
                raise ChannelError(PRECONDITION_FAILED, text, limit="stages")
            found = self.writers[vhost.name, name] = Writer((vhost.name, name))
        return found

    def _make(self, vhost: VHost, writer: Writer, key: Key, queue_id: str) -> Stage:
        stage = self._stage_of(vhost, key, queue_id)
        self.broker.queues[queue_id] = stage.queue
        writer.open[key[2], key[3]] = stage
        return stage

    def _closed(self, vhost: VHost, key: Key) -> Stage:
        """Return a closed stage for a task that is late. Its publishes are refused."""
        stage = self._stage_of(vhost, key, secrets.token_hex(16))
        stage.closed = stage.queue.deleted = True
        return stage

    def _stage_of(self, vhost: VHost, key: Key, queue_id: str) -> Stage:
        opened = self.broker.open_log(queue_id, True)
        queue = WorkQueue(self.broker, vhost, opened, QueueSettings(), Declaration(name_of(key), {}, durable=True))
        return Stage(key, queue, self.broker.timers.now_ms)

    def _drop(self, stage: Stage) -> None:
        """Delete the queue of a stage. The caller removes it from its lists."""
        stage.closed = True
        if not stage.queue.deleted:
            self.broker.undefine("stage", stage.definition)
            self.broker.drop_hidden(stage.queue)

    def _advance(self, writer: Writer) -> None:
        """Write the commits whose stages are durable, in order."""
        while writer.waiting and self.writers.get(writer.name) is writer:
            if any(stage.queue.fault is not None for stage in writer.waiting[0].stages):
                return  # it will never be durable, and nothing of it is committed
            if not all(stage.whole for stage in writer.waiting[0].stages):
                self._advance_later(writer)
                return
            self._write_commit(writer, writer.waiting.popleft())

    def _advance_later(self, writer: Writer) -> None:
        if any(stage.queue in self.broker.unwritten for stage in writer.waiting[0].stages):
            self.broker.timers.after(FULL_MS, self._advance, writer)
        else:
            self.broker.store.commits.when_synced(walls.guarded(self, lambda: self._advance(writer)), messages=True)

    def _write_commit(self, writer: Writer, commit: Commit) -> None:
        writer.written = commit.batch
        writer.moving.extend(commit.stages)
        self._define(writer)
        for key in [key for key in writer.open if key[0] <= commit.batch]:
            self._drop(writer.open.pop(key))

        def committed() -> None:
            writer.last = commit.batch
            self.waiting[writer.name] = None
            for fresh, done in enumerate(commit.done):
                walls.run(self, done, fresh == 0)

        self.broker.store.when_defined(walls.guarded(self, committed), announced=True)

    def _define(self, writer: Writer) -> None:
        if writer.written == NONE and not writer.moving:
            if writer.idle:
                self.writers.pop(writer.name, None)
            self.broker.undefine("writer", writer.name)
        else:
            self.broker.define("writer", writer.name, writer.value)

    # -- start -----------------------------------------------------------------------------------------------

    def restore_stage(self, vhost: VHost, key: Key, queue_id: str) -> None:
        name = (key[0], key[1])
        writer = self.writers.setdefault(name, Writer(name))
        self._make(vhost, writer, key, queue_id)

    def restore_writer(self, name: Name, value: dict[str, Any]) -> None:
        """Restore a writer, after all stages. Stages that are moving are no longer open. A missing one has been moved to its end."""
        writer = self.writers.setdefault(name, Writer(name))
        writer.last = writer.written = value["batch"]
        by_id = {stage.queue.log.queue_id: key for key, stage in writer.open.items()}
        for queue_id in value["moving"]:
            key = by_id.pop(queue_id, None)
            if key is not None:
                stage = writer.open.pop(key)
                stage.closed = True
                writer.moving.append(stage)
        if writer.moving:
            self.waiting[name] = None

    def started(self) -> None:
        """Drop stages whose commit was durable before their own definitions were deleted."""
        for writer in self.writers.values():
            for key in [key for key in writer.open if writer.has(key[0])]:
                self._drop(writer.open.pop(key))
        self._look_later()

    # -- moving ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Write a record for each writer that has none under way."""
        due, self.waiting = self.waiting, {}
        for name in due:
            writer = self.writers.get(name)
            if writer is not None and not writer.busy:
                walls.run(self, self._move, writer)

    def _move(self, writer: Writer) -> None:
        for _ in range(MOVED_PER_TURN):
            if not writer.moving:
                self._define(writer)
                return
            stage = writer.moving[0]
            if stage.queue.fault is not None:
                return  # its messages are on disk: the next start moves them
            if not self._is_read(stage):
                break
            parcel = Parcel()
            end, full = self._gather(stage, parcel)
            if parcel.record.settles:
                self._write(writer, stage, parcel, end)
                return
            if full:
                self.broker.timers.after(FULL_MS, self._again, writer.name)
                return
            self._drop(writer.moving.popleft())
        self.waiting[writer.name] = None

    def _again(self, name: Name) -> None:
        self.waiting[name] = None

    def _is_read(self, stage: Stage) -> bool:
        """Continue to read the next message of a stage, which takes several turns if it is large. Returns True if it can be moved now."""
        if stage.reading is None:
            stage.reading = read_next(stage, *unmoved(stage.queue, 0), self._place)
        for _ in range(SLICES_PER_TURN):
            if next(stage.reading, LAST) is LAST:
                stage.reading = None
                return True
        return False

    def _gather(self, stage: Stage, parcel: Parcel) -> tuple[int, bool]:
        """Put the next messages of a stage into the parcel. Returns the offset behind them, and whether a full queue is in the way."""
        vhost, at, taken = stage.queue.vhost, 0, 0
        settles = parcel.record.settles
        runs: dict[Queue, Batch] = {}
        while parcel.size < RECORD_BYTES and taken < MESSAGES_MAX and (found := self._next(stage, at)) is not None:
            batch, offset, most = found
            i = offset - batch.first
            n = batch.same_key(i, min(most, MESSAGES_MAX - taken))
            if batch.stored is not None:
                if settles or stage.body is None or stage.body[0] != offset:
                    return at, not settles  # a large message has a record of its own and must be read before
                key, props, _, flags = batch.parts(i)
                message = (key, props, stage.body[1], flags)
                put = self._put_large if n else self._put_special
                stage.body = None  # if a queue is full, it is read again when that has room: many stages may wait
                if not put(parcel, vhost, message):
                    return at, True
                settles.append(Settle(stage.queue.log.queue_id, offset, 1, ACKED))
                return offset + 1, False
            if n == 0:
                n = 0 if runs else self._put_special(parcel, vhost, batch.message(i))
            elif not parcel.record.appends:
                n = self._put_run(parcel, vhost, batch, i, n, runs)
            else:
                break
            if n == 0:
                return at, not settles
            if not settles or at != offset:
                settles.append(Settle(stage.queue.log.queue_id, offset, 0, ACKED))
            settles[-1].count += n
            taken += n
            at = offset + n
        return at, False

    def _next(self, stage: Stage, at: int) -> tuple[Batch, int, int] | None:
        """Return (batch, offset, count) of the first messages from `at` on that have not moved."""
        queue, window = stage.queue, stage.window
        if queue.deleted:
            return None
        offset, end = unmoved(queue, at)
        while offset < end:
            batch = window.batch
            if not batch.first <= offset < batch.first + batch.count:
                if not queue.log.reader.load(window, offset):
                    window.waits = None  # a large batch is checked later, when its messages are moved
                    return None
                batch = window.batch
            if offset >= batch.first:
                return batch, offset, min(end, batch.first + batch.count) - offset
            # the messages in between were lost to damage, and the store has raised the alarm
            offset, end = unmoved(queue, batch.first)
        return None

    def _put_run(self, parcel: Parcel, vhost: VHost, batch: Batch, i: int, n: int, runs: dict[Queue, Batch]) -> int:
        """Put messages with one key into the parcel. Returns how many: 0 if a queue is full, or if others must be moved first."""
        message = batch.message(i)
        key, props, body, _ = message
        try:
            route = vhost.route(key)
        except ChannelError as error:
            _warn_of_drop(vhost, n, error.reply_text)
            return n
        if route.dynamic:
            return 0 if runs else self._put_special(parcel, vhost, message)
        if route.out_of_service is not None:
            return 0
        if not route.count:
            _warn_of_drop(vhost, n, _unbound(key))
            return n
        if any((q.limited and q.rejects) or not q.log.durable for q in route.queues):
            n = 1
        n, size = fitting(batch, i, n, max(RECORD_BYTES - parcel.size, 0) // route.count)
        targets = self._takers(route.queues, len(body), size)
        if targets is None:
            return 0
        for target in targets:
            parcel.room.keep(target, n, len(body) if n == 1 else 0)
            if not target.log.durable:
                parcel.direct.append((target, key, props, body, -1, 0))
                continue
            if target not in runs:
                runs[target] = Batch()
                parcel.record.runs.append(Run(target.log.queue_id, runs[target]))
            batch.copy_to(runs[target], i, n)
        parcel.size += size * route.count
        return n

    def _put_large(self, parcel: Parcel, vhost: VHost, message: tuple[bytes, bytes, Buf, int]) -> int:
        """Add a large message to the parcel. Returns 1, or 0 if a queue is full."""
        key, props, body, _ = message
        try:
            route = vhost.route(key)
        except ChannelError as error:
            _warn_of_drop(vhost, 1, error.reply_text)
            return 1
        if route.dynamic:
            return self._put_special(parcel, vhost, message)
        if route.out_of_service is not None:
            return 0
        if not route.count:
            _warn_of_drop(vhost, 1, _unbound(key))
            return 1
        size = weight(key, props, body)
        targets = self._takers(route.queues, len(body), size)
        if targets is None:
            return 0
        self._put_each(parcel, targets, key, props, body, -1)
        parcel.size += size * max(len(targets), 1)
        return 1

    @staticmethod
    def _put_each(
        parcel: Parcel, targets: list[Queue], key: bytes, props: bytes, body: bytes | Buf, ttl_ms: int
    ) -> None:
        """Add one message to the parcel for each of several queues."""
        for target in targets:
            parcel.room.keep(target, 1, len(body))
            if target.log.durable:
                parcel.record.appends.append(Append(target.log.queue_id, key, props, body, ttl_ms))
            else:
                parcel.direct.append((target, key, props, body, ttl_ms, 0))

    def _put_special(self, parcel: Parcel, vhost: VHost, message: tuple[bytes, bytes, bytes | Buf, int]) -> int:
        """Add a message whose properties matter to the parcel. Returns 1, or 0 if a queue is full."""
        key, props, body, _ = message
        _, properties = read_properties(props)
        try:
            route = vhost.route(key)
            route = vhost.route_message(route.exchange, route.routing_key, properties)
        except ChannelError as error:
            _warn_of_drop(vhost, 1, error.reply_text)
            return 1
        size = weight(key, props, body)
        targets = self._takers(route.queues, len(body), size)
        if targets is None:
            return 0
        props = as_stored(props, properties.headers or {}, targets)
        ttl_ms = expiration_ms(properties.expiration)
        self._put_each(parcel, targets, key, props, body, ttl_ms)
        parcel.size += size * max(len(targets), 1)
        return 1

    @staticmethod
    def _takers(queues: list[Queue], body_len: int, size: int) -> list[Queue] | None:
        """Return the queues that can take the message, or None if one of them is full for now.

        A queue that can never take it is left out, and this is logged.
        """
        if size * len(queues) > LETTER_MAX:
            log.warning(
                "a committed message for %d queues is dropped: its copies have more than %d bytes",
                len(queues),
                LETTER_MAX,
            )
            return []
        return None if in_the_way(queues, body_len) is not None else takers(queues, body_len, "a committed message")

    def _write(self, writer: Writer, stage: Stage, parcel: Parcel, end: int) -> None:
        writer.busy = True

        def apply() -> None:
            writer.busy = False
            parcel.apply(self.broker)
            if not stage.queue.deleted:
                walls.run(stage.queue, stage.queue.settle_until, end)
            self.waiting[writer.name] = None

        def full() -> None:
            writer.busy = False
            parcel.room.give_back()
            self.broker.timers.after(FULL_MS, self._again, writer.name)

        self.broker.records.write(parcel.record, apply, full)

    # -- stages that nobody wants ----------------------------------------------------------------------------

    def _look_later(self) -> None:
        if not self._looking and any(writer.open or writer.owner for writer in self.writers.values()):
            self._looking = True
            self.broker.timers.after(LOOK_MS, self._look)

    def _look(self) -> None:
        self._looking = False
        now_ms = self.broker.timers.now_ms
        for writer in list(self.writers.values()):
            for key, stage in list(writer.open.items()):
                if stage.queue.published != stage.seen:
                    stage.seen, stage.used_ms = stage.queue.published, now_ms
                elif now_ms - stage.used_ms > FORGOTTEN_MS:
                    log.warning("%s has not been committed for a day, it is dropped", stage.name)
                    self._drop(writer.open.pop(key))
            if writer.owner and now_ms - writer.claimed_ms > FORGOTTEN_MS and not writer.open:
                writer.owner = ""
            if writer.idle:
                self.writers.pop(writer.name)
        self._look_later()
