"""A client that does anything, as its random numbers say, and keeps the ledger of what it has been told.

It publishes, commits and declares on one connection, and consumes on another: that one is read while publishers are blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from kvitto.store.commit import Commit
from kvitto.store.disk import Bytes
from kvitto.wire import methods as m
from kvitto.wire.methods import BasicAck, BasicDeliver, BasicGetOk, BasicNack, Method
from kvitto.wire.properties import Properties
from tests.protocol.sansio import Frame, ProtocolHarness
from tests.sim.committing import Committing
from tests.sim.imports import Imports
from tests.sim.lateness import SLOW, Lateness
from tests.sim.ledger import Ledger
from tests.sim.plan import (
    COMPARING,
    DEAD,
    DELAYS_MS,
    DUE,
    FANOUT,
    FAVOURITES,
    HIDDEN,
    ONCE,
    PASSED,
    PASSING,
    PLAIN_QUEUES,
    POSTPONED,
    POSTPONING,
    PROBE,
    SIZES,
    TEMPORARY,
    TO_DEAD,
    Plan,
    keyed,
)
from tests.sim.ruling import Ruling
from tests.sim.setup import RULED
from tests.sim.singles import CHANNELS, SINGLE, Singles
from tests.sim.workload import CONFIRMS, STAGE, Client, content
from tests.support.simdisk import FillingDisk

INBOX, DRIVER = 4, 6


class Meanwhile:
    """Stands among the files of a sync: when its turn comes, the client does something."""

    path = "meanwhile"

    def __init__(self, act: Callable[[], None]) -> None:
        self.sync = act

    def write_at(self, pos: int, buffers: list[Bytes]) -> int:
        raise NotImplementedError


class Actor(Client):
    def __init__(
        self, harness: ProtocolHarness, ledger: Ledger, rng: Random, queues: Plan, numbers: Iterator[int]
    ) -> None:
        """`numbers`: of bodies."""
        self.closed: list[int] = []
        """Channels that the broker has closed."""
        self.left: list[Method] = []
        """What was read while time passed, for whoever reads next."""
        self.singles: Singles | None = None
        super().__init__(harness, ledger)
        self.rng = rng
        self.queues = queues
        self.everything = len(queues) > len(PLAIN_QUEUES) + 2
        self.favourite = rng.choice(["", *(name for name in FAVOURITES if name in queues)])
        self.numbers = numbers
        self.held: dict[tuple[int, int], tuple[str, bytes]] = {}
        """Channel and delivery tag -> queue and body."""
        self.attended: dict[str, None] = {}
        """Tags of consumers."""
        self.getting = ""
        self.fanout: list[str] = []
        self.while_full: Callable[[], None] = lambda: None
        """Called now and then as long as the disk is full."""
        self.may_fill = isinstance(harness.disk, FillingDisk)
        """The disk may be full, and messages may be refused for that."""
        self.shown_ms = self.now_ms()
        """What is read has been delivered at this time or later."""
        self.inbox = harness.wire()
        self.wires.append(self.inbox)
        self.lateness = Lateness(self)
        self.ruling = Ruling(self)
        self.imports = Imports(self)
        self.committing = Committing(self)
        self.wire.put(STAGE, m.ChannelOpen(), m.ConfirmSelect(False))
        self.wire.put(DRIVER, m.ChannelOpen())
        self.inbox.put(INBOX, m.ChannelOpen())
        self.rest()
        for name, arguments in queues.items():
            self.declare(name, arguments)
        if SINGLE in queues:
            self.singles = Singles(self)
            self.rest()
        if DUE in queues:
            self.declare_hidden(POSTPONED, POSTPONING, "x-delayed-message", {"x-delayed-type": "fanout"})
        if PASSED in queues:
            compared = {"x-message-deduplication": True, "x-cache-size": 1000}
            self.declare_hidden(PASSING, COMPARING, "fanout", compared)

    # -- what comes back -------------------------------------------------------------------------------------

    def declare(self, name: str, arguments: dict[str, object] | None = None) -> None:
        super().declare(name, arguments)
        told, arguments = self.ledger.queue(name), arguments or {}
        told.stream = arguments.get("x-queue-type") == "stream"
        told.ordered = "x-max-priority" not in arguments
        if told.stream or ("x-max-length" in arguments and not {*TO_DEAD, "x-overflow"} & set(arguments)):
            told.length = int(str(arguments["x-max-length"]))

    def declare_hidden(self, name: str, exchange: str, kind: str, arguments: dict[str, Any]) -> None:
        """An exchange with a hidden queue, which the oracle calls `name`."""
        told = self.ledger.queue(name)
        told.ordered = name == PASSING
        if not told.exists:
            told.exists = None
        self.put(DRIVER, m.ExchangeDeclare(exchange, kind, durable=True, arguments=arguments))
        self.put(DRIVER, m.QueueBind(HIDDEN[name], exchange, ""))
        self.rest()
        told.exists = True

    def read(self) -> list[Method]:
        found = super().read()
        methods, self.left = self.left + found, []
        return methods

    def foresee(self, frames: list[Frame]) -> None:
        if self.singles is not None:
            self.singles.foresee(frames)

    def heard(self, channel: int, method: Method) -> None:
        if self.singles is not None and channel in CHANNELS:
            self.singles.heard(channel, method)
        if isinstance(method, m.ChannelClose) and channel in (INBOX, *CHANNELS):
            self.lateness.closed(channel, method)
            self.closed.append(channel)
            self.give_back(channel)

    def take(self, delivery: BasicDeliver | BasicGetOk, channel: int, body: bytes) -> None:
        queue = self.consumers[delivery.consumer_tag] if isinstance(delivery, BasicDeliver) else self.getting
        told = self.ledger.queue(queue)
        assert delivery.redelivered or told.stream or body not in told.delivered, f"{queue}: {body!r} is not flagged"
        assert channel not in self.closed, f"channel {channel} is closed, and gets {body!r}"
        if queue == SINGLE and self.singles is not None:
            if isinstance(delivery, BasicDeliver):
                self.singles.served(delivery, channel, body)
            else:
                self.singles.in_order(body, channel)
        if queue == RULED:
            self.ruling.note_delivered(body)
        told.delivered.add(body)
        self.lateness.came(channel, delivery.delivery_tag, "x-consumer-timeout" in self.queues.get(queue, {}))
        assert self.now_ms() >= self.ledger.not_before.get(body, 0), f"{body!r} comes early"
        self.held[channel, delivery.delivery_tag] = (queue, body)
        if "x-delivery-limit" in self.queues.get(queue, {}):  # a crash may make it once too often
            self.note_refused(queue, body, True)

    def _answered(self, answer: BasicAck | BasicNack) -> None:
        before = dict(self.unconfirmed)
        super()._answered(answer)
        for number in before.keys() - self.unconfirmed.keys():
            queues, body = before[number]
            if RULED in queues:
                self.ruling.answered(body, isinstance(answer, BasicAck))

    def flow(self) -> list[Method]:
        if self.harness.broker.full:
            self.while_full()
        return super().flow()

    def rest(self) -> list[Method]:
        methods = super().rest()
        if self.singles is not None:
            self.singles.at_rest()
        return methods

    # -- a step ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
        self.ruling.look_after()
        steps: list[tuple[int, Callable[[], object]]] = [
            (8, self.some_publishes),
            (2, self.to_all),
            (6, self.some_settlements),
            (4, self.start_or_end_consumer),
            (2, self.get),
            (3, self.flow),
            (2, self.harness.turn),
            (3, self.full_sync),
            (3, self.sync_meanwhile),
            (5, self.committing.transaction),
            (2, self.let_time_pass),
        ]
        if self.favourite:  # segments go into an archive, and places in a stream are remembered, once time has passed
            steps += [(6, self.some_settlements), (4, self.let_time_pass)]
        if DUE in self.queues:
            steps += [(4, self.postpone)]
        if PASSED in self.queues:
            steps += [(6, self.pass_on), (4, self.committing.pass_again)]
        if self.everything:
            steps += [(1, self.lose_channel), (1, self.come_and_go), (1, self.purge), (2, self.committing.stage)]
        if ONCE in self.queues:
            steps += [(6, self.committing.send_again)]
        if self.singles is not None:
            steps += [(12, self.singles.step), (4, partial(self.send, SINGLE))]
        if self.singles is not None or SLOW in self.queues:
            steps += [(3, self.lateness.doze)]
        if RULED in self.queues:
            steps += [(4, self.ruling.step), (3, partial(self.send, RULED)), (2, partial(self.attend, RULED, 3))]
            steps += [(1, self.ruling.use_fleeting), (2, self.imports.step)]
        rng.choices([act for _, act in steps], [weight for weight, _ in steps])[0]()
        self.read()

    def some_queue(self, names: list[str]) -> str:
        return self.favourite if self.favourite in names and self.rng.random() < 0.6 else self.rng.choice(names)

    def body(self) -> bytes:
        return f"m{next(self.numbers)}".encode().ljust(self.rng.choice(SIZES), b".")

    def now_ms(self) -> int:
        return self.harness.clock.now_ms()

    # -- publish ---------------------------------------------------------------------------------------------

    def some_publishes(self) -> None:
        self.send(
            self.some_queue(
                [q for q in self.ledger.queues if self.ledger.queue(q).exists and q not in (PROBE, *HIDDEN)]
            )
        )
        if self.rng.random() < 0.3:
            self.flow()

    def to_all(self) -> None:
        """To several queues at once."""
        if not self.fanout:
            able = [q for q in (*PLAIN_QUEUES, "kept", "log", "later") if q in self.queues and q not in self.fanout]
            able = [q for q in able if "x-dead-letter-exchange" not in self.queues[q]]
            self.fanout = self.rng.sample(able, min(len(able), 3))
            for queue in able:
                bind = m.QueueBind if queue in self.fanout else m.QueueUnbind
                self.put(DRIVER, bind(queue, FANOUT, ""))
            self.rest()
        body = self.body()
        self._send(tuple(self.fanout), [body], FANOUT)

    def send(self, queue: str) -> None:
        self._send((queue,), [self.body() for _ in range(self.rng.randint(1, 4))], "")

    def _send(self, queues: tuple[str, ...], bodies: list[bytes], exchange: str) -> None:
        for body in bodies:
            self.wait_to_write()
            self.published += 1
            self.unconfirmed[self.published] = (queues, body)
            for queue in queues:
                self.note_sent(queue, body)
            self.wire.feed(content(CONFIRMS, queues[0], body, exchange, self.properties(queues, body)))

    def properties(self, queues: tuple[str, ...], body: bytes) -> bytes:
        if queues == (ONCE,):
            return keyed(body)
        return b"\x08\0" + bytes((self.rng.randrange(6),)) if queues == ("ranked",) else b"\0\0"

    def postpone(self) -> None:
        """Publish messages that are due later."""
        for body in [self.body() for _ in range(self.rng.randint(1, 3))]:
            delay_ms = self.rng.choice(DELAYS_MS)
            self.wait_to_write()
            self.published += 1
            self.unconfirmed[self.published] = ((POSTPONED,), body)
            self.ledger.not_before[body] = self.now_ms() + delay_ms
            self.ledger.queue(POSTPONED).sent.append(body)
            self.ledger.move(POSTPONED, DUE, body)
            self.wire.feed(content(CONFIRMS, "", body, POSTPONING, Properties(headers={"x-delay": delay_ms}).encode()))

    def pass_on(self) -> None:
        """Publish messages to the exchange that deduplicates."""
        for body in [self.body() for _ in range(self.rng.randint(1, 4))]:
            self.wait_to_write()
            self.published += 1
            self.unconfirmed[self.published] = ((PASSING,), body)
            self.ledger.queue(PASSING).sent.append(body)
            self.ledger.move(PASSING, PASSED, body)
            self.wire.feed(content(CONFIRMS, "", body, COMPARING, keyed(body)))

    def note_sent(self, queue: str, *bodies: bytes) -> None:
        told, arguments = self.ledger.queue(queue), self.queues.get(queue, {})
        told.sent += bodies
        if queue == RULED:
            self.ruling.note_sent(bodies)
        if "x-message-ttl" in arguments:
            told.expires |= dict.fromkeys(bodies, self.now_ms() + int(str(arguments["x-message-ttl"])))
        if "x-max-length" in arguments and "x-dead-letter-exchange" in arguments:
            self.ledger.move(queue, DEAD, *told.sent[: -int(str(arguments["x-max-length"]))])

    # -- consume and settle ----------------------------------------------------------------------------------

    def inbox_put(self, *methods: Method, channel: int = INBOX) -> None:
        """This connection is read whatever the disk is like, but while an answer waits for a sync."""
        wire = self.inbox if self.singles is None else self.singles.wire_of(channel)
        for _ in range(self.patience):
            if wire.reading:
                break
            self.flow()
        wire.put(channel, *methods)

    def start_or_end_consumer(self) -> None:
        if self.attended and self.rng.random() < 0.3:
            tag = self.rng.choice(list(self.attended))
            del self.attended[tag]
            self.inbox_put(m.BasicCancel(tag, False))
            self.rest()
            return
        self.attend(self.some_queue([q for q in self.queues if q not in (PROBE, SINGLE)]), self.rng.randint(1, 6))

    def attend(self, queue: str, prefetch: int) -> None:
        """Consume, unless that is done already."""
        tag = f"to {queue}"
        if tag not in self.attended:
            self.attended[tag] = None
            self.consumers[tag] = queue
            first = (
                self.ledger.queue(queue).stream and self.rng.random() < 0.3
            )  # else it goes on where it was, and is remembered
            arguments: dict[str, Any] = {"x-stream-offset": "first"} if first else {}
            self.inbox_put(m.BasicQos(0, prefetch, False))
            self.inbox_put(m.BasicConsume(queue, tag, False, False, False, False, arguments))
            self.rest()

    def get(self) -> None:
        self.getting = self.rng.choice([q for q in self.queues if q != "log" and q != PROBE])
        self.inbox_put(m.BasicGet(self.getting, False))
        self.rest()

    def some_settlements(self) -> None:
        tags = self.in_hand
        for tag in self.rng.sample(tags, min(len(tags), self.rng.randint(1, 4))):
            if (INBOX, tag) in self.held:
                self.settle(tag)
        if self.rng.random() < 0.3:
            self.flow()

    @property
    def in_hand(self) -> list[int]:
        return [tag for channel, tag in self.held if channel == INBOX]

    def settle(self, tag: int, channel: int = INBOX) -> None:
        queue = self.held[channel, tag][0]
        what = (
            "ack"
            if self.ledger.queue(queue).stream
            else self.rng.choice(("ack", "ack", "ack", "all", "reject", "all" if self.favourite else "requeue"))
        )
        if what == "all":
            for where, other in [key for key in self.held if key[0] == channel and key[1] <= tag]:
                self.note_settled(other, where)
            self.inbox_put(m.BasicAck(tag, True), channel=channel)
        elif what == "ack":
            self.note_settled(tag, channel)
            self.inbox_put(m.BasicAck(tag, False), channel=channel)
        else:
            requeue = what == "requeue"
            self._note_given_up(channel, tag, requeue)
            self.inbox_put(m.BasicNack(tag, False, requeue), channel=channel)

    def _note_given_up(self, channel: int, tag: int, requeue: bool) -> None:
        """Rejected, or back in its queue."""
        queue, body = self.held.pop((channel, tag))
        if self.singles is not None:
            self.singles.settled(channel, tag)
            self.singles.unsure.add(body)
        self.note_refused(queue, body, requeue)

    def give_back(self, channel: int) -> None:
        """A6: a channel is closed, and what was unacked comes back."""
        for _, tag in [key for key in self.held if key[0] == channel]:
            self._note_given_up(channel, tag, True)
        if channel == INBOX:
            self.attended.clear()

    def open_again(self) -> None:
        """Open the channels that the broker has closed."""
        closed, self.closed = self.closed, []
        for channel in closed:
            self.inbox_put(m.ChannelCloseOk(), m.ChannelOpen(), channel=channel)

    def note_settled(self, tag: int, channel: int = INBOX) -> None:
        queue, body = self.held.pop((channel, tag))
        if self.singles is not None:
            self.singles.settled(channel, tag)
        if not self.ledger.queue(queue).stream:
            self.ledger.queue(queue).settled.add(body)

    def note_refused(self, queue: str, body: bytes, requeue: bool) -> None:
        """Rejected, or back in its queue, which may be once too often."""
        arguments = self.queues.get(queue, {})
        if queue == RULED:
            self.ruling.note_refused(body, requeue)
        elif "x-dead-letter-exchange" in arguments and (not requeue or "x-delivery-limit" in arguments):
            self.ledger.move(queue, DEAD, body)
        elif not requeue:
            self.ledger.queue(queue).settled.add(body)

    def lose_channel(self) -> None:
        """A6: what was unacked comes back, and there is another channel."""
        self.give_back(INBOX)
        self.inbox_put(m.ChannelClose(200, "", 0, 0))
        self.rest()
        self.inbox_put(m.ChannelOpen())
        self.give_back(INBOX)
        self.rest()

    def purge(self) -> None:
        """What is ready goes, and parked dead letters."""
        queue = self.rng.choice([q for q in self.queues if q not in ("log", PROBE)])
        self.rest()
        told = self.ledger.queue(queue)
        kept = {body for held, body in self.held.values() if held == queue}
        gone = set(told.sent) - kept
        unsure = "x-dead-letter-exchange" in self.queues[queue] or queue in ("later", RULED)
        sure = set() if unsure else gone - told.brought
        told.settled |= sure
        told.doomed |= gone - sure
        self.put(DRIVER, m.QueuePurge(queue, False))
        self.rest()

    def ask(self, method: Method, kind: type, channel: int = DRIVER):  # type: ignore[no-untyped-def]
        self.put(channel, method)
        for _ in range(self.patience):
            for answer in self.rest():
                if isinstance(answer, kind):
                    return answer
            self.let_tick(100)
        raise AssertionError(f"no answer to {method}")

    # -- the rest --------------------------------------------------------------------------------------------

    def come_and_go(self) -> None:
        """A queue is declared, filled, deleted."""
        if self.ledger.queue(TEMPORARY).exists:
            self.rest()
            self.delete(TEMPORARY)
        else:
            self.declare(TEMPORARY)
            self.send(TEMPORARY)

    def let_time_pass(self) -> None:
        self.let_tick(self.rng.choice((300, 1100, 1100, 4000)))
        self.harness.turn()

    def let_tick(self, ms: int) -> None:
        """What the clock ends may leave."""
        self.left = self.read()
        self.ruling.before_tick(ms)
        self.harness.clock.advance(ms / 1000)
        for name, told in self.ledger.queues.items():
            late = [body for body, due in told.expires.items() if due <= self.now_ms()]
            for body in late:
                del told.expires[body]
            if name == RULED:
                self.ruling.note_expired(late)
            elif "x-dead-letter-exchange" in self.queues.get(name, {}):
                self.ledger.move(name, DEAD, *late)
            else:
                told.doomed |= set(late)
        timers = self.harness.broker.timers
        for _ in range(len(timers) + 1):  # a turn without time leaves timers to the next one
            self.harness.broker.tick()
            self.harness.turn()
            if timers.next_ms is None or timers.next_ms > timers.now_ms:
                break
        self.left = self.read()  # a channel that is closed takes no acks any more
        self.open_again()
        self.shown_ms = self.now_ms()

    def sync_meanwhile(self) -> None:
        """More happens while a sync runs, before and between its files."""
        if self.harness.broker.full:
            return
        self.harness.turn()
        self.read()
        store = self.harness.store
        most = (0, 1, 0, 2)[store.commits.syncs % 4]  # of the settlement logs, if it is not 0
        job: Commit = store.begin_sync(self.rng.random() < 0.5, most)
        self.something_quick()
        at = self.rng.randint(0, len(job.files))
        job.files.insert(at, Meanwhile(self.something_quick))  # type: ignore[arg-type]
        job.run()
        self.harness.end_sync(job)
        self.rest()

    def something_quick(self) -> None:
        """Nothing that waits for an answer."""
        if self.wire.reading and not self.harness.broker.full:
            self._send((self.rng.choice((*PLAIN_QUEUES, "work")),), [self.body()], "")
        if self.inbox.reading and self.in_hand:
            self.settle(self.rng.choice(self.in_hand))
        self.harness.turn()
        self.read()
