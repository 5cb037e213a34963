"""Policies that come, change and go while their queues are used.

While a change is on its way both what was and what will be are possible. What may therefore leave the queue RULED by itself is entered
into the ledger before the change begins; as soon as it is answered, the queue must do what the new set-up says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kvitto.broker.administration.policies import policy
from kvitto.broker.administration.policing import clear_policy, set_policy
from kvitto.broker.changes import Changes
from tests.sim.setup import (
    FLEETING,
    RULED,
    Effective,
    Setup,
    check_settings,
    drops,
    effective,
    observed,
    refuses,
    settings_of,
)

if TYPE_CHECKING:
    from random import Random

    from tests.sim.actor import Actor

PATTERNS = ("^ruled$", "^rul", "led$", "^(ruled|none)$")
KINDS = ("policy", "policy", "operator_policy")
NAMES = ("one", "two", "three")


class Ruling:
    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.ledger = actor.ledger
        self.unused_since = self.unused_until = actor.now_ms()
        """When the time of the queue FLEETING began, at the earliest and at the latest."""
        if RULED in actor.queues:
            self.loosen()

    def possible(self, queue: str = RULED) -> list[Effective]:
        return [effective(setup, queue) for setup in self.ledger.setups]

    # -- what the queue may do by itself ---------------------------------------------------------------------

    def leave(self, bodies: Iterable[bytes]) -> None:
        """These may leave the queue, to where its dead letters go."""
        gone, possible = list(bodies), self.possible()
        if any("dead-letter-exchange" in each for each in possible):
            self.ledger.move(RULED, "dead", *gone)
        if not all("dead-letter-exchange" in each for each in possible):
            self.ledger.queue(RULED).doomed |= set(gone)

    def loosen(self) -> None:
        """What has expired or a limit may drop, and dead letters whose way may be cut off before they arrive.

        A delivery limit counts what was delivered before it came, too. Of the last delivery the client may not know yet.
        """
        told, possible = self.ledger.queue(RULED), self.possible()
        kept = min((drops(each) for each in possible if drops(each) >= 0), default=-1)
        if kept >= 0:
            self.leave(told.sent[: len(told.sent) - kept])
        limits = [each["delivery-limit"] for each in possible if "delivery-limit" in each]
        if limits:
            over = [body for body, tries in self.ledger.tries.items() if tries >= max(1, min(limits))]
            self.leave(body for body in over if body not in told.gone)
        self.leave(body for body in self.ledger.overdue if body not in told.gone)
        if not all("dead-letter-exchange" in each for each in possible):
            told.doomed |= {body for queue, body in self.ledger.moves if queue == RULED}

    def note_sent(self, bodies: Iterable[bytes]) -> None:
        now_ms, told, possible = self.actor.now_ms(), self.ledger.queue(RULED), self.possible()
        ttls = [each["message-ttl"] for each in possible if "message-ttl" in each]
        if ttls:
            told.expires |= dict.fromkeys(bodies, now_ms + min(ttls))
        if len(ttls) == len(possible):
            self.ledger.limited |= dict.fromkeys(bodies, max(ttls))
        self.loosen()

    def note_expired(self, bodies: Iterable[bytes]) -> None:
        self.ledger.overdue |= dict.fromkeys(bodies)
        self.loosen()

    def note_delivered(self, body: bytes) -> None:
        """What has expired is not delivered. The delivery may be one too many, if it ends with a crash or the message comes back."""
        due = self.ledger.not_after.get(body)
        assert due is None or self.actor.shown_ms <= due, f"{body!r} is delivered, and has expired"
        self.ledger.tries[body] += 1
        self.loosen()

    def note_refused(self, body: bytes, requeue: bool) -> None:
        if requeue:
            return
        if any("dead-letter-exchange" in each for each in self.possible()):
            self.leave([body])
        else:
            self.ledger.queue(RULED).settled.add(body)

    def answered(self, body: bytes, taken: bool) -> None:
        if taken and body in self.ledger.limited:
            self.ledger.not_after[body] = self.actor.now_ms() + self.ledger.limited.pop(body)
        elif not taken and not self.actor.may_fill:
            assert any(refuses(each) for each in self.possible()), f"{body!r} is refused, and no policy says so"

    # -- changes ---------------------------------------------------------------------------------------------

    def step(self) -> None:
        actor, rng, setup = self.actor, self.actor.rng, self.ledger.setups[-1]
        there = [key for key in setup if key[0] in KINDS and key[1] == "/"]
        vhost = actor.harness.broker.vhosts["/"]
        if there and rng.random() < 0.35:
            key = rng.choice(there)
            after = {each: value for each, value in setup.items() if each != key}
            self.change([after], clear_policy(vhost, key[0], key[2]))
        else:
            key, value = some_policy(rng)
            made = policy(key[2], value, key[0] == "operator_policy")
            self.change([{**setup, key: value}], set_policy(vhost, key[0], made))

    def change(self, after: list[Setup], steps: Iterator[object]) -> None:
        """Have a change done, as a request does, while the client goes on; it is told when it is durable."""
        actor, ledger = self.actor, self.ledger
        ledger.setups = [ledger.setups[-1], *after]
        self.loosen()
        self._expect_to_go(0)
        began, before = actor.now_ms(), self.possible(FLEETING)[0]
        ended: list[bool] = []
        jobs, changes = actor.harness.broker.jobs, Changes(actor.harness.broker)
        jobs.start(changes.each(steps), lambda: ended.append(True))
        while not ended:
            if actor.rng.random() < 0.5:
                actor.something_quick()
            actor.flow()
        if changes.made:
            actor.harness.store.when_defined(lambda: ended.append(True), announced=True)
            if actor.rng.random() < 0.5:
                actor.something_quick()
            for _ in range(actor.patience):
                if len(ended) == 2:
                    break
                actor.flow()
            assert len(ended) == 2, "the change is never durable"
        ledger.setups = ledger.setups[-1:]
        self.unused_until = actor.now_ms()
        if self.possible(FLEETING) != [before]:
            self.unused_since = began
        self.check()

    def check(self) -> None:
        """At rest the set-up is the last one, and a queue that drops what is too much has done so."""
        actor, setup = self.actor, self.ledger.setups[-1]
        actor.rest()
        broker = actor.harness.broker
        found = observed(broker)
        assert found == setup, f"the set-up is {difference(found, setup)}"
        check_settings(settings_of(broker), setup)
        most = drops(effective(setup, RULED))
        if most >= 0 and not broker.full:
            ready = broker.vhosts["/"].queues[RULED].ready
            assert ready <= most, f"{RULED} keeps {ready} messages, not {most}"

    # -- a queue that expires --------------------------------------------------------------------------------

    def use_fleeting(self) -> None:
        """Declare the queue that a policy may have expire, or publish to it, which does not count as a use."""
        told = self.ledger.queue(FLEETING)
        if not told.exists:
            self.unused_since = self.actor.now_ms()
            self.actor.declare(FLEETING)
            self.unused_until = self.actor.now_ms()
            self._expect_to_go(0)  # while the disk is full the answer may come after the queue's time
        self.actor.send(FLEETING)

    def _expect_to_go(self, ms: int) -> None:
        """The time of the queue may be over so many ms from now on."""
        told = self.ledger.queue(FLEETING)
        times = [each["expires"] for each in self.possible(FLEETING) if "expires" in each]
        if told.exists and times and self.actor.now_ms() + ms >= self.unused_since + min(times):
            told.exists = None

    def before_tick(self, ms: int) -> None:
        self._expect_to_go(ms)

    def look_after(self) -> None:
        """Learn whether the queue has expired: it must have a while after its time, and is gone for good once that is durable."""
        actor, told = self.actor, self.ledger.queue(FLEETING)
        if told.exists is not None or actor.harness.broker.full:
            return
        actor.let_tick(1)
        actor.rest()
        if FLEETING in actor.harness.broker.vhosts["/"].queues:
            times = [each.get("expires", -1) for each in self.possible(FLEETING)]
            over = -1 not in times and actor.now_ms() > self.unused_until + max(times) + 10
            assert not over, f"{FLEETING} has not expired"
            told.exists = True
            self._expect_to_go(0)
            return
        done: list[bool] = []
        actor.harness.store.when_defined(lambda: done.append(True), announced=True)
        for _ in range(actor.patience):
            if done:
                self.ledger.forget(FLEETING)
                return
            actor.flow()
        raise AssertionError("a queue's end is never durable")


def difference(found: Setup, expected: Setup) -> str:
    more = {key: value for key, value in found.items() if expected.get(key) != value}
    less = {key: value for key, value in expected.items() if found.get(key) != value}
    return f"{more}, not {less}"


def some_policy(rng: Random) -> tuple[tuple[str, str, str], dict[str, Any]]:
    """A policy of the vhost "/" for one of the two queues."""
    kind = rng.choice(KINDS)
    value: dict[str, Any] = {"apply-to": rng.choice(("all", "queues", "classic_queues")), "priority": rng.randrange(3)}
    if rng.random() < 0.25:
        value |= {"pattern": "^fleeting$", "definition": {"expires": rng.choice((1500, 5000))}}
        return (kind, "/", "fleet"), value
    able: list[dict[str, Any]] = [
        {"max-length": rng.choice((1, 3, 6))},
        {"max-length": rng.choice((2, 4)), "overflow": rng.choice(("reject-publish", "drop-head"))},
        {"message-ttl": rng.choice((500, 3000))},
        {"delivery-limit": rng.choice((0, 1, 3))},
    ]
    if kind == "policy":
        able += [{"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}] * 2
    definition: dict[str, Any] = {}
    for each in rng.sample(able, rng.randint(1, 2)):
        definition |= each
    return (kind, "/", rng.choice(NAMES)), value | {"pattern": rng.choice(PATTERNS), "definition": definition}
