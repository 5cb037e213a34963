"""`kvitto migrate` between brokers as processes. `python -m tests.migrate` is the long form, with kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pytest

import kvitto
from kvitto.cli.management import IMPORT_S, Management
from kvitto.cli.migrate import moving
from kvitto.cli.migrate.brokers import Broker
from kvitto.cli.migrate.moving import Mover
from kvitto.cli.migrate.plan import Item, Plan, post_definitions
from kvitto.client import Connection
from kvitto.client.uri import parse_uri
from kvitto.shovel.carry import Pace
from kvitto.torture.nodes import Node
from kvitto.wire import methods as m
from kvitto.wire.properties import Properties
from kvitto.wire.tables import Table
from tests.alike.conftest import answers
from tests.http.api import Http
from tests.migrate.trial import Steady, Trial, amqp_of, api_of, declare, drain, fill, node
from tests.support.interrupts import heed_interrupts
from tests.support.wait import wait_until

HEADERS: Table = {
    "CC": ["other"],
    "long": 1 << 40,
    "nested": {"list": [1, "two", None]},
    "x-death": [{"count": 3, "queue": "w"}],
}
EVERYTHING = Properties(
    content_type="a/b", content_encoding="c", headers=HEADERS, delivery_mode=2, priority=7, correlation_id="d",
    reply_to="e", expiration="600000", message_id="f", timestamp=1, type="g", user_id="guest", app_id="h",
)  # fmt: skip


def migrate(
    source: Node, target: Node, *options: str, code: int = 0, vhosts: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """Run the command, and return its report. `vhosts` are the paths of both URIs."""
    uris = amqp_of(source) + vhosts.get("source", ""), amqp_of(target) + vhosts.get("target", "")
    command = [sys.executable, "-m", "kvitto.cli.main", "migrate", uris[0], "--to", uris[1], "--json"]
    apis = ["--source-api", api_of(source), "--target-api", api_of(target)]
    done = subprocess.run([*command, *apis, *options], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout) if code in (0, 1) else done.stderr


def queue_of(report: Any, name: str) -> Any:
    return next(item for item in report["queues"] if item["name"] == name)


def publish(uri: str, queue: str, *bodies: bytes, exchange: str = "", properties: Properties | None = None) -> None:
    with Connection(uri) as connection:
        channel = connection.channel()
        channel.confirm_select()
        for body in bodies:
            channel.publish(body, exchange, queue, properties or Properties(delivery_mode=2), mandatory=True)
        assert channel.wait_for_confirms(10.0)


def declare_with(uri: str, queue: str, arguments: Table, *, exclusive: bool = False) -> Connection:
    """Declare a queue; the connection is returned for whoever needs it open."""
    connection = Connection(uri)
    declaring = m.QueueDeclare(queue, False, not exclusive, exclusive, False, False, arguments)
    connection.channel().call(declaring, m.QueueDeclareOk)
    return connection


@pytest.mark.parametrize("way", ["kvitto to kvitto", "kvitto to rabbitmq", "rabbitmq to kvitto"])
def test_a_message_arrives_with_everything_it_has(
    way: str, old: Node, new: Node, request: pytest.FixtureRequest
) -> None:
    rabbitmq = request.getfixturevalue("rabbitmq") if "rabbitmq" in way else old
    source, target = (rabbitmq, new) if way.startswith("rabbitmq") else (old, rabbitmq if rabbitmq is not old else new)
    for each in (source, target):
        declare(each.uri, ["whole", "other"])
    with Connection(source.uri) as connection:
        channel = connection.channel()
        channel.call(m.ExchangeDeclare("letters", "topic", False, True, False, False, False, {}), m.ExchangeDeclareOk)
        channel.call(m.QueueBind("whole", "letters", "a.#", False, {}), m.QueueBindOk)
    publish(source.uri, "a.b", b"body", exchange="letters", properties=EVERYTHING)
    report = migrate(source, target, "--skip-definitions", "--queues", "^whole$")
    assert queue_of(report, "whole")["moved"] == 1 and queue_of(report, "whole")["problem"] == ""
    assert any("begins anew" in note for note in queue_of(report, "whole")["notes"])
    with Connection(target.uri) as connection:
        channel = connection.channel()
        got = channel.get("whole", no_ack=True)
        assert got is not None and got.body == b"body" and got.routing_key == "a.b"
        assert got.properties == EVERYTHING
        assert channel.get("other", no_ack=True) is None  # the CC of the old broker is not routed again
    assert not list(drain(source.uri, "whole"))
    assert all(not item["name"].startswith("kvitto.migrate") for item in Http(api_of(target)).get("/api/exchanges"))


@pytest.mark.parametrize("way", ["kvitto to kvitto", "rabbitmq to kvitto"])
def test_what_came_by_the_default_exchange_comes_by_it_again(
    way: str, old: Node, new: Node, request: pytest.FixtureRequest
) -> None:
    """Celery sends a task again to the exchange of its delivery, and the exchange of a migration is gone by then."""
    source = request.getfixturevalue("rabbitmq") if way.startswith("rabbitmq") else old
    for each in (source, new):
        declare(each.uri, ["again", "copies"])
    with_copy = Properties(delivery_mode=2, headers={"CC": ["copies"]})
    for body, properties in ((b"1", None), (b"2", with_copy), (b"3", Properties(app_id="CC", delivery_mode=2))):
        publish(source.uri, "again", body, properties=properties)
    report = migrate(source, new, "--skip-definitions", "--queues", "^again$")
    assert queue_of(report, "again")["moved"] == 3 and queue_of(report, "again")["problem"] == ""
    with Connection(new.uri) as connection:
        channel = connection.channel()
        got = [channel.get("again", no_ack=True) for _ in range(3)]
        found = [(each.body, each.exchange, each.routing_key) for each in got if each is not None]
        assert found == [(b"1", "", "again"), (b"2", "kvitto.migrate.again", "again"), (b"3", "", "again")]
        assert channel.get("copies", no_ack=True) is None


@pytest.mark.parametrize("way", ["kvitto to kvitto", "rabbitmq to kvitto", "kvitto to rabbitmq"])
def test_an_exchange_that_leads_to_this_queue_only_is_kept(
    way: str, old: Node, new: Node, request: pytest.FixtureRequest
) -> None:
    """Celery's `retry` publishes to the exchange of the delivery, which has to be there after the migration."""
    source, target = (
        request.getfixturevalue("rabbitmq") if each == "rabbitmq" else kvitto_
        for each, kvitto_ in zip(way.split(" to "), (old, new), strict=True)
    )
    name = f"tasks {way}"
    bound = [
        ("alone", "direct", "k"),
        ("shared", "direct", "k"),
        ("literal", "topic", "a.b"),
        ("pattern", "topic", "a.#"),
    ]
    for each in (source, target):
        declare(each.uri, [name, "another"])
        with Connection(each.uri) as connection:
            channel = connection.channel()
            for exchange, type_, key in bound:
                channel.exchange_declare(f"{exchange} {way}", type_, durable=True)
                channel.queue_bind(name, f"{exchange} {way}", key)
            channel.queue_bind("another", f"shared {way}", "k")
    keys = [("alone", "k"), ("shared", "k"), ("literal", "a.b"), ("pattern", "a.c")]
    for exchange, key in keys:
        publish(source.uri, key, exchange.encode(), exchange=f"{exchange} {way}")
    for each in (source, target):
        list(drain_all(each.uri, "another"))
    report = migrate(source, target, "--skip-definitions", "--queues", f"^{name}$")
    assert queue_of(report, name)["moved"] == 4 and queue_of(report, name)["problem"] == ""
    got = [(each.exchange, each.routing_key) for each in drain_all(target.uri, name)]
    temporary = f"kvitto.migrate.{name}"
    assert got == [(f"alone {way}", "k"), (temporary, "k"), (f"literal {way}", "a.b"), (temporary, "a.c")]
    assert not list(drain_all(target.uri, "another"))


def drain_all(uri: str, queue: str) -> Iterator[Any]:
    """Yield the messages of a queue, and take them out."""
    with Connection(uri) as connection:
        channel = connection.channel()
        while (message := channel.get(queue, no_ack=True)) is not None:
            yield message


class Full(Steady):
    """A broker that blocks publishers from the beginning."""

    def _options(self) -> list[str]:
        return [*super()._options(), "--disk-free-limit", str(1 << 60)]


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Node]:
    made = Full(tmp_path / "full")
    try:
        made.start()
        wait_until(lambda: answers(api_of(made)))
        yield made
    finally:
        made.close()


PATIENT = """
import sys
from kvitto.cli import main
from kvitto.cli.migrate import moving
from kvitto.client.aio import link
moving.END_S = link.CLOSE_TIMEOUT_S = 1000.0
sys.exit(main.main())
"""
"""The command, which waits for ever when a connection does not end as it should."""


@contextlib.contextmanager
def waiting(old: Node, full: Node) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A `kvitto migrate` that waits for a broker which blocks publishers, and what it has said of that."""
    for each in (old, full):
        declare(each.uri, ["blocked"])
    fill(old.uri, ["blocked"], 10)
    command = [sys.executable, "-c", PATIENT, "migrate", amqp_of(old), "--to", amqp_of(full), "--skip-definitions"]
    options = ["--source-api", api_of(old), "--target-api", api_of(full), "--queues", "^blocked$"]
    process = subprocess.Popen(
        [*command, *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=heed_interrupts,  # noqa: PLW1509 - it takes no lock
    )
    with process:
        assert process.stderr is not None
        try:
            yield process, next(line for line in process.stderr if " waits, for " in line)
        finally:
            process.kill()
    back: list[int] = []
    wait_until(lambda: back.extend(drain(old.uri, "blocked")) or len(back) == 10)


def test_a_new_broker_that_blocks_publishers_is_named_at_once(old: Node, full: Node) -> None:
    with waiting(old, full) as (_, said):
        assert re.search(r"waits, for (600|59\d) s more at most: the target blocks publishers: ", said), said


def test_an_interrupt_does_not_wait_for_a_broker_that_blocks_publishers(old: Node, full: Node) -> None:
    """It reads nothing, so it answers neither the end of a channel nor that of the connection."""
    with waiting(old, full) as (process, _):
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 130 and "interrupted; run the same command again" in rest


def test_a_second_interrupt_ends_the_command_at_once(old: Node, full: Node) -> None:
    with waiting(old, full) as (process, _):
        old.pause()
        try:
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert "interrupted, closes its connections" in next(process.stderr)
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=60)
            assert process.returncode == 130 and "ended at once; run the same command again" in rest
        finally:
            old.resume()


def test_a_broker_that_stays_away_ends_the_run_and_every_queue_says_why(
    old: Node, new: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "PATIENCE_S", 0.3)
    source = Broker("amqp://127.0.0.1:1", parse_uri("amqp://127.0.0.1:1"), None, Management(api_of(old)))
    target = Broker(new.uri, parse_uri(new.uri), None, Management(api_of(new)))
    items = [Item("/", name, False, 1, 0, 0, 0, True) for name in ("one", "two")]
    waits: list[str] = []
    plan = Plan(source, target, items=items)
    mover = Mover(plan, Pace(), False, lambda item: None, lambda item, wait: waits.append(str(wait)))
    asyncio.run(mover.run())
    assert waits and "more at most" in waits[0]
    assert all("no progress for 0.3 s" in item.problem and item.state == "left" for item in items)


@pytest.mark.parametrize("kind", ["kvitto", "rabbitmq"])
def test_one_broker_under_two_addresses_is_refused(kind: str, old: Node, request: pytest.FixtureRequest) -> None:
    """Its messages went around for ever."""
    both = old if kind == "kvitto" else request.getfixturevalue("rabbitmq")
    one, other = (
        (amqp_of(both).replace("127.0.0.1", host), api_of(both).replace("127.0.0.1", host))
        for host in ("127.0.0.1", "localhost")
    )
    command = [sys.executable, "-m", "kvitto.cli.main", "migrate", one[0], "--to", other[0], "--dry-run"]
    apis = ["--source-api", one[1], "--target-api", other[1]]
    done = subprocess.run([*command, *apis], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "are the same, under two addresses" in done.stderr, done.stderr


def test_a_dry_run_changes_nothing(old: Node, new: Node) -> None:
    declare(old.uri, ["dry"])
    fill(old.uri, ["dry"], 10)
    before = Http(api_of(new)).get("/api/definitions")
    report = migrate(old, new, "--dry-run", "--queues", "^dry$")
    assert queue_of(report, "dry")["ready"] == 10 and report["new"]["queues"] >= 1
    assert Http(api_of(new)).get("/api/definitions") == before
    assert len(list(drain(old.uri, "dry"))) == 10


def test_the_order_is_kept_and_a_second_run_has_nothing_to_do(old: Node, new: Node) -> None:
    for each in (old, new):
        declare(each.uri, ["order"])
    fill(old.uri, ["order"], 5000)
    arguments = ("--skip-definitions", "--queues", "^order$")
    first = queue_of(migrate(old, new, *arguments), "order")
    assert (first["moved"], first["once"], first["after"]) == (5000, True, 5000)
    assert queue_of(migrate(old, new, *arguments), "order")["moved"] == 0
    assert list(drain(new.uri, "order")) == list(range(5000))


def test_exclusive_queues_unacked_messages_and_missing_queues_are_named(old: Node, new: Node) -> None:
    declare(old.uri, ["held", "missing"])
    declare(new.uri, ["held"])
    publish(old.uri, "held", b"0", b"1")
    publish(old.uri, "missing", b"0")
    with declare_with(old.uri, "mine", {}, exclusive=True), Connection(old.uri) as connection:
        channel = connection.channel()
        assert channel.get("held") is not None
        report = migrate(old, new, "--skip-definitions", "--queues", "held|missing|mine", code=1)
        assert "exclusive" in queue_of(report, "mine")["notes"][0]
        assert "1 message is unacked, without a consumer" in queue_of(report, "held")["notes"][0]
        assert queue_of(report, "held")["moved"] == 1 and not queue_of(report, "held")["once"]
        assert "no such queue" in queue_of(report, "missing")["problem"]
    assert queue_of(migrate(old, new, "--skip-definitions", "--queues", "^held$"), "held")["moved"] == 1
    assert sorted(drain(new.uri, "held")) == [0, 1]
    assert list(drain(old.uri, "missing")) == [0]


@pytest.mark.parametrize("way", ["kvitto", "rabbitmq"])
def test_a_stream_is_read_once_and_goes_on_with_what_is_new(
    way: str, old: Node, new: Node, request: pytest.FixtureRequest
) -> None:
    source = old if way == "kvitto" else request.getfixturevalue("rabbitmq")
    name = f"stream-{way}"
    for each in (source, new):
        declare_with(each.uri, name, {"x-queue-type": "stream"}).close()
    for start in (0, 300):
        publish(source.uri, name, *(b"%d" % n for n in range(start, start + 300)))
        report = queue_of(migrate(source, new, "--skip-definitions", "--queues", f"^{name}$"), name)
        assert (report["moved"], report["once"], report["problem"]) == (300, True, "")
    with kvitto.connect_sync(new.uri) as connection, connection.channel() as channel:
        seen = []
        for message in channel.queue(name, passive=True).consume(offset="first", timeout_s=2):
            message.ack()
            seen.append(int(message.body))
        assert seen == list(range(600))


def test_wrong_uris_and_passwords_are_told_in_a_sentence(old: Node, new: Node) -> None:
    assert "are the same" in migrate(old, old, code=2)
    api = api_of(old).replace("guest:guest", "guest:hushhush")
    command = [sys.executable, "-m", "kvitto.cli.main", "migrate", "amqp://guest:hushhush@127.0.0.1:1"]
    arguments = ["--to", amqp_of(new), "--source-api", api]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4 and done.stderr.startswith("kvitto migrate: not allowed") and "hush" not in done.stderr


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_between_kvittos_under_kills(tmp_path: Path) -> None:
    with node("kvitto", tmp_path / "a") as source, node("kvitto", tmp_path / "b") as target:
        outcome = Trial(source, target, 6000, 2, seed=1, rate=3000).run(5, (0.3, 0.8))
    assert (outcome.lost, outcome.doubled, outcome.disordered, outcome.left) == (0, 0, 0, 0)
    assert sum(outcome.kills.values()) >= 2


@pytest.mark.slow
def test_nothing_is_lost_on_the_way_from_rabbitmq_under_kills(rabbitmq: Node, tmp_path: Path) -> None:
    with node("kvitto", tmp_path / "b") as target:
        outcome = Trial(rabbitmq, target, 4000, 2, seed=2, rate=1000).run(3, (0.5, 1.0))
    assert (outcome.lost, outcome.left) == (0, 0)
    assert outcome.kills


def test_a_long_import_of_definitions_is_waited_for() -> None:
    """It takes more than the minute that is enough for other requests if there are very many."""

    class Api:
        times: ClassVar[list[float]] = []

        def upload(self, *_path: str, content: bytes, timeout_s: float) -> None:
            assert json.loads(content) == {"queues": []}
            self.times.append(timeout_s)

    api: Any = Api()
    target = Broker("amqp://", parse_uri("amqp://127.0.0.1"), None, api)
    post_definitions(Plan(target, target, {"queues": []}))
    assert Api.times == [IMPORT_S]
