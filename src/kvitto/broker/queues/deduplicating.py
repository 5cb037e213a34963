"""A work queue that takes each message once: one whose key it still remembers is dropped and counts as taken (docs/deduplication.md).

A key is a part of its message: what is stored, and only that, leaves a key. It is remembered from the append on. The table of keys is
in memory, and a start fills it from the log, of which no segment is dropped while a key in it is needed. `append` costs other queues
nothing, since this class overrides it.

Invariant: a key is known if the last message that was stored with it is among the last `capacity` such messages, and its time is not over.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import xxhash

from kvitto.broker.queues.key_table import KeyTable
from kvitto.broker.queues.queue import Declaration
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.transfers.deadletter import deaths_of, read_properties
from kvitto.format.entry import DEAD
from kvitto.store.batch import Batch
from kvitto.store.log import Log
from kvitto.store.properties_scan import PropertiesScan, blocks
from kvitto.wire import bits
from kvitto.wire.buf import Buf
from kvitto.wire.message_key import MessageKey

if TYPE_CHECKING:
    from kvitto.broker.administration.arguments import QueueSettings
    from kvitto.broker.queues.hosts import Turns
    from kvitto.broker.vhost import VHost
    from kvitto.store.segment import Segment

FORGOTTEN_PER_TURN, FORGOTTEN_MIN = 5000, 100
"""Keys whose time is over that one turn forgets in all queues together, in about 2 ms, and the fewest of one queue, if any."""
FORGET_MS = 1000
"""Time passes at least so long between two looks for keys whose time is over. Until then they only take memory, and their segment room."""

_FOREVER = 1 << 62  # C variables when compiled
_DEAD = DEAD
_NOTE = 32  # bytes of a key that a start has found: both halves of its hash, its offset, its end


class DeduplicatingQueue(WorkQueue):
    adopts = False  # each message may be a duplicate

    def __init__(self, broker: Turns, vhost: VHost, log: Log, settings: QueueSettings, declared: Declaration) -> None:
        super().__init__(broker, vhost, log, settings, declared)
        wanted = settings.deduplication
        assert wanted is not None
        self.key = MessageKey(wanted.header)
        self.table = KeyTable(wanted.capacity)
        self.cache_ttl_ms = wanted.ttl_ms
        self.duplicates = 0
        """How many messages were dropped because their keys were known."""
        self._seed = secrets.randbits(64)
        self._low = self._high = self._known = 0
        """The hash of the key that was looked up last, and its entry in the table."""
        self._counted_end = 0
        """The keys of messages below this offset count in their segments (`Segment.keys`)."""
        self._emptied = False
        """Whether there may be a segment that is not needed any more."""
        self._waking = False
        self._owed = 0
        """The last record of the journal whose message was dropped here. The next batch has to say that it has been applied."""
        self._record = 0
        """The record of the journal that is being applied."""
        self._relied_end = 0
        """Messages of records were dropped because of messages below this offset, which may not be durable yet."""
        self._awaits_sync = False
        """Whether a sync was asked for, behind which `_synced` is called."""
        log.keyed = log.durable

    # -- append ----------------------------------------------------------------------------------------------

    def append(self, key_p, key, key_len, props_p, props, props_len, body_p, body, body_len, ttl_ms, flags):  # type: ignore[no-untyped-def]
        """Do the work of `Queue.append`, unless the message is a duplicate: then nothing is appended, and it counts as taken."""
        found = self.key.read(props_p, props, props_len)
        if found is None:
            return WorkQueue.append(
                self, key_p, key, key_len, props_p, props, props_len, body_p, body, body_len, ttl_ms, flags
            )
        if self.knows(found) and not (flags & _DEAD and self.has_been_here(bytes(props_p[props : props + props_len]))):
            self._drop()
            return 1
        if self.limited and self.rejects and self.is_full(body_len):
            return 0
        # before the append, which may write the batch: then its keys are counted
        noted = self.note()
        taken = WorkQueue.append(
            self, key_p, key, key_len, props_p, props, props_len, body_p, body, body_len, ttl_ms, flags
        )
        if not taken:
            self.table.remove(noted)
        return taken

    def append_whole(self, key: bytes, props: bytes, body: Buf, ttl_ms: int, flags: int) -> int:
        found = self.key.read(props, 0, len(props))
        if found is None:
            return super().append_whole(key, props, body, ttl_ms, flags)
        if self.knows(found) and not (flags & DEAD and self.has_been_here(props)):
            self._drop()
            return 1
        if self.limited and self.rejects and self.is_full(body.n):
            return 0
        noted = self.note()
        taken = super().append_whole(key, props, body, ttl_ms, flags)
        if not taken:
            self.table.remove(noted)
        return taken

    def append_journaled(
        self, key: bytes, props: bytes, body: bytes | Buf, ttl_ms: int, flags: int, sequence: int
    ) -> None:
        before, self._record = self.duplicates, sequence
        if isinstance(body, Buf):
            self._journaled(0, self.append_whole, key, props, body, ttl_ms, flags)
            if self.duplicates == before:
                self.tail.closed[len(self.tail.closed) - 1].journal = sequence
        else:
            super().append_journaled(key, props, body, ttl_ms, flags, sequence)
        self._record = 0
        if self.duplicates > before:
            self._owe(sequence)

    def append_journaled_run(self, batch: Batch, sequence: int) -> None:
        before, self._record = self.duplicates, sequence
        super().append_journaled_run(batch, sequence)
        self._record = 0
        if self.duplicates > before:
            self._owe(sequence)

    def _drop(self) -> None:
        """Count a duplicate. If it belongs to a record of the journal, no batch may say that this one was applied before the message on
        which that relies is durable.
        """
        self.duplicates += 1
        if self._record:
            self._relied_end = max(self._relied_end, self.table.offset_of(self._known) + 1)
            if self._has_to_sync() and not self.broker.full:
                self._hold_back(True)
                self._ask()

    def _owe(self, sequence: int) -> None:
        """Have the files say that a record was applied, although its message was dropped: a start would apply it again.

        At that time its key may not be known any more. The next batch says so, and keys that follow are in that batch or behind it. A queue
        into which no batch comes lets the journal forget the record as soon as it can.
        """
        if sequence and self.tail.batch is None:
            self._owed = sequence
            self.broker.store.blocked_drops[self.log] = None

    def _relies(self, batch: Batch) -> bool:
        """Whether a batch has to wait until messages before it are durable."""
        return self._has_to_sync() and self._relied_end <= batch.first

    def _has_to_sync(self) -> bool:
        """Whether the message on which a dropped duplicate relies is not durable yet."""
        if self._relied_end and self.log.synced_end >= self._relied_end:
            self._relied_end = 0
        return self._relied_end > 0

    def _hold_back(self, yes: bool) -> None:
        """Deliver nothing before that message is durable: what comes until then must not be written, and the files would not know of a
        delivery when the process is killed (A9).
        """
        stays = not yes and self._has_to_sync() and not self.broker.full
        if stays:
            self._ask()  # again, behind the write: an earlier commit may not have the message
        WorkQueue._hold_back(self, yes or stays)

    def _ask(self) -> None:
        """Have the next sync of messages look whether deliveries may go on."""
        if not self._awaits_sync:
            self._awaits_sync = True
            self.broker.store.commits.when_synced(self._synced, messages=True)

    def _is_slow(self) -> bool:
        if self._relied_end and self.tail.batch is not None and self._relies(self.tail.batch):
            self._close_tail()
        return WorkQueue._is_slow(self)

    def _may_write(self, batch: Batch) -> bool:
        if self.log.is_writing or not self._relies(batch):
            return True
        self.broker.pressed[self] = None  # no turn before the sync tries it again
        self._ask()
        return False

    def _synced(self) -> None:
        self._awaits_sync = False
        self.broker.pressed.pop(self, None)
        self.broker.jobs.resume()  # one may wait for this queue
        self.mark_dirty()

    def open_tail(self) -> Batch:
        batch = WorkQueue.open_tail(self)
        batch.journal, self._owed = self._owed, 0
        return batch

    def remembers(self, props: bytes) -> bool:
        """Whether a publish with these properties would be a duplicate."""
        found = self.key.read(props, 0, len(props))
        return found is not None and bool(self.knows(found))

    # -- keys ------------------------------------------------------------------------------------------------

    def knows(self, found):  # type: ignore[no-untyped-def]
        """Look up a key. Returns whether a message with it is a duplicate."""
        digest = xxhash.xxh3_128_digest(found, self._seed)
        self._low = bits.be64(digest, 8)
        self._high = bits.be64(digest, 0)
        self._known = self.table.find(self._low, self._high)
        return self._known and self.table.until_of(self._known) > self.broker.timers.now_ms

    def has_been_here(self, props: bytes) -> bool:
        """Whether a dead letter has been in this queue before. It would be taken for a duplicate of itself, and be lost."""
        headers = read_properties(props)[1].headers or {}
        return any(death["queue"] == self.name for death in deaths_of(headers))

    def note(self):  # type: ignore[no-untyped-def]
        """Remember the key that was looked up last with the message that comes next. Returns the number of its entry."""
        table = self.table
        if self._known:
            self.forget(self._known)
        while table.count >= table.capacity:
            self.forget(table.oldest)
        return table.add(self._low, self._high, self.tail.next, self.until(self.key.ttl_ms, 0))

    def until(self, ttl_ms, age_ms):  # type: ignore[no-untyped-def]
        """Return the time until which a key is known that was stored `age_ms` ago. `ttl_ms`: what its message says, -1 for nothing."""
        if ttl_ms < 0:
            ttl_ms = self.cache_ttl_ms
        if ttl_ms < 0:
            return _FOREVER
        at = self.broker.timers.now_ms + ttl_ms - age_ms
        return at if at > 0 else 0

    def forget(self, i):  # type: ignore[no-untyped-def]
        """Forget a key, and let go of the segment that has it."""
        offset = self.table.offset_of(i)
        self.table.remove(i)
        if offset < self._counted_end and self.log.keyed and self.log.let_go(offset):
            self._emptied = True

    # -- turn ------------------------------------------------------------------------------------------------

    def _written(self, batch: Batch) -> None:
        WorkQueue._written(self, batch)
        self._counted_end = batch.first + batch.count
        count = self.table.count_below(self._counted_end)
        if count and self.log.keyed:
            self.log.wrote_keys(count)

    def flush(self) -> None:
        WorkQueue.flush(self)
        if self.table.count and self.table.until_of(self.table.oldest) < _FOREVER:
            self._forget_old()
        if self._emptied:
            self._emptied = False
            self.log.drop_settled()

    def _forget_old(self) -> None:
        """Forget keys whose time is over, from the oldest one on, and look again when the time of the next one is over."""
        table, now_ms = self.table, self.broker.timers.now_ms
        left = share = self.broker.forgetting.share(self.broker.turns)
        while table.count and left and table.until_of(table.oldest) <= now_ms:
            self.forget(table.oldest)
            left -= 1
        self.broker.forgetting.spend(share - left)
        if table.count and not self._waking:
            self._waking = True
            wait = 0 if not left else max(table.until_of(table.oldest) - now_ms, FORGET_MS)
            self.broker.timers.after(wait, self._due)

    def _due(self) -> None:
        self._waking = False
        self.mark_dirty()

    def cancel_timers(self) -> None:
        super().cancel_timers()
        self.broker.timers.cancel(self._due)

    # -- start -----------------------------------------------------------------------------------------------

    def recover(self) -> None:
        super().recover()
        parts = ((s, start, end) for s in reversed(self.log.segments) for start, end in reversed(blocks(s)))
        for segment, start, end in parts:  # from the end, until there are enough keys
            if not self._take_keys(self._keys_of(segment, start, end)):
                break
        self._counted_end = self.tail.next
        self.log.keep_keys([self.table.count_below(s.end) for s in self.log.segments])

    def _keys_of(self, segment: Segment, start: int, end: int) -> Buf:
        """Read the keys in a part of a segment, each as hash, offset and end, in the order of the messages."""
        scan, notes = PropertiesScan(segment, self.log.file_of(segment), start, end), Buf(0)
        self.scan(scan, notes)
        if scan.damaged_at >= 0:
            self.log.quarantine(segment, f"byte {scan.damaged_at} on: some keys of deduplication cannot be read")
        return notes

    def scan(self, scan, notes):  # type: ignore[no-untyped-def]
        """Do the work of `_keys_of`."""
        while scan.next():
            found = self.key.read(scan.chunk.p, scan.props, scan.props_len)
            if found is None:
                continue
            age_ms = self.broker.now_ms - scan.time_ms
            digest = xxhash.xxh3_128_digest(found, self._seed)
            notes.reserve(_NOTE)
            at = notes.n
            bits.copy(notes.p, at, digest, 0, 16)
            bits.put64(notes.p, at + 16, scan.offset)
            bits.put64(notes.p, at + 24, self.until(self.key.ttl_ms, age_ms if age_ms > 0 else 0))
            notes.n = at + _NOTE

    def _take_keys(self, notes):  # type: ignore[no-untyped-def]
        """Remember keys from the last one on. Returns False when there are enough.

        Of several messages with the same key the last one counts.
        """
        table = self.table
        at = notes.n - _NOTE
        while at >= 0:
            low = bits.be64(notes.p, at + 8)
            high = bits.be64(notes.p, at)
            if not table.find(low, high):
                if table.count >= table.capacity:
                    return False
                table.add_oldest(low, high, bits.be64(notes.p, at + 16), bits.be64(notes.p, at + 24))
            at -= _NOTE
        return True
