"""/api/settings, and the log that it changes."""

from __future__ import annotations

from typing import Any

import pytest

from kvitto.base import log
from kvitto.base.config import TYPES
from kvitto.base.limits import SETTABLE
from tests.http.api import Http


def test_all_settings_and_limits_are_shown_to_administrators(api: Http) -> None:
    found = api.get("/api/settings")
    assert {item["name"] for item in found} == set(TYPES) | {f"limits.{name}" for name in SETTABLE}
    assert all(set(item) == {"name", "value", "from"} for item in found)
    assert api.put("/api/users/viewer", {"password": "secret", "tags": "monitoring"}) == 201
    viewer = api.as_user("viewer")
    assert viewer.call("GET", "/api/settings").status == 401
    assert viewer.call("PUT", "/api/settings/log", {"level": "debug"}).status == 401


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "give level or json"),
        ({"level": "trace"}, "level must be one of debug, info, warning, error, not 'trace'"),
        ({"level": 10}, "level must be a string"),
        ({"json": "maybe"}, "json must be true or false"),
        ({"levle": "info"}, "'levle' is no setting of the log"),
        ({"level": "debug", "json": True}, "the log belongs to the program that this broker runs in"),
    ],
)
def test_what_is_wrong_changes_nothing(api: Http, body: dict[str, Any], reason: str) -> None:
    before = log.level()
    answer = api.call("PUT", "/api/settings/log", body)
    assert answer.status == 400 and reason in answer.reason
    assert log.level() == before
