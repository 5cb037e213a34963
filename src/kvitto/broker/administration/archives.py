"""The archives of all queues, deleted ones included: where they are, and how much they keep (x-archive).

`Archives` checks every minute whether a bound is exceeded, and whether a small segment has waited long enough.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import ChannelError
from kvitto.broker.administration.arguments import QueueSettings, queue_settings
from kvitto.broker.walls import Service
from kvitto.store import paths
from kvitto.store.archive import Archive
from kvitto.store.inventory import ARCHIVED
from kvitto.store.log import Log

if TYPE_CHECKING:
    from kvitto.broker.broker import Broker
    from kvitto.broker.queues.queue import Queue
    from kvitto.store.store import Store

LOOK_MS = 60_000
LOOK_AGAIN_MS = 1000
"""The time until the next check if the last one could not unlink all that it should."""
STEPS = 200
"""The most syncs before a start or a clean stop gives up. A chain of queues with archives needs far fewer."""

log = logging.getLogger("kvitto.broker")


def has_segments(store: Store, directory: str) -> bool:
    return any(name.endswith(paths.SEGMENT_SUFFIX) for name in store.disk.listdir(directory))


class Archives(Service):
    stopped = "archives are not bounded by age and size"

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.store)
        self.broker = broker
        self._archives: dict[str, Archive] = {}

    def add(self, queue: Queue) -> None:
        """Open the archive of a queue and attach it."""
        about = {"vhost": queue.vhost.name, "queue": queue.name, "id": queue.log.queue_id, "arguments": queue.arguments}
        text = json.dumps(about, default=str).encode() + b"\n"
        archive = queue.log.archive = self._open(queue.log.queue_id, text, queue.settings)
        archive.announce(queue.log.directory)

    def _open(self, queue_id: str, about: bytes, settings: QueueSettings) -> Archive:
        if not self._archives:
            self._look_in(LOOK_MS)
        archive = Archive(self.broker.store, queue_id, about, settings.archive_max_age_ms, settings.archive_max_bytes)
        self._archives[queue_id] = archive
        return archive

    def _look_in(self, ms: int) -> None:
        self.broker.timers.after(ms, self.look)

    # -- start -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Find the archives of deleted queues, and apply all bounds."""
        for queue_id in self.broker.store.disk.listdir(paths.ARCHIVE):
            if queue_id not in self._archives:
                directory = paths.archive_dir(queue_id)
                if self._of_deleted(queue_id, directory) is None and has_segments(self.broker.store, directory):
                    self.broker.store.alarm(
                        f"{paths.about(directory)} is missing, or does not say which queue this is: the archive of a"
                        " queue that was deleted stays without its bounds"
                    )
        for queue_id in self.broker.store.inventory.unclaimed(ARCHIVED):
            directory = paths.archive_dir(queue_id)
            if not self.broker.store.disk.listdir(directory):
                self.broker.store.alarm(
                    f"{directory} is missing: there is no archive any more of a queue that was deleted"
                )
        if self._archives:
            self.look()

    def _of_deleted(self, queue_id: str, directory: str) -> Archive | None:
        """Open the archive of a deleted queue from the queue.json in `directory`. Returns None if there is none."""
        disk, path = self.broker.store.disk, paths.about(directory)
        try:
            text = disk.read_file(path) if disk.exists(path) else b""
            about: dict[str, Any] = json.loads(text)
            settings = queue_settings(about["queue"], about["vhost"], about["arguments"])
        except (ValueError, KeyError, TypeError, AttributeError, ChannelError):
            return None
        return self._open(queue_id, text, settings)

    def finish(self, queue_id: str) -> bool:
        """Finish the deletion of a queue whose directory a start has found. Returns False if the queue has no archive."""
        store, directory = self.broker.store, paths.queue_dir(queue_id, True)
        if store.is_orphan(queue_id):
            return False
        archive = self._of_deleted(queue_id, directory)
        if archive is None:
            return False
        store.forget_queue(queue_id)
        left = Log(store, queue_id, True)
        left.archive = archive
        left.recover()
        left.leave()
        for _ in range(STEPS):
            if left in store.leaving:
                store.finish_work()
                self.broker.sync_files()
        return True

    # -- now and then ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Move small segments out of their queues, retry what had no room, and apply the bounds."""
        leaving = {left.queue_id: left for left in self.broker.store.leaving}
        again = False
        for queue_id, archive in list(self._archives.items()):
            queue = self.broker.queues.get(queue_id)
            left = leaving.get(queue_id) if queue is None else queue.log
            archive.held_up = False
            if left is not None:
                left.drop_settled()
            if queue is not None:
                archive.announce(queue.log.directory)
            again |= archive.trim()
            if left is None and not archive.kept:
                if archive.remove():
                    del self._archives[queue_id]
                else:
                    again = True
        if self._archives:
            self._look_in(LOOK_AGAIN_MS if again else LOOK_MS)
