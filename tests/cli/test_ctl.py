"""`kvitto ctl` against a real broker: what it prints, what it changes, and its exit codes."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvitto
from kvitto.cli import main
from kvitto.client import Connection, ConnectionLost
from tests.cli.process import KVITTO
from tests.http.api import Http
from tests.support.wait import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[kvitto.Broker]:
    with kvitto.Broker(http_port=0) as broker:
        yield broker


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def rows(self) -> list[list[str]]:
        return [line.split() for line in self.out.splitlines()]


Ctl = Callable[..., Result]


@pytest.fixture
def ctl(broker: kvitto.Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ctl:
    monkeypatch.setenv("KVITTO_URL", broker.http_url)

    def run(*arguments: str, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = main.main(["ctl", *arguments])
        return Result(code, *capsys.readouterr())

    return run


def test_queues_are_declared_listed_purged_and_deleted(ctl: Ctl, broker: kvitto.Broker) -> None:
    assert ctl("declare_queue", "work", "--arg", "x-max-length=9", "--arg", "x-overflow=reject-publish").code == 0
    assert ctl("declare_queue", "short", "--transient", "--auto-delete").code == 0
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.publish(b"x", routing_key="work")
        channel.wait_for_confirms()
    rows = ctl("list_queues").rows
    assert rows[0] == ["vhost", "name", "ready", "unacked", "consumers", "state", "durable", "arguments"]
    assert ["/", "work", "1", "0", "0", "running", "yes"] in [row[:7] for row in rows]
    assert ["/", "short", "0", "0", "0", "running", "no"] in rows
    (work,) = (q for q in json.loads(ctl("list_queues", "--json", "-p", "/").out) if q["name"] == "work")
    assert work["arguments"] == {"x-max-length": 9, "x-overflow": "reject-publish"}
    refused = ctl("delete_queue", "work", "--if-empty")
    assert (refused.code, refused.out) == (1, "")
    assert "not empty" in refused.err
    assert ctl("purge_queue", "work").code == 0
    assert ctl("delete_queue", "work", "--if-empty", "--if-unused").code == 0
    assert ctl("delete_queue", "work").code == 1


def test_users_vhosts_and_permissions(ctl: Ctl, broker: kvitto.Broker) -> None:
    assert ctl("add_vhost", "team").code == 0
    assert ctl("add_user", "ada", "--password-stdin", "--tags", "management", stdin="s3cret\n").code == 0
    again = ctl("add_user", "ada", "--password-stdin", stdin="other\n")
    assert again.code == 1 and "already" in again.err
    assert ctl("set_permissions", "-p", "team", "ada", "^ada-", ".*", "").code == 0
    assert ["team", "ada", "^ada-", ".*"] in ctl("list_permissions").rows
    assert ["ada", "management"] in ctl("list_users").rows
    assert "team" in [row[0] for row in ctl("list_vhosts").rows]
    ada = Http(broker.http_url, "ada", "s3cret")
    assert ada.put("/api/queues/team/ada-1", {}) == 201
    assert ctl("set_user_tags", "ada", "monitoring", "policymaker").code == 0
    assert ada.get("/api/whoami")["tags"] == ["monitoring", "policymaker"]
    assert ctl("change_password", "ada", "--password-stdin", stdin="new\n").code == 0
    assert ada.call("GET", "/api/whoami").status == 401
    assert ctl("change_password", "nobody", "--password-stdin", stdin="new\n").code == 1
    assert ctl("clear_permissions", "-p", "team", "ada").code == 0
    assert [row[1] for row in ctl("list_permissions", "-p", "team").rows] == ["user", "guest"]
    assert ctl("delete_user", "ada").code == ctl("delete_vhost", "team").code == 0
    assert ctl("delete_user", "ada").code == ctl("delete_vhost", "team").code == 1


def test_policies(ctl: Ctl, broker: kvitto.Broker) -> None:
    assert ctl("set_policy", "lim", "^lim", '{"max-length": 3}', "--priority", "2", "--apply-to", "queues").code == 0
    assert ["/", "lim", "^lim", "queues", '{"max-length":', "3}", "2"] in ctl("list_policies").rows
    assert ctl("set_operator_policy", "op", "", '{"max-length": 2}').code == 0
    assert ctl("declare_queue", "limited").code == 0
    queue = Http(broker.http_url).get("/api/queues/%2F/limited")
    assert (queue["policy"], queue["operator_policy"]) == ("lim", "op")
    refused = ctl("set_policy", "bad", "x", '{"max-lenght": 3}')
    assert refused.code == 1 and "'max-lenght' is no setting of policies" in refused.err
    assert ctl("set_policy", "bad", "x", "max-length=3").code == 2
    assert ctl("clear_policy", "lim").code == ctl("clear_operator_policy", "op").code == 0
    assert ctl("clear_policy", "lim").code == 1
    ctl("delete_queue", "limited")


def test_a_password_is_not_guessed(ctl: Ctl) -> None:
    result = ctl("add_user", "eve")
    assert result.code == 2 and "--password-stdin" in result.err
    assert ctl("add_user", "eve", "--password-stdin", stdin="\n").code == 2


def test_connections_channels_and_consumers(ctl: Ctl, broker: kvitto.Broker) -> None:
    ctl("declare_queue", "consumed")
    connection = Connection(broker.url)
    channel = connection.channel()
    channel.consume("consumed", consumer_tag="me")
    rows = wait_until(lambda: [row for row in ctl("list_consumers").rows if "me" in row])
    assert rows[0][:4] == ["/", "consumed", "me", "up"]
    assert [row[3:5] for row in ctl("list_channels").rows[1:]] == [["(1)", "guest"]]
    (found,) = json.loads(ctl("list_connections", "--json").out)
    assert ctl("close_connection", found["name"], "for a test").code == 0
    with pytest.raises(ConnectionLost, match="for a test"):
        connection.channel()
    wait_until(lambda: ctl("list_connections").rows[1:] == [])
    assert ctl("close_connection", found["name"]).code == 1


def test_exchanges_and_bindings(ctl: Ctl) -> None:
    ctl("declare_queue", "bound")
    assert ["/", "amq.topic", "topic", "yes"] in ctl("list_exchanges").rows
    assert ["/", "bound", "queue", "bound"] in ctl("list_bindings", "-p", "/").rows


def test_status(ctl: Ctl, broker: kvitto.Broker) -> None:
    text = ctl("status").out
    assert kvitto.__version__ in text and f"127.0.0.1:{broker.port}" in text
    assert ["sync", "on"] in ctl("status").rows
    assert json.loads(ctl("status", "--json").out)["kvitto"]["sync"] is True


def test_alarms_are_an_exit_code(ctl: Ctl, broker: kvitto.Broker) -> None:
    assert (ctl("alarms").code, ctl("alarms").out) == (0, "no alarms\n")
    server: Any = broker._server
    server.store.alarms.append("segment 7 is damaged")
    try:
        result = ctl("alarms")
        assert (result.code, result.out) == (1, "segment 7 is damaged\n")
        assert json.loads(ctl("alarms", "--json").out) == ["segment 7 is damaged"]
    finally:
        server.store.alarms.clear()


def test_names_cannot_command_the_terminal(ctl: Ctl) -> None:
    ctl("declare_queue", "red\x1b[31m")
    assert "\x1b" not in ctl("list_queues").out
    assert "red\\x1b[31m" in ctl("list_queues").out


@pytest.mark.parametrize(
    ("url", "code", "reason"),
    [
        ("http://127.0.0.1:1", 3, "no broker answers at http://127.0.0.1:1"),
        ("http://guest:wrong@{}", 4, "not allowed"),
        ("ftp://{}", 2, "http://"),
        ("http://127.0.0.1:notaport", 2, "--url: malformed host or port in 'http://127.0.0.1:notaport'"),
        ("http://{}/prefix", 1, "nothing has this path"),
        ("http://two words:1", 2, "--url: 'two words' is not a host"),
        ("http://app:\udcff@{}", 4, "not allowed"),
    ],
)
def test_what_is_wrong_is_said_and_told_by_exit_code(
    ctl: Ctl, broker: kvitto.Broker, url: str, code: int, reason: str
) -> None:
    result = ctl("--url", url.format(broker.http_url.removeprefix("http://")), "list_queues")
    assert (result.code, result.out) == (code, "")
    assert reason in result.err and len(result.err.splitlines()) == 1


def test_the_port_for_amqp_is_told_from_no_broker(ctl: Ctl, broker: kvitto.Broker) -> None:
    result = ctl("--url", f"http://127.0.0.1:{broker.port}", "status")
    assert (result.code, result.out) == (3, "")
    assert f"http://127.0.0.1:{broker.port} is a port for AMQP: give --url the port of the management API" in result.err


def test_a_name_that_is_empty_is_said(ctl: Ctl) -> None:
    result = ctl("delete_queue", "")
    assert (result.code, result.err) == (2, "kvitto ctl: a name is empty\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full (Linux)")
def test_output_that_cannot_be_written_is_said(broker: kvitto.Broker) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*KVITTO, "ctl", "--url", broker.http_url, "status"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 1 and "No space left" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("password", ["secret@more", "secret/more", "secret#more", "secret?more", "secret[more"])
def test_a_bad_url_does_not_show_the_password(ctl: Ctl, password: str) -> None:
    result = ctl("--url", f"http://app:{password}@127.0.0.1:x", "list_queues")
    assert result.code == 2
    assert "--url: malformed host or port in '127.0.0.1:x'" in result.err and "percent-encode" in result.err
    assert "secret" not in result.err and "more" not in result.err


def test_the_url_may_come_after_the_command_and_without_scheme(ctl: Ctl, broker: kvitto.Broker) -> None:
    assert ctl("list_vhosts", "--url", f"guest:guest@127.0.0.1:{broker.http_url.rpartition(':')[2]}").code == 0
    assert ctl("list_vhosts", "--url", "http://127.0.0.1:1").code == 3
