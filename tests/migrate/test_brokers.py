"""The two brokers of `kvitto migrate`: their passwords, and management APIs that do not belong to them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvitto.cli.management import NOT_ALLOWED, USAGE, Failure, Management
from kvitto.cli.migrate.brokers import Broker, read_broker, take_name
from kvitto.torture.nodes import Node
from tests.http.api import Http
from tests.migrate.trial import amqp_of, api_of, declare, drain, fill
from tests.support.interrupts import heed_interrupts


def read(uri: str, url: str | None = None, file: Path | None = None, password: str = "") -> Broker:
    return read_broker("old", "source", uri, url, file, {"KVITTO_SOURCE_PASS": password})


def login(broker: Broker) -> tuple[str, str, str, str]:
    return broker.address.user, broker.address.password, broker.api.user, broker.api.password


def test_a_password_comes_from_the_uri_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "pass"
    file.write_text("p@:/#ü%\nsecond line\n")
    assert login(read("amqp://ops:given@there", password="x")) == ("ops", "given", "ops", "given")
    assert login(read("amqp://ops@there", file=file, password="x")) == ("ops", "p@:/#ü%", "ops", "p@:/#ü%")
    assert login(read("amqp://ops@[::1]:5/v", password="a b")) == ("ops", "a b", "ops", "a b")
    assert login(read("amqp://there", password="x")) == ("guest", "x", "guest", "x")
    assert login(read("amqp://ops@there")) == ("ops", "guest", "ops", "guest")
    whole = read("amqps://ops@[::1]:5/v?heartbeat=9", file=file)
    assert (whole.address.host, whole.address.port, whole.vhost, whole.address.heartbeat_s) == ("::1", 5, "v", 9)
    assert whole.api.where == "https://::1:15671" and "second" not in whole.uri


@pytest.mark.parametrize(
    "url", ["http://api:1", "http://ops@api:1", "http://ops:x@api:1", "api:1", "https://api:1/at@x"]
)
def test_an_api_without_a_login_gets_that_of_its_broker(url: str) -> None:
    broker = read("amqp://ops@there", url, password="x")
    assert (broker.api.user, broker.api.password) == ("ops", "x") and broker.api.where.endswith("://api:1")
    other = read("amqp://ops@there", "http://admin:y@api:1", password="x")
    assert login(other) == ("ops", "x", "admin", "y")


@pytest.mark.parametrize(
    ("uri", "content", "said"),
    [
        ("amqp://ops:given@there", b"x", "--source-pass-file: the URI has a password, too"),
        ("amqp://ops@there", b"\n", "the first line must have 1 to"),
        ("amqp://ops@there", b"\xff", "is not UTF-8"),
        ("amqp://ops@there", None, "No such file"),
        ("ops@there", b"x", "an AMQP URI starts with"),
    ],
)
def test_a_password_that_cannot_be_used_is_told_without_it(
    uri: str, content: bytes | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "pass"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Failure) as caught:
        read(uri, file=file)
    assert caught.value.code == USAGE and said in str(caught.value) and "given" not in str(caught.value)


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvitto.cli.main", "migrate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)


def test_messages_are_moved_with_passwords_that_no_list_of_processes_shows(
    old: Node, new: Node, tmp_path: Path
) -> None:
    Http(api_of(old)).call("PUT", "/api/users/ops", {"password": "s3cret@:/", "tags": "administrator"})
    Http(api_of(old)).call("PUT", "/api/permissions/%2f/ops", {"configure": ".*", "write": ".*", "read": ".*"})
    for each in (old, new):
        declare(each.uri, ["silent"])
    fill(old.uri, ["silent"], 10)
    source, target = (amqp_of(each).partition("@")[2] for each in (old, new))
    file = tmp_path / "target"
    file.write_text("guest\n")
    arguments = [f"amqp://ops@{source}", "--to", f"amqp://guest@{target}", "--target-pass-file", str(file)]
    for side, each in (("source", old), ("target", new)):
        arguments += [f"--{side}-api", api_of(each).replace("guest:guest@", "")]
    arguments += ["--skip-definitions", "--queues", "^silent$"]
    refused = run(*arguments, KVITTO_SOURCE_PASS="wrong")
    assert refused.returncode == 4 and "(user 'ops' at http://127.0.0.1:" in refused.stderr
    assert "is it the API of amqp://ops@127.0.0.1:" in refused.stderr
    forgotten = run(*arguments)
    assert forgotten.returncode == 4
    assert "no password was given: --source-pass-file FILE or KVITTO_SOURCE_PASS gives one" in forgotten.stderr
    done = run(*arguments, KVITTO_SOURCE_PASS="s3cret@:/")
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in done.stdout + done.stderr and "not checked" not in done.stdout
    assert list(drain(new.uri, "silent")) == list(range(10))


@pytest.mark.parametrize("kind", ["kvitto", "rabbitmq"])
def test_swapped_apis_are_noticed_before_anything_is_done(
    kind: str, old: Node, new: Node, request: pytest.FixtureRequest
) -> None:
    """The definitions of the new broker were imported into the old one, whose messages were then left."""
    source = old if kind == "kvitto" else request.getfixturevalue("rabbitmq")
    declare(source.uri, ["swapped"])
    fill(source.uri, ["swapped"], 1)
    before = [Http(api_of(each)).get("/api/definitions") for each in (source, new)]
    apis = ["--source-api", api_of(new), "--target-api", api_of(source)]
    done = run(amqp_of(source), "--to", amqp_of(new), *apis)
    assert done.returncode == 2 and "Are both APIs swapped? Nothing was changed" in done.stderr, done.stderr
    assert [Http(api_of(each)).get("/api/definitions") for each in (source, new)] == before
    assert len(list(drain(source.uri, "swapped"))) == 1


@pytest.mark.parametrize("side", ["source", "target"])
def test_the_api_of_a_third_broker_is_noticed(side: str, old: Node, new: Node, rabbitmq: Node) -> None:
    apis = {"source": old, "target": new, side: rabbitmq}
    given = [text for each in apis for text in (f"--{each}-api", api_of(apis[each]))]
    done = run(amqp_of(old), "--to", amqp_of(new), *given)
    assert done.returncode == 2, done.stderr
    assert f"--{side}-api: {api_of(rabbitmq).replace('guest:guest@', '')} is not the management API of" in done.stderr


def test_a_broker_that_takes_no_connection_is_told_before_definitions_are_posted(old: Node, new: Node) -> None:
    before = Http(api_of(new)).get("/api/definitions")
    arguments = ["amqp://127.0.0.1:1", "--to", amqp_of(new), "--source-api", api_of(old), "--target-api", api_of(new)]
    declare(old.uri, ["unreached"])
    done = run(*arguments)
    assert done.returncode == 3 and "amqp://guest@127.0.0.1:1 (all virtual hosts): " in done.stderr
    assert Http(api_of(new)).get("/api/definitions") == before
    only = run(*arguments, "--skip-messages", "--dry-run")
    assert only.returncode == 0 and "note: it was not checked whether" in only.stdout


def test_the_virtual_hosts_that_are_meant_are_named() -> None:
    """It said "(vhost '/')" for all of them, and for a target that has the name of the source's."""
    every, shop, store = (read(f"amqp://ops@there{path}") for path in ("", "/shop", "/store"))
    assert (every.place, shop.place) == (
        "amqp://ops@there:5672 (all virtual hosts)",
        "amqp://ops@there:5672 (vhost 'shop')",
    )
    take_name(store, shop)
    assert store.vhost == "store"
    all_of_them, target = (read("amqp://ops@new?heartbeat=9") for _ in range(2))
    take_name(all_of_them, every)
    assert all_of_them.vhost is None
    take_name(target, shop)
    assert (target.vhost, target.address.vhost, target.address.heartbeat_s) == ("shop", "shop", 9)


@pytest.mark.parametrize("uri", ["amqp://127.0.0.1:15672", "amqp://127.0.0.1:15672/v"])
def test_the_port_of_the_management_api_is_not_that_of_amqp(uri: str) -> None:
    with pytest.raises(Failure, match="is the port of the management API, too") as caught:
        read(uri)
    assert caught.value.code == USAGE


def test_a_user_without_a_tag_is_told_which_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ says "Not administrator user"."""
    api = Management("http://ops:x@there:1")
    monkeypatch.setattr(api, "_send", lambda *_: api._value(401, b'{"reason": "Not administrator user"}', ()))
    with pytest.raises(Failure) as caught:
        api.get("definitions")
    assert caught.value.code == NOT_ALLOWED and str(caught.value) == (
        "not allowed: Not administrator user (user 'ops' at http://there:1, without the tag administrator)"
    )


def test_a_virtual_host_that_is_not_there_is_named(old: Node, new: Node, rabbitmq: Node) -> None:
    for source in (old, rabbitmq):
        apis = ["--source-api", api_of(source), "--target-api", api_of(new)]
        done = run(f"{amqp_of(source)}/nosuch", "--to", amqp_of(new), *apis)
        server = amqp_of(source).replace("guest:guest@", "guest@")
        assert done.returncode == 2 and f"there is no vhost 'nosuch' at {server}; user 'guest' sees '/'" in done.stderr
        assert Http(api_of(new)).call("GET", "/api/vhosts/nosuch").status == 404


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_management_api_that_does_not_answer_may_be_a_plugin(side: str, old: Node, new: Node) -> None:
    apis = {"source": api_of(old), "target": api_of(new), side: "http://127.0.0.1:1"}
    done = run(amqp_of(old), "--to", amqp_of(new), *(text for each in apis for text in (f"--{each}-api", apis[each])))
    assert done.returncode == 3 and "`rabbitmq-plugins enable rabbitmq_management`" in done.stderr
    assert done.stderr.endswith(f"Else give --{side}-api\n")


def test_an_api_is_checked_though_the_new_broker_has_no_such_virtual_host_yet(old: Node, new: Node) -> None:
    assert Http(api_of(old)).call("PUT", "/api/vhosts/to-come", {}).status == 201
    apis = ["--source-api", api_of(old), "--target-api", api_of(new)]
    done = run(f"{amqp_of(old)}/to-come", "--to", amqp_of(new), *apis, "--dry-run")
    assert done.returncode == 0 and "not checked" not in done.stdout
    assert f"to Kvitto {Http(api_of(new)).get('/api/overview')['kvitto']['version']} at" in done.stdout
    assert done.stdout.splitlines()[0].count("(vhost 'to-come')") == 2


def test_an_interrupt_while_it_looks_is_told() -> None:
    """It ended without a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "kvitto.cli.main",
            "migrate",
            "amqp://127.0.0.1:1",
            "--to",
            "amqp://127.0.0.1:2",
        ]
        process = subprocess.Popen(
            [*command, "--source-api", f"http://127.0.0.1:{port}"],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_interrupts,  # noqa: PLW1509 - it takes no lock
        )
        with process:
            silent.settimeout(60)
            with silent.accept()[0]:
                process.send_signal(signal.SIGINT)
                _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said == (
        "kvitto migrate: interrupted while it looked at both brokers; nothing was changed\n"
    )
