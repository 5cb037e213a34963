"""Every subcommand of RabbitMQ's command-line tool for the management API, `rabbitmqadmin` of RabbitMQ 3.x."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kvitto.torture.nodes import INSTALL_RABBITMQ
from tests.http.api import Http
from tests.protocol.raw import Raw
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow  # a process of its own for each command

SCRIPT = Path("/usr/bin/rabbitmqadmin")
VHOST = f"admin/tool-{os.getpid()}"
"""The slash has to be encoded in every path."""
LISTS = (
    "connections", "channels", "consumers", "exchanges", "queues", "bindings", "users", "vhosts", "permissions", "nodes",
    "parameters", "policies", "operator_policies", "vhost_limits",
)  # fmt: skip
Run = Callable[..., str]


@pytest.fixture
def admin(api: Http) -> Run:
    """Run the tool, in VHOST unless another one is named, and return what it prints. It must succeed unless it is to fail."""
    if not SCRIPT.exists():
        pytest.skip(f"rabbitmqadmin is not installed: {INSTALL_RABBITMQ}")

    def run(*words: str, vhost: str = VHOST, stdin: str = "", fails: bool = False) -> str:
        command = [str(SCRIPT), "-H", api.host, "-P", str(api.port), *(["-V", vhost] if vhost else []), *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def vhost(admin: Run) -> Iterator[str]:
    admin("declare", "vhost", f"name={VHOST}", vhost="")
    admin("declare", "permission", f"vhost={VHOST}", "user=guest", "configure=.*", "write=.*", "read=.*", vhost="")
    yield VHOST
    admin("delete", "vhost", f"name={VHOST}", vhost="")


def rows(admin: Run, kind: str, *words: str, vhost: str = VHOST) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(admin("-f", "raw_json", "list", kind, *words, vhost=vhost))
    return found


def names(admin: Run, kind: str, of: str = "name", vhost: str = VHOST) -> set[str]:
    return {row[of] for row in rows(admin, kind, vhost=vhost)}


def needs(api: Http, path: str) -> None:
    """Skip where the API has no such call yet."""
    if api.call("PUT", path, {"value": 1}).status in (404, 405):
        pytest.skip(f"no {path} in this API")


# -- display -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LISTS)
def test_lists(admin: Run, vhost: str, kind: str) -> None:
    admin("list", kind)
    admin("--depth=3", "-f", "long", "list", kind)
    assert isinstance(rows(admin, kind), list)


@pytest.mark.parametrize("form", ["table", "long", "tsv", "kvp", "bash", "raw_json", "pretty_json"])
def test_forms_of_a_list(admin: Run, vhost: str, form: str) -> None:
    admin("declare", "queue", "name=q")
    assert "q" in admin("-f", form, "list", "queues", "name", "vhost")


def test_sorting_and_columns(admin: Run, vhost: str) -> None:
    for name in "bca":
        admin("declare", "queue", f"name={name}")
    listed = admin("-f", "tsv", "-S", "name", "list", "queues", "name", "durable").split("\n")
    assert [line.split("\t")[0] for line in listed[1:4]] == ["a", "b", "c"]
    backwards = admin("-f", "tsv", "-S", "name", "-R", "list", "queues", "name").split("\n")
    assert backwards[1:4] == ["c", "b", "a"]


def test_show_overview(admin: Run) -> None:
    assert "rabbitmq_version" in admin("show", "overview", vhost="")
    assert json.loads(admin("-f", "raw_json", "show", "overview", vhost=""))[0]["object_totals"]["queues"] >= 0


@pytest.mark.parametrize("topic", [[], ["subcommands"], ["config"]])
def test_help(admin: Run, topic: list[str]) -> None:
    assert "Usage" in admin("help", *topic, vhost="")


def test_a_wrong_password_is_told(admin: Run) -> None:
    assert "Access refused" in admin("-u", "guest", "-p", "wrong", "list", "queues", vhost="", fails=True)


def test_an_unknown_thing_is_told(admin: Run, vhost: str) -> None:
    assert "not found" in admin("delete", "queue", "name=no-such", fails=True).lower()


# -- objects -------------------------------------------------------------------------------------------------


def test_exchanges_queues_and_bindings(admin: Run, vhost: str) -> None:
    admin("declare", "exchange", "name=x", "type=topic", "durable=false", 'arguments={"alternate-exchange": "y"}')
    admin("declare", "exchange", "name=y", "type=fanout", "auto_delete=false", "internal=false")
    admin("declare", "queue", "name=q 1/ä", 'arguments={"x-max-length": 10}')
    admin("declare", "queue", "name=quorum", "queue_type=quorum", "durable=true")
    admin("declare", "binding", "source=x", "destination=q 1/ä", "routing_key=a.*")
    admin("declare", "binding", "source=x", "destination_type=exchange", "destination=y", 'arguments={"n": 1}')
    assert names(admin, "exchanges") >= {"x", "y"} and names(admin, "queues") == {"q 1/ä", "quorum"}
    kinds = {row["name"]: row["arguments"].get("x-queue-type") for row in rows(admin, "queues")}
    assert kinds["quorum"] == "quorum"
    bindings = {row["destination"]: row for row in rows(admin, "bindings") if row["source"] == "x"}
    assert bindings.keys() == {"q 1/ä", "y"} and bindings["y"]["destination_type"] == "exchange"
    key = bindings["q 1/ä"]["properties_key"]
    admin("delete", "binding", "source=x", "destination_type=queue", "destination=q 1/ä", f"properties_key={key}")
    assert not [row for row in rows(admin, "bindings") if row["destination"] == "q 1/ä" and row["source"]]
    admin("delete", "queue", "name=q 1/ä")
    admin("delete", "exchange", "name=x")
    assert names(admin, "queues") == {"quorum"} and "x" not in names(admin, "exchanges")


def test_users_and_permissions(admin: Run, vhost: str) -> None:
    admin("declare", "user", "name=someone", "password=secret", "tags=monitoring", vhost="")
    try:
        admin("declare", "permission", f"vhost={VHOST}", "user=someone", "configure=^a", "write=", "read=.*", vhost="")
        found = next(row for row in rows(admin, "permissions", vhost="") if row["user"] == "someone")
        assert (found["vhost"], found["configure"], found["write"], found["read"]) == (VHOST, "^a", "", ".*")
        admin("-u", "someone", "-p", "secret", "list", "queues")
        admin("delete", "permission", f"vhost={VHOST}", "user=someone", vhost="")
        assert "someone" not in names(admin, "permissions", of="user", vhost="")
    finally:
        admin("delete", "user", "name=someone", vhost="")
    assert "someone" not in names(admin, "users", vhost="")


@pytest.mark.parametrize(("kind", "plural"), [("policy", "policies"), ("operator_policy", "operator_policies")])
def test_policies(admin: Run, vhost: str, kind: str, plural: str) -> None:
    definition = 'definition={"max-length": 5}'
    admin("declare", kind, "name=short", "pattern=^q", definition, "priority=3", "apply-to=queues")
    found = next(row for row in rows(admin, plural, vhost="") if row["vhost"] == VHOST)
    assert (found["name"], found["definition"], found["priority"]) == ("short", {"max-length": 5}, 3)
    admin("delete", kind, "name=short")
    assert VHOST not in names(admin, plural, of="vhost", vhost="")


def test_limits_of_a_virtual_host(admin: Run, api: Http, vhost: str) -> None:
    needs(api, f"/api/vhost-limits/{quote(VHOST, safe='')}/max-queues")
    admin("declare", "vhost_limit", f"vhost={VHOST}", "name=max-queues", "value=1")
    found = next(row for row in rows(admin, "vhost_limits", vhost="") if row["vhost"] == VHOST)
    assert found["value"] == {"max-queues": 1}
    admin("declare", "queue", "name=one")
    admin("declare", "queue", "name=two", fails=True)
    admin("delete", "vhost_limit", f"vhost={VHOST}", "name=max-queues")
    admin("declare", "queue", "name=two")


def test_parameters(admin: Run, api: Http, vhost: str) -> None:
    """RabbitMQ takes parameters of the components that it knows only, and refuses others with a reason."""
    said = admin("declare", "parameter", "component=no-such", "name=n", 'value={"a": 1}', fails=True)
    assert "400" in said or "404" in said or "not found" in said.lower()
    assert rows(admin, "parameters", vhost="") == [] or isinstance(rows(admin, "parameters", vhost=""), list)
    admin("delete", "parameter", "component=no-such", "name=n", fails=True)


# -- messages ------------------------------------------------------------------------------------------------


def test_publish_get_and_purge(admin: Run, vhost: str, tmp_path: Path) -> None:
    admin("declare", "queue", "name=q")
    assert "NOT routed" not in admin("publish", "routing_key=q", "payload=one")
    admin("publish", "routing_key=q", stdin="from stdin")
    admin(
        "publish",
        "exchange=amq.default",
        "routing_key=q",
        'properties={"priority": 3}',
        "payload=AAH/",
        "payload_encoding=base64",
    )
    assert "NOT routed" in admin("publish", "routing_key=nobody", "payload=x")
    for mode, n in (("ack_requeue_true", 3), ("reject_requeue_true", 3)):
        found = json.loads(admin("-f", "raw_json", "get", "queue=q", "count=5", f"ackmode={mode}"))
        assert len(found) == n and found[0]["payload"] == "one"
    assert [row["payload"] for row in found] == ["one", "from stdin", "AAH/"]
    body = tmp_path / "payload"
    admin("get", "queue=q", "ackmode=ack_requeue_false", f"payload_file={body}")
    assert body.read_text() == "one"
    admin("get", "queue=q", "ackmode=reject_requeue_false", "encoding=base64")
    admin("purge", "queue", "name=q")
    assert json.loads(admin("-f", "raw_json", "get", "queue=q")) == []


# -- the rest ------------------------------------------------------------------------------------------------


def test_close_a_connection(admin: Run, api: Http, request: pytest.FixtureRequest) -> None:
    port: int = request.getfixturevalue(f"{request.node.callspec.params['api']}_port")
    with Raw(port) as raw:
        ours = f":{raw.socket.getsockname()[1]}"

        def name() -> str | None:
            listed = rows(admin, "connections", vhost="")
            return next((str(row["name"]) for row in listed if ours in row["name"].split("->")[0]), None)

        found = wait_until(name)
        admin("close", "connection", f"name={found}", vhost="")
        assert raw.connection_error(320)


def test_export_and_import(admin: Run, api: Http, vhost: str, tmp_path: Path) -> None:
    whole, part = tmp_path / "whole.json", tmp_path / "part.json"
    admin("declare", "queue", "name=q", 'arguments={"x-max-length": 10}')
    admin("declare", "binding", "source=amq.topic", "destination=q", "routing_key=a.#")
    admin("export", str(whole), vhost="")
    assert VHOST in {each["name"] for each in json.loads(whole.read_text())["vhosts"]}
    admin("export", str(part))
    assert [each["name"] for each in json.loads(part.read_text())["queues"]] == ["q"]
    if api.call("POST", "/api/definitions", {}).status in (404, 405):
        pytest.skip("no import in this API")
    admin("delete", "queue", "name=q")
    admin("import", str(part))
    assert wait_until(lambda: names(admin, "queues") == {"q"})
    assert {row["routing_key"] for row in rows(admin, "bindings") if row["source"] == "amq.topic"} == {"a.#"}
