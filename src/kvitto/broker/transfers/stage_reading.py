"""Reads the large messages of committed stages, one body at a time: hundreds of stages may wait for queues that are full.

`Stages` calls this for the next message of each stage that it moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvitto.base.errors import ChannelError
from kvitto.broker.transfers.deadletter import read_properties
from kvitto.broker.transfers.in_order import in_the_way

if TYPE_CHECKING:
    from kvitto.broker.transfers.stages import Stage
    from kvitto.broker.vhost import VHost
    from kvitto.store.batch import Batch


class Place:
    """Is held by the stage whose large body is being read: so only one of them is in memory in part."""

    def __init__(self) -> None:
        self._stage: Stage | None = None

    def take(self, stage: Stage) -> bool:
        """Return whether the stage has the place now."""
        holder = self._stage
        if holder is None or holder.reading is None or holder.queue.deleted or holder.queue.fault is not None:
            self._stage = stage
        return self._stage is stage


def read_next(stage: Stage, offset: int, end: int, place: Place) -> Iterator[object]:
    """Read the next message of a stage, if it is large: check its batch, then read its body, unless a full queue is in the way.

    The messages from `offset` to `end` have not moved yet.
    """
    queue, window = stage.queue, stage.window
    if queue.deleted or offset >= end:
        return
    if not window.holds(offset):
        loaded = yield from queue.log.reader.load_steps(window, offset)
        if not loaded:
            return
    window.patient = True
    body = window.batch.stored
    if body is not None and (stage.body is None or stage.body[0] != window.batch.first):
        stage.body = None
        while not place.take(stage):
            yield True
        if not is_held_up(queue.vhost, window.batch):
            stage.body = window.batch.first, (yield from body.take())


def is_held_up(vhost: VHost, batch: Batch) -> bool:
    """Whether a queue that the one message of a large batch would reach is full for now."""
    key, props = batch.key_and_props(0)
    try:
        route = vhost.route(key)
        if route.dynamic or not batch.same_key(0, 1):
            route = vhost.route_message(route.exchange, route.routing_key, read_properties(props)[1])
    except ChannelError:
        return False  # it is dropped, as the log will say
    return in_the_way(route.queues, batch.body_len(0)) is not None
