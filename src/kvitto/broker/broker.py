"""The broker without its sockets: virtual hosts, the turn, and the start from disk.

It does no network I/O: the server feeds connections and then calls `turn`, before that `tick` if a timer is due, and drives the syncs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from kvitto.base import limits
from kvitto.base.clock import Clock
from kvitto.base.config import GUEST
from kvitto.base.errors import PRECONDITION_FAILED, ChannelError, ConnectionError_, ProtocolError, StoreFull
from kvitto.base.limits import DEFAULTS, Limits
from kvitto.broker import walls
from kvitto.broker.administration import delaying, passing, removal
from kvitto.broker.administration.archives import STEPS, Archives
from kvitto.broker.administration.auth import TOPIC_PERMISSION, FirstUser, Users
from kvitto.broker.administration.backups import Backups
from kvitto.broker.administration.inert import Notices
from kvitto.broker.administration.parameters import GLOBAL_PARAMETER, PARAMETER, Parameters
from kvitto.broker.counts import Attempts, Churn, Counts
from kvitto.broker.faults import FAULT, Faults
from kvitto.broker.jobs import Jobs
from kvitto.broker.queues import deduplicating, filters, hold, retries
from kvitto.broker.queues.budget import Budget
from kvitto.broker.queues.queue import Queue
from kvitto.broker.queues.reader import RangeReaders
from kvitto.broker.routing.patterns import Pattern
from kvitto.broker.routing.route import Traffic
from kvitto.broker.transfers.deadletter import DeadLetters
from kvitto.broker.transfers.onward import Heavy
from kvitto.broker.transfers.parked import Parking
from kvitto.broker.transfers.records import Records
from kvitto.broker.transfers.stages import Stages
from kvitto.broker.turning import Turning
from kvitto.broker.vhost import OPERATOR_POLICY, POLICY, VHost
from kvitto.broker.vhost_settings import VHostSettings
from kvitto.store import judge, paths, pieces
from kvitto.store.line import Defined
from kvitto.store.log import Log
from kvitto.store.record import Record
from kvitto.store.store import Store
from kvitto.wire import tables
from kvitto.wire.buf import Buf
from kvitto.wire.properties import edit_headers, join, split

log = logging.getLogger("kvitto.broker")

LOOKED_AT_FIRST = 32
"""So many queues look at their first message before the start ends."""
LOOKED_AT_ONCE = 4
"""At least this many of the other queues look at their first message at a time. Each of them may have to read 256 KiB from the disk."""
LOOK_MS = 5
"""The pause between two such groups of queues, in milliseconds. Clients are served meanwhile."""
LOOKS_MAX = 2000
"""The most looks behind a start. With many queues more of them look at a time."""

Direct = tuple[Queue, bytes, bytes, bytes | Buf, int, int]
"""A message for a queue: key, props, body, time to live in ms (-1: none), flags."""


class Broker(Turning):
    def __init__(self, store: Store, clock: Clock, allowed: Limits = DEFAULTS) -> None:
        super().__init__(store, clock)
        self.limits = allowed
        self.vhosts: dict[str, VHost] = {}
        self.queues: dict[str, Queue] = {}
        self.users: Users
        self.faults = Faults(self)
        self.jobs = Jobs(self.out_of_time)
        self._expired: list[Queue] = []
        self.notices = Notices()
        self.parameters = Parameters(self)
        self.dead_letters = DeadLetters(self)
        self.parking = Parking(self)
        self.heavy = Heavy()
        self.stages = Stages(self)
        self.archives = Archives(self)
        self.backups = Backups(self)
        self.readers = RangeReaders()
        self.filtering = Budget(filters.STEPS_PER_TURN, filters.SHARE_MIN)
        self.waking = Budget(retries.DUE_PER_TURN, retries.DUE_MIN)
        self.forgetting = Budget(deduplicating.FORGOTTEN_PER_TURN, deduplicating.FORGOTTEN_MIN)
        self.records = Records(self)
        self.gone = Counts()
        self.traffic = Traffic()
        self.attempts = {"amqp091": Attempts(), "http": Attempts()}
        self.churn = Churn()
        self.refused = dict.fromkeys(limits.REFUSALS, 0)
        self.max_queues: int | None = None
        self.file_room: Callable[[], int] = lambda: 1 << 30
        """Returns how many more files may be open. Files of new queues count as open."""
        self.applying = False
        self.defined = (
            0  # how many times definitions have changed, for whoever has to wait for them (broker/changes.py)
        )
        self.cluster_name = ""
        """The name that an operator has set, "" for the name of the node."""
        self.inert: dict[tuple[Any, ...], str] = {}
        """Why a stored policy or permission has no effect, by kind and key."""
        self._defining = True

    # -- start -----------------------------------------------------------------------------------------------

    def start(self, first: FirstUser = FirstUser()) -> None:  # noqa: B008 - it is frozen
        """Read the data directory. A new one gets a virtual host and a user, usually "/" and guest."""
        definitions = self.store.load_definitions()
        self._defining = False
        self.users = Users(self._define_user)
        definitions = self._finish_deletions(definitions)
        for kind, key, value in sorted(definitions, key=lambda d: ORDER.index(d[0])):
            self._restore(kind, key, value)
        self._defining = True
        if not any(kind == INITIALISED for kind, _, _ in definitions):
            self._add_first(first)
        elif first.name != GUEST:
            log.info(
                "default user %r is not added: the data directory is not new, and has its users already", first.name
            )
        delaying.started(self)
        passing.started(self)
        self._drop_orphans()
        if self.store.definitions.stale:
            self.store.compact_definitions()
        for queue in self.queues.values():
            queue.recover()
            self.faults.recovered(queue)
        self._replay()
        if self.faults.restored:
            self.sync_all()
            self.faults.started()
        self.archives.start()
        self.store.started()
        self.stages.started()

    def _finish_deletions(self, definitions: Defined) -> Defined:
        """Finish the deletions that had begun when the broker ended. Returns the other definitions.

        The line that says so is durable. So it does not matter which of these changes a crash keeps, nor that `_drop_orphans` may remove
        the directories of the queues first: the next start does the rest.
        """
        stay, gone = judge.split_going(definitions)
        for kind, key, _ in gone:
            self.store.definitions.delete(kind, key)
        if gone:
            self._defined()
        for thing in judge.going(gone):
            log.info("%s was being deleted when the broker ended: what was left of it is deleted now", thing)
        return stay

    def _add_first(self, first: FirstUser) -> None:
        password = first.password()  # before anything is defined: the file with it may be missing
        self.add_vhost(first.vhost)
        self.users.add_first(first.name, password, first.vhost)
        self.define(INITIALISED, (), {})
        if first.name != GUEST:
            log.info("added administrator %r with all permissions in vhost %r, and no guest", first.name, first.vhost)

    def find_inert(self, kind: str, key: tuple[Any, ...], what: str, patterns: Iterable[Pattern]) -> None:
        """Raise an alarm for a pattern that was stored by an older version and cannot be searched for any more."""
        for pattern in patterns:
            if pattern.refused:
                text = f"{what} has no effect until it is set again or deleted: {pattern.refused}"
                self.inert[(kind, *key)] = text
                log.error(text)

    def _restore(self, kind: str, key: tuple[Any, ...], value: dict[str, Any]) -> None:
        if kind == "vhost":
            self.vhosts[key[0]] = VHost(self, key[0], VHostSettings.of(value))
        elif kind == CLUSTER_NAME:
            self.cluster_name = value["name"]
        elif kind == GLOBAL_PARAMETER:
            self.parameters.restore_global(key[0], value)
        elif kind in ("user", "permission", TOPIC_PERMISSION):
            self.users.restore(kind, key, value)
            if kind == "permission" and (user := self.users.get(key[1])) is not None:
                what = f"a permission of user {key[1]!r} in vhost {key[0]!r}"
                self.find_inert(kind, key, what, user.permissions[key[0]].compiled.values())
        elif kind == FAULT:
            self.faults.restore(key)
        elif kind != INITIALISED:
            vhost = self.vhosts.get(key[0])
            if (
                vhost is None and kind == "queue"
            ):  # if this were passed over, its messages would be deleted as leftovers
                vhost = self.vhosts[key[0]] = VHost(self, key[0])
            if vhost is None or not self._restore_in(vhost, kind, key, value):
                log.error("definition of %s %r is passed over: what it belongs to is not defined", kind, key)

    @staticmethod
    def _restore_in(vhost: VHost, kind: str, key: tuple[Any, ...], value: dict[str, Any]) -> bool:
        """Restore a definition in a virtual host. Returns False if what it belongs to is missing."""
        if kind == "binding":
            dest = vhost.exchanges.get(key[3]) if key[2] == "exchange" else vhost.queues.get(key[3])
            if dest is None or key[1] not in vhost.exchanges:
                return False
            vhost.bind(key[1], dest, key[4], unpack(key[5]))
            return True
        if kind == "stage":
            vhost.broker.stages.restore_stage(vhost, (key[0], key[1], int(key[2]), key[3]), value["id"])
            return True
        if kind in (POLICY, OPERATOR_POLICY):
            vhost.restore_policy(kind, key[1], value)
            return True
        if kind == PARAMETER:
            vhost.broker.parameters.restore((key[0], key[1], key[2]), value)
            return True
        if kind == "writer":
            vhost.broker.stages.restore_writer((key[0], key[1]), value)
            return True
        arguments = unpack(value["arguments"])
        if kind == "exchange":
            made = vhost.declare_exchange(
                key[1], value["type"], True, value["auto_delete"], value["internal"], arguments
            )
            if "passage" in value:
                passing.attach(vhost, made, value["passage"])
            if "waiting" in value:
                delaying.attach(vhost, made, value["waiting"])
                delaying.follow(vhost, made)
        else:
            queue = vhost.make_queue(key[1], value["id"], True, False, value["auto_delete"], arguments)
            queue.restore(value)
        return True

    def _drop_orphans(self) -> None:
        """Remove the directories of queues whose deletion was durable before their files were removed."""
        for name in self.store.disk.listdir(paths.QUEUES):
            if name in self.queues:
                continue
            if not paths.is_queue_id(name):
                log.warning("%s/%s is left alone: no broker has made it", paths.QUEUES, name)
            elif not self.archives.finish(name):
                self.store.drop_orphan(name)

    def _replay(self) -> None:
        """Apply the journal's records that the queues do not have yet, and sync, so that an old record never meets new messages."""
        floor = max([q.log.journal for q in self.queues.values()], default=0)
        ends = {queue: queue.next for queue in self.queues.values()}
        replayed, self.replaying = False, True
        for record in self.store.journal.replay(floor):
            replayed = True
            for op in record.settles:
                queue = self.queues.get(op.queue_id)
                if queue is not None:
                    queue.settle_recovered(op.offset, op.count, op.outcome)
            self.apply(record, recovering=True)
        self.replaying = False
        for queue in self.queues.values():
            hold.restore(queue)
            brought = queue.next - ends[queue]
            if brought and (self.store.ending.in_doubt or queue.log.damaged or self.faults.was_out(queue)):
                # the message may have been delivered before a power cut, damage or a fault removed it from the queue (A9)
                queue.flag_from(ends[queue])
        self.turn()
        queues = list(self.queues.values())
        for queue in queues[:LOOKED_AT_FIRST]:
            queue.mark_dirty()
        self.turn()
        if replayed:
            if self.unwritten:
                raise StoreFull("there is no room to apply what the journal holds: free some space and start again")
            self.sync_all()
            for _ in range(STEPS):  # the journal's files are removed in steps; each must be durable before the next
                if self.store.commits.waiting:
                    self.sync_all()
        for queue in queues:
            queue.release_windows()
        rest = queues[LOOKED_AT_FIRST:]
        if rest:
            self._look_at_first_messages(iter(rest), max(LOOKED_AT_ONCE, -(-len(rest) // LOOKS_MAX)), ())

    def _look_at_first_messages(self, waiting: Iterator[Queue], most: int, looked: tuple[Queue, ...]) -> None:
        """Have queues look whether their first message has expired, a few at a time, so that most of them use the same memory for that.

        A broker with many queues does so when it serves clients already: whoever takes a message looks, too. `looked`: the queues that
        have looked in the last turn.
        """
        if not self.jobs.waiting:  # else a job may be reading messages of these queues
            for queue in looked:
                if not queue.deleted and not queue.consumers:
                    queue.release_windows()
        some = tuple(islice(waiting, most))
        for queue in some:
            if not queue.deleted:
                queue.mark_dirty()
        if some:
            self.timers.after(LOOK_MS, self._look_at_first_messages, waiting, most, some)

    # -- definitions -----------------------------------------------------------------------------------------

    def define(self, kind: str, key: tuple[Any, ...], value: dict[str, Any]) -> None:
        if self._defining:
            self.inert.pop((kind, *key), None)
            if "arguments" in value:
                value = {**value, "arguments": self.pack(value["arguments"])}
            walls.essential("the definitions", self.store.definitions.put, kind, key, value)
            self._defined()

    def undefine(self, kind: str, key: tuple[Any, ...]) -> None:
        if self._defining:
            self.inert.pop((kind, *key), None)
            walls.essential("the definitions", self.store.definitions.delete, kind, key)
            self._defined()

    def _defined(self) -> None:
        self.store.commits.wrote_file(self.store.definitions.file)
        self.defined += 1
        if self.store.definitions.unwritten:
            self._no_room("cannot write the definitions: the disk is full")

    def _define_user(self, kind: str, key: tuple[Any, ...], value: dict[str, Any] | None) -> None:
        for vhost in self.vhosts.values():
            vhost.epoch.value += 1
        if value is None:
            self.undefine(kind, key)
        else:
            self.define(kind, key, value)

    def set_cluster_name(self, name: str) -> None:
        self.cluster_name = name
        self.define(CLUSTER_NAME, (), {"name": name})

    @property
    def restoring(self) -> bool:
        """Whether definitions are being restored. These objects existed before, so no limit may refuse them."""
        return not self._defining

    @staticmethod
    def pack(arguments: dict[str, Any]) -> str:
        """Encode arguments as text that keeps every type: the hex digits of the AMQP table."""
        return tables.encode(arguments).hex() if arguments else ""

    def add_vhost(self, name: str, settings: VHostSettings | None = None) -> VHost:
        """Add a virtual host, or give an existing one the new settings."""
        found = self.vhosts.get(name)
        if found is None:
            found = self.vhosts[name] = VHost(self, name, settings)
        elif settings in (None, found.settings):
            return found
        else:
            found.settings = settings
        self.define_vhost(found)
        return found

    def define_vhost(self, vhost: VHost) -> None:
        """Write the definition of a virtual host. It says whether the virtual host is being deleted, so that the next start goes on."""
        deleting = {judge.DELETING: True} if vhost.deleting else {}
        self.define("vhost", (vhost.name,), {**vhost.settings.value(), **deleting})

    def delete_vhost(self, name: str) -> None:
        """Run `removal.delete_vhost` without a pause."""
        removal.at_once(removal.delete_vhost(self, self.vhosts[name]))

    def forget_vhost(self, vhost: VHost) -> None:
        """Remove a virtual host that is empty."""
        del self.vhosts[vhost.name]
        self.users.forget_vhost(vhost.name)
        self.parameters.forget_vhost(vhost.name)
        self.undefine("vhost", (vhost.name,))

    def open_log(self, queue_id: str, durable: bool) -> Log:
        return Log(self.store, queue_id, durable)

    def drop_hidden(self, queue: Queue) -> None:
        """Delete a queue that no client sees, with its messages. The caller has deleted the definition that names it before."""
        queue.deleted = True
        queue.vhost.changed()
        del self.queues[queue.log.queue_id]
        self.parking.forget(queue)
        queue.cancel_timers()
        queue.log.delete()

    # -- limits ----------------------------------------------------------------------------------------------

    def count_refusal(self, error: ProtocolError) -> None:
        """Count an error that was caused by a limit. Called wherever a peer is told of an error."""
        if error.limit:
            self.refused[error.limit] += 1

    def check_queues(self, name: str, vhost: str) -> None:
        """Raises ChannelError 406 if no other queue may be declared."""
        text = f"cannot declare queue '{name}' in vhost '{vhost}': "
        if self.max_queues is not None and len(self.queues) >= self.max_queues:
            text += f"the limit of {self.max_queues} queues is reached (--max-queues)"
        elif self.file_room() < limits.FILES_PER_QUEUE:
            text += "the broker has no file descriptors left for it (ulimit -n)"
        else:
            return
        raise ChannelError(PRECONDITION_FAILED, text, limit="queues")

    # -- turn ------------------------------------------------------------------------------------------------

    @property
    def listed(self) -> list[Queue]:
        """All queues but stages, which no client sees."""
        found: list[Queue] = []
        for vhost in self.vhosts.values():
            found += vhost.queues.values()  # one by one it takes twice as long, which is noticed with 100,000 of them
        return found

    def finish(self) -> None:
        """Write and sync everything, for a clean stop. Raises StoreError if that fails."""
        self.end_time()  # nothing is left to a next turn
        if self.full:
            self.retry_writes()
        self.records.stop()
        self.press(False)
        self.turn()
        # after a sync the store may seal segments, archive them or remove files of the journal, which writes again
        for _ in range(STEPS):
            self.store.finish_work()
            self.trim()
            if not self.store.commits.dirty:
                break
            self.sync_all()
        if self.unwritten or self.store.definitions.unwritten:
            raise StoreFull("the disk is full, and what came last could not be written")

    def trim(self) -> None:
        """Cut segments off behind their last batch, where they have reserved room. The next sync makes that durable."""
        for queue in self.queues.values():
            if queue.fault is None:
                queue.log.trim()

    def sync_all(self) -> None:
        """Sync everything and run a turn. Only for a start or a clean stop, when no loop runs."""
        self.sync_files()
        self.turn()

    def sync_files(self) -> None:
        """Sync without turns. In the middle of a start nothing may be delivered or moved."""
        job = self.store.begin_sync(True)
        job.run()
        self.store.end_sync(job)
        if self.store.failed is not None:
            raise self.store.failed

    # -- journal ---------------------------------------------------------------------------------------------

    def apply(self, record: Record, direct: Sequence[Direct] = (), recovering: bool = False) -> None:
        """Append the messages of a record, and those that need no record, to their queues: one batch for each queue."""
        queues = self._queues_of(record, direct)
        self.applying = True
        try:
            self._append_all(record, direct, recovering)
        except Exception as error:  # noqa: BLE001 - none of these queues may write half of it: the next start applies the whole record
            for queue in queues:
                queue.contain(error)
        finally:
            self.applying = False
        for queue in queues:
            walls.run(queue, self._flush_large, queue)
        self.store.journal.applied_to(record.sequence)

    def _flush_large(self, queue: Queue) -> None:
        """Write a large tail now, so that its batch holds this record only, and not several large ones."""
        if queue.tail.batch is not None and queue.tail.batch.size() > pieces.WHOLE_BYTES:
            self.flush(queue)

    def _queues_of(self, record: Record, direct: Sequence[Direct]) -> list[Queue]:
        """Return each queue once, in the order of the record, so that a simulated run is the same for the same seed."""
        ids = dict.fromkeys([*(op.queue_id for op in record.appends), *(run.queue_id for run in record.runs)])
        found = [queue for queue_id in ids if (queue := self.queues.get(queue_id)) is not None]
        return list(dict.fromkeys([*found, *(to[0] for to in direct)]))

    def _append_all(self, record: Record, direct: Sequence[Direct], recovering: bool) -> None:
        for op in record.appends:
            queue = self.queues.get(op.queue_id)
            if queue is None or queue.fault is not None or (recovering and queue.log.journal >= record.sequence):
                continue
            message = (op.key, op.props, op.body, op.ttl_ms, op.flags, record.sequence)
            walls.run(queue, queue.append_journaled, *message)
        for run in record.runs:
            queue = self.queues.get(run.queue_id)
            if queue is None or queue.fault is not None or (recovering and queue.log.journal >= record.sequence):
                continue
            walls.run(queue, queue.append_journaled_run, run.batch, record.sequence)
        for queue, key, props, body, ttl_ms, flags in direct:
            if queue.fault is None:
                walls.run(queue, queue.append_journaled, key, props, body, ttl_ms, flags, 0)

    # -- rare ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Run the timers that are due. The caller then runs a turn."""
        self.read_clock()
        self.begin_time()
        walls.run(self.timers, self.timers.run)

    def expire_unused(self, queue: Queue) -> None:
        """x-expires: delete the queue once it has been without consumers, readers by range, gets and declarations for that long."""
        self.timers.cancel(self.expire_unused, queue)
        expires = queue.settings.expires_ms
        if expires < 0 or queue.deleted:
            return
        if queue.consumers or queue.group is not None or queue.hold is not None:
            queue.used_ms = self.timers.now_ms
        left = queue.used_ms + expires - self.timers.now_ms
        if left <= 0:
            if not self._expired:
                self.timers.after(0, self._delete_expired)
            self._expired.append(queue)
        else:
            self.timers.after(left, self.expire_unused, queue)

    def _delete_expired(self) -> None:
        """Delete together all queues that have expired at one moment. This runs after all of their timers."""
        expired, self._expired = self._expired, []
        self.jobs.start(removal.delete_queues([q for q in expired if not q.deleted and not q.consumers]))

    @staticmethod
    def with_delivery_count(props: bytes, count: int) -> bytes:
        """Return stored properties with the header x-delivery-count (A8)."""
        try:
            fields = split(props)
            edit_headers(fields, {"x-delivery-count": tables.Long(count)})
        except ConnectionError_:  # a peer's properties are stored as they came, and may be malformed
            return props
        return join(fields)


INITIALISED = "initialised"
"""The definition that says that this directory has got its first vhost and user, so that a deleted one is not added again."""
CLUSTER_NAME = "cluster_name"
ORDER = [
    INITIALISED,
    CLUSTER_NAME,
    "vhost",
    "user",
    "permission",
    TOPIC_PERMISSION,
    PARAMETER,
    GLOBAL_PARAMETER,
    POLICY,
    OPERATOR_POLICY,
    "exchange",
    "queue",
    "binding",
    "stage",
    "writer",
    FAULT,
]


def unpack(text: str) -> dict[str, Any]:
    """Decode the text that `Broker.pack` returns."""
    return tables.decode(bytes.fromhex(text)) if text else {}
