"""What a client does as a whole or not at all: transactions and stages (T4, T6); and what it sends again to a queue with deduplication."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvitto.wire import methods as m
from tests.sim.ledger import Transaction
from tests.sim.plan import COMPARING, DEAD, ONCE, PASSING, PLAIN_QUEUES, WRITER, keyed
from tests.sim.workload import CONFIRMS, STAGE, TX, content

if TYPE_CHECKING:
    from tests.sim.actor import Actor


class Committing:
    def __init__(self, actor: Actor) -> None:
        self.actor = actor

    def send_again(self) -> None:
        """What the queue with deduplication has had, or what was in a message that a failure took; with a confirm or in a transaction."""
        self._send_again(ONCE, "", ONCE)

    def pass_again(self) -> None:
        """The same for the exchange with deduplication."""
        self._send_again(PASSING, COMPARING, "")

    def _send_again(self, queue: str, exchange: str, key: str) -> None:
        actor = self.actor
        told = actor.ledger.queue(queue)
        for body in actor.rng.sample(told.sent, min(len(told.sent), actor.rng.randint(1, 3))):
            actor.wait_to_write()
            refused = body in told.refused
            if refused:  # it left no key, so this is the first one of its kind, behind all others
                told.refused.remove(body)
                told.sent.remove(body)
                told.sent.append(body)
            if actor.rng.random() < 0.7:
                actor.published += 1
                actor.unconfirmed[actor.published] = ((queue,), body)
                actor.wire.feed(content(CONFIRMS, key, body, exchange, keyed(body)))
            else:
                actor.wire.feed(content(TX, key, body, exchange, keyed(body)))
                if self.committed():
                    told.confirmed.add(body)
                elif refused:
                    told.refused.add(body)

    # -- transactions ----------------------------------------------------------------------------------------

    def transaction(self) -> None:
        """T4: publishes to several queues, acks and rejects of what it gets itself; sometimes rolled back."""
        actor = self.actor
        rng = actor.rng
        for queue in rng.sample((*PLAIN_QUEUES, "work"), rng.randint(0, 2)):
            actor.getting = queue
            actor.put(TX, m.BasicGet(queue, False))
            actor.rest()
        mine = {tag: held for (channel, tag), held in actor.held.items() if channel == TX}
        acks = {queue: [body] for queue, body in mine.values()}
        able = [*PLAIN_QUEUES, "work", *filter(actor.queues.__contains__, [ONCE])]
        targets = rng.sample(able, rng.randint(0 if acks else 1, 3))
        publishes = {queue: [actor.body() for _ in range(rng.randint(1, 2))] for queue in targets}
        for queue, bodies in publishes.items():
            for body in bodies:
                for _ in range(1 if queue != ONCE else rng.randint(1, 2)):
                    actor.wait_to_write()
                    actor.wire.feed(content(TX, queue, body, "", keyed(body) if queue == ONCE else b"\0\0"))
        rejected = [body for body in acks.get("work", []) if rng.random() < 0.5]
        for tag, (queue, body) in mine.items():
            refused = queue == "work" and body in rejected
            actor.put(TX, m.BasicReject(tag, False) if refused else m.BasicAck(tag, False))
        if rng.random() < 0.15:
            actor.put(TX, m.TxRollback())
            actor.rest()
            self.put_back(mine)
        else:
            self.decide(publishes, acks, rejected)
        actor.held = {key: held for key, held in actor.held.items() if key[0] != TX}

    def put_back(self, mine: dict[int, tuple[str, bytes]]) -> None:
        """T6: what it has got goes back."""
        actor = self.actor
        for tag, (queue, body) in mine.items():
            actor.note_refused(queue, body, True)
            actor.put(TX, m.BasicNack(tag, False, True))
        self.committed()

    def committed(self) -> bool:
        """Commit. False if that was refused: then nothing has happened, and the channel is another one (T5)."""
        actor = self.actor
        actor.put(TX, m.TxCommit())
        answers = actor.rest()
        if any(isinstance(answer, m.TxCommitOk) for answer in answers):
            return True
        assert any(isinstance(answer, m.ChannelClose) for answer in answers), f"no answer to a commit: {answers}"
        actor.put(TX, m.ChannelCloseOk(), m.ChannelOpen(), m.TxSelect())
        actor.rest()
        return False

    def decide(self, publishes: dict[str, list[bytes]], acks: dict[str, list[bytes]], rejected: list[bytes]) -> None:
        actor = self.actor
        ledger = actor.ledger
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
            actor.note_sent(queue, *bodies)
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
                actor.note_refused(queue, body, True)

    # -- stages ----------------------------------------------------------------------------------------------

    def stage(self) -> None:
        """A batch of two tasks; some attempts are never committed."""
        actor = self.actor
        batch = actor.ask(m.StageLast(WRITER), m.StageLastOk).last + 1 & (1 << 64) - 1
        publishes: dict[str, list[bytes]] = {}
        tasks = []
        for task in ("1", "2", "given up"):
            actor.ask(m.StageOpen(WRITER, batch, task), m.StageOpenOk, STAGE)
            for _ in range(actor.rng.randint(1, 3)):
                queue, body = actor.rng.choice(PLAIN_QUEUES), actor.body()
                actor.wait_to_write()
                actor.wire.feed(content(STAGE, queue, body))
                if task != "given up":
                    publishes.setdefault(queue, []).append(body)
            actor.rest()
            if task != "given up":
                tasks.append(task)
        if actor.rng.random() < 0.2:
            return
        for queue, bodies in publishes.items():
            actor.ledger.queue(queue).sent += bodies
            actor.ledger.queue(queue).brought |= set(bodies)
        transaction = Transaction(publishes, {})
        actor.ledger.transactions.append(transaction)
        answer = actor.ask(m.StageCommit(WRITER, batch, "\n".join(tasks).encode()), m.StageCommitOk)
        assert answer.fresh, "the batch had been committed"
        actor.ledger.transactions.remove(transaction)
        for queue, bodies in publishes.items():
            actor.ledger.queue(queue).confirmed |= set(bodies)
