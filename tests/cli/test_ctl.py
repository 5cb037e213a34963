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
from kvitto.base import log
from kvitto.broker.administration.auth import check_password
from kvitto.cli import main
from kvitto.cli.management import default_uri
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
    monkeypatch.setenv("KVITTO_URI", broker.http_url)

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
    assert ["ada", "management", "kvitto_scrypt"] in ctl("list_users").rows
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
        ("http://127.0.0.1:notaport", 2, "--uri: malformed host or port in 'http://127.0.0.1:notaport'"),
        ("http://{}/prefix", 1, "nothing has this path"),
        ("http://two words:1", 2, "--uri: 'two words' is not a host"),
        ("http://app:\udcff@{}", 4, "not allowed"),
    ],
)
def test_what_is_wrong_is_said_and_told_by_exit_code(
    ctl: Ctl, broker: kvitto.Broker, url: str, code: int, reason: str
) -> None:
    result = ctl("--uri", url.format(broker.http_url.removeprefix("http://")), "list_queues")
    assert (result.code, result.out) == (code, "")
    assert reason in result.err and len(result.err.splitlines()) == 1


def test_the_port_for_amqp_is_told_from_no_broker(ctl: Ctl, broker: kvitto.Broker) -> None:
    result = ctl("--uri", f"http://127.0.0.1:{broker.port}", "status")
    assert (result.code, result.out) == (3, "")
    assert f"http://127.0.0.1:{broker.port} is a port for AMQP: give --uri the port of the management API" in result.err


def test_a_name_that_is_empty_is_said(ctl: Ctl) -> None:
    result = ctl("delete_queue", "")
    assert (result.code, result.err) == (2, "kvitto ctl: a name is empty\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full (Linux)")
def test_output_that_cannot_be_written_is_said(broker: kvitto.Broker) -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*KVITTO, "ctl", "--uri", broker.http_url, "status"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 1 and "No space left" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("password", ["secret@more", "secret/more", "secret#more", "secret?more", "secret[more"])
def test_a_bad_uri_does_not_show_the_password(ctl: Ctl, password: str) -> None:
    result = ctl("--uri", f"http://app:{password}@127.0.0.1:x", "list_queues")
    assert result.code == 2
    assert "--uri: malformed host or port in '127.0.0.1:x'" in result.err and "percent-encode" in result.err
    assert "secret" not in result.err and "more" not in result.err


def test_the_uri_may_come_after_the_command_and_without_scheme(ctl: Ctl, broker: kvitto.Broker) -> None:
    assert ctl("list_vhosts", "--uri", f"guest:guest@127.0.0.1:{broker.http_url.rpartition(':')[2]}").code == 0
    assert ctl("list_vhosts", "--uri", "http://127.0.0.1:1").code == 3


def test_url_means_the_same_as_uri(ctl: Ctl, broker: kvitto.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        ctl("--url", "http://127.0.0.1:1", "list_vhosts").code == ctl("list_vhosts", "--url", "127.0.0.1:1").code == 3
    )
    monkeypatch.delenv("KVITTO_URI")
    monkeypatch.setenv("KVITTO_URL", broker.http_url)
    assert main.main(["ctl", "list_vhosts"]) == 0
    assert main.main(["ctl", "ping", "--uri", broker.http_url, "--json"]) == 0


@pytest.mark.parametrize(
    ("environ", "uri"),
    [
        ({}, "http://guest:guest@127.0.0.1:15672"),
        ({"KVITTO_URI": "http://a", "KVITTO_URL": "http://b"}, "http://a"),
        ({"KVITTO_HTTP_PORT": "8080", "KVITTO_HOST": "0.0.0.0"}, "http://guest:guest@127.0.0.1:8080"),
        ({"KVITTO_HTTP_PORT": "off", "KVITTO_HOST": "10.0.0.1,::1"}, "http://guest:guest@10.0.0.1:15672"),
        ({"KVITTO_HTTP_PORT": "²"}, "http://guest:guest@127.0.0.1:15672"),
        ({"KVITTO_HTTP_PORT": "tcp://10.0.0.1:1", "KVITTO_HTTP_HOST": "::1"}, "http://guest:guest@[::1]:15672"),
        ({"KVITTO_DEFAULT_USER": "ops", "KVITTO_DEFAULT_PASS": "a/b@c"}, "http://ops:a%2Fb%40c@127.0.0.1:15672"),
        ({"KVITTO_DEFAULT_USER": "ops", "KVITTO_DEFAULT_PASS_FILE": "/none"}, "http://guest:guest@127.0.0.1:15672"),
    ],
)
def test_where_the_broker_is_follows_from_the_environment_of_serve(environ: dict[str, str], uri: str) -> None:
    assert default_uri(environ) == uri


def test_the_password_of_the_default_user_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3:cret\nthe broker takes the first line\n")
    environ = {"KVITTO_DEFAULT_USER": "o p", "KVITTO_DEFAULT_PASS_FILE": str(tmp_path / "secret")}
    assert default_uri(environ) == "http://o%20p:s3%3Acret@127.0.0.1:15672"


def test_a_ping_needs_no_login_and_an_alarm_is_no_silence(ctl: Ctl, broker: kvitto.Broker) -> None:
    port = broker.http_url.rpartition(":")[2]
    assert ctl("ping", "--uri", f"http://nobody:wrong@127.0.0.1:{port}").code == 0
    server: Any = broker._server
    server.store.alarms.append("segment 7 is damaged")
    try:
        found = ctl("ping")
        assert found.code == 0 and found.out.endswith("answers, and reports alarms\n")
    finally:
        server.store.alarms.clear()
    assert ctl("ping", "--uri", "http://127.0.0.1:1").code == 3


def test_await_startup_waits_for_a_broker(ctl: Ctl) -> None:
    assert ctl("await_startup").code == 0
    late = ctl("await_startup", "--timeout", "0.2", "--uri", "http://127.0.0.1:1")
    assert late.code == 3 and "after 0.2 s no broker answers" in late.err
    assert ctl("await_startup", "--uri", "ftp://x").code == 2


def test_exchanges_bindings_and_messages(ctl: Ctl) -> None:
    assert ctl("declare_exchange", "sales", "--type", "topic", "--arg", "alternate-exchange=rest").code == 0
    assert ["/", "sales", "topic", "yes"] in [row[:4] for row in ctl("list_exchanges").rows]
    assert ctl("declare_exchange", "rest", "--type", "nonsense").code == 1
    assert ctl("declare_queue", "sold").code == 0
    assert ctl("bind", "sales", "sold", "eu.#", "--arg", "a=1").code == 0
    assert ["/", "sales", "sold", "queue", "eu.#"] in [row[:5] for row in ctl("list_bindings").rows]
    assert ctl("publish", "eu.se", "h\u00e4j", "--exchange", "sales", "--property", "content_type=text/plain").code == 0
    lost = ctl("publish", "us.ny", "hi", "--exchange", "sales")
    assert lost.code == 1 and "no queue took the message" in lost.err
    (seen,) = json.loads(ctl("get", "sold", "--json").out)
    assert (seen["payload"], seen["routing_key"]) == ("h\u00e4j", "eu.se")
    assert seen["properties"] == {"content_type": "text/plain", "delivery_mode": 2}
    assert ctl("get", "sold", "--count", "5").rows[1][-1] == "h\u00e4j"
    assert ctl("get", "sold", "--ack").code == 0
    assert ctl("get", "sold").out == "no message is ready in queue 'sold'\n"
    assert ctl("unbind", "sales", "sold", "eu.#").code == 1
    assert ctl("unbind", "sales", "sold", "eu.#", "--arg", "a=1").code == 0
    assert ctl("declare_exchange", "more").code == ctl("bind", "sales", "more", "#", "--to-exchange").code == 0
    assert ctl("unbind", "sales", "more", "#", "--to-exchange").code == 0
    assert ctl("delete_exchange", "sales", "--if-unused").code == ctl("delete_exchange", "more").code == 0
    assert ctl("delete_exchange", "more").code == 1


def test_a_body_comes_from_stdin_as_it_is(broker: kvitto.Broker, ctl: Ctl) -> None:
    ctl("declare_queue", "raw")
    command = [*KVITTO, "ctl", "publish", "raw", "--uri", broker.http_url]
    assert subprocess.run(command, input=b"\0\xff\n", capture_output=True, check=False).returncode == 0
    (seen,) = json.loads(ctl("get", "raw", "--json").out)
    assert (seen["payload"], seen["payload_encoding"]) == ("AP8K", "base64")
    assert "(binary: --json has it)" in ctl("get", "raw").out


def test_columns_may_be_chosen(ctl: Ctl) -> None:
    ctl("declare_queue", "chosen")
    rows = ctl("list_queues", "name", "messages", "backing_queue_status", "-p", "/").rows
    assert rows == [] or rows[0][:2] == ["name", "messages"]
    found = ctl("list_queues", "name", "messages")
    assert found.rows[0] == ["name", "messages"] and ["chosen", "0"] in found.rows
    wrong = ctl("list_queues", "name", "mesages")
    assert wrong.code == 2 and "there is no field 'mesages': is it messages?" in wrong.err


def test_what_a_user_may_do(ctl: Ctl) -> None:
    assert ctl("list_user_permissions", "guest").rows == [
        ["vhost", "configure", "write", "read"],
        ["/", ".*", ".*", ".*"],
    ]
    assert ctl("list_user_permissions", "nobody").code == 1


def test_passwords_are_checked_and_hashed(ctl: Ctl) -> None:
    assert ctl("authenticate_user", "guest", "--password-stdin", stdin="guest\n").code == 0
    assert ctl("authenticate_user", "guest", "--password-stdin", stdin="gu\n").code == 4
    ctl("add_user", "app", "--password-stdin", stdin="s3cret\n")
    assert ctl("authenticate_user", "app", "--password-stdin", stdin="s3cret\n").code == 0
    assert ctl("authenticate_user", "app", "--password-stdin", stdin="wrong\n").code == 4
    ctl("delete_user", "app")
    hashed = ctl("hash_password", "--password-stdin", stdin="s3cret\n").out.strip()
    assert check_password(hashed, "s3cret") and not check_password(hashed, "other")


def test_all_connections_are_closed(ctl: Ctl, broker: kvitto.Broker) -> None:
    ctl("add_vhost", "other")
    ctl("set_permissions", "-p", "other", "guest", "", "", "")
    here, there = Connection(broker.url), Connection(broker.url.replace("%2f", "other"))
    assert ctl("close_all_connections", "-p", "other", "moving").out == "1 connections are closed\n"
    with pytest.raises(ConnectionLost, match="moving"):
        there.channel()
    assert ctl("close_all_user_connections", "guest", "good night").code == 0
    with pytest.raises(ConnectionLost, match="good night"):
        here.channel()
    wait_until(lambda: ctl("list_connections").rows[1:] == [])
    assert ctl("close_all_connections").out == "0 connections are closed\n"
    ctl("delete_vhost", "other")


def test_settings_the_log_and_the_name(ctl: Ctl, broker: kvitto.Broker) -> None:
    before = log.level()
    try:
        assert ctl("set_log_level", "error").code == 0
        rows = ctl("environment").rows
        assert ["sync", "yes", "default"] in rows and ["log_level", "error", "the", "management", "API"] in rows
        assert "error and above" in ctl("status").out
    finally:
        log.set_level(before)
    refused = ctl("set_log_format", "json")
    assert refused.code == 1 and "belongs to the program" in refused.err
    assert ctl("set_cluster_name", "north").code == 0
    assert json.loads(ctl("status", "--json").out)["cluster_name"] == "north"
    assert ctl("set_cluster_name", "").code == 2


def test_checks_are_exit_codes(ctl: Ctl, broker: kvitto.Broker) -> None:
    assert ctl("check_running").out == "passed\n"
    assert ctl("check_port_listener", str(broker.port)).code == 0
    missing = ctl("check_port_listener", "1")
    assert (missing.code, missing.out) == (1, "failed: No active listener\n")
    assert ctl("check_protocol_listener", "amqp").code == 0 and ctl("check_protocol_listener", "mqtt").code == 1
    assert ctl("check_certificate_expiration", "1", "months").code == 0


def test_delayed_messages_are_listed_run_and_cancelled(ctl: Ctl, broker: kvitto.Broker) -> None:
    api = Http(broker.http_url)
    given = {"type": "x-delayed-message", "durable": True, "arguments": {"x-delayed-type": "fanout"}}
    assert api.put("/api/exchanges/%2F/later", given) == 201
    for name in ("m1", "m2"):
        properties = {"message_id": name, "headers": {"x-delay": 1_000_000}}
        api.post("/api/exchanges/%2F/later/publish", {"routing_key": "k", "payload": "x", "properties": properties})
    rows = ctl("list_delayed", "later").rows
    assert [(row[0], row[-3:]) for row in rows[1:]] == [(name, ["later", "k", "1"]) for name in ("m1", "m2")]
    assert "1 message with the id 'm1' routed" in ctl("run_delayed", "later", "m1").out
    assert "1 message with the id 'm2' dropped" in ctl("cancel_delayed", "later", "m2").out
    missing = ctl("cancel_delayed", "later", "m2")
    assert missing.code == 1 and "no message with the id 'm2' waits in exchange 'later'" in missing.err


def test_a_report_has_everything(ctl: Ctl) -> None:
    ctl("declare_queue", "reported")
    text = ctl("report").out
    assert all(
        f"\n{name}\n" in f"\n{text}" for name in ("status", "alarms", "environment", "list_queues", "list_users")
    )
    assert "reported" in text
    everything = ctl("report", "--json").out
    assert json.loads(everything)["list_users"][0]["name"] == "guest" and "scrypt:" not in text + everything
    found = json.loads(ctl("cluster_status", "--json").out)
    assert found["alarms"] == [] and len(found["running_nodes"]) == 1
    assert "no alarms" in ctl("cluster_status").out


def test_the_status_for_a_user_who_may_not_see_nodes(ctl: Ctl, broker: kvitto.Broker) -> None:
    assert ctl("add_user", "modest", "--tags", "management", "--password-stdin", stdin="pw\n").code == 0
    shown = ctl("--uri", broker.http_url.replace("//", "//modest:pw@"), "status")
    assert shown.code == 0 and shown.out.count("(shown to monitoring and administrator)") == 3
    assert ctl("delete_user", "modest").code == 0


def test_quiet_changes_nothing(ctl: Ctl) -> None:
    """Scripts that were written for rabbitmqctl give it."""
    plain = ctl("list_vhosts").out
    assert plain and {ctl(*words).out for words in (("-q", "list_vhosts"), ("list_vhosts", "--quiet"))} == {plain}


def test_a_user_without_a_tag_is_named_with_the_broker(ctl: Ctl, broker: kvitto.Broker) -> None:
    Http(broker.http_url).call("PUT", "/api/users/watcher", {"password": "secret", "tags": ""})
    url = broker.http_url.replace("guest:guest@", "").replace("http://", "http://watcher:secret@")
    result = ctl("--uri", url, "list_users")
    assert result.code == 4 and f"(user 'watcher' at {url.replace('watcher:secret@', '')})" in result.err
