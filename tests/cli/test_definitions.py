"""Definitions on the command line and at the start, and a broker that is killed while it imports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import threading
from pathlib import Path
from typing import Any

from tests.cli.process import Serving, kvitto, serving
from tests.http.api import Http
from tests.support.definitions import bound, everything
from tests.support.wait import wait_until


def ctl(broker: Serving, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    done = kvitto("ctl", "--uri", broker.http_url, *arguments, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


def api_of(broker: Serving) -> Http:
    return Http(f"http://{broker.ready['http_host']}:{broker.ready['http']}")


def written(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def test_an_export_and_an_import_by_file_and_by_pipe(tmp_path: Path) -> None:
    file, given = tmp_path / "out.json", written(tmp_path / "in.json", everything())
    with serving(tmp_path / "one") as broker, serving(tmp_path / "two") as other:
        code, out, err = ctl(broker, "import_definitions", given)
        assert (code, err) == (0, "") and out.splitlines() == [
            "without effect here: component 'federation-upstream'",
            "without effect here: policy setting 'ha-mode'",
            "without effect here: argument of queues 'x-queue-mode'",
            "21 definitions are there",
        ]
        code, out, err = ctl(broker, "export_definitions", str(file))
        assert (code, err) == (0, "") and out.endswith(f"definitions are in {file}\n")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, "it has hashes of passwords"
        text = file.read_text()
        assert any(
            json.loads(line.strip().rstrip(",")).get("name") == "q1" for line in text.splitlines() if '"q1"' in line
        )
        assert json.loads(text) == api_of(broker).get("/api/definitions")
        code, piped, _ = ctl(broker, "export_definitions", "-")
        assert code == 0 and piped == text
        code, out, err = ctl(other, "import_definitions", "-", stdin=piped)
        assert (code, err) == (0, "")
        assert ctl(other, "export_definitions", "-")[1] == text
        assert ctl(broker, "export_definitions", "-", "-p", "orders")[1].count('"q1"') == 2
        assert api_of(other).put("/api/vhosts/copy") == 201
        orders = ctl(broker, "export_definitions", "-", "--vhost", "orders")[1]
        assert ctl(other, "import_definitions", "-", "-p", "copy", stdin=orders)[0] == 0


def test_an_export_goes_to_pipes_and_devices_and_is_nobody_elses(tmp_path: Path) -> None:
    """A pipe or a device was replaced by a file; what was at FILE.part kept its mode, or was written through a link."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "linked.part").symlink_to(victim)
    (tmp_path / "wide.part").touch(0o644)
    os.mkfifo(tmp_path / "pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    (tmp_path / "here").symlink_to(tmp_path / "there")
    with serving(tmp_path / "data") as broker:
        for name in ("linked", "wide", "pipe", "here"):
            code, out, err = ctl(broker, "export_definitions", str(tmp_path / name))
            assert (code, err) == (0, "") and "definitions are in" in out, name
        reader.join(10)
        assert json.loads(got[0]) == json.loads((tmp_path / "wide").read_text())
        code, _, err = ctl(broker, "export_definitions", "/dev/full")
        assert code == 2 and "No space left" in err
    assert victim.read_text() == "precious" and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode) and (tmp_path / "here").is_symlink()
    for name in ("linked", "wide", "there"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.part"))


def test_names_from_a_document_are_printed_without_their_control_characters(tmp_path: Path) -> None:
    document = written(tmp_path / "in.json", {"queues": [{"name": "\x1b[31mred\n", "vhost": "none"}, 1]})
    with serving(tmp_path / "data") as broker:
        code, out, err = ctl(broker, "import_definitions", document)
        assert code == 1 and len(err.splitlines()) == 3 and "\x1b" not in err and "\\n" in err
        code, out, err = ctl(broker, "import_definitions", document, "--skip-errors")
        assert code == 1 and len(out.splitlines()) == 3 and "\x1b" not in out


def test_what_is_refused_is_said_and_has_an_exit_code(tmp_path: Path) -> None:
    bad = written(tmp_path / "bad.json", {"vhosts": [{"name": "v"}], "queues": [{"name": "q", "vhost": "none"}]})
    with serving(tmp_path / "data") as broker:
        code, out, err = ctl(broker, "import_definitions", bad)
        assert code == 1 and out == "" and "not taken: queue 'q' in vhost 'none': there is no vhost 'none'" in err
        code, out, err = ctl(broker, "import_definitions", bad, "--skip-errors")
        assert code == 1 and err == "" and out.endswith("1 definitions are there, 1 are not\n")
        (tmp_path / "no.json").write_text("[")
        assert ctl(broker, "import_definitions", str(tmp_path / "no.json"))[0] == 1
        code, _, err = ctl(broker, "import_definitions", str(tmp_path / "missing.json"))
        assert code == 2 and "cannot read" in err
        code, _, err = ctl(broker, "export_definitions", str(tmp_path / "none" / "x.json"))
        assert code == 2 and "cannot write" in err


def test_a_file_is_imported_at_each_start(tmp_path: Path) -> None:
    document = everything()
    file = written(tmp_path / "defs.json", document)
    config = tmp_path / "kvitto.toml"
    config.write_text(f'definitions = "{file}"\n')
    with serving(tmp_path / "data", "--definitions", file) as broker:
        first = api_of(broker).get("/api/definitions")
        assert {queue["name"] for queue in first["queues"]} == {"q1", "q2", "amq.gen-1"}
        assert broker.stop()[0] == 0
    document["policies"][0]["definition"]["max-length"] = 8
    written(tmp_path / "defs.json", document)
    with serving(tmp_path / "data", "--config", str(config)) as broker:
        second = api_of(broker).get("/api/definitions")
        assert second["policies"][0]["definition"]["max-length"] == 8
        assert {**second, "policies": []} == {**first, "policies": []}


def test_a_file_with_a_mistake_stops_the_start_and_changes_nothing(tmp_path: Path) -> None:
    document = everything()
    document["bindings"].append(bound("x", "nowhere", "k"))
    file = written(tmp_path / "defs.json", document)
    for text, said in (
        (
            json.dumps(document),
            "1 of 22 cannot be taken:\n  binding 'x -> nowhere (k)' in vhost 'orders': there is no queue",
        ),
        ("{", "the document is not JSON"),
    ):
        Path(file).write_text(text)
        done = kvitto(
            "serve", "--data-dir", str(tmp_path / "data"), "--port", "0", "--http-port", "0", "--definitions", file
        )
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    done = kvitto("serve", "--data-dir", str(tmp_path / "data"), "--port", "0", "--definitions", str(tmp_path / "no"))
    assert done.returncode == 2 and "cannot read --definitions" in done.stderr
    with serving(tmp_path / "data") as broker:
        assert [vhost["name"] for vhost in api_of(broker).get("/api/vhosts")] == ["/"]


def test_the_switch_refuses_foreign_hashes(tmp_path: Path) -> None:
    file = written(tmp_path / "defs.json", everything())
    with serving(tmp_path / "data", "--foreign-hashes", "off") as broker:
        code, _, err = ctl(broker, "import_definitions", file)
        assert code == 1 and "(--foreign-hashes off)" in err


def test_a_broker_that_is_killed_in_the_middle_has_a_beginning_and_a_second_import_does_the_rest(
    tmp_path: Path,
) -> None:
    queues = [
        {"name": f"q{number}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for number in range(200)
    ]
    bindings = [bound("amq.direct", f"q{number % 200}", str(number), "/") for number in range(5000)]
    document = {"vhosts": [{"name": "v"}], "queues": queues, "bindings": bindings}
    with serving(tmp_path / "data") as broker:
        api = api_of(broker)

        def post() -> None:
            with contextlib.suppress(OSError):  # it is killed
                api.post("/api/definitions", document)

        thread = threading.Thread(target=post)
        thread.start()
        log = tmp_path / "data" / "definitions.log"
        wait_until(lambda: b'"binding"' in log.read_bytes())
        os.kill(int(broker.ready["pid"]), signal.SIGKILL)
        thread.join()
    with serving(tmp_path / "data") as broker:
        api = api_of(broker)
        assert len(api.get("/api/queues")) == 200, "bindings come after all queues"
        found = [b["routing_key"] for b in api.get("/api/exchanges/%2F/amq.direct/bindings/source")]
        assert len(found) > 0 and sorted(found, key=int) == [str(number) for number in range(len(found))]
        assert api.post("/api/definitions", document).status == 204
        assert len(api.get("/api/exchanges/%2F/amq.direct/bindings/source")) == 5000


def test_each_refusal_is_said_once_and_so_is_a_list_of_settings(tmp_path: Path) -> None:
    """Each was in the first sentence and in a line of its own, both times with all settings that there are."""
    policies = [
        {"name": name, "vhost": "/", "pattern": "x", "definition": {key: 1}, "apply-to": "all", "priority": 0}
        for name, key in (("near", "ha-sync-mod"), ("one", "qqq"), ("two", "zzz"))
    ]
    document = written(tmp_path / "in.json", {"policies": policies})
    with serving(tmp_path / "data") as broker:
        code, out, err = ctl(broker, "import_definitions", document)
        head, near, one, two = err.splitlines()
        assert (code, out) == (1, "") and head == (
            "kvitto ctl: 3 of 3 definitions cannot be taken. Nothing was changed"
        )
        assert (
            near
            == "not taken: policy 'near' in vhost '/': 'ha-sync-mod' is no setting of policies, is it 'ha-sync-mode'?"
        )
        assert one.startswith(
            "not taken: policy 'one' in vhost '/': 'qqq' is no setting of policies; these are: message-ttl,"
        )
        assert two == "not taken: policy 'two' in vhost '/': 'zzz' is no setting of policies"
