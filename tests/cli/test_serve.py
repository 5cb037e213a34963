"""`kvitto serve` as a process: its one line, its end, and what it says when it cannot start."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import kvitto as package
from kvitto.base.config import TYPES, Config, ConfigError, option
from kvitto.base.environment import variable
from kvitto.cli.main import main
from kvitto.cli.options import add_options, config_of
from kvitto.cli.serve import ready
from kvitto.client import ChannelClosed, ConnectFailed, Connection
from kvitto.server.server import Server
from tests.cli.process import kvitto, serving
from tests.http.api import Http


def test_it_says_one_line_serves_and_stops_on_sigterm_with_0(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        assert server.ready["data"] == str(tmp_path / "data")
        assert server.ready["pid"] == str(server.process.pid)
        with Connection(server.amqp_url) as connection:
            connection.channel().queue_declare("q", durable=True)
        assert Http(server.http_url).get("/healthz") == {"status": "ok"}
        code, out, err = server.stop()
    assert (code, out) == (0, "")
    assert "Traceback" not in err


def test_a_connected_client_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with serving(tmp_path) as server, Connection(server.amqp_url) as connection:
        connection.channel()
        with socket.create_connection(("127.0.0.1", int(server.ready["http"]))):
            code, _, err = server.stop()
        assert code == 0
        assert "Traceback" not in err


def test_a_second_start_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    """D5"""
    with serving(tmp_path) as server:
        again = kvitto("serve", "--data-dir", str(tmp_path), "--port", "0", "--http-port", "0")
        assert again.returncode == 1
        assert again.stdout == ""
        assert f"pid {server.process.pid}" in again.stderr or server.ready["pid"] in again.stderr
        assert "Traceback" not in again.stderr
        assert server.process.poll() is None


@pytest.mark.parametrize("option", ["--port", "--http-port", "--followers"])
def test_a_port_that_is_taken_is_named(tmp_path: Path, option: str) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef")
    key.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = {"--port": "0", "--http-port": "0", option: port}
        if option == "--followers":
            arguments |= {option: f"127.0.0.1:{port}", "--cluster-key": str(key)}
        result = kvitto(
            "serve", "--data-dir", str(tmp_path / "data"), *(part for pair in arguments.items() for part in pair)
        )
    assert (result.returncode, result.stdout) == (1, "")
    reason = f"127.0.0.1:{port}: address already in use (is another broker running? choose another {option})"
    assert result.stderr.splitlines()[-1] == f"kvitto: cannot listen on {reason}"
    assert "Traceback" not in result.stderr


def test_a_tls_listener_stands_at_the_end_of_the_line(tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path, tls_port=0, tls_cert=tmp_path, tls_key=tmp_path)
    server = Server(config)
    server.port, server.http_port, server.tls_port = 1, 2, 3
    expected = f"kvitto ready amqp=127.0.0.1:1 http=127.0.0.1:2 data={tmp_path} pid={os.getpid()} tls=127.0.0.1:3"
    assert ready(server) == expected


def test_http_can_be_off(tmp_path: Path) -> None:
    with serving(tmp_path, "--http-port", "off") as server:
        assert server.ready["http"] is None
        Connection(server.amqp_url).close()
        assert server.stop()[0] == 0


def test_http_can_listen_elsewhere(tmp_path: Path) -> None:
    with serving(tmp_path, "--http-host", "0.0.0.0") as server:
        assert server.ready["http_host"] == "0.0.0.0"
        overview = Http(server.http_url).get("/api/overview")
        assert {"127.0.0.1", "0.0.0.0"} == {listener["ip_address"] for listener in overview["listeners"]}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--port", "70000"], "--port: must be 0 to 65535, not 70000"),
        (["--http-port", "-1"], "--http-port"),
        (["--data-dir", ""], "--data-dir: the path is empty: . stands for the current directory"),
        (["--config", ""], "--config: the path is empty"),
        (["--memory-limit", "200%"], "--memory-limit: '200%' is no share of the memory: 1% to 100%, or a size"),
        (["--tls-port", "0"], "--tls-port needs --tls-cert and --tls-key"),
        (
            ["--tls-port", "0", "--tls-cert", "/none.pem", "--tls-key", "/none.pem"],
            "--tls-cert /none.pem: No such file",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(tmp_path: Path, arguments: list[str], reason: str) -> None:
    result = kvitto("serve", "--data-dir", str(tmp_path), "--port", "0", "--http-port", "0", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("prot = 5672\n", "unknown setting 'prot'"),
        ('port = "5672"\n', "port must be int"),
        ("port = \n", "cannot read the configuration"),
        ("port = 99999\n", "port must be 0 to 65535"),
        ('sync = "maybe"\n', "sync"),
        (None, "kvitto.toml: No such file or directory\n"),
    ],
)
def test_a_bad_configuration_is_refused_with_its_mistake(tmp_path: Path, text: str | None, reason: str) -> None:
    file = tmp_path / "kvitto.toml"
    if text is not None:
        file.write_text(text)
    result = kvitto("serve", "--config", str(file))
    assert (result.returncode, result.stdout) == (2, "")
    assert reason in result.stderr and result.stderr.count(str(file)) == 1
    assert "Traceback" not in result.stderr


def test_options_win_over_the_configuration_file(tmp_path: Path) -> None:
    file = tmp_path / "kvitto.toml"
    file.write_text(f'data-dir = "{tmp_path / "from-file"}"\nport = 1\nsync = false\n')
    with serving(tmp_path / "from-option", "--config", str(file)) as server:
        assert server.ready["data"] == str(tmp_path / "from-option")
        assert Http(server.http_url).get("/api/overview")["kvitto"]["sync"] is False
        _, _, err = server.stop()
    assert "--sync off" in err


def test_a_reload_while_it_starts_is_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start may take long; SIGHUP ends a process that does not ask for it, and systemd takes that for a clean end."""
    before = signal.getsignal(signal.SIGHUP)
    lived = []

    async def start(_: Server) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        lived.append(True)
        raise OSError("enough")

    monkeypatch.setattr(Server, "start", start)
    monkeypatch.setattr("kvitto.cli.serve.set_up_log", lambda *_: None)
    monkeypatch.setattr("kvitto.cli.serve.raise_file_limit", lambda: None)
    try:
        assert main(["serve", "--data-dir", str(tmp_path), "--port", "0", "--http-port", "off"]) == 1
    finally:
        signal.signal(signal.SIGHUP, before)
    assert lived


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    result = kvitto("serve", "--data-dir", str(file), "--port", "0", "--http-port", "0")
    assert (result.returncode, result.stdout) == (1, "")
    reason = f"cannot make the data directory {file}: {file} is not a directory, choose another --data-dir"
    assert result.stderr.splitlines()[-1] == f"kvitto: {reason}"


def test_a_directory_with_foreign_files_is_refused_as_it_is(tmp_path: Path) -> None:
    """It mixed its files with those of the home directory, or of a project."""
    (tmp_path / "notes.txt").write_text("")
    result = kvitto("serve", "--data-dir", str(tmp_path), "--port", "0", "--http-port", "0")
    assert (result.returncode, result.stdout) == (1, "")
    reason = (
        f"{tmp_path} is no data directory of Kvitto's and not empty, it holds 'notes.txt': choose an empty directory"
    )
    assert reason in result.stderr.splitlines()[-1]
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_log_lines_can_be_json(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-json") as server:
        Connection(server.amqp_url).close()
        with pytest.raises(ConnectFailed):
            Connection(server.amqp_url.replace("guest:guest", "guest:wrong"))
        _, _, err = server.stop()
    # before there is a log, a checkout may say on stderr that it runs interpreted
    lines = [json.loads(line) for line in err.splitlines() if not line.startswith("kvitto: ")]
    assert {"time", "level", "logger", "message"} <= set(lines[0])
    assert any("opened vhost" in line["message"] for line in lines)
    assert any(line["level"] == "warning" and "guest" in line["message"] for line in lines)
    assert all(re.match(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", line["time"]) for line in lines)


def test_the_version_says_which_form_runs() -> None:
    result = kvitto("--version")
    assert result.returncode == 0
    form = "compiled" if package.compiled() else "interpreted"
    assert result.stdout.startswith(f"kvitto {package.__version__} ({form}, Python 3.")


def test_limits_of_the_configuration_hold(tmp_path: Path) -> None:
    """W8: a body and a consumer too many, each with its close and its metric."""
    file = tmp_path / "kvitto.toml"
    file.write_text('[limits]\nbody-max = "200KiB"\nconsumers-max = 1\n')
    with serving(tmp_path / "data", "--config", str(file)) as server, Connection(server.amqp_url) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.publish(bytes(200 << 10), routing_key="q")
        channel.consume("q")
        with pytest.raises(ChannelClosed, match="1 consumers, the limit"):
            channel.consume("q")
        channel = connection.channel()
        channel.publish(bytes(201 << 10), routing_key="q")
        with pytest.raises(ChannelClosed, match="larger than the maximum of 204800 bytes"):
            channel.queue_declare("q")
        metrics = Http(server.http_url).call("GET", "/metrics").body.decode()
        for limit in ("body", "consumers"):
            assert f'kvitto_refused_total{{limit="{limit}"}} 1\n' in metrics
    file.write_text("[limits]\nconsumers-max = 0\n")
    refused = kvitto("serve", "--data-dir", str(tmp_path / "data"), "--config", str(file))
    assert (refused.returncode, refused.stdout) == (2, "")
    # a checkout may say before that it runs interpreted
    assert refused.stderr.splitlines()[-1] == "kvitto: [limits]: consumers_max must be 1 to 2147483648, not 0"


def test_python_runs_the_package_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "kvitto", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "kvitto")


def test_a_host_may_be_given_several_times(tmp_path: Path) -> None:
    with serving(tmp_path, "--host", "127.0.0.1", "--host", "127.0.0.2") as server:
        assert server.ready["also"] == f"127.0.0.2:{server.ready['amqp']}"
        for host in ("127.0.0.1", "127.0.0.2"):
            Connection(f"amqp://guest:guest@{host}:{server.ready['amqp']}/%2f").close()


def test_settings_come_from_option_environment_and_file_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kvitto.toml").write_text("max-queues = 7\nmax-channels = 8\nmax-connections = 9\n")
    monkeypatch.setenv("KVITTO_CONFIG", str(tmp_path / "kvitto.toml"))
    monkeypatch.setenv("KVITTO_MAX_CHANNELS", "88")
    monkeypatch.setenv("KVITTO_MAX_QUEUES", "77")
    monkeypatch.setenv("KVITTO_DATADIR", "elsewhere")
    with serving(tmp_path / "data", "--max-queues", "777") as server:
        found = {item["name"]: (item["value"], item["from"]) for item in Http(server.http_url).get("/api/settings")}
        assert found["max_queues"] == (777, "--max-queues")
        assert found["max_channels"] == (88, "KVITTO_MAX_CHANNELS")
        assert found["max_connections"] == (9, str(tmp_path / "kvitto.toml"))
        assert found["sync"] == (True, "default") and found["limits.handshake_s"][1] == "default"
        _, _, err = server.stop()
    assert "KVITTO_DATADIR is passed over: is it KVITTO_DATA_DIR?" in err


def test_a_mistake_names_where_the_settings_in_it_come_from(tmp_path: Path) -> None:
    (tmp_path / "kvitto.toml").write_text("min-in-sync = 2\n")
    for environ, given, says in (
        ({"KVITTO_ETCD": "http://a:2379"}, [], "leads (--etcd comes from KVITTO_ETCD)"),
        ({"KVITTO_CONFIG": str(tmp_path / "kvitto.toml")}, [], f"(--min-in-sync comes from {tmp_path}/kvitto.toml)"),
        ({"KVITTO_ETCD_CA": "ca.pem"}, ["--etcd", "https://a"], "when this one leads"),
    ):
        parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
        add_options(parser)
        with pytest.raises(ConfigError) as wrong:
            config_of(parser.parse_args(given), environ)
        assert str(wrong.value).endswith(says)


def test_every_option_of_serve_is_a_setting_with_a_variable_and_in_the_documents() -> None:
    """Only the password of the default user is no option: other users of the machine can read the command line."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    named = {action.dest for action in parser._actions} - {"help", "config"}
    assert named == set(TYPES) - {"default_pass"}
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    missing = [name for name in TYPES if option(name) not in text and variable(name) not in text]
    assert missing == []


def test_a_new_directory_gets_the_default_user_in_place_of_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    given = ["--default-user", "ops", "--default-pass-file", str(tmp_path / "secret"), "--default-vhost", "prod"]
    with serving(tmp_path / "data", *given) as server:
        login = f"ops:s3cret@127.0.0.1:{server.ready['amqp']}"
        Connection(f"amqp://{login}/prod").close()
        with pytest.raises(ConnectFailed):
            Connection(server.amqp_url)
        ops = Http(server.http_url, "ops", "s3cret")
        assert [user["name"] for user in ops.get("/api/users")] == ["ops"]
        assert [vhost["name"] for vhost in ops.get("/api/vhosts")] == ["prod"]
        assert ops.get("/api/whoami")["tags"] == ["administrator"]
        assert "s3cret" not in json.dumps(ops.get("/api/settings"))
        assert "s3cret" not in server.stop()[2]
    monkeypatch.setenv("KVITTO_DEFAULT_USER", "other")
    monkeypatch.setenv("KVITTO_DEFAULT_PASS", "wrong")
    with serving(tmp_path / "data") as server:
        Connection(f"amqp://ops:s3cret@127.0.0.1:{server.ready['amqp']}/prod").close()
        _, _, err = server.stop()
    assert "default user 'other' is not added: the data directory is not new" in err


def test_the_file_with_the_password_is_needed_for_a_new_directory_only(tmp_path: Path) -> None:
    given = ["--default-user", "ops", "--default-pass-file", str(tmp_path / "none")]
    free = ["--port", "0", "--http-port", "0"]
    refused = kvitto("serve", "--data-dir", str(tmp_path / "data"), *free, *given)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert (
        f"--default-pass-file {tmp_path / 'none'}: No such file" in refused.stderr and "Traceback" not in refused.stderr
    )
    (tmp_path / "none").write_text("\n")
    assert "must have 1 to 4096 bytes" in kvitto("serve", "--data-dir", str(tmp_path / "data"), *free, *given).stderr
    (tmp_path / "none").write_text("s3cret")
    with serving(tmp_path / "data", *given) as server:
        assert server.stop()[0] == 0
    (tmp_path / "none").unlink()
    with serving(tmp_path / "data", *given) as server:
        assert server.stop()[0] == 0


def test_level_and_form_of_the_log_change_while_it_runs(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-level", "error") as server:
        http = Http(server.http_url)
        Connection(server.amqp_url).close()
        assert http.get("/api/overview")["kvitto"]["log_level"] == "error"
        assert http.call("PUT", "/api/settings/log", {"level": "info", "json": True}).status == 204
        Connection(server.amqp_url).close()
        assert http.get("/api/overview")["kvitto"]["log_json"] is True
        assert http.put("/api/settings/log", {"level": "debug"}) == 204
        assert http.put("/api/queues/%2F/seen", {}) == 201
        _, _, err = server.stop()
    assert "user 'guest' has configure access to queue 'seen' in vhost '/'" in err
    assert "PUT /api/queues/%2F/seen: 201" in err
    lines = [json.loads(line) for line in err.splitlines() if not line.startswith("kvitto: ")]
    assert len([line for line in lines if "opened vhost" in line["message"]]) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_is_stopped_while_it_begins_anew_ends_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """It leads no more, and its process starts itself again: a signal that comes meanwhile is no failed start."""
    script = f"""
import os, signal
from kvitto.cli import serve
from kvitto.cli.candidate import begin_anew
from kvitto.cli.main import main
if "KVITTO_BEGUN_ANEW" not in os.environ:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    exec_ = os.execv
    def execv(*words):
        os.kill(os.getpid(), {int(number)})
        exec_(*words)
    os.execv = execv
    begin_anew()
main(["serve", "--data-dir", {str(tmp_path)!r}])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (0, "") and "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_ends_at_once_when_it_is_told_to(tmp_path: Path, number: signal.Signals) -> None:
    """Process 1 of a container gets no usual effect of a signal, and a start may take long."""
    script = f"""
import os, signal
from kvitto.cli.main import main
from kvitto.server.server import Server
async def start(self):
    os.kill(os.getpid(), {int(number)})
    while True:
        pass
Server.start = start
main(["serve", "--data-dir", {str(tmp_path)!r}])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"stopped by {number.name} before it was ready" in done.stderr and "Traceback" not in done.stderr
