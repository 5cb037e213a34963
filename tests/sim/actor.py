"""A client that does anything, as its random numbers say, and keeps the ledger of what it has been told.

It publishes, commits and declares on one connection, and consumes on another: that one is read while publishers are blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from kvitto.store.commit import Commit
from kvitto.store.disk import Bytes
from kvitto.wire import methods as m
from kvitto.wire.methods import BasicDeliver, BasicGetOk, Method
from kvitto.wire.properties import Properties
from tests.protocol.sansio import ProtocolHarness
from tests.sim.ledger import Ledger, Transaction
from tests.sim.workload import CONFIRMS, TX, Client, content

INBOX, STAGE, DRIVER = 4, 5, 6
WRITER = "w"
FANOUT = "amq.fanout"
Plan = dict[str, dict[str, object]]
"""Queue -> its arguments."""

PLAIN_QUEUES = ("a", "b", "c")
DEAD = "dead"
TO_DEAD: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
TEMPORARY = "temporary"
PROBE = "probe"
POSTPONING = "postponing"
"""An exchange that delays; what it has delayed comes to the queue DUE."""
POSTPONED = "postponed"
"""What waits there, as if it were a queue: the oracle takes it for one whose messages become dead letters in DUE."""
DUE = "due"
DELAYS_MS = (1, 300, 1100, 4000, 60_000)
SIZES = (12, 60, 60, 300, 1700)


ONCE = "once"
"""A queue with deduplication: the key of a message is its body."""

FAVOURITES = ("kept", "log", ONCE)
"""Queues whose files do more than those of others; if one is there, it sometimes has most of what happens."""


def plan(rng: Random, transactions: bool = False) -> Plan:
    """Which queues a run has; only plain ones and one with dead letters if it is about `transactions`."""
    queues: Plan = {name: {} for name in (DEAD, *PLAIN_QUEUES)}
    queues["work"] = dict(TO_DEAD)
    if transactions:
        return queues
    if rng.random() < 0.5:
        queues["work"]["x-delivery-limit"] = rng.choice((0, 1, 2))
    others: Plan = {
        "brief": {"x-message-ttl": 3000},
        "short": {"x-max-length": rng.choice((1, 4))},
        "strict": {"x-max-length": 4, "x-overflow": "reject-publish"},
        "ranked": {"x-max-priority": 4},
        "later": {"x-retry-delay-min": 500, "x-retry-delay-max": 2000},
        "kept": {"x-archive": True},
        ONCE: {"x-message-deduplication": True, "x-cache-size": 1000},
        "log": {"x-queue-type": "stream", "x-max-length": 12, "x-stream-max-segment-size-bytes": 700},
    }
    favourite = rng.choice(("", *FAVOURITES))
    for name in sorted({*rng.sample(sorted(others), rng.randint(1, 3)), *filter(None, [favourite])}):
        queues[name] = others[name]
        if name in ("brief", "short", "kept", ONCE) and rng.random() < 0.6:
            queues[name] |= TO_DEAD
    if rng.random() < 0.4:
        queues[DUE] = {}
    return queues


def keyed(body: bytes) -> bytes:
    """The properties of a message in `ONCE`."""
    return Properties(headers={"x-deduplication-header": body}).encode()


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
        self.inbox = harness.wire()
        self.wires.append(self.inbox)
        self.wire.put(STAGE, m.ChannelOpen(), m.ConfirmSelect(False))
        self.wire.put(DRIVER, m.ChannelOpen())
        self.inbox.put(INBOX, m.ChannelOpen())
        self.rest()
        for name, arguments in queues.items():
            self.declare(name, arguments)
        if DUE in queues:
            self.declare_postponing()

    # -- what comes back -------------------------------------------------------------------------------------

    def declare(self, name: str, arguments: dict[str, object] | None = None) -> None:
        super().declare(name, arguments)
        told, arguments = self.ledger.queue(name), arguments or {}
        told.stream = arguments.get("x-queue-type") == "stream"
        told.ordered = "x-max-priority" not in arguments
        if told.stream or ("x-max-length" in arguments and not {*TO_DEAD, "x-overflow"} & set(arguments)):
            told.length = int(str(arguments["x-max-length"]))

    def declare_postponing(self) -> None:
        told = self.ledger.queue(POSTPONED)
        told.ordered = False
        if not told.exists:
            told.exists = None
        arguments: dict[str, Any] = {"x-delayed-type": "fanout"}
        self.put(DRIVER, m.ExchangeDeclare(POSTPONING, "x-delayed-message", durable=True, arguments=arguments))
        self.put(DRIVER, m.QueueBind(DUE, POSTPONING, ""))
        self.rest()
        told.exists = True

    def take(self, delivery: BasicDeliver | BasicGetOk, channel: int, body: bytes) -> None:
        queue = self.consumers[delivery.consumer_tag] if isinstance(delivery, BasicDeliver) else self.getting
        self.ledger.queue(queue).delivered.add(body)
        assert self.now_ms() >= self.ledger.not_before.get(body, 0), f"{body!r} comes early"
        self.held[channel, delivery.delivery_tag] = (queue, body)
        if "x-delivery-limit" in self.queues.get(queue, {}):  # a crash may make it once too often
            self.note_refused(queue, body, True)

    def flow(self) -> list[Method]:
        if self.harness.broker.full:
            self.while_full()
        return super().flow()

    # -- a step ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
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
            (5, self.transaction),
            (2, self.let_time_pass),
        ]
        if self.favourite:  # segments go into an archive, and places in a stream are remembered, once time has passed
            steps += [(6, self.some_settlements), (4, self.let_time_pass)]
        if DUE in self.queues:
            steps += [(4, self.postpone)]
        if self.everything:
            steps += [(1, self.lose_channel), (1, self.come_and_go), (1, self.purge), (2, self.stage)]
        if ONCE in self.queues:
            steps += [(6, self.send_again)]
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
                [q for q in self.ledger.queues if self.ledger.queue(q).exists and q not in (PROBE, POSTPONED)]
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

    def send_again(self) -> None:
        """What the queue with deduplication has had, or what was in a message that a failure took; with a confirm or in a transaction."""
        told = self.ledger.queue(ONCE)
        for body in self.rng.sample(told.sent, min(len(told.sent), self.rng.randint(1, 3))):
            self.wait_to_write()
            refused = body in told.refused
            if refused:  # it left no key, so this is the first one of its kind, behind all others
                told.refused.remove(body)
                told.sent.remove(body)
                told.sent.append(body)
            if self.rng.random() < 0.7:
                self.published += 1
                self.unconfirmed[self.published] = ((ONCE,), body)
                self.wire.feed(content(CONFIRMS, ONCE, body, "", keyed(body)))
            else:
                self.wire.feed(content(TX, ONCE, body, "", keyed(body)))
                if self.committed():
                    told.confirmed.add(body)
                elif refused:
                    told.refused.add(body)

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

    def note_sent(self, queue: str, *bodies: bytes) -> None:
        told, arguments = self.ledger.queue(queue), self.queues.get(queue, {})
        told.sent += bodies
        if "x-message-ttl" in arguments:
            told.expires |= dict.fromkeys(bodies, self.now_ms() + int(str(arguments["x-message-ttl"])))
        if "x-max-length" in arguments and "x-dead-letter-exchange" in arguments:
            self.ledger.move(queue, DEAD, *told.sent[: -int(str(arguments["x-max-length"]))])

    # -- consume and settle ----------------------------------------------------------------------------------

    def inbox_put(self, *methods: Method) -> None:
        """This connection is read whatever the disk is like, but while an answer waits for a sync."""
        for _ in range(self.patience):
            if self.inbox.reading:
                break
            self.flow()
        self.inbox.put(INBOX, *methods)

    def start_or_end_consumer(self) -> None:
        if self.attended and self.rng.random() < 0.3:
            tag = self.rng.choice(list(self.attended))
            del self.attended[tag]
            self.inbox_put(m.BasicCancel(tag, False))
            self.rest()
            return
        self.attend(self.some_queue([q for q in self.queues if q != PROBE]), self.rng.randint(1, 6))

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

    def settle(self, tag: int) -> None:
        queue, body = self.held[INBOX, tag]
        what = (
            "ack"
            if self.ledger.queue(queue).stream
            else self.rng.choice(("ack", "ack", "ack", "all", "reject", "all" if self.favourite else "requeue"))
        )
        if what == "all":
            for other in [other for other in self.in_hand if other <= tag]:
                self.note_settled(other)
            self.inbox_put(m.BasicAck(tag, True))
        elif what == "ack":
            self.note_settled(tag)
            self.inbox_put(m.BasicAck(tag, False))
        else:
            del self.held[INBOX, tag]
            requeue = what == "requeue"
            self.note_refused(queue, body, requeue)
            self.inbox_put(m.BasicNack(tag, False, requeue))

    def note_settled(self, tag: int) -> None:
        queue, body = self.held.pop((INBOX, tag))
        if not self.ledger.queue(queue).stream:
            self.ledger.queue(queue).settled.add(body)

    def note_refused(self, queue: str, body: bytes, requeue: bool) -> None:
        """Rejected, or back in its queue, which may be once too often."""
        arguments = self.queues.get(queue, {})
        if "x-dead-letter-exchange" in arguments and (not requeue or "x-delivery-limit" in arguments):
            self.ledger.move(queue, DEAD, body)
        elif not requeue:
            self.ledger.queue(queue).settled.add(body)

    def lose_channel(self) -> None:
        """A6: what was unacked comes back, and there is another channel."""
        for tag in self.in_hand:
            self.note_refused(*self.held.pop((INBOX, tag)), True)
        self.attended.clear()
        self.inbox_put(m.ChannelClose(200, "", 0, 0))
        self.rest()
        self.inbox_put(m.ChannelOpen())
        self.held = {key: queue for key, queue in self.held.items() if key[0] != INBOX}
        self.rest()

    def purge(self) -> None:
        """What is ready goes, and parked dead letters."""
        queue = self.rng.choice([q for q in self.queues if q not in ("log", PROBE)])
        self.rest()
        told = self.ledger.queue(queue)
        kept = {body for held, body in self.held.values() if held == queue}
        gone = set(told.sent) - kept
        sure = set() if "x-dead-letter-exchange" in self.queues[queue] or queue == "later" else gone - told.brought
        told.settled |= sure
        told.doomed |= gone - sure
        self.put(DRIVER, m.QueuePurge(queue, False))
        self.rest()

    # -- transactions ----------------------------------------------------------------------------------------

    def transaction(self) -> None:
        """T4: publishes to several queues, acks and rejects of what it gets itself; sometimes rolled back."""
        rng = self.rng
        for queue in rng.sample((*PLAIN_QUEUES, "work"), rng.randint(0, 2)):
            self.getting = queue
            self.put(TX, m.BasicGet(queue, False))
            self.rest()
        mine = {tag: held for (channel, tag), held in self.held.items() if channel == TX}
        acks = {queue: [body] for queue, body in mine.values()}
        able = [*PLAIN_QUEUES, "work", *filter(self.queues.__contains__, [ONCE])]
        targets = rng.sample(able, rng.randint(0 if acks else 1, 3))
        publishes = {queue: [self.body() for _ in range(rng.randint(1, 2))] for queue in targets}
        for queue, bodies in publishes.items():
            for body in bodies:
                for _ in range(1 if queue != ONCE else rng.randint(1, 2)):
                    self.wait_to_write()
                    self.wire.feed(content(TX, queue, body, "", keyed(body) if queue == ONCE else b"\0\0"))
        rejected = [body for body in acks.get("work", []) if rng.random() < 0.5]
        for tag, (queue, body) in mine.items():
            refused = queue == "work" and body in rejected
            self.put(TX, m.BasicReject(tag, False) if refused else m.BasicAck(tag, False))
        if rng.random() < 0.15:
            self.put(TX, m.TxRollback())
            self.rest()
            self.put_back(mine)
        else:
            self.decide(publishes, acks, rejected)
        self.held = {key: held for key, held in self.held.items() if key[0] != TX}

    def put_back(self, mine: dict[int, tuple[str, bytes]]) -> None:
        """T6: what it has got goes back."""
        for tag, (queue, body) in mine.items():
            self.note_refused(queue, body, True)
            self.put(TX, m.BasicNack(tag, False, True))
        self.committed()

    def committed(self) -> bool:
        """Commit. False if that was refused: then nothing has happened, and the channel is another one (T5)."""
        self.put(TX, m.TxCommit())
        answers = self.rest()
        if any(isinstance(answer, m.TxCommitOk) for answer in answers):
            return True
        assert any(isinstance(answer, m.ChannelClose) for answer in answers), f"no answer to a commit: {answers}"
        self.put(TX, m.ChannelCloseOk(), m.ChannelOpen(), m.TxSelect())
        self.rest()
        return False

    def decide(self, publishes: dict[str, list[bytes]], acks: dict[str, list[bytes]], rejected: list[bytes]) -> None:
        ledger = self.ledger
        sure = {q: [b for b in bodies if b in ledger.queue(q).confirmed] for q, bodies in acks.items()}
        effects = {
            q: [b for b in bodies if (q != "work" or b not in rejected) and (q, b) not in ledger.moves]
            for q, bodies in sure.items()
        }
        letters = [b for b in sure.get("work", []) if b in rejected and ("work", b) not in ledger.moves]
        ledger.move("work", DEAD, *rejected)
        settled = {q: set(bodies) - set(rejected if q == "work" else ()) for q, bodies in acks.items()}
        for queue, told in settled.items():
            ledger.queue(queue).settled |= told
        for queue, bodies in publishes.items():
            self.note_sent(queue, *bodies)
        transaction = Transaction({**publishes, DEAD: letters}, effects)
        ledger.transactions.append(transaction)
        done = self.committed()
        ledger.transactions.remove(transaction)
        if done:
            for queue, bodies in publishes.items():
                ledger.queue(queue).confirmed |= set(bodies)
            for queue, told in settled.items():
                ledger.queue(queue).gone |= told
            return
        for queue, bodies in publishes.items():
            ledger.queue(queue).refused |= set(bodies)
        for queue, bodies in acks.items():
            ledger.queue(queue).settled -= set(bodies)
            for body in bodies:
                self.note_refused(queue, body, True)

    # -- stages ----------------------------------------------------------------------------------------------

    def stage(self) -> None:
        """A batch of two tasks; some attempts are never committed."""
        batch = self.ask(m.StageLast(WRITER), m.StageLastOk).last + 1 & (1 << 64) - 1
        publishes: dict[str, list[bytes]] = {}
        tasks = []
        for task in ("1", "2", "given up"):
            self.ask(m.StageOpen(WRITER, batch, task), m.StageOpenOk, STAGE)
            for _ in range(self.rng.randint(1, 3)):
                queue, body = self.rng.choice(PLAIN_QUEUES), self.body()
                self.wait_to_write()
                self.wire.feed(content(STAGE, queue, body))
                if task != "given up":
                    publishes.setdefault(queue, []).append(body)
            self.rest()
            if task != "given up":
                tasks.append(task)
        if self.rng.random() < 0.2:
            return
        for queue, bodies in publishes.items():
            self.ledger.queue(queue).sent += bodies
            self.ledger.queue(queue).brought |= set(bodies)
        transaction = Transaction(publishes, {})
        self.ledger.transactions.append(transaction)
        answer = self.ask(m.StageCommit(WRITER, batch, "\n".join(tasks).encode()), m.StageCommitOk)
        assert answer.fresh, "the batch had been committed"
        self.ledger.transactions.remove(transaction)
        for queue, bodies in publishes.items():
            self.ledger.queue(queue).confirmed |= set(bodies)

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
        self.harness.clock.advance(ms / 1000)
        for name, told in self.ledger.queues.items():
            late = [body for body, due in told.expires.items() if due <= self.now_ms()]
            for body in late:
                del told.expires[body]
            if "x-dead-letter-exchange" in self.queues.get(name, {}):
                self.ledger.move(name, DEAD, *late)
            else:
                told.doomed |= set(late)
        self.harness.broker.tick()

    def sync_meanwhile(self) -> None:
        """More happens while a sync runs, before and between its files."""
        if self.harness.broker.full:
            return
        self.harness.turn()
        self.read()
        job: Commit = self.harness.store.begin_sync(everything=self.rng.random() < 0.5)
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
