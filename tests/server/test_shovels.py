"""Shovels as users have them: set over HTTP, carried out by a process beside the broker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvitto
from kvitto.base.process import group_members
from tests.cli.process import kvitto as command
from tests.http.api import Http
from tests.shovel.hostile import says, server
from tests.shovel.running import bodies, count, declare, publish
from tests.support.wait import wait_until

LOCAL = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}


@pytest.fixture
def broker() -> Iterator[kvitto.Broker]:
    with kvitto.Broker(http_port=0) as running:
        yield running


@pytest.fixture
def api(broker: kvitto.Broker) -> Http:
    return Http(broker.http_url)


def set_shovel(api: Http, name: str, **more: Any) -> int:
    value = {**LOCAL, "reconnect-delay": 0.1, **{key.replace("_", "-"): item for key, item in more.items()}}
    return api.put(f"/api/parameters/shovel/%2f/{name}", {"value": value})


def state(api: Http, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next((item for item in api.get("/api/shovels") if item["name"] == name), {"state": None})
    return found


def children() -> list[int]:
    """The processes of shovels that this process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid() and b"kvitto.shovel" in entry.joinpath("cmdline").read_bytes():
                    found.append(int(entry.name))
            except (OSError, ValueError):
                continue
    return found


def test_a_shovel_carries_inside_of_the_broker_without_a_password(broker: kvitto.Broker, api: Http) -> None:
    assert children() == []
    assert set_shovel(api, "s") == 201
    wait_until(lambda: state(api, "s")["state"] == "running")
    publish(broker.url, "a", b"0", b"1")
    wait_until(lambda: count(broker.url, "b") == 2)
    wait_until(lambda: state(api, "s").get("moved") == 2)
    shown = api.get("/api/shovels/vhost/%2f/s")
    assert (
        shown["dest_uri"] == "amqp://"
        and shown["type"] == "dynamic"
        and shown["src_queue"] == "a"
        and shown["vhost"] == "/"
    )
    assert [item["name"] for item in api.get("/api/shovels/%2f")] == ["s"]
    assert {user["name"] for user in api.get("/api/users")} == {"guest"}
    assert api.delete("/api/parameters/shovel/%2f/s") == 204
    wait_until(lambda: children() == [])
    assert api.get("/api/shovels") == []


def test_wrong_settings_are_refused_and_nothing_is_kept(broker: kvitto.Broker, api: Http) -> None:
    answer = api.call("PUT", "/api/parameters/shovel/%2f/s", {"value": {**LOCAL, "src-que": "x"}})
    assert answer.status == 400 and "src-queue" in answer.reason
    assert set_shovel(api, "s", dest_publish_properties={"no-such": 1}) == 400
    assert api.get("/api/shovels") == [] and children() == []


def test_a_local_uri_reaches_no_other_virtual_host(broker: kvitto.Broker, api: Http) -> None:
    assert api.put("/api/vhosts/secret") == 201
    assert set_shovel(api, "s", dest_uri="amqp:///secret") == 201
    wait_until(lambda: state(api, "s")["state"] == "terminated")
    assert "own vhost" in state(api, "s")["reason"]


def test_pause_resume_and_restart(broker: kvitto.Broker, api: Http) -> None:
    set_shovel(api, "s")
    wait_until(lambda: state(api, "s")["state"] == "running")
    assert api.put("/api/shovels/%2f/s/pause") == 204
    wait_until(lambda: state(api, "s")["state"] == "paused")
    publish(broker.url, "a", b"0")
    assert api.put("/api/shovels/%2f/s/resume") == 204
    wait_until(lambda: count(broker.url, "b") == 1)
    assert api.delete("/api/shovels/vhost/%2f/s/restart") == 204
    publish(broker.url, "a", b"1")
    wait_until(lambda: count(broker.url, "b") == 2)
    assert api.put("/api/shovels/%2f/none/pause") == 404


def test_a_shovel_that_has_carried_what_it_should_is_deleted(broker: kvitto.Broker, api: Http) -> None:
    declare(broker.url, "a")
    publish(broker.url, "a", b"0", b"1")
    set_shovel(api, "s", src_delete_after="queue-length")
    wait_until(lambda: api.get("/api/shovels") == [])
    assert api.get("/api/parameters") == [] and bodies(broker.url, "b") == [b"0", b"1"]


def test_a_process_that_is_killed_is_started_again(broker: kvitto.Broker, api: Http) -> None:
    set_shovel(api, "s")
    wait_until(lambda: state(api, "s")["state"] == "running")
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    publish(broker.url, "a", b"0")
    wait_until(lambda: count(broker.url, "b") == 1)


def test_shovels_are_there_after_a_restart_and_end_with_the_broker(tmp_path: Path) -> None:
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        set_shovel(Http(broker.http_url), "s")
        wait_until(lambda: state(Http(broker.http_url), "s")["state"] == "running")
        (pid,) = children()
    assert children() == [] and pid not in group_members(pid)
    with kvitto.Broker(tmp_path, http_port=0) as broker:
        publish(broker.url, "a", b"0")
        wait_until(lambda: count(broker.url, "b") == 1)


def test_a_webhook_shovel_posts(broker: kvitto.Broker, api: Http) -> None:
    declare(broker.url, "a")
    publish(broker.url, "a", b"hello")
    with server(says(500), says(200)) as http:
        hook = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": http.url, "dest-secret": "hush"}
        assert api.put("/api/parameters/shovel/%2f/hook", {"value": hook}) == 201
        wait_until(lambda: state(api, "hook").get("moved") == 1)
    assert http.bodies() == [b"hello", b"hello"]
    assert "hush" not in str(api.get("/api/shovels"))


def test_the_commands_of_ctl(broker: kvitto.Broker) -> None:
    def ctl(*words: str, stdin: str = "") -> str:
        done = command("ctl", "--uri", broker.http_url, *words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "is set" in ctl("add_shovel", "s", "-", stdin=json.dumps(LOCAL))
    assert "is paused" in ctl("pause_shovel", "s")
    wait_until(lambda: "paused" in ctl("list_shovels"))
    assert "goes on" in ctl("resume_shovel", "s")
    assert "connects again" in ctl("restart_shovel", "s")
    assert "is deleted" in ctl("delete_shovel", "s")
    refused = command("ctl", "--uri", broker.http_url, "add_shovel", "s", '{"src-que": 1}')
    assert refused.returncode == 1 and "src-queue" in refused.stderr
