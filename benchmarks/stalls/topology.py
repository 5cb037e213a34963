"""Rows: queues, exchanges and bindings that come and go, and routes through many of them."""

from __future__ import annotations

import itertools
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


@row("an administrator's permission and policy with a regular expression that doubles per letter")
def expressions(site: Site) -> Steps:
    peer = site.peer()
    peer.queue("a" * 30 + "!")
    yield
    body = {"pattern": "^(a+)+$", "definition": {"max-length": 10}, "apply-to": "queues"}
    site.http("PUT", "policies/%2f/expressions", body)
    site.http("DELETE", "policies/%2f/expressions")
