"""/api/backup: who may take one, one at a time, and what becomes of one that nobody takes."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvitto
from kvitto.broker.administration import backups
from tests.http.api import Http
from tests.support.wait import wait_until


@pytest.fixture
def http(broker: kvitto.Broker) -> Http:
    assert broker.http_url is not None
    return Http(broker.http_url)


def test_one_backup_at_a_time(http: Http) -> None:
    begun = http.post("/api/backup", {})
    assert begun.status == 201
    name, staging = begun.json["name"], Path(begun.json["data_dir"]) / begun.json["staging"]
    assert (staging / "definitions.log").exists()
    other = http.post("/api/backup", {})
    assert other.status == 409 and f"another backup is being taken ({name})" in other.reason
    wait_until(lambda: http.get(f"/api/backup/{name}")["ready"])
    assert http.delete(f"/api/backup/{name}") == 204
    assert http.call("GET", f"/api/backup/{name}").status == 404
    wait_until(lambda: not staging.exists())
    again = http.post("/api/backup", {})
    assert again.status == 201 and http.delete(f"/api/backup/{again.json['name']}") == 204


def test_only_an_administrator_may(http: Http) -> None:
    for user, tags in (("watcher", "monitoring"), ("maker", "policymaker"), ("nobody", "")):
        http.put(f"/api/users/{user}", {"password": "secret", "tags": tags})
        assert http.as_user(user).post("/api/backup", {}).status == 401
    assert http.call("POST", "/api/backup").status == 415  # a form of a page of somebody else


def test_unknown_names_are_not_found(http: Http) -> None:
    assert http.call("GET", "/api/backup/nothing").status == 404
    assert http.delete("/api/backup/nothing") == 404


def test_a_backup_that_nobody_takes_is_given_up(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "BACKUP_SILENCE_MS", 200)
    monkeypatch.setattr(backups, "LOOK_MS", 50)
    begun = http.post("/api/backup", {}).json
    staging = Path(begun["data_dir"]) / begun["staging"]
    wait_until(lambda: not staging.exists())
    answer = http.call("GET", f"/api/backup/{begun['name']}")
    assert answer.status == 410 and "has not been heard of" in answer.reason
