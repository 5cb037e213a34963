"""Rows: queues, exchanges and bindings that come and go, and routes through many of them."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from benchmarks.stalls.peer import message
from benchmarks.stalls.rows import Site, Steps, row
from kvitto.wire import methods as m

PAGE = 512 * 1024


@row("a connection with 2,000 exclusive queues ends in a virtual host with 20,000 exchanges")
def exclusive_queues(site: Site) -> Steps:
    other, peer = site.peer(), site.peer()
    names = [f"exclusive_queues.{number}" for number in range(site.count(20_000))]
    other.all((m.ExchangeDeclare(name, "direct") for name in names), m.ExchangeDeclareOk)
    names = [f"exclusive_queues.{number}" for number in range(site.count(2000))]
    peer.all((m.QueueDeclare(name, exclusive=True) for name in names), m.QueueDeclareOk)
    yield
    peer.close()
    other.ask(m.QueueDeclare("exclusive_queues", durable=True), m.QueueDeclareOk)


@row("10 messages with 1,000 CC keys to a fanout with 2,000 exchanges behind it")
def copies_through_fanouts(site: Site) -> Steps:
    peer = site.peer()
    names = [f"copies_through_fanouts.{number}" for number in range(site.count(2000))]
    peer.all((m.ExchangeDeclare(name, "fanout") for name in ["copies_through_fanouts", *names]), m.ExchangeDeclareOk)
    peer.all((m.ExchangeBind(name, "copies_through_fanouts") for name in names), m.ExchangeBindOk)
    keys = [str(number) for number in range(site.count(1000))]
    one = message(b"", "", "copies_through_fanouts", headers={"CC": keys})
    yield
    for _ in range(10):
        refused = site.peer()
        refused.send(one)
        refused.close()
    peer.ask(m.ExchangeDeclare("amq.fanout", passive=True), m.ExchangeDeclareOk)


@row("a binding between 20,000 bound exchanges is taken away and made again, 2,000 times")
def binding_churn(site: Site) -> Steps:
    peer = site.peer()
    names = [f"binding_churn.{number}" for number in range(site.count(20_000))]
    peer.all((m.ExchangeDeclare(name, "fanout") for name in names), m.ExchangeDeclareOk)
    pairs = list(itertools.pairwise(names))
    peer.all((m.ExchangeBind(to, source) for source, to in pairs), m.ExchangeBindOk)
    yield
    for source, to in pairs[: site.count(2000)]:
        peer.say(m.ExchangeUnbind(to, source), m.ExchangeBind(to, source))
    peer.wait(m.ExchangeBindOk, site.count(2000))


@row("tables of 128 KiB are headers that are compared and hashed, and arguments of bindings")
def large_tables(site: Site) -> Steps:
    """Each of the worst kinds: a value in each byte, objects that cost most to make, and names in no order."""
    size = site.count(130_000)
    names = [f"{number * 7919 % 1_000_003:x}" for number in range(size // 8)]
    tables: list[Any] = [
        [None] * size,
        [True] * (size // 2),
        [Decimal("-1.5")] * (size // 6),
        [datetime(2020, 2, 2, tzinfo=UTC)] * (size // 9),
        [{}] * (size // 5),
        [b"\xff"] * (size // 6),
        dict.fromkeys(names),
    ]
    peer = site.peer()
    peer.queues([f"large_tables.{number}" for number in range(3)], durable=False)
    peer.ask(m.ExchangeDeclare("large_tables.headers", "headers"), m.ExchangeDeclareOk)
    by_header = m.ExchangeDeclare("large_tables.hash", "x-consistent-hash", arguments={"hash-header": "h"})
    peer.ask(by_header, m.ExchangeDeclareOk)
    binds = [m.QueueBind(f"large_tables.{number}", "large_tables.hash", "1") for number in range(3)]
    peer.all(binds, m.QueueBindOk)
    published = [
        message(b"", "", exchange, headers={"h": table})
        for table in tables
        for exchange in ("large_tables.headers", "large_tables.hash")
    ]
    binds = [m.QueueBind("large_tables.0", "large_tables.headers", arguments={"h": table}) for table in tables]
    yield
    peer.all(binds, m.QueueBindOk)
    for _ in range(5):
        peer.send(b"".join(published))
    peer.ask(m.QueueBind("large_tables.0", "large_tables.hash", "1"), m.QueueBindOk)


@row("a page of publishes to a headers exchange with 900 bindings of 1,000 arguments each")
def headers_exchange(site: Site) -> Steps:
    peer = site.peer()
    peer.queue("headers_exchange", durable=False)
    peer.ask(m.ExchangeDeclare("headers_exchange", "headers"), m.ExchangeDeclareOk)
    table: dict[str, Any]
    for number in range(site.count(900)):
        table = {f"argument-{place}": number for place in range(1000)} | {"x-match": "all"}
        peer.ask(m.QueueBind("headers_exchange", "headers_exchange", "", arguments=table), m.QueueBindOk)
    table = {f"argument-{place}": site.count(900) for place in range(1000)}
    one = message(b"", "", "headers_exchange", headers=table)
    yield
    peer.send(one * (site.count(PAGE, PAGE // 8) // len(one)))
    peer.ready("headers_exchange")


@row("a page of publishes to a topic exchange at its limit")
def topic_exchange(site: Site) -> Steps:
    peer = site.peer()
    peer.queue("topic_exchange", durable=False)
    peer.ask(m.ExchangeDeclare("topic_exchange", "topic"), m.ExchangeDeclareOk)
    made = 0
    patterns = (f"*.a.#.*.{number}" for number in range(site.count(100_000)))
    while made < site.count(7000):
        part = [m.QueueBind("topic_exchange", "topic_exchange", next(patterns)) for _ in range(20)]
        before = len(peer.closes)
        peer.say(*part)
        try:
            peer.wait(m.QueueBindOk, 20)
        except Exception:  # noqa: BLE001 - the limit is reached: what is bound is bound
            assert len(peer.closes) > before
            break
        made += 20
    peer = site.peer()
    key = ".".join(["a"] * 100)
    page = b"".join(message(b"", f"{key}.{number}", "topic_exchange") for number in range(site.count(PAGE // 300, 300)))
    yield
    peer.send(page)
    peer.ready("topic_exchange")


@row("a queue with 100,000 bindings is deleted, then an exchange with 100,000")
def bound_queue_deleted(site: Site) -> Steps:
    peer, count = site.peer(), site.count(100_000)
    for name in ("bound_queue_deleted", "bound_queue_deleted.2"):
        peer.queue(name, durable=False)
        peer.ask(m.ExchangeDeclare(name, "direct"), m.ExchangeDeclareOk)
        peer.all((m.QueueBind(name, name, str(number)) for number in range(count)), m.QueueBindOk)
    yield
    peer.ask(m.QueueDelete("bound_queue_deleted"), m.QueueDeleteOk)
    peer.ask(m.ExchangeDelete("bound_queue_deleted.2"), m.ExchangeDeleteOk)


@row("20,000 durable bindings stay while 50 others are made and taken away 800 times each: their log is written anew")
def log_written_anew(site: Site) -> Steps:
    peer, churn = site.peer(), site.count(800)
    peer.queue("log_written_anew")
    stay = (m.QueueBind("log_written_anew", "amq.direct", f"stays.{number}") for number in range(site.count(20_000)))
    peer.all(stay, m.QueueBindOk)
    yield
    peers = [site.peer() for _ in range(50)]
    for number, other in enumerate(peers):
        bind = m.ExchangeBind("amq.topic", "amq.fanout", f"k{number}", no_wait=True)
        unbind = m.ExchangeUnbind("amq.topic", "amq.fanout", f"k{number}", no_wait=True)
        other.say(*(bind, unbind) * churn)
    for other in peers:
        other.ready("log_written_anew")
    site.watch()


@row("publishes with ever new keys to an exchange with 100,000 bindings")
def new_keys(site: Site) -> Steps:
    peer, count = site.peer(), site.count(100_000)
    peer.queue("new_keys", durable=False)
    peer.ask(m.ExchangeDeclare("new_keys", "direct"), m.ExchangeDeclareOk)
    peer.all((m.QueueBind("new_keys", "new_keys", str(number)) for number in range(count)), m.QueueBindOk)
    page = b"".join(message(b"", str(number), "new_keys") for number in range(2 * count))
    yield
    peer.send(page)
    peer.ready("new_keys")


@row("a policy comes and goes over 9,000 queues")
def policy(site: Site) -> Steps:
    peer = site.peer()
    peer.queues([f"policy.{number}" for number in range(site.count(9000))], durable=False)
    yield
    body = {"pattern": "^policy", "definition": {"max-length": 10}, "apply-to": "queues"}
    assert site.http("PUT", "policies/%2f/stalls", body)[0] in (201, 204)
    assert site.http("DELETE", "policies/%2f/stalls")[0] == 204


@row("a policy with delays comes and goes over 3,000 exchanges, and once more")
def delays_by_policy(site: Site) -> Steps:
    peer = site.peer()
    names = [f"delays_by_policy.{number}" for number in range(site.count(3000))]
    peer.all((m.ExchangeDeclare(name, "fanout", durable=True) for name in names), m.ExchangeDeclareOk)
    yield
    body = {"pattern": "^delays_by_policy", "definition": {"delayed-message": True}, "apply-to": "exchanges"}
    for _ in range(2):
        assert site.http("PUT", "policies/%2f/delays_by_policy", body)[0] in (201, 204)
        assert site.http("DELETE", "policies/%2f/delays_by_policy")[0] == 204


@row("an administrator's permission and policy with a regular expression that doubles per letter")
def expressions(site: Site) -> Steps:
    peer = site.peer()
    peer.queue("a" * 30 + "!")
    yield
    body = {"pattern": "^(a+)+$", "definition": {"max-length": 10}, "apply-to": "queues"}
    site.http("PUT", "policies/%2f/expressions", body)
    site.http("DELETE", "policies/%2f/expressions")


@row("one message each for 3,000 queues that have no files yet, in one write, twice")
def first_messages(site: Site) -> Steps:
    peer = site.peer()
    names = [f"first_messages.{number}" for number in range(site.count(3000))]
    peer.all((m.QueueDeclare(name, durable=True) for name in names), m.QueueDeclareOk)
    peer.ask(m.ConfirmSelect(), m.ConfirmSelectOk)
    page = b"".join(message(b"x", name) for name in names)
    yield
    peer.send(page * 2)
    site.watch()
    site.wait(lambda: all(peer.ready(name) == 2 for name in names[:: max(len(names) // 10, 1)]), "the messages")


@row("one message each for 9,000 queues that have files, in one write, and one through a fanout to all of them")
def many_queues(site: Site) -> Steps:
    peer = site.peer()
    names = [f"many_queues.{number}" for number in range(site.count(9000))]
    peer.queues(names)
    peer.ask(m.ExchangeDeclare("many_queues", "fanout", durable=True), m.ExchangeDeclareOk)
    peer.all((m.QueueBind(name, "many_queues") for name in names), m.QueueBindOk)
    peer.ask(m.ConfirmSelect(), m.ConfirmSelectOk)
    peer.send(message(b"x", "", "many_queues"))
    peer.settled(1)
    yield
    peer.send(b"".join(message(b"x", name) for name in names))
    peer.settled(len(names))
    peer.send(message(b"x", "", "many_queues"))
    peer.settled(1)


@row("one delayed message each for 3,000 exchanges, in one write, all due at once")
def first_delays(site: Site) -> Steps:
    peer = site.peer()
    names = [f"first_delays.{number}" for number in range(site.count(3000))]
    delays: dict[str, Any] = {"x-delayed-type": "fanout"}
    declared = (m.ExchangeDeclare(name, "x-delayed-message", durable=True, arguments=delays) for name in names)
    peer.all(declared, m.ExchangeDeclareOk)
    yield
    peer.send(b"".join(message(b"x", "", name, headers={"x-delay": 1000}) for name in names))
    site.watch()


@row("20 queues are bound to an x-recent-history exchange with a message of 30 MiB")
def histories(site: Site) -> Steps:
    peer = site.peer()
    peer.ask(m.ExchangeDeclare("histories", "x-recent-history"), m.ExchangeDeclareOk)
    names = [f"histories.{number}" for number in range(20)]
    peer.queues(names)
    peer.ask(m.ConfirmSelect(), m.ConfirmSelectOk)
    peer.send(message(bytes(site.count(30 << 20)), "", "histories"))
    peer.settled(1)
    yield
    peer.all((m.QueueBind(name, "histories") for name in names), m.QueueBindOk)
    site.wait(lambda: all(peer.ready(name) == 1 for name in names), "the histories")


@row("100,000 messages with a time to live, each with a key of its own, pass an exchange that deduplicates")
def passages(site: Site) -> Steps:
    peer, count = site.peer(), site.count(100_000)
    arguments: dict[str, Any] = {"x-message-deduplication": True, "x-cache-size": 1_000_000}
    peer.queue("passages")
    peer.ask(m.ExchangeDeclare("passages", "fanout", durable=True, arguments=arguments), m.ExchangeDeclareOk)
    peer.ask(m.QueueBind("passages", "passages"), m.QueueBindOk)
    page = b"".join(
        message(b"x", f"{n}", "passages", headers={"x-deduplication-header": n}, expiration="3600000")
        for n in range(count)
    )
    yield
    peer.send(page)
    site.wait(lambda: peer.ready("passages") == count, "the messages")


@row("messages of 100 KB pass an exchange that deduplicates to 2,000 queues")
def wide_passage(site: Site) -> Steps:
    peer = site.peer()
    names = [f"wide_passage.{number}" for number in range(site.count(2000))]
    arguments: dict[str, Any] = {"x-message-deduplication": True}
    peer.queues(names)
    peer.ask(m.ExchangeDeclare("wide_passage", "fanout", durable=True, arguments=arguments), m.ExchangeDeclareOk)
    peer.all((m.QueueBind(name, "wide_passage") for name in names), m.QueueBindOk)
    yield
    for n in range(3):
        peer.send(message(bytes(100_000), "", "wide_passage", headers={"x-deduplication-header": n}))
    site.wait(lambda: all(peer.ready(name) == 3 for name in names[:: max(len(names) // 10, 1)]), "the messages")


@row("a destination is bound to an x-modulus-hash exchange with 50,000 others, and unbound, with publishes between")
def modulus_hash_churn(site: Site) -> Steps:
    peer = site.peer()
    names = [f"modulus_hash_churn.{number}" for number in range(site.count(50_000))]
    peer.ask(m.ExchangeDeclare("modulus_hash_churn", "x-modulus-hash"), m.ExchangeDeclareOk)
    peer.all((m.ExchangeDeclare(name, "fanout") for name in names), m.ExchangeDeclareOk)
    peer.all((m.ExchangeBind(name, "modulus_hash_churn") for name in names[1:]), m.ExchangeBindOk)
    publish = message(b"x", "key", "modulus_hash_churn")
    yield
    for _ in range(site.count(300)):
        peer.say(m.ExchangeBind(names[0], "modulus_hash_churn"))
        peer.send(publish)
        peer.say(m.ExchangeUnbind(names[0], "modulus_hash_churn"))
        peer.send(publish)
    peer.wait(m.ExchangeUnbindOk, site.count(300))
