"""Stages: what many publishers put aside, and one commit that publishes it (docs/protocol-extensions.md, class `stage`).

A stage is a queue that nobody sees. The commit is one line of the definitions: the writer's batch, and the stages that count. Once that
line is durable their messages move to their queues, in order, by journal records: each appends some of them and settles them in their
stage, so that after any crash a message is in its stage or in its queues.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import NOT_FOUND, PRECONDITION_FAILED, ChannelError
from kvitto.broker.admission import expiration_ms
from kvitto.broker.arguments import QueueSettings
from kvitto.broker.deadletter import RECORD_BYTES, Parcel, read_properties, weight
from kvitto.broker.queue import Queue
from kvitto.store.batch import Batch
from kvitto.store.journal import Append, Run, Settle
from kvitto.store.log import Window
from kvitto.store.settlements import ACKED
from kvitto.wire.properties import edit_headers, join

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.vhost import VHost

NONE = (1 << 64) - 1
"""In place of a batch: none was committed."""
STAGES_MAX = 10_000
"""Stages of one writer that are not committed."""
FORGOTTEN_MS = 24 * 3_600_000
"""A stage without a publish for so long is dropped."""
LOOK_MS = 600_000
FULL_MS = 100
"""After so long a queue that was full is asked again."""

log = logging.getLogger("kvitto.broker")


Key = tuple[str, str, int, str]
"""Vhost, writer, batch, task."""


def name_of(key: Key) -> str:
    return f"stage of task '{key[3]}' for batch {key[2]} of writer '{key[1]}'"


class Stage:
    """`closed`: nothing more can be put into it."""

    def __init__(self, key: Key, queue: Queue, now_ms: int) -> None:
        self.key = key
        self.name = name_of(key)
        self.queue = queue
        self.window = Window()
        self.closed = False
        self.seen = 0
        self.used_ms = now_ms

    @property
    def definition(self) -> tuple[str, ...]:
        vhost, writer, batch, task = self.key
        return vhost, writer, str(batch), task


class Writer:
    def __init__(self, last: int = NONE) -> None:
        self.last = last
        self.moving: deque[Stage] = deque()

    @property
    def value(self) -> dict[str, Any]:
        return {"batch": self.last, "moving": [stage.queue.log.queue_id for stage in self.moving]}


class Stages:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.writers: dict[tuple[str, str], Writer] = {}
        self.open_stages: dict[Key, Stage] = {}
        self.due: dict[tuple[str, str], None] = {}
        """Writers with messages to move, of which no record is on its way."""
        self._looking = False

    # -- what a peer asks for --------------------------------------------------------------------------------

    def open(self, vhost: VHost, writer: str, batch: int, task: str) -> Stage:
        """A new, empty stage; one of that name that is there already goes. If the batch was committed it is closed. ChannelError 406."""
        if not writer or not task or "\n" in task:
            raise ChannelError(
                PRECONDITION_FAILED, "a stage needs the names of a writer and of a task, without newlines"
            )
        key = (vhost.name, writer, batch, task)
        last = self.last(vhost, writer)
        if last != NONE and batch <= last:
            return self._closed(vhost, key)
        if key in self.open_stages:
            self._drop(self.open_stages[key])
        elif len(self._of(vhost, writer)) >= STAGES_MAX:
            raise ChannelError(
                PRECONDITION_FAILED, f"writer '{writer}' has {STAGES_MAX} stages: commit or forget them first"
            )
        queue_id = secrets.token_hex(16)
        stage = self._make(vhost, key, queue_id)
        self.broker.define("stage", stage.definition, {"id": queue_id})
        self._look_later()
        return stage

    def last(self, vhost: VHost, writer: str) -> int:
        """The last batch that was committed, NONE if there is none."""
        found = self.writers.get((vhost.name, writer))
        return found.last if found else NONE

    def commit(self, vhost: VHost, writer: str, batch: int, tasks: list[str], done: Callable[[bool], None]) -> None:
        """Publish these stages and drop the writer's others up to this batch; `done` says whether it was the first time, once that
        is durable. ChannelError 404.
        """
        name = (vhost.name, writer)
        last = self.last(vhost, writer)
        if last != NONE and batch <= last:
            self.broker.store.when_defined(lambda: done(False))
            return
        stages = [self._stage(vhost, writer, batch, task) for task in tasks]
        for stage in stages:
            stage.closed = True
        vhost.epoch.value += 1

        def staged() -> None:
            self._commit(name, batch, stages, done)

        if any(stage.queue.log.durable_end < stage.queue.next for stage in stages):
            self.broker.store.when_durable(staged)
        else:
            staged()

    def forget(self, vhost: VHost, writer: str) -> None:
        """Drop what was not committed, and the memory of what was, once that has moved."""
        for stage in self._of(vhost, writer):
            self._drop(stage)
        found = self.writers.get((vhost.name, writer))
        if found is not None:
            found.last = NONE
            self._define(vhost.name, writer, found)

    def forget_vhost(self, vhost: VHost) -> None:
        """It is being deleted."""
        for stage in [s for s in self.open_stages.values() if s.key[0] == vhost.name]:
            self._drop(stage)
        for name in [name for name in self.writers if name[0] == vhost.name]:
            writer = self.writers.pop(name)
            for stage in writer.moving:
                self._drop(stage)
            self.due.pop(name, None)
            self.broker.undefine("writer", name)

    def _stage(self, vhost: VHost, writer: str, batch: int, task: str) -> Stage:
        stage = self.open_stages.get((vhost.name, writer, batch, task))
        if stage is None:
            raise ChannelError(NOT_FOUND, f"no {name_of((vhost.name, writer, batch, task))} in vhost '{vhost.name}'")
        return stage

    def _of(self, vhost: VHost, writer: str) -> list[Stage]:
        return [stage for key, stage in self.open_stages.items() if key[:2] == (vhost.name, writer)]

    def _make(self, vhost: VHost, key: Key, queue_id: str) -> Stage:
        stage = self._stage_of(vhost, key, queue_id)
        self.broker.queues[queue_id] = stage.queue
        self.open_stages[key] = stage
        return stage

    def _closed(self, vhost: VHost, key: Key) -> Stage:
        """For a task that is late: its publishes are refused."""
        stage = self._stage_of(vhost, key, secrets.token_hex(16))
        stage.closed = stage.queue.deleted = True
        return stage

    def _stage_of(self, vhost: VHost, key: Key, queue_id: str) -> Stage:
        opened = self.broker.open_log(queue_id, True)
        queue = Queue(self.broker, vhost, name_of(key), opened, QueueSettings(), {}, True, False, False)
        return Stage(key, queue, self.broker.now_ms)

    def _drop(self, stage: Stage) -> None:
        stage.closed = True
        self.open_stages.pop(stage.key, None)
        queue = stage.queue
        if queue.deleted:
            return
        queue.deleted = True
        queue.vhost.epoch.value += 1
        del self.broker.queues[queue.log.queue_id]
        self.broker.undefine("stage", stage.definition)
        queue.log.delete()

    def _commit(self, name: tuple[str, str], batch: int, stages: list[Stage], done: Callable[[bool], None]) -> None:
        writer = self.writers.setdefault(name, Writer())
        if writer.last != NONE and batch <= writer.last:
            done(False)
            return
        writer.last = batch
        writer.moving.extend(stages)
        self._define(*name, writer)
        for stage in stages:
            self.open_stages.pop(stage.key, None)
        for stage in [s for k, s in self.open_stages.items() if k[:2] == name and k[2] <= batch]:
            self._drop(stage)

        def committed() -> None:
            self.due[name] = None
            done(True)

        self.broker.store.when_defined(committed)

    def _define(self, vhost: str, name: str, writer: Writer) -> None:
        if writer.last == NONE and not writer.moving:
            self.writers.pop((vhost, name), None)
            self.broker.undefine("writer", (vhost, name))
        else:
            self.broker.define("writer", (vhost, name), writer.value)

    # -- start -----------------------------------------------------------------------------------------------

    def restore_stage(self, vhost: VHost, key: Key, queue_id: str) -> None:
        self._make(vhost, key, queue_id)

    def restore_writer(self, name: tuple[str, str], value: dict[str, Any]) -> None:
        """After all stages: those that are moving are no longer open. One that is not there has moved."""
        writer = self.writers[name] = Writer(value["batch"])
        by_id = {stage.queue.log.queue_id: stage for stage in self.open_stages.values()}
        for queue_id in value["moving"]:
            if queue_id in by_id:
                stage = by_id[queue_id]
                stage.closed = True
                del self.open_stages[stage.key]
                writer.moving.append(stage)
        if writer.moving:
            self.due[name] = None

    def started(self) -> None:
        """Stages whose commit was durable before their own lines were gone."""
        for stage in list(self.open_stages.values()):
            last = self.last(stage.queue.vhost, stage.key[1])
            if last != NONE and stage.key[2] <= last:
                self._drop(stage)
        if self.open_stages:
            self._look_later()

    # -- moving ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Send a record on its way for each writer that has none."""
        due, self.due = self.due, {}
        for name in due:
            writer = self.writers.get(name)
            if writer is not None:
                self._move(name, writer)

    def _move(self, name: tuple[str, str], writer: Writer) -> None:
        while writer.moving:
            stage = writer.moving[0]
            parcel = Parcel()
            first, end, full = self._gather(stage, parcel)
            if end > first:
                self._write(name, stage, parcel, end)
                return
            if full:
                self.broker.timers.at(self.broker.now_ms + FULL_MS, self._again, name)
                return
            writer.moving.popleft()
            self._drop(stage)
            self._define(*name, writer)

    def _again(self, name: tuple[str, str]) -> None:
        self.due[name] = None

    def _gather(self, stage: Stage, parcel: Parcel) -> tuple[int, int, bool]:
        """Put what comes next in a stage into the parcel: (first offset, end, whether a full queue is in the way)."""
        vhost, first, at = stage.queue.vhost, -1, 0
        runs: dict[Queue, Batch] = {}
        while parcel.size < RECORD_BYTES and (found := self._next(stage, at)) is not None:
            batch, offset, most = found
            i = offset - batch.first
            n = batch.same_key(i, most)
            if n == 0:
                n = self._put_special(parcel, vhost, batch.message(i), bool(runs))
            elif not parcel.record.appends:
                n = self._put_run(parcel, vhost, batch, i, n, runs)
            else:
                break
            if n == 0:
                return max(first, 0), at, first < 0
            if at != offset or first < 0:
                parcel.record.settles.append(Settle(stage.queue.log.queue_id, offset, 0, ACKED))
            if first < 0:
                first = offset
            parcel.record.settles[-1].count += n
            at = offset + n
        return max(first, 0), at, False

    def _next(self, stage: Stage, at: int) -> tuple[Batch, int, int] | None:
        """(batch, offset, how many): the first messages from `at` on that have not moved."""
        queue, window = stage.queue, stage.window
        if queue.deleted:
            return None
        offset, end = self._unmoved(queue, at)
        while offset < end:
            batch = window.batch
            if not batch.first <= offset < batch.first + batch.count:
                if not queue.log.load(window, offset):
                    return None
                batch = window.batch
            if offset >= batch.first:
                return batch, offset, min(end, batch.first + batch.count) - offset
            offset, end = self._unmoved(
                queue, batch.first
            )  # what lies between was lost to damage; the store has said so
        return None

    @staticmethod
    def _unmoved(queue: Queue, at: int) -> tuple[int, int]:
        for start, n in queue.requeued:
            if start + n > at:
                return max(start, at), start + n
        return max(queue.cursor, at), queue.log.durable_end

    def _put_run(self, parcel: Parcel, vhost: VHost, batch: Batch, i: int, n: int, runs: dict[Queue, Batch]) -> int:
        """Messages with one key: how many of them were taken. 0: a queue is full, or others must go first."""
        message = batch.message(i)
        key, props, body, _ = message
        try:
            route = vhost.route(key)
        except ChannelError as error:
            log.warning("vhost '%s': %d committed messages are dropped: %s", vhost.name, n, error.reply_text)
            return n
        if route.dynamic:
            return self._put_special(parcel, vhost, message, bool(runs))
        if any((q.limited and q.rejects) or not q.log.durable for q in route.queues):
            n = 1
            if any(q.limited and q.rejects and q.refuses(1, len(body)) for q in route.queues):
                return 0
        n, size = fitting(batch, i, n, RECORD_BYTES - parcel.size)
        for target in route.queues:
            parcel.room.keep(target, n, size)
            if not target.log.durable:
                parcel.direct.append((target, key, props, body, -1, 0))
                continue
            if target not in runs:
                runs[target] = Batch()
                parcel.record.runs.append(Run(target.log.queue_id, runs[target]))
            batch.copy_to(runs[target], i, n)
        parcel.size += size + n * weight(key, props, b"")
        return n

    def _put_special(self, parcel: Parcel, vhost: VHost, message: tuple[bytes, bytes, bytes, int], later: bool) -> int:
        """A message whose properties matter: 1, or 0 if a queue is full, or if it is for `later`: others must go first."""
        if later:
            return 0
        key, props, body, _ = message
        fields, properties = read_properties(props)
        headers = properties.headers or {}
        try:
            route = vhost.route(key)
            route = vhost.route_by_headers(route.exchange, route.routing_key, headers)
        except ChannelError as error:
            log.warning("vhost '%s': a committed message is dropped: %s", vhost.name, error.reply_text)
            return 1
        if any(q.limited and q.rejects and q.refuses(1, len(body)) for q in route.queues):
            return 0
        if "BCC" in headers:
            edit_headers(fields, {}, ("BCC",))
            props = join(fields)
        ttl_ms = expiration_ms(properties.expiration)
        for target in route.queues:
            parcel.room.keep(target, 1, len(body))
            if target.log.durable:
                parcel.record.appends.append(Append(target.log.queue_id, key, props, body, ttl_ms))
            else:
                parcel.direct.append((target, key, props, body, ttl_ms, 0))
        parcel.size += weight(key, props, body)
        return 1

    def _write(self, name: tuple[str, str], stage: Stage, parcel: Parcel, end: int) -> None:
        def apply() -> None:
            parcel.apply(self.broker)
            if not stage.queue.deleted:
                stage.queue.settle_until(end)
            self.due[name] = None

        def full() -> None:
            parcel.room.give_back()
            self.broker.timers.at(self.broker.now_ms + FULL_MS, self._again, name)

        self.broker.journal(parcel.record, apply, full)

    # -- stages that nobody wants ----------------------------------------------------------------------------

    def _look_later(self) -> None:
        if not self._looking:
            self._looking = True
            self.broker.timers.at(self.broker.now_ms + LOOK_MS, self._look)

    def _look(self) -> None:
        self._looking = False
        now_ms = self.broker.now_ms
        for stage in list(self.open_stages.values()):
            if stage.queue.published != stage.seen:
                stage.seen, stage.used_ms = stage.queue.published, now_ms
            elif now_ms - stage.used_ms > FORGOTTEN_MS:
                log.warning("%s has not been committed for a day, it is dropped", stage.name)
                self._drop(stage)
        if self.open_stages:
            self._look_later()


def fitting(batch: Batch, i: int, n: int, room: int) -> tuple[int, int]:
    """How many of the n messages from i on have bodies that fit, at least one, and the bytes of those."""
    size = batch.body_bytes(i, n)
    while n > 1 and size > room:
        n = max(1, min(n - 1, n * room // size)) if room > 0 else 1
        size = batch.body_bytes(i, n)
    return n, size
