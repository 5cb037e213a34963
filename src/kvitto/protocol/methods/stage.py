"""Kvitto's class `stage`: publishes are put aside until one commit publishes them (docs/protocol-extensions.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import PRECONDITION_FAILED, ChannelError
from kvitto.broker import walls
from kvitto.wire.methods import (
    Method,
    StageClaim,
    StageClaimOk,
    StageCommit,
    StageCommitOk,
    StageForget,
    StageForgetOk,
    StageLast,
    StageLastOk,
    StageOpen,
    StageOpenOk,
)

if TYPE_CHECKING:
    from kvitto.protocol.channel import Channel
    from kvitto.protocol.connection import Connection


def _authorise(conn: Connection, writer: str) -> None:
    conn.user.authorise(conn.vhost.name, "configure", "writer", writer)


def open_(conn: Connection, chan: Channel, m: StageOpen) -> None:
    if chan.tx is not None:
        raise ChannelError(PRECONDITION_FAILED, "cannot put aside what a transaction holds")
    _authorise(conn, m.writer)
    stages = conn.broker.stages
    last = stages.last(conn.vhost, m.writer)
    chan.put_aside_in(stages.open(conn.vhost, m.writer, m.batch, m.task))
    conn.send(chan.number, StageOpenOk(last))


def commit(conn: Connection, chan: Channel, m: StageCommit) -> None:
    _authorise(conn, m.writer)
    tasks = m.tasks.decode("utf-8", "surrogateescape").split("\n") if m.tasks else []
    broker = conn.broker

    def done(fresh: bool) -> None:
        conn.send(chan.number, StageCommitOk(fresh))
        conn.answering = False
        conn.unstall()

    broker.stages.commit(conn.vhost, m.writer, m.batch, tasks, lambda fresh: walls.run(conn, done, fresh))
    conn.answering = True  # `done` waits for the definitions
    conn.stall()


def last(conn: Connection, chan: Channel, m: StageLast) -> None:
    _authorise(conn, m.writer)
    conn.send(chan.number, StageLastOk(conn.broker.stages.last(conn.vhost, m.writer)))


def claim(conn: Connection, chan: Channel, m: StageClaim) -> None:
    _authorise(conn, m.writer)

    def done(last: int) -> None:
        conn.send(chan.number, StageClaimOk(last))
        conn.answering = False
        conn.unstall()

    conn.broker.stages.claim(conn.vhost, m.writer, m.task, lambda last: walls.run(conn, done, last))
    conn.answering = True  # `done` waits for the definitions
    conn.stall()


def forget(conn: Connection, chan: Channel, m: StageForget) -> None:
    _authorise(conn, m.writer)
    conn.broker.stages.forget(conn.vhost, m.writer)
    conn.send(chan.number, StageForgetOk())


HANDLERS: dict[type[Method], Callable[[Any, Any, Any], None]] = {
    StageOpen: open_,
    StageCommit: commit,
    StageLast: last,
    StageForget: forget,
    StageClaim: claim,
}
