"""Policies: which one counts, what it adds to arguments, and that it takes hold of queues and exchanges that are there (A8, D2)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvitto.broker.administration.arguments import QUEUE_POLICY, SMALLER_COUNTS, read_settings, with_policy
from kvitto.broker.administration.policies import (
    InvalidPolicy,
    Policy,
    first_that_fits,
    for_queue,
    in_effect,
    policy,
    queue_kinds,
)
from kvitto.broker.queues.leaving import LEAVING_PER_TURN
from kvitto.broker.queues.work_queue import WorkQueue
from kvitto.broker.routing.patterns import PATTERN_MAX
from kvitto.broker.vhost import OPERATOR_POLICY, POLICY, VHost
from tests.support.harness import BrokerHarness

VALUES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(SMALLER_COUNTS, st.integers(1, 1000)),
    **dict.fromkeys(("retry-delay-min", "retry-delay-max"), st.integers(0, 1000)),
    **dict.fromkeys(("delayed-retry-min", "delayed-retry-max"), st.integers(0, 1000)),
    "delayed-retry-type": st.sampled_from(["disabled", "all", "failed", "returned"]),
    **dict.fromkeys(("dead-letter-exchange", "dead-letter-routing-key"), st.sampled_from(["", "x", "y"])),
    "max-age": st.sampled_from(["1h", "30s", "2D"]),
    "overflow": st.sampled_from(["drop-head", "reject-publish", "reject-publish-dlx"]),
    "on-alarm": st.sampled_from(["block", "nack"]),
}
SETTINGS = st.fixed_dictionaries({}, optional=VALUES)
KINDS = st.sampled_from([{}, {"x-queue-type": "classic"}, {"x-queue-type": "quorum"}, {"x-queue-type": "stream"}])


def made(pattern: str = "", definition: dict[str, Any] | None = None, name: str = "p", **more: Any) -> Policy:
    value = {"pattern": pattern, "definition": definition or {"max-length": 5}}
    return policy(name, value | {key.replace("_", "-"): what for key, what in more.items()})


def vhost(harness: BrokerHarness) -> VHost:
    return harness.broker.vhosts["/"]


def settle(harness: BrokerHarness, definition: dict[str, Any], kind: str = POLICY, **more: Any) -> None:
    harness.broker.read_clock()
    vhost(harness).set_policy(kind, made(definition=definition, **more))
    harness.settle_down()


def fill(harness: BrokerHarness, name: str, count: int) -> None:
    for i in range(count):
        harness.publish(name, b"%d" % i)
    harness.settle_down()


# -- which one, and what it says -----------------------------------------------------------------------------


def test_the_highest_priority_counts_then_the_name() -> None:
    low, high = made("^a", name="z"), made("b$", name="y", priority=7)
    same, queues = made("^a", name="m"), made("^a", name="a", apply_to="streams", priority=9)
    found = [first_that_fits([low, high, same, queues], queue_kinds({}), name) for name in ("a", "ab", "b", "c")]
    assert found == [same, high, high, None]
    assert first_that_fits([low, queues], queue_kinds({"x-queue-type": "stream"}), "a") is queues
    assert first_that_fits([made("^a", apply_to="exchanges")], queue_kinds({}), "a") is None


@given(arguments=SETTINGS, policies=st.lists(SETTINGS, max_size=2), kind=KINDS)
def test_what_a_queue_has_is_always_what_a_queue_can_have(
    arguments: dict[str, Any], policies: list[dict[str, Any]], kind: dict[str, str]
) -> None:
    """Arguments before the policy; of limits the smallest; nothing that this queue, or arguments like these, would be refused for."""

    def valid(settings: dict[str, Any], more: dict[str, str]) -> bool:
        try:
            read_settings({"x-" + key: value for key, value in settings.items()} | more)
        except ValueError:
            return False
        return True

    if not valid(arguments, kind) or not all(valid(p, {"x-dead-letter-exchange": ""}) for p in policies):
        return
    own = {"x-" + key: value for key, value in arguments.items()} | kind
    merged = own
    for one in policies:
        merged = with_policy(merged, one)
    read_settings(merged)
    assert {name: merged[name] for name in own if name[2:] not in (*SMALLER_COUNTS, "max-age")} == {
        name: value for name, value in own.items() if name[2:] not in (*SMALLER_COUNTS, "max-age")
    }
    if kind.get("x-queue-type") != "stream":
        for key in SMALLER_COUNTS:
            said = [settings[key] for settings in (arguments, *policies) if key in settings]
            assert merged.get("x-" + key) == (min(said) if said else None)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"definition": {"max-length": 1}}, "pattern is missing"),
        ({"pattern": "(", "definition": {"max-length": 1}}, "cannot be a pattern"),
        ({"pattern": "x" * (PATTERN_MAX + 1), "definition": {"max-length": 1}}, "at most 8192 bytes"),
        ({"pattern": "x"}, "definition is missing"),
        ({"pattern": "x", "definition": {}}, "definition is missing"),
        ({"pattern": "x", "definition": {"max-lenght": 1}}, "'max-lenght' is no setting of policies"),
        ({"pattern": "x", "definition": {"max-priority": 1}}, "'max-priority' is no setting"),
        ({"pattern": "x", "definition": {"max-length": -1}}, "max-length: -1 is not between"),
        ({"pattern": "x", "definition": {"max-length": None}}, "max-length: there is no value"),
        ({"pattern": "x", "definition": {"max-length": 1.5}}, "max-length: expected an integer"),
        ({"pattern": "x", "definition": {"overflow": "spill"}}, "overflow: 'spill' is none of"),
        ({"pattern": "x", "definition": {"on-alarm": "panic"}}, "on-alarm: 'panic' is none of"),
        ({"pattern": "x", "definition": {"max-age": "7 days"}}, "max-age: expected a number and one of the units"),
        ({"pattern": "x", "definition": {"alternate-exchange": 1}}, "alternate-exchange: expected the name"),
        ({"pattern": "x", "definition": {"alternate-exchange": "\ud800"}}, "is not UTF-8"),
        ({"pattern": "x", "definition": {"dead-letter-exchange": "\ud800"}}, "is not UTF-8"),
        ({"pattern": "x", "definition": {"retry-delay-max": 1}}, "retry-delay-max: it needs"),
        ({"pattern": "x", "definition": {"max-length": 1}, "apply-to": "all of it"}, "apply-to 'all of it' is none of"),
        ({"pattern": "x", "definition": {"max-length": 1}, "priority": "high"}, "priority must be an integer"),
    ],
)
def test_what_is_wrong_is_said(value: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        policy("p", value)
    assert why in str(refused.value)


OPERATORS = {
    "message-ttl": 1,
    "expires": 1,
    "max-length": 1,
    "max-length-bytes": 1,
    "delivery-limit": -1,
    "consumer-timeout": 0,
    "overflow": "reject-publish",
    "delayed-retry-type": "all",
    "delayed-retry-min": 1,
    "delayed-retry-max": 2,
    "max-in-memory-length": 1,
    "max-in-memory-bytes": 1,
    "queue-version": 2,
    "target-group-size": 3,
    "ha-mode": "all",
}


def test_an_operator_policy_takes_what_rabbitmqs_takes() -> None:
    made = policy("p", {"pattern": "", "definition": OPERATORS}, operator=True)
    assert made.definition == OPERATORS


def test_what_an_operator_policy_says_counts_before_a_policy() -> None:
    users = made(
        definition={"overflow": "drop-head", "retry-delay-min": 5, "delivery-limit": -1, "consumer-timeout": 0}
    )
    operators = {"overflow": "reject-publish", "delayed-retry-type": "failed", "delayed-retry-min": 7}
    limits = {"delivery-limit": 9, "consumer-timeout": 70}
    assert in_effect(users, made(definition={**operators, **limits})) == {**operators, **limits}


def test_a_limit_of_minus_one_is_none() -> None:
    settings = read_settings(for_queue({"x-delivery-limit": -1}, None, None))
    assert settings.delivery_limit == -1
    assert for_queue({"x-delivery-limit": -1}, made(definition={"delivery-limit": 4}), None)["x-delivery-limit"] == 4
    assert for_queue({"x-delivery-limit": 3}, made(definition={"delivery-limit": -1}), None)["x-delivery-limit"] == 3


def test_what_means_nothing_on_one_node_is_kept_and_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    harness = BrokerHarness()
    definition = {"max-length": 5, "ha-mode": "all", "queue-leader-locator": "balanced"}
    for name in "ab":
        harness.broker.vhosts["/"].set_policy(POLICY, policy(name, {"pattern": "", "definition": definition}))
    assert harness.broker.vhosts["/"].policies["a"].value()["definition"] == definition
    assert in_effect(harness.broker.vhosts["/"].policies["a"], None) == {"max-length": 5}
    assert [record.getMessage().split(": ")[1].split()[0] for record in caplog.records] == [
        "'ha-mode'",
        "'queue-leader-locator'",
    ]


def test_operators_limit_and_nothing_else() -> None:
    with pytest.raises(InvalidPolicy, match="'max-age' is no setting of operator policies"):
        policy("p", {"pattern": "", "definition": {"max-age": "1D"}}, operator=True)
    users, operator = (
        made(definition={"max-length": 10, "overflow": "reject-publish"}),
        made(definition={"max-length": 7}),
    )
    assert in_effect(users, operator) == {"max-length": 7, "overflow": "reject-publish"}
    assert for_queue({"x-max-length": 9}, users, operator) == {"x-max-length": 7, "x-overflow": "reject-publish"}
    assert in_effect(None, None) == {}


# -- queues and exchanges that are there ---------------------------------------------------------------------


def test_a_limit_takes_hold_and_lets_go(harness: BrokerHarness) -> None:
    """The oldest leave; without the policy there is no limit."""
    queue = harness.declare("q")
    fill(harness, "q", 10)
    settle(harness, {"max-length": 3})
    assert queue.ready == 3 and queue.read(queue.cursor)[2] == b"7"  # type: ignore[index]
    settle(harness, {"max-length": 4, "overflow": "reject-publish"})
    fill(harness, "q", 2)
    assert queue.ready == 4
    vhost(harness).clear_policy(POLICY, "p")
    fill(harness, "q", 5)
    assert queue.ready == 9


def test_very_many_leave_in_several_turns_and_none_is_lost_on_the_way(harness: BrokerHarness) -> None:
    """X4: they are dead-lettered; no turn moves more than it may."""
    queue, dead = harness.declare("q"), harness.declare("dead")
    count = 2 * LEAVING_PER_TURN + 100
    for i in range(count):
        harness.publish("q", b"%d" % i)
    harness.settle_down()
    definition = {"max-length": 10, "dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    vhost(harness).set_policy(POLICY, made("^q$", definition))
    harness.turn()
    assert queue.ready >= count - LEAVING_PER_TURN - 1
    for _ in range(1000):
        harness.broker.tick()
        harness.settle_down()
        if dead.ready == count - 10:
            break
    assert (queue.ready, queue.messages, dead.ready) == (10, 10, count - 10)


def test_new_queues_and_restarts_have_it(harness: BrokerHarness) -> None:
    """D2, P4: it is there again after a restart and after a power cut, before the queue's messages are."""
    settle(harness, {"max-length": 3}, pattern="^lim")
    settle(harness, {"max-length": 2}, OPERATOR_POLICY, pattern="it$", name="o")
    harness.declare("limit")
    harness.declare("free")
    for how in (harness.restart, lambda: harness.cut(Random(1))):
        for name in ("limit", "free"):
            fill(harness, name, 5)
        how()
        queue = harness.queue("limit")
        assert queue.ready == 2 and queue.policy is not None and queue.policy.name == "p"
        assert queue.operator_policy is not None and queue.operator_policy.name == "o"
        assert harness.queue("free").policy is None
    assert harness.queue("free").ready == 10


def test_it_goes_with_its_virtual_host(harness: BrokerHarness) -> None:
    harness.broker.add_vhost("v").set_policy(POLICY, made())
    harness.settle_down()
    harness.broker.delete_vhost("v")
    harness.settle_down()
    harness.broker.add_vhost("v")
    harness.restart()
    assert harness.broker.vhosts["v"].policies == {}


def test_time_to_live_for_what_comes_from_now_on(harness: BrokerHarness) -> None:
    queue = harness.declare("q")
    fill(harness, "q", 2)
    settle(harness, {"message-ttl": 1000})
    fill(harness, "q", 3)
    vhost(harness).clear_policy(POLICY, "p")
    fill(harness, "q", 1)
    harness.clock.advance(2)
    queue.mark_dirty()
    harness.settle_down()
    assert queue.ready == 6, "only the head is looked at"
    queue.settle_until(2)
    harness.settle_down()
    assert queue.ready == 1


def test_dead_letters_without_an_exchange_any_more_are_what_they_would_have_been(harness: BrokerHarness) -> None:
    """A7: parked ones of a policy that has gone are rejected for good; nothing goes back to the queue by its own name."""
    queue = harness.declare("q")
    settle(harness, {"dead-letter-exchange": "nowhere"})
    fill(harness, "q", 3)
    queue.reject(harness.take("q")[0].offset, 3)
    harness.settle_down()
    assert len(queue.parked) == 3
    vhost(harness).clear_policy(POLICY, "p")
    for _ in range(5):
        harness.clock.advance(2)
        harness.broker.tick()
        harness.settle_down()
    assert queue.messages == 0
    harness.restart()
    assert harness.queue("q").messages == 0


def parked_at_a_full_queue(harness: BrokerHarness) -> tuple[WorkQueue, WorkQueue]:
    """Two of six dead letters have found room."""
    queue, dead = harness.declare("q"), harness.declare("dead")
    settle(harness, {"max-length": 2, "overflow": "reject-publish"}, pattern="^dead$", name="dead")
    settle(harness, {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}, pattern="^q$")
    fill(harness, "q", 6)
    queue.reject(harness.take("q")[0].offset, 6)
    harness.settle_down()
    assert (len(queue.parked), dead.ready) == (4, 2)
    return queue, dead


def pass_time(harness: BrokerHarness, seconds: int) -> None:
    for _ in range(seconds):
        harness.clock.advance(1)
        harness.broker.tick()
        harness.settle_down()


def test_dead_letters_go_on_when_the_full_queue_drops_its_oldest_from_now_on(harness: BrokerHarness) -> None:
    """X4: they waited for room that such a queue has always, or never."""
    queue, dead = parked_at_a_full_queue(harness)
    settle(harness, {"max-length": 2}, pattern="^dead$", name="dead")
    pass_time(harness, 10)
    assert (queue.messages, dead.ready, harness.bodies("dead")) == (0, 2, [b"4", b"5"])


def test_dead_letters_that_wait_for_a_full_queue_go_to_another(harness: BrokerHarness) -> None:
    """X4: the policy says so, and there is no room where they were to go."""
    queue, dead = parked_at_a_full_queue(harness)
    harness.declare("other")
    settle(harness, {"dead-letter-exchange": "", "dead-letter-routing-key": "other"}, pattern="^q$")
    pass_time(harness, 10)
    assert (queue.messages, dead.ready, harness.bodies("other")) == (0, 2, [b"2", b"3", b"4", b"5"])


def test_dead_letters_that_wait_for_a_full_queue_go_with_their_exchange(harness: BrokerHarness) -> None:
    """A7: they are rejected for good, whether there is room or not."""
    queue, dead = parked_at_a_full_queue(harness)
    vhost(harness).clear_policy(POLICY, "p")
    pass_time(harness, 10)
    assert (queue.messages, dead.ready) == (0, 2)
    harness.restart()
    assert (harness.queue("q").messages, harness.queue("dead").ready) == (0, 2)


def test_unused_queues_expire_from_now_on(harness: BrokerHarness) -> None:
    harness.declare("q")
    harness.clock.advance(3600)
    settle(harness, {"expires": 10_000})
    harness.clock.advance(9)
    harness.broker.tick()
    assert "q" in vhost(harness).queues
    harness.clock.advance(2)
    harness.broker.tick()
    assert "q" not in vhost(harness).queues
    harness.declare("r")
    vhost(harness).clear_policy(POLICY, "p")
    harness.clock.advance(11)
    harness.broker.tick()
    assert "r" in vhost(harness).queues


def test_delivery_limit_and_retry_delays(harness: BrokerHarness) -> None:
    """A8, A15."""
    queue = harness.declare("q")
    settle(harness, {"delivery-limit": 1, "retry-delay-min": 1000})
    assert queue.delivery_limit == 1
    fill(harness, "q", 1)
    queue.retry(harness.take("q")[0].offset, 1, 1)
    harness.settle_down()
    assert len(queue.retries.delays) == 1 and queue.ready == 0
    harness.clock.advance(3)
    harness.broker.tick()
    harness.settle_down()
    queue.requeue(harness.take("q")[0].offset, 1, 1)
    harness.settle_down()
    assert queue.messages == 0, "it has had its two deliveries"


def test_an_alternate_exchange(harness: BrokerHarness) -> None:
    """The argument counts before the policy; the default exchange has none."""
    own = vhost(harness).declare_exchange("own", "direct", True, False, False, {"alternate-exchange": "amq.fanout"})
    plain = vhost(harness).declare_exchange("plain", "direct", True, False, False, {})
    settle(harness, {"alternate-exchange": "amq.topic"}, apply_to="exchanges")
    later = vhost(harness).declare_exchange("later", "direct", True, False, False, {})
    assert (own.alternate, plain.alternate, later.alternate) == ("amq.fanout", "amq.topic", "amq.topic")
    assert vhost(harness).exchanges[""].alternate is None
    harness.restart()
    assert vhost(harness).exchanges["plain"].alternate == "amq.topic"
    vhost(harness).clear_policy(POLICY, "p")
    assert vhost(harness).exchanges["plain"].alternate is None


def test_a_stream_keeps_less(harness: BrokerHarness) -> None:
    """Q: retention by a policy; settings that a stream cannot have pass it by."""
    stream = harness.declare("s", x_queue_type="stream", x_stream_max_segment_size_bytes=1)
    for i in range(6):
        harness.publish("s", b"%d" % i * 40_000)
        harness.settle_down()
    before = stream.ready
    settle(harness, {"max-length": 2, "message-ttl": 1, "overflow": "reject-publish"})
    for _ in range(5):
        harness.settle_down()
    assert before == 6 and stream.ready < 6
    assert all(key in QUEUE_POLICY for key in ("message-ttl", "overflow")) and not stream.limited


def test_the_broker_starts_with_a_policy_that_it_does_not_understand(
    harness: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a newer one: it is passed over, with a line in the log; the queue is there."""
    harness.declare("q")
    harness.broker.define(
        POLICY, ("/", "new"), {"pattern": "", "definition": {"warp": 9}, "apply-to": "all", "priority": 0}
    )
    harness.restart()
    assert harness.queue("q").policy is None
    assert "policy 'new' of vhost '/' is passed over: 'warp' is no setting of policies" in caplog.text


def test_a_queue_is_there_again_without_an_argument_that_nobody_takes_any_more(
    harness: BrokerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """P4: its messages, its other arguments and its policy are."""
    queue = harness.declare("q")
    fill(harness, "q", 1)
    arguments = {"x-max-length": 9, "x-consumer-timeout": -1, "x-retry-delay-max": 5}
    value = {"id": queue.log.queue_id, "auto_delete": False, "arguments": arguments}
    harness.broker.define("queue", ("/", "q"), value)
    settle(harness, {"delivery-limit": 3})
    harness.restart()
    found = harness.queue("q")
    assert (found.ready, found.max_length, found.consumer_timeout_ms, found.delivery_limit) == (1, 9, -1, 3)
    told = "queue 'q' in vhost '/' is there without arguments that it cannot have: x-consumer-timeout=-1, x-retry-delay-max=5"
    assert told in caplog.text


@pytest.fixture
def harness() -> BrokerHarness:
    return BrokerHarness()
